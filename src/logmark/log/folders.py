"""The folders of the partitions in a data directory: those found at the start, set aside, and deleted ones."""

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed, UserError
from logmark.log import catalog, checkpoints, folder_names
from logmark.log.catalog import Catalog, Entry
from logmark.log.folder import METADATA, complete_folder
from logmark.log.prefetch import Prefetch
from logmark.names import TopicPartition

# When the removal of a folder is tried again.
RETRY_MS = 60_000

logger = logging.getLogger(__name__)


class PartitionFolders:
    """All partition folders of one data directory."""

    def __init__(self, path: str, files: FileSystem, names: Iterable[str]) -> None:
        """Take the names that the data directory holds at the start."""
        self._path = path
        self._files = files
        # What was found and not opened yet: asking again for each of thousands of partitions would take long.
        self._unopened = set(names)
        # Folders of deleted partitions, each with the time from which its files may be removed.
        self._deleted: list[tuple[int, str]] = []
        # Those that the disk did not let us remove, each with the reason; they are tried again.
        self.unremoved: dict[str, str] = {}
        # The time of the last look for folders that may be removed.
        self._now_ms = 0
        self._deleting = threading.Lock()

    def path_of(self, key: TopicPartition) -> str:
        """Return the path of a partition's folder, which need not be there."""
        return f"{self._path}/{key}"

    def list_partitions(self) -> list[TopicPartition]:
        """Return the partitions whose folders are there, known or not."""
        found = []
        for name in self._files.listdir(self._path):
            key = folder_names.partition_of(name)
            if key is not None and self._files.is_directory(f"{self._path}/{name}"):
                found.append(key)
        return found

    # Opening

    def check_owners(self, topics: Iterable[Entry]) -> None:
        """Raise UserError if a folder holds records of a partition that no topic of the catalogue has.

        Such records would be served by nobody, and a new topic of that name would be written over them.
        """
        partitions = {topic.name: topic.partitions for topic in topics}
        for name in sorted(self._unopened):
            key = folder_names.partition_of(name)
            if key is None or key.partition < partitions.get(key.topic, 0):
                continue
            path = f"{self._path}/{name}"
            if self._files.is_directory(path) and any(one.endswith(".log") for one in self._files.listdir(path)):
                raise UserError(
                    f"{path} holds records, and {catalog.FILE_NAME} does not have that partition: the file is older "
                    "than the records, or the folder was put there. Nothing was changed. Restore "
                    f"{catalog.FILE_NAME} from a copy of the same moment, or move the folder elsewhere."
                )

    def remove_leftovers(self) -> None:
        """Remove what was being deleted or written when the last process ended."""
        for name in sorted(self._unopened):
            if folder_names.is_deleted(name):
                self.remove(f"{self._path}/{name}")
            elif name.endswith(".tmp") and not self._files.is_directory(f"{self._path}/{name}"):
                with suppress(FileNotFoundError):
                    self._files.remove(f"{self._path}/{name}")

    def read_ahead(self, keys: Iterable[TopicPartition]) -> Prefetch:
        """Begin to read what opening these partitions will read; the caller stops it."""
        found = (key for key in keys if str(key) in self._unopened)
        return Prefetch((self.path_of(key) for key in found), self._files)

    def begin_opening(self, key: TopicPartition) -> bool:
        """Return whether a partition has a folder; from now on the names found at the start do not count for it."""
        name = str(key)
        is_there = name in self._unopened or self._files.exists(self.path_of(key))
        self._unopened.discard(name)
        return is_there

    def complete(self, folder: str, topic_id: bytes) -> None:
        """Make a folder that a crash has lost, with the id of its topic, durably."""
        complete_folder(folder, topic_id, self._files)
        self._unopened.add(os.path.basename(folder))

    def check_topic_id(self, key: TopicPartition, topic_id: bytes, *, may_be_torn: bool) -> None:
        """Check that a partition's folder has that topic id; one that a crash left without an id gets it.

        Raises UserError if the folder has the id of another topic, or an id that cannot be read and no crash has torn.
        """
        folder = self.path_of(key)
        path = f"{folder}/{METADATA}"
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            content = b""
        try:
            found = checkpoints.read_partition_metadata(content)
            if found != topic_id:
                raise UserError(
                    f"{path} has the topic id {checkpoints.id_text(found)}, and the catalogue has "
                    f"{checkpoints.id_text(topic_id)}. No record was changed. Restore that file from a copy, or move "
                    "the folder away to begin that partition anew."
                )
        except Malformed as error:
            is_unused = not content and not any(name.endswith(".log") for name in self._files.listdir(folder))
            if not is_unused and not may_be_torn:
                raise UserError(
                    f"{path} cannot be used: {error}. No record was changed. Restore that file from a copy, or move "
                    "the folder away to begin that partition anew."
                ) from None
            # No folder has its name but the topic's: a deleted topic is in the catalogue until its folders are gone.
            if not is_unused:
                logger.warning("%s is written again: %s", path, error)
            self._files.write(path, checkpoints.write_partition_metadata(topic_id), sync=not is_unused)

    # Deleting

    def mark_deleted(self, key: TopicPartition, removable_at_ms: int) -> bool:
        """Rename a partition's folder, in any thread; return whether there was one. Its files may be removed later."""
        folder = self.path_of(key)
        if not self._files.exists(folder):
            return False
        deleted = f"{self._path}/{folder_names.new_deleted_name(key)}"
        self._files.replace(folder, deleted)
        with self._deleting:
            self._deleted.append((removable_at_ms, deleted))
        return True

    def take_removable(self, now_ms: int) -> list[str]:
        """Return the folders of partitions that were deleted long enough ago; the caller removes them."""
        self._now_ms = now_ms
        if not self._deleted:
            return []
        with self._deleting:
            due = [path for removable_at_ms, path in self._deleted if removable_at_ms <= now_ms]
            self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        return due

    def remove(self, folder: str) -> None:
        """Remove the folder of a deleted partition with its files, in any thread; try again later if the disk refuses.

        Nobody needs such a folder, so it is no reason to stop anything.
        """
        try:
            for name in self._files.listdir(folder):
                self._files.remove(f"{folder}/{name}")
            self._files.rmdir(folder)
        except OSError as error:
            if self._files.exists(folder):
                if folder not in self.unremoved:
                    logger.warning("the folder of a deleted partition could not be removed, yet: %s", error)
                self.unremoved[folder] = str(error)
                with self._deleting:
                    self._deleted.append((self._now_ms + RETRY_MS, folder))
                return
        self.unremoved.pop(folder, None)


def folders_by_id(path: str, files: FileSystem) -> Callable[[bytes, int], str | None]:
    """Return what finds the folder of a partition by the id of its topic; None if the topic is deleted."""
    catalogue = f"{path}/{catalog.FILE_NAME}"
    content = files.read(catalogue) if files.exists(catalogue) else None
    by_id = {entry.id: entry for entry in Catalog(content, path=catalogue).entries()}

    def find(topic_id: bytes, index: int) -> str | None:
        entry = by_id.get(topic_id)
        return None if entry is None or index >= entry.partitions else f"{path}/{entry.name}-{index}"

    return find
