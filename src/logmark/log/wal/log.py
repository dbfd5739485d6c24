"""The write-ahead log of one data directory: the file in use, those in reserve, and those that wait for a flush.

The event loop decides which file an entry goes to; threads write. A file takes one of these ways:

    created or used again -> ready -> current -> full (some recovery point is still below its entries) -> free -> …

The folder comes and goes as a whole, by a rename: it is complete when it has its name, and a clean stop takes the name
away first. While it is there, Apache Kafka refuses the data directory, because a start of Kafka would not know of the
records that only the WAL has.
"""

import errno
import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log.wal import replay, saved_entries
from logmark.log.wal.entries import align
from logmark.log.wal.files import ENTRIES_AT, SUFFIX, WalFile
from logmark.log.wal.inventory import Inventory, WalOwner
from logmark.log.wal.recovery_points import FILE_NAME, FOLDER, LOG_STARTS, RecoveryPoint, RecoveryPoints

__all__ = ["FOLDER", "UNFINISHED", "WalLimits", "WriteAheadLog", "remove", "remove_unfinished"]

# What a rename on the way to or from the final name, or the clean-up after a crash, may leave.
UNFINISHED = (FOLDER + ".new", FOLDER + ".old")
# A flush begins when this share of the bytes is in use, so that the files come back before they are missed.
_PRESSURE = 4


class WalLimits(NamedTuple):
    """How large the WAL may become, and how large its files are."""

    bytes_max: int = 256 * 1024 * 1024
    file_bytes: int = 16 * 1024 * 1024
    # Small, because a start waits for it; the next ones are made in the background.
    first_file_bytes: int = 1024 * 1024


class WriteAheadLog:
    """The files of the WAL. To be used on the event loop, except where a method says otherwise."""

    def __init__(
        self, directory: str, directory_id: bytes, files: FileSystem, limits: WalLimits | None = None
    ) -> None:
        self.folder = f"{directory}/{FOLDER}"
        self.next_number = 1
        self._directory = directory
        # Of this WAL: files of another one, also of an earlier run, do not fit it.
        self.id = secrets.token_bytes(len(directory_id))
        self._files = files
        self._bytes_max, self._file_bytes, self._first_file_bytes = limits or WalLimits()
        self._ready: deque[WalFile] = deque()
        self._current: WalFile | None = None
        self._full: deque[WalFile] = deque()
        # The bytes of the full files.
        self._used_bytes = 0
        self._free: list[WalFile] = []
        self._inventory = Inventory(WalOwner(directory_id, self.id), files)
        self._sequence = 0
        self._names = 0
        self._bytes = 0

    @property
    def is_open(self) -> bool:
        return self._current is not None

    def create(self, points: Mapping[bytes, RecoveryPoint], log_starts: bytes = b"") -> None:
        """Make the folder with its first file, and the log starts if there are any; blocks until it is durable."""
        remove_unfinished(self._directory, self._files)
        new = f"{self._directory}/{UNFINISHED[0]}"
        self._files.mkdir(new)
        first = self._new_file(new, self._first_file_bytes)
        first.create(self.id, self._next_sequence())
        self._files.write(f"{new}/{FILE_NAME}", self._points(self.next_number, points))
        if log_starts:
            self._files.write(f"{new}/{LOG_STARTS}", log_starts)
        self._inventory.begin(new, os.path.basename(first.path), first.capacity)
        self._files.sync_directory(new)
        # The rename keeps the descriptor valid; `is_in_place` needs the new path.
        self._files.replace(new, self.folder)
        try:
            self._files.sync_directory(self._directory)
        except OSError:
            # Nothing is in it yet: the next attempt creates it again.
            first.close()
            self._files.replace(self.folder, new)
            raise
        first.path = f"{self.folder}/{first.path.rpartition('/')[2]}"
        assert first.file is not None
        first.file.path = first.path
        self._current = first
        self._bytes = first.capacity

    def _new_file(self, folder: str, capacity: int) -> WalFile:
        self._names += 1
        return WalFile(f"{folder}/{self._names:04d}{SUFFIX}", capacity, self._files)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _points(self, first_entry: int, points: Mapping[bytes, RecoveryPoint]) -> bytes:
        return RecoveryPoints(self.id, first_entry, points).encode()

    # Writing

    def file_for(self, size: int) -> WalFile | None:
        """Return the file that the next entry goes to, or None while there is none with room for it."""
        current = self._current
        assert current is not None
        if current.has_room_for(size):
            return current
        if not self._ready or not self._ready[0].has_room_for(size):
            return None
        # Everything in it is durable. It is opened again when it is used again: a large WAL has many files.
        current.close()
        self._full.append(current)
        self._used_bytes += current.capacity
        self._current = self._ready.popleft()
        return self._current

    @property
    def is_pressed(self) -> bool:
        """Whether so much is in use that the partitions should be flushed."""
        if self._used_bytes * _PRESSURE >= self._bytes_max:
            return True
        return bool(self._full) and not self._may_grow(self._file_bytes) and not self._free

    def _may_grow(self, size: int) -> bool:
        """Return whether one more file keeps to the limit; for one of odd size only full files count: it is removed."""
        return (self._bytes if size == self._file_bytes else self._used_bytes) + size <= self._bytes_max

    def reserve(self, size: int = 0) -> tuple[WalFile, Callable[[], None]] | None:
        """Return the next file and the job that makes it ready, if one is needed and may be had.

        The job runs in a thread. Give the file to `add_ready` after it, or to `forget_reserved` if it failed.
        """
        if self._ready and not size:
            return None
        wanted = max(self._file_bytes, align(ENTRIES_AT + size))
        if self._ready:
            if self._ready[0].capacity >= wanted:
                return None
            # One entry is larger than the files are; the file in reserve waits for the next.
            self._free.append(self._ready.popleft())
        file = next((file for file in self._free if file.capacity >= wanted), None)
        if file is not None:
            self._free.remove(file)
        elif self._full and not self._may_grow(wanted):
            return None
        else:
            file = self._new_file(self.folder, wanted)
            self._bytes += wanted
            # A file that no entry waits for yet leaves as much space as it takes to the partitions.
            free_bytes = wanted if size else 2 * wanted
            return file, partial(self._create, file, self._next_sequence(), free_bytes)
        return file, partial(file.begin, self.id, self._next_sequence())

    def _create(self, file: WalFile, sequence: int, free_bytes: int) -> None:
        if self._files.free_bytes(self.folder) < free_bytes:
            # Not tried: while the file grew to the end of the disk, every other write would fail.
            reason = f"No space left on device: the next file needs {free_bytes} free bytes"
            raise OSError(errno.ENOSPC, reason, file.path)
        name = os.path.basename(file.path)
        may_be_listed = False
        try:
            file.create(self.id, sequence)
            may_be_listed = True
            self._inventory.add(self.folder, name, file.capacity)
        except OSError:
            file.header = None
            # A file that could not be filled must not hold the space that others need. But one that the inventory names
            # must be there after a crash.
            with suppress(OSError, Malformed):
                if may_be_listed:
                    self._inventory.undo_add(self.folder, name)
                self._files.remove(file.path)
            raise

    def add_ready(self, file: WalFile) -> None:
        """Take over a file that `reserve` has made ready."""
        self._ready.append(file)

    def forget_reserved(self, file: WalFile, *, is_usable: bool = False) -> None:
        """Take note that a file could not be made ready; one that was used before stays free if it is usable."""
        file.close()
        if is_usable and file.header is not None:
            self._free.append(file)
        else:
            self._bytes -= file.capacity

    # Recovery points

    def write_points(self, first_entry: int, points: Mapping[bytes, RecoveryPoint]) -> None:
        """Make the recovery points durable; to be called in a thread, by one at a time.

        Raises FileNotFoundError if another directory has the path of this one: its recovery points are not ours.
        """
        current = self._current
        if current is not None and not current.is_in_place():
            raise FileNotFoundError(errno.ENOENT, "it was removed or replaced while the broker ran", current.path)
        self._files.write_atomically(f"{self.folder}/{FILE_NAME}", self._points(first_entry, points))

    def release(self, first_entry: int) -> list[WalFile]:
        """Free the files below an entry, and return those that are not to be kept, for `discard`.

        The recovery points that allow it are durable.
        """
        dropped = []
        while self._full and self._full[0].last_number < first_entry:
            file = self._full.popleft()
            self._used_bytes -= file.capacity
            if file.capacity == self._file_bytes:
                self._free.append(file)
            else:
                self._bytes -= file.capacity
                dropped.append(file)
        return dropped

    def discard(self, dropped: list[WalFile]) -> None:
        """Remove files of an odd size; to be called in a thread, and again if it fails."""
        for file in dropped:
            file.close()
        self._inventory.remove(self.folder, *(os.path.basename(file.path) for file in dropped))
        for file in dropped:
            with suppress(FileNotFoundError):
                self._files.remove(file.path)

    def rewrite(self, key: bytes, folder: str, point: RecoveryPoint, end: int, is_saved: Callable[[], object]) -> None:
        """Write what a partition has in the WAL to its segments again; to be called in a thread.

        Its entries are saved aside first, and `is_saved` is called then: the WAL need not keep them any more.
        """
        runs = replay.runs_above(self._directory, key, point, end, self._files)
        if runs:
            path = saved_entries.path_of(self.folder, key)
            # While it is replaced, it is not missed.
            self._inventory.remove(self.folder, os.path.basename(path))
            saved_entries.write(self.folder, key, runs, self.id, self._files)
            self._inventory.add(self.folder, os.path.basename(path), self._files.size(path))
        is_saved()
        replay.rewrite(folder, point, runs, self._files)

    def remove_saved(self, key: bytes) -> None:
        """Remove the saved entries of a partition whose recovery point is above them."""
        path = saved_entries.path_of(self.folder, key)
        self._inventory.remove(self.folder, os.path.basename(path))
        with suppress(FileNotFoundError):
            self._files.remove(path)

    # The end

    def close(self) -> None:
        """Give the descriptors back and leave everything on disk as it is."""
        for file in (*self._ready, *self._full, *self._free, *([self._current] if self._current else [])):
            file.close()

    def remove(self) -> None:
        """Take the folder away at a clean stop: everything is in the partitions' own files."""
        self.close()
        remove(self._directory, self._files)
        self._current = None


def remove(directory: str, files: FileSystem) -> None:
    """Take the WAL of a directory away, durably, as one step and then for good."""
    remove_unfinished(directory, files)
    old = f"{directory}/{UNFINISHED[1]}"
    files.replace(f"{directory}/{FOLDER}", old)
    files.sync_directory(directory)
    _remove_folder(old, files)


def remove_unfinished(directory: str, files: FileSystem) -> None:
    """Remove what a crash left of a folder that did not have its name yet, or not any more."""
    left = [path for name in UNFINISHED if files.exists(path := f"{directory}/{name}")]
    if left:
        # After a kill a name may be in memory only: a power loss now would give the WAL its name back, without files.
        files.sync_directory(directory)
    for path in left:
        _remove_folder(path, files)


def _remove_folder(path: str, files: FileSystem) -> None:
    for name in files.listdir(path):
        files.remove(f"{path}/{name}")
    files.rmdir(path)
