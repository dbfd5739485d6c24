"""Runs pipelines in one Spark session until they are told to stop, or until all there is now is read."""

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from logmark.clock import Clock, SystemClock
from logmark.spark.pipelines.status import State
from logmark.spark.pipelines.supervisor import Job, Worker, is_spark_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY_S = 0.2
_STOP_EVERY_S = 0.02
# A batch that takes longer than this is interrupted, and made again by the next run.
STOP_PATIENCE_S = 60.0


class Runner:
    """Several pipelines in one Spark session; each has its own group, its own checkpoint and its own failures."""

    def __init__(
        self,
        jobs: Sequence[Job],
        spark: "SparkSession",
        *,
        available_now: bool = False,
        say: Callable[[str], None] = print,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._spark = spark
        self.workers = [
            Worker(job, spark, available_now=available_now, clock=clock, random=random.random, say=say) for job in jobs
        ]

    def run(
        self,
        *,
        stops: Callable[[], int] = lambda: 0,
        watch: Callable[[Sequence[Worker]], None] = lambda workers: None,
    ) -> bool:
        """Runs until nothing is left to run, or until `stops` tells of a wish to stop; True if nothing failed.

        A second wish does not wait for batches to be finished.
        """
        try:
            while not stops() and not all(worker.status.state.is_over for worker in self.workers):
                for worker in self.workers:
                    if not stops():
                        worker.look()
                watch(self.workers)
                time.sleep(LOOK_EVERY_S)
        except Exception as error:
            if not is_spark_gone(error, self._spark):
                raise
            for worker in self.workers:
                worker.lose_spark()
        finally:
            self._stop(stops)
            watch(self.workers)
        return all(worker.status.state is not State.FAILED for worker in self.workers)

    def _stop(self, stops: Callable[[], int]) -> None:
        """Every query has ended: between two batches, unless one takes too long or nobody wants to wait."""
        left = list(self.workers)
        deadline = time.monotonic() + STOP_PATIENCE_S
        while left:
            is_hurried = stops() > 1 or time.monotonic() > deadline
            for worker in [one for one in left if is_hurried or one.is_between_batches()]:
                worker.stop()
                left.remove(worker)
            time.sleep(_STOP_EVERY_S if left else 0)
