"""The inventory of a WAL: which files belong to it, and how large each was made.

A file that is missing or cut short looks like one that was never there: recovery would take what it held for records
that nobody had acknowledged. So a file is in the inventory, durably, before anything in it counts, and out of it before
it is removed. Files are used again under their names, so the inventory seldom changes.
"""

import struct
import threading
from collections.abc import Mapping

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed, UserError
from logmark.wire import columns

FILE_NAME = "inventory"
_CHECKSUM = struct.Struct(">I")


def encode(sizes: Mapping[str, int]) -> bytes:
    """Return the bytes of the file: a line with size and name for each file, and a checksum."""
    content = "".join(f"{size} {name}\n" for name, size in sorted(sizes.items())).encode()
    return content + _CHECKSUM.pack(columns.crc32c(content, 0, len(content)))


def decode(data: bytes) -> dict[str, int]:
    """Return the size of each file by its name; raises Malformed if the bytes are not intact."""
    content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.pack(columns.crc32c(content, 0, len(content))) != checksum:
        raise Malformed("its inventory has a wrong checksum")
    lines = (line.split(" ", 1) for line in content.decode().splitlines())
    return {name: int(size) for size, name in lines}


class Inventory:
    """The inventory of a WAL in use. Threads may change it at once."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, folder: str, name: str, size: int) -> None:
        """Write the first inventory, of one file, to a folder whose names the caller syncs."""
        self._sizes = {name: size}
        self._files.write(f"{folder}/{FILE_NAME}", encode(self._sizes))

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
            if name in decode(self._files.read(f"{folder}/{FILE_NAME}")):
                self._write(folder, self._sizes)

    def _write(self, folder: str, sizes: dict[str, int]) -> None:
        self._files.write_atomically(f"{folder}/{FILE_NAME}", encode(sizes))
        self._sizes = sizes


def check(folder: str, files: FileSystem) -> None:
    """Raise UserError if a file of the WAL in a folder is missing, or is shorter than it was made."""
    try:
        sizes = decode(files.read(f"{folder}/{FILE_NAME}"))
    except (Malformed, FileNotFoundError) as error:
        raise UserError(_describe(folder, str(error))) from None
    for name, size in sizes.items():
        path = f"{folder}/{name}"
        if not files.exists(path):
            raise UserError(_describe(folder, f"{name} is missing"))
        if files.size(path) < size:
            raise UserError(_describe(folder, f"{name} has {files.size(path)} bytes and was made with {size}"))


def _describe(folder: str, problem: str) -> str:
    return (
        f"The write-ahead log {folder} is not whole: {problem}. It may hold acknowledged records that are not yet in "
        "the segments. Nothing was changed. Put the missing file back, or restore a backup. If it is gone for good, "
        "move the whole folder away: a start then keeps what the segments hold."
    )
