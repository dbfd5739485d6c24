"""What a Spark does with a topic of clicks, wherever it runs: it reads, keeps tables and writes on.

As a program it does so on a cluster and prints what it read; its arguments: master, server, topic, target, folder, and
further settings of Spark as JSON.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.spark import session, write_table, write_topic
from tests.harness.spark_cluster import driver_settings
from tests.harness.sparks import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "campaign STRING, price DECIMAL(10,2), user STRUCT<id: BIGINT, tags: ARRAY<STRING>>"


def values(count: int) -> list[bytes]:
    """Clicks as JSON; every tenth is bad."""
    return [
        b"{" if number % 10 == 9 else json.dumps(
            {"campaign": f"c{number % 3}", "price": f"{number}.07", "user": {"id": number, "tags": ["a", "b"]}}
        ).encode()
        for number in range(count)
    ]  # fmt: skip


def work(spark: "SparkSession", servers: str, topic: str, target: str, folder: Path) -> dict[str, Any]:
    """Reads the topic as batches, fills the tables `clicks` and `totals` from streams, and sends what is bad on."""
    reading = {"bootstrap.servers": servers, "subscribe": topic}
    typed = {"value.format": "json", "value.schema": SCHEMA}
    found = spark.read.format("logmark").options(**reading, **typed, minPartitions="4").load()
    columns = "partition", "offset", "CAST(value AS STRING)", "CAST(raw AS STRING)", "error"
    answer = {"typed": sorted(map(list, found.selectExpr(*columns).collect()))}

    def stream(group: str) -> "DataFrame":
        following = {"group.id": f"{topic}-{group}", "auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "250"}
        return spark.readStream.format("logmark").options(**reading, **typed, **following).load()

    good = stream("clicks").where("error IS NULL").select("topic", "partition", "offset", "value.*")
    totals = stream("totals").groupBy("value.campaign").agg({"value.price": "sum"}).toDF("campaign", "total")
    bad = stream("bad").where("error IS NOT NULL").selectExpr("CAST(offset AS STRING) AS key", "raw AS value")
    queries = [
        write_table(good, folder / "clicks", available_now=True),
        write_table(totals, folder / "totals", mode="complete", available_now=True),
        write_topic(bad, target, bootstrap_servers=servers, checkpoint=folder / "bad", available_now=True),
    ]
    for query in queries:
        assert query is not None
        query.awaitTermination()
    return answer


if __name__ == "__main__":
    master, servers, topic, target, folder, more = sys.argv[1:]
    spark = session("cluster", master=master, memory="512m", config=quick_java() | driver_settings() | json.loads(more))
    print("\n" + json.dumps(work(spark, servers, topic, target, Path(folder))))
    spark.stop()
