"""One partition's log: its public interface, and the parts that it is made of.

    log_state         what the parts share: identity, offsets, status
    folder            the folder, the topic id and the leader epochs
    appender          append, roll
    high_watermark    what is durable and visible, and who waits for it
    flush_state       what the next flush syncs and changes, the recovery point
    reader            reads, aborted transactions, offsets by time
    segment_deletion  the log start, deleted segments
    log_to_clean      compaction's side
    write_recovery    after a full disk or a failed flush

The event loop owns all of them; only syncs, renames and loads run in threads.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from logmark.clock import Clock
from logmark.disk.file_system import FileSystem
from logmark.errors import LogFailed, Malformed
from logmark.log.appender import Appended, Appender, NeedsRoll
from logmark.log.checkpoints import Condition, ListedContent, ListedSegment, checksum_head
from logmark.log.compaction_schedule import DirtyPart
from logmark.log.damage import Damage
from logmark.log.flush_state import FlushState
from logmark.log.flusher import Flush
from logmark.log.folder import PartitionFolder
from logmark.log.group_commit import GroupCommit
from logmark.log.high_watermark import CommitPoint, HighWatermark
from logmark.log.leader_epochs import LEADER_EPOCH
from logmark.log.loader import Loaded, Loader
from logmark.log.log_state import LogState, LogStatus
from logmark.log.log_to_clean import LogToClean
from logmark.log.producers import Producers
from logmark.log.reader import Reader
from logmark.log.segment import Segment
from logmark.log.segment_cleaner import Limits, Plan
from logmark.log.segment_deletion import SegmentDeleter
from logmark.log.segment_swap import Incoming
from logmark.log.settings import TopicSettings
from logmark.log.timestamp_lookup import Found
from logmark.log.write_recovery import WriteRecovery
from logmark.wire.batches import HEADER_BYTES, BatchRules

__all__ = ["Appended", "NeedsRoll", "Partition", "batch_rules"]


def batch_rules(settings: TopicSettings, *, decompressed_bytes_max: int) -> BatchRules:
    """Return what a topic's settings ask of produced batches."""
    return BatchRules(
        max_message_bytes=settings.max_message_bytes,
        decompressed_bytes_max=decompressed_bytes_max,
        keys_required=settings.is_compacted,
        is_log_append_time=settings.is_log_append_time,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        compression_type=settings.compression_type,
        compression_level=settings.compression_level,
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
        leader_epoch: int = LEADER_EPOCH,
    ) -> None:
        """Make the parts of a log that has nothing yet; `create` and `open` return one that can be used."""
        self._files = files
        self._committer = committer
        self._flusher = committer.flusher
        self._clock = clock
        self._state = state = LogState(folder, topic, index, topic_id, settings, on_stop=self._on_stop)
        self._folder = PartitionFolder(state, files)
        self._flush_state = FlushState(self, state, committer.flusher, is_sync=committer.is_sync)
        self._high_watermark = HighWatermark(state, committer.loop)
        self._reader = Reader(state, leader_epoch=leader_epoch)
        self._appender = Appender(
            self, state, folder=self._folder, flush_state=self._flush_state, high_watermark=self._high_watermark,
            files=files, committer=committer, clock=clock,
        )  # fmt: skip
        self._deleter = SegmentDeleter(
            state, folder=self._folder, flush_state=self._flush_state, high_watermark=self._high_watermark,
            appender=self._appender, reader=self._reader, loop=committer.loop,
        )  # fmt: skip
        self._log_to_clean = LogToClean(
            state, flush_state=self._flush_state, high_watermark=self._high_watermark, reader=self._reader,
            deleter=self._deleter, files=files, loop=committer.loop,
        )  # fmt: skip
        self._recovery = WriteRecovery(
            self, state, folder=self._folder, flush_state=self._flush_state, deleter=self._deleter, files=files,
            committer=committer, clock=clock,
        )  # fmt: skip
        self.folder = folder
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.key = state.key
        self.name = state.name
        self.change_listeners = state.change_listeners
        # The segments by base offset, when the log is closed; None if they could not be listed.
        self.listed_segments: Mapping[int, ListedSegment] | None = None

        # The parts' own methods, without a call in between: every Produce and Fetch request makes these.
        self.append = self._appender.append
        self.when_durable = self._high_watermark.call_at
        self.commit_point = self._high_watermark.commit_point
        self.read = self._reader.read
        self.fetch = self._reader.fetch
        self.hold_open = self._reader.hold_open

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
        """Create a partition in a new folder, durably but for the folder's own name, which its parent must sync.

        The first segment's files come with the first record: until then the folder's name and the topic id say all
        there is to know, and Kafka opens such a folder as an empty log. A lazy partition has no folder either.
        """
        self = cls(folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock)
        self._state.load(first_offset, first_offset)
        self._flush_state.load()
        if first_offset or not lazily:
            self._folder.create()
            self._folder.make_durable()
        if first_offset:
            self._appender.roll()
            self._flush_state.sync_now()
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
        is_replayed: bool = False,
        log_start_offset: int = 0,
        cleaned_to: int | None = None,
        listed: Mapping[int, ListedSegment] | None = None,
        is_synced: bool = False,
        leader_epoch: int = LEADER_EPOCH,
    ) -> "Partition":
        """Open the partition in a folder; unless it was stopped cleanly, check every batch from the recovery point.

        `durable_end` is the end of the log by its WAL, 0 without one; `is_replayed` says that a recovery has written
        and synced all segments from the recovery point on. `cleaned_to` is the cleaner's checkpoint: a log without one
        was never cleaned and has no holes. `listed` are the segments that `close` has found. `is_synced` says that the
        log start was synced before a segment below it was deleted. Every batch has the leader epoch; -1 is for a log of
        Apache Kafka, which may have several.
        """
        self = cls(
            folder, topic, index, topic_id, settings, files=files, committer=committer, clock=clock,
            leader_epoch=leader_epoch,
        )  # fmt: skip
        self._folder.exists = True
        self._log_to_clean.cleaned_to = cleaned_to
        loader = self._loader(clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset)
        loader.listed = listed
        loader.is_synced = is_synced
        loader.durable_end = durable_end
        loader.is_replayed = is_replayed
        self.load(loader.load(), loader)
        if self._appender.is_changed and self._state.segments:
            self._folder.write_epochs()
        return self

    def _loader(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> Loader:
        return Loader(
            folder=self.folder,
            files=self._files,
            is_clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval=self.settings.index_interval_bytes,
            cleaned_to=self.cleaned_to,
            now_ms=self._clock.now_ms(),
        )

    def new_loader(self) -> Loader:
        """Return what loads the log as after a crash, up to its high watermark."""
        loader = self._loader(
            clean=False, recovery_point=self.recovery_point, log_start_offset=self._state.log_start_offset
        )
        loader.durable_end = self._state.high_watermark
        loader.known_start = self._state.log_start_offset
        return loader

    def load(self, loaded: Loaded, loader: Loader) -> None:
        """Continue with what was loaded from the folder."""
        state = self._state
        state.segments.load(loaded.segments)
        state.has_aborted = any(segment.has_aborted for segment in loaded.segments)
        state.producers = loaded.producers
        if len(state.producers):
            # Reading the tail of every log would make a clean start long: it is read when a producer sends again.
            state.producers.recall = lambda: loader.tail_producers(self.segments)
        state.load(loaded.log_start_offset, loaded.log_end_offset)
        self._flush_state.load()
        self._high_watermark.load()
        self._reader.load(loaded.damage)
        self._appender.load(is_changed=loaded.was_checked)
        self._deleter.load()

    def close(self, *, clean: bool = True) -> bool:
        """Close the log and return whether its files are complete, so that the next start need not check them.

        The parts drop the partition, so that it is freed with its last user and not by the garbage collector.
        """
        state = self._state
        if state.is_closed:
            return False
        if self._flusher.is_busy_with(self):
            self._flusher.finish()
        self._flusher.forget(self)
        is_complete = state.failure is None
        if clean and is_complete:
            try:
                is_complete = self._finish()
            except OSError as error:
                state.fail(error)
                is_complete = False
        with suppress(OSError, Malformed):
            self.listed_segments = self._list_segments()
        state.close()
        state.segments.close()
        state.producers.recall = None
        self._appender.close()
        self._flush_state.close()
        self._recovery.close()
        return is_complete and clean

    def _list_segments(self) -> dict[int, ListedSegment]:
        """Return the segments that there are, and those that are known to be missing."""
        listed = {
            segment.base_offset: ListedSegment(
                segment.size,
                Condition.DAMAGED if segment.damage else Condition.WHOLE,
                segment.aborted.checksum if segment.has_aborted else None,
                content=self._describe_content(segment),
            )
            for segment in self._state.segments
        }
        for gap in self._reader.gaps:
            known = listed.get(gap.first_offset)
            if known is None:
                listed[gap.first_offset] = ListedSegment(0, Condition.MISSING, None)
            else:
                listed[gap.first_offset] = known._replace(condition=Condition.DAMAGED)
        active = self._state.segments.active
        if active is not None and active.size:
            head = checksum_head(active.read(0, HEADER_BYTES))
            listed[active.base_offset] = listed[active.base_offset]._replace(head_checksum=head)
        return listed

    @staticmethod
    def _describe_content(segment: Segment) -> ListedContent | None:
        """Return what a compaction wrote; None if it wrote nothing, or records came behind that."""
        if segment.fingerprint is None or segment.fingerprint.size_bytes != segment.size:
            return None
        return ListedContent(segment.fingerprint.checksum, segment.change_stamp())

    async def wait_for_flush(self) -> None:
        """Wait for the flush that is under way, for which `close` would block the event loop."""
        await self._flusher.wait_for(self)

    def _finish(self) -> bool:
        """Leave the files as Kafka leaves them after a clean stop, and return whether that was possible."""
        self._appender.finish()
        while (flush := self.begin_flush()) is not None:
            for sync in flush.syncs:
                sync()
            flush.is_proved = True
            if flush.changes and self._committer.has_wal:
                # The flusher could not make their recovery point durable: a recovery needs the files as they are.
                return False
            for change in flush.changes:
                change()
            self.end_flush(flush)
        return True

    def configure(self, settings: TopicSettings) -> None:
        """Apply new settings from the next append on."""
        self._state.settings = settings
        self._appender.configure(settings)

    # Writing

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
        return self._appender.append_marker(
            producer_id,
            producer_epoch,
            commit=commit,
            now_ms=now_ms,
            coordinator_epoch=coordinator_epoch,
            is_bumped=is_bumped,
        )

    def durable(self, next_offset: int) -> asyncio.Future[None] | None:
        """Return a future that is done when the high watermark reaches an offset; None if it has already."""
        return self._high_watermark.wait_for(next_offset)

    # Calls of group commit and of the flusher

    def committed(self, point: object) -> None:
        """Make visible what is durable now, also of a log that has stopped meanwhile.

        What is in the WAL must not be cut away when the log resumes: a recovery would write it over later records.
        """
        assert isinstance(point, CommitPoint)
        if not self._state.is_closed:
            self._high_watermark.commit(point)

    def commit_failed(self, error: Exception) -> None:
        """Stop this log: what was appended since the durable end may be lost."""
        self._state.fail(error)

    def begin_flush(self) -> Flush | None:
        """Return what must be synced now and the recovery point that this proves; None if nothing is pending."""
        return self._flush_state.begin()

    def end_flush(self, flush: Flush) -> None:
        """Move the recovery point, or stop this log if the disk failed the flush."""
        if self._flush_state.end(flush):
            self._recovery.confirm()
            self._log_to_clean.complete_swaps(flush)

    async def recover(self) -> None:
        """Resume writes after a full disk or a failed flush, if the disk allows it and the back-off is over."""
        await self._recovery.run()

    def _on_stop(self, failure: LogFailed, error: BaseException | None) -> None:
        """Fail everything that waits for this log; after a full disk, have the broker try to resume it."""
        self._high_watermark.fail(failure)
        # Of its own: a waiter that is woken adds its frames to it, and so the partition, which would keep it.
        self._log_to_clean.fail(LogFailed(str(failure)))
        self._state.notify_change_listeners()
        self._recovery.note_failure(error)

    # Reading

    def aborted_transactions(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of the aborted transactions with records between two offsets."""
        return self._reader.aborted_transactions(offset, end)

    def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """Return the offset and timestamp of the first readable record that is not older than a timestamp."""
        return self._reader.offset_for_timestamp(timestamp)

    def max_timestamp(self) -> Found | None:
        """Return the offset and timestamp of the first record that has the largest timestamp."""
        return self._reader.max_timestamp()

    async def look_up(self, timestamp: int | None) -> Found | None:
        """Return the same as `offset_for_timestamp`, or `max_timestamp` for None, without blocking the event loop."""
        return await self._reader.look_up(timestamp)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return a leader epoch and the offset at which it ended; -1 and -1 if it is not known here."""
        return self._state.epochs.end_offset(leader_epoch, self._state.high_watermark)

    # Facts

    @property
    def settings(self) -> TopicSettings:
        return self._state.settings

    @property
    def has_folder(self) -> bool:
        return self._folder.exists

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._state.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def shown_bytes(self) -> int:
        """The bytes that became visible since the log was opened."""
        return self._state.shown_bytes

    @property
    def last_stable_offset(self) -> int:
        """The visible end for readers of committed records."""
        return self._state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is durable in this partition's own files."""
        return self._flush_state.recovery_point.offset

    @property
    def oldest_offset(self) -> int:
        """The base offset of the oldest segment that a crash could leave."""
        return self._flush_state.oldest_offset

    @property
    def failure(self) -> LogFailed | None:
        """Why the log takes no records now; None while it does."""
        return self._state.failure

    @property
    def refusal(self) -> LogFailed | None:
        """Why the last append was refused, for a reason that passes; None after one that was taken."""
        return self._appender.refusal

    @property
    def status(self) -> LogStatus:
        return self._state.status

    @property
    def write_failure(self) -> LogFailed | None:
        """Why an append would fail now: this log has stopped, or the write-ahead log of all logs has failed."""
        return self._state.failure or self._committer.failure

    @property
    def producers(self) -> Producers:
        return self._state.producers

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._state.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._state.segments)

    @property
    def damage(self) -> list[Damage]:
        """The ranges that are kept and never served, as far as they have been found."""
        return self._reader.damage

    def note_gap(self, offset: int, next_offset: int) -> None:
        """Note as damage that no segment has the offsets from one up to the start of the next segment."""
        self._reader.note_gap(offset, next_offset)

    # Retention and compaction

    def delete_records(self, before: int) -> int:
        """Move the log start up to an offset (-1: to the high watermark) and return the log start."""
        return self._deleter.delete_records(before)

    def deletion_target(self, before: int) -> int:
        """Return the log start that a deletion up to an offset (-1: to the high watermark) would leave."""
        return self._deleter.deletion_target(before)

    def apply_retention(self, now_ms: int) -> int:
        """Delete old segments by the topic's settings and return their number; also remove files deleted before."""
        self._deleter.remove_deleted(now_ms)
        return 0 if self.is_being_cleaned else self._deleter.apply_retention(now_ms)

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the `.deleted` files whose delay is over; in a thread if the event loop runs."""
        self._deleter.remove_deleted(now_ms)

    def expire_producers(self, *, now_ms: int, expiration_ms: int) -> int:
        """Forget idle producers and return how many there were."""
        return self._state.producers.expire(now_ms=now_ms, expiration_ms=expiration_ms)

    @property
    def cleaned_to(self) -> int | None:
        """The cleaner's checkpoint; None for a log that was never cleaned."""
        return self._log_to_clean.cleaned_to

    @cleaned_to.setter
    def cleaned_to(self, offset: int | None) -> None:
        self._log_to_clean.cleaned_to = offset

    @property
    def is_being_cleaned(self) -> bool:
        """Whether the cleaner rewrites segments of this log now."""
        return self._log_to_clean.is_being_cleaned

    @is_being_cleaned.setter
    def is_being_cleaned(self, is_being_cleaned: bool) -> None:
        self._log_to_clean.is_being_cleaned = is_being_cleaned

    def dirty_part(self, now_ms: int) -> DirtyPart | None:
        """Return the part of the log that compaction could clean, or None if there is none to look at."""
        return self._log_to_clean.dirty_part(now_ms)

    def cleaning_plan(self, part: DirtyPart, *, now_ms: int, limits: Limits) -> Plan:
        """Return what a cleaning of that part needs to know; raises Malformed if the log is damaged there."""
        return self._log_to_clean.cleaning_plan(part, now_ms=now_ms, limits=limits)

    def take_over(self, incoming: Incoming, *, now_ms: int) -> asyncio.Future[None]:
        """Replace segments by a cleaned one; the future is done when the files have their final names."""
        return self._log_to_clean.take_over(incoming, now_ms=now_ms)
