"""Pipelines that read several topics, each with its own schema, or use one topic several times."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.spark import Pipeline, ReplayRequest, Table, Topic
from logmark.spark.pipelines.failed_record import describe_failed_record
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import make_job
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.replay.runner import ReplayCallbacks
from logmark.spark.pipelines.replay.session import open_replay
from logmark.spark.pipelines.replay.state import ReplayStep
from tests.harness.brokers import BrokerUnderTest
from tests.spark.table_batches import rows
from tests.spark.tables.test_tables import forget_last_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Killed(Exception):
    """The process of a replay is gone."""


class Shop:
    """Orders and payments of an own schema, and pipelines that read them; `factor` is what their code says now."""

    def __init__(self, broker: BrokerUnderTest, folder: Path) -> None:
        self.broker = broker
        self.orders, self.payments = broker.create_topic("orders"), broker.create_topic("payments")
        self.home, self.table = folder / "home", folder / "table"
        self.factor, self.fails_on = 1, -1

    def send(self, first: int, end: int) -> None:
        """Orders of these ids, and payments of the odd ones among them."""
        at = {number: 1000 + 10 * number for number in range(first, end)}
        self.broker.produce(self.orders, [json.dumps({"id": one, "at": at[one], "price": one * 2}) for one in at])
        self.broker.produce(self.payments, [json.dumps({"order": one, "at": at[one]}) for one in at if one % 2])

    def pipeline(self, transform: Any, sink: Any, name: str = "shop", **more: Any) -> Pipeline:
        schema = {self.orders: "id INT, at INT, price INT", self.payments: "order INT, at INT"}
        fields: dict[str, Any] = {
            "name": name,
            "group": self.broker.group(name),
            "schema": schema,
            "transform": transform,
            "sink": sink,
            "bootstrap_servers": self.broker.bootstrap_servers,
            "options": {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "4"},
        }
        return Pipeline(**fields | more)

    def joined(self, orders: "DataFrame", payments: "DataFrame") -> "DataFrame":
        """Each order with its payment, as long as it may come."""
        left = orders.selectExpr("value.id AS id", f"value.price * {self.factor} AS price", _TIME)
        right = payments.selectExpr("value.order AS paid", _TIME).withWatermark("time", "1 hour")
        return left.withWatermark("time", "1 hour").join(right, left.id == right.paid).select("id", "price")

    def both(self, orders: "DataFrame", payments: "DataFrame") -> "DataFrame":
        """The ids of both topics."""
        where = ["topic", "partition", "offset"]
        paid = f"IF(value.order = {self.fails_on}, raise_error('not to be paid'), value.order) * {self.factor} AS id"
        return orders.selectExpr(*where, f"value.id * {self.factor} AS id").unionByName(
            payments.selectExpr(*where, paid)
        )

    def committed(self, pipeline: Pipeline) -> tuple[int | None, int | None]:
        found = self.broker.committed(pipeline.group)
        return found.get((self.orders, 0)), found.get((self.payments, 0))


_TIME = "CAST(value.at AS TIMESTAMP) AS time"


def test_a_join_of_two_topics_is_exact_through_a_repeated_batch_a_replay_that_was_killed_and_a_rollback(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    shop = Shop(our_broker, tmp_path)
    pipeline = shop.pipeline(shop.joined, Table(shop.table, mode="append"))
    home = Home(shop.home, pipeline.name)

    def truth(end: int, factor: int) -> list[tuple[int, int]]:
        return [(number, 2 * factor * number) for number in range(end) if number % 2]

    shop.send(0, 10)
    pipeline.run(spark, home=shop.home)
    assert truth(10, 1) == rows(shop.table)
    forget_last_batch(home.checkpoint(1))
    shop.send(10, 12)
    pipeline.run(spark, home=shop.home)
    assert (truth(12, 1), (12, 6)) == (rows(shop.table), shop.committed(pipeline))

    shop.factor = 10
    job = make_job(pipeline, home=shop.home)
    with pytest.raises(Killed), open_replay(job, lambda: spark) as session:
        session.execute(session.plan(ReplayRequest()), ReplayRequest(), _die_at(ReplayStep.BUILT))
    with pytest.raises(Killed), open_replay(job, lambda: spark) as session:
        session.resume(_die_at(ReplayStep.PUBLISHED))
    assert 2 == pipeline.replay(spark, resume=True, home=shop.home, say=_nothing).version
    assert truth(12, 10) == rows(shop.table)
    shop.send(12, 14)
    pipeline.run(spark, home=shop.home)
    assert (truth(14, 10), (14, 7)) == (rows(shop.table), shop.committed(pipeline))

    pipeline.rollback(spark, home=shop.home, say=_nothing)
    shop.factor = 1
    pipeline.run(spark, home=shop.home)
    assert (truth(14, 1), (14, 7)) == (rows(shop.table), shop.committed(pipeline))


def test_a_union_of_two_topics_is_replayed_in_place_and_its_failed_record_is_named(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    shop = Shop(our_broker, tmp_path)
    pipeline = shop.pipeline(shop.both, Table(shop.table))
    shop.send(0, 10)
    pipeline.run(spark, home=shop.home)

    shop.factor = 100
    pipeline.replay(spark, ReplayRequest(start="earliest"), home=shop.home, say=_nothing)
    ids = [(shop.orders, 100 * number) for number in range(10)]
    ids += [(shop.payments, 100 * number) for number in range(1, 10, 2)]
    assert (ids, (10, 5)) == (rows(shop.table, "topic", "id"), shop.committed(pipeline))

    shop.fails_on = 11
    shop.send(10, 14)
    with pytest.raises(Exception, match="not to be paid"):
        pipeline.run(spark, home=shop.home)
    version = Home(shop.home, pipeline.name).live_version(pipeline)
    brokers = Brokers(bootstrap_servers=our_broker.bootstrap_servers)
    assert f"It fails on the record {shop.payments}-0 offset 5." == describe_failed_record(
        pipeline, version, spark, brokers
    )


def test_a_topic_that_is_joined_with_itself_is_read_once_and_sent_once(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    shop = Shop(our_broker, tmp_path)
    pairs = our_broker.create_topic("pairs")

    def with_the_next(orders: "DataFrame") -> "DataFrame":
        ids = orders.selectExpr("value.id AS id")
        both = ids.alias("a").join(ids.alias("b"), on=_expr("b.id = a.id + 1"))
        return both.selectExpr("CAST(a.id AS STRING) AS value", "CAST(a.id AS STRING) AS id")

    schema = "id INT, at INT, price INT"
    pipeline = shop.pipeline(with_the_next, Topic(pairs), topics=shop.orders, schema=schema)
    shop.send(0, 6)
    pipeline.run(spark, home=shop.home)
    forget_last_batch(Home(shop.home, pipeline.name).checkpoint(1))
    shop.send(6, 9)
    pipeline.run(spark, home=shop.home)
    pipeline.replay(spark, home=shop.home, say=_nothing)

    options = {"bootstrap.servers": our_broker.bootstrap_servers, "subscribe": pairs}
    sent = spark.read.format("logmark").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    assert [str(number) for number in range(8)] == sorted(row.value for row in sent.collect())
    assert {(shop.orders, 0): 9} == our_broker.committed(pipeline.group)


def _die_at(step: ReplayStep) -> ReplayCallbacks:
    def die(done: ReplayStep) -> None:
        if done is step:
            raise Killed

    return ReplayCallbacks(say=_nothing, on_step=die)


def _nothing(text: str) -> None:
    """Say nothing."""


def _expr(text: str) -> Any:
    # Only here: Spark is started by the fixture.
    from pyspark.sql.functions import expr

    return expr(text)
