"""The coordinator of groups: the groups of one internal partition and their committed offsets, without any I/O.

`CoordinatorRuntime` runs it. It decides commands, and `apply` makes facts true, live and at load.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from logmark.coordination import group_records
from logmark.coordination.classic_group import ClassicGroup
from logmark.coordination.classic_membership import ClassicMembership
from logmark.coordination.commands import CommitOffsets, DeleteOffsets, GroupDeleted, Heartbeat, Join, Leave, Sync
from logmark.coordination.committed_offsets import CommittedOffset, CommittedOffsets
from logmark.coordination.facts import (
    Fact,
    GroupForgotten,
    GroupOutcome,
    GroupRecorded,
    OffsetCommitted,
    OffsetForgotten,
)
from logmark.coordination.group import GroupDescription, GroupListing, GroupState
from logmark.coordination.internal_log import LogBatch
from logmark.coordination.outcome import Outcome, Reply, Ticket
from logmark.coordination.settings import GroupSettings
from logmark.errors import ErrorCode, Refused


class GroupCoordinator:
    """The groups of one internal partition."""

    def __init__(
        self, settings: GroupSettings, *, new_id: Callable[[], str], has_room: Callable[[int], bool] = lambda size: True
    ) -> None:
        """Take the limits; `has_room` says whether all groups of the broker may take so much more memory."""
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = CommittedOffsets(
            metadata_chars_max=settings.metadata_chars_max,
            retention_ms=settings.offsets_retention_ms,
            has_room=has_room,
        )
        self._membership = ClassicMembership(self._groups, settings, new_id, has_room)
        # What each group takes without its offsets, and all of them.
        self._group_bytes: dict[str, int] = {}
        self._groups_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """How much memory the groups and their offsets take, about."""
        return self._groups_bytes + self._offsets.memory_bytes

    def _weigh(self, group_id: str) -> None:
        """Count what a group takes that may have changed."""
        group = self._groups.get(group_id)
        before = self._group_bytes.pop(group_id, 0)
        now = 0 if group is None else group.memory_bytes
        if now:
            self._group_bytes[group_id] = now
        self._groups_bytes += now - before

    # Deciding

    def join(self, command: Join, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a JoinGroup."""
        try:
            return self._membership.join(command, ticket, now_ms=now_ms)
        finally:
            self._weigh(command.group)

    def sync(self, command: Sync, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a SyncGroup."""
        return self._membership.sync(command, ticket, now_ms=now_ms)

    def heartbeat(self, command: Heartbeat, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a Heartbeat."""
        return self._membership.heartbeat(command, ticket, now_ms=now_ms)

    def leave(self, command: Leave, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a LeaveGroup."""
        try:
            return self._membership.leave(command, ticket, now_ms=now_ms)
        finally:
            self._weigh(command.group)

    def commit_offsets(self, command: CommitOffsets, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide an OffsetCommit; one without a generation makes a group that does not exist yet."""
        group = self._groups.get(command.group)
        if group is not None:
            group.check_committer(command)
            self._membership.keep_alive(group, command.member_id, now_ms=now_ms)
        elif command.generation >= 0:
            raise Refused(command.unknown_group_error)
        return self._offsets.commit(command, ticket, now_ms=now_ms)

    def delete_offsets(self, command: DeleteOffsets, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide an OffsetDelete."""
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(command.group)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        return self._offsets.delete(command, group, ticket)

    def delete_group(self, group_id: str, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide the deletion of one group: its offsets, then the group."""
        group = self._groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        return Outcome(
            facts=[*self._offsets.forgetting(group_id), GroupForgotten(group=group_id)],
            replies=[Reply(ticket, GroupDeleted())],
        )

    @property
    def has_offsets(self) -> bool:
        """Whether any group has committed anything."""
        return not self._offsets.is_empty

    def portions(self, offsets_max: int) -> Iterator[list[str]]:
        """Yield the groups in portions with about so many committed offsets."""
        portion: list[str] = []
        count = 0
        for group in list(self._groups):
            portion.append(group)
            count += 1 + len(self._offsets.of(group))
            if count >= offsets_max:
                yield portion
                portion, count = [], 0
        if portion:
            yield portion

    def forget_topics(
        self, is_gone: Callable[[str], bool], groups: Iterable[str] | None = None, *, facts_max: int | None = None
    ) -> GroupOutcome:
        """Decide to delete the offsets of groups in topics that were deleted.

        Of all groups or of those that are given, and at most so many at once.
        """
        groups = list(self._groups) if groups is None else groups
        return Outcome(facts=list(islice(self._offsets.forgetting_topics(is_gone, groups), facts_max)))

    def expire_offsets(
        self, *, now_ms: int, groups: Iterable[str] | None = None, facts_max: int | None = None
    ) -> GroupOutcome:
        """Decide to delete what was kept for longer than the retention, and empty groups with nothing left.

        Of all groups or of those that are given, and at most so many at once.
        """
        groups = list(self._groups) if groups is None else groups
        return Outcome(facts=list(islice(self._expired(groups, now_ms), facts_max)))

    def _expired(self, groups: Iterable[str], now_ms: int) -> Iterator[Fact]:
        for group_id in groups:
            group = self._groups.get(group_id)
            if group is None:
                continue
            expired = self._offsets.expired(group, now_ms=now_ms)
            yield from expired
            if group.is_idle and len(expired) == len(self._offsets.of(group.id)):
                yield GroupForgotten(group=group.id)

    def resume(self, *, now_ms: int) -> GroupOutcome:
        """Decide what follows from a load: every member has a new session."""
        return self._membership.resume(now_ms=now_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return when time alone will change something; None if nothing is awaited."""
        return self._membership.deadlines.next_ms()

    def move_deadlines(self, by_ms: int) -> None:
        """Move every deadline by so much, back if it is negative: somebody has set the clock."""
        self._membership.deadlines.move(by_ms)

    def expire(self, *, now_ms: int) -> GroupOutcome:
        """Decide one deadline that has passed."""
        deadline = self._membership.deadlines.pop(now_ms)
        if deadline is None:
            return Outcome()
        outcome = self._membership.expire(deadline, now_ms=now_ms)
        self._weigh(deadline.group)
        return outcome

    # Writing, loading and applying

    def encode(self, facts: Sequence[Fact]) -> LogBatch:
        """Return the batch that keeps facts; raise Malformed if none can."""
        return LogBatch([group_records.encode(fact) for fact in facts])

    def decode(self, batch: LogBatch) -> Iterator[Fact]:
        """Yield the facts that a batch keeps; other record types and control batches say nothing of groups."""
        if batch.is_control:
            return
        for key, value in batch.records:
            fact = group_records.decode(key, value)
            if fact is not None:
                yield fact

    def leaves_no_trace(self, facts: Sequence[Fact]) -> bool:
        """Return whether the facts are of offsets only: those are decided without a change of state."""
        return not any(isinstance(fact, GroupRecorded) for fact in facts)

    def apply(self, fact: Fact) -> None:
        """Make one written fact true, live and at load."""
        match fact:
            case OffsetCommitted():
                if fact.group not in self._groups:
                    self._groups[fact.group] = ClassicGroup(id=fact.group)
                    self._weigh(fact.group)
                self._offsets.apply(fact)
            case OffsetForgotten():
                self._offsets.apply(fact)
                self._drop_if_unused(fact.group)
            case GroupRecorded():
                if fact.group not in self._groups:
                    self._groups[fact.group] = ClassicGroup(id=fact.group)
                self._groups[fact.group].become(fact)
                self._weigh(fact.group)
            case GroupForgotten():
                self._forget_group(fact.group)

    def _drop_if_unused(self, group_id: str) -> None:
        """Drop a group without a record of its own that has lost its last offset, as a load would find it."""
        group = self._groups.get(group_id)
        if group is None or group.is_recorded or self._offsets.of(group_id):
            return
        if group.is_idle:
            del self._groups[group_id]
            self._weigh(group_id)

    def _forget_group(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._membership.forget(group)
        if self._offsets.of(group_id):
            self._groups[group_id] = ClassicGroup(id=group_id)
        self._weigh(group_id)

    # Reading

    def committed_offsets(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """Return every committed offset of a group by topic and partition; none if there is no such group."""
        return self._offsets.of(group_id)

    def offsets_bytes(self, group_id: str) -> int:
        """Return how much memory the committed offsets of a group take, about."""
        return self._offsets.bytes_of(group_id)

    def members_bytes(self, group_id: str) -> int:
        """Return how much memory a group takes without its offsets, about."""
        return self._group_bytes.get(group_id, 0)

    def list_groups(self) -> list[GroupListing]:
        """Return every group of this internal partition."""
        return [group.list() for group in self._groups.values()]

    def describe(self, group_id: str) -> GroupDescription | None:
        """Return a group as tools see it; None if there is none."""
        group = self._groups.get(group_id)
        return None if group is None else group.describe()
