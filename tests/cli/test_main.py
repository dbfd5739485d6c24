"""The command as a whole: help, refusals, signals, and what it does not import."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from logmark.cli import clusters, main
from logmark.client.client import Client
from logmark.names import TopicPartition
from tests.cli.conftest import Logmark, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import unserved_address
from tests.harness.terminals import read_until

COMMAND = [sys.executable, "-c", "from logmark.cli.main import run; run()"]
COMMANDS = [
    ("topics", "list"), ("topics", "create"), ("topics", "describe"), ("topics", "delete"), ("produce",), ("consume",),
    ("groups", "list"), ("groups", "describe"), ("groups", "delete"), ("lag",), ("offsets", "reset"), ("serve",),
    ("backup",), ("restore",), ("verify",), ("recover",), ("log", "dump"),
]  # fmt: skip


def environment(servers: str) -> dict[str, str]:
    return {**os.environ, "LOGMARK_BOOTSTRAP_SERVERS": servers, "COLUMNS": "200"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")

    assert 0 == shown.exit_code
    assert "Example: " in shown.out
    assert f"logmark {' '.join(command)}" in shown.out


def test_help_names_the_commands_in_the_order_of_a_first_minute() -> None:
    shown = run("--help").out

    indexes = [
        shown.index(f"│ {name} ") for name in ("serve", "topics", "produce", "consume", "groups", "lag", "offsets")
    ]
    assert sorted(indexes) == indexes


def test_the_version_is_told() -> None:
    assert ["logmark 0.1.0"] == run("--version").lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["lag", "--nonsense"], "No such option: --nonsense"),
        (["nonsense"], "No such command 'nonsense'"),
        (["topics", "create"], "Missing argument"),
        (["lag", "--output", "xml"], "xml"),
        (["offsets", "reset", "g", "--to-latest"], "--topic"),
    ],
)
def test_a_wrong_call_is_told_with_exit_code_2(arguments: list[str], message: str) -> None:
    refused = run(*arguments)

    assert 2 == refused.exit_code
    assert message in refused.error
    assert "--help" in refused.error


EVERYTHING = [
    ["topics", "list"], ["topics", "create", "orders"], ["topics", "describe", "orders"],
    ["topics", "delete", "orders"], ["produce", "orders"], ["consume", "orders"], ["groups", "list"],
    ["groups", "describe", "g"], ["groups", "delete", "g"], ["lag"],
    ["offsets", "reset", "g", "--topic", "orders", "--to-latest", "--yes"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", EVERYTHING, ids=" ".join)
def test_no_broker_there_is_an_error_with_the_address(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE_S", 0.0)
    with unserved_address() as address:
        refused = run(*arguments, "--bootstrap-servers", address)

    assert (1, "") == (refused.exit_code, refused.out)
    assert f"logmark: The broker at {address} refused the connection (nothing listens there)" in refused.error


def test_a_broker_that_never_answers_is_given_up_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clusters.TIMEOUT_S + clusters.PATIENCE_S < 10
    monkeypatch.setattr(clusters, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(clusters, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refused = run("lag", "--bootstrap-servers", f"127.0.0.1:{silent.getsockname()[1]}")

    assert 1 == refused.exit_code
    assert "did not answer in time" in refused.error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol=TLS", "security.protocol is TLS; it must be one of PLAINTEXT"),
        ("security.protcol=SSL", "security.protcol is not known"),
    ],
)
def test_wrong_client_properties_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)

    refused = run("lag", "--command-config", str(file))

    assert 1 == refused.exit_code
    assert message in refused.error


def test_client_properties_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    refused = run("topics", "list", "--command-config", str(tmp_path / "absent"))

    assert 2 == refused.exit_code
    assert "cannot be read: No such file" in refused.error


def test_an_address_that_is_none_is_an_error() -> None:
    refused = run("topics", "list", "-b", "localhost:port")

    assert 1 == refused.exit_code
    assert "'localhost:port' is not an address: write HOST:PORT" in refused.error


def test_help_imports_neither_the_broker_nor_a_client() -> None:
    code = (
        "import sys; from logmark.cli.main import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print([name for name in ('logmark.broker', 'logmark.client', 'confluent_kafka', 'asyncio', 'uvloop')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def test_serving_imports_no_client() -> None:
    code = (
        "import sys; from logmark.cli.main import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0;"
        "print([name for name in ('logmark.client', 'confluent_kafka', 'logmark.offsets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def test_an_interrupt_ends_quietly_with_130_and_keeps_the_committed_offset(
    our_broker: BrokerUnderTest, client: Client
) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, ["a", "b"])
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--group", group, "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(our_broker.bootstrap_servers),
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        assert ["a\n", "b\n"] == [reader.stdout.readline(), reader.stdout.readline()]
        reader.send_signal(signal.SIGINT)
        rest, error = reader.communicate(timeout=120)

    assert (130, "", "") == (reader.returncode, rest, error)
    assert 2 == client.committed(group)[TopicPartition(topic, 0)].offset


def test_a_reader_that_has_seen_enough_is_no_error(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    our_broker.produce(topic, ["x" * 100] * 5000)
    with subprocess.Popen(
        [*COMMAND, "consume", topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(our_broker.bootstrap_servers),
    ) as reader:  # fmt: skip
        assert reader.stdout is not None and reader.stderr is not None
        assert "x" * 100 == reader.stdout.readline().strip()
        reader.stdout.close()
        error = reader.stderr.read()
        reader.wait(60)

    assert (0, "") == (reader.returncode, error)


@pytest.mark.parametrize(("answer", "exit_code", "committed"), [(b"y\n", 0, 0), (b"n\n", 1, 1), (b"\n", 1, 1)])
def test_a_reset_asks_in_a_terminal(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client, answer: bytes, exit_code: int, committed: int
) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, ["a", "b"])
    client.commit(group, {TopicPartition(topic, 0): 1})
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "offsets", "reset", group, "--topic", topic, "--to-earliest"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment(our_broker.bootstrap_servers),
    ) as asked:  # fmt: skip
        os.close(theirs)
        try:
            shown = read_until(ours, f"Apply this to group {group}? [y/N]:".encode())
            os.write(ours, answer)
            assert exit_code == asked.wait(60)
        finally:
            # One that still waits for an answer would keep the test from telling why it failed.
            asked.kill()
    os.close(ours)

    plain = re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", shown)
    assert re.search(rb"COMMITTED +LAST PROCESSED.*\r\n.* 1 +0 ", plain)
    assert committed == client.committed(group)[TopicPartition(topic, 0)].offset


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_list_of_commands_says_what_the_help_of_each_command_says(name: str) -> None:
    listed, shown = main.COMMANDS[name].help, " ".join(run(name, "--help").out.replace("│", " ").split())

    assert listed in shown or name == "kafka-consumer-groups"
