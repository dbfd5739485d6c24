"""kill -9 of the process that replays, at each step, while the pipeline runs here and a producer writes."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayRunner
from logmark.spark.pipelines.replay.state import load_state
from tests.harness.brokers import BrokerUnderTest
from tests.spark.pipelines.number_pipelines import BackgroundProducer, NumberPipelines, RunningPipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
STEPS = tuple(range(1, 10))
HANDING_OVER = (6, 7)


def killed(kind: str, job: Job, numbers: NumberPipelines, step: int) -> None:
    """A replay has killed itself at the step."""
    given = [kind, job.pipeline.name, numbers.servers, numbers.topic, numbers.alerts, str(numbers.folder), str(step)]
    command = [sys.executable, "-m", "tests.spark.pipelines.replay_driver", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert -9 == done.returncode, done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["counts", "fraud"])
def test_a_replay_that_is_killed_is_resumed_and_nothing_is_lost_or_doubled(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path, kind: str
) -> None:
    numbers = NumberPipelines(broker, tmp_path)
    job = numbers.job(kind)

    def is_right(label: str, *divisors: int) -> bool:
        if kind == "counts":
            return numbers.counted() == ({label}, 2 * numbers.sent)
        return numbers.alerted() == numbers.due(*divisors)

    numbers.send(100)
    with RunningPipelines(spark, job):
        numbers.wait(lambda: is_right("old", 3), "the old code has read it all")
    for number, step in enumerate(STEPS, 2):
        with RunningPipelines(spark, job) as running:
            numbers.wait(lambda: "running" in running.states, "the pipeline runs")
            with BackgroundProducer(numbers):
                numbers.label, numbers.divisors = "new", [2, 3]
                killed(kind, job, numbers, step)
            if step in HANDING_OVER:
                numbers.wait(lambda: running.states == ["failed"], "the old version stays away")
            numbers.send(10)
            with job.home.replaying(), job.connect() as client:
                state = load_state(job.home)
                if state is not None:
                    ReplayRunner(
                        job, lambda: spark, client, state, callbacks=ReplayCallbacks(say=lambda text: None)
                    ).run()
        with RunningPipelines(spark, job):
            numbers.send(10)
            numbers.wait(lambda: is_right("new", 2, 3), f"all is right after a kill at step {step}")
        assert (number, None) == (job.home.record().live, job.home.record().building)
