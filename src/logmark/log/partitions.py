"""The partitions of a data directory: created, opened as the last run left them, and deleted.

Four sources say what the last run left: the folder, the checkpoints, the write-ahead log of a crash, and whether the
directory was closed cleanly. This module decides which of them counts.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from logmark.clock import Clock
from logmark.disk.file_system import FileSystem
from logmark.log.checkpoint_files import CheckpointFiles
from logmark.log.folders import PartitionFolders
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.settings import TopicSettings
from logmark.log.wal_recovery import WalRecovery
from logmark.names import TopicPartition

logger = logging.getLogger(__name__)


class DeletedPartition(NamedTuple):
    """A partition that is closed for ever, and the time from which its files may be removed."""

    key: TopicPartition
    removable_at_ms: int


class Partitions:
    """The open partitions of one data directory."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        committer: GroupCommit,
        clock: Clock,
        folders: PartitionFolders,
        checkpoints: CheckpointFiles,
        recovery: WalRecovery,
        was_clean: bool,
        is_closed_by_us: bool,
    ) -> None:
        self.by_key: dict[TopicPartition, Partition] = {}
        # Deleted partitions whose folders the disk did not let us rename, each with the reason.
        self.unrenamed: dict[TopicPartition, str] = {}
        # Whether any partition was created, opened or deleted, so that the checkpoints need to be written.
        self.is_used = False
        self._path = path
        self._files = files
        self._committer = committer
        self._clock = clock
        self._folders = folders
        self._checkpoints = checkpoints
        self._recovery = recovery
        self._was_clean = was_clean
        # Whether Logmark, and not Apache Kafka, has closed the directory: then the leader epochs say where logs start.
        self._is_closed_by_us = is_closed_by_us

    # Creating

    def create(
        self,
        keys: Sequence[TopicPartition],
        topic_id: bytes,
        settings: TopicSettings,
        *,
        first_offset: int = 0,
        lazily: bool = False,
    ) -> list[Partition]:
        """Create durable partitions of a topic; lazy ones, of which there may be many, get a folder when first used."""
        self.forget_predecessors(keys)()
        return self._create(keys, topic_id, settings, first_offset=first_offset, lazily=lazily)

    def _create(
        self,
        keys: Sequence[TopicPartition],
        topic_id: bytes,
        settings: TopicSettings,
        *,
        first_offset: int = 0,
        lazily: bool = False,
    ) -> list[Partition]:
        created = []
        self.is_used = True
        for key in keys:
            partition = Partition.create(
                self._folders.path_of(key), key.topic, key.partition, topic_id, settings,
                files=self._files, committer=self._committer, clock=self._clock, first_offset=first_offset,
                lazily=lazily,
            )  # fmt: skip
            self.by_key[key] = partition
            created.append(partition)
        if not lazily:
            self._files.sync_directory(self._path)
        return created

    def have_predecessors(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether the checkpoints say something of deleted partitions of the same names."""
        return self._checkpoints.mention_any(keys)

    def forget_predecessors(self, keys: Sequence[TopicPartition]) -> Callable[[], None]:
        """Drop what the checkpoints say of deleted partitions, so that their successors do not inherit it.

        The call that is returned makes it durable; it may run in any thread.
        """
        if not self.have_predecessors(keys):
            return lambda: None
        for key in keys:
            self._checkpoints.forget(key)
        write_offsets = self._checkpoints.take(self.by_key)

        def write() -> None:
            try:
                self._checkpoints.write_cleaned()
                write_offsets()
            except OSError:
                self._checkpoints.note_unwritten(keys)
                raise

        return write

    # Opening

    def open(self, key: TopicPartition, topic_id: bytes, settings: TopicSettings) -> Partition:
        """Open a partition as it was left; one without a folder, new or lazy, is empty.

        If the folder of one with records was taken away, the WAL or the checkpoints know how many offsets were given
        out: none is given out again. A new topic does not inherit the checkpoints of a deleted one of the same name:
        `forget_predecessors` is durable before the topic is.
        """
        folder = self._folders.path_of(key)
        has_folder = self._folders.begin_opening(key)
        recovered = self._recovery.find(topic_id, key.partition)
        recovery_point = self._checkpoints.recovery_point(key)
        if has_folder:
            # Of such a folder a crash may have come before the first record was durable, and taken the topic id.
            may_be_torn = not self._was_clean and not recovery_point
            self._folders.check_topic_id(key, topic_id, may_be_torn=may_be_torn)
        if has_folder and self._recovery.is_pending and recovered is None and not recovery_point:
            # The WAL knows nothing of it: not one record was acknowledged, and any part of its files may be lost.
            self._folders.remove(folder)
            has_folder = False
        if not has_folder:
            known_end = self._checkpoints.known_end(key) if recovered is None else recovered.end
            recovery_point = max(recovery_point, known_end)
            if not known_end:
                (partition,) = self.create([key], topic_id, settings, lazily=True)
                return partition
            logger.error(
                "the folder of %s-%d is missing: its records below offset %d are lost, and new ones begin there",
                key.topic, key.partition, known_end,
            )  # fmt: skip
            self._create([key], topic_id, settings)
        self.is_used = True
        partition = Partition.open(
            folder, key.topic, key.partition, topic_id, settings,
            files=self._files, committer=self._committer, clock=self._clock, clean=self._was_clean,
            recovery_point=recovery_point if recovered is None else recovered.recovery_point,
            durable_end=0 if recovered is None else recovered.end,
            is_replayed=recovered is not None and recovered.is_whole and recovered.end > 0,
            log_start_offset=self._checkpoints.log_start_offset(key),
            cleaned_to=self._checkpoints.cleaned_to(key),
            listed=self._checkpoints.segments(key),
            is_synced=self._recovery.is_pending or self._is_closed_by_us,
        )  # fmt: skip
        self.by_key[key] = partition
        return partition

    # Deleting and closing

    def begin_deletion(self, keys: Iterable[TopicPartition]) -> list[DeletedPartition]:
        """Close partitions and forget them; `finish_deletion` then takes their folders out of use."""
        self.is_used = True
        deleted = []
        for key in keys:
            partition = self.by_key.pop(key, None)
            self._checkpoints.forget(key)
            if partition is not None:
                partition.close(clean=False)
            delay_ms = partition.settings.file_delete_delay_ms if partition is not None else 0
            deleted.append(DeletedPartition(key, self._clock.now_ms() + delay_ms))
        return deleted

    def finish_deletion(self, deleted: Iterable[DeletedPartition]) -> dict[TopicPartition, OSError]:
        """Rename the folders of deleted partitions, durably, with one sync for all; in any thread.

        The files are removed later. Return the partitions whose folders the disk did not let us rename. Raises OSError
        if nothing is known to be durable.
        """
        self._checkpoints.write_cleaned()
        is_any_renamed, failed = False, {}
        for key, removable_at_ms in deleted:
            try:
                is_any_renamed |= self._folders.mark_deleted(key, removable_at_ms)
                self.unrenamed.pop(key, None)
            except OSError as error:
                if key not in self.unrenamed:
                    logger.error("the folder of a deleted partition could not be renamed, yet: %s", error)
                self.unrenamed[key] = str(error)
                failed[key] = error
        if is_any_renamed:
            self._files.sync_directory(self._path)
        return failed

    def close(self, *, clean: bool) -> bool:
        """Close every partition, and return whether the next start can trust the files of all folders as they are."""
        closed = [partition.close(clean=clean) for partition in self.by_key.values()]
        if not clean or not all(closed):
            # The directory may be gone, so nothing more is looked for.
            return False
        # After a crash a folder that nobody opened was not checked: the next start has to.
        known = self.by_key.keys() | self.unrenamed.keys()
        return self._was_clean or all(key in known for key in self._folders.list_partitions())
