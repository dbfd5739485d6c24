"""One partition's log: append, read, look up, let go.

The event loop owns all of this; only syncs run in threads. The high watermark is the durable end: nothing is shown, and
nobody is told of anything, that a crash could take back. With durability=os it is the log end.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from logmark.clock import Clock
from logmark.disk.files import FileSystem
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log import checkpoints, retention, timestamps
from logmark.log import epochs as leader_epochs
from logmark.log.epochs import Epochs
from logmark.log.groupcommit import GroupCommit, Round
from logmark.log.producers import Producers
from logmark.log.recovery import Loader
from logmark.log.segment import RELATIVE_OFFSET_MAX, SNAPSHOT, Damage, Segment, file_name
from logmark.log.settings import TopicSettings
from logmark.names import INTERNAL_TOPICS
from logmark.wire import batches
from logmark.wire.batches import HEADER_BYTES, BatchRules, ProducedBatch

METADATA = "partition.metadata"
PLACES_MAX = 64
OPEN_SEGMENTS_MAX = 8
Records = bytes | memoryview

logger = logging.getLogger(__name__)


class Appended(NamedTuple):
    """Where a batch lies now; a duplicate lies where it was written first, and may not be durable yet."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


class _Point(NamedTuple):
    """What a round makes durable: an end, and how much of which segments lies below it."""

    end: int
    shown: list[tuple[Segment, int, int, int]]


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


class Partition:
    """The log of one partition of a topic."""

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
        """Knows its place; `open` or `create` makes a partition that can be used."""
        self.folder = folder
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.settings = settings
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.durable_end = 0
        self.failure: LogFailed | None = None
        self.producers = Producers()
        self.watchers: set[Callable[[], None]] = set()
        self._gaps: list[Damage] = []
        self._files = files
        self._committer = committer
        self._is_sync = committer.is_sync
        self._clock = clock
        self._segments: list[Segment] = []
        self._active: Segment | None = None
        self._is_prepared = False
        self._is_changed = False
        self._epochs = Epochs(0)
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._syncs: list[Callable[[], None]] = []
        self._unshown: list[Segment] = []
        self._is_in_round = False
        self._places: dict[int, tuple[Segment, int]] = {}
        self._recently_read: dict[Segment, None] = {}
        self._released: list[Segment] = []
        self._deleted: list[tuple[int, str]] = []
        self._adopt(settings)

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
    ) -> "Partition":
        """A new partition in a new folder, durable but for the folder's own name, which its parent must sync.

        The first segment's files come with the first record: until then the folder's name and topic id are all there
        is to know, and Kafka opens such a folder as an empty log.
        """
        self = cls(folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock)
        files.mkdir(folder)
        # Before any data: a folder without it would be set aside as a stray.
        files.write(f"{folder}/{METADATA}", checkpoints.write_partition_metadata(topic_id))
        self._stand_at(first_offset, first_offset)
        if first_offset:
            self._roll()
            for sync in self._syncs:
                sync()
            self._syncs.clear()
        else:
            files.sync_directory(folder)
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
        log_start_offset: int = 0,
    ) -> "Partition":
        """The partition in a folder; unless it was stopped cleanly, every batch from the recovery point is checked."""
        self = cls(folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock)
        loaded = Loader(
            folder=folder,
            files=files,
            is_clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval=settings.index_interval_bytes,
            is_dense=not settings.is_compacted,
            now_ms=clock.now_ms(),
        ).load()
        self._segments = loaded.segments
        self._active = loaded.segments[-1] if loaded.segments else None
        self._unshown = [loaded.segments[-1]] if loaded.segments else []
        self._gaps = loaded.damage
        self.producers = loaded.producers
        self._is_changed = loaded.was_checked
        self._stand_at(loaded.log_start_offset, loaded.log_end_offset)
        if loaded.was_checked and loaded.segments:
            files.write_atomically(f"{folder}/{leader_epochs.FILE_NAME}", self._epochs.encode())
        return self

    def _stand_at(self, log_start_offset: int, log_end_offset: int) -> None:
        self.log_start_offset = log_start_offset
        self.log_end_offset = self.high_watermark = self.durable_end = log_end_offset
        self._epochs = Epochs(log_start_offset)

    def configure(self, settings: TopicSettings) -> None:
        """Takes over new settings from the next append on."""
        self.settings = settings
        self._adopt(settings)
        for segment in self._segments[-1:]:
            segment.configure(index_interval=settings.index_interval_bytes)

    def _adopt(self, settings: TopicSettings) -> None:
        self._segment_bytes = settings.segment_bytes
        jitter_ms = min(settings.segment_jitter_ms, settings.segment_ms)
        # Spreads the rolls of many partitions; nothing that must not be guessed.
        self._segment_ms = settings.segment_ms - (random.randrange(jitter_ms) if jitter_ms else 0)  # noqa: S311
        self._index_entries_max = settings.segment_index_bytes // 8
        self._time_entries_max = settings.segment_index_bytes // 12 - 1
        self._is_log_append_time = settings.is_log_append_time

    def close(self, *, clean: bool = True) -> bool:
        """Closes the log and says whether its files are complete, so that the next start need not check them."""
        self._committer.finish(self)
        is_complete = self.failure is None
        if clean and self.failure is None:
            try:
                self._finish()
            except OSError as error:
                self._fail(error)
                is_complete = False
        if self.failure is None:
            self._stop(LogFailed(f"The log of {self.topic}-{self.index} is closed."))
        for segment in self._segments:
            segment.release()
        return is_complete and clean

    def _finish(self) -> None:
        """Leaves the files as Kafka leaves them after a clean stop."""
        active = self._active
        if active is not None and self._is_changed:
            self._write_snapshot()
            active.finish_indexes()
            self._syncs += [active.file.sync, active.sync_indexes, partial(self._files.sync_directory, self.folder)]
        round_ = self.begin_round()
        if round_ is not None:
            for sync in round_.syncs:
                sync()
            self.end_round(round_)

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
        size = batch.size
        if size > self._segment_bytes:
            raise Refused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"The batch has {size} bytes, more than segment.bytes of the topic, {self._segment_bytes}.",
            )
        base = self.log_end_offset
        last = base + batch.last_offset_delta
        try:
            segment = self._active
            if segment is None or self._must_roll(segment, batch, last, now_ms):
                segment = self._roll()
            batches.place(batch, base)
            segment.append(batch.data, size, last, batch.max_timestamp)
        except OSError as error:
            raise self._fail(error) from error
        self.log_end_offset = last + 1
        if is_idempotent:
            self.producers.record(batch, last_offset=last, seen_ms=now_ms)
        if self._is_sync:
            self._committer.mark(self)
        else:
            segment.show()
            self._move_high_watermark(last + 1)
        append_time = batch.max_timestamp if self._is_log_append_time else -1
        return Appended(base, last, append_time, self.log_start_offset, False)

    def _must_roll(self, segment: Segment, batch: ProducedBatch, last_offset: int, now_ms: int) -> bool:
        if not self._is_prepared:
            segment.prepare()
            self._is_prepared = self._is_changed = True
        if segment.size + batch.size > self._segment_bytes:
            return True
        if not segment.size:
            return False
        first = segment.first_timestamp
        waited_ms = batch.max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return (
            waited_ms > self._segment_ms
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or len(segment.offset_index) >= self._index_entries_max
            or len(segment.time_index) >= self._time_entries_max
        )

    def _roll(self) -> Segment:
        """Begins a new segment at the log end; the syncs of both segments wait for the next round."""
        old = self._active
        if old is not None:
            old.finish_indexes()
            self._write_snapshot()
            self._syncs += [old.file.sync, old.sync_indexes]
        else:
            path = f"{self.folder}/{leader_epochs.FILE_NAME}"
            self._files.write(path, self._epochs.encode(), sync=False)
            self._syncs.append(partial(self._files.sync_file, path))
        segment = Segment(
            self.folder,
            self.log_end_offset,
            self._files,
            size=0,
            created_ms=self._clock.now_ms(),
            index_interval=self.settings.index_interval_bytes,
        )
        segment.create()
        self._syncs += [segment.file.sync, segment.sync_indexes, partial(self._files.sync_directory, self.folder)]
        self._segments.append(segment)
        self._unshown.append(segment)
        self._active = segment
        self._is_prepared = self._is_changed = True
        if old is not None:
            self._keep_open(old)
        self._committer.mark(self)
        return segment

    def _write_snapshot(self) -> None:
        path = f"{self.folder}/{file_name(self.log_end_offset, SNAPSHOT)}"
        self._files.write(path, self.producers.encode(), sync=False)
        self._syncs.append(partial(self._files.sync_file, path))

    def expire_producers(self, *, now_ms: int, expiration_ms: int) -> int:
        """Forgets idle producers and says how many."""
        return self.producers.expire(now_ms=now_ms, expiration_ms=expiration_ms)

    # Durability

    def durable(self, next_offset: int) -> asyncio.Future[None] | None:
        """Waits for the high watermark to reach an offset; None when it is there already."""
        if self.high_watermark >= next_offset:
            return None
        future: asyncio.Future[None] = self._committer.loop.create_future()
        if self.failure is not None:
            future.set_exception(LogFailed(str(self.failure)))
        else:
            self._waiters.append((next_offset, future))
        return future

    def begin_round(self) -> Round | None:
        """What must be synced now, and what that will have made durable."""
        syncs, self._syncs = self._syncs, []
        if self._active is not None and self.durable_end < self.log_end_offset:
            syncs.append(self._active.file.sync)
        if not syncs or self.failure is not None:
            return None
        shown = [(segment, segment.size, segment.max_timestamp, segment.max_timestamp_offset)
                 for segment in self._unshown]  # fmt: skip
        self._unshown = self._unshown[-1:]
        self._is_in_round = True
        return Round(self, syncs, _Point(self.log_end_offset, shown))

    def end_round(self, done: Round) -> None:
        """Shows what is durable now, or stops this log when the disk failed it."""
        self._is_in_round = False
        for segment in self._released:
            segment.release()
        self._released.clear()
        if done.error is not None:
            self._fail(done.error)
        if self.failure is not None:
            return
        assert isinstance(done.point, _Point)
        self.durable_end = done.point.end
        if self._is_sync:
            for segment, size, timestamp, timestamp_offset in done.point.shown:
                segment.visible_bytes = size
                segment.visible_timestamp = timestamp
                segment.visible_timestamp_offset = timestamp_offset
            self._move_high_watermark(done.point.end)

    def _move_high_watermark(self, end: int) -> None:
        if end <= self.high_watermark:
            return
        self.high_watermark = end
        if self._waiters:
            waiting = self._waiters
            self._waiters = [waiter for waiter in waiting if waiter[0] > end]
            for next_offset, future in waiting:
                if next_offset <= end and not future.done():
                    future.set_result(None)
        if self.watchers:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def _fail(self, error: Exception) -> LogFailed:
        """Stops this log: after a failed sync the kernel may have dropped the pages and call the next sync good."""
        failure = LogFailed(
            f"The disk failed the log of {self.topic}-{self.index} ({error}). It takes no more records; what was "
            f"acknowledged is kept and readable. Free or repair the disk and restart the broker."
        )
        if self.failure is None:
            logger.error("%s", failure)
            self._stop(failure)
        return failure

    def _stop(self, failure: LogFailed) -> None:
        self.failure = failure
        waiting, self._waiters = self._waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(LogFailed(str(failure)))
        self._tell_watchers()

    # Reading

    def read(self, offset: int, *, bytes_max: int, at_least_one: bool = True) -> Records:
        """Whole batches below the high watermark from the one that holds an offset on; none at the end."""
        if not self.log_start_offset <= offset < self.high_watermark:
            if offset == self.high_watermark:
                return b""
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not between {self.log_start_offset} and {self.high_watermark}.",
            )
        place = self._places.get(offset)
        if place is None or place[1] >= place[0].visible_bytes:
            segment, position, base = self._locate(offset)
        else:
            segment, position = place
            base = offset
        left = segment.visible_bytes - position
        data: Records = segment.read(position, min(left, max(bytes_max, HEADER_BYTES)))
        sound, next_offset, problem = batches.sound_prefix(data, base=base, end=None)
        if not sound and problem is None:
            data, sound, next_offset, problem = self._read_one(segment, position, base)
        if sound > bytes_max and not at_least_one:
            return b""
        if problem is not None or not self._follows(segment, position + sound, next_offset, data, sound):
            sound, next_offset = self._served(segment, position, data, base, sound, problem)
        self._remember_place(next_offset, segment, position + sound)
        return data if sound == len(data) else memoryview(data)[:sound]

    def _read_one(self, segment: Segment, position: int, base: int) -> tuple[bytes, int, int, str | None]:
        """A batch that is larger than the read."""
        size = batches.read_header(segment.read(position, HEADER_BYTES)).size
        if size > segment.visible_bytes - position:
            return b"", 0, base, "the batch is cut short"
        data = segment.read(position, size)
        sound, next_offset, problem = batches.sound_prefix(data, base=base, end=None)
        return data, sound, next_offset, problem or (None if sound else "the file is cut short")

    def _follows(self, segment: Segment, position: int, next_offset: int, data: Records, sound: int) -> bool:
        """The offset behind what was read is the one that must be there: no CRC covers a base offset."""
        if self.settings.is_compacted:
            return True
        if len(data) - sound >= 8:
            return int.from_bytes(data[sound : sound + 8], "big") == next_offset
        if position < segment.visible_bytes:
            return int.from_bytes(segment.read(position, 8), "big") == next_offset
        following = self._after(segment)
        return next_offset == (following.base_offset if following is not None else self.high_watermark)

    def _served(
        self, segment: Segment, position: int, data: Records, base: int, sound: int, problem: str | None
    ) -> tuple[int, int]:
        """How much may be served of a read that is not sound; refuses when that is nothing."""
        served, expected = 0, base
        while served < sound:
            header = batches.read_header(data, served)
            end = served + header.size
            if not self.settings.is_compacted and (
                header.base_offset != expected
                or not self._follows(segment, position + end, header.next_offset, data, end)
            ):
                # The batch behind is damaged if this one is where it belongs.
                if header.base_offset == expected and segment.sound_header(position + end) is None:
                    served, expected = end, header.next_offset
                problem = problem or "the offsets do not follow each other"
                break
            served, expected = end, header.next_offset
        if served:
            return served, expected
        if position not in segment.skips:
            segment.note_damage(
                position, segment.visible_bytes, at_least=expected, problem=problem or "the batch is not sound"
            )  # fmt: skip
        raise self._corrupt(expected)

    def _corrupt(self, offset: int) -> Refused:
        return Refused(
            ErrorCode.CORRUPT_MESSAGE,
            f"The log of {self.topic}-{self.index} is damaged at offset {offset}; later offsets may be readable.",
        )

    def _locate(self, offset: int) -> tuple[Segment, int, int]:
        """The segment, the position and the base offset of the batch that holds an offset or is the next one."""
        at = self._segment_at(offset)
        for segment in self._segments[at:]:
            self._keep_open(segment)
            found = segment.find(offset, segment.visible_bytes)
            if found is not None:
                position, header = found
                if header.base_offset > offset and not self.settings.is_compacted:
                    raise self._corrupt(offset)
                return segment, position, header.base_offset
            if not self.settings.is_compacted:
                break
        raise self._corrupt(offset)

    def _segment_at(self, offset: int) -> int:
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            if self._segments[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def _after(self, segment: Segment) -> Segment | None:
        if segment is self._active:
            return None
        at = self._segment_at(segment.base_offset) + 1
        return self._segments[at] if at < len(self._segments) and self._segments[at].visible_bytes else None

    def _remember_place(self, next_offset: int, segment: Segment, position: int) -> None:
        """Where the reader of what was just read goes on: it will ask for that next."""
        places = self._places
        places[next_offset] = segment, position
        if len(places) > PLACES_MAX:
            del places[next(iter(places))]

    def _keep_open(self, segment: Segment) -> None:
        """Keeps a few old segments open, and gives the files and indexes of the others back."""
        if segment is self._active:
            return
        recent = self._recently_read
        recent.pop(segment, None)
        recent[segment] = None
        if len(recent) > OPEN_SEGMENTS_MAX:
            oldest = next(iter(recent))
            del recent[oldest]
            self._release(oldest)

    def _release(self, segment: Segment) -> None:
        # A thread may be syncing the file, and a closed descriptor may be another file's already.
        if self._is_in_round or self._syncs:
            self._released.append(segment)
        else:
            segment.release()

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
        """Everything below it is on disk."""
        return self.durable_end

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """The offset and timestamp of the first readable record that is not older than a timestamp."""
        return timestamps.first_at_or_after(self._segments, timestamp, log_start_offset=self.log_start_offset)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The offset and timestamp of the first record that has the largest timestamp."""
        return timestamps.largest(self._segments, log_start_offset=self.log_start_offset)

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
        if not self._segments or self.failure is not None:
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
            if count:
                self._let_go(count, now_ms)
        except OSError as error:
            self._fail(error)
            return 0
        return count

    def _piece(self, at: int, segment: Segment) -> retention.Piece:
        segment.load_timestamps()
        is_active = segment is self._active
        if not is_active:
            self._keep_open(segment)
        return retention.Piece(
            base_offset=segment.base_offset,
            next_base_offset=self.log_end_offset if is_active else self._segments[at + 1].base_offset,
            size_bytes=segment.size,
            largest_timestamp=segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms(),
            is_active=is_active,
        )

    def _let_go(self, count: int, now_ms: int) -> None:
        if count == len(self._segments):
            if not self._is_prepared:
                self._segments[-1].prepare()
            self._roll()
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._move_log_start(self._segments[0].base_offset)
        self._places.clear()
        deadline_ms = now_ms + self.settings.file_delete_delay_ms
        for segment in gone:
            self._recently_read.pop(segment, None)
            self._release(segment)
            self._deleted += [(deadline_ms, path) for path in segment.mark_deleted()]
        self._unshown = [segment for segment in self._unshown if segment not in gone]
        self._syncs.append(partial(self._files.sync_directory, self.folder))
        self._committer.mark(self)

    def _move_log_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if self._epochs.begin_at(offset) and self._segments:
            path = f"{self.folder}/{leader_epochs.FILE_NAME}"
            self._syncs.append(partial(self._files.write_atomically, path, self._epochs.encode()))
            self._committer.mark(self)
        self._tell_watchers()

    def remove_deleted(self, now_ms: int) -> None:
        """Removes the files that were let go longer than file.delete.delay.ms ago."""
        due = [path for deadline_ms, path in self._deleted if deadline_ms <= now_ms]
        if due:
            self._deleted = [(deadline_ms, path) for deadline_ms, path in self._deleted if deadline_ms > now_ms]
            for path in due:
                self._files.remove(path)
