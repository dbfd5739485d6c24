"""The disk for programs that only look: nothing can be written through it, and a read-only directory is enough."""

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from logmark.disk.file_system import (
    Bytes,
    RealFile,
    RealFileSystem,
    is_locked_here,
    lock_file,
    lock_folder,
    no_sync,
    require_regular,
)


class SharedLock:
    """A lock that other readers may hold too, and no broker."""

    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors

    @property
    def inheritable(self) -> Sequence[int]:
        return ()

    def is_in_place(self) -> bool:
        """Return True: a reader changes no directory, also not one that has the path of another."""
        return True

    def release(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()


class ReadOnlyFileSystem(RealFileSystem):
    """The operating system's files, for reading only."""

    def __init__(self) -> None:
        super().__init__(sync=False)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        if create:
            _refuse(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        require_regular(descriptor, path)
        return RealFile(path, descriptor, no_sync)

    def lock(self, path: str) -> SharedLock | None:  # type: ignore[override]
        """Return a lock for reading while no broker runs; a directory without the file has no broker."""
        if is_locked_here(path):
            return None
        folder_path = os.path.dirname(os.path.realpath(path))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            require_regular(descriptor, path)
        except FileNotFoundError:
            folder = lock_folder(folder_path, is_shared=True)
            return None if folder is None else SharedLock(folder)
        try:
            folder = lock_folder(folder_path, is_shared=True) if lock_file(descriptor, is_shared=True) else None
        except BaseException:
            os.close(descriptor)
            raise
        if folder is None:
            os.close(descriptor)
            return None
        return SharedLock(descriptor, folder)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        _refuse(path)

    def write_atomically(self, path: str, data: Bytes) -> None:
        _refuse(path)

    def mkdir(self, path: str) -> None:
        _refuse(path)

    def replace(self, source: str, target: str) -> None:
        _refuse(target)

    def remove(self, path: str) -> None:
        _refuse(path)

    def rmdir(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
