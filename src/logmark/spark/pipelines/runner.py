"""Runs pipelines in one Spark session until they are stopped, or until all there is now is read."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from logmark.clock import Clock, SystemClock
from logmark.offsets.monitor.prometheus_text import MetricFamily
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.status import RunState
from logmark.spark.pipelines.supervisor import NextStep, Supervisor, has_spark_died, no_next_step
from logmark.spark.progress import QueryBoard, serve_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_EVERY_S = 0.2
_STOP_EVERY_S = 0.02
# A batch that takes longer than this is interrupted, and repeated by the next run.
STOP_PATIENCE_S = 60.0


class PipelineRunner:
    """Several pipelines in one Spark session; each has its own group, its own checkpoint and its own failures."""

    def __init__(
        self,
        jobs: Sequence[Job],
        spark: "SparkSession",
        *,
        available_now: bool = False,
        say: Callable[[str], None] = print,
        next_step: NextStep = no_next_step,
        clock: Clock | None = None,
        takeover: bool = False,
        metrics: tuple[str, int] | None = None,
    ) -> None:
        """Take jobs whose messages `say` shows, and what adds to them what a person may do about an error.

        With `takeover` each takes its group from a query that has it when it starts. While they run, their metrics are
        served for Prometheus at the address `metrics`, if one is given.
        """
        clock = clock or SystemClock()
        self._metrics = metrics
        self._board = QueryBoard()
        self._spark = spark
        self.supervisors = [
            Supervisor(
                job,
                spark,
                available_now=available_now,
                clock=clock,
                random=random.random,
                say=say,
                next_step=next_step,
                takeover=takeover,
                board=self._board,
            )
            for job in jobs
        ]

    def run(
        self,
        *,
        count_stops: Callable[[], int] = lambda: 0,
        watch: Callable[[Sequence[Supervisor]], None] = lambda supervisors: None,
    ) -> bool:
        """Run until nothing is left to run, or until `count_stops` is not 0; return whether no pipeline failed.

        From the second request to stop on, batches are not waited for.
        Raises UserError if nothing can listen on the address for metrics.
        """
        with contextlib.ExitStack() as serving:
            if self._metrics is not None:
                serving.callback(serve_metrics(self._metrics, self.metrics).close)
            return self._run(count_stops, watch)

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of the pipelines and their queries."""
        statuses = [((one.name,), one.status) for one in self.supervisors]
        yield MetricFamily(
            name="logmark_pipeline_running",
            help="1 while the query of a pipeline runs, else 0.",
            labels=("pipeline",),
            series=[(labels, int(status.state is RunState.RUNNING)) for labels, status in statuses],
        )
        yield MetricFamily(
            name="logmark_pipeline_restarts_total",
            help="How often the query of a pipeline was restarted in this run.",
            type="counter",
            labels=("pipeline",),
            series=[(labels, status.restarts) for labels, status in statuses],
        )
        yield from self._board.families()

    def _run(self, count_stops: Callable[[], int], watch: Callable[[Sequence[Supervisor]], None]) -> bool:
        try:
            while not count_stops() and not all(one.status.state.is_over for one in self.supervisors):
                for supervisor in self.supervisors:
                    if not count_stops():
                        supervisor.poll()
                watch(self.supervisors)
                time.sleep(POLL_EVERY_S)
        except Exception as error:
            if not has_spark_died(error, self._spark):
                raise
            for supervisor in self.supervisors:
                supervisor.end_without_spark()
        finally:
            self._stop(count_stops)
            watch(self.supervisors)
        return all(one.status.state is not RunState.FAILED for one in self.supervisors)

    def _stop(self, count_stops: Callable[[], int]) -> None:
        """Stop every query between two batches, unless a batch takes too long or nobody wants to wait."""
        left = list(self.supervisors)
        deadline = time.monotonic() + STOP_PATIENCE_S
        while left:
            is_hurried = count_stops() > 1 or time.monotonic() > deadline
            for supervisor in [one for one in left if is_hurried or one.is_between_batches()]:
                supervisor.stop()
                left.remove(supervisor)
            time.sleep(_STOP_EVERY_S if left else 0)
