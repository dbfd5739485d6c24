"""`logmark lag`: how far groups are behind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import Column, count, place, print_json, print_table, say
from logmark.errors import UserError

if TYPE_CHECKING:
    from logmark.offsets.inspect import GroupView, Place

_COLUMNS = [
    Column("GROUP"), Column("TOPIC"), Column("PARTITION", True), Column("PLACE"), Column("START", True),
    Column("END", True), Column("LAG", True), Column("NOTE"),
]  # fmt: skip


@on_cluster
def lag(
    cluster: Cluster,
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", help="Groups; none means all.", autocompletion=complete_group, show_default=False
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Shows each group's committed offsets, what the logs hold, and the lag between them, in records."""
    from logmark.offsets.inspect import groups_with_offsets, inspect

    with cluster.connect() as client:
        views = inspect(client, groups or groups_with_offsets(client))
    for view in views:
        if groups and view.description.is_unknown and not view.places:
            raise UserError(
                f"Group {view.description.group} does not exist; `logmark groups list` shows those that do."
            )
    if output is OutputFormat.JSON:
        print_json([row(one) for view in views for one in view.places])
        return
    print_lag(views)


def print_lag(views: "Sequence[GroupView]") -> None:
    """One table for all groups, and the total of each."""
    if not any(view.places for view in views):
        say("No group has committed an offset yet.")
        return
    print_table(_COLUMNS, [_cells(one) for view in views for one in view.places])
    for view in views:
        if view.places:
            typer.echo(f"Group {view.description.group}: {count(view.lag, 'record')} behind in total.")


def row(one: "Place") -> dict[str, object]:
    """What JSON says about a place; `lost` counts records that expired unread."""
    committed = one.committed.offset if one.committed else None
    return {
        "group": one.group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": committed,
        "last_processed": None if committed is None else committed - 1,
        "start": one.start,
        "end": one.end,
        "lag": one.lag.records if one.lag else None,
        "lost": one.lag.lost if one.lag else None,
    }


def _cells(one: "Place") -> tuple[object, ...]:
    committed = one.committed.offset if one.committed else None
    return (
        one.group, one.partition.topic, one.partition.partition, place(committed), one.start, one.end,
        one.lag.records if one.lag else None, note(one),
    )  # fmt: skip


def note(one: "Place") -> str:
    """What a person should know about a place beyond its numbers."""
    if one.problem:
        return one.problem
    if one.lag and one.lag.lost:
        return f"{count(one.lag.lost, 'record')} lost: expired before they were read"
    if one.committed and one.end is not None and one.committed.offset > one.end:
        return "committed beyond the end: was the topic made anew?"
    return ""
