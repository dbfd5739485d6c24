"""Whether the broker can still do anything useful. If not, it ends, instead of looking alive to its clients.

It can do nothing useful any more if one of these holds:

    The data directory was removed, or another one has its path. Nothing that is written would be found by the next
    start, and what is written now could damage the directory that has the path.

    No log takes records until a restart, and no log that has records can be read.

A full disk, a lack of descriptors or memory, and damaged records are never a reason: the first pass, and all other
records can be read. A failed write-ahead log alone is none either: what was acknowledged is still served.
"""

import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from logmark.errors import LogmarkError
from logmark.log import disk_full

if TYPE_CHECKING:
    from logmark.broker.logs import Logs
    from logmark.log.group_commit import GroupCommit
    from logmark.log.partition import Partition

log = logging.getLogger(__name__)

# How many logs are read in one check: a broken disk may take long to say so.
READS_IN_A_CHECK = 10
# After a read that succeeded, nothing is read for so many checks.
CHECKS_BETWEEN_READS = 60
# A directory may be exchanged by two renames: only what is gone in two checks is gone.
GONE_CHECKS = 2


class Liveness:
    """Looks now and then whether there is anything left that the broker can do."""

    def __init__(
        self,
        *,
        data_dir: str,
        logs: "Logs",
        committer: "GroupCommit",
        identify: Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        """Take the open directory; `identify` returns what tells it from another one at the same path."""
        self._data_dir = data_dir
        self._logs = logs
        self._committer = committer
        self._identify = identify or _identify
        self._identity: tuple[int, int] | None = None
        try:
            self._identity = self._identify(data_dir)
        except OSError:
            # A file system of a test has no such directory on the real disk.
            self._identity = None
        self._gone_count = 0
        # The logs that could not be read since one could.
        self._unreadable: set[Partition] = set()
        self._checks_left = 0
        self.is_over = False

    def check(self) -> bool:
        """Return whether the broker is still useful; say once why, if it is not any more."""
        if not self.is_over:
            reason = self._find_reason()
            if reason is not None:
                self.is_over = True
                log.critical("%s", reason)
        return not self.is_over

    def is_directory_gone(self) -> bool:
        """Return whether the path of the data directory leads to nothing, or to another directory."""
        if self._identity is None:
            return False
        try:
            return self._identify(self._data_dir) != self._identity
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            # Nobody can tell now.
            return False

    def _find_reason(self) -> str | None:
        self._gone_count = self._gone_count + 1 if self.is_directory_gone() else 0
        if self._gone_count >= GONE_CHECKS:
            return (
                f"The data directory {self._data_dir} was removed or replaced while the broker ran, so that nothing "
                "it writes would be found again. It ends and changes nothing at that path. What was acknowledged is "
                "where the directory is now, if it is anywhere: put it back, then start the broker."
            )
        if self._takes_records():
            self._unreadable.clear()
            self._checks_left = 0
            return None
        if self._can_read():
            return None
        return (
            f"The broker takes no records until a restart, and no log in {self._data_dir} can be read: earlier lines "
            "say why. It ends, because it can do nothing useful any more. What was acknowledged is on the disk, as "
            "far as the disk keeps it. Repair the disk, then start the broker."
        )

    def _takes_records(self) -> bool:
        """Return whether any log takes records now, or will by itself."""
        committer = self._committer
        if committer.is_sync:
            # A log that the disk failed is written again until that succeeds.
            return committer.failure is None
        is_any = False
        for partition in self._partitions():
            is_any = True
            if partition.failure is None or partition in committer.flusher.troubled:
                return True
        return not is_any

    def _can_read(self) -> bool:
        """Return whether any log with records can be read, as far as is known: a few are tried each time."""
        if self._checks_left:
            self._checks_left -= 1
            return True
        tried = 0
        for partition in self._partitions():
            if partition.high_watermark <= partition.log_start_offset or partition in self._unreadable:
                continue
            if tried == READS_IN_A_CHECK:
                return True
            tried += 1
            if _is_readable(partition):
                self._unreadable.clear()
                self._checks_left = CHECKS_BETWEEN_READS
                return True
            self._unreadable.add(partition)
        return False

    def _partitions(self) -> "Iterator[Partition]":
        return (partition for topic in self._logs.topics() for partition in topic.partitions)


def _is_readable(partition: "Partition") -> bool:
    try:
        partition.read(partition.log_start_offset, bytes_max=1)
    except LogmarkError as error:
        # Damaged records are no sign of a disk that cannot be read, and a lack of descriptors passes.
        cause = error.__cause__
        return not isinstance(cause, OSError) or disk_full.is_passing(cause)
    return True


def _identify(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
