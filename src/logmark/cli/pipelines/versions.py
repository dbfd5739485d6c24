"""`logmark pipelines versions` and `drop`: what was live before, what can be taken back, and what nobody wants."""

from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.offsets.acting import ask
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.pipelines.app import HomeFolder, app
from logmark.cli.pipelines.known_pipeline import File, Name, known
from logmark.cli.pipelines.offset_text import nested, shown
from logmark.cli.tables import Column, print_json, print_table, say


@app.command("versions", epilog=example("logmark pipelines versions fraud"))
@on_cluster
def versions(
    cluster: Cluster,
    name: Name,
    file: File = None,
    home: HomeFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Shows the versions of a pipeline: which one is live, being built, or can be taken back."""
    from logmark.offsets.times import format_time
    from logmark.spark.pipelines.versions import versions_of

    with known(cluster, name, file=file, home=home) as it:
        found = versions_of(it.job)
    if output is OutputFormat.JSON:
        print_json(
            [
                {
                    "version": one.number, "live": one.is_live, "building": one.is_building,
                    "can_be_taken_back": one.can_be_taken_back, "live_since_ms": one.since_ms, "how": one.how,
                    "stands": nested(one.stands), "rows": one.rows, "size_bytes": one.size_bytes,
                }
                for one in found
            ]
        )  # fmt: skip
        return
    print_table(
        [Column("VERSION", True), Column("STATE"), Column("SINCE"), Column("ROWS", True), Column("NEXT OFFSETS")],
        [
            (
                one.number,
                "live" if one.is_live else "being built" if one.is_building else "kept" if one.can_be_taken_back
                else "incomplete",
                format_time(one.since_ms) if one.since_ms is not None else None,
                one.rows,
                shown(one.stands),
            )
            for one in found
        ],
    )  # fmt: skip


@app.command("drop", epilog=example("logmark pipelines drop fraud 1"))
@on_cluster
def drop(
    cluster: Cluster,
    name: Name,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that is not live.")],
    yes: Yes = False,
    file: File = None,
    home: HomeFolder = None,
) -> None:
    """Removes a version that was kept: its checkpoint, its rows beside the table, its side topic and its group."""
    from logmark.spark.pipelines.versions import drop as drop_version

    with known(cluster, name, file=file, home=home) as it:
        it.cluster.refuse_writing()
        if not yes:
            ask(f"Remove version {version} of {name}? It cannot be taken back then.")
        with it.job.home.replaying(), it.connect() as client:
            drop_version(it.job, client, version)
    say(f"Done: version {version} of {name} is gone.")
