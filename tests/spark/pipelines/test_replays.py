"""Pipelines replayed in mid-stream, while they run and a producer writes, on our broker and on Apache Kafka."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.offsets.reset.targets import ToEarliest
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay.plan import plan_version
from logmark.spark.pipelines.replay.runner import (
    ReplayCallbacks,
    ReplayOptions,
    ReplayResult,
    ReplayRunner,
    save_planned_replay,
)
from logmark.spark.pipelines.replay.state import ReplayKind
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.number_pipelines import (
    BOTH,
    BackgroundProducer,
    NumberPipelines,
    RunningPipelines,
    TableWatcher,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def replay(job: Job, spark: "SparkSession") -> ReplayResult:
    """Builds a version from the beginning, and swaps it in."""
    with job.home.replaying(), job.connect() as client:
        plan = plan_version(job, client, ToEarliest(), kind=ReplayKind.SWAP, is_stateful=True)
        state = save_planned_replay(job, client, plan, ReplayOptions())
        return ReplayRunner(job, lambda: spark, client, state, callbacks=ReplayCallbacks(say=lambda text: None)).run()


@BOTH
def test_a_replay_in_mid_stream_loses_nothing_and_counts_and_sends_nothing_twice(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    numbers = NumberPipelines(broker, tmp_path)
    counts, fraud = numbers.job("counts"), numbers.job("fraud")
    numbers.send(150)
    with RunningPipelines(spark, counts, fraud) as running:
        numbers.wait(lambda: numbers.counted() == ({"old"}, 300), "the first numbers are counted")
        numbers.wait(lambda: numbers.alerted() == numbers.due(3), "the first alerts are sent")
        numbers.label, numbers.divisors = "new", [2, 3]
        with BackgroundProducer(numbers), TableWatcher(numbers) as watching:
            assert 2 == replay(counts, spark).version
            result = replay(fraud, spark)
        numbers.send(10)
        numbers.wait(lambda: numbers.counted() == ({"new"}, 2 * numbers.sent), "the new version counts on")
        numbers.wait(lambda: numbers.alerted() == numbers.due(2, 3), "the new version sends on")
        assert ["running", "running"] == running.states, running.told

    labels = [names for names, _ in watching.seen]
    first_new = labels.index({"new"})
    assert [{"old"}] * first_new + [{"new"}] * (len(labels) - first_new) == labels, "a reader saw a mix"
    assert result.publication is not None and result.publication.sent > 0 and result.publication.known > 0
    assert (2, None) == (counts.home.record().live, counts.home.record().building)
