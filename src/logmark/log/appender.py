"""Appending to a partition's log: offsets, segments, index limits, and the undo of a write that failed.

A batch gets the next offset, is written to the active segment through the page cache, and is added to group commit,
which makes it durable in the write-ahead log. This is the hot path of Produce.
"""

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from logmark.clock import Clock
from logmark.disk.file_system import FileSystem
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log import disk_full, transactions
from logmark.log.flush_state import FlushState
from logmark.log.folder import PartitionFolder
from logmark.log.group_commit import CommittedLog, GroupCommit
from logmark.log.high_watermark import HighWatermark
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.log.log_state import LogState
from logmark.log.segment import SNAPSHOT, Segment, file_name
from logmark.log.settings import TopicSettings
from logmark.log.transactions import Aborted, Ended, Marker
from logmark.wire import batches
from logmark.wire.batches import ProducedBatch

logger = logging.getLogger(__name__)


# A partition with so many segments begins a new one early, by time or because an index is full, only when the active
# one has so many bytes or is so old. Else a client with segment.ms=1 could make three files for each of its records.
MANY_SEGMENTS = 50
EARLY_ROLL_BYTES = 64 * 1024
EARLY_ROLL_MS = 60_000
# With so many producers a segment counts twice, with twice as many three times: each comes with a snapshot of all.
PRODUCERS_OF_A_SNAPSHOT = 1000


class NeedsRoll(Exception):
    """An append that begins a segment, where the caller allows no roll: nothing has been written."""


class Appended(NamedTuple):
    """The offsets of an appended batch; a duplicate has those of the first time, and may not be durable yet."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class Appender:
    """Appends batches to one partition and rolls its segments."""

    __slots__ = (
        "_advance", "_clock", "_committer", "_files", "_flush_state", "_folder", "_high_watermark", "_index_bytes_max",
        "_is_log_append_time", "_is_prepared", "_is_sync", "_log", "_segment_bytes", "_segment_ms", "_segments",
        "_state", "_time_index_bytes_max", "is_changed", "refusal",
    )  # fmt: skip

    def __init__(
        self,
        log: CommittedLog,
        state: LogState,
        *,
        folder: PartitionFolder,
        flush_state: FlushState,
        high_watermark: HighWatermark,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
    ) -> None:
        self._log = log
        self._state = state
        self._segments = state.segments
        self._folder = folder
        self._flush_state = flush_state
        self._high_watermark = high_watermark
        # Held by itself: every append with durability=os makes this call.
        self._advance = high_watermark.advance
        self._files = files
        self._committer = committer
        self._is_sync = committer.is_sync
        self._clock = clock
        # Whether the active segment knows what an append needs to know of it.
        self._is_prepared = False
        # Why the last write was refused, for a reason that passes; it is logged once.
        self.refusal: LogFailed | None = None
        # Whether a clean stop has to complete the files of the active segment.
        self.is_changed = False
        self.configure(state.settings)

    def configure(self, settings: TopicSettings) -> None:
        """Apply settings from the next append on."""
        self._segment_bytes = settings.segment_bytes
        jitter_ms = min(settings.segment_jitter_ms, settings.segment_ms)
        # Spreads the rolls of many partitions; nobody gains by guessing it.
        self._segment_ms = settings.segment_ms - (random.randrange(jitter_ms) if jitter_ms else 0)  # noqa: S311
        self._index_bytes_max = settings.segment_index_bytes // 8 * 8
        # One entry is kept free for the largest timestamp.
        self._time_index_bytes_max = (settings.segment_index_bytes // 12 - 1) * 12
        self._is_log_append_time = settings.is_log_append_time
        if self._segments.active is not None:
            self._segments.active.configure(index_interval=settings.index_interval_bytes)

    def load(self, *, is_changed: bool) -> None:
        """Continue at the end of a log that was loaded."""
        self._is_prepared = False
        self.is_changed = is_changed

    def close(self) -> None:
        """Drop the log, which is closed."""
        del self._log

    # Appending

    def append(
        self, batch: ProducedBatch, *, now_ms: int, from_client: bool = True, may_roll: bool = True
    ) -> Appended:
        """Append a batch at the log end, or return the offsets that the same batch got before.

        Raises LogFailed if the log has stopped or the disk refuses the write, Refused if the producer's sequence or
        the size of the batch is wrong, NeedsRoll if the batch begins a segment and may not.
        """
        state = self._state
        if state.failure is not None:
            raise LogFailed(str(state.failure))
        is_idempotent = batch.producer_id >= 0
        if is_idempotent:
            try:
                written = state.producers.check(batch, from_client=from_client)
            except OSError as error:
                # The tail of the log, by which duplicates are recognized, could not be read.
                raise self._undo(error) from error
            if written is not None:
                return Appended(
                    written.base_offset, written.last_offset, written.timestamp, state.log_start_offset, True
                )  # fmt: skip
        base = self._write(batch, now_ms, may_roll=may_roll)
        last = base + batch.last_offset_delta
        if is_idempotent:
            state.producers.record(batch, last_offset=last, seen_ms=now_ms)
        if not self._is_sync:
            self._advance(last + 1)
        append_time = batch.max_timestamp if self._is_log_append_time else -1
        return Appended(base, last, append_time, state.log_start_offset, False)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        now_ms: int,
        coordinator_epoch: int = 0,
        is_bumped: bool = False,
    ) -> Appended:
        """Append the marker that ends a producer's transaction; readers see that when the marker is durable.

        `is_bumped` says that the epoch is the one after the transaction's (KIP-890).
        """
        state = self._state
        if state.failure is not None:
            raise LogFailed(str(state.failure))
        state.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, is_bumped=is_bumped)
        marker = Marker(commit, coordinator_epoch)
        batch = transactions.build_marker(
            producer_id, producer_epoch, marker, timestamp_ms=now_ms, is_log_append_time=self._is_log_append_time
        )
        offset = self._write(batch, now_ms, aborts=producer_id if not commit else None)
        ended = state.producers.record_marker(
            producer_id, producer_epoch, marker, offset=offset, timestamp=now_ms, seen_ms=now_ms
        )
        if ended is not None:
            state.producers.undecided.end(ended)
        if not self._is_sync:
            self._advance(offset + 1)
        append_time = now_ms if self._is_log_append_time else -1
        return Appended(offset, offset, append_time, state.log_start_offset, False)

    def _write(
        self, batch: ProducedBatch, now_ms: int, *, aborts: int | None = None, may_roll: bool = True
    ) -> int:
        """Write a batch at the log end and return its first offset; a marker may abort a producer's transaction."""
        size = batch.size
        if size > self._segment_bytes:
            raise Refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"The batch has {size} bytes, more than segment.bytes of the topic, {self._segment_bytes}.",
            )
        state = self._state
        base = state.log_end_offset
        last = base + batch.last_offset_delta
        try:
            if self._is_sync:
                self._committer.prepare(size)
            segment = self._segments.active
            if segment is None or self._must_roll(segment, batch, last, now_ms):
                if not may_roll:
                    raise NeedsRoll
                segment = self._begin_segment()
            batches.assign_offset(batch, base)
            position = segment.size
            if aborts is None:
                segment.append(batch.data, size, last, batch.max_timestamp)
            else:
                self._append_abort(segment, batch, aborts)
        except OSError as error:
            raise self._undo(error) from error
        state.log_end_offset = last + 1
        if self.refusal is not None:
            self.refusal = None
        if self._is_sync:
            self._committer.add(self._log, segment.base_offset, position, base, last + 1, batch.data, size)
        else:
            segment.show()
            state.shown_bytes += size
        return base

    def _append_abort(self, segment: Segment, batch: ProducedBatch, producer_id: int) -> None:
        """Write a marker that aborts and its entry in the transaction index: both, or neither if one fails."""
        state = self._state
        offset = state.log_end_offset
        producer = state.producers.get(producer_id)
        is_indexed = producer is not None and producer.transaction_first_offset >= 0
        if producer is not None and is_indexed:
            ended = Ended(producer_id, producer.transaction_first_offset, offset, True)
            stable = state.producers.undecided.stable_after(ended)
            segment.add_aborted(Aborted(producer_id, ended.first_offset, offset, stable))
            state.has_aborted = True
            # Its name is durable with the snapshot that closes the segment: until then recovery rebuilds the index.
            self._flush_state.add_sync_once(segment.sync_aborted)
        try:
            segment.append(batch.data, batch.size, offset, batch.max_timestamp)
        except OSError:
            if is_indexed:
                try:
                    segment.cut_aborted(1)
                except OSError as worse:
                    # The recovery of the log makes the index again.
                    state.fail(worse)
            raise

    def _undo(self, error: OSError) -> LogFailed:
        """Undo a write that failed; stop the log if that is impossible, or if the error does not pass by itself."""
        try:
            # A file that could not be opened was not written to, and cannot be opened now either.
            if self._segments.active is not None and not disk_full.is_unopened(error):
                self._segments.active.cut_torn()
        except OSError as worse:
            return self._state.fail(worse)
        if not disk_full.is_passing(error):
            return self._state.fail(error)
        refused = disk_full.describe_refused_write(self._state.name, error)
        if self.refusal is None:
            logger.warning("%s", refused)
        self.refusal = refused
        return refused

    # Rolling

    def _must_roll(self, segment: Segment, batch: ProducedBatch, last_offset: int, now_ms: int) -> bool:
        if not self._is_prepared:
            segment.prepare()
            self._is_prepared = self.is_changed = True
        size = segment.size
        if not size or size + batch.size > self._segment_bytes:
            return size > 0
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True
        first = segment.first_timestamp
        waited_ms = batch.max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        is_due = (
            waited_ms > self._segment_ms
            or segment.index_bytes >= self._index_bytes_max
            or segment.time_index_bytes >= self._time_index_bytes_max
        )
        if not is_due:
            return False
        weight = 1 + len(self._state.producers) // PRODUCERS_OF_A_SNAPSHOT
        return (
            weight * len(self._segments) < MANY_SEGMENTS
            or size >= weight * EARLY_ROLL_BYTES
            or now_ms - segment.created_ms >= EARLY_ROLL_MS
        )

    def roll(self) -> None:
        """Close the active segment, if there is one, and begin a new one at the log end."""
        active = self._segments.active
        if active is not None and not self._is_prepared:
            active.prepare()
        self._begin_segment()

    def _begin_segment(self) -> Segment:
        """Begin a new segment at the log end; the next flush syncs both segments."""
        state = self._state
        flush_state = self._flush_state
        old = self._segments.active
        segment = Segment(
            state.folder,
            state.log_end_offset,
            self._files,
            size=0,
            created_ms=self._clock.now_ms(),
            index_interval=state.settings.index_interval_bytes,
            is_dense=True,
        )
        begun = self._folder.begin_log() if old is None else []
        try:
            segment.create()
            if old is not None:
                old.finish_indexes()
        except OSError:
            # Else a start would find a segment in the middle of the one that remains active.
            segment.discard()
            raise
        # Not before: a log that cannot begin for long would add them with every attempt.
        flush_state.add_syncs(*begun)
        if old is not None:
            # The snapshot syncs the folder, and with it the names of the new files.
            flush_state.add_syncs(old.file.sync, old.sync_indexes, self._snapshot_writer())
        else:
            flush_state.add_syncs(partial(self._files.sync_directory, state.folder))
        # From here until the flush has ended, threads may sync files of old segments.
        self._segments.hold()
        self._segments.begin(segment)
        self._high_watermark.add_segment(segment)
        self._is_prepared = self.is_changed = True
        flush_state.request()
        return segment

    def _snapshot_writer(self) -> Callable[[], None]:
        """Return a call that writes the producers as they are now.

        A flush makes it after it has synced everything below, and before it proves a recovery point. So a snapshot is
        proof: everything below its offset was on disk, and is reported as damage if it is not there.
        """
        path = f"{self._state.folder}/{file_name(self._state.log_end_offset, SNAPSHOT)}"
        return partial(self._files.write_atomically, path, self._state.producers.encode())

    def finish(self) -> None:
        """Complete the active segment for a clean stop, as Kafka does; a flush makes that durable."""
        active = self._segments.active
        if active is not None and self.is_changed:
            active.finish_indexes()
            self._flush_state.add_syncs(active.sync_indexes, self._snapshot_writer())
