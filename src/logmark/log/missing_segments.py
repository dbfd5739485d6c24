"""Segments that were removed: where a log must start, and gaps between its segments.

A clean stop lists the segments, and the next start misses those that are gone. After a crash there is no list. Then the
leader epochs say where a log starts, and a start reads no batch below the recovery point: `check_segment_ends` and
`find_overlaps` read the last batches of every segment instead.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from logmark.errors import Malformed

if TYPE_CHECKING:
    from logmark.log.partition import Partition
    from logmark.log.segment import Segment

_OFFSET_MAX = 2**63 - 1


def known_start(
    epochs: Sequence[tuple[int, int]] | None, log_start_offset: int | None, *, is_clean: bool
) -> int | None:  # fmt: skip
    """Return the log start up to which segments may have been deleted; None if no file of a log of ours says it.

    A log start is in the leader-epoch checkpoint durably before a segment below it is deleted. The checkpoint of log
    starts may be older than that after a crash.
    """
    starts = [start for _, start in (epochs or ())[:1]]
    if log_start_offset is not None and (is_clean or starts):
        starts.append(log_start_offset)
    return max(starts, default=None)


def describe_missing_start(start: int, first_base: int) -> str:
    """Return what is wrong with a log whose first segment begins behind its start."""
    return f"the log started at offset {start}, and its first segment begins at {first_base}"


def check_segment_ends(partition: "Partition") -> None:
    """Add to the damage of an open partition what is torn or missing at the ends of its closed segments.

    A log that was compacted may have holes between its segments.
    """
    known = {damage.next_offset for damage in partition.damage}
    for segment, following in pairwise(partition.segments):
        base = following.base_offset
        if segment.damage or base <= partition.log_start_offset or base in known:
            continue
        end = _end_of(segment)
        if end is None:
            segment.lookup.find_damage(base)
            segment.release()
        elif end < base and segment.is_dense:
            partition.note_gap(end, base)


def find_overlaps(partition: "Partition") -> Iterator[str]:
    """Yield the segments of an open partition whose offsets reach into the next one: one of the two was put back."""
    for segment, following in pairwise(partition.segments):
        if segment.damage or not segment.size:
            continue
        end = _end_of(segment)
        if end is not None and end > following.base_offset:
            yield (
                f"{following.path} begins at offset {following.base_offset}, and {segment.path} ends at {end - 1}. "
                "One of the two is an older copy. Move it out of the data directory."
            )


def _end_of(segment: "Segment") -> int | None:
    """Return the offset behind the last batch of a segment; None if its last batches are not sound."""
    try:
        return segment.lookup.sound_end(segment.lookup.nearest(_OFFSET_MAX, segment.size))
    except Malformed:
        return None
    finally:
        segment.release()
