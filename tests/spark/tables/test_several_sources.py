"""Tables of queries that use their input several times, or read several topics."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.errors import UserError
from logmark.spark import share_source, write_table, write_topic
from tests.harness.brokers import BrokerUnderTest
from tests.spark import joined_driver
from tests.spark.joined_driver import left_outer, records
from tests.spark.table_batches import rows
from tests.spark.tables.test_tables import finish, forget_last_batch, killed_after

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

def stream(
    spark: "SparkSession", broker: BrokerUnderTest, topic: str, group: str, per_batch: int = 4
) -> "DataFrame":
    """The stream of a topic of JSON, from its beginning: id and time."""
    return joined_driver.stream(spark, broker.bootstrap_servers, topic, group, per_batch)


def append(table: Path, frame: "DataFrame") -> None:
    finish(write_table(frame, table, mode="append", available_now=True))


def test_a_union_of_two_parts_of_a_stream_holds_each_row_once_through_repeated_batches_and_a_lost_checkpoint(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, records(0, 10))

    def run() -> None:
        clicks = stream(spark, our_broker, topic, group)
        parts = clicks.where("id % 3 = 0").unionByName(clicks.where("id % 3 = 1")).drop("time")
        finish(write_table(parts, tmp_path, available_now=True))

    def truth(end: int) -> list[tuple[int, int]]:
        return [(number, number) for number in range(end) if number % 3 < 2]

    run()
    assert truth(10) == rows(tmp_path, "offset", "id")
    forget_last_batch(tmp_path / "_checkpoint")
    our_broker.produce(topic, records(10, 13))
    run()
    assert truth(13) == rows(tmp_path, "offset", "id")

    shutil.rmtree(tmp_path / "_checkpoint")
    our_broker.commit(group, {(topic, 0): 2})
    our_broker.produce(topic, records(13, 16))
    run()
    assert truth(16) == rows(tmp_path, "offset", "id")
    assert {(topic, 0): 16} == our_broker.committed(group)


def test_a_union_of_topics_in_one_group_follows_a_reset_of_one_of_them_and_survives_a_lost_checkpoint(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    orders, payments = our_broker.create_topic("orders"), our_broker.create_topic("payments")
    group = our_broker.group("billing")
    our_broker.produce(orders, records(0, 6))
    our_broker.produce(payments, records(0, 9))

    def run(factor: int) -> None:
        both = [stream(spark, our_broker, topic, group).drop("time") for topic in (orders, payments)]
        union = both[0].unionByName(both[1]).selectExpr("topic", "partition", "offset", f"id * {factor} AS id")
        finish(write_table(union, tmp_path, available_now=True))

    run(1)
    forget_last_batch(tmp_path / "_checkpoint")
    our_broker.produce(payments, records(9, 10))
    run(1)
    truth = {(orders, number): number for number in range(6)} | {(payments, number): number for number in range(10)}
    assert sorted((*at, value) for at, value in truth.items()) == rows(tmp_path, "topic", "offset", "id")

    our_broker.commit(group, {(payments, 0): 7})
    run(100)
    truth |= {(payments, number): 100 * number for number in (7, 8, 9)}
    assert sorted((*at, value) for at, value in truth.items()) == rows(tmp_path, "topic", "offset", "id")

    shutil.rmtree(tmp_path / "_checkpoint")
    our_broker.produce(orders, records(6, 8))
    run(100)
    truth |= {(orders, number): 100 * number for number in (6, 7)}
    assert sorted((*at, value) for at, value in truth.items()) == rows(tmp_path, "topic", "offset", "id")
    assert {(orders, 0): 8, (payments, 0): 10} == our_broker.committed(group)


def test_joins_of_streams_are_exact_through_repeated_batches(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    orders, payments = our_broker.create_topic("orders"), our_broker.create_topic("payments")
    our_broker.produce(orders, records(0, 8))
    our_broker.produce(payments, records(1, 8, 2))
    outer, copied, apart = tmp_path / "outer", tmp_path / "copied", tmp_path / "apart"

    def with_itself(one: "DataFrame", other: "DataFrame") -> "DataFrame":
        """Each order with the next one."""
        return one.alias("a").join(other.alias("b"), _expr("b.id = a.id + 1")).selectExpr("a.id AS a", "b.id AS b")

    def run() -> None:
        append(outer, left_outer(spark, our_broker.bootstrap_servers, orders, payments, groups[0]))
        shared = share_source(stream(spark, our_broker, orders, groups[1], per_batch=3))
        append(copied, with_itself(shared, shared))
        two = [stream(spark, our_broker, orders, groups[number], per_batch=number) for number in (2, 3)]
        append(apart, with_itself(*two))

    groups = [our_broker.group(name) for name in ("outer", "copied", "left", "right")]
    run()
    assert [(number, number + 1) for number in range(7)] == rows(copied) == rows(apart)
    for table in (outer, copied, apart):
        forget_last_batch(table / "_checkpoint")
    our_broker.produce(orders, records(8, 12))
    our_broker.produce(payments, records(9, 12, 2))
    run()
    assert [(number, number + 1) for number in range(11)] == rows(copied) == rows(apart)
    assert [(number, number if number % 2 else None) for number in range(12)] == rows(outer)
    ends = [{(orders, 0): 12, (payments, 0): 6}, {(orders, 0): 12}, {(orders, 0): 12}, {(orders, 0): 12}]
    assert ends == [our_broker.committed(group) for group in groups]


@pytest.mark.timeout(900)
def test_a_join_of_two_topics_is_exact_however_often_the_driver_is_killed(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    orders, payments = our_broker.create_topic("orders"), our_broker.create_topic("payments")
    group, table = our_broker.group("joined"), tmp_path / "table"
    our_broker.produce(orders, records(0, 400))
    our_broker.produce(payments, records(1, 400, 2))
    where = [our_broker.bootstrap_servers, orders, payments, group]
    for commits in (1, 3):
        killed_after(
            commits=commits, table=table, arguments=[*where, str(table)], driver_module="tests.spark.joined_driver"
        )

    append(table, left_outer(spark, *where, per_batch=400))

    assert [(number, number if number % 2 else None) for number in range(400)] == rows(table)
    assert {(orders, 0): 400, (payments, 0): 200} == our_broker.committed(group)


def test_two_sources_that_read_a_topic_in_one_group_are_refused_before_they_read(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, other = our_broker.create_topic("clicks"), our_broker.create_topic("more")
    group = our_broker.group("billing")
    one, twice = stream(spark, our_broker, topic, group), stream(spark, our_broker, f"{other},{topic}", group)
    refused = rf"Two sources of this query read {topic} in the group {group}, .* Nothing was read.* share_source"
    how: dict[str, Any] = {"bootstrap_servers": our_broker.bootstrap_servers, "checkpoint": tmp_path / "checkpoint"}

    for frame in (one.unionByName(twice), one.alias("a").join(one.alias("b"), _expr("a.id = b.id")).select("a.*")):
        with pytest.raises(UserError, match=refused):
            write_table(frame, tmp_path / "table")
        with pytest.raises(UserError, match=refused):
            write_topic(frame.selectExpr("CAST(id AS STRING) AS value"), other, **how)

    assert {} == our_broker.committed(group)
    assert [] == list(tmp_path.iterdir())


def test_a_join_with_itself_into_any_sink_is_refused_before_the_copy_of_its_source_reads(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, records(0, 3))
    clicks = stream(spark, our_broker, topic, group)
    pairs = clicks.alias("a").join(clicks.alias("b"), _expr("b.id = a.id + 1")).selectExpr("a.id AS a", "b.id AS b")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run(frame: "DataFrame") -> None:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        finish(writer.trigger(availableNow=True).start(str(out)))

    with pytest.raises(UserError, match=rf"Another reader of the same load\(\) reads in the group {group}"):
        run(pairs)
    assert not list(checkpoint.glob("offsets/*"))
    run(share_source(clicks).select("id"))
    assert [0, 1, 2] == sorted(row.id for row in spark.read.parquet(str(out)).collect())


def _expr(text: str) -> Any:
    # Only here: Spark is started by the fixture.
    from pyspark.sql.functions import expr

    return expr(text)
