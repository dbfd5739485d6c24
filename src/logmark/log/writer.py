"""Writing a partition's log: append, roll, commit, flush, and what happens when the disk fails.

The event loop owns all of this; only syncs run in threads. A batch is written to its segment, through the page cache,
and added to group commit, which makes it durable in the write-ahead log. The high watermark is the durable end: nothing
is shown, and nobody is told of anything, that a crash could take back. With durability=os it is the log end.

A flush syncs the partition's own files in the background and moves the recovery point. What a flush has not covered a
recovery takes from the WAL. Files are renamed or removed only below a recovery point that is durable.
"""

import asyncio
import logging
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logmark.clock import Clock
from logmark.disk.files import FileSystem
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log import checkpoints, disk_full, transactions
from logmark.log import epochs as leader_epochs
from logmark.log.epochs import Epochs
from logmark.log.flusher import Flush
from logmark.log.groupcommit import GroupCommit
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.log.producers import Producers
from logmark.log.segment import SNAPSHOT, Segment, file_name
from logmark.log.segments import Segments
from logmark.log.settings import TopicSettings
from logmark.log.transactions import Aborted, Ended, Marker
from logmark.log.waiters import Told, Waiters
from logmark.log.wal.entries import partition_key
from logmark.log.wal.points import RecoveryPoint
from logmark.wire import batches
from logmark.wire.batches import ProducedBatch

METADATA = "partition.metadata"

logger = logging.getLogger(__name__)


class Appended(NamedTuple):
    """Where a batch lies now; a duplicate lies where it was written first, and may not be durable yet."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class _Point(NamedTuple):
    """What a round of group commit makes durable: an end, and how much of which segments lies below it."""

    end: int
    shown: list[tuple[Segment, int, int, int]]


class Writer(ABC):
    """The writing side of one partition's log."""

    def __init__(
        self,
        folder: str,
        topic: str,
        index: int,
        topic_id: bytes,
        settings: TopicSettings,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
    ) -> None:
        """Knows its place; `Partition.open` or `create` makes a log that can be used."""
        self.folder = folder
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.key = partition_key(topic_id, index)
        self.settings = settings
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.durable_end = 0
        self._recovery_point = RecoveryPoint(0, 0, 0)
        self.failure: LogFailed | None = None
        self.producers = Producers()
        self.watchers: set[Callable[[], None]] = set()
        self._files = files
        self._committer = committer
        self._is_sync = committer.is_sync
        self._clock = clock
        self._segments = Segments()
        self.has_folder = False
        # The disk failed a flush: the segments may lack what was acknowledged, until it is written again.
        self._is_suspect = False
        self._is_prepared = False
        self._is_changed = False
        # The last write found the disk full, and that was said.
        self._is_refusing = False
        self._is_closed = False
        self._has_aborted = False
        # Of the transaction indexes by base offset, when the log is closed: without them aborted records would be seen.
        self.aborted_checksums: Mapping[int, int] = {}
        self._epochs = Epochs(0)
        self._waiters = Waiters(committer.loop)
        # What the next flush syncs, and what may change on disk after its recovery point is durable.
        self._syncs: list[Callable[[], None]] = []
        self._changes: list[Callable[[], None]] = []
        self._unshown: list[Segment] = []
        self._deleted: list[tuple[int, Segment]] = []
        self.cleaned_to: int | None = None
        # While segments are being read to be rewritten, retention leaves them alone.
        self.is_being_cleaned = False
        self._swaps: list[tuple[Callable[[], None], asyncio.Future[None]]] = []
        # Where the oldest segment begins that a crash could leave: what was let go may come back until a round ends.
        self.oldest_offset = 0
        self._adopt(settings)

    def _make_folder(self) -> None:
        self._files.mkdir(self.folder)
        # Before any data: Kafka sets a folder without it aside.
        metadata = checkpoints.write_partition_metadata(self.topic_id)
        try:
            self._files.write(f"{self.folder}/{METADATA}", metadata, sync=False)
        except OSError:
            with suppress(FileNotFoundError):
                self._files.remove(f"{self.folder}/{METADATA}")
            self._files.rmdir(self.folder)
            raise
        self.has_folder = True

    def configure(self, settings: TopicSettings) -> None:
        """Takes over new settings from the next append on."""
        self.settings = settings
        self._adopt(settings)
        if self._segments.active is not None:
            self._segments.active.configure(index_interval=settings.index_interval_bytes)

    def _adopt(self, settings: TopicSettings) -> None:
        self._segment_bytes = settings.segment_bytes
        jitter_ms = min(settings.segment_jitter_ms, settings.segment_ms)
        # Spreads the rolls of many partitions; nothing that must not be guessed.
        self._segment_ms = settings.segment_ms - (random.randrange(jitter_ms) if jitter_ms else 0)  # noqa: S311
        self._index_bytes_max = settings.segment_index_bytes // 8 * 8
        # One entry is kept free for the largest timestamp.
        self._time_index_bytes_max = (settings.segment_index_bytes // 12 - 1) * 12
        self._is_log_append_time = settings.is_log_append_time

    # Appending

    def append(self, batch: ProducedBatch, *, now_ms: int, from_client: bool = True) -> Appended:
        """Writes a batch at the log end, or finds the place where the same batch was written before."""
        if self.failure is not None:
            raise LogFailed(str(self.failure))
        is_idempotent = batch.producer_id >= 0
        if is_idempotent:
            written = self.producers.check(batch, from_client=from_client)
            if written is not None:
                return Appended(
                    written.base_offset, written.last_offset, written.timestamp, self.log_start_offset, True
                )  # fmt: skip
        base = self._write(batch, now_ms)
        last = base + batch.last_offset_delta
        if is_idempotent:
            self.producers.record(batch, last_offset=last, seen_ms=now_ms)
        if not self._is_sync:
            self._move_high_watermark(last + 1)
        append_time = batch.max_timestamp if self._is_log_append_time else -1
        return Appended(base, last, append_time, self.log_start_offset, False)

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
        """Ends a producer's transaction; readers see that when the marker is durable.

        `is_bumped` says that the epoch is the one after the transaction's (KIP-890).
        """
        if self.failure is not None:
            raise LogFailed(str(self.failure))
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, is_bumped=is_bumped)
        marker = Marker(commit, coordinator_epoch)
        batch = transactions.build_marker(
            producer_id, producer_epoch, marker, timestamp_ms=now_ms, is_log_append_time=self._is_log_append_time
        )
        offset = self._write(batch, now_ms, aborts=producer_id if not commit else None)
        ended = self.producers.record_marker(
            producer_id, producer_epoch, marker, offset=offset, timestamp=now_ms, seen_ms=now_ms
        )
        if ended is not None:
            self.producers.undecided.end(ended)
        if not self._is_sync:
            self._move_high_watermark(offset + 1)
        append_time = now_ms if self._is_log_append_time else -1
        return Appended(offset, offset, append_time, self.log_start_offset, False)

    def _write(self, batch: ProducedBatch, now_ms: int, *, aborts: int | None = None) -> int:
        """Writes a batch at the log end and returns its first offset; a marker may abort a producer's transaction."""
        size = batch.size
        if size > self._segment_bytes:
            raise Refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"The batch has {size} bytes, more than segment.bytes of the topic, {self._segment_bytes}.",
            )
        base = self.log_end_offset
        last = base + batch.last_offset_delta
        try:
            if self._is_sync:
                self._committer.prepare(size)
            segment = self._segments.active
            if segment is None or self._must_roll(segment, batch, last, now_ms):
                segment = self._roll()
            batches.place(batch, base)
            position = segment.size
            if aborts is None:
                segment.append(batch.data, size, last, batch.max_timestamp)
            else:
                self._append_abort(segment, batch, aborts)
        except OSError as error:
            raise self._write_failed(error) from error
        self.log_end_offset = last + 1
        if self._is_refusing:
            self._is_refusing = False
        if self._is_sync:
            self._committer.add(self, segment.base_offset, position, base, last + 1, batch.data, size)
        else:
            segment.show()
        return base

    def _append_abort(self, segment: Segment, batch: ProducedBatch, producer_id: int) -> None:
        """Writes a marker that aborts, and its entry in the transaction index: both, or none if one of them fails."""
        offset = self.log_end_offset
        producer = self.producers.get(producer_id)
        is_noted = producer is not None and producer.transaction_first_offset >= 0
        if producer is not None and is_noted:
            ended = Ended(producer_id, producer.transaction_first_offset, offset, True)
            stable = self.producers.undecided.stable_after(ended)
            segment.add_aborted(Aborted(producer_id, ended.first_offset, offset, stable))
            self._has_aborted = True
            # Its name is durable with the snapshot that closes the segment: until then recovery makes the index again.
            if segment.sync_aborted not in self._syncs:
                self._syncs.append(segment.sync_aborted)
        try:
            segment.append(batch.data, batch.size, offset, batch.max_timestamp)
        except OSError:
            if is_noted:
                segment.cut_aborted(1)
            raise

    def _write_failed(self, error: OSError) -> LogFailed:
        """Undoes a write that failed; where that cannot be done, or the disk is worse than full, the log stops."""
        try:
            if self._segments.active is not None:
                self._segments.active.cut_torn()
        except OSError as worse:
            return self._fail(worse)
        if not disk_full.is_full(error):
            return self._fail(error)
        refused = disk_full.refused(f"{self.topic}-{self.index}", error)
        if not self._is_refusing:
            self._is_refusing = True
            logger.warning("%s", refused)
        return refused

    def _must_roll(self, segment: Segment, batch: ProducedBatch, last_offset: int, now_ms: int) -> bool:
        if not self._is_prepared:
            segment.prepare()
            self._is_prepared = self._is_changed = True
        size = segment.size
        if not size or size + batch.size > self._segment_bytes:
            return size > 0
        first = segment.first_timestamp
        waited_ms = batch.max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return (
            waited_ms > self._segment_ms
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.index_bytes >= self._index_bytes_max
            or segment.time_index_bytes >= self._time_index_bytes_max
        )

    def _roll(self) -> Segment:
        """Begin a new segment at the log end; the next flush syncs both segments."""
        old = self._segments.active
        segment = Segment(
            self.folder,
            self.log_end_offset,
            self._files,
            size=0,
            created_ms=self._clock.now_ms(),
            index_interval=self.settings.index_interval_bytes,
            is_dense=True,
        )
        if old is None:
            self._begin_log()
        try:
            segment.create()
            if old is not None:
                old.finish_indexes()
        except OSError:
            # Else a start would find a segment in the middle of the one that goes on.
            segment.discard()
            raise
        if old is not None:
            self._syncs += [old.file.sync, old.sync_indexes, self._snapshot_writer()]
        self._syncs.append(partial(self._files.sync_directory, self.folder))
        # From here until the flush has ended, threads may sync files of old segments.
        self._segments.hold()
        self._segments.begin(segment)
        self._unshown.append(segment)
        self._is_prepared = self._is_changed = True
        self._committer.flusher.mark(self)
        return segment

    def _begin_log(self) -> None:
        """Makes what a log has besides its segments."""
        if not self.has_folder:
            self._make_folder()
        self._files.write(f"{self.folder}/{leader_epochs.FILE_NAME}", self._epochs.encode(), sync=False)
        self._syncs += self._folder_syncs()

    def _folder_syncs(self) -> list[Callable[[], None]]:
        return [
            partial(self._files.sync_file, f"{self.folder}/{METADATA}"),
            partial(self._files.sync_directory, os.path.dirname(self.folder)),
            partial(self._files.sync_file, f"{self.folder}/{leader_epochs.FILE_NAME}"),
        ]

    def _snapshot_writer(self) -> Callable[[], None]:
        """Writes the producers as they are now; called after everything below was synced, and before it is told.

        So a snapshot is proof: whatever lies below its offset was on disk, and is missed if it is not there.
        """
        path = f"{self.folder}/{file_name(self.log_end_offset, SNAPSHOT)}"
        return partial(self._files.write_atomically, path, self.producers.encode())

    def expire_producers(self, *, now_ms: int, expiration_ms: int) -> int:
        """Forgets idle producers and says how many."""
        return self.producers.expire(now_ms=now_ms, expiration_ms=expiration_ms)

    # Durability

    def durable(self, next_offset: int) -> asyncio.Future[None] | None:
        """Waits for the high watermark to reach an offset; None when it is there already."""
        if self.high_watermark >= next_offset:
            return None
        return self._waiters.wait_for(next_offset) if self.failure is None else self._waiters.refuse(self.failure)

    def when_durable(self, next_offset: int, told: Told) -> bool:
        """Make a call when the high watermark reaches an offset; returns False if it is there already.

        The call gets the failure if the offset is never reached.
        """
        if self.high_watermark >= next_offset:
            return False
        if self.failure is not None:
            self._committer.loop.call_soon(told, LogFailed(str(self.failure)))
        else:
            self._waiters.call_at(next_offset, told)
        return True

    def commit_point(self) -> _Point:
        """Return what a sync of all that was appended so far makes durable."""
        shown = [(segment, segment.size, segment.max_timestamp, segment.max_timestamp_offset)
                 for segment in self._unshown]  # fmt: skip
        self._unshown = self._unshown[-1:]
        return _Point(self.log_end_offset, shown)

    def committed(self, point: object) -> None:
        """Show what is durable now, also of a log that has stopped meanwhile.

        What is in the WAL must not be cut away when the log comes back: a recovery would put it over what came later.
        """
        if self._is_closed:
            return
        assert isinstance(point, _Point)
        self.durable_end = point.end
        for segment, size, timestamp, timestamp_offset in point.shown:
            segment.visible_bytes = size
            segment.visible_timestamp = timestamp
            segment.visible_timestamp_offset = timestamp_offset
        self._move_high_watermark(point.end)

    def commit_failed(self, error: Exception) -> None:
        """Stop this log: what was appended since the durable end may be lost."""
        self._fail(error)

    def begin_flush(self) -> Flush | None:
        """Return what must be synced now, and the recovery point that this proves."""
        if self.failure is not None:
            return None
        syncs, self._syncs = self._syncs, []
        changes, self._changes = self._changes, []
        point = self._flush_point()
        if self._segments.active is not None and self._recovery_point.offset < self.log_end_offset:
            syncs.append(self._segments.active.file.sync)
        if not syncs and not changes:
            return None
        self._segments.hold()
        return Flush(self, syncs, point, changes)

    def _flush_point(self) -> RecoveryPoint:
        """Return the place of the durable end: what lies behind it is not acknowledged, so no flush may prove it."""
        end = self.durable_end if self._is_sync else self.log_end_offset
        for segment in reversed(tuple(self._segments)):
            if segment.base_offset <= end:
                return RecoveryPoint(end, segment.base_offset, segment.visible_bytes)
        return RecoveryPoint(end, end, 0)

    def end_flush(self, flush: Flush) -> None:
        """Move the recovery point, or stop this log when the disk failed it."""
        is_held_up = flush.is_held_up or (not self._is_sync and disk_full.is_full(flush.error))
        if is_held_up:
            # Nobody waits for these: they are tried again when there is space.
            self._syncs[:0] = flush.syncs[flush.sync_count :]
            self._changes[:0] = flush.changes[flush.change_count :]
            self._committer.flusher.troubled.add(self)
        if not self._syncs and not self._changes:
            self._segments.let_go()
        if is_held_up:
            return
        if flush.error is not None:
            self._fail(flush.error)
            if self._is_sync and not flush.is_proved:
                # What was acknowledged is in the WAL for certain, and in the segments perhaps.
                self._is_suspect = True
                self._committer.flusher.troubled.add(self)
        if self.failure is not None:
            return
        self._recovery_point = flush.point
        if self._segments and not self._changes:
            self.oldest_offset = self._segments[0].base_offset
        if self._swaps:
            self._tell_swaps(flush)

    def _move_high_watermark(self, end: int) -> None:
        if end <= self.high_watermark:
            return
        self.high_watermark = end
        self.producers.undecided.show(end)
        if self._waiters:
            self._waiters.release(end)
        if self.watchers:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def _tell_swaps(self, done: Flush) -> None:
        for finish, swapped in self._swaps:
            if finish in done.changes and not swapped.done():
                swapped.set_result(None)
        self._swaps = [(finish, swapped) for finish, swapped in self._swaps if not swapped.done()]

    def _fail(self, error: Exception) -> LogFailed:
        """Stops this log: after a failed sync the kernel may have dropped the pages and call the next sync good."""
        failure = disk_full.stopped(f"{self.topic}-{self.index}", error)
        if self.failure is None:
            logger.error("%s", failure)
            self._stop(failure)
            if disk_full.is_full(error):
                self._committer.flusher.troubled.add(self)
        return failure

    @abstractmethod
    async def recover(self) -> None:
        """Tries again what a full disk has stopped or held up; to be called now and then while it is in trouble."""

    def _stop(self, failure: LogFailed) -> None:
        self.failure = failure
        self._waiters.fail(failure)
        for _, swapped in self._swaps:
            if not swapped.done():
                swapped.set_exception(failure)
        self._swaps.clear()
        self._tell_watchers()
