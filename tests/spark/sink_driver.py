"""A stream from topic to topic in a process of its own, for tests that kill it.

Its arguments: server, topic, group, target and checkpoint.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark import session
from logmark.spark.sink.topics import write_topic
from tests.harness.sparks import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH = 40


def start(
    spark: "SparkSession", servers: str, topic: str, group: str, target: str, checkpoint: str | Path, *,
    available_now: bool = False,
) -> "StreamingQuery":  # fmt: skip
    """Copies the topic in small batches, each record in a request of its own, so that a kill finds one half written."""
    reading = {
        "bootstrap.servers": servers, "subscribe": topic, "group.id": group, "auto.offset.reset": "earliest",
        "maxOffsetsPerTrigger": str(ROWS_PER_BATCH),
    }  # fmt: skip
    frame = spark.readStream.format("logmark").options(**reading).load()
    rows = frame.selectExpr("CAST(value AS STRING) AS key", "CONCAT(CAST(value AS STRING), ' seen') AS value")
    query = write_topic(
        rows,
        target,
        bootstrap_servers=servers,
        checkpoint=checkpoint,
        available_now=available_now,
        options={"batch.size": "1"},
    )
    assert query is not None
    return query


if __name__ == "__main__":
    start(session("killed", master="local[2]", config=quick_java()), *sys.argv[1:]).awaitTermination()
