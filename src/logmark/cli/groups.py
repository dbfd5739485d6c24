"""`logmark groups`: the consumer groups of a cluster."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.lag_tables import print_group_offsets
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import Column, confirm, count, print_json, print_table, say, write_line
from logmark.errors import UserError
from logmark.offsets.lag.views import view_group
from logmark.offsets.partitions import GroupView, inspect_groups
from logmark.offsets.reset.deletion import delete_group

app = typer.Typer(help="List, describe and delete consumer groups.", no_args_is_help=True)

GroupNames = Annotated[
    list[str],
    typer.Argument(metavar="GROUP", help="One or more groups.", autocompletion=complete_group, show_default=False),
]


@app.command("list", epilog=example("logmark groups list"))
@on_cluster
def list_groups(
    cluster: Cluster,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List groups with their state."""
    with cluster.connect() as client:
        groups = client.list_groups()
    if output is OutputFormat.JSON:
        print_json([asdict(one) for one in groups])
        return
    if not groups:
        say("There are no groups yet. A consumer with a group id makes one.")
        return
    print_table(
        [Column("GROUP"), Column("STATE"), Column("TYPE")],
        [(one.group, one.state or None, one.type or None) for one in groups],
    )


@app.command("describe", epilog=example("logmark groups describe billing"))
@on_cluster
def describe_groups(
    cluster: Cluster,
    names: GroupNames,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the state, the members and the committed offsets of groups."""

    with cluster.connect() as client:
        views = inspect_groups(client, names)
    for view in views:
        if view.description.is_unknown and not view.partitions:
            raise UserError(
                f"Group {view.description.group} does not exist; `logmark groups list` shows those that do."
            )
    if output is OutputFormat.JSON:
        print_json([asdict(view_group(view)) for view in views])
        return
    for view in views:
        _print_group(view)


def _print_group(view: GroupView) -> None:
    group = view.description
    write_line(
        f"Group {group.group}: {group.state or 'state unknown'}, {count(len(group.members), 'member')}"
        f"{f', assignor {group.assignor}' if group.assignor else ''}"
    )
    if group.members:
        print_table(
            [Column("MEMBER"), Column("CLIENT"), Column("HOST"), Column("PARTITIONS")],
            [
                (member.member_id, member.client_id, member.host.lstrip("/"), " ".join(map(str, member.partitions)))
                for member in group.members
            ],
        )
    print_group_offsets([view])


@app.command("delete", epilog=example("logmark groups delete billing --yes"))
@on_cluster
def delete_groups(
    cluster: Cluster,
    names: GroupNames,
    yes: Yes = False,
) -> None:
    """Delete groups with their committed offsets, which the journal keeps; ask first in a terminal."""

    refusals = []
    with cluster.connect() as client:
        for name, description in client.describe_groups(names).items():
            if description.is_unknown:
                raise UserError(f"Group {name} does not exist. Nothing was deleted.")
            if description.is_active:
                raise UserError(
                    f"Group {name} has active members ({description.state}). Nothing was deleted; stop them first."
                )
        question = f"Delete {', '.join(names)} with all committed offsets?"
        if not yes and sys.stdin.isatty() and not confirm(question):
            raise UserError("Nothing was deleted.")
        for name in dict.fromkeys(names):
            deletion = delete_group(client, name)
            if deletion.refusal is not None:
                refusals.append(f"{deletion.refusal} It was not deleted.")
                continue
            write_line(f"Deleted group {name}.")
            if deletion.change is not None:
                say(f"To undo it: logmark offsets undo {deletion.change.id}")
    if refusals:
        raise UserError(" ".join(refusals))
