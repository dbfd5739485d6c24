"""The homes of pipelines: how a command finds them by name, and the cluster that each was last run on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, Origin, chosen_cluster
from logmark.errors import UserError
from logmark.offsets.suggestions import did_you_mean
from logmark.spark.pipelines.home import Home, PipelineRecord, default_root, list_homes

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
def complete_pipeline(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the pipelines that have a home."""

    return [one.name for one in list_homes(home_root(ctx.params.get("home"))) if one.name.startswith(incomplete)]


def home_root(home: Path | None) -> Path:
    """Return the folder with the homes of pipelines."""

    return (home if home is not None else default_root()).absolute()


def recorded_cluster(cluster: Cluster, record: PipelineRecord) -> Cluster:
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


def find_homes(root: Path, names: Sequence[str]) -> list[Home]:
    """Return the homes of these pipelines, or all; raises UserError for a name that has none."""

    found = {one.name: one for one in list_homes(root)}
    for name in names:
        if name not in found:
            raise UserError(
                f"There is no pipeline {name} in {root}.{did_you_mean(name, found)} `logmark pipelines list` shows "
                "those that were run; --home names another folder.",
                exit_code=2,
            )
    return [found[name] for name in names] if names else list(found.values())
