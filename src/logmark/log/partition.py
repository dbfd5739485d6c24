"""One partition's log: open, read, look up, let go, clean; `writer` has what it takes to write it."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from logmark.clock import Clock
from logmark.disk.files import FileSystem
from logmark.errors import ErrorCode, LogFailed, Malformed, Refused
from logmark.log import compaction, disk_full, retention, timestamps
from logmark.log import epochs as leader_epochs
from logmark.log.cleaning import Limits, Plan
from logmark.log.compaction import Due, Lag
from logmark.log.damage import Damage
from logmark.log.epochs import LEADER_EPOCH, Epochs
from logmark.log.groupcommit import GroupCommit
from logmark.log.reader import Reader, Records
from logmark.log.recovery import Loaded, Loader
from logmark.log.segment import Segment
from logmark.log.segments import Segments
from logmark.log.settings import LONG_MAX, TopicSettings
from logmark.log.swap import Incoming, Swap
from logmark.log.writer import METADATA, Appended, Writer
from logmark.names import INTERNAL_TOPICS
from logmark.wire.batches import BatchRules

__all__ = ["METADATA", "Appended", "Partition", "batch_rules"]

logger = logging.getLogger(__name__)


def batch_rules(settings: TopicSettings, *, decompressed_bytes_max: int) -> BatchRules:
    """What a topic's settings ask of produced batches."""
    return BatchRules(
        max_message_bytes=settings.max_message_bytes,
        decompressed_bytes_max=decompressed_bytes_max,
        keys_required=settings.is_compacted,
        is_log_append_time=settings.is_log_append_time,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        compression_type=settings.compression_type,
    )


class Partition(Writer):
    """The log of one partition of a topic."""

    _reader: Reader
    _gaps: list[Damage]
    _leader_epoch = LEADER_EPOCH

    # Opening and closing

    @classmethod
    def create(
        cls,
        folder: str,
        topic: str,
        index: int,
        topic_id: bytes,
        settings: TopicSettings,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        first_offset: int = 0,
        lazily: bool = False,
    ) -> "Partition":
        """A new partition in a new folder, durable but for the folder's own name, which its parent must sync.

        The first segment's files come with the first record: until then the folder's name and topic id are all there
        is to know, and Kafka opens such a folder as an empty log. A lazy partition has no folder either until then.
        """
        self = cls(folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock)
        self._reader, self._gaps = self._new_reader(), []
        self._stand_at(first_offset, first_offset)
        if first_offset or not lazily:
            self._make_folder()
            files.sync_file(f"{folder}/{METADATA}")
            files.sync_directory(folder)
        if first_offset:
            self._roll()
            for sync in self._syncs:
                sync()
            self._syncs.clear()
            committer.flusher.points[self.key] = self._flush_point()
            committer.flusher.mark(self)
        return self

    @classmethod
    def open(
        cls,
        folder: str,
        topic: str,
        index: int,
        topic_id: bytes,
        settings: TopicSettings,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        clean: bool,
        recovery_point: int = 0,
        durable_end: int = 0,
        log_start_offset: int = 0,
        cleaned_to: int | None = None,
        aborted_checksums: Mapping[int, int] | None = None,
        leader_epoch: int = LEADER_EPOCH,
    ) -> "Partition":
        """The partition in a folder; unless it was stopped cleanly, every batch from the recovery point is checked.

        `durable_end` is where the log ends by its WAL, 0 without one.

        `cleaned_to` is the cleaner's checkpoint: a log without one was never cleaned and has no holes. The checksums
        are those that `close` found. Every batch has the leader epoch; -1 is for a log of Apache Kafka, which has many.
        """
        self = cls(folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock)
        self._leader_epoch = leader_epoch
        loader = self._loader(
            clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset, cleaned_to=cleaned_to
        )
        loader.aborted_checksums = aborted_checksums
        loader.durable_end = durable_end
        loader.is_replayed = durable_end > 0
        self.has_folder = True
        self.cleaned_to = cleaned_to
        self._take(loader.load(), loader)
        if self._is_changed and self._segments:
            self._write_epochs()
        return self

    def _write_epochs(self) -> None:
        """Makes the leader epoch durable, and with it the names that a load has left in the folder."""
        self._files.write_atomically(f"{self.folder}/{leader_epochs.FILE_NAME}", self._epochs.encode())

    def _loader(self, *, clean: bool, recovery_point: int, log_start_offset: int, cleaned_to: int | None) -> Loader:
        return Loader(
            folder=self.folder,
            files=self._files,
            is_clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval=self.settings.index_interval_bytes,
            cleaned_to=cleaned_to,
            now_ms=self._clock.now_ms(),
        )

    def _take(self, loaded: Loaded, loader: Loader) -> None:
        """Stands on what was loaded."""
        self._segments = Segments(loaded.segments)
        self._reader = self._new_reader()
        self._unshown = loaded.segments[-1:]
        self._has_aborted = any(segment.has_aborted for segment in loaded.segments)
        self.oldest_offset = loaded.segments[0].base_offset if loaded.segments else 0
        self._gaps = loaded.damage
        self.producers = loaded.producers
        if len(self.producers):
            # Reading the tail of every log would make a clean start long: it is read when a producer sends again.
            self.producers.recall = lambda: loader.tail_producers(self.segments)
        self._is_changed = loaded.was_checked
        self._stand_at(loaded.log_start_offset, loaded.log_end_offset)

    def _new_reader(self) -> Reader:
        name = f"{self.topic}-{self.index}"
        return Reader(name, self._segments, leader_epoch=self._leader_epoch)

    def _stand_at(self, log_start_offset: int, log_end_offset: int) -> None:
        self.log_start_offset = log_start_offset
        self.log_end_offset = self.high_watermark = self.durable_end = log_end_offset
        self._epochs = Epochs(log_start_offset)
        self._recovery_point = self._flush_point()
        if self._segments:
            self._committer.flusher.points[self.key] = self._recovery_point

    def close(self, *, clean: bool = True) -> bool:
        """Closes the log and says whether its files are complete, so that the next start need not check them."""
        self._is_closed = True
        flusher = self._committer.flusher
        if flusher.is_busy_with(self):
            flusher.finish()
        flusher.forget(self)
        with suppress(OSError, Malformed):
            self.aborted_checksums = {
                segment.base_offset: segment.aborted.checksum for segment in self._segments if segment.has_aborted
            }
        is_complete = self.failure is None
        if clean and self.failure is None:
            try:
                self._finish()
            except OSError as error:
                self._fail(error)
                is_complete = False
        if self.failure is None:
            self._stop(LogFailed(f"The log of {self.topic}-{self.index} is closed."))
        self._segments.close()
        return is_complete and clean

    def _finish(self) -> None:
        """Leaves the files as Kafka leaves them after a clean stop."""
        active = self._segments.active
        if active is not None and self._is_changed:
            active.finish_indexes()
            self._syncs += [active.sync_indexes, self._snapshot_writer()]
        # Two times at most: what may change on disk waits for the recovery point that the first one proves.
        while (flush := self.begin_flush()) is not None:
            for sync in (*flush.syncs, *flush.changes):
                sync()
            self.end_flush(flush)

    async def recover(self) -> None:
        """Take records again, if the disk allows it: bring the files to what is durable and load them as after a crash.

        After a full disk that is a cut. After a flush that failed, everything above the recovery point is written
        again from the WAL: the kernel may have dropped it and call the next sync good.
        """
        flusher = self._committer.flusher
        if flusher.is_busy_with(self) or self._committer.is_busy_with(self):
            return
        flusher.troubled.discard(self)
        if self._is_closed or self._committer.failure is not None:
            return
        if self.failure is None:
            flusher.mark(self)
            return
        sizes = {
            segment.base_offset: segment.visible_bytes
            for segment in self._segments
            if segment.visible_bytes < segment.size or segment.base_offset >= self.durable_end
        }
        loader = self._loader(
            clean=False, recovery_point=self.recovery_point, log_start_offset=self.log_start_offset,
            cleaned_to=self.cleaned_to,
        )  # fmt: skip
        loader.durable_end = self.durable_end

        is_suspect = self._is_suspect

        def load() -> Loaded:
            if is_suspect:
                self._committer.rewrite(self, self.folder, self._recovery_point, self.durable_end)
            else:
                disk_full.cut_back(self.folder, sizes, self.durable_end, self._files)
            loaded = loader.load()
            # What was cut away must not come back.
            self._write_epochs()
            return loaded

        try:
            loaded = await self._committer.loop.run_in_executor(None, load)
        except OSError as error:
            if not self._is_closed and (is_suspect or disk_full.is_full(error)):
                flusher.troubled.add(self)
            elif not self._is_closed:
                logger.error("%s", disk_full.stopped(f"{self.topic}-{self.index}", error))
            return
        if self._is_closed:
            return
        self._segments.close()
        # What the failed round may not have done: nothing is acknowledged in a folder that a crash could take.
        self._syncs = self._folder_syncs()
        self._changes = [partial(self._committer.remove_saved, self)] if is_suspect else []
        self._is_suspect = False
        self._deleted.clear()
        self._is_prepared = False
        log_start_offset = self.log_start_offset
        self._take(loaded, loader)
        self._move_log_start(log_start_offset)
        self.failure = None
        flusher.mark(self)
        logger.warning("%s-%d takes records again, from offset %d on", self.topic, self.index, self.log_end_offset)
        self._tell_watchers()

    # Reading

    @property
    def last_stable_offset(self) -> int:
        """The visible end for readers of committed records: the first offset of the oldest open transaction, if any."""
        first = self.producers.undecided.first_offset
        if first is None or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    def read(self, offset: int, *, bytes_max: int, at_least_one: bool = True) -> Records:
        """Whole batches below the high watermark from the one that holds an offset on; none at the end."""
        if not self.log_start_offset <= offset < self.high_watermark:
            return self._nothing_at(offset)
        try:
            return self._reader.read(offset, bytes_max=bytes_max, at_least_one=at_least_one, end=self.high_watermark)
        except OSError as error:
            raise self._unreadable(error) from error

    def read_committed(
        self, offset: int, *, bytes_max: int, at_least_one: bool = True
    ) -> tuple[Records, list[tuple[int, int]]]:
        """Whole batches below the last stable offset, and which transactions the reader must leave out of them."""
        end = self.last_stable_offset
        if not self.log_start_offset <= offset < end:
            return self._nothing_at(offset), []
        try:
            records = self._reader.read(offset, bytes_max=bytes_max, at_least_one=at_least_one, end=end, is_stable=True)
            if not self._has_aborted or not len(records):
                return records, []
            return records, self.aborted_transactions(offset, self._reader.bound(self.log_end_offset))
        except OSError as error:
            raise self._unreadable(error) from error

    def _nothing_at(self, offset: int) -> Records:
        if self.log_start_offset <= offset <= self.high_watermark:
            return b""
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is not between {self.log_start_offset} and {self.high_watermark}.",
        )

    def aborted_transactions(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Producer and first offset of the aborted transactions with records between two offsets."""
        found: list[tuple[int, int]] = []
        for segment in self._segments.from_offset(offset):
            if not segment.has_aborted:
                continue
            self._segments.use(segment)
            try:
                overlapping = segment.aborted.overlapping(offset, end)
            except Malformed as error:
                raise Refused(
                    ErrorCode.CORRUPT_MESSAGE, f"The transaction index of {segment.path} is damaged: {error}."
                ) from None
            # A marker that is not shown yet may still be lost.
            found += [entry[:2] for entry in overlapping if entry.last_offset < self.high_watermark]
        return found

    def _unreadable(self, error: OSError) -> Refused:
        logger.error("%s-%d cannot be read: %s", self.topic, self.index, error)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The log of {self.topic}-{self.index} cannot be read: {error}.")

    # Looking up

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def damage(self) -> list[Damage]:
        """The places that are kept and never served, as far as they have been found."""
        found = [damage for segment in self._segments for damage in segment.damage]
        return found + [gap for gap in self._gaps if gap not in found]

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable in this partition's own files."""
        return self._recovery_point.offset

    def offset_for_timestamp(self, timestamp: int) -> timestamps.Found | None:
        """The offset and timestamp of the first readable record that is not older than a timestamp."""
        try:
            return timestamps.run(self._search(timestamp))
        except OSError as error:
            raise self._unreadable(error) from error

    def max_timestamp(self) -> timestamps.Found | None:
        """The offset and timestamp of the first record that has the largest timestamp."""
        try:
            return timestamps.run(self._search(None))
        except OSError as error:
            raise self._unreadable(error) from error

    async def look_up(self, timestamp: int | None) -> timestamps.Found | None:
        """The same as `offset_for_timestamp`, or `max_timestamp` for None, without holding up the event loop."""
        try:
            return await timestamps.run_beside(self._search(timestamp))
        except OSError as error:
            raise self._unreadable(error) from error

    def _search(self, timestamp: int | None) -> timestamps.Search:
        segments, start = list(self._segments), self.log_start_offset
        if timestamp is None:
            return timestamps.largest(segments, log_start_offset=start)
        return timestamps.first_at_or_after(segments, timestamp, log_start_offset=start)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """A leader epoch and the offset at which it ended; -1 and -1 when it is not known here."""
        return self._epochs.end_offset(leader_epoch, self.high_watermark)

    # Letting go

    def delete_records(self, before: int) -> int:
        """Moves the log start up to an offset (-1: to the high watermark) and returns it."""
        if self.topic in INTERNAL_TOPICS:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{self.topic} is internal: its records are kept.")
        if not self.settings.is_deleted:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {self.topic} does not include delete.")
        target = self.high_watermark if before == -1 else before
        if not 0 <= target <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"Offset {before} is above the high watermark, {self.high_watermark}."
            )
        self._move_log_start(target)
        return self.log_start_offset

    def apply_retention(self, now_ms: int) -> int:
        """Lets old segments go by the topic's settings and says how many; also removes files let go long ago."""
        self.remove_deleted(now_ms)
        if not self._segments or self.failure is not None or self.is_being_cleaned:
            return 0
        try:
            pieces = [self._piece(at, segment) for at, segment in enumerate(self._segments)]
            count = retention.deletable(
                pieces,
                self.settings,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                now_ms=now_ms,
            )
            return self._let_go(count, now_ms) if count else 0
        except OSError as error:
            self._fail(error)
            return 0

    def _piece(self, at: int, segment: Segment) -> retention.Piece:
        if segment.load_timestamps():
            self._segments.use(segment)
        is_active = segment is self._segments.active
        return retention.Piece(
            base_offset=segment.base_offset,
            next_base_offset=self.log_end_offset if is_active else self._segments[at + 1].base_offset,
            size_bytes=segment.size,
            largest_timestamp=segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms(),
            is_active=is_active,
        )

    def _let_go(self, count: int, now_ms: int) -> int:
        if count == len(self._segments):
            try:
                if not self._is_prepared:
                    self._segments[-1].prepare()
                self._roll()
            except OSError as error:
                if not disk_full.is_full(error):
                    raise
                # There is no space for the file of a new one, so the last one stays until the others have made some.
                count -= 1
                if not count:
                    return 0
        gone = self._segments.take_oldest(count)
        self._move_log_start(self._segments[0].base_offset)
        self._reader.forget()
        deadline_ms = now_ms + self.settings.file_delete_delay_ms
        for segment in gone:
            self._changes.append(segment.mark_deleted)
            self._deleted.append((deadline_ms, segment))
        self._unshown = [segment for segment in self._unshown if segment not in gone]
        # The new names need no sync: a start that finds old ones again finishes, by the leader epoch's start offset.
        self._committer.flusher.mark(self)
        return count

    def _move_log_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if self._epochs.begin_at(offset) and self._segments:
            path = f"{self.folder}/{leader_epochs.FILE_NAME}"
            self._changes.append(partial(self._files.write_atomically, path, self._epochs.encode()))
            self._committer.flusher.mark(self)
        self._tell_watchers()

    def remove_deleted(self, now_ms: int) -> None:
        """Removes the files that were let go longer than file.delete.delay.ms ago; beside the loop, if it runs."""
        due = [entry for entry in self._deleted if entry[0] <= now_ms]
        if not due:
            return
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]

        def remove() -> list[tuple[int, Segment]]:
            return [entry for entry in due if not entry[1].remove_deleted()]

        def removed(done: asyncio.Future[list[tuple[int, Segment]]]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                logger.error("files of %s that were let go could not be removed: %s", self.folder, error)
            elif not done.cancelled():
                self._deleted += done.result()

        loop = self._committer.loop
        if loop.is_running():
            # A large file takes the kernel many milliseconds.
            loop.run_in_executor(None, remove).add_done_callback(removed)
        else:
            self._deleted += remove()

    # Compaction

    def dirty_part(self, now_ms: int) -> Due | None:
        """The part of this log that compaction could clean, or None when there is nothing to look at."""
        settings = self.settings
        if not settings.is_compacted or self.failure is not None or self.is_being_cleaned or len(self._segments) < 2:
            return None
        lag = Lag(settings.compaction_lag_min_ms, settings.compaction_lag_max_ms)
        return compaction.due(
            [self._dirty_piece(segment, lag) for segment in self._segments],
            first_dirty_offset=compaction.first_dirty_offset(
                self.cleaned_to, log_start_offset=self.log_start_offset, log_end_offset=self.log_end_offset
            ),
            last_stable_offset=self.last_stable_offset,
            lag=lag,
            now_ms=now_ms,
        )

    def _dirty_piece(self, segment: Segment, lag: Lag) -> compaction.Piece:
        largest = first = -1
        if segment is not self._segments.active and (lag.least_ms > 0 or lag.most_ms < LONG_MAX):
            if segment.load_timestamps() or segment.first_timestamp < 0:
                self._segments.use(segment)
            largest, first = segment.max_timestamp, segment.first_batch_timestamp()
        return compaction.Piece(segment.base_offset, segment.size, largest, first)

    def cleaning_plan(self, part: Due, *, now_ms: int, limits: Limits) -> Plan:
        """What a cleaning of that part must know; refuses a log that is damaged there."""
        sources = [segment for segment in self._segments if segment.base_offset < part.end_offset]
        for segment in sources:
            if segment.damage:
                raise Malformed(str(segment.damage[0]))
        settings = self.settings
        return Plan(
            folder=self.folder,
            bases=[segment.base_offset for segment in sources],
            sizes=[segment.size for segment in sources],
            first_dirty_offset=part.first_dirty_offset,
            end_offset=part.end_offset,
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            aborted=[entry for segment in self._segments if segment.has_aborted
                     for entry in segment.aborted.overlapping(0, part.end_offset)
                     if entry.last_offset < self.high_watermark],
            producers={producer_id: (-1 if known.last is None else known.last.last_offset, known.producer_epoch)
                       for producer_id, known in self.producers},
            segment_bytes=settings.segment_bytes,
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            limits=limits,
        )  # fmt: skip

    def take_over(self, incoming: Incoming, *, now_ms: int) -> asyncio.Future[None]:
        """Puts a cleaned segment in the place of others; the future is done when the disk has followed."""
        cleaned = incoming.cleaned
        replaced = set(cleaned.replaced)
        gone = [segment for segment in self._segments if segment.base_offset in replaced]
        if self.failure is not None or [segment.base_offset for segment in gone] != list(cleaned.replaced):
            raise LogFailed(f"{self.topic}-{self.index} is not the log any more that was cleaned.")
        segment = Segment(
            self.folder,
            cleaned.base_offset,
            self._files,
            size=cleaned.size_bytes,
            created_ms=now_ms,
            index_interval=self.settings.index_interval_bytes,
            is_dense=False,
            has_aborted=cleaned.has_aborted,
        )
        largest = cleaned.max_timestamp, cleaned.max_timestamp_offset
        segment.enter(incoming.file, incoming.offsets, incoming.times, incoming.aborted, largest)
        self._segments.replace(gone, segment)
        self._reader.forget()
        swap = Swap(self.folder, cleaned, self._files)
        swapped: asyncio.Future[None] = self._committer.loop.create_future()

        def finish() -> None:
            swap.finish()
            segment.settle()

        self._changes.append(swap.begin)
        deadline_ms = now_ms + self.settings.file_delete_delay_ms
        self._deleted = [entry for entry in self._deleted if entry[1].base_offset not in replaced]
        for old in gone:
            old.retire()
            # The snapshot at the new segment's own offset stays true.
            self._changes += [partial(old.mark_deleted, with_snapshot=old is not gone[0]), old.let_file_go]
            self._deleted.append((deadline_ms, old))
        self._changes += [partial(self._files.sync_directory, self.folder), finish]
        self._unshown = [each for each in self._unshown if each not in gone]
        self._swaps.append((finish, swapped))
        self._committer.flusher.mark(self)
        return swapped
