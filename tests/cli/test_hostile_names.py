"""Whoever chooses a name or a record cannot steer the terminal of who looks at it, nor forge a line of a table."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from logmark.cli import tables
from logmark.client.client import Client
from logmark.client.groups import Committed
from logmark.errors import UserError
from logmark.escaping import escape, escape_json, is_safe
from logmark.names import TopicPartition
from logmark.testing import Broker
from tests.cli.conftest import run
from tests.harness.brokers import QUIET
from tests.harness.node import wait_until

TOPIC = "orders"
# Colours, a bell, a cleared screen, a line of its own, a C1 control sequence, a delete, and text that runs backwards.
EVIL = "evil\x1b[31m\x07\x1b[2J\nFORGED  Stable\r\x7f\x9b1m\u202etxt\u2066"
SEEN = r"evil\x1b[31m\x07\x1b[2J\nFORGED  Stable\r\x7f\x9b1m\u202etxt\u2066"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class HostileBroker(NamedTuple):
    """A broker with names and records that somebody else has chosen."""

    servers: str
    data_dir: str


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileBroker]:
    with Broker() as broker:
        broker.create_topic(TOPIC)
        servers = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, **QUIET})
        producer.produce(TOPIC, EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())], partition=0)
        producer.produce(TOPIC, b"\xff\x1b[2J\xfe", partition=0)
        assert 0 == producer.flush(60)
        with Client(servers) as client:
            for group in (EVIL, f"{EVIL}-to-delete", f"{EVIL}-to-forget", f"{EVIL}-of-kafka", f"{EVIL}-to-undo"):
                client.commit(group, {TopicPartition(TOPIC, 0): Committed(offset=1, metadata=EVIL)})
            member = Consumer(
                {"bootstrap.servers": servers, "group.id": f"{EVIL}-live", "client.id": EVIL,
                 "group.instance.id": EVIL, **QUIET}
            )  # fmt: skip
            member.subscribe([TOPIC])
            wait_until(lambda: member.poll(0.1) is not None or member.assignment(), "the member has its partition")
            yield HostileBroker(servers, broker.data_dir)
            member.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def check(written: str) -> None:
    """Nothing in it steers a terminal, and no line was forged."""
    assert [] == UNSAFE.findall(written)
    assert not any(line.lstrip().startswith("FORGED") for line in written.splitlines())


KAFKA = "kafka-consumer-groups"
COMMANDS = [
    ("groups", "list"),
    ("groups", "describe", EVIL),
    ("groups", "describe", f"{EVIL}-live"),
    ("groups", "describe", f"{EVIL}-missing"),
    ("groups", "delete", f"{EVIL}-missing", "--yes"),
    ("groups", "delete", f"{EVIL}-live", "--yes"),
    ("groups", "delete", f"{EVIL}-to-delete", "--yes"),
    ("lag",),
    ("lag", EVIL),
    ("lag", f"{EVIL}-live", "--by", "topic"),
    ("lag", "--by", "group"),
    ("offsets", "reset", EVIL, "--topic", TOPIC, "--to-earliest", "--dry-run"),
    ("offsets", "reset", EVIL, "--topic", TOPIC, "--to-earliest", "--yes", "--reason", EVIL),
    ("offsets", "reset", f"{EVIL}-live", "--topic", TOPIC, "--to-earliest", "--yes"),
    ("offsets", "reset", f"{EVIL}-missing", "--topic", TOPIC, "--to-earliest", "--yes"),
    ("offsets", "reset", EVIL, "--topic", TOPIC, "--from-group", f"{EVIL}-of-kafka", "--dry-run"),
    ("offsets", "delete", f"{EVIL}-to-forget", "--topic", TOPIC, "--yes"),
    ("consume", TOPIC),
    ("consume", TOPIC, "--with-offsets"),
    ("consume", TOPIC, "--group", f"{EVIL}-reader"),
    ("replay", TOPIC),
    ("replay", TOPIC, "--with-offsets"),
    ("topics", "list"),
    ("topics", "describe", TOPIC),
    (KAFKA, "--list"),
    (KAFKA, "--list", "--state"),
    (KAFKA, "--describe", "--all-groups"),
    (KAFKA, "--describe", "--all-groups", "--members", "--verbose"),
    (KAFKA, "--describe", "--all-groups", "--state"),
    (KAFKA, "--describe", "--group", f"{EVIL}-missing"),
    (KAFKA, "--reset-offsets", "--group", f"{EVIL}-of-kafka", "--topic", TOPIC, "--to-earliest", "--dry-run"),
    (KAFKA, "--reset-offsets", "--group", f"{EVIL}-live", "--topic", TOPIC, "--to-earliest", "--dry-run"),
    (KAFKA, "--delete-offsets", "--group", f"{EVIL}-of-kafka", "--topic", TOPIC),
    (KAFKA, "--delete", "--group", f"{EVIL}-of-kafka"),
    (KAFKA, "--delete", "--group", f"{EVIL}-live"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).replace(EVIL, "EVIL"))
def test_what_a_command_writes_for_people_has_no_control_characters(
    hostile: HostileBroker, words: tuple[str, ...]
) -> None:
    ran = run(*words, servers=hostile.servers)

    check(ran.out)
    check(ran.error)
    if words[0] != "topics":
        assert "FORGED" in ran.out + ran.error, "this command does not show the name"
        assert r"\x1b[31m\x07\x1b[2J\nFORGED" in ran.out + ran.error


def test_changes_in_the_journal_are_shown_escaped(hostile: HostileBroker) -> None:
    run("offsets", "reset", f"{EVIL}-to-undo", "--topic", TOPIC, "--to-earliest", "--yes", "--reason", EVIL,
        servers=hostile.servers)  # fmt: skip
    (change,) = run("offsets", "history", "--output", "json", servers=hostile.servers).json
    for words in (("history",), ("show", change["id"]), ("undo", change["id"], "--yes")):
        ran = run("offsets", *words, servers=hostile.servers)

        assert 0 == ran.exit_code, ran.error
        check(ran.out)
        check(ran.error)
        assert SEEN in ran.out


JSON = [
    ("groups", "list"),
    ("groups", "describe", f"{EVIL}-live"),
    ("lag", EVIL),
    ("offsets", "reset", EVIL, "--topic", TOPIC, "--to-latest", "--dry-run"),
    ("consume", TOPIC, "--max", "1"),
    ("replay", TOPIC, "--limit", "1"),
]


@pytest.mark.parametrize("words", JSON, ids=lambda words: " ".join(words).replace(EVIL, "EVIL"))
def test_json_has_the_names_as_they_are_and_no_control_characters(
    hostile: HostileBroker, words: tuple[str, ...]
) -> None:
    ran = run(*words, "--output", "json", servers=hostile.servers)

    check(ran.out)
    assert any(EVIL in text for text in _texts(ran.json))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def test_a_monitor_tells_of_groups_escaped(hostile: HostileBroker, tmp_path: Path) -> None:
    alerts = tmp_path / "alerts.toml"
    alerts.write_text('[[alert]]\nname = "lag"\nwhen = "lag"\nabove = 0\n')
    ran = run("monitor", "--once", "--alerts", str(alerts), "--history", str(tmp_path / "history.db"),
              servers=hostile.servers)  # fmt: skip

    check(ran.out)
    check(ran.error)


def consume(hostile: HostileBroker, *words: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "logmark", "consume", TOPIC, *words, "--bootstrap-servers", hostile.servers],
        capture_output=True, timeout=120, check=True, env={**os.environ},
    )  # fmt: skip
    return done.stdout


def test_raw_writes_the_bytes_as_they_are(hostile: HostileBroker) -> None:
    assert EVIL.encode() + b"\n\xff\x1b[2J\xfe\n" == consume(hostile, "--raw")
    assert b"partition 0\toffset 0\t" + EVIL.encode() + b"\t" + EVIL.encode() + b"\n" == consume(
        hostile, "--raw", "--with-offsets", "--max", "1"
    )


def test_bytes_that_are_no_text_are_replaced_as_ever(hostile: HostileBroker) -> None:
    assert f"{SEEN}\n\ufffd\\x1b[2J\ufffd\n".encode() == consume(hostile)


def test_raw_json_cannot_be_meant(hostile: HostileBroker) -> None:
    ran = run("consume", TOPIC, "--raw", "--output", "json", servers=hostile.servers)

    assert 2 == ran.exit_code and "--raw" in ran.error


def test_records_in_files_are_shown_escaped(hostile: HostileBroker) -> None:
    ran = run("log", "dump", f"{hostile.data_dir}/{TOPIC}-0", "--records")

    check(ran.out)
    assert "FORGED" in ran.out


def test_lines_that_belong_to_an_error_stay_lines() -> None:
    error = UserError("Two mistakes.", lines=["one", "two"])

    assert ("Two mistakes.", "one", "two") == error.lines
    assert "Two mistakes.\none\ntwo" == str(error)


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 😀", r"C:\new\x1b", '{"a": "b\\n"}', "a b\u00a0c"])
def test_text_without_control_characters_stays_as_it_is(text: str) -> None:
    assert is_safe(text)
    assert text == escape(text) == escape_json(text)


def test_every_control_character_is_escaped() -> None:
    ranges = (range(0x20), range(0x7F, 0xA0), range(0x2028, 0x202F), range(0x2066, 0x206A), range(0x200E, 0x2010))
    unsafe = [chr(number) for numbers in ranges for number in numbers] + ["\u061c", "\ud800", "\udfff"]

    assert all(escape(one).isascii() and escape(one).isprintable() and not is_safe(one) for one in unsafe)
    assert unsafe == json.loads(escape_json(json.dumps(unsafe, ensure_ascii=False)))


def test_a_table_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table([tables.Column("NAME"), tables.Column("STATE")], [(EVIL, "Empty"), ("b", None)])
    tables.say(EVIL)

    shown = capsys.readouterr()
    assert 3 == len(shown.out.splitlines())
    assert SEEN in shown.out and f"{SEEN}\n" == shown.err
