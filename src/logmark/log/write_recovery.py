"""Resuming writes after a full disk, a lack of descriptors or memory, or a failed flush.

The files are repaired and loaded as after a crash. A stopped log is cut back to its high watermark. A suspect one is
written again from the write-ahead log above its recovery point: the kernel may have dropped what it failed to sync, and
report the next sync as successful. A log that stays broken would be written again for ever, so those attempts back off
until a flush succeeds. After an error that passes by itself they do not: while there is no space or no descriptor, an
attempt fails at once.
"""

import errno
import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from logmark.backoff import Backoff
from logmark.clock import Clock
from logmark.disk.file_system import FileSystem
from logmark.errors import LogmarkError
from logmark.log import disk_full
from logmark.log.flush_state import FlushState
from logmark.log.folder import PartitionFolder, complete_folder, is_of_other_topic
from logmark.log.group_commit import CommittedLog, GroupCommit
from logmark.log.loader import Loaded, Loader
from logmark.log.log_state import LogState, LogStatus
from logmark.log.segment_deletion import SegmentDeleter

logger = logging.getLogger(__name__)


class RecoverableLog(CommittedLog, Protocol):
    """A partition as its recovery sees it."""

    def new_loader(self) -> Loader:
        """Return what loads the log as after a crash, up to its high watermark."""

    def load(self, loaded: Loaded, loader: Loader) -> None:
        """Continue with what was loaded."""


class WriteRecovery:
    """Brings one partition's log back to taking records, when the disk allows it."""

    __slots__ = (
        "_backoff", "_committer", "_deleter", "_files", "_flush_state", "_folder", "_is_passing", "_log", "_state"
    )  # fmt: skip

    def __init__(
        self,
        log: RecoverableLog,
        state: LogState,
        *,
        folder: PartitionFolder,
        flush_state: FlushState,
        deleter: SegmentDeleter,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
    ) -> None:
        self._log = log
        self._state = state
        self._folder = folder
        self._flush_state = flush_state
        self._deleter = deleter
        self._files = files
        self._committer = committer
        self._backoff = Backoff(clock)
        # Whether the last failure passes by itself.
        self._is_passing = False

    def note_failure(self, error: BaseException | None) -> None:
        """Note why the log has stopped, and have the broker call `run` now and then if that can help.

        With durability=sync a write that failed for a reason that does not pass makes the log suspect: its entries must
        not keep the WAL from being used again for as long as the disk stays broken.
        """
        self._is_passing = disk_full.is_passing(error)
        is_broken = error is not None and not self._is_passing
        if is_broken and self._committer.is_sync and self._committer.failure is None:
            self._state.mark_suspect()
        if self._is_passing or self._state.status is LogStatus.SUSPECT:
            self._committer.flusher.troubled.add(self._log)

    def close(self) -> None:
        """Drop the log, which is closed."""
        del self._log

    def confirm(self) -> None:
        """Note that a flush succeeded: the disk takes what this log writes."""
        self._backoff.reset()

    async def run(self) -> None:
        """Resume writes if the disk allows it; else request another attempt, or leave the log to a restart."""
        state, committer = self._state, self._committer
        if state.is_closed:
            return
        log, flusher = self._log, committer.flusher
        if flusher.is_busy_with(log) or committer.is_busy_with(log):
            return
        is_suspect = state.status is LogStatus.SUSPECT
        if is_suspect and not self._is_passing and not self._backoff.is_over:
            return
        flusher.troubled.discard(log)
        if committer.failure is not None:
            return
        if state.status is LogStatus.OPEN:
            # A full disk, or a lack of descriptors, held up a flush.
            flusher.mark(log)
            return
        loader = log.new_loader()
        sizes = self._durable_sizes()
        point, end = self._flush_state.recovery_point, state.high_watermark
        is_in_wal = is_suspect and committer.has_wal
        has_folder = self._folder.exists

        def load() -> Loaded:
            if not has_folder:
                # The disk has failed the first record of the log, before there was anything of it.
                self._complete_folder()
            if is_in_wal:
                committer.rewrite(log, state.folder, point, end)
            else:
                disk_full.cut_back(state.folder, sizes, end, self._files)
            loaded = loader.load()
            # What was cut away must not come back.
            self._folder.write_epochs()
            return loaded

        if is_suspect:
            self._backoff.begin_attempt()
        try:
            loaded = await committer.loop.run_in_executor(None, load)
            if state.is_closed:
                return
            # Without one the next record would fail the log again.
            committer.ensure_wal()
        except (OSError, LogmarkError) as error:
            self._note_failed_attempt(error, is_suspect=is_suspect)
            return
        self._resume(loaded, loader, is_suspect=is_suspect)

    def _complete_folder(self) -> None:
        """Make the folder of the log; raise FileExistsError if somebody has put that of another topic there."""
        folder, topic_id = self._state.folder, self._state.topic_id
        if is_of_other_topic(folder, topic_id, self._files):
            raise FileExistsError(errno.EEXIST, "it is the folder of another topic", folder)
        complete_folder(folder, topic_id, self._files)

    def _durable_sizes(self) -> Mapping[int, int]:
        """Return how many bytes are durable of each segment that has more, by base offset."""
        return {
            segment.base_offset: segment.visible_bytes
            for segment in self._state.segments
            if segment.visible_bytes < segment.size or segment.base_offset >= self._state.high_watermark
        }

    def _note_failed_attempt(self, error: Exception, *, is_suspect: bool) -> None:
        if self._state.is_closed:
            return
        self._is_passing = disk_full.is_passing(error)
        if is_suspect or self._is_passing:
            self._committer.flusher.troubled.add(self._log)
        if not self._is_passing:
            logger.error("%s", disk_full.describe_failed_log(self._state.name, error))

    def _resume(self, loaded: Loaded, loader: Loader, *, is_suspect: bool) -> None:
        state = self._state
        # The failed round may not have synced the folder, and nothing may be acknowledged that a crash could take.
        changes = [partial(self._committer.remove_saved, self._log)] if is_suspect else []
        self._flush_state.replace_pending(self._folder.syncs(), list(changes))
        self._folder.exists = True
        log_start_offset = state.log_start_offset
        self._log.load(loaded, loader)
        self._deleter.move_log_start(log_start_offset)
        state.resume()
        self._flush_state.request()
        logger.warning("%s takes records again, from offset %d on", state.name, state.log_end_offset)
        state.notify_change_listeners()
