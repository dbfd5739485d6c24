"""Open files within what the process may have: the rest is closed and opened again when it is used.

A log has more files than a process may have descriptors, and nobody says when one was used for the last time. A file
with unsynced bytes is synced before it is closed: an error that the kernel meets while writing them back is told to the
process that has the file open, and might else be told to nobody. Files without such bytes are closed first.
"""

import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

KEPT_MIN = 16


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

    def let_go(self) -> bool: ...

    def sync_and_let_go(self) -> bool: ...


def half_of_what_the_process_may_have() -> int:
    """Files get one half; connections and everything else have the other."""
    return max(KEPT_MIN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class OpenFiles:
    """Every open file, oldest first; above the limit those that were not used for long give their descriptors back."""

    def __init__(self, limit: Callable[[], int] = half_of_what_the_process_may_have) -> None:
        self._limit = limit
        self._files: dict[int, weakref.ref[Closable]] = {}
        # A file is opened by whoever uses it, also in a thread; one that is collected says so at any time.
        self._guard = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Closable) -> None:
        """Notes that a file has a descriptor now."""
        key = id(file)
        with self._guard:
            self._files[key] = weakref.ref(file, lambda _: self._files.pop(key, None))
            if len(self._files) > self._limit():
                self._close_one(file)

    def remove(self, file: Closable) -> None:
        """Notes that a file has none any more."""
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
            if file is not newest and not file.is_used and file.let_go():
                return
            file.is_used = False
            self._files[key] = kept
        # All of them wait for a flush. One sync here is better than a write that finds no descriptor.
        for kept in list(self._files.values()):
            file = kept()
            if file is not None and file is not newest and file.sync_and_let_go():
                self._files.pop(id(file), None)
                return
