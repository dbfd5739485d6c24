"""Open files within what the process may have: the rest is closed and opened again when it is used.

A log has more files than a process may have descriptors, and nobody says when one was used for the last time. A file
with unsynced bytes is synced before it is closed: an error that the kernel meets while writing them back is reported to
the process that has the file open, and might else be lost. Files without such bytes are closed first.
"""

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

# The process, or the whole machine, has no descriptor left. Only calls that open something report these.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# What the process needs beside logs and connections: standard streams, the event loop, listeners, locks, the WAL, the
# cleaner's process, files that threads open for a moment, and the connections above the limit that ask for its health.
OWN = 40
# What a process has open at its start is less: so many are added to that.
GROWTH = 24
FILES_MIN = 8
CONNECTIONS_MIN = 4
# Where the system names no limit, as macOS may.
UNLIMITED = 1 << 20


class Descriptor:
    """One descriptor, closed when nobody has it any more: a thread may be using it while another lets it go."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def pread(self, size: int, at: int) -> bytes:
        """Return the bytes at a position, fewer only at the end of the file."""
        data = os.pread(self.number, size, at)
        if len(data) == size or not data:
            return data
        parts = [data]
        left = size - len(data)
        while left and (more := os.pread(self.number, left, at + size - left)):
            parts.append(more)
            left -= len(more)
        return b"".join(parts)

    def size_if_deleted(self) -> int:
        """Return the size of a file that has no name any more; 0 if it has one."""
        found = os.fstat(self.number)
        return 0 if found.st_nlink else found.st_size

    def __del__(self) -> None:
        os.close(self.number)


class Closable(Protocol):
    """An open file as the limit sees it."""

    is_used: bool

    def release_descriptor(self) -> bool: ...

    def sync_and_release_descriptor(self) -> bool: ...


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if limit == resource.RLIM_INFINITY else min(limit, UNLIMITED)


def files_max() -> int:
    """Return how many files the logs may hold open: half of what the process itself does not need."""
    return max(FILES_MIN, (descriptor_limit() - OWN) // 2)


def connections_max() -> int:
    """Return how many connections there can be while the logs and the process keep their descriptors."""
    return max(CONNECTIONS_MIN, descriptor_limit() - max(OWN, _count_open() + GROWTH) - files_max())


def _count_open() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


class OpenFiles:
    """Every open file, oldest first; above the limit those that were not used for long give their descriptors back."""

    def __init__(self, limit: Callable[[], int] = files_max) -> None:
        self._limit = limit
        self._files: dict[int, weakref.ref[Closable]] = {}
        # A file is opened by its user, also in a thread; one that is collected says so at any time.
        self._guard = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Closable) -> None:
        """Note that a file has a descriptor now."""
        key = id(file)
        with self._guard:
            self._files[key] = weakref.ref(file, lambda _: self._files.pop(key, None))
            if len(self._files) > self._limit():
                self._close_one(file)

    def remove(self, file: Closable) -> None:
        """Note that a file no longer has one."""
        with self._guard:
            self._files.pop(id(file), None)

    def _close_one(self, newest: Closable) -> None:
        # Twice around at most: the first time every file may have been used since it was last looked at.
        for _ in range(2 * len(self._files)):
            key = next(iter(self._files))
            kept = self._files.pop(key, None)
            file = kept() if kept is not None else None
            if kept is None or file is None:
                return
            if file is not newest and not file.is_used and file.release_descriptor():
                return
            file.is_used = False
            self._files[key] = kept
        # All of them wait for a flush. One sync here is better than a write that finds no descriptor.
        for kept in list(self._files.values()):
            file = kept()
            if file is not None and file is not newest and file.sync_and_release_descriptor():
                self._files.pop(id(file), None)
                return
