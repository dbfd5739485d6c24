"""The rules of compaction, as Kafka has them: which part of a log is due, which segments become one, what stays.

Compaction keeps at least the newest record of every key and never changes an offset. The part that was cleaned before
ends at the cleaner's checkpoint; what lies behind it is dirty. Only whole inactive segments below the last stable
offset are cleaned.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from logmark.log.transactions import Aborted, Marker
from logmark.wire.batches import BatchHeader

RELATIVE_OFFSET_MAX = 2**31 - 1


class Piece(NamedTuple):
    """A segment as compaction sees it; timestamps are -1 where there are none or nobody asks."""

    base_offset: int
    size_bytes: int
    largest_timestamp: int = -1
    first_timestamp: int = -1


class Lag(NamedTuple):
    """How long a record must, and how long it may stay out of compaction."""

    least_ms: int
    most_ms: int


class Due(NamedTuple):
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


def due(pieces: Sequence[Piece], *, first_dirty_offset: int, last_stable_offset: int, lag: Lag, now_ms: int) -> Due:
    """Return what is dirty in a log of inactive segments and, at the end, the active one."""
    active = pieces[-1]
    dirty = _inactive_from(pieces, first_dirty_offset)
    limits = [last_stable_offset, active.base_offset]
    if lag.least_ms > 0:
        young = (piece.base_offset for piece in dirty if piece.largest_timestamp > now_ms - lag.least_ms)
        limits.append(next(young, active.base_offset))
    uncleanable = max(first_dirty_offset, min(limits))
    # A segment is cleaned as a whole or not at all.
    end = next((piece.base_offset for piece in _inactive_from(pieces, uncleanable)), active.base_offset)
    dirty_bytes = sum(piece.size_bytes for piece in dirty if piece.base_offset < end)
    total = dirty_bytes + sum(piece.size_bytes for piece in pieces if piece.base_offset < first_dirty_offset)
    oldest = min((piece.first_timestamp for piece in dirty if piece.first_timestamp > 0), default=now_ms)
    return Due(
        first_dirty_offset=first_dirty_offset,
        end_offset=end,
        dirty_bytes=dirty_bytes,
        dirty_ratio=dirty_bytes / total if total else 0.0,
        is_overdue=oldest < now_ms - lag.most_ms,
    )


def _inactive_from(pieces: Sequence[Piece], offset: int) -> Sequence[Piece]:
    """Return the inactive segment that would hold an offset, and those behind it."""
    if offset >= pieces[-1].base_offset:
        return []
    first = bisect_right(pieces, offset, key=lambda piece: piece.base_offset) - 1
    return pieces[max(0, first) : -1]


class Source(NamedTuple):
    """An inactive segment and the sizes of its files."""

    base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def groups(
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


class BatchRetention(NamedTuple):
    """What becomes of a batch of a transaction or of a marker."""

    is_aborted: bool = False
    is_idle_marker: bool = False


class TransactionsPassed:
    """Follows a pass through the log: what belongs to aborted transactions, and which markers nothing needs any more.

    Kafka's rule: the data of an aborted transaction goes at once, a marker stays as long as a pass has met a batch of
    its transaction, and is removed by a later pass than the one that found it idle.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._ahead = sorted(set(aborted), key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, Aborted] = {}
        self._met: set[int] = set()
        self._committing: set[int] = set()
        self.needed: list[Aborted] = []

    def decide_retention(self, header: BatchHeader, marker: Marker | None) -> BatchRetention:
        """Decide on the next batch; `marker` is that of a control batch, None if it is empty or of another kind."""
        while self._ahead and self._ahead[-1].first_offset <= header.last_offset:
            entry = self._ahead.pop()
            # A pass that begins in the middle never meets the markers before it, so theirs are not open here.
            if entry.last_offset >= header.base_offset:
                self._aborting.setdefault(entry.producer_id, entry)
        producer_id = header.producer_id
        if not header.is_control:
            return self._decide_data_retention(producer_id) if header.is_transactional else BatchRetention()
        if marker is None:
            # Of an emptied one nothing is left to need; control records of other kinds are not ours to decide on.
            return BatchRetention(is_idle_marker=not header.record_count)
        if marker.is_commit:
            is_idle = producer_id not in self._committing
            self._committing.discard(producer_id)
            return BatchRetention(is_idle_marker=is_idle)
        aborted = self._aborting.pop(producer_id, None)
        is_needed = aborted is not None and producer_id in self._met
        self._met.discard(producer_id)
        if is_needed and aborted is not None:
            self.needed.append(aborted)
        return BatchRetention(is_idle_marker=not is_needed)

    def _decide_data_retention(self, producer_id: int) -> BatchRetention:
        if producer_id in self._aborting:
            self._met.add(producer_id)
            return BatchRetention(is_aborted=True)
        self._committing.add(producer_id)
        return BatchRetention()

    def take_needed(self) -> list[Aborted]:
        """Return the aborted transactions passed since the last call that readers still ask for."""
        needed, self.needed = self.needed, []
        return needed
