"""Moves of a group's committed offsets, as a plan that is shown before it is applied.

A plan is pure: it is made from committed offsets and log bounds, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.partitions import GroupPartition
from logmark.offsets.reset.target_offsets import resolve_target
from logmark.offsets.reset.targets import ShiftBy, Target, ToCurrent, ToKey, ToOffsets

NOTHING_YET = "nothing committed yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedRecords:
    """The records between the old committed offset of a group and the new one: when they were written, and their size.

    `is_upper_bound` says that fewer records lie there than offsets: some were compacted away or are markers.
    """

    first_ms: int | None = None
    last_ms: int | None = None
    size_bytes: int | None = None
    is_upper_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """One partition's part of a plan: what is committed, and what will be; None stands for nothing."""

    partition: TopicPartition
    committed: Committed | None
    after: Committed | None
    start: int
    end: int
    note: str = ""
    is_exact: bool = False  # `after` is to be restored as it is, with its metadata and its leader epoch
    renews: bool = False  # the same is committed again, which keeps it from expiring
    span: AffectedRecords | None = None

    @property
    def to(self) -> int | None:
        """The offset that is read next afterwards."""
        return self.after.offset if self.after else None

    @property
    def touched(self) -> tuple[int, int]:
        """The part of the log between the old committed offset and the new one: [first, behind the last)."""
        if self.committed is None or self.after is None:
            return self.end, self.end
        low, high = sorted((self.committed.offset, self.after.offset))
        low, high = max(low, self.start), min(high, self.end)
        return (low, high) if low < high else (self.end, self.end)

    @property
    def read_again(self) -> int:
        """How many records lie between the new committed offset and the old one, which the group reads again."""
        return self._touched_count if self._distance < 0 else 0

    @property
    def skipped(self) -> int:
        """How many records the group has not read and will not read."""
        return self._touched_count if self._distance > 0 else 0

    @property
    def lag_after(self) -> int | None:
        """How many records lie between the new committed offset and the end."""
        return None if self.after is None else max(0, self.end - max(self.after.offset, self.start))

    @property
    def is_change(self) -> bool:
        """Something is committed, or taken away, where it is applied."""
        return self.renews or self.committed != self.after

    @property
    def _distance(self) -> int:
        return 0 if self.committed is None or self.after is None else self.after.offset - self.committed.offset

    @property
    def _touched_count(self) -> int:
        first, stop = self.touched
        return stop - first


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """Every move of one group, in order of topic and partition, and what was asked for.

    `warnings` are for the user who decides: the group was seen to move. `cautions` are what nobody knows about its
    query. `topic_ids` tells later whether a topic is still the same one.
    """

    group: str
    moves: Sequence[PartitionMove]
    creates_group: bool = False
    action: str = "reset"
    how: str = ""
    target: Target | None = None
    clamp: bool = False
    undoes: str | None = None
    warnings: Sequence[str] = ()
    cautions: Sequence[str] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> list[PartitionMove]:
        """The moves that change something."""
        return [move for move in self.moves if move.is_change]

    @property
    def read_again(self) -> int:
        return sum(move.read_again for move in self.moves)

    @property
    def skipped(self) -> int:
        return sum(move.skipped for move in self.moves)

    @property
    def size_bytes(self) -> int | None:
        """About how many bytes are read again or skipped, or None if no partition could be looked at."""
        known = [move.span.size_bytes for move in self.moves if move.span and move.span.size_bytes is not None]
        return sum(known) if known else None

    @property
    def is_upper_bound(self) -> bool:
        """Some of the counts are distances between offsets that hold fewer records."""
        return any(move.span is not None and move.span.is_upper_bound for move in self.moves)

    @property
    def is_absolute(self) -> bool:
        """The new offsets do not depend on the committed ones."""
        return not isinstance(self.target, ShiftBy | ToCurrent)

    def rebase_on(self, now: Mapping[TopicPartition, Committed]) -> "ResetPlan":
        """Return the same plan for other committed offsets."""
        return replace(self, moves=[self._again(move, now.get(move.partition)) for move in self.moves])

    def only_forward(self, now: Mapping[TopicPartition, Committed]) -> bool:
        """Return whether the group has at most moved forward since this plan, as a reader does."""
        return all(
            (there := now.get(move.partition)) is not None and there.offset >= move.committed.offset
            for move in self.moves
            if move.committed is not None
        )

    def _again(self, move: PartitionMove, now: Committed | None) -> PartitionMove:
        if now == move.committed:
            return move
        if self.is_absolute:
            fresh = replace(move, committed=now, span=None)
            return fresh if move.is_exact or move.to is None else replace(fresh, after=keep_metadata(now, move.to))
        assert self.target is not None
        one = GroupPartition(group=self.group, partition=move.partition, committed=now, start=move.start, end=move.end)
        return _move(one, self.target, {}, clamp=self.clamp)


def keep_metadata(committed: Committed | None, to: int) -> Committed:
    """Return a commit at another offset with the old metadata; the leader epoch belonged to the old offset."""
    if committed is not None and committed.offset == to:
        return committed
    return Committed(offset=to, metadata=committed.metadata if committed else "")


def build_plan(
    group: str,
    partitions: Sequence[GroupPartition],
    target: Target,
    *,
    found: Mapping[TopicPartition, int] | None = None,
    clamp: bool = False,
    creates_group: bool = False,
    action: str = "reset",
) -> ResetPlan:
    """Return the moves to the target; `found` has the offset of each partition for `ToTime`, -1 for none.

    An offset outside of a log is refused, or with `clamp` moved to the log's nearer end and noted.
    """
    for one in partitions:
        if one.problem or one.start is None or one.end is None:
            raise UserError(f"{one.problem or 'A log could not be asked.'} Nothing was changed.")
    return ResetPlan(
        group=group,
        moves=[_move(one, target, found or {}, clamp=clamp) for one in sorted(partitions, key=lambda p: p.partition)],
        creates_group=creates_group,
        action=action,
        how=target.description,
        target=target,
        clamp=clamp,
    )


def _move(one: GroupPartition, target: Target, found: Mapping[TopicPartition, int], *, clamp: bool) -> PartitionMove:
    assert one.start is not None and one.end is not None
    move = PartitionMove(
        partition=one.partition, committed=one.committed, after=one.committed, start=one.start, end=one.end
    )
    notes = [NOTHING_YET] if one.committed is None else []
    if isinstance(target, ToCurrent) and one.committed is not None:
        return replace(move, renews=True, note="committed again as it is")
    if isinstance(target, ToKey) and one.partition not in target.found:
        return replace(move, note="; ".join([*notes, "no record with this key: stays"]))
    to = resolve_target(one, target, found, notes, clamp=clamp)
    note = "; ".join(notes)
    if isinstance(target, ToOffsets) and target.is_exact and to == target.offsets[one.partition].offset:
        return replace(move, after=target.offsets[one.partition], is_exact=True, note=note)
    return replace(move, after=keep_metadata(one.committed, to), note=note)
