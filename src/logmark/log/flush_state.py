"""What the next flush of a partition must sync and may change, and the recovery point that the last one proved.

A flush makes the partition's own files durable in the background. What it has not covered, a recovery takes from the
write-ahead log. Files are renamed or removed only after a recovery point above them is durable, so these changes wait
here until a flush has proved one.
"""

from collections.abc import Callable

from logmark.log import disk_full
from logmark.log.flusher import Flush, FlushedLog, Flusher
from logmark.log.log_state import LogState
from logmark.log.wal.recovery_points import RecoveryPoint


class FlushState:
    """The pending syncs and changes of one partition, and its recovery point."""

    __slots__ = ("_changes", "_flusher", "_is_sync", "_log", "_state", "_syncs", "oldest_offset", "recovery_point")

    def __init__(self, log: FlushedLog, state: LogState, flusher: Flusher, *, is_sync: bool) -> None:
        self._log = log
        self._state = state
        self._flusher = flusher
        self._is_sync = is_sync
        self._syncs: list[Callable[[], None]] = []
        self._changes: list[Callable[[], None]] = []
        self.recovery_point = RecoveryPoint(0, 0, 0)
        # The base offset of the oldest segment that a crash could leave: deleted files may come back until a flush.
        self.oldest_offset = 0

    def load(self) -> None:
        """Take the end of a log that was loaded for the recovery point: all of it is durable."""
        segments = self._state.segments
        self.oldest_offset = segments[0].base_offset if segments else 0
        self.recovery_point = self._next_point()
        if segments:
            self._flusher.points[self._state.key] = self.recovery_point

    def close(self) -> None:
        """Drop the log, which is closed, and all that is pending."""
        del self._log
        self.replace_pending([], [])

    # Pending work

    def request(self) -> None:
        """Have the partition flushed soon, unless it is closed."""
        if not self._state.is_closed:
            self._flusher.mark(self._log)

    def add_syncs(self, *syncs: Callable[[], None]) -> None:
        """Let the next flush make these calls, in this order, before it proves a recovery point."""
        self._syncs += syncs

    def add_sync_once(self, sync: Callable[[], None]) -> None:
        """Add a sync unless the next flush makes that call already."""
        if sync not in self._syncs:
            self._syncs.append(sync)

    def add_changes(self, *changes: Callable[[], None]) -> None:
        """Let the next flush make these calls, in this order, after its recovery point is durable."""
        self._changes += changes

    def replace_pending(self, syncs: list[Callable[[], None]], changes: list[Callable[[], None]]) -> None:
        """Drop all pending work of a log that was loaded again, and set what its next flush has to do."""
        self._syncs, self._changes = syncs, changes

    def sync_now(self) -> None:
        """Make the pending syncs at once and prove the recovery point, for a log that was just created."""
        for sync in self._syncs:
            sync()
        self._syncs.clear()
        self._flusher.points[self._state.key] = self._next_point()
        self.request()

    # Flushing

    def begin(self) -> Flush | None:
        """Return what must be synced now and the recovery point that this proves; None if nothing is pending."""
        state = self._state
        if state.failure is not None:
            return None
        syncs, self._syncs = self._syncs, []
        changes, self._changes = self._changes, []
        active = state.segments.active
        if active is not None and self.recovery_point.offset < state.log_end_offset:
            syncs.append(active.sync_log)
            save_index = active.index_saver() if self._is_sync else None
            if save_index is not None:
                syncs.append(save_index)
        if not syncs and not changes:
            return None
        state.segments.hold()
        return Flush(self._log, syncs, self._next_point(), changes)

    def end(self, flush: Flush) -> bool:
        """Move the recovery point; return True, or stop the log if the disk failed the flush.

        The recovery point also moves if a change failed, or the log meanwhile: the changes that were made have replaced
        segments below it, so the log must never be written again from an earlier one.
        """
        state = self._state
        if flush.is_point_durable:
            self.recovery_point = flush.point
        # Without a descriptor no sync was even tried, so none has failed. After one that failed for lack of space or
        # memory the kernel may have dropped what it should have written.
        is_held_up = (
            flush.is_held_up
            or disk_full.is_unopened(flush.error)
            or (not self._is_sync and disk_full.is_passing(flush.error))
        )
        if is_held_up:
            # No request waits for these: they are tried again when there is space, or a descriptor.
            self._syncs[:0] = flush.syncs[flush.sync_count :]
            self._changes[:0] = flush.changes[flush.change_count :]
            self._flusher.troubled.add(self._log)
        if not self._syncs and not self._changes:
            state.segments.unhold()
        if is_held_up:
            return False
        if flush.error is not None:
            state.fail(flush.error)
            if self._is_sync and not flush.is_proved:
                # The WAL has what was acknowledged for certain, and the segments have it perhaps.
                state.mark_suspect()
                self._flusher.troubled.add(self._log)
        if state.failure is not None:
            return False
        if state.segments and not self._changes:
            self.oldest_offset = state.segments[0].base_offset
        return True

    def _next_point(self) -> RecoveryPoint:
        """Return the high watermark as a recovery point: no flush may prove what is not acknowledged."""
        state = self._state
        end = state.high_watermark
        for segment in reversed(state.segments):
            if segment.base_offset <= end:
                return RecoveryPoint(end, segment.base_offset, segment.visible_bytes)
        return RecoveryPoint(end, end, 0)
