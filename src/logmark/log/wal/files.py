"""One file of the WAL: zero-filled once, then written from its start again and again.

    block 0 and block 1   the header, twice: a damaged copy costs nothing
    from block 2 on       entries, each from the start of a block

A file gets a new header, with a higher sequence and another salt, each time it is used again. The header is durable
before the first entry behind it is written. So an entry is believed only in the life of the file that it belongs to.
The second copy is written after the first one is durable: whenever a crash comes, one of the two is intact.
"""

import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logmark.disk.file_system import File, FileSystem
from logmark.errors import Malformed
from logmark.log.wal.entries import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SALT_BYTES,
    EntryBuilder,
    EntryHeader,
    Run,
    aligned,
    is_intact,
    read_header,
    read_runs,
)
from logmark.wire import columns

SUFFIX = ".wal"
# What the name of a file ends in until it has its first header.
UNNAMED = ".new"
ENTRIES_AT = 2 * BLOCK_BYTES
_FILL_BYTES = 1024 * 1024
_MAGIC = b"LOGMKWAL"
_VERSION = 1
# Magic, version, sequence, id of the WAL, salt.
_HEADER = struct.Struct(f">8sIQ16s{SALT_BYTES}s")
_CHECKSUM = struct.Struct(">I")


class FileHeader(NamedTuple):
    """Whose file this is, its number among the others, and the salt of its entries."""

    wal_id: bytes
    sequence: int
    salt: bytes

    def encode(self) -> bytes:
        """Return one copy, a whole block."""
        head = _HEADER.pack(_MAGIC, _VERSION, self.sequence, self.wal_id, self.salt)
        return (head + _CHECKSUM.pack(columns.crc32c(head, 0, len(head)))).ljust(BLOCK_BYTES, b"\0")

    @classmethod
    def decode(cls, blocks: bytes) -> "FileHeader | None":
        """Return the newest header in a copy that is intact, or None."""
        newest: FileHeader | None = None
        for at in (0, BLOCK_BYTES):
            head = blocks[at : at + _HEADER.size]
            checksum = blocks[at + _HEADER.size : at + _HEADER.size + _CHECKSUM.size]
            if len(checksum) < _CHECKSUM.size or _CHECKSUM.pack(columns.crc32c(head, 0, len(head))) != checksum:
                continue
            magic, version, sequence, wal_id, salt = _HEADER.unpack(head)
            if magic == _MAGIC and version == _VERSION and (newest is None or newest.sequence < sequence):
                newest = cls(wal_id, sequence, salt)
        return newest


class WalFile:
    """A file that entries can be written to; its blocks are on the medium already, so a sync moves no metadata."""

    __slots__ = ("_files", "capacity", "file", "header", "last_number", "path", "position")

    def __init__(self, path: str, capacity: int, files: FileSystem) -> None:
        self.path = path
        self.capacity = capacity
        self.position = ENTRIES_AT
        # The number of the last entry in it, once there is one.
        self.last_number = -1
        self.header: FileHeader | None = None
        self.file: File | None = None
        self._files = files

    def create(
        self, wal_id: bytes, sequence: int, entries: Iterable[tuple[int, EntryBuilder]] = ()
    ) -> None:
        """Fill a new file with zeros, give it a header and entries; it gets its name after that, durably.

        So a file of the WAL always has a header that was durable once.
        """
        path, self.path = self.path, self.path + UNNAMED
        self._fill()
        self.begin(wal_id, sequence)
        for number, entry in entries:
            self.write(entry.seal(number, self.salt), number)
        self._files.replace(self.path, path)
        assert self.file is not None
        self.path = self.file.path = path
        self._files.sync_directory(os.path.dirname(path))

    def _fill(self) -> None:
        file = self._files.open(self.path, create=True)
        try:
            for at in range(0, self.capacity, _FILL_BYTES):
                file.pwrite(bytes(min(_FILL_BYTES, self.capacity - at)), at)
            file.sync()
        finally:
            file.close()

    def begin(self, wal_id: bytes, sequence: int) -> None:
        """Write a new header with a new salt and sync it: what the file held before means nothing from now on."""
        header = FileHeader(wal_id, sequence, secrets.token_bytes(SALT_BYTES))
        if self.file is None:
            self.file = self._files.open_direct(self.path)
        for at in (0, BLOCK_BYTES):
            self.file.pwrite(aligned(header.encode()), at)
            self.file.sync()
        self.header = header
        self.position = ENTRIES_AT
        self.last_number = -1

    @property
    def salt(self) -> bytes:
        assert self.header is not None
        return self.header.salt

    def write(self, entry: memoryview, number: int) -> None:
        """Write an entry behind the last one and sync it."""
        assert self.file is not None
        self.file.pwrite(entry, self.position)
        self.file.sync()
        self.position += len(entry)
        self.last_number = number

    def is_in_place(self) -> bool:
        """Return whether the file still has its name in the data directory: else no recovery would find it."""
        return self.file is not None and self.file.is_in_place()

    def has_room_for(self, size: int) -> bool:
        """Return whether an entry of so many bytes fits behind the last one."""
        return self.position + size <= self.capacity

    def close(self) -> None:
        """Give the descriptor back."""
        if self.file is not None:
            self.file.close()
            self.file = None


class Found(NamedTuple):
    """An entry as recovery finds it; `runs` is None if the header is intact and the rest is not."""

    header: EntryHeader
    runs: list[Run] | None


class FileReader:
    """Reads the entries of one file."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self.path = path
        self._file = files.open(path)
        self._size = self._file.size()
        self.header = FileHeader.decode(self._file.pread(ENTRIES_AT, 0))

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()

    def scan(self) -> Iterator[Found]:
        """Yield every entry of the file's present life; what lies between two of them is damaged.

        Each block is looked at once, and an entry's content is read only where its header is intact.
        """
        if self.header is None:
            return
        position, salt = ENTRIES_AT, self.header.salt
        while position + BLOCK_BYTES <= self._size:
            header = read_header(self._file.pread(HEADER_BYTES, position), salt)
            if header is None or position + header.size_bytes > self._size:
                position += BLOCK_BYTES
                continue
            entry = self._file.pread(header.size_bytes, position)
            runs: list[Run] | None = None
            if is_intact(entry, header):
                try:
                    runs = list(read_runs(entry, header))
                except Malformed:
                    runs = None
            yield Found(header, runs)
            position += header.size_bytes
