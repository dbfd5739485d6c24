"""The data directory: the lock, the start, the checkpoints and the stop, and the way to its partitions.

Only files and partition folders lie in it, and while the broker runs the write-ahead log: a sub-directory that stops
Apache Kafka from opening what a crash left. A start first recovers what a WAL holds; a clean stop removes it.

    identity.py          whose it is: meta.properties
    folder_names.py      how the folders of partitions are named
    clean_stop.py        the mark of a clean stop, and the list of segments that belongs to it
    folders.py           which folders there are, and the removal of deleted ones
    checkpoint_files.py  what the checkpoints say of each partition
    wal_recovery.py      what a crash has left in the WAL
    partitions.py        partitions: created, opened by all of the above, deleted
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from logmark.clock import Clock
from logmark.disk.descriptors import OUT_OF_DESCRIPTORS
from logmark.disk.file_system import FileSystem, Lock
from logmark.errors import DataDirectoryUnusable
from logmark.log import added_files, catalog, checkpoints, clean_stop, identity
from logmark.log.catalog import Catalog, Entry
from logmark.log.checkpoint_files import CheckpointFiles
from logmark.log.clean_stop import CLEAN, CleanStop
from logmark.log.folders import PartitionFolders
from logmark.log.group_commit import GroupCommit
from logmark.log.identity import Identity
from logmark.log.partition import Partition
from logmark.log.partitions import DeletedPartition, Partitions
from logmark.log.prefetch import Prefetch
from logmark.log.settings import TopicSettings
from logmark.log.wal.log import WalLimits, WriteAheadLog
from logmark.log.wal_recovery import WalRecovery
from logmark.names import TopicPartition

LOCK = ".lock"

logger = logging.getLogger(__name__)


class DataDirectory:
    """One open data directory and the partitions in it."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        lock: Lock,
        owner: Identity,
        names: Sequence[str],
        wal_limits: WalLimits | None,
    ) -> None:
        """Take what `open` has locked and found; `open` then recovers and begins."""
        self.path = path
        self.cluster_id, self.directory_id, self.node_id = owner
        self.was_clean = files.exists(f"{path}/{CLEAN}")
        # What was added since the last clean stop; the start has set it aside.
        self.additions: list[str] = []
        committer.open_wal = self._open_wal
        committer.check_directory = self._check_in_place
        self._files = files
        self._committer = committer
        self.lock = lock
        self._wal_limits = wal_limits
        self._folders = PartitionFolders(path, files, names)
        stop = CleanStop.read(path, files)
        self._checkpoints = CheckpointFiles(path, files, stop)
        self._recovery = WalRecovery(path, self.directory_id, files)
        self._partitions = Partitions(
            path, files=files, committer=committer, clock=clock, folders=self._folders, checkpoints=self._checkpoints,
            recovery=self._recovery, was_clean=self.was_clean, is_closed_by_us=stop.is_of_logmark,
        )  # fmt: skip

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        wal_limits: WalLimits | None = None,
    ) -> "DataDirectory":
        """Lock a directory, create it if it is new, and recover what a crash has left in its WAL.

        Raises DataDirectoryUnusable if another broker uses it, if it is not Logmark's, or if the disk refuses it.
        """
        path = os.path.abspath(os.fspath(path))
        try:
            _create(path, files)
            lock = files.lock(f"{path}/{LOCK}")
            if lock is None:
                raise DataDirectoryUnusable(
                    f"The data directory {path} is in use by another broker. Nothing was changed. "
                    "Stop that broker, or choose another directory. If none runs, a broker was killed and its child "
                    "process that compacts (logmark.log.segment_cleaner) has not ended: kill it."
                )
            try:
                names = files.listdir(path)
                owner = identity.read_or_create(path, files, names)
                self = cls(
                    path, files=files, committer=committer, clock=clock, lock=lock, owner=owner, names=names,
                    wal_limits=wal_limits,
                )  # fmt: skip
                topics = self._read_topics()
                self._folders.check_owners(topics)
                self._recovery.run(names, was_clean=self.was_clean, complete_folder=self._folders.complete)
                self._set_additions_aside([topic for topic in topics if not topic.is_deleting])
                self._begin()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise unusable(path, error) from error
        return self

    def _read_topics(self) -> list[Entry]:
        """Return the topics of the catalogue; raise UserError if it is damaged, or of another cluster."""
        content = self.read(catalog.FILE_NAME)
        known = Catalog(content, path=f"{self.path}/{catalog.FILE_NAME}", cluster_id=self.cluster_id)
        return [*known.entries(), *known.deleting()]

    def _set_additions_aside(self, topics: list[Entry]) -> None:
        """Set aside what was added to the folders of partitions since the last clean stop.

        Raises UserError, before anything is changed, if it was added because folders were exchanged.
        """
        listed = self._checkpoints.listed_segments
        if listed is None:
            return
        all_found = added_files.find_all(self.path, listed, topics, self._files)
        if all_found:
            added_files.check_all_owners(self.path, listed, topics, self._files)
        for folder, found in all_found.items():
            for line in added_files.set_aside(f"{self.path}/{folder}", found, self._files):
                logger.warning("%s", line)
            self.additions += [f"{folder}/{one}" for one in found]

    def _begin(self) -> None:
        # Gone before anything is written: a crash from here on must be seen as one.
        if self.was_clean:
            self._files.remove(f"{self.path}/{CLEAN}")
        # After a kill the names may be in memory only, and readers take them for granted.
        self._files.sync_directory(self.path)
        self._folders.remove_leftovers()

    def finish_recovery(self) -> None:
        """Remove the WAL that was recovered: every partition's own files hold what it held, and that is durable."""
        if not self._recovery.is_pending:
            return
        for key, end in self._recovery.ends():
            self._checkpoints.raise_recovery_point(key, end)
        self.write_checkpoints()
        self._recovery.remove_wal()

    def _open_wal(self) -> WriteAheadLog:
        """Make the WAL for the first record of this run."""
        self._check_in_place()
        self.finish_recovery()
        made = WriteAheadLog(self.path, checkpoints.id_bytes(self.directory_id), self._files, self._wal_limits)
        points = self._committer.flusher.points
        self._checkpoints.create_wal(made.id, lambda starts: made.create(points, starts))
        # It may have been made in a directory that took the place of this one just now.
        self._check_in_place()
        return made

    def _check_in_place(self) -> None:
        """Raise FileNotFoundError if the directory was removed, or another one has its path."""
        if not self.lock.is_in_place():
            raise FileNotFoundError(errno.ENOENT, "it was removed or replaced while the broker ran", self.path)

    def close(self, *, clean: bool = True) -> bool:
        """Close every partition, and return whether the next start can trust the files as they are."""
        partitions = self._partitions.by_key
        if clean:
            self._committer.settle()
            for partition in partitions.values():
                self._committer.flusher.mark(partition)
            self._committer.flusher.settle()
        else:
            self._committer.stop()
        is_complete = self._partitions.close(clean=clean)
        try:
            # A start that was given up before it opened anything leaves the checkpoints as they are.
            if clean and self._partitions.is_used:
                self._checkpoints.write_cleaned()
                self.write_checkpoints()
            if clean and is_complete:
                self._check_in_place()
                self.finish_recovery()
                self._committer.close_wal(remove=True)
                self._checkpoints.write_segments(partitions)
                clean_stop.write_mark(self.path, self._files)
        except OSError as error:
            logger.error("%s was not closed cleanly, the next start will check it: %s", self.path, error)
            is_complete = False
        finally:
            self._committer.close_wal(remove=False)
            self.lock.release()
        return clean and is_complete

    # Files of the top level

    def read(self, name: str) -> bytes | None:
        """Return the content of a file at the top of the directory, or None if there is no such file."""
        path = f"{self.path}/{name}"
        return self._files.read(path) if self._files.exists(path) else None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file at the top of the directory, durably."""
        self._check_in_place()
        self._files.write_atomically(f"{self.path}/{name}", data)

    def write_checkpoints(self) -> None:
        """Write the recovery points, high watermarks and log starts as they are now."""
        self.checkpoint()()

    def checkpoint(self) -> Callable[[], None]:
        """Take the offsets of all partitions now, and return the call that writes them; for a thread."""
        write = self._checkpoints.take(self._partitions.by_key)

        def write_in_place() -> None:
            self._check_in_place()
            write()

        return write_in_place

    def announce_log_starts(self, log_starts: Mapping[TopicPartition, int]) -> AbstractContextManager[None]:
        """Let every checkpoint within the block say that logs start at these offsets, before they move there."""
        return self._checkpoints.announce_log_starts(log_starts)

    def note_cleaned(self, partition: Partition, offset: int) -> Callable[[], None]:
        """Note how far a log is clean, or that it is about to be cleaned; return the call that writes it, for a thread.

        A log that is in the file may have holes from then on, so it is entered before its first segment is swapped.
        """
        partition.cleaned_to = offset
        return self._checkpoints.note_cleaned(TopicPartition(partition.topic, partition.index), offset)

    # Partitions

    def folders(self) -> list[TopicPartition]:
        """Return the partitions whose folders are there, known or not."""
        return self._folders.list_partitions()

    def create_partition(
        self, topic: str, index: int, topic_id: bytes, settings: TopicSettings, *, first_offset: int = 0
    ) -> Partition:
        """Create a durable partition; its first record gets `first_offset`."""
        (partition,) = self.create_partitions(topic, [index], topic_id, settings, first_offset=first_offset)
        return partition

    def create_partitions(
        self,
        topic: str,
        indexes: Iterable[int],
        topic_id: bytes,
        settings: TopicSettings,
        *,
        first_offset: int = 0,
        lazily: bool = False,
    ) -> list[Partition]:
        """Create durable partitions of a topic; lazy ones, of which there may be many, get a folder when first used."""
        keys = [TopicPartition(topic, index) for index in indexes]
        return self._partitions.create(keys, topic_id, settings, first_offset=first_offset, lazily=lazily)

    def have_predecessors(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether the checkpoints say something of deleted partitions of the same names."""
        return self._partitions.have_predecessors(keys)

    def forget_predecessors(self, keys: Sequence[TopicPartition]) -> Callable[[], None]:
        """Drop what the checkpoints say of deleted partitions, so that their successors do not inherit it.

        The call that is returned makes it durable; it may run in any thread.
        """
        return self._partitions.forget_predecessors(keys)

    def open_partition(self, topic: str, index: int, topic_id: bytes, settings: TopicSettings) -> Partition:
        """Open a partition as it was left; one without a folder, new or lazy, is empty."""
        return self._partitions.open(TopicPartition(topic, index), topic_id, settings)

    def read_ahead(self, keys: Iterable[TopicPartition]) -> Prefetch:
        """Begin to read what opening these partitions will read; the caller stops it."""
        return self._folders.read_ahead(keys)

    def delete_partition(self, topic: str, index: int) -> None:
        """Close a partition and take its folder out of use, durably; `purge` removes the files later."""
        for error in self.finish_deletion(self.begin_deletion(topic, [index])).values():
            raise error

    def begin_deletion(self, topic: str, indexes: Iterable[int]) -> list[DeletedPartition]:
        """Close partitions and forget them; `finish_deletion` then takes their folders out of use."""
        return self._partitions.begin_deletion(TopicPartition(topic, index) for index in indexes)

    def finish_deletion(self, deleted: Iterable[DeletedPartition]) -> dict[TopicPartition, OSError]:
        """Take the folders of deleted partitions out of use, durably, with one sync for all; in any thread.

        `purge` removes the files later. Return the partitions whose folders the disk did not let us rename. Raises
        OSError if nothing is known to be durable.
        """
        return self._partitions.finish_deletion(deleted)

    def purge(self, now_ms: int) -> None:
        """Remove the files of partitions that were deleted long enough ago."""
        for folder in self.take_removable(now_ms):
            self.remove_folder(folder)

    def take_removable(self, now_ms: int) -> list[str]:
        """Return the folders of partitions that were deleted long enough ago; the caller removes them."""
        return self._folders.take_removable(now_ms)

    def remove_folder(self, path: str) -> None:
        """Remove the folder of a deleted partition, in any thread; if the disk refuses, try again later."""
        self._folders.remove(path)

    @property
    def unrenamed(self) -> Sequence[TopicPartition]:
        """The deleted partitions whose folders the disk did not let us rename."""
        return list(self._partitions.unrenamed)

    @property
    def failed_deletions(self) -> Sequence[str]:
        """Why folders of deleted partitions are still there, one reason for each."""
        return [*self._partitions.unrenamed.values(), *self._folders.unremoved.values()]


def _create(path: str, files: FileSystem) -> None:
    """Create a directory and its parents, durably, if it is not there."""
    if files.is_directory(path):
        return
    if files.exists(path):
        raise DataDirectoryUnusable(f"{path} is not a directory. Nothing was changed. Choose another one.")
    parent = os.path.dirname(path)
    _create(parent, files)
    files.mkdir(path)
    files.sync_directory(parent)


def unusable(path: str, error: OSError) -> DataDirectoryUnusable:
    """Return the error for a data directory that the operating system does not let us use."""
    inside = str(error.filename or path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = "" if inside == path else f" ({inside}: {error.strerror})"
        reason, remedy = f"cannot be written to{what}", "Give this user the right to write there"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, remedy = "is on a full disk", "Free some space"
    elif error.errno in OUT_OF_DESCRIPTORS:
        reason, remedy = "cannot be opened: no file descriptor is left", "Raise the limit (ulimit -n)"
    else:
        where = f": {error.filename}" if error.filename else ""
        reason, remedy = f"cannot be used ({error.strerror or error}{where})", "Repair it"
    return DataDirectoryUnusable(
        f"The data directory {path} {reason}. This start removed no record, and the next one begins again. "
        f"{remedy}, or choose another directory."
    )
