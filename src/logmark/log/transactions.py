"""Transactions as a log sees them: markers, which transactions are undecided, and which were aborted.

A transaction begins in a partition with its first transactional batch there and ends with a marker. The bytes of
aborted ones stay; readers of committed records learn which to leave out, from the transaction index of the segment
that holds the marker. The index has no checksum: its last stable offsets are written for Kafka and not believed here.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from logmark.errors import Malformed
from logmark.log.file_formats import ABORTED_ENTRY
from logmark.wire import batches
from logmark.wire.batches import CONTROL_BIT, HEADER_BYTES, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, ProducedBatch

ABORT, COMMIT = 0, 1
NO_COORDINATOR_EPOCH = -1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ENTRY_VERSION = 0
ENTRY_BYTES = ABORTED_ENTRY.size


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that ended it."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, marker: Marker, *, timestamp_ms: int, is_log_append_time: bool
) -> ProducedBatch:
    """Return the control batch that Kafka writes for a marker."""
    key = _KEY.pack(0, COMMIT if marker.is_commit else ABORT)
    built = batches.build(
        [(key, _VALUE.pack(0, marker.coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT | (LOG_APPEND_TIME_BIT if is_log_append_time else 0),
    )
    return batches.own(built)


def read_marker(data: batches.Buffer, at: int = 0) -> Marker | None:
    """Return the marker in the control batch at a position; None if it holds another control record, or none."""
    header = batches.read_header(data, at)
    if not header.record_count:
        return None
    record = memoryview(data)[at + HEADER_BYTES : at + header.size]
    try:
        _, position = _varint(record, 0)
        # Behind the attributes, one byte, come the differences of timestamp and offset to the batch's.
        _, position = _varint(record, position + 1)
        _, position = _varint(record, position)
        size, position = _varint(record, position)
        if size < _KEY.size:
            raise Malformed("a control record without a type")
        _, kind = _KEY.unpack_from(record, position)
        if kind not in (ABORT, COMMIT):
            return None
        size, position = _varint(record, position + size)
        _, coordinator_epoch = _VALUE.unpack_from(record, position)
    except (IndexError, struct.error):
        raise Malformed("a control batch that is cut short") from None
    return Marker(kind == COMMIT, coordinator_epoch)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    value |= data[at] << shift
    return (value >> 1) ^ -(value & 1), at + 1


class Ended(NamedTuple):
    """A transaction that has its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class Aborted(NamedTuple):
    """An aborted transaction; the last stable offset is the one that its marker made possible."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Undecided:
    """The transactions without a marker, and those whose marker is not visible: no reader may pass their beginning."""

    __slots__ = ("_ending", "_open")

    def __init__(self) -> None:
        # By first offset, smallest first: transactions begin in the order of their offsets.
        self._open: dict[int, int] = {}
        self._ending: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the first offset and the producer of every open transaction."""
        return iter(self._open.items())

    @property
    def first_offset(self) -> int | None:
        """Where the oldest transaction begins whose end no reader has seen."""
        first = next(iter(self._open), None)
        if self._ending:
            ending = min(self._ending)
            return ending if first is None else min(first, ending)
        return first

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Add a transaction; each begins behind those that began before."""
        self._open[first_offset] = producer_id

    def end(self, ended: Ended) -> None:
        """Note that a marker was written; readers do not see it yet."""
        self._open.pop(ended.first_offset, None)
        self._ending[ended.first_offset] = ended.last_offset

    def stable_after(self, ended: Ended) -> int:
        """Return the last stable offset that the end of a transaction makes possible."""
        return next((first for first in self._open if first != ended.first_offset), ended.last_offset + 1)

    def show(self, end: int) -> None:
        """Let readers see every marker below an offset."""
        if self._ending:
            self._ending = {first: last for first, last in self._ending.items() if last >= end}


class AbortedTransactions:
    """The aborted transactions whose markers lie in one segment, in the order of the markers."""

    __slots__ = ("_least", "entries")

    def __init__(self, entries: Sequence[Aborted] = ()) -> None:
        self.entries: list[Aborted] = []
        # For every entry the smallest first offset from there on, so that a search knows when to end.
        self._least: list[int] = []
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, aborted: Aborted) -> None:
        """Add a transaction whose marker lies behind those of all others."""
        self.entries.append(aborted)
        least = self._least
        least.append(aborted.first_offset)
        at = len(least) - 2
        while at >= 0 and least[at] > aborted.first_offset:
            least[at] = aborted.first_offset
            at -= 1

    def drop_last(self, count: int) -> None:
        """Remove the last ones."""
        kept = self.entries[: len(self.entries) - count]
        self.entries, self._least = [], []
        for entry in kept:
            self.append(entry)

    def overlapping(self, offset: int, end: int) -> Iterator[Aborted]:
        """Return those that end at an offset or behind it, and begin before another."""
        for at in range(bisect_left(self.entries, offset, key=lambda entry: entry.last_offset), len(self.entries)):
            if self._least[at] >= end:
                return
            if self.entries[at].first_offset < end:
                yield self.entries[at]

    def encode(self) -> bytes:
        """Return the bytes of a transaction index."""
        return b"".join(encode_entry(entry) for entry in self.entries)

    @property
    def checksum(self) -> int:
        """The CRC-32C of its bytes, which the index itself does not have."""
        return int(google_crc32c.value(self.encode()))

    @classmethod
    def decode(cls, data: bytes, *, base_offset: int) -> "AbortedTransactions":
        """Return the transactions in the index of the segment that begins at an offset; refuse what cannot be."""
        if len(data) % ENTRY_BYTES:
            raise Malformed("transaction index with half an entry")
        entries = []
        before = base_offset - 1
        for version, *fields in ABORTED_ENTRY.iter_unpack(data):
            entry = Aborted(*fields)
            if version != _ENTRY_VERSION:
                raise Malformed(f"transaction index of unknown version {version}")
            if not (before < entry.last_offset and 0 <= entry.first_offset < entry.last_offset) or (
                not 0 <= entry.last_stable_offset <= entry.last_offset + 1
            ):
                raise Malformed(f"transaction index with an impossible entry, {entry}")
            before = entry.last_offset
            entries.append(entry)
        return cls(entries)


def encode_entry(entry: Aborted) -> bytes:
    """Return the bytes of one entry of a transaction index."""
    return ABORTED_ENTRY.pack(_ENTRY_VERSION, *entry)
