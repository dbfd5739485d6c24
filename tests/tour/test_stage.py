"""What a stage shows is what ran there: the code, its output, the commands, and the broker's own numbers."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from logmark.cli.tour import run_logmark
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.tour.elements import Code, Command, Element, Output, Picture
from logmark.tour.stage import Stage, open_stage


@pytest.fixture
def elements() -> list[Element]:
    return []


@pytest.fixture
def stage(elements: list[Element]) -> Iterator[Stage]:
    with open_stage(elements.append, run_logmark) as stage:
        yield stage


def dies_at_once(servers: str) -> None:
    """Takes its own process down, and not the test's."""
    print("dies, with", len(servers.split(":")), "parts of an address")
    os.kill(os.getpid(), signal.SIGKILL)


def goes_on(servers: str) -> None:
    """Ends as it should, which is not what a chapter about crashes wants."""
    print("done")


def test_the_code_that_is_shown_is_the_code_that_ran(stage: Stage, elements: list[Element]) -> None:
    with stage.code():
        # A comment of its own.
        answer = 6 * 7
        if answer:
            print("the answer is", answer)

    assert 42 == answer
    assert [
        Code('# A comment of its own.\nanswer = 6 * 7\nif answer:\n    print("the answer is", answer)'),
        Output("the answer is 42"),
    ] == elements


def test_code_that_prints_nothing_shows_no_output_and_code_that_fails_fails(
    stage: Stage, elements: list[Element]
) -> None:
    with stage.code():
        nothing = None
    with pytest.raises(ZeroDivisionError), stage.code():
        print(1 // 0)

    assert nothing is None
    assert [Code("nothing = None"), Code("print(1 // 0)")] == elements


def test_a_command_is_run_against_the_tours_broker_and_shown_with_what_it_wrote(
    stage: Stage, elements: list[Element]
) -> None:
    stage.command("logmark topics create clicks --partitions 3")
    stage.command("logmark lag nobody", exit_code=1)

    assert 3 == len(stage.client.metadata(["clicks"]).partitions("clicks"))
    assert [Command("logmark topics create clicks --partitions 3"), Output("Created topic clicks.")] == elements[:2]
    assert isinstance(elements[3], Output) and "Group nobody does not exist" in elements[3].text
    with pytest.raises(UserError, match="`logmark lag nobody` ended with exit code 1"):
        stage.command("logmark lag nobody")


def test_a_picture_is_drawn_from_what_the_broker_and_the_consumer_say(stage: Stage, elements: list[Element]) -> None:
    stage.fill("clicks", 9, 9)
    offsets, position, start = [3, 7], 5, 2
    stage.client.commit("billing", {TopicPartition("clicks", one): offset for one, offset in enumerate(offsets)})
    stage.client.delete_records({TopicPartition("clicks", 1): start})
    consumer = Consumer({"bootstrap.servers": stage.servers, "group.id": "fraud", "enable.auto.commit": False})
    consumer.assign([ClientPartition("clicks", 0, 0)])
    assert position == len(consumer.consume(position, timeout=60))

    stage.picture("clicks", "billing", running={"consumer": consumer})
    consumer.close()

    assert isinstance(elements[0], Picture)
    text = "\n".join(elements[0].lines)
    assert f"△ position {position}" in text
    for offset in offsets:
        assert f"committed {offset} (last processed {offset - 1})" in text
    assert 3 * start == text.count("░")


def test_a_process_of_a_chapter_is_another_process_and_dies(stage: Stage, elements: list[Element]) -> None:
    stage.process(dies_at_once)

    assert isinstance(elements[0], Code) and elements[0].text.startswith("def dies_at_once(servers: str) -> None:\n")
    assert Output("dies, with 2 parts of an address\nKilled") == elements[1]
    with pytest.raises(UserError, match="ended by itself, with exit code 0"):
        stage.process(goes_on)


def test_nothing_of_the_user_is_read_or_written(
    elements: list[Element], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "logmark.toml").write_text("this is no TOML")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("LOGMARK_CONTEXT", "production")
    monkeypatch.setenv("LOGMARK_READ_ONLY", "1")
    monkeypatch.setenv("LOGMARK_CONFIG", str(tmp_path / "logmark.toml"))
    before = dict(os.environ)

    with open_stage(elements.append, run_logmark) as stage:
        folder = Path(stage.broker.data_dir)
        stage.fill("clicks", 3)
        stage.client.commit("billing", {TopicPartition("clicks", 0): 3})
        stage.command("logmark offsets reset billing --topic clicks --to-earliest --yes")
        assert 0 == stage.committed("billing", "clicks")

    assert before == dict(os.environ)
    assert ["logmark.toml"] == [path.name for path in tmp_path.rglob("*")]
    assert not folder.exists()


def test_what_the_broker_of_the_tour_warns_of_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    broker_log = logging.getLogger("logmark.broker.loop_watchdog")
    with open_stage(lambda element: None, run_logmark):
        broker_log.warning("The event loop was held for 61 ms.")
        broker_log.error("The disk has failed.")
    broker_log.warning("The broker of somebody else is busy.")

    assert ["The disk has failed.", "The broker of somebody else is busy."] == caplog.messages
