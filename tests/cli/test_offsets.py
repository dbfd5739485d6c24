"""`logmark offsets`: every command on our broker and on Apache Kafka, and everything that can be typed wrong."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from logmark.cli.offsets.history import complete_change
from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.reset import executor
from tests.cli.conftest import CommandResult, run
from tests.conftest import BOTH
from tests.harness import shared
from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.node import unserved_address, wait_until

NOON = 1_709_640_000_000
HOUR_MS = 3_600_000


class ResetDriver:
    """A topic of two partitions with ten records each, one an hour, and a group at 8 and 3."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self.broker = broker
        self.client = Client(broker.bootstrap_servers)
        self.topic = broker.create_topic("clicks", partitions=2, config={"retention.ms": "-1"})
        self.group = broker.group("fraud")
        self.partitions = [TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)]
        for partition in range(2):
            for hour in range(10):
                self.produce(f"user-{hour % 4}", partition, NOON + hour * HOUR_MS)
        self.producer.flush(60)
        first = Committed(offset=8, leader_epoch=0, metadata="kept")
        self.client.commit(self.group, {self.partitions[0]: first, self.partitions[1]: 3})
        self.begin = self.committed()

    @property
    def producer(self) -> Any:
        return self.broker._kept_producer({})

    def produce(self, key: str | bytes, partition: int, timestamp_ms: int) -> None:
        self.producer.produce(self.topic, "x", key, partition, timestamp=timestamp_ms)

    def committed(self) -> dict[TopicPartition, Committed]:
        return self.client.committed(self.group)

    def offsets(self) -> list[int]:
        return [one.offset for one in self.committed().values()]

    def run(self, *arguments: str, stdin: str = "") -> CommandResult:
        return run("offsets", *arguments, stdin=stdin, servers=self.broker.bootstrap_servers)

    def done(self, *arguments: str) -> CommandResult:
        ran = self.run(*arguments)
        assert 0 == ran.exit_code, ran.error
        return ran

    def reset(self, *arguments: str) -> CommandResult:
        return self.run("reset", self.group, "--topic", self.topic, *arguments)

    def changes(self) -> list[tuple[str, str]]:
        return [(one.action, one.state) for one in FileJournal().changes(name=self.group)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody else is in these groups, and every test has a journal of its own."""
    monkeypatch.setattr(executor, "QUIET_WATCH_S", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module", params=BOTH)
def one_driver(request: pytest.FixtureRequest) -> Iterator[ResetDriver]:
    """A driver for many tests: each leaves the group where it stood."""
    kind = request.param
    control = request.getfixturevalue("_our_broker") if kind == "logmark" else shared.node("kafka")
    broker = BrokerUnderTest(kind, control.bootstrap_servers, control)
    driver = ResetDriver(broker)
    yield driver
    driver.client.close()
    broker.close()


@pytest.fixture
def driver(broker: BrokerUnderTest) -> Iterator[ResetDriver]:
    driver = ResetDriver(broker)
    yield driver
    driver.client.close()


@pytest.fixture
def our_driver(our_broker: BrokerUnderTest) -> Iterator[ResetDriver]:
    driver = ResetDriver(our_broker)
    yield driver
    driver.client.close()
    our_broker.control.clear_faults()


def test_a_reset_is_planned_applied_journaled_and_undone(driver: ResetDriver) -> None:
    done = driver.reset("--to-offset", "5", "--yes", "--reason", "a fix")

    assert 0 == done.exit_code, done.error
    assert f"Plan for group {driver.group}, to offset 5:" == done.lines[0]
    assert f"{driver.topic} 0 8 7 5 3 0 5 2024-03-05T17:00:00.000Z 2024-03-05T19:00:00.000Z" in " ".join(done.words[2])
    assert f"{driver.topic} 1 3 2 5 0 2 5 2024-03-05T15:00" in " ".join(done.words[3])
    assert done.lines[4].startswith("In total: 3 records to read again, 2 records skipped, about ")
    (change,) = driver.done("history", "-o", "json").json
    assert (
        f"Reset applied: {driver.group} now starts at offset 5 of {driver.topic}-0 and in 1 other partition. "
        f"To undo it: logmark offsets undo {change['id']}\n"
    ) == done.error
    assert [5, 5] == driver.offsets()

    (_, *rows) = driver.done("history", driver.group).words
    assert [change["id"], "reset", driver.group, "done", "fix"] == [rows[0][at] for at in (0, 5, 6, -3, -1)]
    shown = driver.done("show", change["id"]).out
    assert f"Change {change['id']}: reset of group {driver.group}, done" in shown
    assert re.search(r"COMMITTED BEFORE +COMMITTED AFTER.*\n.* 0 +8 +5 ", shown)
    assert "kept" in shown and "a fix" in shown

    undone = driver.run("undo", "--yes", "--reason", "it was wrong")
    assert 0 == undone.exit_code, undone.error
    assert driver.begin == driver.committed()
    assert [("reset", "undone"), ("undo", "done")] == driver.changes()


@pytest.mark.parametrize(
    ("scenario", "to"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "5"], [5, 5]),
        (["--to-datetime", "2024-03-05T14:00:00.000"], [2, 2]),
        (["--to-datetime", "2024-03-05T15:00:00+01:00"], [2, 2]),
        (["--to-datetime", str(NOON + 2 * HOUR_MS)], [2, 2]),
        (["--to-datetime", str(NOON // 1000 + 7200)], [2, 2]),
        (["--to-datetime", "1h ago"], [10, 10]),
        (["--by-duration", "P9999D"], [0, 0]),
        (["--shift-by", "-3"], [5, 0]),
        (["--to-current"], [8, 3]),
        (["--before-key", "user-2"], [2, 2]),
        (["--after-key", "user-2"], [3, 3]),
        (["--before-key", "757365722d32", "--key-hex"], [2, 2]),
        (["--before-key", "user-2", "--since", "2024-03-05T15:00:00Z"], [6, 6]),
    ],
    ids=str,
)
def test_every_scenario_leads_to_the_same_offset_on_any_kafka(
    one_driver: ResetDriver, scenario: list[str], to: list[int]
) -> None:
    driver = one_driver
    planned = driver.reset(*scenario, "--dry-run", "--output", "json")

    assert (0, "This was a dry run: nothing was changed.\n") == (planned.exit_code, planned.error)
    assert to == [move["to"] for move in planned.json["moves"]]
    assert (driver.begin, []) == (driver.committed(), driver.changes())
    done = driver.reset(*scenario, "--yes", "--output", "json")
    assert (0, True) == (done.exit_code, done.json["applied"])
    assert to == driver.offsets()
    assert "kept" == driver.committed()[driver.partitions[0]].metadata
    driver.client.commit(driver.group, driver.begin)


def test_the_offsets_of_another_group_and_of_a_file_are_taken(driver: ResetDriver, tmp_path: Path) -> None:
    other = driver.broker.group("other")
    driver.client.commit(other, {driver.partitions[0]: Committed(offset=4, metadata="theirs")})
    driver.done("reset", driver.group, "--from-group", other, "--yes")
    assert {
        driver.partitions[0]: Committed(offset=4, metadata="kept"),
        driver.partitions[1]: Committed(offset=3),
    } == driver.committed()

    csv = tmp_path / "offsets.csv"
    csv.write_text(
        f"{driver.group},{driver.topic},0,6\n{other},{driver.topic},1,9\n{driver.group},{driver.topic},1,7\n"
    )
    driver.done("reset", driver.group, "--from-file", str(csv), "--yes")
    assert [6, 7] == driver.offsets()
    driver.done("reset", driver.group, "--all-topics", "--to-earliest", "--yes")
    assert [0, 0] == driver.offsets()


def test_exported_offsets_are_imported_exactly(driver: ResetDriver, tmp_path: Path) -> None:
    assert [f"{driver.topic},0,8", f"{driver.topic},1,3"] == driver.done("export", driver.group).lines
    csv, saved = tmp_path / "saved.csv", tmp_path / "saved.json"
    driver.done("export", driver.group, str(csv), "--topic", f"{driver.topic}:1")
    driver.done("export", driver.group, str(saved))
    assert f"{driver.topic},1,3\n" == csv.read_text()
    kept = driver.run("export", driver.group, str(saved))
    assert (1, True) == (kept.exit_code, "was left as it is; add --overwrite" in kept.error)

    driver.client.commit(driver.group, dict.fromkeys(driver.partitions, 0))
    planned = driver.run("import", driver.group, str(saved), "--dry-run", "-o", "json").json
    assert ("import", [8, 3]) == (planned["action"], [move["to"] for move in planned["moves"]])
    driver.done("import", driver.group, str(saved), "--yes")
    assert driver.begin == driver.committed()
    assert [("import", "done")] == driver.changes()
    again = driver.run("import", driver.group, str(saved), "--yes")
    assert (3, True) == (again.exit_code, "Nothing to do" in again.error)
    piped = driver.run("import", driver.group, "-", "--yes", stdin=f"{driver.topic},0,1\n")
    assert (0, [1, 3]) == (piped.exit_code, driver.offsets())


def test_forgotten_offsets_come_back_with_an_undo(driver: ResetDriver) -> None:
    done = driver.done("delete", driver.group, "--topic", f"{driver.topic}:0", "--yes")
    assert f"{driver.topic} 0 8 7 nothing 0 0 - a reader will begin" in " ".join(done.words[2])
    assert [3] == driver.offsets()

    again = driver.run("delete", driver.group, "--topic", f"{driver.topic}:0", "--yes")
    assert (3, True) == (again.exit_code, "Nothing to do" in again.error)
    driver.done("undo", "--yes")
    assert driver.begin == driver.committed()


def test_a_group_that_moved_on_is_told_with_what_would_be_read_twice(driver: ResetDriver) -> None:
    driver.reset("--to-offset", "2", "--yes")
    driver.client.commit(driver.group, {driver.partitions[0]: 9})

    refused = driver.run("undo", "--yes")
    assert 1 == refused.exit_code
    assert "would not be right any more" in refused.error and "1 of its records would be read twice" in refused.error
    assert f"{driver.topic} 0 9 8 8 1 0 2" in " ".join(refused.words[2])
    assert [9, 2] == driver.offsets()
    driver.done("undo", "--yes", "--force")
    assert driver.begin == driver.committed()


def test_where_nothing_would_change_the_exit_code_is_3(driver: ResetDriver) -> None:
    said = driver.reset("--shift-by", "0", "--yes")
    assert (3, f"Nothing to do: group {driver.group} has committed these offsets already.\n") == (
        said.exit_code,
        said.error,
    )
    assert "stays" in said.lines[2]
    assert [] == driver.changes()


def test_members_are_named_and_waited_for(driver: ResetDriver) -> None:
    consumer = driver.broker.consumer(driver.group, client_id="worker-1")
    consumer.subscribe([driver.topic])
    read(consumer, 1)

    refused = driver.reset("--to-earliest", "--yes")
    assert 1 == refused.exit_code
    assert f"worker-1 on 127.0.0.1 with {driver.partitions[0]}, {driver.partitions[1]}" in refused.error
    waited = driver.reset("--to-earliest", "--yes", "--wait-empty", "100ms")
    assert (1, True) == (waited.exit_code, "worker-1 on" in waited.error)
    consumer.close()
    assert 0 == driver.reset("--wait-empty", "--to-earliest", "--yes").exit_code
    assert [0, 0] == driver.offsets()


def test_the_journal_moves_into_a_topic_that_a_whole_team_sees(
    driver: ResetDriver, tmp_path: Path, monkeypatch: Any
) -> None:
    driver.reset("--to-offset", "2", "--yes")
    topic = driver.broker.unique("__journal")
    before = driver.done("journal").out
    assert f"is the file {tmp_path}/state/logmark/journal.jsonl; it has 1 change." in before

    unasked = driver.run("journal", "--topic", topic)
    assert (2, True) == (unasked.exit_code, "with 1 partition and replication factor 1, compacted" in unasked.error)
    moved = driver.done("journal", "--topic", topic, "--yes")
    assert f"is the topic {topic} of the cluster" in moved.out and "it has 1 change." in moved.out
    driver.reset("--to-offset", "4", "--yes")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    monkeypatch.setenv("LOGMARK_JOURNAL_TOPIC", topic)
    seen = driver.done("history", driver.group, "-o", "json").json
    assert [("reset", "done"), ("reset", "done")] == [(one["action"], one["state"]) for one in seen]
    driver.done("undo", "--yes")
    driver.done("undo", "--yes")
    assert driver.begin == driver.committed()
    wrong = driver.run("journal", "--topic", driver.topic, "--yes")
    assert (1, True) == (wrong.exit_code, "cannot be the journal: it has 2 partitions" in wrong.error)
    driver.client.delete_topics([topic])


WRONG = [
    (["--to-earliest"], 2, "there is no terminal to ask in. Add --yes"),
    (["--to-earliest", "-o", "json"], 2, "nobody can be asked about a plan that is not shown. Add --yes or --dry-run."),
    (["--yes"], 2, "Say where the group shall go"),
    (["--to-earliest", "--to-latest", "--yes"], 2, "Say where the group shall go"),
    (["--to-earliest", "--all-topics", "--yes"], 2, "not both"),
    (["--to-offset", "5000", "--yes"], 1, "Offset 5000 is out of range in partition 0 of topic"),
    (["--shift-by", "9", "--yes"], 1, "which holds offsets 0 to 10"),
    (["--to-datetime", "05.03.2024", "--yes"], 1, "write 2024-03-05, 2024-03-05T00:00:00.000, 2024-"),
    (["--to-datetime", "3 fortnights ago", "--yes"], 1, "is not a"),
    (["--by-duration", "yesterday", "--yes"], 1, "is not a length of time that is understood: write 2h, 3d"),
    (["--before-key", "nobody", "--yes"], 1, "No record with key 'nobody' was found in 2 partitions"),
    (["--before-key", "xyz", "--key-hex", "--yes"], 2, "is no key in hexadecimal digits"),
    (["--to-earliest", "--since", "3d ago", "--yes"], 2, "belong to --before-key and --after-key"),
    (["--from-file", "no-such-file", "--yes"], 1, "no-such-file cannot be read: No such file or directory"),
    (["--from-group", "no-such-group", "--yes"], 1, "Group no-such-group does not exist."),
    (["--to-earliest", "--wait-empty", "5 parsecs", "--yes"], 1, "is not a length of time"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"), WRONG, ids=[" ".join(arguments) for arguments, *_ in WRONG]
)
def test_what_is_typed_wrong_is_an_error_and_changes_nothing(
    one_driver: ResetDriver, arguments: list[str], exit_code: int, message: str
) -> None:
    refused = one_driver.reset(*arguments)

    assert exit_code == refused.exit_code, refused.error
    assert message in " ".join(refused.error.replace("│", " ").split())
    assert (one_driver.begin, []) == (one_driver.committed(), one_driver.changes())


def test_misspelt_names_are_told_with_what_was_meant(driver: ResetDriver) -> None:
    typo = driver.broker.group("fruad")
    group = driver.run("reset", typo, "--topic", driver.topic, "--to-earliest", "--yes")
    topic = driver.run("reset", driver.group, "--topic", driver.topic.upper(), "--to-earliest", "--yes")
    partition = driver.run("reset", driver.group, "--topic", f"{driver.topic}:0,2", "--to-earliest", "--yes")

    assert (1, True) == (group.exit_code, f"Did you mean {driver.group}?" in group.error)
    assert (1, True) == (topic.exit_code, f"Did you mean {driver.topic}?" in topic.error)
    assert (1, True) == (partition.exit_code, "has no partition 2: it has 2" in partition.error)
    for command in (["export", typo], ["delete", typo, "--all-topics", "--yes"], ["undo", "nonsense", "--yes"]):
        said = driver.run(*command)
        assert 1 == said.exit_code and said.error, command
    assert (driver.begin, {}) == (driver.committed(), driver.client.committed(typo))


def test_topics_that_a_file_brings_need_consent(driver: ResetDriver, tmp_path: Path) -> None:
    views = driver.broker.create_topic("views")
    csv = tmp_path / "offsets.csv"
    csv.write_text(f"{views},0,0\n")

    refused = driver.run("import", driver.group, str(csv), "--yes")
    assert (1, True) == (refused.exit_code, f"has committed nothing in {views}" in refused.error)
    assert driver.begin == driver.committed()
    done = driver.done("import", driver.group, str(csv), "--allow-new-topics", "--yes")
    assert "nothing committed yet" in done.out


def test_a_moment_after_the_last_record_is_said_before_anybody_agrees(driver: ResetDriver) -> None:
    shown = driver.reset("--to-datetime", "now", "--dry-run")
    assert 2 == shown.out.count(": the end")


def test_nobody_changes_anything_who_may_only_look(driver: ResetDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.reset("--to-offset", "2", "--yes")
    standing = driver.committed()
    monkeypatch.setenv("LOGMARK_READ_ONLY", "1")

    for command in (
        ["reset", driver.group, "--topic", driver.topic, "--to-earliest", "--yes"], ["undo", "--yes"],
        ["delete", driver.group, "--all-topics", "--yes"], ["journal", "--topic", "--yes"],
    ):  # fmt: skip
        refused = driver.run(*command)
        assert (1, True) == (refused.exit_code, "forbidden here (--read-only" in refused.error), command
    assert 0 == driver.reset("--to-earliest", "--dry-run").exit_code
    assert (standing, [("reset", "done")]) == (driver.committed(), driver.changes())


@pytest.mark.parametrize(
    ("api", "error", "message"),
    [
        ("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", "you are not allowed to read this group. Nothing was changed."),
        ("OffsetCommit", "TOPIC_AUTHORIZATION_FAILED", "you are not allowed to read this topic. Nothing was changed."),
        ("OffsetCommit", "UNKNOWN_MEMBER_ID", "it has active members; stop them and try again. Nothing was changed."),
        ("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", "not allowed"),
        ("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", "you are not allowed to use this topic"),
    ],
)
def test_what_the_cluster_refuses_is_an_error_and_changes_nothing(
    our_driver: ResetDriver, api: str, error: str, message: str
) -> None:
    our_driver.broker.control.fail_next(api, error)

    refused = our_driver.reset("--to-earliest", "--yes")

    our_driver.broker.control.clear_faults()
    assert (1, True) == (refused.exit_code, message in refused.error), refused.error
    assert our_driver.begin == our_driver.committed()
    assert {"done", "pending"}.isdisjoint(state for _, state in our_driver.changes())


@pytest.mark.kafka
def test_missing_rights_on_apache_kafka_are_errors_and_change_nothing() -> None:
    node = shared.node(
        "rights",
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    broker = BrokerUnderTest("kafka", node.bootstrap_servers, node)
    driver = ResetDriver(broker)

    def deny(operation: AclOperation) -> None:
        rules = [
            AclBinding(
                ResourceType.GROUP, driver.group, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", one, kind
            )
            for one, kind in (
                (AclOperation.DESCRIBE, AclPermissionType.ALLOW), (operation, AclPermissionType.DENY),
            )
        ]  # fmt: skip
        for made in broker.admin.create_acls(rules).values():
            made.result(60)

    deny(AclOperation.READ)
    wait_until(lambda: 1 == driver.reset("--to-earliest", "--yes").exit_code, "the rule holds")
    driver.client.close()
    standing = driver.committed()
    refused = driver.reset("--to-earliest", "--yes")
    assert (1, True) == (
        refused.exit_code,
        "you are not allowed to read this group. Nothing was changed" in refused.error,
    )
    assert standing == driver.committed()
    deny(AclOperation.DESCRIBE)
    wait_until(lambda: "not allowed" in driver.run("export", driver.group).error, "the rule holds")
    unseen = driver.reset("--to-earliest", "--yes")
    assert (1, True) == (unseen.exit_code, "allowed" in unseen.error), unseen.error
    broker.close()


def test_a_cluster_that_is_not_there_is_an_error_within_ten_seconds(pauses: list[float]) -> None:
    for command in (
        ["reset", "g", "--topic", "t", "--to-earliest", "--yes"], ["history"], ["undo"], ["export", "g"], ["journal"],
    ):  # fmt: skip
        pauses.clear()
        with unserved_address() as address:
            refused = run("offsets", *command, servers=address)
        assert (1, True) == (refused.exit_code, f"The broker at {address} refused the connection" in refused.error)
        assert 0 < sum(pauses) < 10


def test_an_interrupted_change_is_reported_and_finished_or_undone(driver: ResetDriver) -> None:
    for way in ("finish", "undo"):
        driver.reset("--to-offset", "2", "--yes")
        (*_, last) = driver.done("history", "-o", "json").json
        FileJournal().set_state(last["id"], "pending")

        told = driver.done("history").error
        assert f"`logmark offsets finish {last['id']}` completes it" in told
        if way == "finish":  # it was killed before anything was committed
            driver.client.commit(driver.group, driver.begin)
        ended = driver.run(way, last["id"][:10], "--yes")
        assert 0 == ended.exit_code, ended.error
        assert [2, 2] == driver.offsets() if way == "finish" else driver.begin == driver.committed()
        driver.client.commit(driver.group, driver.begin)
    assert ["done", "taken back", "done"] == [state for _, state in driver.changes()]


@pytest.mark.parametrize(
    "command", ["reset", "undo", "finish", "history", "show", "export", "import", "delete", "journal"]
)
def test_every_command_has_an_example(command: str) -> None:
    shown = run("offsets", command, "--help")
    assert (0, True) == (shown.exit_code, f"Example: logmark offsets {command}" in shown.out)


def test_the_python_example_of_the_page_does_what_it_says(
    our_driver: ResetDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "resets.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    for name, ours in (
        ("127.0.0.1:9092", our_driver.broker.bootstrap_servers), ('"fraud"', repr(our_driver.group)),
        ('"clicks"', repr(our_driver.topic)), ("1_709_596_800_000", str(NOON + 5 * HOUR_MS)),
    ):  # fmt: skip
        assert name in example
        example = example.replace(name, ours)
    exec(example, {})
    first, last = capsys.readouterr().out.splitlines()
    assert "3 2 ['', '']" == first
    assert ["undone", "done"] == [word.strip("'()[]") for word in last.split(", ")[1::2]]
    assert our_driver.begin == our_driver.committed()


def test_history_is_limited_to_the_newest_and_its_ids_are_completed(our_driver: ResetDriver) -> None:
    for offset in (1, 2, 3):
        our_driver.reset("--to-offset", str(offset), "--yes")
    known = [one.id for one in FileJournal().changes()]
    assert (known[::-1], [known[0]]) == (complete_change(""), complete_change(known[0].upper()[:-1]))
    shown = json.loads(our_driver.done("history", "--limit", "2", "-o", "json").out)
    assert ["to offset 2", "to offset 3"] == [one["how"] for one in shown]
    none = our_driver.done("history", "nobody")
    assert ("", True) == (none.out, none.error.startswith("No change of nobody is journaled in the file"))
