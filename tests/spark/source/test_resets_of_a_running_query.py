"""Resets of a query that runs: seen by it, and never lost when our tool makes them."""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import list_changes
from logmark.offsets.reset.executor import AppliedReset, apply_plan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToOffset
from logmark.offsets.reset.undo import ChangeConflict
from logmark.offsets.undo import undo_change
from logmark.spark.source.position import Position
from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import tools_of_this_process
from tests.harness.node import wait_until
from tests.harness.searches import seed
from tests.harness.tools import CONSUMER_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

RECORDS = 20_000
DEADLINE_S = 120.0
SLOW_COMMIT_S = 0.25


class BusyQuery:
    """A query that always has more to read, and what its checkpoint says about where it is."""

    def __init__(self, broker: BrokerUnderTest, spark: "SparkSession", folder: Path, *, per_batch: int) -> None:
        self.topic = broker.create_topic("clicks", config={"retention.ms": "-1"})
        self.group = broker.group("busy")
        self.partition = TopicPartition(self.topic, 0)
        self._checkpoint = folder / "checkpoint"
        broker.produce(self.topic, ["x"] * RECORDS)
        self.query: StreamingQuery = (
            spark.readStream.format("logmark")
            .option("bootstrap.servers", broker.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("group.id", self.group)
            .option("auto.offset.reset", "earliest")
            .option("maxOffsetsPerTrigger", per_batch)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._checkpoint))
            .start()
        )

    def positions(self) -> list[Position]:
        """The positions in the checkpoint, the newest last: Spark keeps a hundred."""
        files = sorted((one for one in (self._checkpoint / "offsets").glob("[0-9]*")), key=lambda one: int(one.name))
        found = []
        for one in files:
            with suppress(FileNotFoundError):  # removed by Spark meanwhile
                found.append(Position.from_json(json.loads(one.read_text().splitlines()[2])))
        return found

    def generation(self) -> int:
        """The generation that the query is in; a tool may have wiped the mark that names it."""
        return max(one.generation for one in self.positions())

    def went_to(self, offset: int, *, after: int) -> bool:
        """Whether the query has made a seek to this offset, in a generation above `after`."""
        self.check()
        return any(
            one.generation > after and one.first == one.next == {self.partition: offset} for one in self.positions()
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.check()
            return condition()

        wait_until(holds, what, deadline_s=DEADLINE_S)

    def check(self) -> None:
        failure = self.query.exception()
        assert failure is None, failure


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def reset_to(client: Client, busy: BusyQuery, offset: int, journal: FileJournal) -> AppliedReset:
    return apply_plan(client, plan_reset(client, busy.group, {busy.topic: None}, ToOffset(offset)), journal=journal)


def test_a_running_query_honours_a_reset_and_its_undo(
    broker: BrokerUnderTest, client: Client, spark: "SparkSession", tmp_path: Path
) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    busy = BusyQuery(broker, spark, tmp_path, per_batch=10)
    try:
        busy.wait(lambda: busy.partition in client.committed(busy.group), "the query has committed")
        busy.wait(lambda: client.committed(busy.group)[busy.partition].offset >= 30, "the query reads")
        first = busy.generation()

        applied = reset_to(client, busy, 10_000, journal)

        busy.wait(lambda: busy.went_to(10_000, after=first), "the query has gone to where it was set")
        (position, *_) = busy.positions()
        assert applied.picked_up_by in (f"the query {position.query}", ""), "a slow machine may take longer than 5 s"
        before = applied.change.before[busy.partition]
        assert before is not None and before.metadata == applied.change.after[busy.partition].metadata  # type: ignore[union-attr]
        assert CommitMetadata.parse(before.metadata) is not None

        second = busy.generation()
        busy.wait(lambda: client.committed(busy.group)[busy.partition].offset > 10_000, "the query goes on from there")
        with pytest.raises(ChangeConflict, match=r"would not be right any more: group .* has moved on"):
            undo_change(client, applied.change.id, journal=journal)
        undone = undo_change(client, applied.change.id, journal=journal, force=True)

        assert undone is not None and applied.change.before == undone.change.after
        busy.wait(lambda: busy.went_to(before.offset, after=second), "the query has gone back")
        busy.wait(lambda: before.offset < client.committed(busy.group)[busy.partition].offset < 10_000, "it goes on")
        assert ["undone", "done"] == [one.state for one in list_changes(client, journal=journal)]
    finally:
        busy.query.stop()


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(3600)
def test_five_hundred_resets_at_random_moments_of_a_busy_query(
    our_broker: BrokerUnderTest,
    spark: "SparkSession",
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    count: int = 500,
) -> None:
    """A fifth of them while commits take longer, so that many fall between the query's look and its commit."""
    journal = FileJournal(tmp_path / "journal.jsonl")
    chance = random.Random(seed(7))
    busy = BusyQuery(our_broker, spark, tmp_path, per_batch=7)
    repeated = {False: 0, True: 0}
    overwritten = {False: 0, True: 0}
    try:
        with Client(our_broker.bootstrap_servers) as client:
            apache = tools_of_this_process()
            busy.wait(lambda: bool(busy.positions()), "the query reads")

            def moment(number: int) -> tuple[bool, int, int]:
                is_slow = number >= count - count // 5
                our_broker.control.delay("OffsetCommit", SLOW_COMMIT_S if is_slow else 0)
                at = busy.generation()
                time.sleep(chance.uniform(0, 0.2))
                return is_slow, at, chance.randrange(RECORDS // 2)

            for number in range(count):
                is_slow, at, target = moment(number)
                applied = reset_to(client, busy, target, journal)
                repeated[is_slow] += bool(applied.repeats)
                assert _was_honoured(client, busy, target, at), f"{number}: {target} was lost: {busy.positions()[-5:]}"
            for number in range(count):
                is_slow, at, target = moment(number)
                apache.run(
                    CONSUMER_GROUPS, "--bootstrap-server", our_broker.bootstrap_servers, "--reset-offsets", "--group",
                    busy.group, "--topic", busy.topic, "--to-offset", str(target), "--execute",
                ).check()  # fmt: skip
                overwritten[is_slow] += not _was_honoured(client, busy, target, at)
    finally:
        our_broker.control.clear_faults()
        busy.query.stop()
    assert repeated[True] > 0, "no reset fell between the query's look and its commit: nothing was shown"
    slow = f"of {count // 5} while commits took {SLOW_COMMIT_S * 1000:.0f} ms longer"
    record_property("resets by our tool", count)
    record_property("honoured", count)
    record_property(
        "set again because the query had written over it", f"{repeated[False]}, and {repeated[True]} {slow}"
    )
    record_property("resets by Apache's tool", count)
    record_property("honoured by the query", count - sum(overwritten.values()))
    record_property("written over by it", f"{overwritten[False]}, and {overwritten[True]} {slow}")


def _was_honoured(client: Client, busy: BusyQuery, target: int, generation_before: int) -> bool:
    """Waits until the query has gone to the target, or has committed past it in its old generation."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if busy.went_to(target, after=generation_before):
            return True
        committed = client.committed(busy.group)[busy.partition]
        mark = CommitMetadata.parse(committed.metadata)
        if mark is not None and mark.generation == generation_before and committed.offset != target:
            time.sleep(0.5)  # the checkpoint is written after the commit
            return busy.went_to(target, after=generation_before)
        time.sleep(0.02)
    raise AssertionError(f"the reset to {target} was neither seen nor written over")
