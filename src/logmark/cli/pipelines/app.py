"""The group of commands that the modules beside this one add themselves to."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, Origin, chosen_cluster

if TYPE_CHECKING:
    from logmark.spark.pipelines.home import Home, Record
    from logmark.spark.pipelines.pipeline import Pipeline
    from logmark.spark.pipelines.query import Brokers
    from logmark.spark.pipelines.supervisor import Job

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
        help="Where pipelines are remembered: their checkpoints, which version is live, how they are doing. "
        "Unless given: your state folder.",
        show_default=False,
    ),
]
Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="The Spark that does the work: local[N] or spark://HOST:PORT."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", "-c", metavar="K=V", help="A setting of Spark; may be repeated.", show_default=False),
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
    """The pipelines that are remembered."""
    from logmark.spark.pipelines.home import homes

    return [one.name for one in homes(root_of(ctx.params.get("home"))) if one.name.startswith(incomplete)]


def root_of(home: Path | None) -> Path:
    """The folder of all pipelines."""
    from logmark.spark.pipelines.home import default_root

    return (home if home is not None else default_root()).absolute()


@app.callback()
def pipelines() -> None:
    """Run, show and replay Spark pipelines that are consumer groups."""


def brokers_of(cluster: Cluster, pipeline: "Pipeline") -> "tuple[Brokers, str | None]":
    """The cluster of a pipeline and its context: what options or environment say, else its file, else the usual one."""
    from logmark.spark.pipelines.query import Brokers

    if cluster.said_by in (Origin.SETTINGS, Origin.NOBODY) and pipeline.bootstrap_servers is not None:
        # Properties of a context are those of another cluster.
        own = cluster.properties if cluster.context is None else {}
        return Brokers(bootstrap_servers=pipeline.bootstrap_servers, properties=own), None
    return Brokers(bootstrap_servers=cluster.bootstrap_servers, properties=cluster.properties), cluster.context


def job_of(cluster: Cluster, pipeline: "Pipeline", file: Path | None, root: Path) -> "Job":
    """A pipeline on its cluster and in its home."""
    from logmark.spark.pipelines.home import Home
    from logmark.spark.pipelines.supervisor import Job

    brokers, context = brokers_of(cluster, pipeline)
    home = Home(root, pipeline.name)
    return Job(pipeline=pipeline, brokers=brokers, home=home, file=None if file is None else str(file), context=context)


def cluster_of(cluster: Cluster, record: "Record") -> Cluster:
    """The cluster of a pipeline that is remembered: what the options say, else the one that it ran on."""
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


def remembered(root: Path, names: Sequence[str]) -> "list[Home]":
    """The pipelines of these names, or all; raises a sentence for one that nobody knows."""
    from logmark.errors import UserError
    from logmark.offsets.suggestions import did_you_mean
    from logmark.spark.pipelines.home import homes

    found = {one.name: one for one in homes(root)}
    for name in names:
        if name not in found:
            raise UserError(
                f"There is no pipeline {name} in {root}.{did_you_mean(name, found)} `logmark pipelines list` shows "
                "those that were run; --home names another folder.",
                exit_code=2,
            )
    return [found[name] for name in names] if names else list(found.values())
