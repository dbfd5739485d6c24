"""The coordinator of one internal partition: its groups and their offsets, decided and applied without any I/O."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from logmark.coordination.commands import (
    CommitOffsets,
    DeleteOffsets,
    GroupDeleted,
    Heartbeat,
    Join,
    Leave,
    Outcome,
    Reply,
    Sync,
    Ticket,
)
from logmark.coordination.facts import Fact, GroupForgotten, GroupRecorded, OffsetCommitted, OffsetForgotten
from logmark.coordination.group import Group, GroupState
from logmark.coordination.offsets import CommittedOffset, Offsets, check_committer
from logmark.coordination.rebalance import GroupSettings, Rebalances
from logmark.errors import ErrorCode, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list."""

    id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member as tools see it; its subscription only while the group is stable."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as tools see it."""

    id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class Coordinator:
    """Decides commands against its groups, and makes facts true: `apply` serves both the live path and the load."""

    def __init__(
        self, settings: GroupSettings, *, new_id: Callable[[], str], has_room: Callable[[int], bool] = lambda size: True
    ) -> None:
        """Take the limits; `has_room` says whether all groups of the broker may take so much more memory."""
        self._groups: dict[str, Group] = {}
        self._offsets = Offsets(
            metadata_chars_max=settings.metadata_chars_max,
            retention_ms=settings.offsets_retention_ms,
            has_room=has_room,
        )
        self._rebalances = Rebalances(self._groups, settings, new_id, has_room)
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

    def join(self, command: Join, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides a JoinGroup."""
        try:
            return self._rebalances.join(command, ticket, now_ms=now_ms)
        finally:
            self._weigh(command.group)

    def sync(self, command: Sync, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides a SyncGroup."""
        return self._rebalances.sync(command, ticket, now_ms=now_ms)

    def heartbeat(self, command: Heartbeat, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides a Heartbeat."""
        return self._rebalances.heartbeat(command, ticket, now_ms=now_ms)

    def leave(self, command: Leave, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides a LeaveGroup."""
        try:
            return self._rebalances.leave(command, ticket, now_ms=now_ms)
        finally:
            self._weigh(command.group)

    def commit_offsets(self, command: CommitOffsets, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides an OffsetCommit; one without a generation makes a group that does not exist yet."""
        group = self._groups.get(command.group)
        if group is not None:
            check_committer(group, command)
            self._rebalances.keep_alive(group, command.member_id, now_ms=now_ms)
        elif command.generation >= 0:
            raise Refused(command.unknown_group_error)
        return self._offsets.commit(command, ticket, now_ms=now_ms)

    def delete_offsets(self, command: DeleteOffsets, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides an OffsetDelete."""
        if not command.group:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(command.group)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        return self._offsets.delete(command, group, ticket)

    def delete_group(self, group_id: str, ticket: Ticket, *, now_ms: int) -> Outcome:
        """Decides the deletion of one group: its offsets, then the group."""
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

    def portions(self, places_max: int) -> Iterator[list[str]]:
        """Yield the groups in portions with about so many committed offsets."""
        portion: list[str] = []
        count = 0
        for group in list(self._groups):
            portion.append(group)
            count += 1 + len(self._offsets.of(group))
            if count >= places_max:
                yield portion
                portion, count = [], 0
        if portion:
            yield portion

    def forget_topics(
        self, is_gone: Callable[[str], bool], groups: Iterable[str] | None = None, *, facts_max: int | None = None
    ) -> Outcome:
        """Topics were deleted: no group has a place in them any more.

        All groups, or the ones that are given, forget their places, or as many as are allowed at once.
        """
        groups = list(self._groups) if groups is None else groups
        return Outcome(facts=list(islice(self._offsets.forgetting_topics(is_gone, groups), facts_max)))

    def expire_offsets(
        self, *, now_ms: int, groups: Iterable[str] | None = None, facts_max: int | None = None
    ) -> Outcome:
        """Forgets what was kept for longer than the retention, and empty groups with nothing left.

        All groups, or the ones that are given, forget their places, or as many as are allowed at once.
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
            is_idle = group.state is GroupState.EMPTY and not group.pending
            if is_idle and len(expired) == len(self._offsets.of(group.id)):
                yield GroupForgotten(group=group.id)

    def resume(self, *, now_ms: int) -> Outcome:
        """Decides what follows from a load: every member has a fresh session."""
        return self._rebalances.resume(now_ms=now_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When time alone will change something, None while nothing is awaited."""
        return self._rebalances.deadlines.next_ms()

    def is_due(self, *, now_ms: int) -> bool:
        """A deadline has passed."""
        deadline_ms = self.next_deadline_ms()
        return deadline_ms is not None and deadline_ms <= now_ms

    def expire(self, *, now_ms: int) -> Outcome:
        """Decides one deadline that has passed."""
        deadline = self._rebalances.deadlines.pop(now_ms)
        if deadline is None:
            return Outcome()
        outcome = self._rebalances.expire(deadline, now_ms=now_ms)
        self._weigh(deadline.group)
        return outcome

    # Applying

    def apply(self, fact: Fact) -> None:
        """Makes one journaled fact true, live and at load."""
        match fact:
            case OffsetCommitted():
                if fact.group not in self._groups:
                    self._groups[fact.group] = Group(id=fact.group)
                    self._weigh(fact.group)
                self._offsets.apply(fact)
            case OffsetForgotten():
                self._offsets.apply(fact)
                self._let_go(fact.group)
            case GroupRecorded():
                if fact.group not in self._groups:
                    self._groups[fact.group] = Group(id=fact.group)
                self._groups[fact.group].become(fact)
                self._weigh(fact.group)
            case GroupForgotten():
                self._forget_group(fact.group)

    def _let_go(self, group_id: str) -> None:
        """A group without a record of its own is gone with its last offset, as a load would find it."""
        group = self._groups.get(group_id)
        if group is None or group.is_recorded or self._offsets.of(group_id):
            return
        if group.state is GroupState.EMPTY and not group.pending:
            del self._groups[group_id]
            self._weigh(group_id)

    def _forget_group(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._rebalances.forget(group)
        if self._offsets.of(group_id):
            self._groups[group_id] = Group(id=group_id)
        self._weigh(group_id)

    # Reading

    def committed_offsets(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """Every place of the group by topic and partition; none for a group that does not exist."""
        return self._offsets.of(group_id)

    def list_groups(self) -> list[GroupListing]:
        """Every group of this internal partition."""
        return [
            GroupListing(id=group.id, protocol_type=group.protocol_type or "", state=group.state)
            for group in self._groups.values()
        ]

    def describe(self, group_id: str) -> GroupDescription | None:
        """The group as it stands, None when there is none."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        is_stable = group.state is GroupState.STABLE
        return GroupDescription(
            id=group.id,
            state=group.state,
            protocol_type=group.protocol_type or "",
            protocol=(group.protocol or "") if is_stable else "",
            members=tuple(
                MemberDescription(
                    id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(group.protocol) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ),
        )
