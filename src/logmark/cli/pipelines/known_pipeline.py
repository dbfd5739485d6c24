"""A pipeline that a command finds by name: with its file, its cluster, and a Spark that starts when it is needed."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster
from logmark.cli.pipelines.app import complete_pipeline, find_homes, home_root, make_job, recorded_cluster
from logmark.cli.pipelines.remedies import add_remedy
from logmark.cli.tables import say
from logmark.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logmark.spark.pipelines.job import Job

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
    job: "Job"
    spark: "Callable[[], SparkSession]"


@contextlib.contextmanager
def open_pipeline(
    cluster: Cluster, name: str, *, file: Path | None, home: Path | None, settings: SparkSettings | None = None
) -> Iterator[KnownPipeline]:
    """Load the pipeline of this name as its file declares it now; errors raised meanwhile get their remedies.

    Raises UserError if there is no such pipeline.
    """
    # Only here: `logmark --help` and other commands start without the modules of pipelines.
    from logmark.spark.pipelines.home import Home
    from logmark.spark.pipelines.pipeline_files import load_with_spark, own_modules, ship_by_value

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
        try:
            [loaded] = load_with_spark(spark, [file], only=[name])
            ship_by_value(own_modules([file]))
            job = make_job(cluster, loaded.pipeline, loaded.file, root)
            yield KnownPipeline(cluster=cluster, job=job, spark=spark)
        except UserError as error:
            raise add_remedy(error) from None


@contextlib.contextmanager
def _start_spark(name: str, file: Path, root: Path, settings: SparkSettings) -> "Iterator[SparkSession]":
    # Only here: most commands about pipelines need no Spark.
    from logmark.cli.pipelines.spark_session import start_spark
    from logmark.spark.pipelines.pipeline_files import import_folders
    from logmark.spark.sessions import check_java, check_spark

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
