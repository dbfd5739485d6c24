"""The recovery of a data directory from the write-ahead log that a crash has left in it.

A start replays the WAL into the segments before it opens a partition. What the replay has found of each partition
counts until the partitions' own files say the same; then the WAL is removed.
"""

import logging
from collections.abc import Callable, Sequence

from logmark.disk.file_system import FileSystem
from logmark.errors import UserError
from logmark.log import checkpoints
from logmark.log.folder_names import partition_of
from logmark.log.folders import folders_by_id
from logmark.log.wal import log as wal
from logmark.log.wal import replay
from logmark.log.wal.entries import partition_key, split_key
from logmark.log.wal.log import remove_unfinished
from logmark.log.wal.replay import Recovered
from logmark.names import TopicPartition

# A file in the WAL's folder from the moment at which a recovery begins to change segments.
BEGAN = "recovery-began"

logger = logging.getLogger(__name__)


class WalRecovery:
    """The WAL of an earlier run, while there is one, and what it had of each partition."""

    def __init__(self, path: str, directory_id: str, files: FileSystem) -> None:
        self._path = path
        self._directory_id = directory_id
        self._files = files
        self._recovered: dict[bytes, Recovered] = {}
        # Whether there is a WAL that was replayed and not removed yet.
        self.is_pending = False

    def run(self, names: Sequence[str], *, was_clean: bool, complete_folder: Callable[[str, bytes], None]) -> None:
        """Write what the WAL holds to the segments, and cut what was never acknowledged.

        Raises UserError if the WAL cannot be used, or belongs to an earlier moment than a clean stop.
        """
        remove_unfinished(self._path, self._files)
        if wal.FOLDER not in names:
            return
        if was_clean:
            raise not_of_last_stop(self._path)
        content = replay.read(self._path, checkpoints.id_bytes(self._directory_id), self._files)
        work = replay.Replay(
            content,
            self._files,
            folder_of=folders_by_id(self._path, self._files),
            make_folder=complete_folder,
        )
        work.check()
        # Not synced: it is for a start after a kill, which finds what this one has cut as if it were durable.
        began = f"{self._path}/{wal.FOLDER}/{BEGAN}"
        is_repeated = self._files.exists(began)
        if not is_repeated:
            self._files.write(began, b"", sync=False)
        self._recovered = work.run(is_repeated=is_repeated)
        self.is_pending = True
        logger.info("recovered from the write-ahead log: %s", replay.describe(content, self._recovered))

    def find(self, topic_id: bytes, index: int) -> Recovered | None:
        """Return what the replay has made of a partition; None if the WAL knows nothing of it."""
        return self._recovered.get(partition_key(topic_id, index))

    def ends(self) -> list[tuple[TopicPartition, int]]:
        """Return where the recovered logs end; deleted topics are left out."""
        folder_of = folders_by_id(self._path, self._files)
        found = []
        for key, recovered in self._recovered.items():
            partition = partition_of(folder_of(*split_key(key)) or "")
            if partition is not None:
                found.append((partition, recovered.end))
        return found

    def remove_wal(self) -> None:
        """Remove the WAL, durably: the partitions' own files and the checkpoints hold what it held."""
        wal.remove(self._path, self._files)
        self.is_pending = False
        self._recovered = {}


def not_of_last_stop(path: str) -> UserError:
    """Return the error for a WAL beside the mark of a clean stop, which must have come after it."""
    return UserError(
        f"The write-ahead log {path}/{wal.FOLDER} does not belong to the last clean stop of {path}. Nothing was "
        f"changed. Files of two moments were mixed. If the segments are the newer ones, move {wal.FOLDER} away; "
        "otherwise put the files of one moment together again, or restore a backup."
    )
