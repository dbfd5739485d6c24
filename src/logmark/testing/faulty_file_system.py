"""A file system whose disk can be slow, full, broken, or lose its power: wraps a real one."""

import contextlib
import errno as errors
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from logmark.disk.file_system import Bytes, File, FileSystem, Lock, OpenFile


@dataclass(slots=True)
class _Fault:
    part: str
    errno: int
    times: int | None


@dataclass(slots=True)
class _Unsynced:
    """What a power loss may take from a file, page by page: what was written, also over what was there before."""

    # Everything behind it is not durable.
    size: int
    # Where each write began, what was written, and what that has replaced.
    writes: list[tuple[int, bytes, bytes]] = field(default_factory=list)


class FaultyFile:
    """A file that fails, waits and forgets as its file system says."""

    # The kernel cannot write it by itself: bytes reach the medium by a write and a sync.
    direct_descriptor = None

    def __init__(self, file: File, system: "FaultyFileSystem") -> None:
        self._file = file
        self._system = system

    @property
    def path(self) -> str:
        return self._file.path

    @path.setter
    def path(self, path: str) -> None:
        self._file.path = path

    def pread(self, size: int, at: int) -> bytes:
        self._system._check_open(self.path)
        return self._file.pread(size, at)

    def pwrite(self, data: Bytes, at: int) -> None:
        self._system._check_open(self.path)
        self._system._check_write(self.path)
        size = self._file.size()
        replaced = self._file.pread(min(len(data), size - at), at) if at < size else b""
        self._system._note_write(self.path, size, data, at, replaced)
        self._file.pwrite(data, at)

    def truncate(self, size: int) -> None:
        self._system._check_open(self.path)
        self._system._check_write(self.path)
        self._file.truncate(size)
        self._system._note_truncate(self.path, size)

    def size(self) -> int:
        self._system._check_open(self.path)
        return self._file.size()

    def sync(self) -> None:
        self._system._check_open(self.path)
        self._system._sync(self.path, self._file.sync)

    def is_in_place(self) -> bool:
        return self._file.is_in_place()

    def hold_open(self) -> OpenFile:
        return self._file.hold_open()

    def close(self) -> None:
        self._file.close()


class FaultyFileSystem:
    """Another file system, with faults switched on by a test; safe to use from several threads."""

    def __init__(self, files: FileSystem, *, page_bytes: int = 4096) -> None:
        self._files = files
        self._page_bytes = page_bytes
        self._guard = threading.Condition()
        self._held: list[tuple[str, int]] = []
        self._write_faults: list[_Fault] = []
        self._sync_faults: list[_Fault] = []
        self._open_faults: list[_Fault] = []
        self._removal_faults: list[_Fault] = []
        self._unsynced: dict[str, _Unsynced] = {}
        self._unnamed: set[str] = set()
        self.syncs_waiting = 0
        self.syncs_done: list[str] = []

    # Faults

    @contextlib.contextmanager
    def hold_syncs(self, part: str = "") -> Iterator[None]:
        """Hold every sync of a path that contains `part` until the block is left.

        The thread that enters the block is not held: it could never leave.
        """
        hold = (part, threading.get_ident())
        with self._guard:
            self._held.append(hold)
        try:
            yield
        finally:
            with self._guard:
                self._held.remove(hold)
                self._guard.notify_all()

    def wait_for_held_sync(self, *, timeout_s: float = 10.0) -> None:
        """Return as soon as a sync is held."""
        with self._guard:
            if not self._guard.wait_for(lambda: self.syncs_waiting > 0, timeout_s):
                raise TimeoutError("no sync came to be held")

    def fail_syncs(self, part: str = "", errno: int = errors.EIO, *, times: int | None = None) -> None:
        """Make syncs of paths that contain `part` fail, for ever or so many times."""
        with self._guard:
            self._sync_faults.append(_Fault(part, errno, times))

    def fail_writes(self, part: str = "", errno: int = errors.ENOSPC, *, times: int | None = None) -> None:
        """Make writes to paths that contain `part` fail, for ever or so many times."""
        with self._guard:
            self._write_faults.append(_Fault(part, errno, times))

    def fail_opens(self, part: str = "", errno: int = errors.EMFILE, *, times: int | None = None) -> None:
        """Make whatever may need a descriptor for a path that contains `part` fail, for ever or so many times.

        Also of files that are open: they may have given their descriptor back.
        """
        with self._guard:
            self._open_faults.append(_Fault(part, errno, times))

    def fail_removals(self, part: str = "", errno: int = errors.EPERM, *, times: int | None = None) -> None:
        """Make the removal of files whose paths contain `part` fail, for ever or so many times."""
        with self._guard:
            self._removal_faults.append(_Fault(part, errno, times))

    def heal(self) -> None:
        """End all faults."""
        with self._guard:
            self._removal_faults.clear()
            self._open_faults.clear()
            self._sync_faults.clear()
            self._write_faults.clear()

    def lose_power(self, choose: random.Random) -> None:
        """Leave on disk what was synced, and of the rest whatever chance kept: nothing, some, torn writes.

        Nothing may be open any more. A file whose directory was not synced since it was made may be gone.
        """
        with self._guard:
            unsynced, self._unsynced = self._unsynced, {}
            unnamed, self._unnamed = self._unnamed, set()
        for path in sorted(unnamed):
            if self._files.exists(path) and choose.random() < 0.5:
                if self._files.is_directory(path):
                    for name in self._files.listdir(path):
                        self._files.remove(f"{path}/{name}")
                    self._files.rmdir(path)
                else:
                    self._files.remove(path)
        for path, state in sorted(unsynced.items()):
            if self._files.exists(path):
                self._tear(path, state, choose)

    def _tear(self, path: str, state: _Unsynced, choose: random.Random) -> None:
        """Keep some pages: the kernel writes them in any order, and the file's size may be an earlier one."""
        with contextlib.closing(self._files.open(path)) as file:
            data = file.pread(file.size(), 0)
            durable = _undo(state, data)
            overwritten = [start for start in range(0, len(durable), self._page_bytes)
                           if durable[start : start + self._page_bytes]
                           != data[start : min(start + self._page_bytes, len(durable))]]  # fmt: skip
            if len(data) <= state.size and not overwritten:
                return
            kept = choose.choice(("none", "all", "some"))
            for start in overwritten:
                if kept == "none" or (kept == "some" and choose.random() < 0.5):
                    file.pwrite(durable[start : start + self._page_bytes], start)
            if len(data) <= state.size:
                return
            end = state.size if kept == "none" else choose.randint(state.size, len(data)) if kept == "some" else None
            file.truncate(len(data) if end is None else end)
            page = self._page_bytes
            for start in range(state.size // page * page, len(data), page):
                if kept == "some" and choose.random() < 0.5:
                    at, until = max(start, state.size), min(start + page, file.size())
                    if until > at:
                        file.pwrite(bytes(until - at), at)

    # What a file reports

    def _check_write(self, path: str) -> None:
        with self._guard:
            self._strike(self._write_faults, path)

    def _check_open(self, path: str) -> None:
        with self._guard:
            self._strike(self._open_faults, path)

    def _strike(self, faults: list[_Fault], path: str) -> None:
        for fault in faults:
            if fault.part in path and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                raise OSError(fault.errno, os.strerror(fault.errno), path)

    def _note_write(self, path: str, size: int, data: Bytes, at: int, replaced: bytes) -> None:
        with self._guard:
            state = self._unsynced.setdefault(path, _Unsynced(size))
            state.writes.append((at, bytes(data), replaced))

    def _note_truncate(self, path: str, size: int) -> None:
        with self._guard:
            state = self._unsynced.get(path)
            if state is not None:
                state.size = min(state.size, size)
                state.writes = [
                    (at, data[: size - at], replaced[: size - at]) for at, data, replaced in state.writes if at < size
                ]

    def _sync(self, path: str, sync: Callable[[], None]) -> None:
        with self._guard:
            state = self._unsynced.get(path)
            covered = len(state.writes) if state is not None else 0
            if self._is_held(path):
                self.syncs_waiting += 1
                self._guard.notify_all()
                self._guard.wait_for(lambda: not self._is_held(path))
                self.syncs_waiting -= 1
            self._strike(self._sync_faults, path)
        sync()
        with self._guard:
            self.syncs_done.append(path)
            state = self._unsynced.get(path)
            if state is not None:
                ends = [at + len(data) for at, data, _ in state.writes[:covered]]
                state.size = max([state.size, *ends])
                del state.writes[:covered]
                if not state.writes:
                    del self._unsynced[path]

    def _is_held(self, path: str) -> bool:
        me = threading.get_ident()
        return any(part in path and owner != me for part, owner in self._held)

    # The file system

    def open_direct(self, path: str) -> FaultyFile:
        return self.open(path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self._check_open(path)
        self._note_name(path)
        return FaultyFile(self._files.open(path, create=create), self)

    def read(self, path: str) -> bytes:
        self._check_open(path)
        return self._files.read(path)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        with contextlib.closing(self.open(path, create=True)) as file:
            file.truncate(0)
            if data:
                file.pwrite(data, 0)
            if sync:
                file.sync()

    def write_atomically(self, path: str, data: Bytes) -> None:
        self.write(path + ".tmp", data)
        self.replace(path + ".tmp", path)
        self.sync_directory(os.path.dirname(path))

    def size(self, path: str) -> int:
        return self._files.size(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def change_stamp(self, path: str) -> str:
        return self._files.change_stamp(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def listdir(self, path: str) -> Sequence[str]:
        self._check_open(path)
        return self._files.listdir(path)

    def mkdir(self, path: str) -> None:
        self._check_write(path)
        self._note_name(path)
        self._files.mkdir(path)

    def replace(self, source: str, target: str) -> None:
        self._check_write(target)
        self._files.replace(source, target)
        with self._guard:
            inside = [path for path in self._unsynced if path == source or path.startswith(source + "/")]
            for path in inside:
                self._unsynced[target + path[len(source) :]] = self._unsynced.pop(path)
            self._unnamed.discard(source)
            for path in [path for path in self._unnamed if path.startswith(source + "/")]:
                self._unnamed.remove(path)
                self._unnamed.add(target + path[len(source) :])

    def remove(self, path: str) -> None:
        with self._guard:
            self._strike(self._removal_faults, path)
        self._files.remove(path)
        with self._guard:
            self._unsynced.pop(path, None)
            self._unnamed.discard(path)

    def rmdir(self, path: str) -> None:
        self._files.rmdir(path)

    def sync_file(self, path: str) -> None:
        with contextlib.closing(self.open(path)) as file:
            file.sync()

    def sync_directory(self, path: str) -> None:
        self._check_open(path)
        with self._guard:
            named = {name for name in self._unnamed if os.path.dirname(name) == path}
        self._sync(path, lambda: self._files.sync_directory(path))
        with self._guard:
            self._unnamed -= named

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def lock(self, path: str) -> Lock | None:
        return self._files.lock(path)

    def _note_name(self, path: str) -> None:
        if not self._files.exists(path):
            with self._guard:
                self._unnamed.add(path)


def _undo(state: _Unsynced, data: bytes) -> bytes:
    """Return what is durable of a file below its synced size: its bytes without the writes that no sync covered."""
    durable = bytearray(data[: state.size])
    for at, _, replaced in reversed(state.writes):
        if at < len(durable):
            durable[at : at + len(replaced)] = replaced[: len(durable) - at]
    return bytes(durable)
