"""`logmark offsets history`, `show`, `undo` and `finish`: what was changed, and taking it back."""

import contextlib
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.offsets.app import DryRun, Force, Reason, WaitEmpty, WithOptionalValues, app
from logmark.cli.offsets.plan_command import PlanCommand, wait_empty
from logmark.cli.offsets.plan_tables import print_change, print_changes
from logmark.cli.offsets.spark import Mover
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import print_json, say
from logmark.errors import LogmarkError
from logmark.offsets.journal.changes import CHECKPOINT, Change
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.journal.journal import find_change, list_changes, mark_undone, open_journal, select_change
from logmark.offsets.reset.preview import add_preview
from logmark.offsets.reset.undo import ChangeConflict, plan_finish, plan_undo
from logmark.offsets.times import format_time


def complete_change(incomplete: str) -> list[str]:
    """Return the ids in the user's own journal, the newest first."""

    with contextlib.suppress(LogmarkError):
        return [one.id for one in reversed(FileJournal().changes()) if one.id.startswith(incomplete.lower())]
    return []


ChangeId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The change, or the beginning of its id.", autocompletion=complete_change),
]


@app.command("history", epilog=example("logmark offsets history fraud"))
@on_cluster
def history_of(
    cluster: Cluster,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]", help="Only this group's, or this checkpoint's.", autocompletion=complete_group
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many, the newest.")] = 20,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List who moved what in this cluster, when and why: the newest last."""

    with cluster.connect() as client:
        journal = open_journal(client)
        changes = list_changes(client, group, limit=limit, journal=journal)
    if output is OutputFormat.JSON:
        print_json([one.to_json() for one in changes])
        return
    if not changes:
        say(f"No change{f' of {group}' if group else ''} is journaled in {journal.location}.")
        return
    print_changes(changes)
    for one in changes:
        if one.state == "pending":
            say(
                f"{one.id} was interrupted: `logmark offsets finish {one.id}` completes it, `logmark offsets undo "
                f"{one.id}` undoes it."
            )


@app.command("show", epilog=example("logmark offsets show 5p7m2k9q3xd"))
@on_cluster
def show(cluster: Cluster, id: ChangeId, output: Output = OutputFormat.TABLE) -> None:
    """Show a change: who, when, why, and every partition before and after."""

    with cluster.connect() as client:
        change = find_change(list_changes(client), id)
    if output is OutputFormat.JSON:
        print_json(change.to_json())
        return
    print_change(change)


@app.command("undo", cls=WithOptionalValues, epilog=example("logmark offsets undo"))
@on_cluster
def undo(
    cluster: Cluster,
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The change; by default your last one that is done and not undone.",
            autocompletion=complete_change,
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Force = False,
    wait: WaitEmpty = None,
    reason: Reason = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Undo a change: restore offsets, metadata and leader epochs, and delete commits where there were none."""

    command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason)
    with cluster.connect() as client:
        journal = open_journal(client)
        change = select_change(list_changes(client, journal=journal), id)
        if change.subject == CHECKPOINT:
            _say_what(change)
            Mover(cluster, yes=yes, dry_run=dry_run, output=output, reason=reason).undo(
                client, journal, change, force=force
            )
            return
        wait_empty(client, change.name, wait)
        try:
            plan = add_preview(client, plan_undo(client, change, force=force))
        except ChangeConflict as error:
            command.show(error.plan)
            raise
        _say_what(change)
        command.carry_out(client, plan, nothing_left=lambda: mark_undone(journal, change))


@app.command("finish", cls=WithOptionalValues, epilog=example("logmark offsets finish 5p7m2k9q3xd"))
@on_cluster
def finish(
    cluster: Cluster,
    id: ChangeId,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Force = False,
    wait: WaitEmpty = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Finishes a change that was interrupted; `undo` undoes it instead."""

    command = PlanCommand(cluster, yes=yes, dry_run=dry_run, output=output)
    with cluster.connect() as client:
        journal = open_journal(client)
        change = find_change(list_changes(client, journal=journal), id)
        if change.subject == CHECKPOINT:
            _say_what(change)
            Mover(cluster, yes=yes, dry_run=dry_run, output=output).finish(journal, change)
            return
        wait_empty(client, change.name, wait)
        try:
            plan = add_preview(client, plan_finish(client, change, force=force))
        except ChangeConflict as error:
            command.show(error.plan)
            raise
        _say_what(change)
        command.carry_out(client, plan, pending=change, nothing_left=lambda: journal.set_state(change.id, "done"))


def _say_what(change: Change) -> None:

    why = f" ({change.reason})" if change.reason else ""
    say(f"{change.id}: {change.action} of {change.name} by {change.who}, {format_time(change.at_ms)}{why}")
