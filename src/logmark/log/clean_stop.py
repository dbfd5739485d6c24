"""The mark of a clean stop: Kafka's own file, which in our case also says which list of segments belongs to it.

Apache Kafka writes the epoch of its broker, which is never negative. We write a negative one that is made of the list's
checksum: a list of an earlier stop that is put back does not belong to the mark, and is not believed.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log.checkpoints import SEGMENTS, SegmentList
from logmark.wire import columns

CLEAN = ".kafka_cleanshutdown"
_WITHOUT_LIST = -1


def write_mark(path: str, files: FileSystem) -> None:
    """Mark a directory as stopped cleanly, durably, with the list of segments that is in it now."""
    content = _read(path, SEGMENTS, files)
    epoch = _WITHOUT_LIST if content is None else _epoch_of(content)
    mark = json.dumps({"version": 0, "brokerEpoch": epoch}, separators=(",", ":"))
    files.write_atomically(f"{path}/{CLEAN}", mark.encode())


class CleanStop(NamedTuple):
    """What the mark in a directory says of the last run."""

    path: str
    files: FileSystem
    # None if there is no mark, or Apache Kafka has written it.
    epoch: int | None

    @classmethod
    def read(cls, path: str, files: FileSystem) -> "CleanStop":
        """Read the mark of a directory, if there is one."""
        try:
            mark = json.loads(_read(path, CLEAN, files) or b"null")
        except ValueError:
            mark = None
        epoch = mark.get("brokerEpoch") if isinstance(mark, Mapping) else None
        return cls(path, files, epoch if isinstance(epoch, int) and epoch < 0 else None)

    @property
    def is_of_logmark(self) -> bool:
        """Whether the last run was Logmark's, and has ended by a clean stop."""
        return self.epoch is not None

    def read_segment_list(self) -> SegmentList | None:
        """Return the list that the last run has left by a clean stop; None if it has left none.

        Raises Malformed if the list is damaged, or is that of another stop.
        """
        content = None if self.epoch is None else _read(self.path, SEGMENTS, self.files)
        if content is None:
            return None
        found = SegmentList.decode(content)
        # A mark of an older version, or of a restored backup, names no list.
        if self.epoch not in (_WITHOUT_LIST, _epoch_of(content)):
            raise Malformed("it is not the list of the last clean stop, but of an earlier one")
        return found


def _epoch_of(content: bytes) -> int:
    return _WITHOUT_LIST - 1 - columns.crc32c(content, 0, len(content))


def _read(path: str, name: str, files: FileSystem) -> bytes | None:
    return files.read(f"{path}/{name}") if files.exists(f"{path}/{name}") else None
