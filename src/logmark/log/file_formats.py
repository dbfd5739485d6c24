"""The structures on disk, each defined once: batch headers, index entries, aborted transactions, producer snapshots.

The functions here read entries as they are; whether they are true is for the caller to find out.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from logmark.errors import Malformed

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
ABORTED_ENTRY = struct.Struct(">hqqqq")
# Version, checksum of everything behind it, and count of producers.
SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_VERSION = 1
PRODUCER_ENTRY = struct.Struct(">qhiqiqiq")
# The 61 bytes before the records of a batch; the first 21, up to the checksum, are covered by no checksum.
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_HEAD = struct.Struct(">qiibI")


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
    """Return an index without the zeros at its end that a running Kafka reserves."""
    used = len(data.rstrip(b"\x00"))
    return data[: -(-used // entry.size) * entry.size]


def offset_entries(data: bytes, base_offset: int) -> Iterator[tuple[int, int]]:
    """Return last offset and position for every whole entry of an offset index."""
    for relative, position in OFFSET_ENTRY.iter_unpack(_whole(data, OFFSET_ENTRY)):
        yield base_offset + relative, position


def time_entries(data: bytes, base_offset: int) -> Iterator[tuple[int, int]]:
    """Return timestamp and last offset for every whole entry of a time index."""
    for timestamp, relative in TIME_ENTRY.iter_unpack(_whole(data, TIME_ENTRY)):
        yield timestamp, base_offset + relative


def aborted_entries(data: bytes) -> Iterator[AbortedEntry]:
    """Return every whole entry of a transaction index."""
    return map(AbortedEntry._make, ABORTED_ENTRY.iter_unpack(_whole(data, ABORTED_ENTRY)))


def producer_entries(data: bytes) -> list[ProducerEntry]:
    """Return every producer of a snapshot; refuse one whose checksum, version or count is wrong."""
    if len(data) < SNAPSHOT_HEADER.size:
        raise Malformed(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise Malformed(f"producer snapshot of unknown version {version}")
    if crc != google_crc32c.value(data[6:]):
        raise Malformed("producer snapshot with a wrong checksum")
    if len(data) != SNAPSHOT_HEADER.size + count * PRODUCER_ENTRY.size:
        raise Malformed(f"producer snapshot of {len(data)} bytes that claims {count} producers")
    return [ProducerEntry._make(fields) for fields in PRODUCER_ENTRY.iter_unpack(data[SNAPSHOT_HEADER.size :])]


def build_snapshot(count: int, producers: bytes) -> bytes:
    """Return the bytes of a producer snapshot from the entries of its producers."""
    crc = google_crc32c.value(struct.pack(">i", count) + producers)
    return SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, crc, count) + producers


def _whole(data: bytes, entry: struct.Struct) -> bytes:
    return data[: len(data) // entry.size * entry.size]
