"""Turns the target of a reset into offsets: what the log start, the end, a time, a shift or a key means in a log."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from logmark.names import TopicPartition
from logmark.offsets.errors import NothingToShift, OffsetOutsideLog
from logmark.offsets.partitions import GroupPartition
from logmark.offsets.reset.targets import (
    ShiftBy,
    Target,
    ToCurrent,
    ToEarliest,
    ToKey,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
)
from logmark.offsets.times import format_time

if TYPE_CHECKING:
    from logmark.client.client import Client


def look_up_times(
    client: "Client", partitions: Sequence[TopicPartition], target: Target
) -> dict[TopicPartition, int] | None:
    """Return the offsets at the time that the target names, -1 where no record is that young; None if it names none."""
    if not isinstance(target, ToTime):
        return None
    answers = client.list_offsets(dict.fromkeys(partitions, target.timestamp_ms))
    return {one: answer.offset for one, answer in answers.items()}


def resolve_target(
    one: GroupPartition, target: Target, found: Mapping[TopicPartition, int], notes: list[str], *, clamp: bool
) -> int:
    """Return the offset that the target means in a partition, and add to `notes` what the user should know of it.

    `found` is what `look_up_times` has returned. Raises NothingToShift, and without `clamp` OffsetOutsideLog.
    """
    start, end = one.start, one.end
    assert start is not None and end is not None
    match target:
        case ToEarliest():
            return start
        case ToLatest():
            return end
        case ToOffset(offset):
            return _within(one, offset, notes, clamp=clamp)
        case ToTime(timestamp_ms):
            if found[one.partition] >= 0:
                return found[one.partition]
            notes.append(f"no record at or after {format_time(timestamp_ms)}: the end")
            return end
        case ShiftBy(records):
            if one.committed is None:
                raise NothingToShift(
                    f"Group {one.group} has committed nothing in {one.partition}, so there is nothing to shift "
                    "from. Nothing was changed",
                    "use ToEarliest, ToLatest or ToOffset there",
                )
            return _within(one, one.committed.offset + records, notes, clamp=clamp)
        case ToCurrent():
            notes.append("the end")
            return end
        case ToOffsets(offsets):
            return _within(one, offsets[one.partition].offset, notes, clamp=clamp)
        case ToKey(found=records_found, is_after=is_after):
            record = records_found[one.partition]
            notes.append(f"the key is at offset {record.offset}, written {format_time(record.timestamp_ms)}")
            return record.offset + is_after


def _within(one: GroupPartition, offset: int, notes: list[str], *, clamp: bool) -> int:
    start, end = one.start, one.end
    assert start is not None and end is not None
    if start <= offset <= end:
        return offset
    if not clamp:
        raise OffsetOutsideLog(
            f"Offset {offset} is out of range in partition {one.partition.partition} of topic "
            f"{one.partition.topic}, which holds offsets {start} to {end}. Nothing was changed",
            "choose an offset in this range, name the partitions that you mean, or pass clamp=True to go to the nearer "
            "end",
        )
    notes.append(f"{offset} is below the log start" if offset < start else f"{offset} is beyond the end")
    return start if offset < start else end
