"""The rules of retention: which segments a log may delete, oldest first, up to the first one to be kept.

These functions only decide; `segment_deletion` deletes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from logmark.log.settings import TopicSettings


class Piece(NamedTuple):
    """A segment as retention sees it."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    largest_timestamp: int
    is_active: bool


def deletable(
    pieces: Sequence[Piece], settings: TopicSettings, *, log_start_offset: int, high_watermark: int, now_ms: int
) -> int:
    """Return how many of the oldest segments to delete: those below the log start, then by size, then by age."""
    count = _below_log_start(pieces, log_start_offset, high_watermark)
    if not settings.is_deleted:
        return count
    count = max(count, _over_size(pieces, count, settings.retention_bytes, high_watermark))
    return max(count, _over_age(pieces, count, settings.retention_ms, high_watermark, now_ms))


def _may_delete(piece: Piece, high_watermark: int) -> bool:
    is_empty_active = piece.is_active and not piece.size_bytes
    return piece.next_base_offset <= high_watermark and not is_empty_active


def _below_log_start(pieces: Sequence[Piece], log_start_offset: int, high_watermark: int) -> int:
    count = 0
    for piece in pieces:
        below = not piece.is_active and piece.next_base_offset <= log_start_offset
        if not (below and _may_delete(piece, high_watermark)):
            break
        count += 1
    return count


def _over_size(pieces: Sequence[Piece], count: int, retention_bytes: int, high_watermark: int) -> int:
    if retention_bytes < 0:
        return count
    excess = sum(piece.size_bytes for piece in pieces[count:]) - retention_bytes
    for piece in pieces[count:]:
        if excess < piece.size_bytes or not _may_delete(piece, high_watermark):
            break
        excess -= piece.size_bytes
        count += 1
    return count


def _over_age(pieces: Sequence[Piece], count: int, retention_ms: int, high_watermark: int, now_ms: int) -> int:
    if retention_ms < 0:
        return count
    for piece in pieces[count:]:
        if now_ms - piece.largest_timestamp <= retention_ms or not _may_delete(piece, high_watermark):
            break
        count += 1
    return count
