"""`logmark replay` sends the dead letters of pipelines back, the same on our broker and on Apache Kafka."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.dead_letters.dead_letter import Headers, dead_letter_for_record, dead_letter_headers
from logmark.wire import batches
from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest
from tests.spark.sink_rows import rows

FOREVER = {"retention.ms": "-1"}
Command = Callable[..., CommandResult]


@pytest.fixture
def replay(broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return lambda *arguments: run("replay", *arguments, servers=broker.bootstrap_servers)


def write_dead_letters(
    broker: BrokerUnderTest, dead: str, topic: str, numbers: range, pipeline: str = "billing", headers: Headers = ()
) -> None:
    """A letter for each number, about a record of partition 1 with these headers."""
    dead_letters = [
        dead_letter_for_record(
            TopicPartition(topic, 1), number, 1_700_000_000_000 + number, b"k%d" % number, b"v%d" % number,
            [(b"own", b"x"), *headers], error="bad", pipeline=pipeline,
        )
        for number in numbers
    ]  # fmt: skip
    batch = batches.build(
        [(one.dead_letter_key.encode(), one.value) for one in dead_letters],
        timestamp_ms=1_700_000_100_000,
        headers=[dead_letter_headers(one) for one in dead_letters],
    )
    with Client(broker.bootstrap_servers) as client:
        client.produce(TopicPartition(dead, 0), batch)


def test_dead_letters_go_back_as_the_records_that_they_were_and_only_those_that_did_not_go_before(
    broker: BrokerUnderTest, replay: Command
) -> None:
    clicks, dead = broker.create_topic("clicks", 2, FOREVER), broker.create_topic("dead", 1, FOREVER)
    write_dead_letters(broker, dead, clicks, range(3))
    write_dead_letters(broker, dead, clicks, range(2))  # at least once
    unsent = [dead, "--to-original", "--from", "unsent", "--yes"]

    dry = replay(dead, "--to-original", "--dry-run")
    first, nothing = replay(*unsent), replay(*unsent)
    write_dead_letters(broker, dead, clicks, range(7, 9))
    again = replay(*unsent)
    warned = replay(dead, "--to-original", "--dry-run")

    assert [
        f"To {clicks}: 3 records.",
        "2 dead letters were left out, because another one about the same record is sent back.",
    ] == (dry.lines[-2:])
    assert "comes to the end of its topic as a new record, for every group that reads the topic." in dry.error
    assert (0, 3, 0) == (first.exit_code, nothing.exit_code, again.exit_code), nothing.error
    assert f"Copied 3 records from {dead}" in first.lines[-1]
    assert "2 dead letters were left out, because another one about the same record is sent back." in first.error
    assert "Some of these were sent back from here before, and would be again" in warned.error
    sent = rows(broker, clicks, 1)
    assert [b"v0", b"v1", b"v2", b"v7", b"v8"] == [row["value"] for row in sent]
    assert (b"k7", 1_700_000_000_007) == (sent[3]["key"], sent[3]["timestamp"])
    assert ["own", "logmark.letter.attempts", "logmark.letter.origin"] == [
        name for name, _ in sent[3]["headers"] if not name.startswith("logmark.replay.")
    ]
    assert [] == rows(broker, clicks, 0)


def test_a_record_that_was_refused_again_goes_back_again_and_its_dead_letters_count(
    broker: BrokerUnderTest, replay: Command
) -> None:
    clicks, dead = broker.create_topic("clicks", 2, FOREVER), broker.create_topic("dead", 1, FOREVER)
    write_dead_letters(broker, dead, clicks, range(1))
    unsent = [dead, "--to-original", "--from", "unsent", "--yes"]

    for attempts in (1, 2, 3):
        assert 0 == replay(*unsent).exit_code
        back = rows(broker, clicks, 1)[-1]
        assert (b"v0", b"%d" % attempts) == (back["value"], dict(back["headers"])["logmark.letter.attempts"])
        assert f'["{clicks}",1,0]'.encode() == dict(back["headers"])["logmark.letter.origin"]
        headers = [(name.encode(), value) for name, value in back["headers"] if name != "own"]
        write_dead_letters(broker, dead, clicks, range(1), headers=headers)

    assert 3 == len(rows(broker, clicks, 1))


def test_dead_letters_of_one_pipeline_can_go_to_a_topic_that_only_it_reads(
    broker: BrokerUnderTest, replay: Command
) -> None:
    clicks, dead = broker.create_topic("clicks", 2, FOREVER), broker.create_topic("dead", 1, FOREVER)
    retry = broker.create_topic("retry", 1, FOREVER)
    write_dead_letters(broker, dead, clicks, range(2))
    write_dead_letters(broker, dead, clicks, range(2, 5), pipeline="fraud")
    broker.produce(dead, ["no letter"])

    done = replay(dead, "--to-topic", retry, "--restore", "--pipeline", "fraud", "--yes")
    picked = replay(dead, "--to-topic", retry, "--restore", "--key", "k1", "--yes")
    mistakes = ["--restore"], ["--pipeline", "x"], ["--from", "unsent", "--to-topic", retry]
    wrong = [replay(dead, *more) for more in mistakes]

    assert (0, 0) == (done.exit_code, picked.exit_code), done.error
    assert "every group" not in done.error
    assert [b"v2", b"v3", b"v4", b"v1"] == [row["value"] for row in rows(broker, retry)]
    assert [2, 2, 2] == [one.exit_code for one in wrong]
    assert "--from unsent goes with --to-original or --restore." in wrong[2].error
