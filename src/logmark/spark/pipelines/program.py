"""The program that `Pipeline.main()` runs, under `spark-submit` or plain Python."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.monitor.metrics_server import parse_listen
from logmark.spark.pipelines.declaration import PipelineDeclaration
from logmark.spark.pipelines.job import make_job
from logmark.spark.pipelines.pipeline_files import ship_pipelines
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_program(pipelines: Sequence[PipelineDeclaration], arguments: Sequence[str] | None = None) -> int:
    """Run pipelines as the command `logmark pipelines run` does, in the Spark that is there; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        jobs = [
            make_job(
                one,
                home=given.home,
                bootstrap_servers=given.bootstrap_servers,
                context=given.context,
                command_config=given.command_config,
                file=_program_file(),
            )
            for one in pipelines
        ]
        ship_pipelines(pipelines)
        spark = _find_spark(pipelines[0].name)
        with StopSignals() as stops:
            runner = PipelineRunner(
                jobs, spark, available_now=given.available_now, say=_say, metrics=parse_listen(given.metrics)
            )
            is_well = runner.run(count_stops=stops.count)
        spark.stop()
    except UserError as error:
        _say(str(error))
        return error.exit_code
    return 0 if is_well else 1


class StopSignals:
    """Counts the requests to stop, Ctrl-C and SIGTERM, which end nothing by themselves meanwhile."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def count(self) -> int:
        """Return how many requests came."""
        return self._count

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1


def _find_spark(name: str) -> "SparkSession":
    """Return the Spark that spark-submit has set up, else a local one."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return session(name, progress=False)  # the run reports the progress of its pipelines itself
    # Only here: a PySpark that is missing or too old raises an error of ours in `session`.
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def _program_file() -> str | None:
    """Return the file of the running program."""
    return str(Path(sys.argv[0]).absolute()) if sys.argv[0].endswith(".py") else None


def _say(message: str) -> None:
    print(escape(message), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the pipeline of this file.")
    parser.add_argument("--available-now", action="store_true", help="read all there is now, then stop")
    parser.add_argument("--metrics", metavar="HOST:PORT", default="none", help="serve metrics for Prometheus here")
    parser.add_argument("--home", metavar="DIR", help="the folder with the homes of pipelines; or LOGMARK_PIPELINES")
    parser.add_argument("--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="the cluster")
    parser.add_argument("--context", metavar="NAME", help="the cluster, by its name in your settings")
    parser.add_argument("--command-config", metavar="FILE", help="client properties in Kafka's file format")
    return parser
