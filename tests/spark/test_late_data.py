"""Late data, live and read again: the numbers of docs/late-data.md, run by a real Spark."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.spark import Pipeline, Table, read_table
from logmark.spark.checkpoint import has_watermark
from logmark.spark.pipelines.replay.plan import VersionPlan
from logmark.spark.pipelines.replay.session import ReplayRequest, open_replay
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.progress_listener import report_progress
from tests.harness.brokers import BrokerUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "late-data.md"
TIMES = re.compile(r"^\| (\d) \| (12:\d\d:\d\d) \|", re.MULTILINE)
RUNS = re.compile(r"^\| `(\d+)` .*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def windows(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import window

    counted = rows.withWatermark("timestamp", "1 minute").groupBy(window("timestamp", "1 minute")).count()
    return counted.selectExpr("window.start as minute", "count")


def producing(broker: BrokerUnderTest, text: str) -> str:
    """A topic with the records of the document."""
    topic = broker.create_topic("clicks", config={"retention.ms": "-1"})
    for offset, time in TIMES.findall(text):
        moment = datetime.fromisoformat(f"2026-11-16T{time}").replace(tzinfo=UTC)
        broker.produce(topic, [offset], timestamp_ms=round(moment.timestamp() * 1000))
    return topic


def counting(broker: BrokerUnderTest, topic: str, folder: Path, name: str, options: Mapping[str, str]) -> Pipeline:
    return Pipeline(
        name=name,
        group=broker.group(name),
        topics=topic,
        transform=windows,
        sink=Table(folder / name, mode="upsert", keys="minute"),
        options={"auto.offset.reset": "earliest", **options},
        bootstrap_servers=broker.bootstrap_servers,
    )


def test_the_numbers_of_the_document_are_those_of_a_run(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    text = DOCUMENT.read_text()
    topic = producing(our_broker, text)
    runs = RUNS.findall(text)
    assert ["1", "2", "8"] == [size for size, *_ in runs]

    for size, *expected in runs:
        pipeline = counting(our_broker, topic, tmp_path, f"by{size}", {"maxOffsetsPerTrigger": size})
        said: list[str] = []
        runner = PipelineRunner([pipeline._job(tmp_path / "homes", None)], spark, available_now=True, say=said.append)
        assert runner.run()
        [status] = [one.status for one in runner.supervisors]
        counted = sum(read_table(tmp_path / f"by{size}").column("count").to_pylist())

        assert [8 // int(size), counted, 8 - counted, status.dropped_rows] == [int(number) for number in expected]
        told = [line for line in said if "all is read" in line]
        assert (f"; at least {status.dropped_rows} late row" in told[0]) == (status.dropped_rows > 0)


def test_a_replay_says_that_it_may_count_what_was_late(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = producing(our_broker, DOCUMENT.read_text())
    pipeline = counting(our_broker, topic, tmp_path, "late", {})
    home = tmp_path / "homes"
    listener = report_progress(spark, metrics="127.0.0.1:0")
    pipeline.run(spark, home=home, options={"maxOffsetsPerTrigger": "2"})
    job = pipeline._job(home, None)

    assert has_watermark(job.home.checkpoint(1))
    with open_replay(job, lambda: spark) as session:
        plan = session.plan(ReplayRequest())
    assert isinstance(plan, VersionPlan)
    assert any("may count rows that were late the first time" in note for note in plan.notes)
    assert 6 == sum(read_table(tmp_path / "late").column("count").to_pylist())
    pipeline.replay(spark, home=home, say=lambda line: None)
    assert 8 == sum(read_table(tmp_path / "late").column("count").to_pylist())
    assert listener is report_progress(spark), "a session has one listener"
