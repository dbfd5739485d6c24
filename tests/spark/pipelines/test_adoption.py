"""A query that goes on in another group than the one that its checkpoint was made in."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.client.answers import Committed
from logmark.client.errors import BrokerUnreachable
from logmark.clock import ManualClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark import read_table, write_table
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import Position
from logmark.spark.tables.ledger import Batch, entries, read_ledger, takes, transfer_ledger
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.versions import swap_in_version, version_path
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.spark.source.test_group_follower import EARLY, P0, P1, FakeCluster, follow, step
from tests.spark.table_batches import batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BUILT = Position(
    group="billing.v2", query="built", generation=1000, first={P0: 0, P1: 0}, next={P0: 60, P1: 40}, ids={"clicks": "x"}
)
ADOPTING = {"group.id.before": "billing.v2"}


def a_group_of_another_query(clock: ManualClock) -> tuple[FakeCluster, Position]:
    """The group of a query that runs, and where that one stands."""
    cluster = FakeCluster(p0=(0, 100), p1=(0, 50))
    other = follow(cluster, clock, **EARLY)
    here = step(other, other.start(), 30)
    step(other, here)
    clock.advance(seconds=1)
    return cluster, here


def test_the_query_takes_the_group_over_where_its_checkpoint_stands() -> None:
    clock = ManualClock()
    cluster, here = a_group_of_another_query(clock)

    there = step(follow(cluster, clock, **ADOPTING), BUILT)

    assert ("billing", "built", BUILT.next, {}) == (there.group, there.query, there.next, there.ranges)
    assert there.generation > max(BUILT.generation, here.generation)
    assert BUILT.next == {partition: one.offset for partition, one in cluster.offsets.items()}
    assert there.mark(P0) == CommitMetadata.parse(cluster.offsets[P0].metadata)


def test_the_query_that_had_the_group_ends() -> None:
    clock = ManualClock()
    cluster = FakeCluster(p0=(0, 100), p1=(0, 50))
    other = follow(cluster, clock, **EARLY)
    here = step(other, other.start(), 30)
    clock.advance(seconds=1)
    step(follow(cluster, clock, **ADOPTING), BUILT)

    with pytest.raises(UserError, match="taken over by the query built"):
        step(other, here)


def test_reading_continues_in_the_new_group_also_after_a_restart() -> None:
    clock = ManualClock()
    cluster, _ = a_group_of_another_query(clock)
    first = follow(cluster, clock, **ADOPTING)
    there = step(first, BUILT)

    ahead = step(first, there)
    again = step(follow(cluster, clock, **ADOPTING), there)

    assert {P0: (60, 100), P1: (40, 50)} == ahead.ranges == again.ranges
    assert "billing" == again.group


def test_a_driver_that_died_before_spark_noted_the_new_group_takes_it_over_again() -> None:
    clock = ManualClock()
    cluster, _ = a_group_of_another_query(clock)
    first = step(follow(cluster, clock, **ADOPTING), BUILT)
    clock.advance(seconds=1)

    again = step(follow(cluster, clock, **ADOPTING), BUILT)

    assert (BUILT.next, True) == (again.next, again.generation > first.generation)


@pytest.mark.parametrize("arrives", [False, True])
def test_nothing_is_planned_in_the_new_group_until_it_is_committed(
    arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    cluster, _ = a_group_of_another_query(clock)
    cluster.arrives_all_the_same = arrives
    follower = follow(cluster, clock, **ADOPTING)
    looked = cluster.committed

    def look_and_go_away(group: str, partitions: object = None) -> dict[TopicPartition, Committed]:
        found = looked(group)
        cluster.failure = BrokerUnreachable("The broker is away.")
        return found

    monkeypatch.setattr(cluster, "committed", look_and_go_away)
    with pytest.raises(BrokerUnreachable):
        step(follower, BUILT)
    monkeypatch.undo()
    cluster.failure = None

    there = step(follower, BUILT)

    assert BUILT.next == there.next
    assert {P0: (60, 100), P1: (40, 50)} == step(follower, there).ranges


def test_a_reset_of_the_group_made_before_the_query_comes_is_followed() -> None:
    clock = ManualClock()
    cluster, _ = a_group_of_another_query(clock)
    cluster.offsets[P0] = Committed(offset=7, metadata=cluster.offsets[P0].metadata)

    there = step(follow(cluster, clock, **ADOPTING), BUILT)

    assert {P0: 7, P1: 40} == there.next
    assert {P0: (7, 100), P1: (40, 50)} == step(follow(cluster, clock, **ADOPTING), there).ranges


def test_a_group_without_commits_is_taken_as_well() -> None:
    cluster = FakeCluster(p0=(0, 100), p1=(0, 50))

    assert BUILT.next == step(follow(cluster, ManualClock(), **ADOPTING), BUILT).next
    assert 60 == cluster.offsets[P0].offset


def test_a_checkpoint_of_a_third_group_is_still_an_error() -> None:
    with pytest.raises(UserError, match=r"belongs to group billing\.v2, but group\.id is billing"):
        step(follow(FakeCluster(p0=(0, 100)), **{"group.id.before": "billing.v3"}), BUILT)


def test_the_group_before_needs_a_group_after_it() -> None:
    with pytest.raises(UserError, match=r"group\.id\.before needs group\.id"):
        parse_source_options({"bootstrap.servers": "b:1", "subscribe": "clicks", **ADOPTING}, is_stream=True)


def test_a_batch_that_was_planned_before_the_swap_is_taken_after_it_and_leaves_the_table_its_group() -> None:
    rules = Rules.of("upsert", keys="campaign")

    def counted(number: int, group: str) -> Batch:
        ends = {P0: number * 10}, {P0: number * 10 + 10}
        return batch(*ends, rules, number=number, query="built", group=group, is_stateful=True)

    first = counted(0, "billing.v2")
    numbers = transfer_ledger(entries(first, read_ledger({}.get, first.position)), {}, group="billing")

    for number, group in ((1, "billing.v2"), (2, "billing")):
        one = counted(number, group)
        ledger = read_ledger(numbers.get, one.position)
        assert takes(ledger, one, table="t")
        numbers |= entries(one, ledger)
    stranger = counted(3, "other")
    with pytest.raises(UserError, match="another group"):
        takes(read_ledger(numbers.get, stranger.position), stranger, table="t")


class CountingQuery:
    """A query that counts numbers by their rest, and keeps the counts in a table."""

    def __init__(self, broker: BrokerUnderTest, spark: "SparkSession", folder: Path) -> None:
        self.broker, self.spark = broker, spark
        self.topic = broker.create_topic("numbers", 2)
        self.group = broker.group("counts")
        self.table = folder / "table"
        self.folder = folder
        self.sent = 0

    def send(self, count: int) -> None:
        for partition in (0, 1):
            values = [str(number) for number in range(self.sent, self.sent + count) if number % 2 == partition]
            self.broker.produce(self.topic, values, partition=partition)
        self.sent += count

    def start(self, group: str, table: Path, version: int, *, is_once: bool = False, **more: str) -> "StreamingQuery":
        options = {"bootstrap.servers": self.broker.bootstrap_servers, "subscribe": self.topic, "group.id": group}
        more = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "40"} | more
        frame = self.spark.readStream.format("logmark").options(**options, **more).load()
        counts = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) % 3 AS rest").groupBy("rest").count()
        checkpoint = self.folder / f"v{version}"
        return write_table(counts, table, mode="complete", checkpoint=checkpoint, available_now=is_once)

    def counted(self) -> int:
        return (
            sum(read_table(self.table, ["count"])["count"].to_pylist()) if (self.table / "_delta_log").exists() else 0
        )

    def wait(self, query: "StreamingQuery") -> None:
        def is_done() -> bool:
            assert query.exception() is None, query.exception()
            return self.counted() >= self.sent

        wait_until(is_done, f"{self.sent} numbers are counted", deadline_s=60.0)
        assert self.sent == self.counted(), "a number was counted twice"


@pytest.mark.soak
@pytest.mark.spark
def test_a_stateful_query_built_as_a_version_continues_as_the_group_itself(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    case = CountingQuery(broker, spark, tmp_path)
    case.send(60)
    old = case.start(case.group, case.table, 1)
    case.wait(old)
    beside = version_path(case.table, 2)
    case.start(f"{case.group}.v2", beside, 2, is_once=True).awaitTermination()

    swap_in_version(case.table, 2, group=case.group)
    new = case.start(case.group, case.table, 2, **{"group.id.before": f"{case.group}.v2"})
    wait_until(lambda: not old.isActive, "the old query has ended", deadline_s=60.0)
    case.send(30)
    case.wait(new)

    assert "taken over by the query" in str(old.exception())
    ends = {(case.topic, 0): 45, (case.topic, 1): 45}
    wait_until(lambda: broker.committed(case.group) == ends, "the group has read it all")
    new.stop()
    restarted = case.start(case.group, case.table, 2, **{"group.id.before": f"{case.group}.v2"})
    case.send(6)
    case.wait(restarted)
    restarted.stop()
