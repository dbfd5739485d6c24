"""Pipelines replayed in mid-stream, while they run and a producer writes, on our broker and on Apache Kafka."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.offsets.reset.targets import ToEarliest
from logmark.spark.pipelines.replay.build import connect
from logmark.spark.pipelines.replay.plan import plan_version
from logmark.spark.pipelines.replay.runner import Choices, Outcome, Replay, Telling, begin
from logmark.spark.pipelines.replay.state import Kind
from logmark.spark.pipelines.supervisor import Job
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.number_pipelines import BOTH, Numbers, Running, Watching, Writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def replay(job: Job, spark: "SparkSession") -> Outcome:
    """Builds a version from the beginning, and swaps it in."""
    with job.home.replaying(), connect(job.brokers) as client:
        plan = plan_version(job, client, ToEarliest(), kind=Kind.SWAP, is_stateful=True)
        work = begin(job, client, plan, Choices())
        return Replay(job, lambda: spark, client, work, telling=Telling(say=lambda text: None)).carry_out()


@BOTH
def test_a_replay_in_mid_stream_loses_nothing_and_counts_and_sends_nothing_twice(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    numbers = Numbers(broker, tmp_path)
    counts, fraud = numbers.job("counts"), numbers.job("fraud")
    numbers.send(150)
    with Running(spark, counts, fraud) as running:
        numbers.wait(lambda: numbers.counted() == ({"old"}, 300), "the first numbers are counted")
        numbers.wait(lambda: numbers.alerted() == numbers.due(3), "the first alerts are sent")
        numbers.label, numbers.divisors = "new", [2, 3]
        with Writing(numbers), Watching(numbers) as watching:
            assert 2 == replay(counts, spark).number
            outcome = replay(fraud, spark)
        numbers.send(10)
        numbers.wait(lambda: numbers.counted() == ({"new"}, 2 * numbers.sent), "the new version counts on")
        numbers.wait(lambda: numbers.alerted() == numbers.due(2, 3), "the new version sends on")
        assert ["running", "running"] == running.states, running.told

    labels = [names for names, _ in watching.seen]
    first_new = labels.index({"new"})
    assert [{"old"}] * first_new + [{"new"}] * (len(labels) - first_new) == labels, "a reader saw a mix"
    assert outcome.released is not None and outcome.released.sent > 0 and outcome.released.known > 0
    assert (2, None) == (counts.home.record().live, counts.home.record().building)
