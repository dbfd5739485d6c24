"""Moves of a group's committed offsets, as a plan that is shown before it is applied.

A plan is pure: it is made from where the group stands and what the logs hold, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import Committed
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.inspect import Place
from logmark.offsets.times import show_time


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To the log start: everything that is still there is read again."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To the visible end: everything that is there now is skipped."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To one offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record at or after a point in time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Forward, or back if negative, from the committed offset."""

    records: int


Target = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition's part of a plan: from the committed offset, if there is one, to another."""

    partition: TopicPartition
    committed: Committed | None
    start: int
    end: int
    to: int
    note: str = ""

    @property
    def read_again(self) -> int:
        """Records between the new place and the old that are still in the log."""
        if self.committed is None:
            return 0
        return max(0, min(self.committed.offset, self.end) - max(self.to, self.start))

    @property
    def skipped(self) -> int:
        """Records that the group has not read and now will not."""
        if self.committed is None:
            return 0
        return max(0, min(self.to, self.end) - max(self.committed.offset, self.start))

    @property
    def lag_after(self) -> int:
        """Records between the new place and the end."""
        return max(0, self.end - max(self.to, self.start))

    @property
    def is_change(self) -> bool:
        """The group will stand elsewhere afterwards."""
        return self.committed is None or self.committed.offset != self.to


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """Every move of one group, in order of topic and partition."""

    group: str
    moves: Sequence[Move]
    creates_group: bool = False

    @property
    def read_again(self) -> int:
        return sum(move.read_again for move in self.moves)

    @property
    def skipped(self) -> int:
        return sum(move.skipped for move in self.moves)


def make_plan(
    group: str,
    places: Sequence[Place],
    target: Target,
    *,
    found: Mapping[TopicPartition, int] | None = None,
    clamp: bool = False,
    creates_group: bool = False,
) -> ResetPlan:
    """The moves that take a group to its target; `found` has the offset of each partition for `ToTime`, -1 for none.

    An offset outside of a log is refused, or with `clamp` moved to the log's nearer end and noted.
    """
    for place in places:
        if place.problem or place.start is None or place.end is None:
            raise UserError(f"{place.problem or 'A log could not be asked.'} Nothing was changed.")
    return ResetPlan(
        group=group,
        moves=[_move(place, target, found or {}, clamp=clamp) for place in sorted(places, key=lambda p: p.partition)],
        creates_group=creates_group,
    )


def _move(place: Place, target: Target, found: Mapping[TopicPartition, int], *, clamp: bool) -> Move:
    start, end = place.start, place.end
    assert start is not None and end is not None
    note = ""
    match target:
        case ToEarliest():
            to = start
        case ToLatest():
            to = end
        case ToOffset(offset):
            to, note = _within(place, offset, clamp=clamp)
        case ToTime(timestamp_ms):
            to = found[place.partition]
            if to < 0:
                to, note = end, f"no record at or after {show_time(timestamp_ms)}: the end"
        case ShiftBy(records):
            if place.committed is None:
                raise UserError(
                    f"Group {place.group} has committed nothing in {place.partition}, so there is nothing to shift "
                    "from. Nothing was changed; use --to-earliest, --to-latest or --to-offset there."
                )
            to, note = _within(place, place.committed.offset + records, clamp=clamp)
    return Move(partition=place.partition, committed=place.committed, start=start, end=end, to=to, note=note)


def _within(place: Place, offset: int, *, clamp: bool) -> tuple[int, str]:
    start, end = place.start, place.end
    assert start is not None and end is not None
    if start <= offset <= end:
        return offset, ""
    if not clamp:
        raise UserError(
            f"Offset {offset} is out of range in partition {place.partition.partition} of topic "
            f"{place.partition.topic}, which holds offsets {start} to {end}. Nothing was changed; choose an offset in "
            "this range, name the partitions that you mean (--topic NAME:0,1), or add --clamp to go to the nearer end."
        )
    return (start, f"{offset} is below the log start") if offset < start else (end, f"{offset} is beyond the end")
