"""A partition's log as the log cleaner sees it: what is dirty, the plan of a cleaning, and its result taken over.

`compaction_schedule` says what is due, `segment_cleaner` rewrites segments in another process and `segment_swap`
renames their files.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from logmark.disk.file_system import FileSystem
from logmark.errors import LogFailed, Malformed
from logmark.log import compaction_schedule
from logmark.log.compaction_schedule import CompactionLag, CompactionSegment, DirtyPart
from logmark.log.flush_state import FlushState
from logmark.log.flusher import Flush
from logmark.log.high_watermark import HighWatermark
from logmark.log.log_state import LogState
from logmark.log.reader import Reader
from logmark.log.segment import Fingerprint, Segment
from logmark.log.segment_cleaner import Limits, Plan
from logmark.log.segment_deletion import SegmentDeleter
from logmark.log.segment_swap import Incoming, Swap
from logmark.log.settings import LONG_MAX


class LogToClean:
    """Compaction's side of one partition."""

    __slots__ = (
        "_deleter", "_files", "_flush_state", "_high_watermark", "_loop", "_planned", "_reader", "_segments", "_state",
        "_swaps", "cleaned_to", "is_being_cleaned",
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        *,
        flush_state: FlushState,
        high_watermark: HighWatermark,
        reader: Reader,
        deleter: SegmentDeleter,
        files: FileSystem,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._state = state
        self._segments = state.segments
        self._flush_state = flush_state
        self._high_watermark = high_watermark
        self._reader = reader
        self._deleter = deleter
        self._files = files
        self._loop = loop
        # The cleaner's checkpoint; None for a log that was never cleaned and so has no holes.
        self.cleaned_to: int | None = None
        # Set by the cleaner while it reads segments to rewrite them: retention leaves them alone meanwhile.
        self.is_being_cleaned = False
        # The segments of the last plan. After a failure of the disk the log is loaded again, and has others.
        self._planned: list[Segment] = []
        # The last change of each swap that a flush has still to make, and the future that waits for it.
        self._swaps: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    def dirty_part(self, now_ms: int) -> DirtyPart | None:
        """Return the part of the log that compaction could clean, or None if there is none to look at."""
        state, settings = self._state, self._state.settings
        if not settings.is_compacted or state.failure is not None or self.is_being_cleaned or len(self._segments) < 2:
            return None
        lag = CompactionLag(settings.compaction_lag_min_ms, settings.compaction_lag_max_ms)
        return compaction_schedule.find_dirty_part(
            [self._describe_segment(segment, lag) for segment in self._segments],
            first_dirty_offset=compaction_schedule.first_dirty_offset(
                self.cleaned_to, log_start_offset=state.log_start_offset, log_end_offset=state.log_end_offset
            ),
            last_stable_offset=state.last_stable_offset,
            lag=lag,
            now_ms=now_ms,
        )

    def _describe_segment(self, segment: Segment, lag: CompactionLag) -> CompactionSegment:
        largest = first = -1
        if segment is not self._segments.active and (lag.least_ms > 0 or lag.most_ms < LONG_MAX):
            if segment.load_timestamps() or segment.first_timestamp < 0:
                self._segments.use(segment)
            largest, first = segment.max_timestamp, segment.first_batch_timestamp()
        return CompactionSegment(segment.base_offset, segment.size, largest, first)

    def cleaning_plan(self, part: DirtyPart, *, now_ms: int, limits: Limits) -> Plan:
        """Return what a cleaning of that part needs to know; raises Malformed if the log is damaged there."""
        state, settings = self._state, self._state.settings
        sources = [segment for segment in self._segments if segment.base_offset < part.end_offset]
        for damage in self._reader.damage:
            # Also a segment that is missing: the cleaned log would hide the hole, and old values would be the newest.
            if damage.first_offset < part.end_offset:
                raise Malformed(str(damage))
        self._planned = sources
        return Plan(
            folder=state.folder,
            bases=[segment.base_offset for segment in sources],
            sizes=[segment.size for segment in sources],
            first_dirty_offset=part.first_dirty_offset,
            end_offset=part.end_offset,
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            aborted=[entry for segment in self._segments if segment.has_aborted
                     for entry in segment.aborted.overlapping(0, part.end_offset)
                     if entry.last_offset < state.high_watermark],
            producers={producer_id: (-1 if known.last is None else known.last.last_offset, known.producer_epoch)
                       for producer_id, known in state.producers},
            segment_bytes=settings.segment_bytes,
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            limits=limits,
        )  # fmt: skip

    def take_over(self, incoming: Incoming, *, now_ms: int) -> asyncio.Future[None]:
        """Replace segments by a cleaned one; the future is done when the files have their final names.

        Raises LogFailed if the log has stopped, or no longer has the segments that were cleaned.
        """
        state = self._state
        cleaned = incoming.cleaned
        replaced = set(cleaned.replaced)
        old = [segment for segment in self._segments if segment.base_offset in replaced]
        is_same = [segment.base_offset for segment in old] == list(cleaned.replaced) and set(old) <= set(self._planned)
        if state.failure is not None or not is_same:
            raise LogFailed(f"{state.name} is not the log any more that was cleaned.")
        segment = Segment(
            state.folder,
            cleaned.base_offset,
            self._files,
            size=cleaned.size_bytes,
            created_ms=now_ms,
            index_interval=state.settings.index_interval_bytes,
            is_dense=False,
            has_aborted=cleaned.has_aborted,
        )
        segment.fingerprint = Fingerprint(cleaned.size_bytes, cleaned.checksum)
        largest = cleaned.max_timestamp, cleaned.max_timestamp_offset
        segment.enter(incoming.file, incoming.offsets, incoming.times, incoming.aborted, largest)
        self._segments.replace(old, segment)
        self._reader.forget()
        swap = Swap(state.folder, cleaned, self._files)
        swapped: asyncio.Future[None] = self._loop.create_future()

        def finish() -> None:
            swap.finish()
            segment.settle()

        self._flush_state.add_changes(swap.begin)
        for each in old:
            # The snapshot at the new segment's own offset stays true.
            self._flush_state.add_changes(partial(each.mark_deleted, with_snapshot=each is not old[0]))
        self._deleter.cancel_removal(replaced)
        self._deleter.schedule_removal(old, now_ms)
        self._flush_state.add_changes(partial(self._files.sync_directory, state.folder), finish)
        self._high_watermark.remove_segments(old)
        self._swaps.append((finish, swapped))
        self._flush_state.request()
        return swapped

    def complete_swaps(self, flush: Flush) -> None:
        """Complete the futures of the swaps whose last change a flush has made."""
        for finish, swapped in self._swaps:
            if finish in flush.changes and not swapped.done():
                swapped.set_result(None)
        self._swaps = [(finish, swapped) for finish, swapped in self._swaps if not swapped.done()]

    def fail(self, failure: LogFailed) -> None:
        """Fail the swaps that wait for a flush: the log has stopped."""
        for _, swapped in self._swaps:
            if not swapped.done():
                swapped.set_exception(failure)
        self._swaps.clear()
