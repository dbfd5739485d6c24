"""A disk on top of another one: reads go through, changes stay in a temporary folder and are gone at the end.

What is to be tried out without a change, such as a recovery, runs on it as it would on the disk itself. Nobody may
write to the disk below meanwhile.
"""

import errno
import os
import posixpath
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from types import TracebackType
from typing import Self

from logmark.disk.file_system import Bytes, FileSystem, Lock


class _Content:
    """A file's bytes: those of a file below, up to a limit, and what was written over them."""

    __slots__ = ("base", "base_size", "extents", "is_changed", "scratch", "size")

    def __init__(self, scratch: str, base: str | None = None, size: int = 0) -> None:
        self.base = base
        # So many bytes of the file below count; a truncation lowers it for good.
        self.base_size = size
        self.size = size
        self.is_changed = base is None
        self.scratch = scratch
        # The stretches that lie in the scratch file, at their own positions, in order and apart from each other.
        self.extents: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Note that a stretch lies in the scratch file."""
        self.is_changed = True
        self.size = max(self.size, end)
        if self.extents and self.extents[-1][0] <= start <= self.extents[-1][1]:
            self.extents[-1] = (self.extents[-1][0], max(end, self.extents[-1][1]))
            return
        touching = [one for one in self.extents if one[0] <= end and start <= one[1]]
        apart = [one for one in self.extents if one not in touching]
        start, end = min([start, *(one[0] for one in touching)]), max([end, *(one[1] for one in touching)])
        self.extents = sorted([*apart, (start, end)])

    def truncate(self, size: int) -> None:
        """Forget what lies behind a size, or grow by zeros."""
        self.is_changed = True
        self.size = size
        self.base_size = min(self.base_size, size)
        self.extents = [(start, min(end, size)) for start, end in self.extents if start < size]


class OverlayFile:
    """One open file of an overlay; it holds no descriptor."""

    # The kernel cannot write it by itself: bytes reach the medium by a write and a sync.
    direct_descriptor = None

    def __init__(self, path: str, content: _Content, base: FileSystem) -> None:
        self.path = path
        self._content = content
        self._base = base

    def pread(self, size: int, at: int) -> bytes:
        content = self._content
        end = min(at + size, content.size)
        if end <= at:
            return b""
        data = b""
        if content.base is not None and at < content.base_size:
            with closing(self._base.open(content.base)) as file:
                data = file.pread(min(end, content.base_size) - at, at)
        if not any(start < end and at < stop for start, stop in content.extents):
            return data.ljust(end - at, b"\0")
        merged = bytearray(data.ljust(end - at, b"\0"))
        descriptor = os.open(content.scratch, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, stop in content.extents:
                start, stop = max(start, at), min(stop, end)
                while start < stop:
                    found = os.pread(descriptor, stop - start, start)
                    if not found:
                        raise OSError(errno.EIO, os.strerror(errno.EIO), content.scratch)
                    merged[start - at : start - at + len(found)] = found
                    start += len(found)
        finally:
            os.close(descriptor)
        return bytes(merged)

    def pwrite(self, data: Bytes, at: int) -> None:
        view, position = memoryview(data), at
        descriptor = os.open(self._content.scratch, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while len(view):
                written = os.pwrite(descriptor, view, position)
                view, position = view[written:], position + written
        finally:
            os.close(descriptor)
        self._content.add(at, position)

    def truncate(self, size: int) -> None:
        self._content.truncate(size)

    def size(self) -> int:
        return self._content.size

    def sync(self) -> None:
        """Do nothing: what is tried out need not last."""

    def is_in_place(self) -> bool:
        return True

    def hold_open(self) -> "OverlayFile":
        """Return itself: it holds no descriptor that could be lost."""
        return self

    def size_if_deleted(self) -> int:
        """Return 0: it holds no descriptor."""
        return 0

    def close(self) -> None:
        """Do nothing: there is no descriptor to give back."""


class OverlayFileSystem:
    """The files of another file system with changes that only this object sees; close it to forget them."""

    def __init__(self, base: FileSystem) -> None:
        self.base = base
        # Made with the first change.
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        # Files that were opened to be written, made or removed (None).
        self._contents: dict[str, _Content | None] = {}
        # Folders that were made (True) or removed.
        self._folders: dict[str, bool] = {}
        # By folder the names that came (True) or went.
        self._names: dict[str, dict[str, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget every change."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def is_changed(self, path: str) -> bool:
        """Return whether a file is not the one below any more."""
        if path in self._contents:
            content = self._contents[path]
            return content is None or content.is_changed or content.base != path
        return False

    # Names

    def exists(self, path: str) -> bool:
        if path in self._contents:
            return self._contents[path] is not None
        return self._folders[path] if path in self._folders else self.base.exists(path)

    def is_directory(self, path: str) -> bool:
        if path in self._folders:
            return self._folders[path]
        return path not in self._contents and self.base.is_directory(path)

    def listdir(self, path: str) -> Sequence[str]:
        if not self.is_directory(path):
            raise _missing(path)
        names = set(self.base.listdir(path)) if self.base.is_directory(path) else set()
        for name, is_there in self._names.get(path, {}).items():
            (names.add if is_there else names.discard)(name)
        return sorted(names)

    def mkdir(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._enter(path, is_there=True)
        self._folders[path] = True

    def replace(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise _missing(source)
        if self.is_directory(source):
            self.mkdir(target)
            for name in self.listdir(source):
                self.replace(f"{source}/{name}", f"{target}/{name}")
            self.rmdir(source)
            return
        self._enter(target, is_there=True)
        content = self._content(source)
        self.remove(source)
        self._contents[target] = content
        self._enter(target, is_there=True)

    def remove(self, path: str) -> None:
        if not self.exists(path):
            raise _missing(path)
        self._contents[path] = None
        self._enter(path, is_there=False)

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._folders[path] = False
        self._enter(path, is_there=False)

    def _enter(self, path: str, *, is_there: bool) -> None:
        folder, name = posixpath.split(path)
        if is_there and not self.is_directory(folder):
            raise _missing(path)
        self._names.setdefault(folder, {})[name] = is_there

    # Files

    def _content(self, path: str) -> _Content:
        """Return the content of a file that is there."""
        known = self._contents.get(path)
        if known is None:
            if not self.exists(path):
                raise _missing(path)
            known = self._contents[path] = self._new(path, self.base.size(path))
        return known

    def _new(self, base: str | None = None, size: int = 0) -> _Content:
        self._count += 1
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="logmark-")
        return _Content(f"{self._scratch.name}/{self._count}", base, size)

    def open(self, path: str, *, create: bool = False) -> OverlayFile:
        if create and not self.exists(path):
            self._enter(path, is_there=True)
            self._contents[path] = self._new()
        return OverlayFile(path, self._content(path), self.base)

    def open_direct(self, path: str) -> OverlayFile:
        return self.open(path)

    def read(self, path: str) -> bytes:
        if self._contents.get(path) is None and self.exists(path):
            return self.base.read(path)
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        self._enter(path, is_there=True)
        self._contents[path] = self._new()
        if data:
            self.open(path).pwrite(data, 0)

    def write_atomically(self, path: str, data: Bytes) -> None:
        self.write(path, data)

    def size(self, path: str) -> int:
        known = self._contents.get(path)
        if known is not None:
            return known.size
        if not self.exists(path):
            raise _missing(path)
        return self.base.size(path)

    def modified_ms(self, path: str) -> int:
        known = self._contents.get(path)
        if known is not None and known.is_changed:
            return time.time_ns() // 1_000_000
        if not self.exists(path):
            raise _missing(path)
        return self.base.modified_ms(path if known is None or known.base is None else known.base)

    def change_stamp(self, path: str) -> str:
        if self.is_changed(path):
            return ""
        return self.base.change_stamp(path)

    def sync_file(self, path: str) -> None:
        """Do nothing: what is tried out need not last."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: what is tried out need not last."""

    def free_bytes(self, path: str) -> int:
        """Return more than any write needs: the overlay takes no space of the disk."""
        return 1 << 60

    def lock(self, path: str) -> Lock | None:
        """Return the lock of the file below: it is the disk below that nobody may write to."""
        return self.base.lock(path)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
