"""Committed offsets: each group's place in each partition, and when it is forgotten."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from logmark.coordination.commands import (
    CommitOffsets,
    DeleteOffsets,
    OffsetsCommitted,
    OffsetsDeleted,
    Outcome,
    Place,
    Reply,
    Ticket,
)
from logmark.coordination.facts import Fact, OffsetCommitted, OffsetForgotten
from logmark.coordination.group import Group, GroupState
from logmark.errors import ErrorCode, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset that a group will read of a partition after a restart."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None

    @property
    def memory_bytes(self) -> int:
        """How much memory it takes, about."""
        return OFFSET_BYTES + len(self.metadata)


# What a committed offset takes in memory, about, without its metadata.
OFFSET_BYTES = 300


class Offsets:
    """The committed offsets of the groups of one internal partition."""

    def __init__(self, *, metadata_chars_max: int, retention_ms: int, has_room: Callable[[int], bool]) -> None:
        """Take the limits; `has_room` says whether all groups of the broker may take so much more memory."""
        self._metadata_chars_max = metadata_chars_max
        self._retention_ms = retention_ms
        self._has_room = has_room
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.memory_bytes = 0

    def of(self, group: str) -> dict[tuple[str, int], CommittedOffset]:
        """Every place of the group, by topic and partition."""
        return self._by_group.get(group, {})

    # Deciding

    def commit(self, command: CommitOffsets, ticket: Ticket, *, now_ms: int) -> Outcome:
        """The places become true, but for those whose metadata is too long, or for which there is no memory.

        The others are those that a group has already, with metadata that is no longer than it was.
        """
        expires_at_ms = None if command.retention_ms is None else now_ms + command.retention_ms
        errors = tuple(self._place_error(place) for place in command.places)
        if not self._has_room(sum(OFFSET_BYTES + len(place.metadata) for place in command.places)):
            errors = tuple(self._memory_errors(command, errors))
        facts: list[Fact] = [
            OffsetCommitted(
                group=command.group,
                topic=place.topic,
                partition=place.partition,
                offset=place.offset,
                leader_epoch=place.leader_epoch,
                metadata=place.metadata,
                committed_at_ms=now_ms,
                expires_at_ms=expires_at_ms,
            )
            for place, error in zip(command.places, errors, strict=True)
            if error is ErrorCode.NONE
        ]
        return Outcome(facts=facts, replies=[Reply(ticket, OffsetsCommitted(errors=errors))])

    def _place_error(self, place: Place) -> ErrorCode:
        # Kafka counts UTF-16 code units; no text has more of them than twice its characters.
        length = len(place.metadata)
        if length * 2 > self._metadata_chars_max:
            length = len(place.metadata.encode("utf-16-be")) // 2
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if length > self._metadata_chars_max else ErrorCode.NONE

    def _memory_errors(self, command: CommitOffsets, errors: Iterable[ErrorCode]) -> Iterator[ErrorCode]:
        """Yield the errors of places, of which those that need memory get as much as there is, in their order."""
        known = self.of(command.group)
        growth = 0
        for place, error in zip(command.places, errors, strict=True):
            if error is ErrorCode.NONE:
                before = known.get((place.topic, place.partition))
                more = len(place.metadata) + OFFSET_BYTES - (0 if before is None else before.memory_bytes)
                if more > 0:
                    if not self._has_room(growth + more):
                        yield ErrorCode.COORDINATOR_NOT_AVAILABLE
                        continue
                    growth += more
            yield error

    def delete(self, command: DeleteOffsets, group: Group, ticket: Ticket) -> Outcome:
        """The places are forgotten, but for those in topics that the group still reads."""
        if group.state is not GroupState.EMPTY and not group.is_of_consumers:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        places = self.of(command.group)
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, _ in command.partitions
        )
        facts: list[Fact] = [
            OffsetForgotten(group=command.group, topic=topic, partition=partition)
            for (topic, partition), error in zip(command.partitions, errors, strict=True)
            if error is ErrorCode.NONE and (topic, partition) in places
        ]
        return Outcome(facts=facts, replies=[Reply(ticket, OffsetsDeleted(errors=errors))])

    def forgetting(self, group: str) -> Iterator[OffsetForgotten]:
        """The facts that forget every place of the group."""
        return (OffsetForgotten(group=group, topic=topic, partition=index) for topic, index in self.of(group))

    @property
    def is_empty(self) -> bool:
        """Whether no group has a place anywhere."""
        return not self._by_group

    def forgetting_topics(self, is_gone: Callable[[str], bool], groups: Iterable[str]) -> Iterator[OffsetForgotten]:
        """The facts that forget the places of groups in topics that are gone."""
        return (
            OffsetForgotten(group=group, topic=topic, partition=partition)
            for group in groups
            for topic, partition in self.of(group)
            if is_gone(topic)
        )

    def expired(self, group: Group, *, now_ms: int) -> list[OffsetForgotten]:
        """The facts that forget what the group kept for longer than the retention.

        When the clock starts: for an empty group that had members, when the last one left; for a group that never had
        any, at each commit; for consumers at work, at each commit, in topics that none of them reads any more. Other
        groups with members forget nothing.
        """
        start_of = _clock_start_of(group)
        if start_of is None:
            return []
        return [
            OffsetForgotten(group=group.id, topic=topic, partition=partition)
            for (topic, partition), place in self.of(group.id).items()
            if not group.is_subscribed_to(topic) and self._is_expired(place, start_of(place), now_ms=now_ms)
        ]

    def _is_expired(self, place: CommittedOffset, started_at_ms: int, *, now_ms: int) -> bool:
        if place.expires_at_ms is not None:
            return now_ms >= place.expires_at_ms
        return now_ms - started_at_ms >= self._retention_ms

    # Applying

    def apply(self, fact: OffsetCommitted | OffsetForgotten) -> None:
        """The only place where committed offsets change: live and at load."""
        key = (fact.topic, fact.partition)
        if isinstance(fact, OffsetCommitted):
            places = self._by_group.setdefault(fact.group, {})
            before = places.get(key)
            places[key] = CommittedOffset(
                offset=fact.offset,
                leader_epoch=fact.leader_epoch,
                metadata=fact.metadata,
                committed_at_ms=fact.committed_at_ms,
                expires_at_ms=fact.expires_at_ms,
            )
            self.memory_bytes += OFFSET_BYTES + len(fact.metadata) - (0 if before is None else before.memory_bytes)
            return
        known = self._by_group.get(fact.group)
        if known is not None:
            forgotten = known.pop(key, None)
            if forgotten is not None:
                self.memory_bytes -= forgotten.memory_bytes
            if not known:
                del self._by_group[fact.group]


def check_committer(group: Group, command: CommitOffsets) -> None:
    """Refuses a commit from outside the group's present generation."""
    if command.generation < 0 and group.state is GroupState.EMPTY:
        return  # a tool, or a consumer that assigns its partitions itself
    if command.generation < 0 and not command.member_id and command.instance_id is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(command.member_id, command.instance_id)
    if command.generation != group.generation:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    if group.state is GroupState.COMPLETING:
        # The member knows the generation but not yet what it owns in it.
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)


def _clock_start_of(group: Group) -> Callable[[CommittedOffset], int] | None:
    if group.protocol_type is None:
        return lambda place: place.committed_at_ms
    if group.state is GroupState.EMPTY:
        emptied_at_ms = group.state_changed_at_ms
        return lambda place: place.committed_at_ms if emptied_at_ms == -1 else emptied_at_ms
    if group.state is GroupState.STABLE and group.is_of_consumers and group.subscribed_topics is not None:
        return lambda place: place.committed_at_ms
    return None
