"""Totals in a process of its own, for tests that kill it: server, topic, group, table and mode are its arguments."""

import sys
from typing import TYPE_CHECKING

from logmark.spark import session, write_table
from tests.harness.sparks import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def totals(spark: "SparkSession", servers: str, topic: str, group: str) -> "DataFrame":
    """The sum of the numbers that have the same rest, 40 records at a time."""
    options = {"bootstrap.servers": servers, "subscribe": topic, "group.id": group}
    more = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "40"}
    frame = spark.readStream.format("logmark").options(**options, **more).load()
    numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    return numbers.selectExpr("number % 7 AS rest", "number").groupBy("rest").agg({"number": "sum"})


def write(frame: "DataFrame", table: str, mode: str, *, available_now: bool) -> "StreamingQuery":
    """The query that keeps the totals."""
    keys = "rest" if mode == "upsert" else None
    result = frame.withColumnRenamed("sum(number)", "total")
    return write_table(result, table, mode=mode, keys=keys, available_now=available_now, optimize_every=5)


if __name__ == "__main__":
    servers, topic, group, table, mode = sys.argv[1:]
    spark = session("killed", master="local[1]", config=quick_java())
    write(totals(spark, servers, topic, group), table, mode, available_now=False).awaitTermination()
