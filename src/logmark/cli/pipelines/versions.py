"""`logmark pipelines versions` and `drop`: the versions of a pipeline, and the removal of one that nobody needs."""

from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.plan_command import ask
from logmark.cli.options import Output, OutputFormat, Yes
from logmark.cli.pipelines.homes import HomeFolder
from logmark.cli.pipelines.known_pipeline import File, Name, open_pipeline
from logmark.cli.tables import Column, print_json, print_table, say
from logmark.offsets.times import format_time
from logmark.spark.pipelines.versions import PipelineVersion, drop_version, list_versions
from logmark.spark.pipelines.views import view_version
from logmark.spark.source.offset_maps import format_offsets


@on_cluster
def versions(
    cluster: Cluster,
    name: Name,
    file: File = None,
    home: HomeFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the versions of a pipeline: the live one, the one being built, and those kept for a rollback."""
    with open_pipeline(cluster, name, file=file, home=home) as known:
        found = list_versions(known.job)
    if output is OutputFormat.JSON:
        print_json([asdict(view_version(one)) for one in found])
        return
    print_table(
        [Column("VERSION", True), Column("STATE"), Column("SINCE"), Column("ROWS", True), Column("NEXT OFFSETS")],
        [
            (
                one.number,
                _describe_state(one),
                format_time(one.since_ms) if one.since_ms is not None else None,
                one.rows,
                None if one.next_offsets is None else format_offsets(one.next_offsets),
            )
            for one in found
        ],
    )


def _describe_state(version: PipelineVersion) -> str:
    if version.is_live:
        return "live"
    if version.is_building:
        return "being built"
    return "kept" if version.can_roll_back else "incomplete"


@on_cluster
def drop(
    cluster: Cluster,
    name: Name,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that is not live.")],
    yes: Yes = False,
    file: File = None,
    home: HomeFolder = None,
) -> None:
    """Remove a kept version: its checkpoint, its rows beside the table, its side topic and its group."""
    with open_pipeline(cluster, name, file=file, home=home) as known:
        known.cluster.refuse_writing()
        if not yes:
            ask(f"Remove version {version} of {name}? You cannot roll back to it then.")
        with known.job.home.replaying(), known.job.connect() as client:
            drop_version(known.job, client, version)
    say(f"Removed version {version} of {name}.")
