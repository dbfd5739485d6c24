"""Whether the disk of the data directory takes writes, found out when somebody asks for the broker's health.

A file system that has stopped itself after an error, as ext4 does, still calls itself writable: neither its mount flags
nor statvfs tell. So the broker sets the times of its lock file, which writes no record and fails as a write would. It
does so in a thread, and waits for a while only: a broken disk may not answer at all.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from logmark.log.directory import LOCK
from logmark.log.disk_full import FULL

SECONDS_MAX = 5.0
# With less than this, hardly any write finds space.
FREE_BYTES_MIN = 1 << 20


class DiskState(Enum):
    """What the disk does with writes."""

    WRITABLE = "writable"
    FULL = "full"
    READ_ONLY = "read-only"
    FAILED = "failed"
    SILENT = "silent"


class DiskReport(NamedTuple):
    """The state of a disk; the bytes are -1 if the disk does not tell them."""

    state: DiskState
    reason: str = ""
    free_bytes: int = -1
    total_bytes: int = -1


class DiskProbe:
    """Asks the disk, one question at a time."""

    def __init__(
        self, data_dir: str, *, touch: Callable[[str], None] = os.utime, seconds_max: float = SECONDS_MAX
    ) -> None:
        """Take the directory; `touch` changes the times of a file."""
        self._data_dir = data_dir
        self._touch = touch
        self._seconds_max = seconds_max
        self._asked: asyncio.Future[DiskReport] | None = None

    async def ask(self) -> DiskReport:
        """Return the state of the disk. All who ask at the same time get the same answer."""
        asked = self._asked
        if asked is None:
            asked = self._asked = asyncio.get_running_loop().run_in_executor(None, self._find_state)
            asked.add_done_callback(self._forget)
        await asyncio.wait({asked}, timeout=self._seconds_max)
        if asked.done():
            return asked.result()
        return DiskReport(DiskState.SILENT, f"it has not answered for {self._seconds_max:.0f} s")

    def _forget(self, _: object) -> None:
        self._asked = None

    def _find_state(self) -> DiskReport:
        try:
            volume = os.statvfs(self._data_dir)
        except OSError as error:
            return DiskReport(DiskState.FAILED, str(error))
        free, total = volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize
        state, reason = DiskState.WRITABLE, ""
        try:
            self._touch(f"{self._data_dir}/{LOCK}")
        except OSError as error:
            state, reason = _STATES.get(error.errno or 0, DiskState.FAILED), str(error)
        if state is DiskState.WRITABLE and total and free < FREE_BYTES_MIN:
            state = DiskState.FULL
        return DiskReport(state, reason, free, total)


_STATES = {
    errno.EROFS: DiskState.READ_ONLY,
    **dict.fromkeys(FULL, DiskState.FULL),
    # Neither says anything of the disk: a directory that is gone is the business of `liveness`.
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM), DiskState.WRITABLE),
}
