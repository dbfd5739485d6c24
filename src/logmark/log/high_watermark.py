"""The high watermark of a partition: which records are durable and visible, and who waits for them.

With durability=sync the high watermark is the durable end: group commit moves it when the write-ahead log has the
records, so no reader sees and no producer is promised a record that a crash could take back. With durability=os it is
the log end.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from logmark.errors import LogFailed
from logmark.log.durability_waiters import Callback, DurabilityWaiters
from logmark.log.log_state import LogState
from logmark.log.segment import Segment


class CommitPoint(NamedTuple):
    """What one round of group commit makes durable: an end offset, and the size of each segment at that offset."""

    end: int
    # Each segment with its size, its largest timestamp and the offset of that.
    sizes: list[tuple[Segment, int, int, int]]


class HighWatermark:
    """Moves the high watermark and wakes those who wait for it."""

    __slots__ = ("_loop", "_state", "_uncommitted", "_waiters")

    def __init__(self, state: LogState, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._loop = loop
        self._waiters = DurabilityWaiters(loop)
        # The segments that were written to since the last commit point.
        self._uncommitted: list[Segment] = []

    # Segments

    def load(self) -> None:
        """Start from the segments of a log that was loaded."""
        active = self._state.segments.active
        self._uncommitted = [] if active is None else [active]

    def add_segment(self, segment: Segment) -> None:
        """Include a new active segment in the next commit point."""
        self._uncommitted.append(segment)

    def remove_segments(self, segments: Iterable[Segment]) -> None:
        """Leave out segments that are no longer part of the log."""
        removed = set(segments)
        self._uncommitted = [segment for segment in self._uncommitted if segment not in removed]

    # Committing

    def commit_point(self) -> CommitPoint:
        """Return what a sync of everything that was appended so far makes durable."""
        sizes = [(segment, segment.size, segment.max_timestamp, segment.max_timestamp_offset)
                 for segment in self._uncommitted]  # fmt: skip
        self._uncommitted = self._uncommitted[-1:]
        return CommitPoint(self._state.log_end_offset, sizes)

    def commit(self, point: CommitPoint) -> None:
        """Make everything up to a commit point visible."""
        for segment, size, timestamp, timestamp_offset in point.sizes:
            self._state.shown_bytes += size - segment.visible_bytes
            segment.visible_bytes = size
            segment.visible_timestamp = timestamp
            segment.visible_timestamp_offset = timestamp_offset
        self.advance(point.end)

    def advance(self, end: int) -> None:
        """Move the high watermark up to an offset; it never moves back."""
        state = self._state
        if end <= state.high_watermark:
            return
        state.high_watermark = end
        state.producers.undecided.show(end)
        if self._waiters:
            self._waiters.release(end)
        if state.change_listeners:
            state.notify_change_listeners()

    # Waiting

    def wait_for(self, next_offset: int) -> asyncio.Future[None] | None:
        """Return a future that is done when the high watermark reaches an offset; None if it has already."""
        state = self._state
        if state.high_watermark >= next_offset:
            return None
        return self._waiters.wait_for(next_offset) if state.failure is None else self._waiters.refuse(state.failure)

    def call_at(self, next_offset: int, callback: Callback) -> bool:
        """Call back when the high watermark reaches an offset; return False, without a call, if it has already.

        The callback gets the failure if the log stops before that.
        """
        state = self._state
        if state.high_watermark >= next_offset:
            return False
        if state.failure is not None:
            self._loop.call_soon(callback, LogFailed(str(state.failure)))
        else:
            self._waiters.call_at(next_offset, callback)
        return True

    def fail(self, failure: LogFailed) -> None:
        """Fail all who wait: the log has stopped."""
        self._waiters.fail(failure)
