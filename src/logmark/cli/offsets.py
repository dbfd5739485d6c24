"""`logmark offsets`: moving a group's committed offsets, with a plan that is shown first."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from logmark.cli.clusters import Cluster, complete_group, on_cluster
from logmark.cli.options import Output, OutputFormat, Yes, example
from logmark.cli.tables import Column, count, place, print_json, print_table, say
from logmark.errors import UserError

if TYPE_CHECKING:
    from logmark.offsets.plan import ResetPlan, Target

app = typer.Typer(help="Move a group's committed offsets.", no_args_is_help=True)


@app.callback()
def offsets() -> None:
    """Move a group's committed offsets."""


@app.command("reset", epilog=example("logmark offsets reset fraud --topic clicks --by-duration 3d"))
@on_cluster
def reset(
    cluster: Cluster,
    group: Annotated[
        str,
        typer.Argument(help="The group to move; it must have no active members.", autocompletion=complete_group),
    ],
    topic: Annotated[
        list[str], typer.Option(metavar="NAME[:P,...]", help="A topic, or some of its partitions; may be repeated.")
    ],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Read everything again.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Skip everything that is there.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="Read offset N next, in each partition.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="The first record at or after a time; without a zone UTC.")
    ] = None,
    by_duration: Annotated[str | None, typer.Option(metavar="D", help="So long before now: 2h, 3d, PT2H, P3D.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Forward, or back if negative, from the committed offset.")
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    create_group: Annotated[
        bool, typer.Option("--create-group", help="Allow a group that does not exist yet.")
    ] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Take the nearer end of the log for an offset that is out of range.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Moves a group's committed offsets: shows the plan, asks, applies it and reads it back."""
    from logmark.offsets.reset import apply_reset, parse_topics, plan_reset

    target = _target(
        to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset,
        to_datetime=to_datetime, by_duration=by_duration, shift_by=shift_by,
    )  # fmt: skip
    topics = parse_topics(topic)
    with cluster.connect() as client:
        plan = plan_reset(client, group, topics, target, create_group=create_group, clamp=clamp)
        if output is OutputFormat.TABLE:
            _print_plan(plan)
        applied = False
        if dry_run:
            say("This was a dry run: nothing was changed.")
        else:
            _ask(plan, yes=yes)
            apply_reset(client, plan)
            applied = True
            say(f"Done: group {group} stands there now.")
    if output is OutputFormat.JSON:
        print_json(_described(plan, applied=applied))


def _target(
    *, to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, by_duration: str | None,
    shift_by: int | None,
) -> "Target":  # fmt: skip
    from logmark.offsets.plan import ShiftBy, Target, ToEarliest, ToLatest, ToOffset, ToTime
    from logmark.offsets.times import parse_datetime, parse_duration

    chosen: list[Target] = []
    if to_earliest:
        chosen.append(ToEarliest())
    if to_latest:
        chosen.append(ToLatest())
    if to_offset is not None:
        chosen.append(ToOffset(to_offset))
    if to_datetime is not None:
        chosen.append(ToTime(parse_datetime(to_datetime)))
    if by_duration is not None:
        chosen.append(ToTime(max(time.time_ns() // 1_000_000 - parse_duration(by_duration), 0)))
    if shift_by is not None:
        chosen.append(ShiftBy(shift_by))
    if len(chosen) != 1:
        raise UserError(
            "Say where the group shall go, with one of --to-earliest, --to-latest, --to-offset, --to-datetime, "
            "--by-duration and --shift-by.",
            exit_code=2,
        )
    return chosen[0]


def _ask(plan: "ResetPlan", *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("Nothing was changed: there is no terminal to ask in. Add --yes to apply this plan.")
    if not typer.confirm(f"Apply this to group {plan.group}?", err=True):
        raise UserError("Nothing was changed.")


def _print_plan(plan: "ResetPlan") -> None:
    typer.echo(f"Plan for group {plan.group}{' (a new group)' if plan.creates_group else ''}:")
    print_table(
        [
            Column("TOPIC"), Column("PARTITION", True), Column("FROM"), Column("TO", True), Column("READ AGAIN", True),
            Column("SKIPPED", True), Column("LAG AFTER", True), Column("NOTE"),
        ],
        [
            (
                move.partition.topic, move.partition.partition,
                place(move.committed.offset if move.committed else None), move.to,
                move.read_again, move.skipped, move.lag_after,
                move.note or ("" if move.is_change else "stays"),
            )
            for move in plan.moves
        ],
    )  # fmt: skip
    typer.echo(f"In total: {count(plan.read_again, 'record')} to read again, {count(plan.skipped, 'record')} skipped.")


def _described(plan: "ResetPlan", *, applied: bool) -> list[dict[str, object]]:
    return [
        {
            "group": plan.group,
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "from": move.committed.offset if move.committed else None,
            "to": move.to,
            "start": move.start,
            "end": move.end,
            "read_again": move.read_again,
            "skipped": move.skipped,
            "lag_after": move.lag_after,
            "note": move.note,
            "applied": applied,
        }
        for move in plan.moves
    ]
