"""The entries of the small binary files beside a log, read as they are and believed by nobody."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from logmark.errors import Malformed

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
ABORTED_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_PRODUCER = struct.Struct(">qhiqiqiq")


class ProducerEntry(NamedTuple):
    """One producer of a snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class AbortedEntry(NamedTuple):
    """One aborted transaction of a transaction index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def unpadded(data: bytes, entry: struct.Struct) -> bytes:
    """An index without the zeros at its end that a running Kafka reserves."""
    used = len(data.rstrip(b"\x00"))
    return data[: -(-used // entry.size) * entry.size]


def offset_entries(data: bytes, base_offset: int) -> Iterator[tuple[int, int]]:
    """Last offset and position, one for every whole entry of an offset index."""
    for relative, position in OFFSET_ENTRY.iter_unpack(_whole(data, OFFSET_ENTRY)):
        yield base_offset + relative, position


def time_entries(data: bytes, base_offset: int) -> Iterator[tuple[int, int]]:
    """Timestamp and last offset, one for every whole entry of a time index."""
    for timestamp, relative in TIME_ENTRY.iter_unpack(_whole(data, TIME_ENTRY)):
        yield timestamp, base_offset + relative


def aborted_entries(data: bytes) -> Iterator[AbortedEntry]:
    """Every whole entry of a transaction index."""
    return map(AbortedEntry._make, ABORTED_ENTRY.iter_unpack(_whole(data, ABORTED_ENTRY)))


def producer_entries(data: bytes) -> list[ProducerEntry]:
    """Every producer of a snapshot; refuses one whose checksum, version or count is wrong."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise Malformed(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        raise Malformed(f"producer snapshot of unknown version {version}")
    if crc != google_crc32c.value(data[6:]):
        raise Malformed("producer snapshot with a wrong checksum")
    if len(data) != _SNAPSHOT_HEAD.size + count * _PRODUCER.size:
        raise Malformed(f"producer snapshot of {len(data)} bytes that claims {count} producers")
    return [ProducerEntry._make(fields) for fields in _PRODUCER.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def _whole(data: bytes, entry: struct.Struct) -> bytes:
    return data[: len(data) // entry.size * entry.size]
