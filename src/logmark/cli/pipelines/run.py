"""`logmark pipelines run`: runs pipelines in one Spark session, until Ctrl-C or until all there is now is read."""

import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import CONNECT_TIMEOUT_S, PATIENCE_S, TIMEOUT_S, Cluster, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.pipelines import topics
from logmark.cli.pipelines.homes import HomeFolder, home_root
from logmark.cli.pipelines.known_pipeline import make_job
from logmark.cli.pipelines.run_display import show_bars, show_board, show_lines
from logmark.cli.pipelines.spark_session import Conf, Master, Package, start_spark
from logmark.cli.remedies import describe_pipeline_error, next_step
from logmark.cli.tables import print_json, say
from logmark.client.client import Client
from logmark.errors import LogmarkError, UserError
from logmark.offsets.monitor.metrics_server import parse_listen
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline_files import import_folders, load_with_spark, own_modules, ship_by_value
from logmark.spark.pipelines.program import StopSignals
from logmark.spark.pipelines.query import read_options
from logmark.spark.pipelines.replay.state import check_live_may_run
from logmark.spark.pipelines.runner import PipelineRunner
from logmark.spark.pipelines.settings import check_names
from logmark.spark.pipelines.views import view_run
from logmark.spark.sessions import check_java, check_spark
from logmark.spark.source.cluster import find_partitions
from logmark.spark.source.options import SourceOptions, parse_source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Python files that declare pipelines.", show_default=False),
]


@on_cluster
def run(
    cluster: Cluster,
    files: Files,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this pipeline; may be repeated.", show_default=False),
    ] = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Read all there is now, then end.")] = False,
    create_topics: Annotated[
        bool,
        typer.Option("--create-topics", help="Create the topics that pipelines write to, with the cluster's settings."),
    ] = False,
    takeover: Annotated[
        bool,
        typer.Option("--takeover", help="Take a group from another query that has it: that one ends, ours resumes."),
    ] = False,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here; none for nobody.")
    ] = "none",
    master: Master = "local[*]",
    conf: Conf = None,
    package: Package = None,
    home: HomeFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run the pipelines of these files as their consumer groups; a query that fails is restarted."""
    cluster.refuse_writing()
    check_spark()
    check_java()
    listen = parse_listen(metrics)
    root = home_root(home)
    log_file = root / "spark.log"
    with contextlib.ExitStack() as stack:

        @functools.cache
        def spark() -> "SparkSession":
            say(f"Starting Spark ({master}); its own log is {log_file}.")
            name = ", ".join(file.stem for file in files)
            return stack.enter_context(
                start_spark(
                    name,
                    master=master,
                    conf=conf or (),
                    package=package or (),
                    paths=import_folders(files),
                    log_file=log_file,
                )
            )

        loaded = load_with_spark(spark, files, only=only or ())
        jobs = [make_job(cluster, one.pipeline, one.file, root) for one in loaded]
        ship_by_value(own_modules(files))
        clients = connect_clusters(jobs, stack)
        if create_topics:
            topics.create_topics(jobs, clients)
        check_pipelines(jobs, clients)
        stops = stack.enter_context(StopSignals())
        spark()
        display = show_bars if available_now else show_board if sys.stderr.isatty() else show_lines
        watch, write = stack.enter_context(display(clients))
        runner = PipelineRunner(
            jobs, spark(), available_now=available_now, say=write, next_step=next_step, takeover=takeover,
            metrics=listen,
        )
        is_well = runner.run(count_stops=stops.count, watch=watch)
    if output is OutputFormat.JSON:
        print_json([view_run(one) for one in runner.supervisors])
    if not is_well:
        raise typer.Exit(1)


def connect_clusters(jobs: Sequence[Job], stack: contextlib.ExitStack) -> dict[str, Client]:
    """Return a client for each cluster that can be reached, by its address; raises UserError if none can."""
    clients: dict[str, Client] = {}
    failures: list[str] = []
    for job in jobs:
        try:
            if job.brokers.bootstrap_servers not in clients:
                clients[job.brokers.bootstrap_servers] = stack.enter_context(_client(job))
        except LogmarkError as error:
            failures.append(describe_pipeline_error(error, job))
    if not clients:
        raise _join_failures(failures)
    return clients


def _join_failures(failures: Sequence[str]) -> UserError:
    first, *others = dict.fromkeys(failures)
    return UserError(first, lines=[f"logmark: {one}" for one in others])


def check_pipelines(jobs: Sequence[Job], clients: dict[str, Client]) -> None:
    """Raise UserError, before Spark is started, if none of the pipelines could run."""
    failures = [failure for failure in (_find_failure(job, clients) for job in jobs) if failure is not None]
    if len(failures) == len(jobs):
        raise _join_failures(failures)


def _find_failure(job: Job, clients: dict[str, Client]) -> str | None:
    """Return why the pipeline cannot run, None if no reason is known."""
    try:
        if job.home.is_live():
            with job.home.live():
                pass  # raises with the process that holds the lock
        elif not job.home.is_replaying() and not job.home.has_lost_checkpoint():
            check_live_may_run(job.home)
        check_names(job.pipeline.conf, job.name)
        options = _options(job)
        if job.brokers.bootstrap_servers in clients:
            find_partitions(clients[job.brokers.bootstrap_servers], options)
    except LogmarkError as error:
        return describe_pipeline_error(error, job)
    return None


def _options(job: Job) -> SourceOptions:
    version = job.home.live_version(job.pipeline)
    return parse_source_options(read_options(job.pipeline, version, job.brokers, job.options), is_stream=True)


def _client(job: Job) -> Client:
    """Return a client of the pipeline's cluster, with the properties that its own options add."""
    return Client(
        job.brokers.bootstrap_servers,
        config=_options(job).client,
        timeout_s=TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        patience_s=PATIENCE_S,
    )
