"""The range of offsets that a replay reads in each partition."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from logmark.client.errors import OffsetOutOfRange
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.errors import RangeBackward
from logmark.offsets.offset_spec import OffsetSpec, parse_offset_spec

OffsetSpecs = OffsetSpec | Mapping[int, OffsetSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """A partition's log for a read_committed reader, and the offsets at the times where the range starts and ends."""

    start: int
    end: int
    at_from_time: int = -1
    at_to_time: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """A bounded range of one partition: `stop` is the first offset that is not in it."""

    partition: int
    start: int
    stop: int
    note: str = ""

    @property
    def offsets(self) -> int:
        """How many offsets there are; compaction and transactions may leave fewer records."""
        return self.stop - self.start


def parse_offset_specs(text: str, *, now_ms: int) -> OffsetSpecs:
    """One position for all partitions, or one for each that is named: 0:100,1:200."""
    if not re.match(r"\d+:", text):
        return parse_offset_spec(text, now_ms=now_ms)
    found: dict[int, OffsetSpec] = {}
    for part in text.split(","):
        number, colon, spec = part.strip().partition(":")
        if not colon or not re.fullmatch(r"\d{1,9}", number, re.ASCII):
            raise UserError(f"{part!r} names no partition and offset: write 0:100,1:200.", exit_code=2)
        if int(number) in found:
            raise UserError(f"{text!r} names partition {int(number)} twice.", exit_code=2)
        found[int(number)] = parse_offset_spec(spec, now_ms=now_ms)
    return found


def spec_for_partition(specs: OffsetSpecs, partition: int) -> OffsetSpec | None:
    """Return the offset spec of a partition, None if only other partitions are named."""
    return specs if isinstance(specs, OffsetSpec) else specs.get(partition)


def plan_ranges(
    topic: str, logs: Mapping[int, PartitionLog], begin: OffsetSpecs, end: OffsetSpecs
) -> list[OffsetRange]:
    """Return the ranges between two offset specs, in order of partition, without partitions that `begin` does not name.

    An offset that lies outside of some logs is moved to their nearer end and noted; one that lies outside of all of
    them is refused, and so is an end before the beginning.
    """
    begins = {number: spec for number in logs if (spec := spec_for_partition(begin, number)) is not None}
    ends = {number: spec_for_partition(end, number) or OffsetSpec(is_latest=True) for number in begins}
    for specs in (begins, ends):
        _refuse_if_outside(topic, logs, specs)
    spans, is_backward = [], bool(begins)
    for number in sorted(begins):
        log = logs[number]
        start, start_note = _offset_of(begins[number], log, log.at_from_time)
        stop, stop_note = _offset_of(ends[number], log, log.at_to_time)
        is_backward = is_backward and stop < start
        notes = [note for note in (start_note, stop_note) if note]
        spans.append(OffsetRange(partition=number, start=start, stop=max(start, stop), note="; ".join(notes)))
    if is_backward:
        raise RangeBackward("The range ends before it starts. Nothing was copied", "choose an end behind the start")
    return spans


def _refuse_if_outside(topic: str, logs: Mapping[int, PartitionLog], specs: Mapping[int, OffsetSpec]) -> None:
    named = {number: spec.offset for number, spec in specs.items() if spec.offset is not None}
    outside = {n: offset for n, offset in named.items() if not logs[n].start <= offset <= logs[n].end}
    if named and len(outside) == len(named):
        number, offset = min(outside.items())
        raise OffsetOutOfRange(
            TopicPartition(topic, number), offset, log_start=logs[number].start, log_end=logs[number].end
        )


def _offset_of(spec: OffsetSpec, log: PartitionLog, at_time: int) -> tuple[int, str]:
    if spec.is_earliest:
        return log.start, ""
    if spec.offset is not None:
        if spec.offset < log.start:
            return log.start, f"{spec.offset} is below the log start"
        if spec.offset > log.end:
            return log.end, f"{spec.offset} is beyond the end"
        return spec.offset, ""
    if spec.before_end is not None:
        return max(log.start, log.end - spec.before_end), ""
    if spec.timestamp_ms is not None:
        return min(max(at_time, log.start), log.end) if at_time >= 0 else log.end, ""
    return log.end, ""
