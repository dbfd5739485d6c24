"""Group commit: one entry of the write-ahead log, and one sync, acknowledge what all partitions have appended.

A round takes everything that was appended by the end of a turn of the event loop. What is appended meanwhile joins the
next round, which begins as soon as this one has ended. With durability=os there is no WAL and nothing to wait for.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from logmark.disk.file_system import Bytes
from logmark.errors import LogFailed, LogmarkError
from logmark.log import disk_full
from logmark.log.disk_worker import Job, ThreadWorker, Worker
from logmark.log.flusher import FlushedLog, Flusher
from logmark.log.wal.entries import EntryBuilder, RunRow
from logmark.log.wal.files import WalFile
from logmark.log.wal.log import WriteAheadLog
from logmark.log.wal.recovery_points import RecoveryPoint
from logmark.log.wal.writer import EntryWriter

Durability = Literal["sync", "os"]
# An entry is closed at this size, so that the memory that an entry takes is bounded.
ENTRY_BYTES_MAX = 4 * 1024 * 1024
_SPARE_BUILDERS = 2
# A round that waits for a file waits for the flush under way and for the one that covers everything.
_FLUSHES_MAX = 2

logger = logging.getLogger(__name__)


class CommittedLog(FlushedLog, Protocol):
    """A partition's log as group commit sees it; every call is on the event loop."""

    name: str

    def commit_point(self) -> object:
        """Return what a sync of all that was appended so far makes durable."""

    def committed(self, point: object) -> None:
        """Take note that everything up to a point is durable."""

    def commit_failed(self, error: Exception) -> None:
        """Take note that what was appended since the last point may be lost."""


class _Draft:
    """An entry that still grows, and the logs that have batches in it."""

    __slots__ = ("ends", "entry", "logs", "points")

    def __init__(self, entry: EntryBuilder) -> None:
        self.entry = entry
        self.logs: dict[CommittedLog, None] = {}
        self.points: list[tuple[CommittedLog, object]] = []
        self.ends: list[RunRow] = []

    def close(self) -> "_Draft":
        """Note what the entry makes durable, now that nothing more is added."""
        self.points = [(log, log.commit_point()) for log in self.logs]
        self.ends = self.entry.ends()
        return self


# Used instead of a draft until there is something to add: nothing fits into it.
_NO_DRAFT = _Draft(EntryBuilder(0))


class GroupCommit:
    """Writes what logs append to the WAL, off the event loop, and reports to each log what is durable."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        durability: Durability = "sync",
        worker: Callable[[str], Worker] | None = None,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Take the event loop; `worker` makes the workers for the jobs of the disk, threads unless a test says so."""
        if durability not in ("sync", "os"):
            raise LogmarkError(f"durability is sync or os, not {durability!r}")
        new_worker = worker or partial(ThreadWorker, loop)
        self.loop = loop
        self.is_sync = durability == "sync"
        # Whether appends can be added now: the WAL is open and has not failed.
        self.is_ready = False
        self.failure: LogFailed | None = None
        self.flusher = Flusher(loop, new_worker("logmark-flush"))
        self.flusher.on_end = self._resume
        # Makes the WAL when the first record comes; the data directory knows how.
        self.open_wal: Callable[[], WriteAheadLog] | None = None
        # Raises OSError if another directory has the path of the data directory: segments are opened by their paths.
        self.check_directory: Callable[[], None] = lambda: None
        # A test that brings workers steps through every write.
        self._writer = EntryWriter(loop, new_worker("logmark-wal"), is_asynchronous=worker is None)
        self._reserver = new_worker("logmark-wal-files")
        self._wal: WriteAheadLog | None = None
        self._entry_bytes_max = entry_bytes_max
        self._draft = _NO_DRAFT
        self._closed_drafts: deque[_Draft] = deque()
        # Where the partitions of the last closed entry end, and those of the last durable one.
        self._ends: list[RunRow] = []
        self._durable_ends: list[RunRow] = []
        self._builders: list[EntryBuilder] = []
        self._is_scheduled = False
        self._written_draft: _Draft | None = None
        self._is_reserving = False
        self._is_refused = False
        # A round waits for a file, and how many flushes have ended since it does.
        self._is_short = False
        self._flush_count = 0

    @property
    def durability(self) -> Durability:
        return "sync" if self.is_sync else "os"

    # Appending

    def prepare(self, size: int) -> None:
        """Make room for a batch that a log is about to write to its segment.

        To be called before the write: an entry that is closed here must not take the batch for its own. Opens the WAL
        for the first batch; raises LogFailed if it has failed, OSError if it cannot be made.
        """
        if not self.is_ready:
            self._open()
        if not self._draft.entry.has_room_for(size):
            self._begin_draft(size)

    def ensure_wal(self) -> None:
        """Open the WAL if there is none and records need one; raises OSError if the disk refuses it."""
        if self.is_sync and not self.is_ready:
            self._open()

    def _open(self) -> None:
        if self.failure is not None:
            raise LogFailed(str(self.failure))
        assert self.open_wal is not None
        self._require_directory()
        self._wal = self.flusher.wal = self.open_wal()
        self.flusher.durable_number = self._wal.next_number - 1
        self.is_ready = True

    def add(
        self,
        log: CommittedLog,
        segment_base: int,
        position: int,
        first_offset: int,
        end_offset: int,
        data: Bytes,
        size: int,
    ) -> None:
        """Add a batch, prepared for, that a log has written to its segment; a round soon makes it durable."""
        draft = self._draft
        draft.entry.add(log.key, segment_base, position, first_offset, end_offset, data, size)
        draft.logs[log] = None
        if self._written_draft is None:
            self._begin_soon()

    def _require_directory(self) -> None:
        """Raise LogFailed if another directory has the path of the data directory, and refuse all writes from then on.

        Of all logs: one that had failed alone would be written again, to the other directory.
        """
        try:
            self.check_directory()
        except OSError as error:
            if not self._is_writing:
                # Else the end of the round finds that the path of the WAL leads elsewhere.
                self._fail(error)
            raise LogFailed(str(self.failure or disk_full.describe_failed_wal(error))) from error

    def _begin_draft(self, size: int) -> None:
        self._require_directory()
        self._close_draft()
        capacity = EntryBuilder.capacity_for(size, len(self._ends))
        if capacity > self._entry_bytes_max:
            builder = EntryBuilder(capacity, self._ends)
        elif self._builders:
            builder = self._builders.pop()
            builder.clear(self._ends)
        else:
            builder = EntryBuilder(self._entry_bytes_max, self._ends)
        self._draft = _Draft(builder)

    def _close_draft(self) -> None:
        if not self._draft.entry.is_empty:
            self._closed_drafts.append(self._draft.close())
            self._ends = self._draft.ends
        self._draft = _NO_DRAFT

    # Rounds

    @property
    def _is_writing(self) -> bool:
        return self._written_draft is not None

    def is_busy_with(self, log: CommittedLog) -> bool:
        """Return whether batches of this log are on their way to the WAL."""
        drafts = (self._draft, *self._closed_drafts, *((self._written_draft,) if self._written_draft else ()))
        return any(log in draft.logs for draft in drafts)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is durable, or was given up."""
        return not (self._is_writing or self._closed_drafts or not self._draft.entry.is_empty)

    def _begin_soon(self) -> None:
        """Begin a round at the end of the turn, so that everything that arrived together shares it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a round, if there is something to write and a file to write it to."""
        self._is_scheduled = False
        if self._is_writing or self.failure is not None:
            return
        if not self._closed_drafts:
            self._close_draft()
        if not self._closed_drafts:
            return
        assert self._wal is not None
        size = self._closed_drafts[0].entry.size_bytes
        file = self._wal.file_for(size)
        if file is None:
            self._wait_for_file(size)
            return
        self._is_short = False
        self._flush_count = 0
        draft = self._closed_drafts.popleft()
        number = self._wal.next_number
        entry = draft.entry.seal(number, file.salt)
        self.flusher.begin_entry(number, draft.logs)
        self._written_draft = draft
        self._writer.write(file, entry, partial(self._end, draft, file, number, size))

    def _wait_for_file(self, size: int) -> None:
        """Begin the round when a file is there: made, used again, or freed by a flush; give up if none can come."""
        self._is_short = True
        self._reserve(size)
        if self._flush_count < _FLUSHES_MAX:
            self.flusher.flush_all()
        if not self._is_reserving and not self.flusher.is_busy:
            self._fail(disk_full.WalFull())

    def _end(self, draft: _Draft, file: WalFile, number: int, size: int, error: Exception | None) -> None:
        self._written_draft = None
        error = error or _misplaced(file)
        if error is not None:
            self._closed_drafts.appendleft(draft)
            self._fail(error)
            return
        assert self._wal is not None
        file.position += size
        file.last_number = number
        self._wal.next_number = number + 1
        self.flusher.end_entry(number)
        self._durable_ends = draft.ends
        if draft.entry.capacity == self._entry_bytes_max and len(self._builders) < _SPARE_BUILDERS:
            self._builders.append(draft.entry)
        for log, point in draft.points:
            log.committed(point)
        if self._wal.is_pressed:
            self.flusher.flush_all()
        self._reserve()
        if self._closed_drafts:
            self._begin()
        elif not self._draft.entry.is_empty:
            # Not at once: the answers go out first, and what has come in meanwhile joins the next round.
            self._begin_soon()

    def _fail(self, error: Exception) -> None:
        """Fail every append that is not durable; unless the error may pass, refuse all writes until a restart."""
        lost = [*self._closed_drafts, self._draft]
        self._closed_drafts.clear()
        self._draft = _NO_DRAFT
        self._ends = self._durable_ends
        self._is_short = False
        self._flush_count = 0
        self.flusher.give_up_entry()
        logs = {log: None for each in lost for log in each.logs}
        if disk_full.is_passing(error):
            logger.error("%s", disk_full.describe_failed_round([log.name for log in logs], error))
        else:
            self.failure = disk_full.describe_failed_wal(error)
            self.is_ready = False
            logger.error("%s", self.failure)
        # It is one failed operation, and so one event, whatever it stops.
        disk_full.mark_reported(error)
        for log in logs:
            log.commit_failed(error)

    # Files

    def _reserve(self, size: int = 0) -> None:
        """Make the next file ready in the background, if one is needed."""
        if self._is_reserving or self._wal is None:
            return
        wal, reserved = self._wal, self._wal.reserve(size)
        if reserved is None:
            return
        file, make_ready = reserved
        self._is_reserving = True

        def job() -> Job:
            make_ready()
            yield

        def done(error: Exception | None) -> None:
            self._is_reserving = False
            if error is None:
                self._is_refused = False
                wal.add_ready(file)
                self._begin()
                return
            wal.forget_reserved(file, is_usable=disk_full.is_passing(error))
            if not self._is_refused:
                logger.warning("the write-ahead log got no further file: %s", error)
            # Every round tries again: one message says it for all of them.
            self._is_refused = True
            if self._is_short and not size:
                # Now an entry waits for the file, which asks for less free space.
                self._begin()
            elif self._is_short and not self.flusher.is_busy:
                self._fail(error)

        self._reserver.run(job(), done)

    def _resume(self) -> None:
        """Resume a round that waited for a file."""
        if self._is_short:
            self._flush_count += 1
        self._reserve()
        self._begin()

    @property
    def has_wal(self) -> bool:
        """Whether there is a WAL: it comes with the first record of a run."""
        return self._wal is not None

    def rewrite(self, log: CommittedLog, folder: str, point: RecoveryPoint, end: int) -> None:
        """Write what a log has in the WAL to its segments again, after its disk failed it; to be called in a thread."""
        assert self._wal is not None
        release = partial(self.loop.call_soon_threadsafe, self.flusher.release, log)
        self._wal.rewrite(log.key, folder, point, end, release)

    def remove_saved(self, log: CommittedLog) -> None:
        """Remove what `rewrite` has saved; to be called in a thread, when the recovery point is durable."""
        if self._wal is not None:
            self._wal.remove_saved(log.key)

    # The end

    def settle(self) -> None:
        """Block until everything that was added is durable or was given up."""
        while not self.is_idle and self.failure is None:
            self._begin()
            self._writer.finish()
            self._reserver.finish()
            if not self.is_idle and not self._is_writing:
                # The round waits for a file that a flush may free.
                self.flusher.settle()

    def stop(self) -> None:
        """Finish the round under way and drop what was added since: what a kill would leave."""
        self.is_ready = False
        self._closed_drafts.clear()
        self._draft = _NO_DRAFT
        self._writer.finish()
        self._reserver.finish()
        self.flusher.finish()

    def close_wal(self, *, remove: bool) -> None:
        """Close the WAL; at a clean stop, when the partitions' own files hold everything, also remove it."""
        self._reserver.finish()
        if self._wal is not None:
            if remove:
                self._wal.remove()
            else:
                self._wal.close()
        self._wal = self.flusher.wal = None
        self.is_ready = False

    def close(self) -> None:
        """End the threads; what is under way is finished first."""
        self._writer.close()
        self._reserver.close()
        self.flusher.close()


def _misplaced(file: WalFile) -> OSError | None:
    """Return an error if nobody would find a file of the WAL by its path, or if nobody can tell."""
    try:
        if file.is_in_place():
            return None
    except OSError as error:
        return error
    return FileNotFoundError(errno.ENOENT, "it was removed or replaced while the broker ran", file.path)
