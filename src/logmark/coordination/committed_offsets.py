"""The committed offsets of groups: commits, deletions and expiry."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from logmark.coordination.commands import (
    CommitOffsets,
    DeleteOffsets,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetToCommit,
)
from logmark.coordination.facts import Fact, GroupOutcome, OffsetCommitted, OffsetForgotten
from logmark.coordination.group import Group
from logmark.coordination.outcome import Outcome, Reply, Ticket
from logmark.errors import ErrorCode


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
        return offset_bytes(self.metadata)


# What a committed offset takes in memory, about, without its metadata.
OFFSET_BYTES = 300
# What a character takes at most that is not ASCII, in memory and in UTF-8.
METADATA_BYTES_PER_CHAR = 4


def offset_bytes(metadata: str) -> int:
    """Return how much memory a committed offset with this metadata takes, about; its bytes in a response are fewer."""
    return OFFSET_BYTES + len(metadata) * (1 if metadata.isascii() else METADATA_BYTES_PER_CHAR)


class CommittedOffsets:
    """The committed offsets of the groups of one internal partition."""

    def __init__(self, *, metadata_chars_max: int, retention_ms: int, has_room: Callable[[int], bool]) -> None:
        """Take the limits; `has_room` says whether all groups of the broker may take so much more memory."""
        self._metadata_chars_max = metadata_chars_max
        self._retention_ms = retention_ms
        self._has_room = has_room
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.memory_bytes = 0
        self._bytes_by_group: dict[str, int] = {}

    def bytes_of(self, group: str) -> int:
        """Return how much memory the offsets of a group take, about."""
        return self._bytes_by_group.get(group, 0)

    def _count(self, group: str, size_bytes: int) -> None:
        self.memory_bytes += size_bytes
        self._bytes_by_group[group] = self._bytes_by_group.get(group, 0) + size_bytes

    def of(self, group: str) -> dict[tuple[str, int], CommittedOffset]:
        """Return every committed offset of the group, by topic and partition."""
        return self._by_group.get(group, {})

    # Deciding

    def commit(self, command: CommitOffsets, ticket: Ticket, *, now_ms: int) -> GroupOutcome:
        """Decide a commit: each offset, but for those whose metadata is too long or for which there is no memory.

        An offset that replaces another one with no shorter metadata needs no memory.
        """
        expires_at_ms = None if command.retention_ms is None else now_ms + command.retention_ms
        errors = tuple(self._metadata_error(offset) for offset in command.offsets)
        if not self._has_room(sum(offset_bytes(offset.metadata) for offset in command.offsets)):
            errors = tuple(self._memory_errors(command, errors))
        facts: list[Fact] = [
            OffsetCommitted(
                group=command.group,
                topic=offset.topic,
                partition=offset.partition,
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                committed_at_ms=now_ms,
                expires_at_ms=expires_at_ms,
            )
            for offset, error in zip(command.offsets, errors, strict=True)
            if error is ErrorCode.NONE
        ]
        return Outcome(facts=facts, replies=[Reply(ticket, OffsetsCommitted(errors=errors))])

    def _metadata_error(self, offset: OffsetToCommit) -> ErrorCode:
        # Kafka counts UTF-16 code units; no text has more of them than twice its characters.
        length = len(offset.metadata)
        if length * 2 > self._metadata_chars_max:
            length = len(offset.metadata.encode("utf-16-be")) // 2
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if length > self._metadata_chars_max else ErrorCode.NONE

    def _memory_errors(self, command: CommitOffsets, errors: Iterable[ErrorCode]) -> Iterator[ErrorCode]:
        """Yield the errors of offsets, of which those that need memory get as much as there is, in their order."""
        known = self.of(command.group)
        growth = 0
        for offset, error in zip(command.offsets, errors, strict=True):
            if error is ErrorCode.NONE:
                before = known.get((offset.topic, offset.partition))
                more = offset_bytes(offset.metadata) - (0 if before is None else before.memory_bytes)
                if more > 0:
                    if not self._has_room(growth + more):
                        yield ErrorCode.COORDINATOR_NOT_AVAILABLE
                        continue
                    growth += more
            yield error

    def delete(self, command: DeleteOffsets, group: Group, ticket: Ticket) -> GroupOutcome:
        """Decide a deletion of offsets; those in topics that the group still reads stay."""
        group.check_offset_deletion()
        known = self.of(command.group)
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, _ in command.partitions
        )
        facts: list[Fact] = [
            OffsetForgotten(group=command.group, topic=topic, partition=partition)
            for (topic, partition), error in zip(command.partitions, errors, strict=True)
            if error is ErrorCode.NONE and (topic, partition) in known
        ]
        return Outcome(facts=facts, replies=[Reply(ticket, OffsetsDeleted(errors=errors))])

    def forgetting(self, group: str) -> Iterator[OffsetForgotten]:
        """Return the facts that delete every offset of the group."""
        return (OffsetForgotten(group=group, topic=topic, partition=index) for topic, index in self.of(group))

    @property
    def is_empty(self) -> bool:
        """Whether no group has committed anything."""
        return not self._by_group

    def forgetting_topics(self, is_gone: Callable[[str], bool], groups: Iterable[str]) -> Iterator[OffsetForgotten]:
        """Return the facts that delete the offsets of groups in topics that are gone."""
        return (
            OffsetForgotten(group=group, topic=topic, partition=partition)
            for group in groups
            for topic, partition in self.of(group)
            if is_gone(topic)
        )

    def expired(self, group: Group, *, now_ms: int) -> list[OffsetForgotten]:
        """Return the facts that delete what the group has kept for longer than the retention."""
        return [
            OffsetForgotten(group=group.id, topic=topic, partition=partition)
            for (topic, partition), committed in self.of(group.id).items()
            if not group.is_subscribed_to(topic) and self._is_expired(group, committed, now_ms=now_ms)
        ]

    def _is_expired(self, group: Group, committed: CommittedOffset, *, now_ms: int) -> bool:
        start_ms = group.retention_start_ms(committed.committed_at_ms)
        if start_ms is None:
            return False
        if committed.expires_at_ms is not None:
            return now_ms >= committed.expires_at_ms
        return now_ms - start_ms >= self._retention_ms

    # Applying

    def apply(self, fact: OffsetCommitted | OffsetForgotten) -> None:
        """Make a fact true, live and at load; committed offsets change nowhere else."""
        key = (fact.topic, fact.partition)
        if isinstance(fact, OffsetCommitted):
            offsets = self._by_group.setdefault(fact.group, {})
            before = offsets.get(key)
            offsets[key] = CommittedOffset(
                offset=fact.offset,
                leader_epoch=fact.leader_epoch,
                metadata=fact.metadata,
                committed_at_ms=fact.committed_at_ms,
                expires_at_ms=fact.expires_at_ms,
            )
            self._count(fact.group, offset_bytes(fact.metadata) - (0 if before is None else before.memory_bytes))
            return
        known = self._by_group.get(fact.group)
        if known is not None:
            forgotten = known.pop(key, None)
            if forgotten is not None:
                self._count(fact.group, -forgotten.memory_bytes)
            if not known:
                del self._by_group[fact.group], self._bytes_by_group[fact.group]
