"""A partition's folder and the files in it that belong to no segment: the topic id and the leader epochs."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints
from logmark.log import leader_epochs as leader_epochs
from logmark.log.log_state import LogState

METADATA = "partition.metadata"


class PartitionFolder:
    """The folder of one partition; a partition that never had a record may have none yet."""

    __slots__ = ("_files", "_state", "exists")

    def __init__(self, state: LogState, files: FileSystem) -> None:
        self._state = state
        self._files = files
        self.exists = False

    def create(self) -> None:
        """Create the folder with the topic id in it; neither is durable yet."""
        folder = self._state.folder
        self._files.mkdir(folder)
        # Before any data: Kafka sets a folder without it aside.
        metadata = checkpoints.write_partition_metadata(self._state.topic_id)
        try:
            self._files.write(f"{folder}/{METADATA}", metadata, sync=False)
        except OSError:
            with suppress(FileNotFoundError):
                self._files.remove(f"{folder}/{METADATA}")
            self._files.rmdir(folder)
            raise
        self.exists = True

    def make_durable(self) -> None:
        """Sync the topic id and the names in the folder."""
        self._files.sync_file(f"{self._state.folder}/{METADATA}")
        self._files.sync_directory(self._state.folder)

    def begin_log(self) -> list[Callable[[], None]]:
        """Write what a log has besides its segments, and return the syncs that make it durable."""
        if not self.exists:
            self.create()
        self._files.write(self._epochs_path, self._state.epochs.encode(), sync=False)
        return self.syncs()

    def syncs(self) -> list[Callable[[], None]]:
        """Return the syncs without which a crash could lose the folder or a file of it that is no segment's."""
        folder = self._state.folder
        return [
            partial(self._files.sync_file, f"{folder}/{METADATA}"),
            partial(self._files.sync_directory, os.path.dirname(folder)),
            partial(self._files.sync_file, self._epochs_path),
        ]

    def write_epochs(self) -> None:
        """Write the leader epochs durably, and with them the names that a load has left in the folder."""
        self._files.write_atomically(self._epochs_path, self._state.epochs.encode())

    def epochs_writer(self) -> Callable[[], None]:
        """Return a call that writes the leader epochs as they are now, durably; for a thread."""
        return partial(self._files.write_atomically, self._epochs_path, self._state.epochs.encode())

    @property
    def _epochs_path(self) -> str:
        return f"{self._state.folder}/{leader_epochs.FILE_NAME}"


def is_of_other_topic(folder: str, topic_id: bytes, files: FileSystem) -> bool:
    """Return whether a folder has the id of another topic; one without a readable id is of no other."""
    try:
        return checkpoints.read_partition_metadata(files.read(f"{folder}/{METADATA}")) != topic_id
    except (FileNotFoundError, Malformed):
        return False


def complete_folder(folder: str, topic_id: bytes, files: FileSystem) -> None:
    """Make a partition's folder with the id of its topic, where a crash has lost that; opening it adds the rest."""
    if not files.exists(folder):
        files.mkdir(folder)
    metadata = f"{folder}/{METADATA}"
    wanted = checkpoints.write_partition_metadata(topic_id)
    if not files.exists(metadata) or files.read(metadata) != wanted:
        files.write(metadata, wanted, sync=False)
    files.sync_file(metadata)
