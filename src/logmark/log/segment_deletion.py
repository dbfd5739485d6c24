"""Deleting the oldest records of a partition: the log start, segments that retention gives up, and their files.

`retention_rules` says which segments go. A deleted segment is out of the log at once. Its files are renamed to
`.deleted` after the next flush and removed after file.delete.delay.ms, as in Kafka.
"""

import asyncio
import logging
from collections.abc import Container, Iterable

from logmark.errors import ErrorCode, Refused
from logmark.log import disk_full, retention_rules
from logmark.log.appender import Appender
from logmark.log.flush_state import FlushState
from logmark.log.folder import PartitionFolder
from logmark.log.high_watermark import HighWatermark
from logmark.log.log_state import LogState
from logmark.log.reader import Reader
from logmark.log.retention_rules import RetentionSegment
from logmark.log.segment import Segment
from logmark.names import INTERNAL_TOPICS

logger = logging.getLogger(__name__)


class SegmentDeleter:
    """Moves the log start of one partition and deletes the segments below it."""

    __slots__ = (
        "_appender", "_deleted", "_flush_state", "_folder", "_high_watermark", "_loop", "_reader", "_segments", "_state"
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        *,
        folder: PartitionFolder,
        flush_state: FlushState,
        high_watermark: HighWatermark,
        appender: Appender,
        reader: Reader,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._state = state
        self._segments = state.segments
        self._folder = folder
        self._flush_state = flush_state
        self._high_watermark = high_watermark
        self._appender = appender
        self._reader = reader
        self._loop = loop
        # Deleted segments whose files are still there, each with the time from which they may be removed.
        self._deleted: list[tuple[int, Segment]] = []

    def load(self) -> None:
        """Forget the deleted segments of a log that was loaded again: the load removed their files."""
        self._deleted.clear()

    def delete_records(self, before: int) -> int:
        """Move the log start up to an offset (-1: to the high watermark) and return the log start."""
        self.move_log_start(self.deletion_target(before))
        return self._state.log_start_offset

    def deletion_target(self, before: int) -> int:
        """Return the log start that a deletion up to an offset (-1: to the high watermark) would leave."""
        state = self._state
        if state.topic in INTERNAL_TOPICS:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{state.topic} is internal: its records are kept.")
        if not state.settings.is_deleted:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {state.topic} does not include delete.")
        target = state.high_watermark if before == -1 else before
        if not 0 <= target <= state.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"Offset {before} is above the high watermark, {state.high_watermark}."
            )
        return max(target, state.log_start_offset)

    def move_log_start(self, offset: int) -> None:
        """Move the log start up to an offset; it never moves back."""
        state = self._state
        if offset <= state.log_start_offset:
            return
        state.log_start_offset = offset
        if state.epochs.begin_at(offset) and self._segments:
            self._flush_state.add_changes(self._folder.epochs_writer())
            self._flush_state.request()
        state.notify_change_listeners()

    def apply_retention(self, now_ms: int) -> int:
        """Delete old segments by the topic's settings and return their number; stop the log if the disk fails that.

        If the error passes by itself, the next check deletes them.
        """
        state = self._state
        if not self._segments or state.failure is not None:
            return 0
        try:
            count = retention_rules.count_deletable_segments(
                [self._describe_segment(at, segment) for at, segment in enumerate(self._segments)],
                state.settings,
                log_start_offset=state.log_start_offset,
                high_watermark=state.high_watermark,
                now_ms=now_ms,
            )
            return self._delete_oldest(count, now_ms) if count else 0
        except OSError as error:
            if disk_full.is_passing(error):
                logger.warning("retention of %s is tried again at the next check: %s", state.name, error)
            else:
                state.fail(error)
            return 0

    def _describe_segment(self, at: int, segment: Segment) -> RetentionSegment:
        if segment.load_timestamps():
            self._segments.use(segment)
        is_active = segment is self._segments.active
        return RetentionSegment(
            base_offset=segment.base_offset,
            next_base_offset=self._state.log_end_offset if is_active else self._segments[at + 1].base_offset,
            size_bytes=segment.size,
            largest_timestamp=segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms(),
            is_active=is_active,
        )

    def _delete_oldest(self, count: int, now_ms: int) -> int:
        """Delete so many of the oldest segments, and return how many were deleted."""
        if count == len(self._segments):
            try:
                self._appender.roll()
            except OSError as error:
                if not disk_full.is_passing(error):
                    raise
                # There is no space for the file of a new one, so the last one stays until the others have made some.
                count -= 1
                if not count:
                    return 0
        deleted = self._segments.take_oldest(count)
        self.move_log_start(self._segments[0].base_offset)
        self._reader.forget()
        for segment in deleted:
            self._flush_state.add_changes(segment.mark_deleted)
        self.schedule_removal(deleted, now_ms)
        self._high_watermark.remove_segments(deleted)
        # The new names need no sync: a start that finds old ones again finishes, by the leader epoch's start offset.
        self._flush_state.request()
        return count

    # Files of deleted segments

    def schedule_removal(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Remove the `.deleted` files of segments after file.delete.delay.ms."""
        deadline_ms = now_ms + self._state.settings.file_delete_delay_ms
        self._deleted += [(deadline_ms, segment) for segment in segments]

    def cancel_removal(self, base_offsets: Container[int]) -> None:
        """Leave the files of earlier segments with these base offsets alone: later ones get the same names."""
        self._deleted = [entry for entry in self._deleted if entry[1].base_offset not in base_offsets]

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the `.deleted` files whose delay is over; in a thread if the event loop runs."""
        due = [entry for entry in self._deleted if entry[0] <= now_ms]
        if not due:
            return
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]

        def remove() -> list[tuple[int, Segment]]:
            return [entry for entry in due if not entry[1].remove_deleted()]

        def removed(done: asyncio.Future[list[tuple[int, Segment]]]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                logger.error("deleted files of %s could not be removed: %s", self._state.folder, error)
            elif not done.cancelled():
                self._deleted += done.result()

        if self._loop.is_running():
            # A large file takes the kernel many milliseconds.
            self._loop.run_in_executor(None, remove).add_done_callback(removed)
        else:
            self._deleted += remove()
