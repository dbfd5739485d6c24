"""Plans and changes as tables for people."""

from collections.abc import Sequence

from logmark.cli.tables import Column, count, offset_cells, print_table, say, write_line
from logmark.client.answers import Committed
from logmark.offsets.journal.changes import Change
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.times import format_time


def print_plan(plan: ResetPlan, *, of: str = "group") -> None:
    """Print the plan as a table, its totals, and the warnings to read before anybody agrees."""
    what = f"{', ' if plan.how else ''}{plan.how}"
    write_line(f"Plan for {of} {plan.group}{' (a new group)' if plan.creates_group else ''}{what}:")
    columns = [
        Column("TOPIC"), Column("PARTITION", True), Column("COMMITTED", True), Column("LAST PROCESSED", True),
        Column("NEW", True), Column("READ AGAIN", True), Column("SKIPPED", True), Column("LAG AFTER", True),
    ]  # fmt: skip
    has_spans = any(move.span is not None for move in plan.moves)
    if has_spans:
        columns += [Column("FIRST RECORD"), Column("LAST RECORD"), Column("ABOUT", True)]
    print_table([*columns, Column("NOTE")], [_row(move, has_spans=has_spans) for move in plan.moves])
    write_line(_total(plan))
    for warning in (*plan.warnings, *plan.cautions):
        say(warning)


def _row(move: PartitionMove, *, has_spans: bool) -> Sequence[object]:
    span = move.span
    bound = "<= " if span is not None and span.is_upper_bound else ""
    cells: list[object] = [
        move.partition.topic,
        move.partition.partition,
        *offset_cells(move.committed.offset if move.committed else None),
        "nothing" if move.to is None else move.to,
        f"{bound if move.read_again else ''}{move.read_again}",
        f"{bound if move.skipped else ''}{move.skipped}",
        move.lag_after,
    ]
    if has_spans:
        cells += [
            _format_time(span.first_ms if span else None),
            _format_time(span.last_ms if span else None),
            None if span is None or span.size_bytes is None else format_bytes(span.size_bytes),
        ]
    return [*cells, move.note or ("" if move.is_change else "stays")]


def _total(plan: ResetPlan) -> str:
    bound = "at most " if plan.is_upper_bound else ""
    parts = [f"{bound}{count(plan.read_again, 'record')} to read again", f"{count(plan.skipped, 'record')} skipped"]
    if plan.size_bytes is not None:
        parts.append(f"about {format_bytes(plan.size_bytes)}")
    return f"In total: {', '.join(parts)}."


def _format_time(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else format_time(timestamp_ms)


def format_bytes(size: int) -> str:
    """Return a size in the largest unit that leaves a number above one."""
    amount, unit = float(size), "B"
    for following in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, following
    return f"{round(amount)} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def print_changes(changes: Sequence[Change]) -> None:
    """Print a table of changes."""

    print_table(
        [
            Column("ID"), Column("WHEN"), Column("WHO"), Column("ACTION"), Column("OF"), Column("HOW"),
            Column("PARTITIONS", True), Column("STATE"), Column("REASON"),
        ],
        [
            (
                one.id, format_time(one.at_ms), f"{one.who} on {one.host}", one.action, one.name, one.how,
                len({*one.before, *one.after}), one.state, one.reason,
            )
            for one in changes
        ],
    )  # fmt: skip


def print_change(change: Change) -> None:
    """Print everything that the journal has of a change."""

    write_line(f"Change {change.id}: {change.action} of {change.subject} {change.name}, {change.state}")
    lines = [
        ("when", format_time(change.at_ms)), ("who", f"{change.who} on {change.host}"), ("how", change.how),
        ("why", change.reason), ("undoes", change.undoes or ""), ("cluster", change.cluster_id),
        *((name, value) for name, value in change.details.items() if not name.startswith("topic id of ")),
    ]  # fmt: skip
    for name, value in lines:
        if value and "\n" not in value:
            write_line(f"  {name:<8} {value}")
    print_table(
        [
            Column("TOPIC"), Column("PARTITION", True), Column("COMMITTED BEFORE", True),
            Column("COMMITTED AFTER", True), Column("EPOCH BEFORE", True), Column("METADATA BEFORE"),
        ],
        [
            (
                one.topic, one.partition, _committed(change.before.get(one)), _committed(change.after.get(one)),
                before.leader_epoch if (before := change.before.get(one)) and before.leader_epoch >= 0 else None,
                before.metadata if before else "",
            )
            for one in sorted({*change.before, *change.after})
        ],
    )  # fmt: skip


def _committed(committed: Committed | None) -> str:
    return "nothing committed" if committed is None else str(committed.offset)
