"""`logmark kafka-consumer-groups`: what Kafka's tool has not, and what it does not print.

What it prints is compared with Kafka's own tool in tests/compat/test_kafka_consumer_groups.py.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.undo import undo_change
from logmark.offsets.user_files import state_folder
from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import turn_clock

NOWHERE = "127.0.0.1:1"


class GroupsCommand:
    """The command on one broker, with a topic and a group that has committed something with metadata."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.broker = broker
        self.topic = broker.create_topic("orders", partitions=2)
        broker.produce(self.topic, ["order"] * 10)
        self.group = broker.group("email")
        self.before = {(self.topic, 0): 4, (self.topic, 1): 0}
        with Client(broker.bootstrap_servers) as client:
            client.commit(
                self.group,
                {
                    TopicPartition(self.topic, 0): Committed(offset=4, metadata="mark"),
                    TopicPartition(self.topic, 1): Committed(offset=0),
                },
            )

    def __call__(self, *args: str) -> CommandResult:
        return run("kafka-consumer-groups", "--bootstrap-server", self.broker.bootstrap_servers, *args)

    def reset(self, *args: str) -> CommandResult:
        return self("--reset-offsets", "--group", self.group, "--topic", self.topic, *args)

    def committed(self) -> dict[tuple[str, int], int]:
        return self.broker.committed(self.group)


@pytest.fixture
def tool(broker: BrokerUnderTest) -> GroupsCommand:
    return GroupsCommand(broker)


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_a_reset_keeps_the_metadata_of_an_offset(tool: GroupsCommand, client: Client) -> None:
    ran = tool.reset("--to-offset", "2", "--execute")

    assert 0 == ran.exit_code
    assert ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"] == ran.words[1]
    assert Committed(offset=2, metadata="mark") == client.committed(tool.group)[TopicPartition(tool.topic, 0)]


def test_an_executed_reset_is_in_the_journal_and_can_be_undone(tool: GroupsCommand, client: Client) -> None:
    tool.reset("--to-latest", "--execute")
    assert {(tool.topic, 0): 10, (tool.topic, 1): 0} == tool.committed()

    (change,) = open_journal(client).changes(name=tool.group)
    # Partition 1 stood at its end already.
    assert ("reset", "kafka-consumer-groups --to-latest", "done") == (change.action, change.how, change.state)
    assert {TopicPartition(tool.topic, 0): Committed(offset=4, metadata="mark")} == change.before

    undo_change(client, change.id)
    assert tool.before == tool.committed()
    assert "mark" == client.committed(tool.group)[TopicPartition(tool.topic, 0)].metadata


@pytest.mark.parametrize("action", ["--delete", "--delete-offsets"])
def test_deletions_are_in_the_journal_and_can_be_undone(tool: GroupsCommand, client: Client, action: str) -> None:
    ran = tool(action, "--group", tool.group, *(("--topic", tool.topic) if action == "--delete-offsets" else ()))
    assert (0, {}) == (ran.exit_code, tool.committed())

    (change,) = open_journal(client).changes(name=tool.group)
    assert (action.removeprefix("--"), "done") == (change.action, change.state)
    undo_change(client, change.id)
    assert tool.before == tool.committed()


def test_a_reset_goes_on_where_the_journal_cannot_be_written(
    tool: GroupsCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")

    ran = tool.reset("--to-earliest", "--execute", "--strict")

    assert (0, {(tool.topic, 0): 0, (tool.topic, 1): 0}) == (ran.exit_code, tool.committed())
    (line,) = ran.error.splitlines()
    assert line.startswith("logmark: this change is not in the journal: ")


def test_a_dry_run_writes_nothing_and_joins_no_group(tool: GroupsCommand) -> None:
    nobody = tool.broker.group("nobody")
    journal = state_folder() / "journal.jsonl"
    written = journal.read_bytes() if journal.exists() else b""

    for way in (("--dry-run",), (), ("--dry-run", "--export")):
        assert 0 == tool.reset("--to-latest", *way).exit_code
        assert 0 == tool("--reset-offsets", "--group", nobody, "--topic", tool.topic, "--to-latest", *way).exit_code

    assert tool.before == tool.committed()
    assert nobody not in tool("--list").lines
    assert written == (journal.read_bytes() if journal.exists() else b"")


@pytest.mark.parametrize(
    "args",
    [
        ("--describe", "--group", "<nobody>"),
        ("--delete", "--group", "<nobody>"),
        ("--delete-offsets", "--group", "<group>", "--topic", "nosuch"),
        ("--delete-offsets", "--group", "<nobody>", "--topic", "<topic>"),
        ("--reset-offsets", "--group", "<group>", "--topic", "nosuch", "--to-latest", "--execute"),
        ("--reset-offsets", "--group", "<group>", "--all-topics", "--to-datetime", "tomorrow", "--execute"),
        ("--reset-offsets", "--group", "<group>", "--from-file", "/nonexistent", "--execute"),
        ("--validate-regex", "a["),
    ],
)
def test_every_failure_ends_with_1_if_strict_and_with_0_if_not(tool: GroupsCommand, args: tuple[str, ...]) -> None:
    names = {"<group>": tool.group, "<nobody>": tool.broker.group("nobody"), "<topic>": tool.topic}
    given = [names.get(arg, arg) for arg in args]

    assert [0, 1] == [tool(*given).exit_code, tool(*given, "--strict").exit_code]
    assert tool.before == tool.committed()


def test_what_works_ends_with_0_also_if_strict(tool: GroupsCommand) -> None:
    for args in (
        ("--list",),
        ("--describe", "--group", tool.group),
        ("--reset-offsets", "--group", tool.group, "--all-topics", "--to-latest", "--execute"),
        ("--delete-offsets", "--group", tool.group, "--topic", tool.topic),
        ("--validate-regex", "a*"),
        ("--version",),
    ):
        assert 0 == tool(*args, "--strict").exit_code, args


@pytest.mark.parametrize("how", ["--read-only", "LOGMARK_READ_ONLY"])
def test_read_only_refuses_every_change_and_nothing_else(
    tool: GroupsCommand, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = (how,) if how.startswith("-") else ()
    if not option:
        monkeypatch.setenv(how, "1")
    for args in (
        ("--reset-offsets", "--group", tool.group, "--all-topics", "--to-latest", "--execute"),
        ("--delete", "--group", tool.group),
        ("--delete", "--all-groups"),
        ("--delete-offsets", "--group", tool.group, "--topic", tool.topic),
    ):
        ran = tool(*args, *option)
        assert (1, "") == (ran.exit_code, ran.out)
        assert "forbidden here (--read-only" in ran.error
    assert tool.before == tool.committed()

    assert 0 == tool.reset("--to-latest", "--dry-run", "--strict", *option).exit_code
    assert tool.group in tool("--list", *option).lines


def test_an_offset_outside_of_a_log_is_clamped_with_the_warning_of_kafkas_logger(tool: GroupsCommand) -> None:
    ran = tool.reset("--to-offset", "7", "--dry-run")

    (line,) = ran.error.splitlines()
    assert line.endswith(
        f"WARN New offset (7) is higher than latest offset for topic partition {tool.topic}-1. Value will be set to 0 "
        "(org.apache.kafka.tools.OffsetsUtils)"
    )
    assert [["0", "7"], ["1", "0"]] == [words[2:] for words in ran.words[2:]]


def test_an_unknown_partition_in_a_file_is_told_at_once(
    tool: GroupsCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.csv"
    file.write_text(f"{tool.topic},0,1\n{tool.topic},7,1\n")
    slept = turn_clock(monkeypatch)

    ran = tool("--reset-offsets", "--group", tool.group, "--from-file", str(file), "--execute", "--strict")

    assert f'failed due to The partitions "{tool.topic}-7" do not exist' in ran.out
    assert (1, tool.before) == (ran.exit_code, tool.committed())
    assert slept[0] < 25, "Kafka's tool asks again for 30 s"


@pytest.mark.parametrize(
    ("args", "failure"),
    [
        (("--list",), "org.apache.kafka.common.KafkaException: Failed to find brokers to send ListGroups"),
        (("--describe", "--group", "g"), "Timed out waiting for a node assignment. Call: describeConsumerGroups"),
        (("--delete", "--group", "g"), "Timed out waiting for a node assignment. Call: deleteConsumerGroups"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_both_ways(
    args: tuple[str, ...], failure: str, pauses: list[float]
) -> None:
    ran = run("kafka-consumer-groups", "--bootstrap-server", NOWHERE, *args, "--timeout", "300", "--strict")

    assert (1, True) == (ran.exit_code, failure in ran.out)
    assert sum(pauses) < 10


def test_an_address_that_is_none_is_told_in_both_ways() -> None:
    for servers in ("localhost", "nosuch.invalid:9092", ":::"):
        ran = run("kafka-consumer-groups", "--bootstrap-server", servers, "--list", "--strict")
        assert (1, True) == (ran.exit_code, "failed due to Failed to create new KafkaAdminClient" in ran.out)
        assert ran.error.startswith("logmark: ")


def test_the_environment_or_a_context_may_name_the_cluster(
    tool: GroupsCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 == run("kafka-consumer-groups", "--list").exit_code, "the tool asks for --bootstrap-server"
    settings = tmp_path / "logmark.toml"
    settings.write_text(
        f'current = "here"\n[contexts.here]\nbootstrap_servers = "{tool.broker.bootstrap_servers}"\nread_only = true\n'
    )
    monkeypatch.setenv("LOGMARK_CONFIG", str(settings))
    assert 1 == run("kafka-consumer-groups", "--list").exit_code, "the current context is not meant by old scripts"

    assert tool.group in run("kafka-consumer-groups", "--list", "--context", "here").lines
    assert 1 == run("kafka-consumer-groups", "--delete", "--all-groups", "--context", "here").exit_code
    assert 2 == run("kafka-consumer-groups", "--list", "--context", "there").exit_code
    assert tool.group in run("kafka-consumer-groups", "--list", servers=tool.broker.bootstrap_servers).lines
    assert tool.before == tool.committed()


def test_shims_run_the_tool_and_leave_alone_what_is_not_theirs(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    tool = GroupsCommand(our_broker)
    for strict in ((), ("--strict",)):
        ran = run("kafka-consumer-groups", "--install-shim", str(tmp_path), *strict)
        names = ["kafka-consumer-groups.sh", "kafka-consumer-groups"]
        assert (0, [str(tmp_path / name) for name in names]) == (ran.exit_code, ran.lines)
        for name, args in zip(names, (("--list",), ("--describe", "--group", "nobody")), strict=True):
            shim = [str(tmp_path / name), "--bootstrap-server", tool.broker.bootstrap_servers, *args]
            done = subprocess.run(shim, capture_output=True, text=True, timeout=120, check=False, cwd="/")
            assert int(bool(strict) and name == names[1]) == done.returncode
            expected = tool.group if name == names[0] else "GroupIdNotFoundException: Group nobody not found."
            assert expected in done.stdout

    kafkas = tmp_path / "bin"
    kafkas.mkdir()
    (kafkas / "kafka-consumer-groups.sh").write_text("#!/bin/bash\nexec java\n")
    for folder in (kafkas, tmp_path / "nowhere"):
        ran = run("kafka-consumer-groups", "--install-shim", str(folder))
        assert (1, True) == (ran.exit_code, "Nothing was written" in ran.error)
    assert ["kafka-consumer-groups.sh"] == os.listdir(kafkas)
    assert "#!/bin/bash\nexec java\n" == (kafkas / "kafka-consumer-groups.sh").read_text()


def test_its_words_reach_it_untouched() -> None:
    assert ["The regular expression `--help` is valid."] == run(
        "kafka-consumer-groups", "--validate-regex", "--help"
    ).lines
    assert "Missing required argument" in run("kafka-consumer-groups", "--", "--version").error
    assert ["4.3.1"] == run("kafka-consumer-groups", "-version").lines
    shown = run("kafka-consumer-groups", "--help")
    assert (1, True) == (shown.exit_code, "--install-shim <String: folder>" in shown.error)
