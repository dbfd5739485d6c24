"""The schedule of compaction, by Kafka's rules: which part of a log is due, and which segments become one.

The part that was cleaned before ends at the cleaner's checkpoint; what lies behind it is dirty. Only whole inactive
segments below the last stable offset are cleaned. Which records stay is decided elsewhere: `wire/compaction_filter.py`
keeps at least the newest one of every key, and `transaction_retention` removes what was aborted.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

RELATIVE_OFFSET_MAX = 2**31 - 1


class CompactionSegment(NamedTuple):
    """A segment as compaction sees it; timestamps are -1 where there are none or nobody asks."""

    base_offset: int
    size_bytes: int
    largest_timestamp: int = -1
    first_timestamp: int = -1


class CompactionLag(NamedTuple):
    """How long a record must, and how long it may stay out of compaction."""

    least_ms: int
    most_ms: int


class DirtyPart(NamedTuple):
    """The dirty part of a log that can be cleaned, and how much of the log it is."""

    first_dirty_offset: int
    end_offset: int
    dirty_bytes: int
    dirty_ratio: float
    is_overdue: bool

    def must_run(self, dirty_ratio_min: float) -> bool:
        """Return whether the log is dirty enough, or has waited too long."""
        return self.dirty_ratio > dirty_ratio_min or (self.is_overdue and self.dirty_bytes > 0)


def first_dirty_offset(cleaned_to: int | None, *, log_start_offset: int, log_end_offset: int) -> int:
    """Return where the dirty part begins; ignore a checkpoint that lies outside the log."""
    if cleaned_to is None or not log_start_offset <= cleaned_to <= log_end_offset:
        return log_start_offset
    return cleaned_to


def find_dirty_part(
    segments: Sequence[CompactionSegment],
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    lag: CompactionLag,
    now_ms: int,
) -> DirtyPart:
    """Return what is dirty in a log of inactive segments and, at the end, the active one."""
    active = segments[-1]
    dirty = _inactive_from(segments, first_dirty_offset)
    limits = [last_stable_offset, active.base_offset]
    if lag.least_ms > 0:
        young = (segment.base_offset for segment in dirty if segment.largest_timestamp > now_ms - lag.least_ms)
        limits.append(next(young, active.base_offset))
    uncleanable = max(first_dirty_offset, min(limits))
    # A segment is cleaned as a whole or not at all.
    end = next((segment.base_offset for segment in _inactive_from(segments, uncleanable)), active.base_offset)
    dirty_bytes = sum(segment.size_bytes for segment in dirty if segment.base_offset < end)
    total = dirty_bytes + sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty_offset)
    oldest = min((segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=now_ms)
    return DirtyPart(
        first_dirty_offset=first_dirty_offset,
        end_offset=end,
        dirty_bytes=dirty_bytes,
        dirty_ratio=dirty_bytes / total if total else 0.0,
        is_overdue=oldest < now_ms - lag.most_ms,
    )


def _inactive_from(segments: Sequence[CompactionSegment], offset: int) -> Sequence[CompactionSegment]:
    """Return the inactive segment that would hold an offset, and those behind it."""
    if offset >= segments[-1].base_offset:
        return []
    first = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return segments[max(0, first) : -1]


class Source(NamedTuple):
    """An inactive segment and the sizes of its files."""

    base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    sources: Sequence[Source], *, segment_bytes: int, index_bytes_max: int, end_offset: int
) -> Iterator[list[Source]]:
    """Return the segments that become one, so that cleaned segments do not get ever smaller."""
    ends = [*(source.base_offset for source in sources[1:]), end_offset]
    group: list[Source] = []
    for source, end in zip(sources, ends, strict=False):
        if group and not _fits(group, source, end, segment_bytes, index_bytes_max):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _fits(group: list[Source], source: Source, end: int, segment_bytes: int, index_bytes_max: int) -> bool:
    sizes = [sum(values) for values in zip(*(member[1:] for member in (*group, source)), strict=True)]
    # An index entry holds an offset in 32 bits; an empty segment has none.
    spans = not source.size_bytes or end - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    return sizes[0] <= segment_bytes and max(sizes[1:]) <= index_bytes_max and spans
