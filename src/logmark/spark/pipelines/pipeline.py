"""A pipeline and what can be done with it: run, start, replay, roll back."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.spark.errors import find_message
from logmark.spark.pipelines.declaration import PipelineDeclaration
from logmark.spark.pipelines.job import Job, make_job
from logmark.spark.pipelines.live_query import run_live_query, start_live_query
from logmark.spark.pipelines.pipeline_files import ship_pipelines
from logmark.spark.pipelines.program import run_program
from logmark.spark.pipelines.replay.runner import ReplayCallbacks, ReplayOptions, ReplayResult
from logmark.spark.pipelines.replay.session import ReplayRequest, open_replay
from logmark.spark.pipelines.versions import PipelineVersion, drop_version, list_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Pipeline(PipelineDeclaration):
    __doc__ = PipelineDeclaration.__doc__
    __slots__ = ()

    def start(
        self,
        spark: "SparkSession",
        *,
        home: str | Path | None = None,
        bootstrap_servers: str | None = None,
        available_now: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> "StreamingQuery":
        """Start the query of the live version and return it; it runs until `query.stop()`.

        `home` is the folder with the homes of pipelines. `options` win over those of the pipeline. With `available_now`
        the query ends when all there is now is read.
        """
        ship_pipelines([self])
        job = make_job(self, home=home, bootstrap_servers=bootstrap_servers, options=options)
        return start_live_query(job, spark, available_now=available_now)

    def run(
        self,
        spark: "SparkSession",
        *,
        home: str | Path | None = None,
        bootstrap_servers: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Read all there is now, commit the group's offsets and return; raises whatever stops the query."""
        # Only here: pipelines are declared and listed without Spark.
        from pyspark.errors import StreamingQueryException

        ship_pipelines([self])
        job = make_job(self, home=home, bootstrap_servers=bootstrap_servers, options=options)
        try:
            run_live_query(job, spark)
        except StreamingQueryException as error:
            message = find_message(str(error))
            if message is None:
                raise
            raise UserError(message) from None

    def replay(
        self,
        spark: "SparkSession",
        request: ReplayRequest | None = None,
        *,
        resume: bool = False,
        home: str | Path | None = None,
        bootstrap_servers: str | None = None,
        say: Callable[[str], None] = print,
    ) -> ReplayResult:
        """Read records again, and count and send nothing twice; return what was done.

        `request` says where to start and how. With `resume` an interrupted replay is finished instead.
        Raises UserError if the pipeline cannot be replayed like that, UnfinishedReplay if another replay is unfinished.
        """
        request = request or ReplayRequest()
        callbacks = ReplayCallbacks(say=say)
        ship_pipelines([self])
        with open_replay(self._job(home, bootstrap_servers), lambda: spark) as session:
            if resume:
                return session.resume(callbacks, missing_id=request.options.missing_id, wait_s=request.wait_s)
            return session.execute(session.plan(request), request, callbacks)

    def versions(
        self, *, home: str | Path | None = None, bootstrap_servers: str | None = None
    ) -> list[PipelineVersion]:  # fmt: skip
        """Return the versions of which anything is left, in order: the live one, and those kept or being built."""
        return list_versions(self._job(home, bootstrap_servers))

    def rollback(
        self,
        spark: "SparkSession",
        version: int | None = None,
        *,
        options: ReplayOptions | None = None,
        home: str | Path | None = None,
        bootstrap_servers: str | None = None,
        say: Callable[[str], None] = print,
    ) -> ReplayResult:
        """Make a kept version live again, the one before the present one unless given; the present one is kept.

        Raises UserError if that version was not kept.
        """
        ship_pipelines([self])
        with open_replay(self._job(home, bootstrap_servers), lambda: spark) as session:
            number = session.choose_rollback(version)
            return session.roll_back(number, options or ReplayOptions(), ReplayCallbacks(say=say))

    def drop(
        self, version: int, *, home: str | Path | None = None, bootstrap_servers: str | None = None
    ) -> None:  # fmt: skip
        """Remove a kept version: its checkpoint, its rows beside the table, its side topic and its group.

        Raises UserError if it is live or being built.
        """
        job = self._job(home, bootstrap_servers)
        with job.home.replaying(), job.connect() as client:
            drop_version(job, client, version)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run this pipeline as a program of its own, such as one that spark-submit starts, and end the process."""
        raise SystemExit(run_program([self], arguments))

    def _job(self, home: str | Path | None, bootstrap_servers: str | None) -> Job:
        return make_job(self, home=home, bootstrap_servers=bootstrap_servers)
