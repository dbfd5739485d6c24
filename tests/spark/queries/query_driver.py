"""Queries that run as pipelines, in this process or in one of their own, which a test kills.

As a program it runs queries on all there is, and ends: its arguments are servers, topic, folder and names of queries.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark import session
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.runner import PipelineRunner
from tests.harness.node import wait_until
from tests.harness.sparks import FEW, quick_java
from tests.spark.queries import guide_queries, nexmark_queries, state_queries
from tests.spark.queries.query_case import QueryCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = (
    *guide_queries.STATELESS,
    *guide_queries.AGGREGATIONS,
    *guide_queries.DUPLICATES,
    *guide_queries.JOINS,
    *state_queries.STATE,
)
NEXMARK = nexmark_queries.ACCEPTED
BY_NAME = {one.name: one for one in (*GUIDE, *NEXMARK)}
DEADLINE_S = 600


class RunningQueries:
    """Some queries on one topic, with a folder for their tables and homes."""

    def __init__(self, servers: str, topic: str, folder: Path, cases: Sequence[QueryCase]) -> None:
        self.servers = servers
        self.topic = topic
        self.folder = folder
        self.cases = cases

    def job(self, case: QueryCase) -> Job:
        """Return the query as a job of the pipelines' runner."""
        pipeline = case.pipeline(self.folder / "tables", [self.topic], group=f"{self.topic}.{case.name}")
        return Job(
            pipeline=pipeline,
            brokers=Brokers(bootstrap_servers=self.servers),
            home=Home(self.folder / "home", pipeline.name),
        )

    def table(self, case: QueryCase) -> Path:
        """Return where a query's rows are."""
        return self.folder / "tables" / case.name

    def run(self, spark: "SparkSession") -> list[str]:
        """Run all of them on all there is, and return what they said; a query that fails is a failure here."""
        said: list[str] = []
        runner = PipelineRunner([self.job(one) for one in self.cases], spark, available_now=True, say=said.append)
        assert runner.run(), "\n".join(said)
        return said

    def start_process(self) -> "subprocess.Popen[bytes]":
        """Start a process that runs all of them on all there is."""
        names = [one.name for one in self.cases]
        command = [sys.executable, "-m", "tests.spark.queries.query_driver", self.servers, self.topic, str(self.folder)]
        return subprocess.Popen([*command, *names], start_new_session=True)

    def run_in_process(self) -> None:
        """Run all of them in a process of its own."""
        assert 0 == self.start_process().wait(DEADLINE_S)

    def kill_in_the_middle(self) -> int:
        """Start a process and kill it, with all that it has started, once a third of the tables have new rows."""
        before = self._commits()
        process = self.start_process()

        def is_in_the_middle() -> bool:
            assert process.poll() is None, "the process ended before it was killed"
            return self._changed(before) * 3 >= len(self.cases)

        try:
            wait_until(is_in_the_middle, "a third of the tables have new rows", deadline_s=DEADLINE_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return self._changed(before)

    def lose_last_commits(self) -> int:
        """Leave the checkpoints as a driver does that dies between the table's commit and Spark's; count them."""
        lost = 0
        for case in self.cases:
            commits = [path for path in self._checkpoint(case).glob("commits/[0-9]*") if path.name.isdigit()]
            if commits:
                max(commits, key=lambda path: int(path.name)).unlink()
                lost += 1
        return lost

    def _checkpoint(self, case: QueryCase) -> Path:
        job = self.job(case)
        return job.home.live_version(job.pipeline).checkpoint

    def _commits(self) -> dict[str, int]:
        return {one.name: len(list(self.table(one).glob("_delta_log/*.json"))) for one in self.cases}

    def _changed(self, before: dict[str, int]) -> int:
        return sum(count > before[name] for name, count in self._commits().items())


def spark_of_queries() -> "SparkSession":
    """Return a Spark with two threads, two partitions of state, and nothing that only long runs need."""
    return session("queries", master="local[2]", memory="2g", config=quick_java() | FEW)


if __name__ == "__main__":
    servers, topic, folder, *names = sys.argv[1:]
    RunningQueries(servers, topic, Path(folder), [BY_NAME[name] for name in names]).run(spark_of_queries())
