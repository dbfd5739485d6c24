"""The rules of retention: which segments a log may delete, oldest first, up to the first one to be kept.

These functions only decide; `segment_deletion` deletes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from logmark.log.settings import TopicSettings


class RetentionSegment(NamedTuple):
    """A segment as retention sees it."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    largest_timestamp: int
    is_active: bool


def count_deletable_segments(
    segments: Sequence[RetentionSegment],
    settings: TopicSettings,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments to delete: those below the log start, then by size, then by age."""
    count = _below_log_start(segments, log_start_offset, high_watermark)
    if not settings.is_deleted:
        return count
    count = max(count, _over_size(segments, count, settings.retention_bytes, high_watermark))
    return max(count, _over_age(segments, count, settings.retention_ms, high_watermark, now_ms))


def _may_delete(segment: RetentionSegment, high_watermark: int) -> bool:
    is_empty_active = segment.is_active and not segment.size_bytes
    return segment.next_base_offset <= high_watermark and not is_empty_active


def _below_log_start(segments: Sequence[RetentionSegment], log_start_offset: int, high_watermark: int) -> int:
    count = 0
    for segment in segments:
        below = not segment.is_active and segment.next_base_offset <= log_start_offset
        if not (below and _may_delete(segment, high_watermark)):
            break
        count += 1
    return count


def _over_size(segments: Sequence[RetentionSegment], count: int, retention_bytes: int, high_watermark: int) -> int:
    if retention_bytes < 0:
        return count
    excess = sum(segment.size_bytes for segment in segments[count:]) - retention_bytes
    for segment in segments[count:]:
        if excess < segment.size_bytes or not _may_delete(segment, high_watermark):
            break
        excess -= segment.size_bytes
        count += 1
    return count


def _over_age(
    segments: Sequence[RetentionSegment], count: int, retention_ms: int, high_watermark: int, now_ms: int
) -> int:
    if retention_ms < 0:
        return count
    for segment in segments[count:]:
        if now_ms - segment.largest_timestamp <= retention_ms or not _may_delete(segment, high_watermark):
            break
        count += 1
    return count
