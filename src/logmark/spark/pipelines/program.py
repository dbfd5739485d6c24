"""Pipelines as a program of their own: what `Pipeline.main()` does under `spark-submit` or plain Python."""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from logmark import properties
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.contexts import read_contexts
from logmark.offsets.user_files import config_file
from logmark.spark.pipelines.home import Home, default_root
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.pipeline_files import own_modules, ship_by_value
from logmark.spark.pipelines.query import Brokers
from logmark.spark.pipelines.runner import Runner
from logmark.spark.pipelines.supervisor import Job
from logmark.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"


def job_of(
    pipeline: Pipeline,
    *,
    home: str | Path | None = None,
    bootstrap_servers: str | None = None,
    context: str | None = None,
    command_config: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Job:
    """The pipeline with its cluster: as given, else as the environment says, else its own, else the usual one."""
    known = read_contexts(config_file())
    if not bootstrap_servers and not context:
        bootstrap_servers, context = os.environ.get("LOGMARK_BOOTSTRAP_SERVERS"), os.environ.get("LOGMARK_CONTEXT")
    if not bootstrap_servers and not context:
        bootstrap_servers = pipeline.bootstrap_servers
        context = None if bootstrap_servers else known.current
    found = known.named(context) if context else None
    servers = bootstrap_servers or (found.bootstrap_servers if found else DEFAULT_BOOTSTRAP_SERVERS)
    command_config = command_config or os.environ.get("LOGMARK_COMMAND_CONFIG")
    own = properties.read(Path(command_config)) if command_config else {}
    return Job(
        pipeline=pipeline,
        brokers=Brokers(bootstrap_servers=servers, properties={**(found.properties if found else {}), **own}),
        home=Home(Path(home) if home is not None else default_root(), pipeline.name),
        file=file,
        context=found.name if found else None,
        options=options or {},
    )


def main(pipelines: Sequence[Pipeline], arguments: Sequence[str] | None = None) -> int:
    """Runs pipelines as the command `logmark pipelines run` does, in the Spark that is there; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        jobs = [
            job_of(
                one,
                home=given.home,
                bootstrap_servers=given.bootstrap_servers,
                context=given.context,
                command_config=given.command_config,
                file=_file(),
            )
            for one in pipelines
        ]
        ship(pipelines)
        spark = _spark(pipelines[0].name)
        with Stops() as stops:
            is_well = Runner(jobs, spark, available_now=given.available_now, say=_say).run(stops=stops)
        spark.stop()
    except UserError as error:
        _say(str(error))
        return error.exit_code
    return 0 if is_well else 1


def ship(pipelines: Sequence[Pipeline]) -> None:
    """Functions of the files that declare these, and of what lies beside them, travel to executors with their code."""
    modules = (sys.modules.get(one.transform.__module__) for one in pipelines)
    files = [module.__file__ for module in modules if module is not None and getattr(module, "__file__", None)]
    ship_by_value(own_modules([file for file in files if file is not None]))


class Stops:
    """Counts the wishes to stop, Ctrl-C and SIGTERM, which end nothing meanwhile."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> int:
        return self._count

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1


def _spark(name: str) -> "SparkSession":
    """The Spark that spark-submit has set up, else one on this machine."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return session(name)
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def _file() -> str | None:
    """The program that is running."""
    return str(Path(sys.argv[0]).absolute()) if sys.argv[0].endswith(".py") else None


def _say(sentence: str) -> None:
    print(escape(sentence), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs the pipeline of this file.")
    parser.add_argument("--available-now", action="store_true", help="read all there is now, then end")
    parser.add_argument("--home", metavar="DIR", help="where pipelines are remembered; or LOGMARK_PIPELINES")
    parser.add_argument("--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="the cluster")
    parser.add_argument("--context", metavar="NAME", help="the cluster, by its name in your settings")
    parser.add_argument("--command-config", metavar="FILE", help="client properties in Kafka's file format")
    return parser
