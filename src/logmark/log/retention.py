"""Which segments a log may let go: a pure decision, oldest first, that stops at the first one to be kept."""

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
    """How many of the oldest segments go: first those below the log start, then by size, then by age."""
    gone = _below_log_start(pieces, log_start_offset, high_watermark)
    if not settings.is_deleted:
        return gone
    gone = max(gone, _over_size(pieces, gone, settings.retention_bytes, high_watermark))
    return max(gone, _over_age(pieces, gone, settings.retention_ms, high_watermark, now_ms))


def _may_go(piece: Piece, high_watermark: int) -> bool:
    is_empty_active = piece.is_active and not piece.size_bytes
    return piece.next_base_offset <= high_watermark and not is_empty_active


def _below_log_start(pieces: Sequence[Piece], log_start_offset: int, high_watermark: int) -> int:
    gone = 0
    for piece in pieces:
        below = not piece.is_active and piece.next_base_offset <= log_start_offset
        if not (below and _may_go(piece, high_watermark)):
            break
        gone += 1
    return gone


def _over_size(pieces: Sequence[Piece], gone: int, retention_bytes: int, high_watermark: int) -> int:
    if retention_bytes < 0:
        return gone
    excess = sum(piece.size_bytes for piece in pieces[gone:]) - retention_bytes
    for piece in pieces[gone:]:
        if excess < piece.size_bytes or not _may_go(piece, high_watermark):
            break
        excess -= piece.size_bytes
        gone += 1
    return gone


def _over_age(pieces: Sequence[Piece], gone: int, retention_ms: int, high_watermark: int, now_ms: int) -> int:
    if retention_ms < 0:
        return gone
    for piece in pieces[gone:]:
        if now_ms - piece.largest_timestamp <= retention_ms or not _may_go(piece, high_watermark):
            break
        gone += 1
    return gone
