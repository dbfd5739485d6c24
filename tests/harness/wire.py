"""Requests made by hand, for what no client library lets a test do; independent of our own codec."""

import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

PRODUCE = 0


class ProduceAnswer(NamedTuple):
    """What the broker said to one produced batch."""

    error_code: int
    base_offset: int
    error_message: str | None


def send(bootstrap_servers: str, api_key: int, version: int, body: bytes) -> bytes:
    """Sends one request with the plain header and returns the body of the answer."""
    with connect(bootstrap_servers) as connection:
        return send_over(connection, api_key, version, body)


def connect(bootstrap_servers: str) -> socket.socket:
    """Opens a connection of the caller's own."""
    host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def send_over(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    """Sends one request on a connection and returns the body of the answer."""
    request = struct.pack(">hhih", api_key, version, 7, 4) + b"hand" + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    size = struct.unpack(">i", _exactly(connection, 4))[0]
    answer = _exactly(connection, size)
    assert 7 == struct.unpack(">i", answer[:4])[0]
    return answer[4:]


def produce(
    bootstrap_servers: str | socket.socket, topic: str, batch: bytes, *, partition: int = 0
) -> ProduceAnswer:
    """Produces one batch exactly as it is, with acks=all; on a connection of the caller's, or on one of its own."""
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + _string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    if isinstance(bootstrap_servers, str):
        answer = send(bootstrap_servers, PRODUCE, 8, body)
    else:
        answer = send_over(bootstrap_servers, PRODUCE, 8, body)
    at = 4 + 2 + len(topic.encode()) + 4
    _, error_code, base_offset, _, _, record_errors = struct.unpack_from(">ihqqqi", answer, at)
    at += 34
    for _ in range(record_errors):
        at += 4
        at += 2 + max(struct.unpack_from(">h", answer, at)[0], 0)
    size = struct.unpack_from(">h", answer, at)[0]
    return ProduceAnswer(error_code, base_offset, None if size < 0 else answer[at + 2 : at + 2 + size].decode())


def batch(values: Sequence[bytes], *, base_offset: int = 0) -> bytes:
    """A record batch of uncompressed values without keys, of this moment, with a right CRC."""
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    times = (now_ms(),) * 2
    checked = struct.pack(">hiqqqhii", 0, len(values) - 1, *times, -1, -1, -1, len(values)) + records
    head = struct.pack(">ibI", -1, 2, google_crc32c.value(checked))
    return struct.pack(">qi", base_offset, len(head) + len(checked)) + head + checked


def now_ms() -> int:
    """This moment, as records carry it."""
    return time.time_ns() // 1_000_000


def _record(offset_delta: int, value: bytes) -> bytes:
    body = b"\x00\x00" + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + b"\x00"
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker closed the connection"
        data += part
    return bytes(data)
