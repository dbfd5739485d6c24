"""The bytes of a WAL entry: the batches of all partitions that one sync acknowledges together.

    header    32 bytes and a 16-byte digest, at the start of a 4 KiB block
    data      the batches, back to back
    runs      one row for each run of batches: whose it is and where it lies
    zeros     up to the end of the block

A run is a stretch of batches that lie next to each other in one segment. The first rows have no data: they repeat
where the partitions of the entry before this one ended. So if that entry is damaged at rest, recovery still knows which
offsets were given out. An entry never shares a block with another one, so a torn write cannot reach an entry that was
acknowledged before.

The digest is keyed with the salt of the file, which is random and new each time the file is used again. So neither an
entry of the file's former life nor bytes that a client put into a record can be taken for an entry.
"""

import ctypes
import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logmark.disk.file_system import Bytes
from logmark.errors import Malformed
from logmark.memory import anonymous_memory
from logmark.wire import columns

BLOCK_BYTES = 4096
SALT_BYTES = 16
_MAPPED_BYTES_MIN = 128 * 1024
_DIGEST_BYTES = 16
_MAGIC = b"WALE"
_VERSION = 1
# Magic, version, number of runs, number of the entry, bytes of data, checksum of data and runs, reserved.
_HEADER = struct.Struct(">4sHIQQIH")
_RUN = struct.Struct(">20sqqqqI")
_PARTITION = struct.Struct(">16si")
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES


# Partition, base offset of the segment, position, first offset, end offset, bytes of data.
RunRow = tuple[bytes, int, int, int, int, int]


class Run(NamedTuple):
    """Batches that lie next to each other in one segment, and their position there."""

    topic_id: bytes
    partition: int
    segment_base: int
    position: int
    first_offset: int
    end_offset: int
    data: memoryview


class EntryHeader(NamedTuple):
    """What the head of an entry says, once its digest is right."""

    number: int
    run_count: int
    data_bytes: int
    checksum: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the entry takes in the file."""
        return align(HEADER_BYTES + self.payload_bytes)

    @property
    def payload_bytes(self) -> int:
        return self.data_bytes + self.run_count * _RUN.size


def align(size: int) -> int:
    """Round a size up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def partition_key(topic_id: bytes, partition: int) -> bytes:
    """Return the 20 bytes that name a partition in the WAL."""
    return _PARTITION.pack(topic_id, partition)


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return the topic id and the partition that a key names."""
    topic_id, partition = _PARTITION.unpack(key)
    return topic_id, partition


def _digest(header: Bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(header, key=salt, digest_size=_DIGEST_BYTES).digest()


class EntryBuilder:
    """One entry that grows with each batch, in memory that can go to the medium as it is."""

    __slots__ = ("_capacity", "_data_end", "_runs", "_view")

    def __init__(self, capacity: int, ends: Iterable[RunRow] = ()) -> None:
        """Take memory for an entry of at most so many bytes, which repeats the ends of the entry before.

        With a capacity of 0 nothing can be added.
        """
        self._capacity = align(capacity)
        self._view = _new_memory(self._capacity)
        self._data_end = HEADER_BYTES
        self._runs: list[RunRow] = list(ends)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def is_empty(self) -> bool:
        """Whether no batch was added."""
        return self._data_end == HEADER_BYTES

    def ends(self) -> list[RunRow]:
        """Return where the partitions of this entry end, for the next entry to repeat."""
        last = {run[0]: run for run in self._runs if run[5]}
        return [
            (key, segment_base, position + size, end_offset, end_offset, 0)
            for key, segment_base, position, _, end_offset, size in last.values()
        ]

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the entry would take in a file."""
        return align(self._data_end + len(self._runs) * _RUN.size)

    @staticmethod
    def capacity_for(size: int, end_count: int = 0) -> int:
        """Return the capacity that an entry with one run of that size, and so many ends repeated, needs."""
        return align(HEADER_BYTES + size + (1 + end_count) * _RUN.size)

    def has_room_for(self, size: int) -> bool:
        """Return whether a batch of that size fits, as a run of its own."""
        return self._data_end + size + (len(self._runs) + 1) * _RUN.size <= self._capacity

    def add(
        self, key: bytes, segment_base: int, position: int, first_offset: int, end_offset: int, data: Bytes, size: int
    ) -> None:
        """Add a batch; one that continues the last run makes that run longer."""
        begin = self._data_end
        self._view[begin : begin + size] = data
        self._data_end = begin + size
        runs = self._runs
        if runs:
            last_key, last_base, last_position, last_first, _, last_size = runs[-1]
            if last_size and last_key == key and last_base == segment_base and last_position + last_size == position:
                runs[-1] = (key, segment_base, last_position, last_first, end_offset, last_size + size)
                return
        runs.append((key, segment_base, position, first_offset, end_offset, size))

    def seal(self, number: int, salt: bytes) -> memoryview:
        """Return the entry's bytes, whole blocks, for the file that has the salt."""
        view, end = self._view, self._data_end
        for run in self._runs:
            _RUN.pack_into(view, end, *run)
            end += _RUN.size
        size = align(end)
        view[end:size] = bytes(size - end)
        checksum = columns.crc32c(view, HEADER_BYTES, end - HEADER_BYTES)
        data_bytes = self._data_end - HEADER_BYTES
        _HEADER.pack_into(view, 0, _MAGIC, _VERSION, len(self._runs), number, data_bytes, checksum, 0)
        view[_HEADER.size : HEADER_BYTES] = _digest(view[: _HEADER.size], salt)
        return view[:size]

    def clear(self, ends: Iterable[RunRow] = ()) -> None:
        """Make the memory ready for another entry, which repeats the ends of the one before."""
        self._data_end = HEADER_BYTES
        self._runs = list(ends)


def read_header(block: Bytes, salt: bytes) -> EntryHeader | None:
    """Return the header at the start of a block, or None if no entry of this file begins there."""
    if len(block) < HEADER_BYTES or block[:4] != _MAGIC:
        return None
    if _digest(block[: _HEADER.size], salt) != block[_HEADER.size : HEADER_BYTES]:
        return None
    _, version, run_count, number, data_bytes, checksum, _ = _HEADER.unpack_from(block)
    return EntryHeader(number, run_count, data_bytes, checksum) if version == _VERSION else None


def is_intact(entry: Bytes, header: EntryHeader) -> bool:
    """Return whether the checksum of an entry's data and runs is right."""
    if len(entry) < HEADER_BYTES + header.payload_bytes:
        return False
    return columns.crc32c(entry, HEADER_BYTES, header.payload_bytes) == header.checksum


def read_runs(entry: Bytes, header: EntryHeader) -> Iterator[Run]:
    """Yield the runs of an intact entry, in the order in which they were appended.

    Raises Malformed if they do not add up.
    """
    view = memoryview(entry)
    data_at, runs_at = HEADER_BYTES, HEADER_BYTES + header.data_bytes
    table = view[runs_at : runs_at + header.run_count * _RUN.size]
    for key, segment_base, position, first_offset, end_offset, size in _RUN.iter_unpack(table):
        if data_at + size > runs_at:
            raise Malformed(f"entry {header.number} of the write-ahead log has runs beyond its data")
        topic_id, partition = split_key(key)
        data = view[data_at : data_at + size]
        yield Run(topic_id, partition, segment_base, position, first_offset, end_offset, data)
        data_at += size
    if data_at != runs_at:
        raise Malformed(f"entry {header.number} of the write-ahead log has data without a run")


def aligned(data: bytes) -> memoryview:
    """Return a copy of whole blocks in memory that can go to the medium as it is."""
    memory = _new_memory(len(data))
    memory[:] = data
    return memory


def _new_memory(size: int) -> memoryview:
    """Return memory that begins at the start of a block, as writes past the page cache need it."""
    if size >= _MAPPED_BYTES_MIN:
        # Takes no page before it is written to.
        return anonymous_memory(size)
    memory = bytearray(size + BLOCK_BYTES)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % BLOCK_BYTES
    return memoryview(memory)[begin : begin + size]
