"""The command group `logmark pipelines`, its shared options, and how commands find homes and clusters."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, Origin, chosen_cluster

if TYPE_CHECKING:
    from logmark.spark.pipelines.declaration import PipelineDeclaration
    from logmark.spark.pipelines.home import Home, PipelineRecord
    from logmark.spark.pipelines.job import Job
    from logmark.spark.pipelines.query import Brokers

# Imports inside functions keep `logmark --help` and the other commands fast: the modules of pipelines are many.
app = typer.Typer(help="Run, show and replay Spark pipelines that are consumer groups.", no_args_is_help=True)

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Python files that declare pipelines.", show_default=False),
]
HomeFolder = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="LOGMARK_PIPELINES",
        metavar="DIR",
        help="The folder with the homes of pipelines: checkpoints, live version, status. Unless given: your state "
        "folder.",
        show_default=False,
    ),
]
Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="The Spark to use: local[N] or spark://HOST:PORT."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", "-c", metavar="K=V", help="A Spark setting; may be repeated.", show_default=False),
]
Package = Annotated[
    list[Path] | None,
    typer.Option(
        "--package",
        metavar="FILE",
        help="Ship this to the executors of a cluster: a wheel, .zip, .tar.gz or .py; may be repeated.",
        show_default=False,
    ),
]


def complete_pipeline(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the pipelines that have a home."""
    from logmark.spark.pipelines.home import list_homes

    return [one.name for one in list_homes(home_root(ctx.params.get("home"))) if one.name.startswith(incomplete)]


def home_root(home: Path | None) -> Path:
    """Return the folder with the homes of pipelines."""
    from logmark.spark.pipelines.home import default_root

    return (home if home is not None else default_root()).absolute()


@app.callback()
def pipelines() -> None:
    """Run, show and replay Spark pipelines that are consumer groups."""


def choose_brokers(cluster: Cluster, pipeline: "PipelineDeclaration") -> "tuple[Brokers, str | None]":
    """Return the cluster of a pipeline and its context: the one of options or environment, else of its file."""
    from logmark.spark.pipelines.query import Brokers

    if cluster.said_by in (Origin.SETTINGS, Origin.NOBODY) and pipeline.bootstrap_servers is not None:
        # Properties of a context are those of another cluster.
        own = cluster.properties if cluster.context is None else {}
        return Brokers(bootstrap_servers=pipeline.bootstrap_servers, properties=own), None
    return Brokers(bootstrap_servers=cluster.bootstrap_servers, properties=cluster.properties), cluster.context


def make_job(cluster: Cluster, pipeline: "PipelineDeclaration", file: Path | None, root: Path) -> "Job":
    """Return a pipeline with its cluster and its home."""
    from logmark.spark.pipelines.home import Home
    from logmark.spark.pipelines.job import Job

    brokers, context = choose_brokers(cluster, pipeline)
    home = Home(root, pipeline.name)
    return Job(pipeline=pipeline, brokers=brokers, home=home, file=None if file is None else str(file), context=context)


def recorded_cluster(cluster: Cluster, record: "PipelineRecord") -> Cluster:
    """Return the cluster of a recorded pipeline: the one of the options, else the one that it ran on."""
    if cluster.said_by is Origin.OPTION or record.bootstrap_servers is None:
        return cluster
    if record.context is not None:
        return chosen_cluster(
            bootstrap_servers=None, command_config=None, context=record.context, read_only=cluster.is_read_only
        )
    if record.bootstrap_servers == cluster.bootstrap_servers:
        return cluster
    return Cluster(
        bootstrap_servers=record.bootstrap_servers,
        properties=cluster.properties if cluster.context is None else {},
        is_read_only=cluster.is_read_only,
        said_by=Origin.SETTINGS,
    )


def find_homes(root: Path, names: Sequence[str]) -> "list[Home]":
    """Return the homes of these pipelines, or all; raises UserError for a name that has none."""
    from logmark.errors import UserError
    from logmark.offsets.suggestions import did_you_mean
    from logmark.spark.pipelines.home import list_homes

    found = {one.name: one for one in list_homes(root)}
    for name in names:
        if name not in found:
            raise UserError(
                f"There is no pipeline {name} in {root}.{did_you_mean(name, found)} `logmark pipelines list` shows "
                "those that were run; --home names another folder.",
                exit_code=2,
            )
    return [found[name] for name in names] if names else list(found.values())
