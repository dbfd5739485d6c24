"""Record batches in the plainest Python there is: what the compiled walk is compared with.

Nothing here comes from logmark: its own CRC, its own varints, its own framing of snappy.
"""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import cramjam
import lz4.frame
import zstandard

HEAD = struct.Struct(">qiibIhiqqqhii")
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
NOW_MS = 1_700_000_000_000


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Record:
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    offset_delta: int = 0
    timestamp_delta: int = 0
    attributes: int = 0


@dataclass(frozen=True, kw_only=True)
class Batch:
    records: Sequence[Record] = field(default_factory=lambda: [Record(value=b"v")])
    base_offset: int = 0
    leader_epoch: int = 0
    codec: int = 0
    attributes: int = 0
    base_timestamp: int = NOW_MS
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_offset_delta: int | None = None
    record_count: int | None = None


def varint(value: int) -> bytes:
    """Zig-zag, seven bits a byte, the lowest first."""
    bits = value << 1 if value >= 0 else (-value << 1) - 1
    out = []
    while bits > 127:
        out.append(bits & 127 | 128)
        bits >>= 7
    return bytes([*out, bits])


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Record) -> bytes:
    body = (
        bytes([record.attributes])
        + varint(record.timestamp_delta)
        + varint(record.offset_delta)
        + _sized(record.key)
        + _sized(record.value)
        + varint(len(record.headers))
        + b"".join(_sized(key) + _sized(value) for key, value in record.headers)
    )
    return varint(len(body)) + body


def compress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.compress(data)
    if codec == 2:
        block = bytes(cramjam.snappy.compress_raw(data))
        return XERIAL + struct.pack(">i", len(block)) + block
    if codec == 3:
        return lz4.frame.compress(data, block_linked=False)
    if codec == 4:
        return zstandard.ZstdCompressor().compress(data)
    return data


def decompress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        if not data.startswith(XERIAL[:8]):
            return bytes(cramjam.snappy.decompress_raw(data))
        out, at = b"", len(XERIAL)
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
            at += 4 + size
        return out
    if codec == 3:
        return lz4.frame.decompress(data)
    if codec == 4:
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def seal(batch: bytes) -> bytearray:
    """The batch with the right length and CRC, whatever else is wrong with it."""
    sealed = bytearray(batch)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, crc32c(bytes(sealed[21:])))
    return sealed


def encode_batch(batch: Batch, body: bytes | None = None) -> bytearray:
    """The batch; `body` replaces the uncompressed bytes of its records."""
    if body is None:
        body = b"".join(map(encode_record, batch.records))
    count = len(batch.records) if batch.record_count is None else batch.record_count
    times = [batch.base_timestamp + record.timestamp_delta for record in batch.records]
    head = HEAD.pack(
        batch.base_offset,
        0,
        batch.leader_epoch,
        2,
        0,
        batch.attributes | batch.codec,
        count - 1 if batch.last_offset_delta is None else batch.last_offset_delta,
        batch.base_timestamp,
        max(times, default=-1) if batch.max_timestamp is None else batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
    return seal(head + compress(batch.codec, body))


def decode(data: bytes) -> list[tuple[int, int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]:
    """(offset, timestamp, timestamp type, key, value, headers) of every record of whole, sound batches."""
    found = []
    at = 0
    while at + HEAD.size <= len(data):
        base_offset, length, _, magic, crc, attributes, _, base_time, max_time, *_, count = HEAD.unpack_from(data, at)
        end = at + 12 + length
        if end > len(data):
            break
        assert (2, crc) == (magic, crc32c(data[at + 21 : end]))
        if not attributes & 0x20:
            body = _Reader(decompress(attributes & 7, data[at + HEAD.size : end]))
            for _ in range(count):
                record = _Reader(body.take(body.varint()))
                record.take(1)
                timestamp = base_time + record.varint()
                offset = base_offset + record.varint()
                key, value = record.sized(), record.sized()
                headers = [(record.sized() or b"", record.sized()) for _ in range(record.varint())]
                kind = attributes >> 3 & 1
                found.append((offset, max_time if kind else timestamp, kind, key, value, headers))
        at = end
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        assert 0 <= size <= len(self._data) - self._at
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        bits = shift = 0
        while True:
            byte = self.take(1)[0]
            bits |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return bits >> 1 if bits & 1 == 0 else -(bits >> 1) - 1

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)
