"""Reads of a moment ago: batches that several readers of one log ask for are read and checked once.

A log with one reader gains nothing, so nothing of it is kept: the memory would only be colder. That a log has several
readers is seen when somebody reads from an offset again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logmark.log.reader import Fetched, Reader

# For all partitions together; readers that are further apart share nothing. A reader that finds its batches here is
# faster than the one before it, so that readers who start together stay together.
BYTES_MAX = 64 * 1024 * 1024
# Smaller reads cost less than it takes to keep them.
READ_BYTES_MIN = 32 * 1024
# How many reads are noted to see that a log has several readers, and how many are kept after that was seen: so many
# that the others come to where the keeping began.
NOTED_MAX = 64
KEPT_AFTERWARDS = 256


class RecentRead(NamedTuple):
    """What was asked for, and what was found."""

    bytes_max: int
    is_committed: bool
    # Where the log ended for the reader.
    end: int
    # Whether there was more than `bytes_max`, so that a log that has grown since gives the same.
    is_full: bool
    fetched: "Fetched"
    next_offset: int

    def answers(self, *, bytes_max: int, is_committed: bool, end: int) -> bool:
        """Return whether the same read would find the same now."""
        is_same_end = self.end == end or self.is_full
        return is_same_end and self.bytes_max == bytes_max and self.is_committed is is_committed


def _hold_nothing(size_bytes: int) -> None:
    pass


def _has_room(size_bytes: int) -> bool:
    return True


class RecentReads:
    """The last reads of all logs that have several readers, by log and offset; the oldest are dropped first."""

    def __init__(
        self,
        bytes_max: int = BYTES_MAX,
        *,
        hold: Callable[[int], None] = _hold_nothing,
        has_room: Callable[[int], bool] = _has_room,
    ) -> None:
        """Take what counts the memory that is held, and what says whether there is enough for so many bytes more."""
        self._bytes_max = bytes_max
        self._hold = hold
        self._has_room = has_room
        self._reads: dict[tuple[Reader, int], RecentRead] = {}
        self._bytes = 0
        # Where reads began, of logs whose reads are not kept.
        self._noted: dict[tuple[Reader, int], None] = {}
        # How many reads of a log are still kept, unless somebody finds one of them.
        self._kept_afterwards: dict[Reader, int] = {}
        self._is_used = False

    @property
    def size_bytes(self) -> int:
        """How many bytes of records are kept."""
        return self._bytes

    def find(self, log: "Reader", offset: int, *, bytes_max: int, is_committed: bool, end: int) -> RecentRead | None:
        """Return a read that finds the same as this one would, if there is one."""
        read = self._reads.get((log, offset))
        if read is None or not read.answers(bytes_max=bytes_max, is_committed=is_committed, end=end):
            return None
        self._is_used = True
        self._kept_afterwards[log] = KEPT_AFTERWARDS
        return read

    def add(self, log: "Reader", offset: int, read: RecentRead) -> None:
        """Keep a read, if its log has several readers."""
        self._is_used = True
        key = log, offset
        left = self._kept_afterwards.get(log)
        if left is None:
            if key not in self._noted:
                self._noted[key] = None
                if len(self._noted) > NOTED_MAX:
                    del self._noted[next(iter(self._noted))]
                return
            left = KEPT_AFTERWARDS
        if left == 0:
            self.forget(log)
            return
        self._kept_afterwards[log] = left - 1
        size = len(read.fetched.records)
        if not self._has_room(size):
            self._drop_until(0)
            return
        self._drop(key)
        self._drop_until(self._bytes_max - size)
        if size <= self._bytes_max:
            self._reads[key] = read
            self._count(size)

    def forget(self, log: "Reader") -> None:
        """Drop the reads of a log: its segments were deleted or replaced, or it has no more than one reader."""
        self._kept_afterwards.pop(log, None)
        for key in [key for key in self._reads if key[0] is log]:
            self._drop(key)
        for key in [key for key in self._noted if key[0] is log]:
            del self._noted[key]

    def drop_idle(self) -> None:
        """Free the memory if nobody has read anything since the last call."""
        if not self._is_used:
            self._drop_until(0)
        self._is_used = False

    def _drop_until(self, bytes_max: int) -> None:
        while self._reads and self._bytes > bytes_max:
            self._drop(next(iter(self._reads)))

    def _drop(self, key: "tuple[Reader, int]") -> None:
        read = self._reads.pop(key, None)
        if read is not None:
            self._count(-len(read.fetched.records))

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._hold(size_bytes)
