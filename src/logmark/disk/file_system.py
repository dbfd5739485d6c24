"""The file-system port: what the log asks of a disk, and the real disk.

A file is durable when it and its directory entry have been synced; nothing else is assumed of the disk.
"""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Protocol

from logmark import private_files
from logmark.disk.descriptors import OUT_OF_DESCRIPTORS, Descriptor, OpenFiles

Bytes = bytes | bytearray | memoryview


class OpenFile(Protocol):
    """A file that stays open while it is held, whatever becomes of its name."""

    def pread(self, size: int, at: int) -> bytes: ...

    def size_if_deleted(self) -> int: ...


class File(Protocol):
    """One open file, read and written by position."""

    path: str

    @property
    def direct_descriptor(self) -> int | None: ...

    def pread(self, size: int, at: int) -> bytes: ...

    def pwrite(self, data: Bytes, at: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None: ...

    def is_in_place(self) -> bool: ...

    def hold_open(self) -> OpenFile: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held until it is released."""

    @property
    def inheritable(self) -> Sequence[int]:
        """The descriptors through which a child process holds the lock, too, until it ends."""
        ...

    def is_in_place(self) -> bool:
        """Return whether the path of the locked folder still leads to it: it was neither removed nor replaced."""
        ...

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Everything that the log does with names and files."""

    def open(self, path: str, *, create: bool = False) -> File: ...

    def open_direct(self, path: str) -> File: ...

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None: ...

    def write_atomically(self, path: str, data: Bytes) -> None: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def change_stamp(self, path: str) -> str: ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def listdir(self, path: str) -> Sequence[str]: ...

    def mkdir(self, path: str) -> None: ...

    def replace(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_file(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> Lock | None: ...


def strongest_sync(platform: str, *, full_sync: int | None) -> Callable[[int], None]:
    """Return the call that puts a file's bytes on the medium, the strongest that a platform has.

    macOS's fsync leaves the bytes in the drive's own cache; only F_FULLFSYNC empties that. Linux's fdatasync
    flushes the drive and writes the file's size too, which is all the metadata that reading back needs.
    """
    if platform == "darwin" and full_sync is not None:
        command = full_sync

        def sync_fully(descriptor: int) -> None:
            try:
                fcntl.fcntl(descriptor, command)
            except OSError as error:
                # Some network and foreign file systems do not know the command; they get what they know.
                if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                    raise
                os.fsync(descriptor)

        return sync_fully
    if platform.startswith("linux"):
        return os.fdatasync
    return os.fsync


def no_sync(descriptor: int) -> None:
    """Leave the bytes to the operating system."""


class RealFile:
    """An open file of the operating system; its descriptor may be given back while nobody uses it."""

    __slots__ = (
        "__weakref__", "_among", "_descriptor", "_error", "_identity", "_is_direct", "_sync", "_synced", "_writes",
        "is_used", "path",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        descriptor: int,
        sync: Callable[[int], None],
        among: OpenFiles | None = None,
        *,
        is_direct: bool = False,
    ) -> None:
        self.path = path
        self._is_direct = is_direct
        self._identity: tuple[int, int] | None = None
        self.is_used = True
        self._descriptor: Descriptor | None = Descriptor(descriptor)
        self._sync = sync
        self._among = among
        self._writes = self._synced = 0
        self._error: OSError | None = None
        if among is not None:
            among.add(self)

    @property
    def direct_descriptor(self) -> int | None:
        """The descriptor, if a write of whole blocks to it is on the medium as soon as it ends; else None."""
        descriptor = self._descriptor
        return descriptor.number if self._is_direct and descriptor is not None else None

    def _open_again(self) -> Descriptor:
        if self._among is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        self._descriptor = opened = Descriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        self._among.add(self)
        return opened

    def release_descriptor(self) -> bool:
        """Close the descriptor until the next use, unless bytes are not synced yet; return whether it did."""
        if self._writes != self._synced and self._sync is not no_sync:
            return False
        self._descriptor = None
        return True

    def sync_and_release_descriptor(self) -> bool:
        """Sync unsynced bytes and give the descriptor back; `sync` raises an error of this the next time."""
        if self._descriptor is not None:
            try:
                self.sync()
            except OSError as error:
                self._error = error
                return False
            self._descriptor = None
        return True

    def pread(self, size: int, at: int) -> bytes:
        descriptor = self._descriptor or self._open_again()
        self.is_used = True
        return descriptor.pread(size, at)

    def hold_open(self) -> Descriptor:
        """Return the open file itself, which is there until nobody holds it, whatever becomes of its name."""
        return self._descriptor or self._open_again()

    def pwrite(self, data: Bytes, at: int) -> None:
        descriptor = self._descriptor or self._open_again()
        self.is_used = True
        self._writes += 1
        written = os.pwrite(descriptor.number, data, at)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            more = os.pwrite(descriptor.number, view[written:], at + written)
            if not more:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            written += more

    def truncate(self, size: int) -> None:
        descriptor = self._descriptor or self._open_again()
        self._writes += 1
        os.ftruncate(descriptor.number, size)

    def size(self) -> int:
        return os.fstat((self._descriptor or self._open_again()).number).st_size

    def sync(self) -> None:
        descriptor = self._descriptor or self._open_again()
        if self._error is not None:
            # The kernel reports a failed write only once.
            raise self._error
        writes = self._writes
        self._sync(descriptor.number)
        self._synced = writes

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this file: neither it nor a folder above was removed or replaced."""
        # Held here: another thread that needs a descriptor may take this one away at any time.
        descriptor = self._descriptor
        if descriptor is None:
            return True
        if self._identity is None:
            mine = os.fstat(descriptor.number)
            self._identity = (mine.st_ino, mine.st_dev)
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (found.st_ino, found.st_dev) == self._identity

    def close(self) -> None:
        self._descriptor = None
        if self._among is not None:
            self._among.remove(self)
            self._among = None


# The process that compacts ends with its broker, within milliseconds even on a busy machine.
CHILD_WAIT_S = 10.0
CHILD_WAIT_STEP_S = 0.01

# The kernel's lock belongs to the process, so a second broker in the same process would be let in without this.
_locked_here: set[str] = set()


def is_locked_here(path: str) -> bool:
    """Return whether this process holds the lock on a file; to open and close that file would drop it."""
    return os.path.realpath(path) in _locked_here


class RealLock:
    """The operating system's lock on a file, the kind that Apache Kafka takes, and one on the folder it lies in."""

    def __init__(self, path: str, file: int, folder: int) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._descriptors: Sequence[int] = (file, folder)
        self._identity: tuple[int, int] | None = None

    @property
    def inheritable(self) -> Sequence[int]:
        """The descriptor of the folder's lock."""
        # The lock on a file belongs to one process; the lock on the folder to all that have its open descriptor.
        return self._descriptors[1:]

    def is_in_place(self) -> bool:
        """Return whether the path of the locked folder still leads to it: it was neither removed nor replaced."""
        if self._identity is None:
            mine = os.fstat(self._descriptors[1])
            self._identity = (mine.st_ino, mine.st_dev)
        try:
            found = os.stat(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_ino, found.st_dev) == self._identity

    def release(self) -> None:
        if self._descriptors:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = ()
            _locked_here.discard(self._path)


def lock_file(descriptor: int, *, is_shared: bool = False) -> bool:
    """Take the lock on an open file; return False if another process holds it."""
    try:
        fcntl.lockf(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def lock_folder(path: str, *, is_shared: bool = False) -> int | None:
    """Return a descriptor that holds the lock on a folder, or None if another holds it.

    A file can be deleted and made again under the holder of its lock; the folder with the data in it cannot. Take the
    lock on the file first: a process that holds only the folder is a child of a killed broker, and about to end.
    That is worth a wait.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = monotonic() + CHILD_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
                # Some network file systems have no such lock; the lock on the file remains.
                return descriptor
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK):
                os.close(descriptor)
                raise
        else:
            return descriptor
        if monotonic() > deadline:
            os.close(descriptor)
            return None
        sleep(CHILD_WAIT_STEP_S)


def require_regular(descriptor: int, path: str) -> os.stat_result:
    """Return the status of an open file; close it and raise OSError if it is a pipe, a device or a folder.

    Open it with O_NONBLOCK: otherwise opening a pipe that nobody writes to never ends.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return status


class RealFileSystem:
    """The operating system's files; with `sync=False` it never waits for the medium."""

    def __init__(self, *, sync: bool = True, open_files: OpenFiles | None = None) -> None:
        self.is_syncing = sync
        full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
        self._sync = strongest_sync(sys.platform, full_sync=full_sync) if sync else no_sync
        # A directory has no data to sync: only fsync is defined for it.
        self._sync_directory = os.fsync if sync else no_sync
        self._among = OpenFiles() if open_files is None else open_files

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        descriptor = private_files.open_descriptor(path, flags)
        require_regular(descriptor, path)
        return RealFile(path, descriptor, self._sync, self._among)

    def open_direct(self, path: str) -> RealFile:
        """Open a file for whole blocks of 4 KiB that go past the page cache where the file system has that.

        A write is on the medium when it returns, and `sync` has nothing left to do. It can only be written to.
        """
        if self.is_syncing and hasattr(os, "O_DIRECT") and sys.platform.startswith("linux"):
            try:
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC
                return RealFile(path, os.open(path, flags), no_sync, is_direct=True)
            except OSError as error:
                # Some file systems do not know O_DIRECT: there the page cache and a sync do the same, with more work.
                if error.errno in OUT_OF_DESCRIPTORS:
                    raise
        return RealFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), self._sync)

    def read(self, path: str) -> bytes:
        # Without Python's own file object, which asks the system three things more: a start reads many small files.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        size = require_regular(descriptor, path).st_size
        try:
            data = os.read(descriptor, size + 1)
            if len(data) == size:
                return data
            parts = [data]
            while more := os.read(descriptor, 1 << 20):
                parts.append(more)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        descriptor = private_files.open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        file = RealFile(path, descriptor, self._sync)
        try:
            if data:
                file.pwrite(data, 0)
            if sync:
                file.sync()
        finally:
            file.close()

    def write_atomically(self, path: str, data: Bytes) -> None:
        self.write(path + ".tmp", data)
        os.replace(path + ".tmp", path)
        self.sync_directory(os.path.dirname(path))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def change_stamp(self, path: str) -> str:
        """Return a text that differs as soon as the file is written to or replaced, and after a copy."""
        found = os.stat(path)
        return f"{found.st_ino}:{found.st_ctime_ns}"

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> Sequence[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        private_files.make_folder(path)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_file(self, path: str) -> None:
        if not self.is_syncing:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: str) -> None:
        if not self.is_syncing:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._sync_directory(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes this user may still write to the file system of a path."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> RealLock | None:
        """Return the lock on a file, or None if another holds it."""
        real = os.path.realpath(path)
        # Checked before the file is opened: closing any descriptor of it would drop this process's own lock.
        if real in _locked_here:
            return None
        descriptor = private_files.open_descriptor(real, os.O_RDWR | os.O_CREAT)
        try:
            folder = lock_folder(os.path.dirname(real)) if lock_file(descriptor) else None
        except BaseException:
            os.close(descriptor)
            raise
        if folder is None:
            os.close(descriptor)
            return None
        _locked_here.add(real)
        return RealLock(real, descriptor, folder)
