"""Applies a plan: written down first, then committed, then read back until it stays."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, CommitRefused, ReadOnly, RefusedByBroker
from logmark.clock import Clock, SystemClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.errors import ChangePending, GroupKeepsMoving
from logmark.offsets.journal.changes import Author, Change, current_author, new_change_id, sort_changes
from logmark.offsets.journal.journal import Journal, open_journal
from logmark.offsets.reset.members import check_inactive
from logmark.offsets.reset.plan import PartitionMove, ResetPlan, keep_metadata
from logmark.offsets.reset.planner import describe_committer
from logmark.offsets.reset.read_back import ReadBack, classify_read_back

WATCH_S = 5.0
# Nobody is known to read in this group: a reader that looked just before is seen all the same.
QUIET_WATCH_S = 0.5
_LOOK_EVERY_S = 0.05
_PLANS_MAX = 5
TOPIC_ID = "topic id of "

CommittedOffsets = Mapping[TopicPartition, Committed | None]


class PlanOutdated(UserError):
    """The group has moved since the plan was made, so that it is not what was agreed to; `plan` is the new one."""

    def __init__(self, plan: ResetPlan) -> None:
        by = describe_committer(move.committed for move in plan.moves)
        super().__init__(
            f"Group {plan.group} has moved since the plan was made, by {by}. Nothing was changed; look at the new plan."
        )
        self.plan = plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedReset:
    """What was done: the plan as it was applied, the journal's entry, and who else was seen in the group.

    `is_in_use` says that the group was seen to move although it has no members, `repeats` how often the change had to
    be made again, `picked_up_by` which running query continues from there.
    """

    plan: ResetPlan
    change: Change
    is_in_use: bool = False
    repeats: int = 0
    overwritten_by: str = ""
    picked_up_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimeouts:
    """How long a change is watched; time is a parameter."""

    watch_s: float = WATCH_S
    quiet_watch_s: float = QUIET_WATCH_S
    clock: Clock = SystemClock()  # noqa: RUF009 - it has no state of its own
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def reject_changed_plan(plan: ResetPlan) -> None:
    """Refuses a plan that is not the one that was agreed to."""
    raise PlanOutdated(plan)


def apply_plan(
    client: Client,
    plan: ResetPlan,
    *,
    journal: Journal | None = None,
    reason: str = "",
    who: Author | None = None,
    agree: Callable[[ResetPlan], None] = reject_changed_plan,
    timeouts: WatchTimeouts | None = None,
    pending: Change | None = None,
    details: Mapping[str, str] | None = None,
) -> AppliedReset:
    """Commit what the plan says, journal it, and read it back until it stays.

    A group that has only moved forward since the plan goes to the planned offset all the same, if that does not depend
    on the old one; otherwise `agree` gets the new plan and raises to refuse it. The change is in the journal
    (by default the one in force for this cluster) before anything is committed, and done when it was read back. What
    a running reader writes over meanwhile is set again; if that does not help, UserError names the reader. Raises
    GroupActive for a group with members. A plan that changes nothing is not applied: ValueError. `pending` is the
    change in the journal that this plan brings to its end; `details` are kept with a new one.
    """
    if client.is_read_only:
        raise ReadOnly("This client may only look. Nothing was changed.")
    timeouts = timeouts or WatchTimeouts(watch_s=WATCH_S, quiet_watch_s=QUIET_WATCH_S)
    journal = journal or open_journal(client)
    plan, is_in_use = _refresh_plan(client, plan, agree)
    if not plan.changes:
        raise ValueError("a plan that changes nothing")
    change = pending or change_from_plan(client, plan, reason=reason, who=who or current_author(), clock=timeouts.clock)
    if pending is None:
        change = replace(change, details={**change.details, **(details or {})})
        journal.add(change)
    _write(client, journal, change, plan)
    return _watch(client, journal, change, plan, timeouts, is_in_use=is_in_use)


def change_from_plan(client: Client, plan: ResetPlan, *, reason: str, who: Author, clock: Clock) -> Change:
    """Return the plan as a pending change for the journal."""
    at_ms = clock.now_ms()
    return Change(
        id=new_change_id(at_ms),
        at_ms=at_ms,
        cluster_id=client.metadata([]).cluster_id,
        name=plan.group,
        action=plan.action,
        how=plan.how,
        who=who.user,
        host=who.host,
        reason=reason,
        before={move.partition: move.committed for move in plan.changes},
        after={move.partition: move.after for move in plan.changes},
        undoes=plan.undoes,
        details={f"{TOPIC_ID}{topic}": id for topic, id in plan.topic_ids.items()},
    )


def _refresh_plan(client: Client, plan: ResetPlan, agree: Callable[[ResetPlan], None]) -> tuple[ResetPlan, bool]:
    """Return the plan for the offsets that are committed now, and whether the group was seen to move."""
    is_in_use = bool(plan.warnings)
    for _ in range(_PLANS_MAX):
        if any(move.after is not None for move in plan.changes):
            check_inactive(client.describe_groups([plan.group])[plan.group])
        now = client.committed(plan.group, [move.partition for move in plan.moves])
        fresh = plan.rebase_on(now)
        if fresh.moves == plan.moves:
            return plan, is_in_use
        is_in_use = True
        if plan.is_absolute and plan.only_forward(now):
            return fresh, is_in_use
        agree(fresh)
        plan = fresh
    raise GroupKeepsMoving(
        f"Group {plan.group} moves faster than a plan can be confirmed. Nothing was changed",
        "stop its reader, or choose a target that does not depend on the committed offset (ToOffset, ToTime)",
    )


def _write(client: Client, journal: Journal, change: Change, plan: ResetPlan) -> None:
    """Commit and delete; on a failure restore what was done and raise the reason."""
    before = {move.partition: move.committed for move in plan.changes}
    after = {move.partition: move.after for move in plan.changes}
    try:
        commit_offsets(client, plan.group, after)
    except CommitRefused as error:
        done = {one: before[one] for one, to in after.items() if to is not None and one not in error.errors}
        _take_back(client, journal, change, done, str(error))
    except _NotDeleted as error:
        _take_back(client, journal, change, {one: before[one] for one in error.done}, str(error))
    except RefusedByBroker as error:
        _take_back(client, journal, change, {}, str(error))
    except BrokerUnreachable as error:
        raise ChangePending(change.id, f"{error} Whether group {plan.group} was moved is not known.") from None


def commit_offsets(client: Client, group: str, offsets: CommittedOffsets) -> None:
    """Commit these offsets, and delete the committed offset where there is None."""
    commits = {one: committed for one, committed in offsets.items() if committed is not None}
    gone = [one for one, committed in offsets.items() if committed is None]
    if commits:
        client.commit(group, commits)
    if gone:
        refused = client.delete_offsets(group, gone)
        if refused:
            raise _NotDeleted(refused, done=[one for one in offsets if one not in refused])


class _NotDeleted(UserError):
    """Commits of some partitions were not taken away; `done` names what was done."""

    def __init__(self, refused: Mapping[TopicPartition, RefusedByBroker], *, done: Sequence[TopicPartition]) -> None:
        partition, error = next(iter(refused.items()))
        super().__init__(f"The commit of {partition} was not taken away: {error}")
        self.done = done


def _take_back(client: Client, journal: Journal, change: Change, done: CommittedOffsets, why: str) -> None:
    if not done:
        journal.set_state(change.id, "refused")
        raise UserError(f"{why} Nothing was changed.")
    try:
        commit_offsets(client, change.name, done)
    except UserError as error:
        raise ChangePending(change.id, f"{why} What was done already could not be put back ({error}).") from None
    journal.set_state(change.id, "taken back")
    raise UserError(f"{why} The other partitions were put back, so nothing was changed.")


def _watch(
    client: Client, journal: Journal, change: Change, plan: ResetPlan, timeouts: WatchTimeouts, *, is_in_use: bool
) -> AppliedReset:
    watch = _Watch(client, plan, timeouts, lambda: _rival(journal, change), is_in_use=is_in_use)
    try:
        watch.run()
    except KeyboardInterrupt:
        journal.set_state(change.id, "done")
        raise
    except BrokerUnreachable as error:
        raise ChangePending(
            change.id, f"{error} Group {plan.group} was moved, but that could not be read back."
        ) from None
    if watch.lost:
        journal.set_state(change.id, "overwritten")
        raise UserError(watch.why_lost)
    journal.set_state(change.id, "done")
    return AppliedReset(
        plan=plan,
        change=replace(change, state="done"),
        is_in_use=is_in_use,
        repeats=watch.repeats,
        overwritten_by=watch.overwritten_by,
        picked_up_by=watch.picked_up_by,
    )


def _rival(journal: Journal, change: Change) -> Change | None:
    """Return a later change of the same partitions by somebody else, which must not be overwritten."""
    later = journal.changes(change.cluster_id, change.name, since_ms=change.at_ms)
    rivals = [
        one
        for one in sort_changes(later)
        if one.id > change.id and one.state in ("pending", "done") and not change.after.keys().isdisjoint(one.after)
    ]
    return rivals[-1] if rivals else None


class _Watch:
    """Reads back until the change has stayed for a while or a query has taken it up; sets it again where it has not."""

    def __init__(
        self,
        client: Client,
        plan: ResetPlan,
        timeouts: WatchTimeouts,
        rival: Callable[[], Change | None],
        *,
        is_in_use: bool,
    ) -> None:
        self._client = client
        self._rival = rival
        self._group = plan.group
        self._timeouts = timeouts
        self._moves = {move.partition: move for move in plan.changes}
        self._now: Mapping[TopicPartition, Committed] = {}
        has_reader = is_in_use or any(
            move.committed is not None and CommitMetadata.parse(move.committed.metadata) for move in plan.changes
        )
        begun = timeouts.monotonic()
        self._until = begun + (timeouts.watch_s if has_reader else timeouts.quiet_watch_s)
        # A query of ours does look at its group, so that trying on is worth while.
        self._set_until = begun + (4 if has_reader else 2) * timeouts.watch_s
        self.lost: list[TopicPartition] = []
        self.repeats = 0
        self.overwritten_by = self.picked_up_by = self.why_lost = ""

    def run(self) -> None:
        """Watches; afterwards `lost` names what did not stay."""
        while True:
            self._now = self._client.committed(self._group, list(self._moves))
            seen = {
                one: classify_read_back(replaced=move.committed, after=move.after, now=self._now.get(one))
                for one, move in self._moves.items()
            }
            self.lost = [one for one, what in seen.items() if what is ReadBack.OVERWRITTEN]
            at = self._timeouts.monotonic()
            if self.lost and at >= self._set_until:
                self.why_lost = self._sentence()
                return
            if self.lost:
                if not self._set_again():
                    return
                # What was set last is watched as well, or it could be written over as soon as nobody looks.
                self._until = max(self._until, self._timeouts.monotonic() + self._timeouts.watch_s / 2)
            elif at >= self._until or all(what is ReadBack.PICKED_UP for what in seen.values()):
                taken_up = [self._now[one] for one, what in seen.items() if what is ReadBack.PICKED_UP]
                self.picked_up_by = describe_committer(taken_up) if taken_up else ""
                return
            self._timeouts.sleep(_LOOK_EVERY_S)

    def _set_again(self) -> bool:
        marks = [CommitMetadata.parse(now.metadata) for one in self.lost if (now := self._now.get(one)) is not None]
        if any(mark is not None and mark.restored_ms is not None and mark.is_stateful for mark in marks):
            self.why_lost = (
                f"{self._sentence().partition(' A reader')[0]} That query keeps state, so it has restored its offsets. "
                "To read records again, replay its pipeline, which builds a new version."
            )
            return False
        rival = self._rival()
        if rival is not None:
            self.why_lost = (
                f"Group {self._group} was moved, and then moved elsewhere by {rival.who} on {rival.host} (change "
                f"{rival.id}, {rival.action} {rival.how}), which holds."
            )
            return False
        self.repeats += 1
        if self.repeats > 1:
            # The reader and we go round at about the same pace: without chance every commit could come at the moment
            # in which it is written over.
            self._timeouts.sleep(self._timeouts.watch_s * random.uniform(0, 0.1))  # noqa: S311
        self.overwritten_by = describe_committer(self._now.get(one) for one in self.lost)
        self._moves |= {one: _again(self._moves[one], self._now.get(one)) for one in self.lost}
        try:
            commit_offsets(self._client, self._group, {one: self._moves[one].after for one in self.lost})
        except (RefusedByBroker, _NotDeleted) as error:
            self.why_lost = f"{self._sentence()} Setting it again was refused: {error}"
            return False
        return True

    def _sentence(self) -> str:
        by = describe_committer(self._now.get(one) for one in self.lost)
        found = ", ".join(_format_commit(one, self._now.get(one)) for one in self.lost[:3])
        return (
            f"Group {self._group} was moved, and {by} has written over it ({found}). A reader that commits without "
            "looking runs in this group: stop it and try again."
        )


def _again(move: PartitionMove, now: Committed | None) -> PartitionMove:
    """Return the move from the offset that is committed now, with its metadata, so that its committer notices."""
    if move.after is None or move.is_exact:
        return replace(move, committed=now)
    return replace(move, committed=now, after=keep_metadata(now, move.after.offset))


def _format_commit(partition: TopicPartition, now: Committed | None) -> str:
    return f"{partition} has committed {now.offset}" if now else f"{partition} has no commit"
