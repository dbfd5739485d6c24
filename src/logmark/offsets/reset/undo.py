"""Plans that undo a change of a group, or finish one that was interrupted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.errors import ChangeClosed, OffsetsError
from logmark.offsets.journal.changes import GROUP, Change
from logmark.offsets.partitions import LogBounds
from logmark.offsets.reset.executor import TOPIC_ID
from logmark.offsets.reset.members import check_inactive
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.reset.planner import fetch_topic_ids


class ChangeConflict(OffsetsError):
    """Taking a change back would not be right any more; `plan` is what doing it all the same would do."""

    def __init__(self, problem: str, plan: ResetPlan) -> None:
        super().__init__(problem, "pass force=True to do it all the same, or reset the group to where it shall start")
        self.plan = plan


def plan_undo(client: Client, change: Change, *, force: bool = False) -> ResetPlan:
    """Plan the undo of a change of a group; raises ChangeConflict where the group has moved since."""
    _refuse_other_subjects(change)
    if change.state not in ("done", "pending"):
        raise ChangeClosed(change.id, change.state)
    return _plan(
        client,
        change,
        _Course(
            action="undo",
            how=f"undo of {change.id} ({change.action} {change.how})".replace(" )", ")"),
            expected=change.after,
            wanted=change.before,
            undoes=change.id,
        ),
        force=force,
    )


def plan_finish(client: Client, change: Change, *, force: bool = False) -> ResetPlan:
    """Plan what is left of a pending change; raises ChangeConflict where the group has other offsets than expected."""
    _refuse_other_subjects(change)
    if change.state != "pending":
        raise UserError(f"The change {change.id} is {change.state} and not pending. Nothing was changed.")
    course = _Course(action=change.action, how=change.how, expected=change.before, wanted=change.after, undoes=None)
    return _plan(client, change, course, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """From the committed offsets that are expected to those that are wanted."""

    action: str
    how: str
    expected: Mapping[TopicPartition, Committed | None]
    wanted: Mapping[TopicPartition, Committed | None]
    undoes: str | None


def _plan(client: Client, change: Change, course: _Course, *, force: bool) -> ResetPlan:
    description = client.describe_groups([change.name])[change.name]
    if any(one is not None for one in course.wanted.values()):
        check_inactive(description)
    partitions = sorted(course.wanted)
    gone = _gone(client, change, partitions)
    left = [one for one in partitions if one.topic not in gone]
    now = client.committed(change.name, left) if left else {}
    bounds = LogBounds.fetch(client, left).check(" Nothing was changed.")
    plan = ResetPlan(
        group=change.name,
        moves=[_move(one, now.get(one), course.wanted[one], bounds) for one in left],
        creates_group=False,
        action=course.action,
        how=course.how,
        undoes=course.undoes,
        topic_ids=fetch_topic_ids(client, left),
    )
    astray = [move for move in plan.changes if _is_astray(move.committed, course.expected[move.partition])]
    if (gone or astray) and not force:
        raise ChangeConflict(_why_not(change, course, gone, astray), plan)
    return plan


def _is_astray(now: Committed | None, expected: Committed | None) -> bool:
    if now is None or expected is None:
        return now is not expected
    return now.offset != expected.offset


def _move(
    partition: TopicPartition, now: Committed | None, wanted: Committed | None, bounds: LogBounds
) -> PartitionMove:
    start, end = bounds.starts[partition], bounds.ends[partition]
    note = ""
    if now == wanted:
        note = "committed there already"
    elif wanted is None:
        note = "nothing will be committed"
    elif wanted.offset < start:
        note = f"{start - wanted.offset} records from {wanted.offset} on have expired"
    elif wanted.offset > end:
        note = f"{wanted.offset} is beyond the end"
    return PartitionMove(
        partition=partition, committed=now, after=wanted, start=start, end=end, note=note, is_exact=True
    )


def _gone(client: Client, change: Change, partitions: Sequence[TopicPartition]) -> dict[str, str]:
    """Return the topics that were deleted or created again since the change, each with what happened."""
    there = client.metadata(sorted({one.topic for one in partitions}))
    found: dict[str, str] = {}
    for one in partitions:
        id = change.details.get(f"{TOPIC_ID}{one.topic}")
        if one not in there.partitions(one.topic):
            found[one.topic] = f"topic {one.topic} does not exist any more"
        elif id is not None and any(now := there.topics[one.topic].topic_id) and now.hex() != id:
            found[one.topic] = f"topic {one.topic} is another one of the same name, made since"
    return found


def _why_not(change: Change, course: _Course, gone: Mapping[str, str], astray: Sequence[PartitionMove]) -> str:
    parts = [*gone.values()]
    if astray:
        parts.append(
            f"group {change.name} has moved on: "
            + "; ".join(_told(move, course.expected[move.partition]) for move in astray[:5])
            + (f"; and in {len(astray) - 5} more partitions" if len(astray) > 5 else "")
        )
    read_again, skipped = sum(move.read_again for move in astray), sum(move.skipped for move in astray)
    counts = ((read_again, "would be read twice"), (skipped, "would not be read"))
    lost = ", and ".join(f"{number} of its records {what}" for number, what in counts if number)
    what = "Undoing" if course.undoes else "Finishing"
    return (
        f"{what} {change.id} would not be right any more: {'; '.join(parts)}."
        f"{f' {lost}.' if lost else ''} Nothing was changed"
    )


def _told(move: PartitionMove, expected: Committed | None) -> str:
    before = f"had committed {expected.offset}" if expected else "had no commit"
    now = f"has committed {move.committed.offset}" if move.committed else "has no commit"
    return f"{move.partition} {before} and {now} now"


def _refuse_other_subjects(change: Change) -> None:
    if change.subject != GROUP:
        raise UserError(f"The change {change.id} is one of a {change.subject} and not of a group. Nothing was changed.")
