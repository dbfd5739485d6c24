"""`logmark offsets spark` on checkpoints made by hand: what it shows, what it asks, and how it ends."""

import time
from pathlib import Path

import fsspec
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from logmark.client.client import Client
from logmark.offsets.journal.journal import open_journal
from logmark.offsets.reset.targets import ToEarliest
from logmark.offsets.spark_checkpoints.folder import LocalFolder
from logmark.offsets.spark_checkpoints.rewind import apply_rewind, plan_rewind
from logmark.offsets.spark_checkpoints.sinks import parse_sink
from logmark.offsets.undo import undo_change
from tests.cli.conftest import CommandResult, run
from tests.harness import shared
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.offsets.spark_checkpoints.checkpoint_builder import FIRST_MS, QUERY, CheckpointBuilder, ends, kafka

HOUR_MS = 3_600_000


class Query:
    """A query that has read ten of the twelve records of its topic's first partition, and all three of its second."""

    def __init__(self, broker: BrokerUnderTest, folder: Path) -> None:
        self.broker = broker
        self.topic = broker.create_topic("clicks", partitions=2)
        now_ms = time.time_ns() // 1_000_000
        broker.produce(self.topic, map(str, range(12)), timestamp_ms=now_ms - HOUR_MS)
        broker.produce(self.topic, "abc", partition=1, timestamp_ms=now_ms - HOUR_MS)
        self.builder = CheckpointBuilder(folder / "checkpoint", first={self.topic: {0: 0, 1: 0}})
        self.builder.batches(self.ends(4, 1), self.ends(10, 3))

    def ends(self, *offsets: int) -> dict[str, dict[int, int]]:
        return {self.topic: dict(enumerate(offsets))}

    def logmark(self, *arguments: str) -> CommandResult:
        return run(*arguments, servers=self.broker.bootstrap_servers)

    def spark(self, *arguments: str) -> CommandResult:
        return self.logmark("offsets", "spark", str(self.builder.path), *arguments)

    def moved(self, *arguments: str) -> CommandResult:
        done = self.spark(*arguments, "--sink", "foreachBatch", "--yes")
        assert 0 == done.exit_code, done.error
        return done

    @property
    def committed(self) -> list[int]:
        rows = self.spark("--no-lag", "--output", "json").json["partitions"]
        return [row["committed"] for row in rows]


@pytest.fixture
def query(broker: BrokerUnderTest, tmp_path: Path) -> Query:
    return Query(broker, tmp_path)


@pytest.fixture
def ours(our_broker: BrokerUnderTest, tmp_path: Path) -> Query:
    """The same where it does not matter which broker it is."""
    return Query(our_broker, tmp_path)


def test_a_checkpoint_is_shown_with_its_offsets_its_lag_and_its_batches(query: Query) -> None:
    shown = query.spark()

    assert 0 == shown.exit_code, shown.error
    assert f"Query {QUERY}, checkpoint {query.builder.path}" == shown.lines[0]
    words = [" ".join(line) for line in shown.words]
    assert f"{query.topic} 0 10 9 0 12 2 1 h (record)" == words[2]
    assert f"{query.topic} 1 3 2 0 3 0 0 s" == words[3]
    assert "In total: 2 records behind, the oldest for 1 h (record)." == shown.lines[4]
    assert "BATCH STATE PLANNED COMMITTED RECORDS WATERMARK ENDS AT" == words[6]
    assert (
        f"0 committed 2025-11-13T02:13:20.000Z 2025-11-13T02:13:21.000Z 5 - {query.topic}-0:4 {query.topic}-1:1"
        == words[7]
    )
    assert words[8].startswith("1 committed ")
    assert " 8 - " in words[8]


def test_programs_get_everything(query: Query) -> None:
    query.builder.plan(2, kafka(query.ends(12, 3)), batchWatermarkMs=1_700_000_000_000)

    found = query.spark("--output", "json", "--batches", "2").json

    assert (QUERY, 2, 0, False, 1) == (
        found["query"], found["lag"], found["lost"], found["has_state"], found["sources"],
    )  # fmt: skip
    assert 3600 <= found["seconds"] < 3700
    assert [(0, 10, 9, 12, 2), (1, 3, 2, 3, 0)] == [
        (one["partition"], one["committed"], one["last_processed"], one["end"], one["lag"])
        for one in found["partitions"]
    ]
    assert [
        {
            "batch": 1, "is_committed": True, "planned": "2025-11-13T02:13:22.000Z",
            "committed": "2025-11-13T02:13:23.000Z", "records": None, "watermark": None,
            "offsets": {query.topic: {"0": 10, "1": 3}}, "change": None,
        },
        {
            "batch": 2, "is_committed": False, "planned": "2025-11-13T02:13:24.000Z", "committed": None, "records": 2,
            "watermark": "2023-11-14T22:13:20.000Z", "offsets": {query.topic: {"0": 12, "1": 3}}, "change": None,
        },
    ] == found["batches"]  # fmt: skip


def test_a_checkpoint_is_shown_without_any_cluster(tmp_path: Path) -> None:
    builder = CheckpointBuilder(tmp_path / "checkpoint").batches(ends([4, 1]))

    shown = run("offsets", "spark", str(builder.path), "--no-lag", servers="127.0.0.1:1")

    assert 0 == shown.exit_code, shown.error
    assert "clicks 0 4 3 - - - -" == " ".join(shown.words[2])


def test_what_a_cluster_lacks_and_what_is_new_is_said(query: Query) -> None:
    query.builder.batches({query.topic: {0: 12}, "elsewhere": {0: 7}}, start=2)

    shown = query.spark()

    assert 0 == shown.exit_code, shown.error
    assert any(line.endswith("This cluster has no topic elsewhere.") for line in shown.lines)
    assert f"New to the query, which will read them from their start: {query.topic}-1." in shown.error


def test_a_query_is_moved_after_a_plan_and_back_by_undo(query: Query) -> None:
    moved = query.moved("--to-offset", "4", "--topic", f"{query.topic}:0", "--reason", "bad parser")

    assert f"Plan for the query of {query.builder.path}, to offset 4:" == moved.lines[0]
    assert f"{query.topic} 0 10 9 4 6 0 8" in " ".join(moved.words[2])
    assert moved.lines[3].startswith("In total: 6 records to read again, 0 records skipped")
    assert "Batch 2 will be added behind batch 1; it reads nothing, and no other file is changed." == moved.lines[4]
    assert "Done: batch 2 was added, and the query continues from there when it is started." in moved.error
    assert [4, 3] == query.committed
    id = moved.error.split()[-1]
    assert f"added by change {id}" in query.spark().out

    (change,) = query.logmark("offsets", "history", str(query.builder.path), "--output", "json").json
    assert (id, "checkpoint", "rewind", "done", "bad parser") == tuple(
        change[name] for name in ("id", "subject", "action", "state", "reason")
    )
    assert "batch    2" in query.logmark("offsets", "show", id).out

    undone = query.logmark("offsets", "undo", id, "--yes")
    assert (0, [10, 3]) == (undone.exit_code, query.committed), undone.error
    assert f"Plan for the query of {query.builder.path}, undo of {id} (rewind to offset 4):" == undone.lines[0]
    history = query.logmark("offsets", "history", str(query.builder.path), "--output", "json").json
    assert [("rewind", "undone"), ("undo", "done")] == [(one["action"], one["state"]) for one in history]
    again = query.logmark("offsets", "undo", id, "--yes")
    assert (1, True) == (again.exit_code, f"The change {id} is undone already" in again.error)


def test_a_checkpoint_elsewhere_is_moved_and_undone_like_one_here(ours: Query) -> None:
    files = fsspec.filesystem("memory")
    files.put(str(ours.builder.path), "/bucket/cp", recursive=True)
    where = "memory://bucket/cp"

    def committed() -> list[int]:
        return [one["committed"] for one in run("offsets", "spark", where, "--no-lag", "-o", "json").json["partitions"]]

    moved = ours.logmark("offsets", "spark", where, "--to-earliest", "--sink", "kafka", "--i-stopped-it", "--yes")
    assert (0, [0, 0]) == (moved.exit_code, committed()), moved.error
    undone = ours.logmark("offsets", "undo", moved.error.split()[-1], "--yes")
    assert (0, [10, 3]) == (undone.exit_code, committed()), undone.error
    files.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("arguments", "committed"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [12, 3]),
        (["--shift-by", "-2"], [8, 1]),
        (["--to-datetime", "2h ago"], [0, 0]),
        (["--by-duration", "10m"], [12, 3]),
        (["--before-batch", "1"], [4, 1]),
        (["--before-batch", "0"], [0, 0]),
        (["--to-offset", "11", "--clamp"], [11, 3]),
    ],
)
def test_every_target_moves_the_query(ours: Query, arguments: list[str], committed: list[int]) -> None:
    ours.moved(*arguments)

    assert committed == ours.committed


def test_a_dry_run_and_a_question_that_nobody_answers_change_nothing(query: Query) -> None:
    before = query.builder.files()

    dry = query.spark("--to-earliest", "--sink", "kafka", "--dry-run", "--output", "json")
    unasked = query.spark("--to-earliest", "--sink", "kafka")

    assert (0, "This was a dry run: nothing was changed.\n") == (dry.exit_code, dry.error)
    assert (2, 13, False, None, [0, 0]) == (
        dry.json["batch"], dry.json["read_again"], dry.json["applied"], dry.json["change"],
        [move["to"] for move in dry.json["moves"]],
    )  # fmt: skip
    assert (2, True) == (unasked.exit_code, "there is no terminal to ask in. Add --yes" in unasked.error)
    assert before == query.builder.files()


def test_programs_get_the_change(ours: Query) -> None:
    moved = ours.moved("--to-earliest", "--output", "json")

    assert (True, 2, moved.error.split()[-1]) == (moved.json["applied"], moved.json["batch"], moved.json["change"])


def test_a_move_to_where_it_stands_is_nothing_to_do(ours: Query) -> None:
    done = ours.spark("--shift-by", "0", "--sink", "noop", "--yes")

    assert (3, "Nothing to do: the query starts there already.\n") == (done.exit_code, done.error)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--to-earliest"], 2, "say it with --sink: a kind (foreachBatch, foreach, kafka, delta"),
        (["--to-earliest", "--sink", "parquet"], 1, "manifest of a file sink needs every batch"),
        (["--to-earliest", "--sink", "nowhere"], 1, "is neither a kind of sink"),
        (["--to-earliest", "--to-latest"], 2, "Say once where the query shall go"),
        (["--to-earliest", "--to-group", "g"], 2, "not both"),
        (["--to-earliest", "--no-lag"], 2, "--no-lag is for looking only"),
        (["--sink", "noop", "--clamp"], 2, "--sink and --clamp: say also where the query shall go"),
        (["--to-offset", "99", "--sink", "noop"], 1, "Offset 99 is out of range in partition 0"),
        (["--to-datetime", "5. März", "--sink", "noop"], 1, "is not a point in time that is understood"),
        (["--topic", "clocks", "--to-earliest", "--sink", "noop"], 1, "does not read topic clocks"),
        (["--before-batch", "77", "--sink", "noop"], 1, "does not say where batch 77 started"),
        (["--to-earliest", "--sink", "noop", "--read-only"], 1, "forbidden here (--read-only"),
    ],
)
def test_what_is_wrong_is_an_error_and_nothing_is_changed(
    ours: Query, arguments: list[str], exit_code: int, message: str
) -> None:
    before = ours.builder.files()

    refused = ours.spark(*arguments, "--yes")

    assert (exit_code, True) == (refused.exit_code, message in refused.error), refused.error
    assert before == ours.builder.files()


def test_a_cluster_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    builder = CheckpointBuilder(tmp_path / "checkpoint").batches(ends([4, 1]))

    refused = run("offsets", "spark", str(builder.path), servers="127.0.0.1:1")

    assert 1 == refused.exit_code
    assert "127.0.0.1:1" in refused.error


@pytest.mark.kafka
def test_missing_rights_are_left_out_or_are_errors_and_change_nothing(tmp_path: Path) -> None:
    node = shared.node(
        "rights",
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    broker = BrokerUnderTest("kafka", node.bootstrap_servers, node)
    query = Query(broker, tmp_path)
    before = query.builder.files()

    def rule(operation: AclOperation, kind: AclPermissionType) -> None:
        one = AclBinding(
            ResourceType.TOPIC, query.topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, kind
        )
        broker.admin.create_acls([one])[one].result(60)

    def method() -> str:
        return query.spark("-o", "json").json["partitions"][0]["seconds_method"]

    rule(AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    wait_until(lambda: "times" == method(), "the records cannot be read")
    planned = query.spark("--to-earliest", "--sink", "noop", "--dry-run", "-o", "json")
    assert (0, [10, 3], [None, None]) == (
        planned.exit_code,
        [move["read_again"] for move in planned.json["moves"]],
        [move["first_record"] for move in planned.json["moves"]],
    )

    rule(AclOperation.DESCRIBE, AclPermissionType.DENY)
    wait_until(lambda: "not allowed to see" in query.spark().out, "the topic cannot be seen")
    for arguments in (["--to-earliest", "--sink", "noop"], ["--to-group", broker.group("clicks")]):
        refused = query.spark(*arguments, "--yes")
        assert (1, True) == (refused.exit_code, f"not allowed to see topic {query.topic}" in refused.error)
    assert before == query.builder.files()
    broker.close()


def test_a_group_is_seeded_from_a_checkpoint_and_given_back_what_it_had(query: Query) -> None:
    group = query.broker.group("clicks")

    seeded = query.spark("--to-group", group, "--yes")

    assert 0 == seeded.exit_code, seeded.error
    assert f"Plan for group {group} (a new group), to the offsets of the checkpoint {query.builder.path}:" in seeded.out
    assert {(query.topic, 0): 10, (query.topic, 1): 3} == query.broker.committed(group)
    (change,) = query.logmark("offsets", "history", group, "--output", "json").json
    assert ("group", "seed") == (change["subject"], change["action"])

    assert 0 == query.logmark("offsets", "undo", change["id"], "--yes").exit_code
    assert {} == query.broker.committed(group)


def test_a_group_gets_what_is_new_to_the_query_from_its_start_and_is_told_what_to_expect(ours: Query) -> None:
    ours.builder.batches({ours.topic: {1: 2}}, start=2).plan(3, kafka({ours.topic: {1: 3}}))
    ours.builder.write("state/0/0/1.delta", b"", 0)
    group = ours.broker.group("clicks")

    seeded = ours.spark("--to-group", group, "--yes")

    assert {(ours.topic, 0): 0, (ours.topic, 1): 2} == ours.broker.committed(group)
    assert "new to the query: from its start, where Spark would begin" in seeded.out
    assert "Batch 3 was planned and not committed: the group begins before it" in seeded.error
    assert "The query keeps state, which stays in its checkpoint" in seeded.error


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["same", "same"], "reads the same partitions in several sources"),
        (["same", '{"logOffset":3}'], "reads other sources beside Kafka"),
    ],
)
def test_a_group_cannot_have_the_offsets_of_mixed_sources(ours: Query, lines: list[str], message: str) -> None:
    same = kafka(ours.ends(10, 3))
    ours.builder.plan(2, *(same if line == "same" else line for line in lines)).commit(2)

    refused = ours.spark("--to-group", ours.broker.group("clicks"), "--yes")

    assert (1, True) == (refused.exit_code, message in refused.error), refused.error
    assert {} == ours.broker.committed(ours.broker.group("clicks"))


class Killed(BaseException):
    """What the rest of a program never sees."""


class InterruptedFolder(LocalFolder):
    """A folder whose program is killed before it writes a commit, or anything."""

    def __init__(self, path: Path, *, before: str) -> None:
        super().__init__(path)
        self.before = before

    def create(self, path: str, content: bytes) -> None:
        if path.startswith(self.before):
            raise Killed
        super().create(path, content)


def interrupt(query: Query, *, before: str) -> str:
    """Begins to move the query to its beginning, is killed on the way, and returns the change's id."""
    folder = InterruptedFolder(query.builder.path, before=before)
    with Client(query.broker.bootstrap_servers) as client:
        journal = open_journal(client)
        rewind = plan_rewind(client, folder, ToEarliest(), sink=parse_sink("noop"), now_ms=FIRST_MS + HOUR_MS)
        with pytest.raises(Killed):
            apply_rewind(client, folder, journal, rewind, now_ms=FIRST_MS + HOUR_MS)
        return journal.changes(name=folder.url)[-1].id


def test_a_move_that_was_killed_is_pending_and_is_finished_by_its_id(query: Query) -> None:
    id = interrupt(query, before="commits")
    assert [10, 3] == query.committed
    assert f"{id} was interrupted" in query.logmark("offsets", "history", str(query.builder.path)).error
    assert "was interrupted" in query.spark("--to-latest", "--sink", "noop", "--yes").error

    unasked = query.logmark("offsets", "finish", id)
    assert (2, [10, 3]) == (unasked.exit_code, query.committed)
    done = query.logmark("offsets", "finish", id, "--yes")

    assert (0, [0, 0]) == (done.exit_code, query.committed), done.error
    assert 1 == query.logmark("offsets", "finish", id, "--yes").exit_code


@pytest.mark.parametrize(("before", "exit_code"), [("commits", 0), ("offsets", 3)])
@pytest.mark.parametrize("verb", ["undo", "finish"])
def test_a_move_that_was_killed_is_undone_or_found_to_have_done_nothing(
    ours: Query, before: str, exit_code: int, verb: str
) -> None:
    id = interrupt(ours, before=before)
    files = ours.builder.files()

    done = ours.logmark("offsets", verb, id, "--yes")

    assert exit_code == done.exit_code, done.error
    assert ([0, 0] if (verb, before) == ("finish", "commits") else [10, 3]) == ours.committed
    if before == "offsets":
        assert "was interrupted before it changed anything" in done.error
        assert files == ours.builder.files()


def test_the_python_api_takes_a_move_back_as_well(ours: Query) -> None:
    id = ours.moved("--to-earliest").error.split()[-1]

    with Client(ours.broker.bootstrap_servers) as client:
        applied = undo_change(client, id)

    assert applied is not None
    assert (id, [10, 3]) == (applied.change.undoes, ours.committed)
