"""A pipeline in a process of its own, for tests that kill it: server, topic, group and table are its arguments."""

import sys
from typing import TYPE_CHECKING

from logmark.spark import Pipeline, session
from tests.harness.sparks import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keep(frame: "DataFrame") -> "DataFrame":
    """The rows of the table: where the record was, and its value as text."""
    return frame.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")


if __name__ == "__main__":
    servers, topic, group, table = sys.argv[1:]
    pipeline = Pipeline(
        bootstrap_servers=servers,
        topics=topic,
        group=group,
        table=table,
        transform=keep,
        options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "40"},
    )
    pipeline.start(session("killed", master="local[1]", config=QUICK_JAVA)).awaitTermination()
