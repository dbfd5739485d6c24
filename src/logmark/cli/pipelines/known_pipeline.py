"""A pipeline that is known by its name: with its file, its cluster, and a Spark that starts when it is asked for."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster
from logmark.cli.pipelines.app import cluster_of, complete_pipeline, job_of, remembered, root_of
from logmark.cli.tables import say
from logmark.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logmark.client.client import Client
    from logmark.spark.pipelines.supervisor import Job

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
class Known:
    """A pipeline with all that a command about it needs; Spark starts when it is first asked for."""

    cluster: Cluster
    job: "Job"
    spark: "Callable[[], SparkSession]"

    def connect(self) -> "Client":
        """A client of the pipeline's cluster."""
        from logmark.spark.pipelines.replay.build import connect

        return connect(self.job.brokers)


@contextlib.contextmanager
def known(
    cluster: Cluster, name: str, *, file: Path | None, home: Path | None, settings: SparkSettings | None = None
) -> Iterator[Known]:
    """The pipeline of this name, as its file declares it now; raises a sentence if there is none."""
    from logmark.spark.pipelines.home import Home
    from logmark.spark.pipelines.pipeline_files import load_with, own_modules, ship_by_value

    root = root_of(home)
    if file is None:
        remembered(root, [name])
    record = Home(root, name).record()
    cluster = cluster_of(cluster, record)
    if file is None:
        if record.file is None:
            raise UserError(
                f"It is not known which file declares the pipeline {name}. Nothing was changed. Name it with --file.",
                exit_code=2,
            )
        file = Path(record.file)
    with contextlib.ExitStack() as stack:
        spark = functools.cache(lambda: stack.enter_context(_started(name, file, root, settings or SparkSettings())))
        [loaded] = load_with(spark, [file], only=[name])
        ship_by_value(own_modules([file]))
        yield Known(cluster=cluster, job=job_of(cluster, loaded.pipeline, loaded.file, root), spark=spark)


@contextlib.contextmanager
def _started(name: str, file: Path, root: Path, settings: SparkSettings) -> "Iterator[SparkSession]":
    from logmark.cli.pipelines.spark_session import started
    from logmark.spark.pipelines.pipeline_files import folders_of
    from logmark.spark.sessions import check_java, check_spark

    check_spark()
    check_java()
    log_file = root / "spark.log"
    say(f"Starting Spark ({settings.master}); its own log is {log_file}.")
    with started(
        f"replay of {name}",
        master=settings.master,
        conf=settings.conf,
        package=settings.package,
        paths=folders_of([file]),
        log_file=log_file,
    ) as spark:
        yield spark
