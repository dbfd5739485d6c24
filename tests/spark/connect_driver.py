"""Reads with Spark Connect in a process of its own: a process has a classic session or one of Connect, not both.

Arguments: bootstrap servers, topic, checkpoint. Prints one JSON object.
"""

import json
import sys

from pyspark.sql import SparkSession

from logmark.errors import UserError
from logmark.offsets.monitor.prometheus_text import format_metrics
from logmark.spark import read_topic, report_progress
from tests.harness.node import wait_until


def main(servers: str, topic: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    listener = report_progress(spark)
    found: dict[str, object] = {"is_classic": getattr(spark, "_jvm", None) is not None}
    frame = read_topic(spark, topic, start=-10, columns="offset", bootstrap_servers=servers)
    found["offsets"] = sorted(row.offset for row in frame.collect())
    try:
        read_topic(spark, topic, start="sometime", bootstrap_servers=servers)
    except UserError as error:
        found["refused"] = str(error)
    given = {"bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("logmark").options(**given, maxOffsetsPerTrigger="60").load()
    writer = rows.writeStream.format("noop").queryName("connected").option("checkpointLocation", checkpoint)
    query = writer.start()
    query.processAllAvailable()
    wait_until(lambda: _metric(listener, "batches_total") == "2", "both batches are reported", deadline_s=60)
    found["records"], found["lag"] = _metric(listener, "records_total"), _metric(listener, "lag_records")
    query.stop()
    wait_until(lambda: _metric(listener, "records_total") is None, "the end is reported", deadline_s=60)
    print(json.dumps(found))
    spark.stop()


def _metric(listener: object, name: str) -> str | None:
    text = "".join(format_metrics(listener.board.families()))  # type: ignore[attr-defined]
    start = f'logmark_query_{name}{{query="connected"}} '
    return next((line.removeprefix(start) for line in text.splitlines() if line.startswith(start)), None)


if __name__ == "__main__":
    main(*sys.argv[1:])
