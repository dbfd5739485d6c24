"""The inventory of a WAL: whose it is, which files belong to it, and how large each was made.

A file that is missing or cut short looks like one that was never there: recovery would take what it held for records
that nobody had acknowledged. So a file is in the inventory, durably, before anything in it counts, and out of it before
it is removed. Files are used again under their names, so the inventory seldom changes.

Every WAL has an id of its own, which all of its files repeat: a file of an earlier run's WAL that somebody puts back
would cut records, or bring deleted ones back.
"""

import errno
import struct
import threading
from collections.abc import Mapping
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed, UserError
from logmark.wire import columns

FILE_NAME = "inventory"
_OWNER = "owner"
_CHECKSUM = struct.Struct(">I")


class WalOwner(NamedTuple):
    """The data directory that a WAL belongs to, and the WAL's own id."""

    directory_id: bytes
    wal_id: bytes


class Listed(NamedTuple):
    """What an inventory says: whose the WAL is, if it is not of an older version, and the size of each file."""

    owner: WalOwner | None
    sizes: Mapping[str, int]


def encode(owner: WalOwner, sizes: Mapping[str, int]) -> bytes:
    """Return the bytes of the file: a line with the ids, one with size and name for each file, and a checksum."""
    lines = [f"{_OWNER} {owner.directory_id.hex()} {owner.wal_id.hex()}"]
    lines += [f"{size} {name}" for name, size in sorted(sizes.items())]
    content = "".join(f"{line}\n" for line in lines).encode()
    return content + _CHECKSUM.pack(columns.crc32c(content, 0, len(content)))


def decode(data: bytes) -> Listed:
    """Return what the inventory says; raises Malformed if the bytes are not intact."""
    content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.pack(columns.crc32c(content, 0, len(content))) != checksum:
        raise Malformed("its inventory has a wrong checksum")
    lines = [line.split(" ", 2) for line in content.decode().splitlines()]
    owner = None
    if lines and lines[0][0] == _OWNER:
        _, directory_id, wal_id = lines.pop(0)
        owner = WalOwner(bytes.fromhex(directory_id), bytes.fromhex(wal_id))
    return Listed(owner, {name: int(size) for size, name in lines})


def read_wal_id(folder: str, files: FileSystem) -> bytes | None:
    """Return the id of the WAL in a folder; None if it is of an older version. Raises Malformed if nobody can tell."""
    try:
        owner = decode(files.read(f"{folder}/{FILE_NAME}")).owner
    except FileNotFoundError as error:
        raise Malformed(f"the write-ahead log has no {FILE_NAME}") from error
    return None if owner is None else owner.wal_id


class Inventory:
    """The inventory of a WAL in use. Threads may change it at once."""

    def __init__(self, owner: WalOwner, files: FileSystem) -> None:
        self._owner = owner
        self._files = files
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, folder: str, name: str, size: int) -> None:
        """Write the first inventory, of one file, to a folder whose names the caller syncs."""
        self._sizes = {name: size}
        self._files.write(f"{folder}/{FILE_NAME}", encode(self._owner, self._sizes))

    def add(self, folder: str, name: str, size: int) -> None:
        """Add a file, durably."""
        with self._lock:
            self._write(folder, {**self._sizes, name: size})

    def remove(self, folder: str, *names: str) -> None:
        """Take files out, durably; they may be removed after that."""
        with self._lock:
            if any(name in self._sizes for name in names):
                self._write(folder, {name: size for name, size in self._sizes.items() if name not in names})

    def undo_add(self, folder: str, name: str) -> None:
        """Take out a file whose addition failed: it may be in the inventory on disk all the same."""
        with self._lock:
            if name in decode(self._files.read(f"{folder}/{FILE_NAME}")).sizes:
                self._write(folder, self._sizes)

    def _write(self, folder: str, sizes: dict[str, int]) -> None:
        path = f"{folder}/{FILE_NAME}"
        try:
            wal_id = read_wal_id(folder, self._files)
        except Malformed as error:
            raise OSError(errno.EIO, str(error), path) from error
        if wal_id != self._owner.wal_id:
            # Another directory has taken the path since this change began: it keeps its own inventory.
            raise OSError(errno.ESTALE, "it belongs to another write-ahead log", path)
        self._files.write_atomically(path, encode(self._owner, sizes))
        self._sizes = sizes


def check(folder: str, files: FileSystem) -> WalOwner | None:
    """Return whose the WAL in a folder is; None if it is of an older version.

    Raises UserError if a file of it is missing, or is shorter than it was made.
    """
    try:
        owner, sizes = decode(files.read(f"{folder}/{FILE_NAME}"))
    except (Malformed, FileNotFoundError) as error:
        raise UserError(_describe(folder, str(error))) from None
    for name, size in sizes.items():
        path = f"{folder}/{name}"
        if not files.exists(path):
            raise UserError(_describe(folder, f"{name} is missing"))
        if files.size(path) < size:
            raise UserError(_describe(folder, f"{name} has {files.size(path)} bytes and was made with {size}"))
    return owner


def _describe(folder: str, problem: str) -> str:
    return (
        f"The write-ahead log {folder} is not whole: {problem}. It may hold acknowledged records that are not yet in "
        "the segments. Nothing was changed. Put the missing file back, or restore a backup. If it is gone for good, "
        "move the whole folder away: a start then keeps what the segments hold."
    )
