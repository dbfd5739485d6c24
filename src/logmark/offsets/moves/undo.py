"""Takes changes back, brings interrupted ones to their end, and tells what has been done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.checkpoints.undoing import undo_checkpoint
from logmark.offsets.lags.inspect import Bounds
from logmark.offsets.moves.applying import TOPIC_ID, Applied, Patience, apply, disagree
from logmark.offsets.moves.changes import CHECKPOINT, GROUP, Change, Who, who_am_i
from logmark.offsets.moves.journal import Journal, find_change, open_journal
from logmark.offsets.moves.members import refuse_active
from logmark.offsets.moves.plan import Move, ResetPlan
from logmark.offsets.moves.reset import topic_ids


class MovedOn(UserError):
    """Taking a change back would not be right any more; `plan` is what doing it all the same would do."""

    def __init__(self, sentence: str, plan: ResetPlan) -> None:
        super().__init__(sentence)
        self.plan = plan


def history(
    client: Client, name: str | None = None, *, limit: int | None = None, journal: Journal | None = None
) -> list[Change]:
    """The changes of this cluster, or of one group or checkpoint in it: the newest last, at most `limit`."""
    found = (journal or open_journal(client)).changes(client.metadata([]).cluster_id, name)
    return found if limit is None else found[max(len(found) - limit, 0) :]


def undo(
    client: Client,
    id: str | None = None,
    *,
    force: bool = False,
    reason: str = "",
    journal: Journal | None = None,
    patience: Patience | None = None,
) -> Applied | None:
    """Takes a change back, by default this user's last one; None if there was nothing left to take back.

    Offsets, metadata and leader epochs are restored exactly; a partition without a commit has none again. The undo is
    a change of its own in the journal, and can be undone. Raises MovedOn, unless `force`, where the group has moved
    since, or the topic is not the same any more.
    """
    journal = journal or open_journal(client)
    change = chosen(history(client, journal=journal), id)
    if change.subject == CHECKPOINT:
        now_ms = (patience or Patience()).clock.now_ms()
        done = undo_checkpoint(client, journal, change, force=force, reason=reason, now_ms=now_ms)
        return None if done is None else Applied(plan=done[0].plan, change=done[1])
    plan = plan_undo(client, change, force=force)
    if not plan.changes:
        close(journal, change)
        return None
    return apply(client, plan, journal=journal, reason=reason, patience=patience, agree=_forced if force else disagree)


def finish(
    client: Client,
    id: str,
    *,
    force: bool = False,
    journal: Journal | None = None,
    patience: Patience | None = None,
) -> Applied | None:
    """Brings a pending change to its end; None if everything was there already."""
    journal = journal or open_journal(client)
    change = find_change(history(client, journal=journal), id)
    plan = plan_finish(client, change, force=force)
    if not plan.changes:
        journal.finish(change.id, "done")
        return None
    agree = _forced if force else disagree
    return apply(client, plan, journal=journal, patience=patience, pending=change, agree=agree)


def close(journal: Journal, change: Change) -> None:
    """Writes down that a change is taken back, where the group stands already as it did before."""
    journal.finish(change.id, "taken back" if change.state == "pending" else "undone")


def chosen(changes: Sequence[Change], id: str | None, *, who: Who | None = None) -> Change:
    """The change with this id, or without one the last that is done and not undone, if it is this user's."""
    if id is not None:
        return find_change(changes, id)
    candidates = [one for one in changes if one.state == "done" and one.undoes is None]
    if not candidates:
        pending = [one.id for one in changes if one.state == "pending"]
        hint = f" Pending are {', '.join(pending)}: name one of them." if pending else ""
        raise UserError(f"The journal has no change of this cluster that could be undone.{hint} Nothing was changed.")
    last = candidates[-1]
    if last.who != (who or who_am_i()).user:
        raise UserError(
            f"The last change of this cluster is {last.id} ({last.action} of {last.name}) by {last.who} on "
            f"{last.host}, and not yours. Nothing was changed; to undo it all the same: logmark offsets undo {last.id}"
        )
    return last


def plan_undo(client: Client, change: Change, *, force: bool = False) -> ResetPlan:
    """What taking a change of a group back would do now; raises MovedOn where it would not be right any more."""
    _refuse_other_subjects(change)
    if change.state not in ("done", "pending"):
        raise UserError(
            f"The change {change.id} is {change.state} already. Nothing was changed; `logmark offsets show "
            f"{change.id}` tells what it was."
        )
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
    """What is left to do of a pending change; raises MovedOn where the group stands neither here nor there."""
    _refuse_other_subjects(change)
    if change.state != "pending":
        raise UserError(f"The change {change.id} is {change.state} and not pending. Nothing was changed.")
    course = _Course(action=change.action, how=change.how, expected=change.before, wanted=change.after, undoes=None)
    return _plan(client, change, course, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """From the places that are expected to the places that are wanted."""

    action: str
    how: str
    expected: Mapping[TopicPartition, Committed | None]
    wanted: Mapping[TopicPartition, Committed | None]
    undoes: str | None


def _plan(client: Client, change: Change, course: _Course, *, force: bool) -> ResetPlan:
    description = client.describe_groups([change.name])[change.name]
    if any(place is not None for place in course.wanted.values()):
        refuse_active(description)
    partitions = sorted(course.wanted)
    gone = _gone(client, change, partitions)
    left = [one for one in partitions if one.topic not in gone]
    now = client.committed(change.name, left) if left else {}
    bounds = Bounds.of(client, left)
    for problem in bounds.problems.values():
        raise UserError(f"{problem} Nothing was changed.")
    plan = ResetPlan(
        group=change.name,
        moves=[_move(one, now.get(one), course.wanted[one], bounds) for one in left],
        creates_group=False,
        action=course.action,
        how=course.how,
        undoes=course.undoes,
        topic_ids=topic_ids(client, left),
    )
    astray = [move for move in plan.changes if _is_astray(move.committed, course.expected[move.partition])]
    if (gone or astray) and not force:
        raise MovedOn(_why_not(change, course, gone, astray), plan)
    return plan


def _is_astray(now: Committed | None, expected: Committed | None) -> bool:
    if now is None or expected is None:
        return now is not expected
    return now.offset != expected.offset


def _move(partition: TopicPartition, now: Committed | None, wanted: Committed | None, bounds: Bounds) -> Move:
    start, end = bounds.starts[partition], bounds.ends[partition]
    note = ""
    if now == wanted:
        note = "stands there already"
    elif wanted is None:
        note = "nothing will be committed"
    elif wanted.offset < start:
        note = f"{start - wanted.offset} records from {wanted.offset} on have expired"
    elif wanted.offset > end:
        note = f"{wanted.offset} is beyond the end"
    return Move(partition=partition, committed=now, after=wanted, start=start, end=end, note=note, is_exact=True)


def _gone(client: Client, change: Change, partitions: Sequence[TopicPartition]) -> dict[str, str]:
    """The topics that are not what they were, each with what became of it."""
    there = client.metadata(sorted({one.topic for one in partitions}))
    found: dict[str, str] = {}
    for one in partitions:
        id = change.details.get(f"{TOPIC_ID}{one.topic}")
        if one not in there.partitions(one.topic):
            found[one.topic] = f"topic {one.topic} does not exist any more"
        elif id is not None and any(now := there.topics[one.topic].topic_id) and now.hex() != id:
            found[one.topic] = f"topic {one.topic} is another one of the same name, made since"
    return found


def _why_not(change: Change, course: _Course, gone: Mapping[str, str], astray: Sequence[Move]) -> str:
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
        f"{f' {lost}.' if lost else ''} Nothing was changed; add --force to do it all the same, or reset the group to "
        "where it shall go."
    )


def _told(move: Move, expected: Committed | None) -> str:
    stood = f"stood at {expected.offset}" if expected else "had no commit"
    stands = f"stands at {move.committed.offset}" if move.committed else "has no commit"
    return f"{move.partition} {stood} and {stands} now"


def _refuse_other_subjects(change: Change) -> None:
    if change.subject != GROUP:
        raise UserError(f"The change {change.id} is one of a {change.subject} and not of a group. Nothing was changed.")


def _forced(plan: ResetPlan) -> None:
    """Whoever forces an undo has agreed to whatever the group does meanwhile."""
