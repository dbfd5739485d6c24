"""A version that cannot be built: its error names the batch and the record on which the pipeline's own code failed."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.spark import Pipeline, Table
from logmark.spark.pipelines.runner import PipelineRunner
from tests.harness.brokers import BrokerUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def totals(rows: "DataFrame") -> "DataFrame":
    return rows.selectExpr("100 / int(cast(value as string)) as share").groupBy("share").count()


def test_a_rebuild_that_fails_names_the_batch_and_the_record(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = our_broker.create_topic("prices", config={"retention.ms": "-1"})
    our_broker.produce(topic, ["1", "2", "5", "4"], partition=0)
    pipeline = Pipeline(
        name="totals",
        group=our_broker.group("totals"),
        topics=topic,
        transform=totals,
        sink=Table(tmp_path / "totals", mode="complete"),
        options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "3"},
        bootstrap_servers=our_broker.bootstrap_servers,
    )
    home = tmp_path / "homes"
    pipeline.run(spark, home=home)
    job = pipeline._job(home, None)
    shutil.rmtree(job.home.checkpoint(1))
    our_broker.produce(topic, ["0"], partition=0)
    said: list[str] = []

    assert not PipelineRunner([pipeline._job(home, None)], spark, available_now=True, say=said.append).run()

    assert any("is missing; rebuilding it as version 2" in line for line in said)
    assert "DIVIDE_BY_ZERO" in said[-1]
    assert "It failed in batch 1 of the new version. It fails on the record " in said[-1]
    assert f"{topic}-0 offset 4." in said[-1]
