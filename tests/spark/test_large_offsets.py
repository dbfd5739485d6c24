"""Spark reads and commits offsets that no 32 bits hold."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.own import OwnBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = 259_000_000_000


@pytest.mark.spark
def test_a_partition_near_259_billion_is_read_and_its_group_follows(
    start_own: Callable[..., OwnBroker], spark: "SparkSession", tmp_path: Path
) -> None:
    own = start_own()
    topic = own.clients.create_topic("clicks")
    own.begin_at(topic, FIRST)
    broker = own.start()
    assert [FIRST + number for number in range(1000)] == broker.produce(topic, ["click"] * 1000)
    group = broker.group("billing")
    broker.commit(group, {(topic, 0): FIRST + 258})
    source = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}

    rows = spark.read.format("logmark").options(**source).load().select("offset").collect()
    assert list(range(FIRST, FIRST + 1000)) == sorted(row.offset for row in rows)

    seen: list[int] = []
    query = (
        spark.readStream.format("logmark")
        .options(**source, **{"group.id": group})
        .load()
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.offset for row in batch.select("offset").collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert list(range(FIRST + 258, FIRST + 1000)) == sorted(seen)
    assert {(topic, 0): FIRST + 1000} == broker.committed(group)
