"""Moving a query by a batch that is added: what it writes, what it refuses, and what an interruption leaves behind."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import ReadOnly
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change, ChangeState
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.reset.targets import ShiftBy, Target, ToEarliest, ToLatest, ToOffset, ToTime
from logmark.offsets.spark_checkpoints import undo
from logmark.offsets.spark_checkpoints.checkpoint import read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Folder, LocalFolder
from logmark.offsets.spark_checkpoints.rewind import Rewind, apply_rewind, complete_rewind, is_last_batch, plan_rewind
from logmark.offsets.spark_checkpoints.sinks import parse_sink
from tests.harness.brokers import BrokerUnderTest
from tests.offsets.spark_checkpoints.checkpoint_builder import (
    FIRST_MS,
    CheckpointBuilder,
    commit_file,
    dumped,
    kafka,
    plan_file,
)

BATCH_SINK = parse_sink("foreachBatch")
# An hour after the last batch of these checkpoints.
NOW_MS = FIRST_MS + 3_600_000


@dataclass
class Query:
    """A stopped query that has read ten of the twelve records of its topic's first partition, and all of its second."""

    client: Client
    topic: str
    builder: CheckpointBuilder
    journal: FileJournal

    @property
    def folder(self) -> LocalFolder:
        return LocalFolder(self.builder.path)

    @property
    def changes(self) -> list[Change]:
        return self.journal.changes(name=self.folder.url)

    def plan(self, target: Target, **more: object) -> Rewind:
        options = {"sink": BATCH_SINK, "changes": self.changes, "now_ms": NOW_MS, **more}
        return plan_rewind(self.client, self.folder, target, **options)  # type: ignore[arg-type]

    def append(self, rewind: Rewind, folder: Folder | None = None, journal: FileJournal | None = None) -> Change:
        return apply_rewind(
            self.client, folder or self.folder, journal or self.journal, rewind, reason="why", now_ms=NOW_MS
        )

    def undo(self, change: Change, **more: bool) -> Rewind:
        planned = undo.plan_rewind_undo(self.client, self.folder, change, now_ms=NOW_MS, **more)
        assert planned is not None
        return planned

    @property
    def committed(self) -> list[int]:
        found = read_checkpoint(self.folder).offsets
        return [found[self.at(0)], found[self.at(1)]]

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def ends(self, *offsets: int) -> dict[str, dict[int, int]]:
        return {self.topic: dict(enumerate(offsets))}


def of(broker: BrokerUnderTest, folder: Path, client: Client) -> Query:
    topic = broker.create_topic("clicks", partitions=2, config={"retention.ms": "-1"})
    for number in range(12):
        broker.produce(topic, [f"v{number}"], timestamp_ms=1_700_000_000_000 + 1000 * number)
    broker.produce(topic, ["a", "b", "c"], partition=1)
    query = Query(client, topic, CheckpointBuilder(folder / "checkpoint"), FileJournal(folder / "journal.jsonl"))
    query.builder.batches(query.ends(4, 1), query.ends(10, 3))
    return query


@pytest.fixture
def query(broker: BrokerUnderTest, tmp_path: Path) -> Iterator[Query]:
    with Client(broker.bootstrap_servers) as client:
        yield of(broker, tmp_path, client)


@pytest.fixture
def ours(our_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[Query]:
    """The same where it does not matter which broker it is."""
    with Client(our_broker.bootstrap_servers) as client:
        yield of(our_broker, tmp_path, client)


def test_a_query_is_moved_by_a_batch_that_is_added_and_no_other_file_changes(query: Query) -> None:
    before = query.builder.files()

    change = query.append(query.plan(ToOffset(6), topics={query.topic: [0]}))

    added = {
        "offsets/2": plan_file(kafka(query.ends(6, 3)), at_ms=NOW_MS),
        "commits/2": commit_file(),
    }
    assert {**before, **added} == query.builder.files()
    assert ("checkpoint", query.folder.url, "rewind", "to offset 6", "why", "done") == (
        change.subject, change.name, change.action, change.how, change.reason, change.state,
    )  # fmt: skip
    assert {query.at(0): Committed(offset=10)} == change.before
    assert {query.at(0): Committed(offset=6)} == change.after
    assert [change] == query.changes
    assert query.client.metadata([]).cluster_id == change.cluster_id


@pytest.mark.parametrize(
    ("target", "to", "again", "skipped"),
    [
        (ToEarliest(), [0, 0], 13, 0),
        (ToLatest(), [12, 3], 0, 2),
        (ToOffset(2), [2, 2], 9, 0),
        (ToTime(1_700_000_004_500), [5, 0], 8, 0),
        (ShiftBy(-3), [7, 0], 6, 0),
    ],
)
def test_the_plan_says_what_is_read_again_and_what_is_skipped(
    query: Query, target: Target, to: list[int], again: int, skipped: int
) -> None:
    plan = query.plan(target).plan

    assert (to, again, skipped) == ([move.to for move in plan.moves], plan.read_again, plan.skipped)


def test_an_undo_is_one_more_batch_with_the_offsets_of_before_and_can_be_undone_itself(query: Query) -> None:
    change = query.append(query.plan(ToEarliest()))
    assert [0, 0] == query.committed

    undone = query.append(query.undo(change))
    assert ([10, 3], "undo", change.id, "3") == (query.committed, undone.action, undone.undoes, undone.details["batch"])

    query.append(query.undo(undone))
    assert [0, 0] == query.committed


def test_an_undo_is_refused_after_the_query_ran_and_with_force_says_what_it_does(ours: Query) -> None:
    change = ours.append(ours.plan(ToEarliest()))
    ours.builder.batches(ours.ends(2, 1), start=3)

    with pytest.raises(UserError, match=f"ran since change {change.id}: its last batch is 3, .* batch 2.*force=True"):
        ours.undo(change)
    with pytest.raises(UserError, match="may still run"):
        ours.undo(change, force=True)

    ours.builder.grow_old()
    forced = ours.undo(change, force=True)
    assert [8, 2] == [move.skipped for move in forced.plan.moves]
    ours.append(forced)
    assert [10, 3] == ours.committed


def test_an_undo_to_what_has_expired_goes_to_the_log_start_and_says_so(broker: BrokerUnderTest, query: Query) -> None:
    change = query.append(query.plan(ToLatest()))
    broker.delete_records(query.topic, 11)

    plan = query.undo(change).plan

    assert ("10 is below the log start", 11) == (plan.moves[0].note, plan.moves[0].to)


def test_the_watermark_and_the_versions_of_both_logs_are_kept(ours: Query) -> None:
    line = kafka(ours.ends(10, 3))
    ours.builder.plan(2, line, version=2, batchWatermarkMs=7, sourceMetadataInfo={}).commit(
        2, 3, nextBatchWatermarkMs=9
    )

    ours.append(ours.plan(ToOffset(1)))

    moved = kafka(ours.ends(1, 1))
    files = ours.builder.files()
    assert files["offsets/3"] == plan_file(moved, version=2, at_ms=NOW_MS, batchWatermarkMs=7, sourceMetadataInfo={})
    assert files["commits/3"] == commit_file(3, nextBatchWatermarkMs=9)


def test_an_offset_out_of_range_is_refused_or_clamped_in_words(query: Query) -> None:
    with pytest.raises(UserError, match=r"Offset 11 is out of range in partition 1 .* 0 to 3\. Nothing was changed"):
        query.plan(ToOffset(11))

    assert ["", "11 is beyond the end"] == [move.note for move in query.plan(ToOffset(11), clamp=True).plan.moves]


def test_an_offset_that_stays_below_the_log_start_is_a_warning(broker: BrokerUnderTest, query: Query) -> None:
    query.builder.batches(query.ends(10, 1), start=2)
    broker.delete_records(query.topic, 2, partition=1)

    (warning,) = query.plan(ToOffset(6), topics={query.topic: [0]}).plan.warnings

    assert f"{query.topic}-1 stays at offset 1, and its log begins at 2: the query will stop there" in warning


@pytest.mark.kafka
def test_a_query_that_reads_what_is_committed_is_not_sent_behind_an_open_transaction(
    apache_kafka: BrokerUnderTest, tmp_path: Path
) -> None:
    with Client(apache_kafka.bootstrap_servers) as client:
        query = of(apache_kafka, tmp_path, client)
        producer = apache_kafka.producer(transactional_id=apache_kafka.unique("open"))
        producer.init_transactions(120)
        producer.begin_transaction()
        producer.produce(query.topic, "open", partition=0)
        producer.flush(60)

        behind = query.plan(ToLatest()).plan.moves[0]
        query.builder.batches(query.ends(13, 3), start=2)
        uncommitted = query.plan(ToLatest()).plan.moves[0]
        producer.abort_transaction(120)

    assert (12, 13) == (behind.to, uncommitted.to), "the second query has read what is not committed: it always may"


REFUSALS: dict[str, tuple[Callable[[CheckpointBuilder, str], object], str]] = {
    "a batch without its commit": (
        lambda builder, line: builder.plan(2, line),
        r"Batch 2 of .* was planned, and its commit is missing.* let it finish batch 2 \(trigger availableNow does",
    ),
    "a commit without its batch": (
        lambda builder, line: builder.commit(2),
        "is damaged: batch 2 is committed, and the last one that was planned is 1",
    ),
    "several sources": (lambda builder, line: builder.plan(2, line, line).commit(2), "has 2 sources"),
    "state": (
        lambda builder, line: builder.write("state/0/0/1.delta", b"", FIRST_MS),
        "keeps state .* plan_group_seed",
    ),
    "an unknown version of the offset log": (
        lambda builder, line: builder.write("offsets/2", b"v9\n{}\n" + line.encode(), FIRST_MS),
        "has version 9 of its format, and this Logmark knows 1 and 2",
    ),
    "an unknown version of the commit log": (
        lambda builder, line: builder.plan(2, line).write("commits/2", b"v9\n{}", FIRST_MS),
        "has version 9 of its format, and this Logmark knows 1, 2 and 3",
    ),
    "a change in the last minute": (
        lambda builder, line: builder.write("commits/1", commit_file(), NOW_MS - 59_000),
        "may still run: .* was written to at .*, 59 s ago.* is_stopped=True if you did",
    ),
    "a file that is being written": (
        lambda builder, line: builder.write("offsets/.2.77.tmp", b"", NOW_MS),
        "may still run: .*, 0 ms ago",
    ),
    "no name of the query": (lambda builder, line: (builder.path / "metadata").unlink(), "has no file named metadata"),
    "an order of Spark's own": (
        lambda builder, line: builder.plan(2, line, version=2, controlBatchInfo={"operationType": "x"}).commit(2),
        "carries an order of Spark's own",
    ),
    "a format of ours": (
        lambda builder, line: builder.plan(2, dumped({"f": {}, "g": 1, "group": "b", "q": "x", "t": {}})).commit(2),
        "plan_reset moves them",
    ),
    "a file sink around it": (
        lambda builder, line: (builder.path.parent / "_spark_metadata" / "0").mkdir(parents=True),
        "writes files to .*needs every batch.*Nothing was changed; to read again, start the query with a new",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_moved_is_refused_with_the_reason_and_nothing_is_written(ours: Query, name: str) -> None:
    spoil, message = REFUSALS[name]
    spoil(ours.builder, kafka(ours.ends(11, 3)))
    before = ours.builder.files()

    with pytest.raises(UserError, match=message):
        ours.plan(ToEarliest())

    assert (before, []) == (ours.builder.files(), ours.changes)


def test_whoever_stopped_the_query_may_say_so(ours: Query) -> None:
    ours.builder.write("commits/1", commit_file(), NOW_MS - 1000)

    assert 13 == ours.plan(ToEarliest(), is_stopped=True).plan.read_again


def test_a_sink_that_nobody_knows_is_asked_for_and_a_file_sink_is_refused(ours: Query) -> None:
    with pytest.raises(UserError, match=r"not say where its query writes to.* with a kind of sink") as asked:
        ours.plan(ToEarliest(), sink=None)
    with pytest.raises(UserError, match=r"writes files to parquet \(the user says so\)"):
        ours.plan(ToEarliest(), sink=parse_sink("parquet"))

    assert 2 == asked.value.exit_code


def test_the_sink_that_the_checkpoint_names_need_not_be_said(ours: Query) -> None:
    sinks = {"s": {"sinkName": "s", "commitOffset": "-", "providerName": "noop", "isActive": True}}
    ours.builder.plan(2, kafka(ours.ends(10, 3))).commit(2, 3, sinkMetadataMap=sinks)

    assert "noop" == ours.plan(ToEarliest(), sink=None).sink


def test_a_topic_that_the_query_does_not_read_is_refused_with_the_nearest_one(ours: Query) -> None:
    with pytest.raises(UserError, match=f"does not read topic clocks-.* Did you mean {ours.topic}"):
        ours.plan(ToEarliest(), topics={ours.topic.replace("clicks", "clocks"): None})
    with pytest.raises(UserError, match=r"has not read partition 7 of topic .*begins a partition that is new to it"):
        ours.plan(ToEarliest(), topics={ours.topic: [7]})


def test_a_cluster_without_the_topic_is_probably_another_cluster(ours: Query) -> None:
    ours.builder.batches({"elsewhere": {0: 5}}, start=2)

    with pytest.raises(
        UserError, match=r"reads topic elsewhere, which this cluster does not have\. .*connect to the cluster"
    ):
        ours.plan(ToEarliest())


def test_a_read_only_client_moves_nothing(our_broker: BrokerUnderTest, ours: Query) -> None:
    rewind = ours.plan(ToEarliest())
    before = ours.builder.files()

    with Client(our_broker.bootstrap_servers, read_only=True) as client, pytest.raises(ReadOnly):
        apply_rewind(client, ours.folder, ours.journal, rewind, now_ms=NOW_MS)

    assert (before, []) == (ours.builder.files(), ours.changes)


def test_a_query_that_ran_between_plan_and_answer_is_not_moved(ours: Query) -> None:
    rewind = ours.plan(ToEarliest())
    ours.builder.batches(ours.ends(12, 3), start=2)
    before = ours.builder.files()

    with pytest.raises(UserError, match=r"ran since the plan was made\. Nothing was changed"):
        ours.append(rewind)

    assert (before, []) == (ours.builder.files(), ours.changes)


class Killed(BaseException):
    """What the rest of a program never sees."""


class Stopper:
    """Counts the steps that leave a trace, and ends the program before one of them."""

    def __init__(self, stop_at: int) -> None:
        self.steps_left = stop_at

    def step(self) -> None:
        if self.steps_left == 0:
            raise Killed
        self.steps_left -= 1


class StoppingFolder(LocalFolder):
    """A folder whose program is killed before it makes a file."""

    def __init__(self, path: Path, stopper: Stopper) -> None:
        super().__init__(path)
        self.stopper = stopper

    def create(self, path: str, content: bytes) -> None:
        self.stopper.step()
        super().create(path, content)


class StoppingJournal(FileJournal):
    """A journal whose program is killed before it writes."""

    def __init__(self, path: Path, stopper: Stopper) -> None:
        super().__init__(path)
        self.stopper = stopper

    def add(self, change: Change) -> None:
        self.stopper.step()
        super().add(change)

    def set_state(self, id: str, state: ChangeState) -> None:
        self.stopper.step()
        super().set_state(id, state)


INTERRUPTED: list[tuple[int, list[str], list[int], str]] = [
    # killed before step, states in the journal, where the query stands, what finishing makes of it
    (0, [], [10, 3], ""),
    (1, ["pending"], [10, 3], "taken back"),
    (2, ["pending"], [10, 3], "done"),
    (3, ["pending"], [0, 0], "done"),
    (4, ["done"], [0, 0], ""),
]


@pytest.mark.parametrize(("stop_at", "states", "committed", "finished"), INTERRUPTED)
def test_a_move_that_is_killed_at_any_step_did_nothing_or_can_be_finished(
    ours: Query, stop_at: int, states: list[str], committed: list[int], finished: str
) -> None:
    stopper = Stopper(stop_at)
    folder, journal = StoppingFolder(ours.builder.path, stopper), StoppingJournal(ours.journal.path, stopper)
    rewind = ours.plan(ToEarliest())
    before = ours.builder.files()

    if stop_at < 4:
        with pytest.raises(Killed):
            ours.append(rewind, folder, journal)
    else:
        ours.append(rewind, folder, journal)

    assert (states, committed) == ([change.state for change in ours.changes], ours.committed)
    if finished:
        (change,) = ours.changes
        assert finished == complete_rewind(ours.folder, ours.journal, change).state
        assert [finished] == [change.state for change in ours.changes]
        assert (before == ours.builder.files()) == (finished == "taken back")
        assert ([0, 0] if finished == "done" else [10, 3]) == ours.committed


def test_a_batch_that_was_interrupted_is_named_with_what_to_do(ours: Query) -> None:
    with pytest.raises(Killed):
        ours.append(ours.plan(ToEarliest()), StoppingFolder(ours.builder.path, Stopper(1)))
    (change,) = ours.changes

    with pytest.raises(
        UserError, match=f"is of the change {change.id}, which was interrupted.*finish_change.*{change.id}"
    ):
        ours.plan(ToLatest())


@pytest.mark.parametrize(("stop_at", "batches", "committed"), [(1, 2, [10, 3]), (2, 4, [10, 3]), (3, 4, [10, 3])])
def test_an_interrupted_move_is_undone_whatever_it_had_written(
    ours: Query, stop_at: int, batches: int, committed: list[int]
) -> None:
    stopper = Stopper(stop_at)
    with pytest.raises(Killed):
        ours.append(
            ours.plan(ToEarliest()),
            StoppingFolder(ours.builder.path, stopper),
            StoppingJournal(ours.journal.path, stopper),
        )
    (change,) = ours.changes

    undone = undo.undo_rewind(ours.client, ours.journal, change, now_ms=NOW_MS)

    assert (batches, committed) == (len(list((ours.builder.path / "commits").glob("[0-9]"))), ours.committed)
    if stop_at == 1:
        assert (None, ["taken back"]) == (undone, [change.state for change in ours.changes])
    else:
        assert undone is not None
        assert ([10, 3], change.id) == ([move.to for move in undone[0].plan.moves], undone[1].undoes)


def test_planning_to_take_an_interrupted_move_back_leaves_it_as_it_is(ours: Query) -> None:
    with pytest.raises(Killed):
        ours.append(ours.plan(ToEarliest()), StoppingFolder(ours.builder.path, Stopper(1)))
    before = ours.builder.files()

    assert [10, 3] == [move.to for move in ours.undo(ours.changes[0]).plan.moves]
    assert (before, ["pending"]) == (ours.builder.files(), [change.state for change in ours.changes])


def test_a_change_that_is_undone_is_not_undone_again(ours: Query) -> None:
    change = ours.append(ours.plan(ToEarliest()))

    with pytest.raises(UserError, match=r"is undone already\. Nothing was changed"):
        undo.undo_rewind(ours.client, ours.journal, replace(change, state="undone"), now_ms=NOW_MS)
    with pytest.raises(UserError, match="is done and not pending"):
        complete_rewind(ours.folder, ours.journal, change)


def test_a_change_of_another_machines_checkpoint_is_left_alone(ours: Query) -> None:
    with pytest.raises(Killed):
        ours.append(ours.plan(ToEarliest()), StoppingFolder(ours.builder.path, Stopper(1)))
    (change,) = ours.changes
    ours.builder.write("metadata", b'{"id":"another"}', FIRST_MS)
    elsewhere = replace(change, name=str(ours.builder.path / "not-here"))

    with pytest.raises(UserError, match=r"is the checkpoint of query another, and the change .* was made to that of"):
        complete_rewind(ours.folder, ours.journal, change)
    with pytest.raises(UserError, match="is the checkpoint of query another"):
        undo.undo_rewind(ours.client, ours.journal, change, now_ms=NOW_MS)
    with pytest.raises(UserError, match=r"There is no checkpoint at .*not-here"):
        undo.undo_rewind(ours.client, ours.journal, elsewhere, now_ms=NOW_MS)

    assert ["pending"] == [change.state for change in ours.changes]


def test_a_checkpoint_that_was_created_again_is_not_moved_by_an_old_undo(ours: Query) -> None:
    change = ours.append(ours.plan(ToEarliest()))
    ours.builder.write("metadata", b'{"id":"another"}', FIRST_MS)
    ours.builder.grow_old()

    with pytest.raises(UserError, match="is the checkpoint of query another"):
        ours.undo(change, force=True)


def test_an_interrupted_change_whose_batch_the_query_has_run_did_nothing(ours: Query) -> None:
    with pytest.raises(Killed):
        ours.append(ours.plan(ToEarliest()), StoppingFolder(ours.builder.path, Stopper(0)))
    ours.builder.batches(ours.ends(12, 3), start=2)

    assert "taken back" == complete_rewind(ours.folder, ours.journal, ours.changes[0]).state
    assert [12, 3] == ours.committed


def test_a_query_that_plans_a_batch_in_the_same_moment_wins(ours: Query) -> None:
    class Racing(LocalFolder):
        def create(self, path: str, content: bytes) -> None:
            ours.builder.plan(2, kafka(ours.ends(12, 3)))
            super().create(path, content)

    with pytest.raises(UserError, match=r"ran since the plan was made\. Nothing was changed"):
        ours.append(ours.plan(ToEarliest()), Racing(ours.builder.path))

    assert ["refused"] == [change.state for change in ours.changes]
    assert plan_file(kafka(ours.ends(12, 3)), at_ms=FIRST_MS + 4000) == ours.builder.files()["offsets/2"]


def test_a_plan_that_the_query_wrote_over_is_not_committed(ours: Query) -> None:
    class Careless(LocalFolder):
        def create(self, path: str, content: bytes) -> None:
            super().create(path, content)
            ours.builder.plan(2, kafka(ours.ends(12, 3)))

    with pytest.raises(UserError, match=r"ran since the plan was made\. Nothing was changed"):
        ours.append(ours.plan(ToEarliest()), Careless(ours.builder.path))

    assert (["refused"], None) == ([change.state for change in ours.changes], ours.folder.read("commits/2"))


def test_a_batch_that_is_there_although_its_writing_failed_is_not_called_nothing(ours: Query) -> None:
    class Unsure(LocalFolder):
        def create(self, path: str, content: bytes) -> None:
            super().create(path, content)
            raise OSError(5, "Input/output error")

    with pytest.raises(UserError, match=r"Batch 2 .* is not complete\. Do not start the query; finish_change"):
        ours.append(ours.plan(ToEarliest()), Unsure(ours.builder.path))

    assert ["pending"] == [change.state for change in ours.changes]


@pytest.mark.parametrize(
    ("fails_at", "message", "state"),
    [
        ("offsets", r"cannot be written \(No space left on device\)\. Nothing was changed", "refused"),
        ("commits", "Batch 2 .* was planned, but its commit could not be written .*finish_change", "pending"),
    ],
)
def test_a_disk_that_fails_is_an_error(ours: Query, fails_at: str, message: str, state: str) -> None:
    class Full(LocalFolder):
        def create(self, path: str, content: bytes) -> None:
            if path.startswith(fails_at):
                raise OSError(28, "No space left on device")
            super().create(path, content)

    with pytest.raises(UserError, match=message):
        ours.append(ours.plan(ToEarliest()), Full(ours.builder.path))

    assert [state] == [change.state for change in ours.changes]


def test_what_was_moved_a_moment_ago_can_be_moved_again(ours: Query) -> None:
    ours.append(ours.plan(ToEarliest()))
    now_ms = time.time_ns() // 1_000_000

    again = ours.plan(ToOffset(2), now_ms=now_ms)
    with pytest.raises(UserError, match="may still run"):
        ours.plan(ToOffset(2), now_ms=now_ms, changes=[])

    assert [2, 2] == [move.to for move in again.plan.moves]


def test_a_batch_is_ours_only_with_our_bytes(ours: Query) -> None:
    change = ours.append(ours.plan(ToEarliest()))
    checkpoint = read_checkpoint(ours.folder)
    other = replace(change, details={**change.details, "offsets": change.details["offsets"] + " "})

    assert is_last_batch(change, ours.folder, checkpoint)
    assert not is_last_batch(other, ours.folder, checkpoint)
