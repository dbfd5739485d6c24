"""A pipeline that a command finds by name: with its file, its cluster, and a Spark that starts when it is needed."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, Origin
from logmark.cli.pipelines.homes import complete_pipeline, find_homes, home_root, recorded_cluster
from logmark.cli.pipelines.spark_session import start_spark
from logmark.cli.tables import say
from logmark.errors import UserError
from logmark.spark.pipelines.declaration import PipelineDeclaration
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.pipeline_files import import_folders, load_with_spark, own_modules, ship_by_value
from logmark.spark.pipelines.query import Brokers
from logmark.spark.sessions import check_java, check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.", autocompletion=complete_pipeline)]
File = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The file that declares it; the one that it was run from unless given.", show_default=False
    ),
]


@dataclass(frozen=True)
class SparkSettings:
    """Which Spark is started, if one is needed."""

    master: str = "local[*]"
    conf: Sequence[str] = field(default_factory=tuple)
    package: Sequence[Path] = field(default_factory=tuple)


@dataclass(frozen=True)
class KnownPipeline:
    """A pipeline with all that a command about it needs; Spark starts when `spark` is first called."""

    cluster: Cluster
    job: Job
    spark: "Callable[[], SparkSession]"


def choose_brokers(cluster: Cluster, pipeline: PipelineDeclaration) -> tuple[Brokers, str | None]:
    """Return the cluster of a pipeline and its context: the one of options or environment, else of its file."""
    if cluster.said_by in (Origin.SETTINGS, Origin.NOBODY) and pipeline.bootstrap_servers is not None:
        # Properties of a context are those of another cluster.
        own = cluster.properties if cluster.context is None else {}
        return Brokers(bootstrap_servers=pipeline.bootstrap_servers, properties=own), None
    return Brokers(bootstrap_servers=cluster.bootstrap_servers, properties=cluster.properties), cluster.context


def make_job(cluster: Cluster, pipeline: PipelineDeclaration, file: Path | None, root: Path) -> Job:
    """Return a pipeline with its cluster and its home."""
    brokers, context = choose_brokers(cluster, pipeline)
    home = Home(root, pipeline.name)
    return Job(pipeline=pipeline, brokers=brokers, home=home, file=None if file is None else str(file), context=context)


@contextlib.contextmanager
def open_pipeline(
    cluster: Cluster, name: str, *, file: Path | None, home: Path | None, settings: SparkSettings | None = None
) -> Iterator[KnownPipeline]:
    """Load the pipeline of this name as its file declares it now.

    Raises UserError if there is no such pipeline.
    """
    root = home_root(home)
    if file is None:
        find_homes(root, [name])
    record = Home(root, name).record()
    cluster = recorded_cluster(cluster, record)
    if file is None:
        if record.file is None:
            raise UserError(
                f"It is unknown which file declares the pipeline {name}. Nothing was changed. Name it with --file.",
                exit_code=2,
            )
        file = Path(record.file)
    with contextlib.ExitStack() as stack:
        spark = functools.cache(
            lambda: stack.enter_context(_start_spark(name, file, root, settings or SparkSettings()))
        )  # fmt: skip
        [loaded] = load_with_spark(spark, [file], only=[name])
        ship_by_value(own_modules([file]))
        yield KnownPipeline(cluster=cluster, job=make_job(cluster, loaded.pipeline, loaded.file, root), spark=spark)


@contextlib.contextmanager
def _start_spark(name: str, file: Path, root: Path, settings: SparkSettings) -> "Iterator[SparkSession]":
    check_spark()
    check_java()
    log_file = root / "spark.log"
    say(f"Starting Spark ({settings.master}); its own log is {log_file}.")
    with start_spark(
        f"replay of {name}",
        master=settings.master,
        conf=settings.conf,
        package=settings.package,
        paths=import_folders([file]),
        log_file=log_file,
    ) as spark:
        yield spark
