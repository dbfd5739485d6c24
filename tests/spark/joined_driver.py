"""A join of two topics in a process of its own, for a test that kills it: server, topics, group and table."""

import json
import sys
from typing import TYPE_CHECKING

from logmark.spark import session, write_table
from tests.harness.sparks import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def records(first: int, end: int, step: int = 1) -> list[str]:
    """Record n has the id n, and is 10 seconds younger than the one before."""
    return [json.dumps({"id": number, "at": 1000 + number * 10}) for number in range(first, end, step)]


def stream(spark: "SparkSession", servers: str, topic: str, group: str, per_batch: int) -> "DataFrame":
    """The stream of a topic of JSON, from its beginning: id and time."""
    options = {"bootstrap.servers": servers, "subscribe": topic, "group.id": group, "auto.offset.reset": "earliest"}
    more = {"value.format": "json", "value.schema": "id INT, at INT", "maxOffsetsPerTrigger": str(per_batch)}
    frame = spark.readStream.format("logmark").options(**options, **more).load()
    return frame.selectExpr("topic", "partition", "offset", "value.id", "CAST(value.at AS TIMESTAMP) AS time")


def left_outer(
    spark: "SparkSession", servers: str, orders: str, payments: str, group: str, per_batch: int = 4
) -> "DataFrame":
    """Orders with their payments, of the same time; those without one, when it is too late for it."""
    # Only here: PySpark is started by the caller.
    from pyspark.sql.functions import expr

    left = stream(spark, servers, orders, group, per_batch).withWatermark("time", "0 seconds").alias("o")
    right = stream(spark, servers, payments, group, per_batch).withWatermark("time", "0 seconds").alias("p")
    when = expr("o.id = p.id AND p.time BETWEEN o.time AND o.time + INTERVAL 5 SECONDS")
    return left.join(right, on=when, how="left").selectExpr("o.id AS id", "p.id AS paid")


def write(frame: "DataFrame", table: str, *, available_now: bool) -> "StreamingQuery":
    """The query that appends what was joined."""
    return write_table(frame, table, mode="append", available_now=available_now, optimize_every=5)


if __name__ == "__main__":
    servers, orders, payments, group, table = sys.argv[1:]
    spark = session("killed", master="local[1]", config=quick_java() | {"spark.sql.shuffle.partitions": "1"})
    joined = left_outer(spark, servers, orders, payments, group, per_batch=40)
    write(joined, table, available_now=False).awaitTermination()
