"""A pipeline in a process of its own, for tests that kill it: its arguments say where it reads and writes."""

import sys
from typing import TYPE_CHECKING

from logmark.spark import Pipeline, Table, session
from tests.harness.sparks import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "billing"


def keep(frame: "DataFrame") -> "DataFrame":
    """The rows of the table: where the record was, and its value as text."""
    return frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")


if __name__ == "__main__":
    servers, topic, group, table, home = sys.argv[1:]
    pipeline = Pipeline(
        name=NAME,
        bootstrap_servers=servers,
        topics=topic,
        group=group,
        sink=Table(table),
        transform=keep,
        options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "40"},
    )
    pipeline.start(session("killed", master="local[1]", config=quick_java()), home=home).awaitTermination()
