"""The few requests of the light load generators, written by hand so that neither side's own code makes the load."""

import struct
from collections.abc import Iterable

from tests.harness.wire import batch as made_by_hand

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 0, 1, 3, 8, 10

_INT16 = struct.Struct(">h")


def batch(value: bytes, count: int) -> bytes:
    """A record batch that holds the same value `count` times."""
    return made_by_hand([value] * count)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(data: bytes) -> bytes:
    """Bytes after their length plus one as a varint."""
    rest, length = len(data) + 1, bytearray()
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*length, rest]) + data


def _frame(key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", key, version, 1) + _string("bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_request(topic: str, partition: int, records: bytes) -> bytes:
    """Produce v9 of one batch with acks=all: flexible, as the clients of today send it."""
    where = b"\2" + _compact(topic.encode()) + b"\2" + struct.pack(">i", partition) + _compact(records) + b"\0\0\0"
    return _frame(PRODUCE, 9, b"\0" + b"\0" + struct.pack(">hi", -1, 30_000) + where)


def produce_error(answer: bytes | memoryview, topic: str, *, at: int = 0) -> int:
    """The error code in an answer to `produce_request`, which begins at `at` without its length."""
    return int(_INT16.unpack_from(answer, at + 4 + 1 + 1 + 1 + len(topic) + 1 + 4)[0])


def commit_request(group: str, topic: str, partition: int, offset: int) -> bytes:
    """OffsetCommit v8 of one partition by a simple group: generation -1 and no member."""
    committed = struct.pack(">iqi", partition, offset, -1) + b"\1" + b"\0"
    where = b"\2" + _compact(topic.encode()) + b"\2" + committed + b"\0\0"
    return _frame(OFFSET_COMMIT, 8, b"\0" + _compact(group.encode()) + struct.pack(">i", -1) + b"\1" + b"\0" + where)


def commit_error(answer: bytes | memoryview, topic: str, *, at: int = 0) -> int:
    """Return the error code in an answer to `commit_request`, which begins at `at` without its length."""
    return int(_INT16.unpack_from(answer, at + 4 + 1 + 4 + 1 + 1 + len(topic) + 1 + 4)[0])


def coordinator_request(group: str) -> bytes:
    """FindCoordinator v1 of a group, with which Apache Kafka creates the topic of the committed offsets."""
    return _frame(FIND_COORDINATOR, 1, _string(group) + b"\0")


def metadata_request(topic: str) -> bytes:
    """Metadata v4 of one topic, which is created when it is missing and the broker may."""
    return _frame(METADATA, 4, struct.pack(">i", 1) + _string(topic) + b"\1")


def fetch_request(
    topic: str, positions: list[int], *, partition_bytes_max: int, partitions: Iterable[int] | None = None
) -> bytes:
    """Fetch v4 of the given partitions of a topic, or of every one, each from its position."""
    chosen = range(len(positions)) if partitions is None else partitions
    parts = [struct.pack(">iqi", index, positions[index], partition_bytes_max) for index in chosen]
    where = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", len(parts)) + b"".join(parts)
    return _frame(FETCH, 4, struct.pack(">iiiib", -1, 500, 1, 50 << 20, 0) + where)


def fetched(answer: memoryview, topic: str, positions: list[int]) -> None:
    """Moves each position past the whole batches that an answer to `fetch_request` holds for its partition."""
    at = 4 + 4 + 4 + 2 + len(topic)
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    for _ in range(count):
        index, error, _high, _stable, aborted = struct.unpack_from(">ihqqi", answer, at)
        if error:
            raise RuntimeError(f"the broker answered error code {error} to a fetch")
        at += 26 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        at += 4
        end = at + size
        while end - at >= 61:
            base, length = struct.unpack_from(">qi", answer, at)
            if at + 12 + length > end:
                break
            (last_delta,) = struct.unpack_from(">i", answer, at + 23)
            positions[index] = base + last_delta + 1
            at += 12 + length
        at = end
