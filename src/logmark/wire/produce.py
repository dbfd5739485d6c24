"""Produce appends record batches; the records are slices of the request's own buffer.

v5  answers the log start offset        v9   flexible
v8  answers which records were wrong    v10  may name the new leader in tagged fields (KIP-951)
"""

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from logmark.errors import Malformed
from logmark.wire.primitives import BROKEN, Compact, Encoding, Plain, misfit, required, trailing

KEY = 0
VERSIONS = range(3, 13)
FLEXIBLE_FROM = 9

REQUEST_OBJECTS_MAX = 100_000
RESPONSE_OBJECTS_MAX = 10_000_000

# How many partitions are read between two pauses of a reading in steps: they take a fraction of a millisecond.
PARTITIONS_AT_ONCE = 100

_ACKS_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_ANSWER_V3 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
# With no record errors and no message: in version 8 a count of 0 and a length of -1, in flexible versions 1, 0 and no
# tagged fields.
_CLEAN_V8 = struct.Struct(">ihqqqih")
_CLEAN_V9 = struct.Struct(">ihqqqBBB")


class PartitionData(NamedTuple):
    """The record batches for one partition, a slice of the request."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """Record batches for some partitions, and when the broker shall answer."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[PartitionData]]]


class PartitionAnswer(NamedTuple):
    """Where the batches of one partition went, or why not."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None


class ProduceResponse(NamedTuple):
    """The answers for all partitions of a request."""

    topics: list[tuple[str, list[PartitionAnswer]]]
    throttle_time_ms: int


def _encoding(version: int) -> Encoding:
    return Compact if version >= FLEXIBLE_FROM else Plain


def decode_request(version: int, frame: memoryview, at: int, *, budget: int = REQUEST_OBJECTS_MAX) -> ProduceRequest:
    """Return the request whose body begins at `at`; ignore bytes after it, as Kafka does."""
    steps = decode_request_in_steps(version, frame, at, budget=budget)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        request: ProduceRequest = stop.value
        return request


def decode_request_in_steps(
    version: int, frame: memoryview, at: int, *, budget: int = REQUEST_OBJECTS_MAX
) -> Generator[int, None, ProduceRequest]:
    """Return the same, and yield the number of partitions after every hundred of them."""
    if version not in VERSIONS:
        raise Malformed(f"produce has no version {version}")
    try:
        return (yield from _read_request(_encoding(version), frame, at, budget))
    except BROKEN as error:
        raise Malformed(f"a produce request is broken: {error}") from error


def _read_request(
    read: Encoding, frame: memoryview, at: int, budget: int
) -> Generator[int, None, ProduceRequest]:
    topic_bytes, partition_bytes = (3, 6) if read is Compact else (6, 8)
    transactional_id, at = read.read_string(frame, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    topic_count, at, budget = read.read_count(frame, at + 6, topic_bytes, budget)
    topics = []
    left = PARTITIONS_AT_ONCE
    for _ in range(_present(topic_count)):
        name, at = read.read_string(frame, at)
        count, at, budget = read.read_count(frame, at, partition_bytes, budget)
        partitions = []
        left -= 1 + max(count, 0)
        if left <= 0 and count <= PARTITIONS_AT_ONCE:
            left = PARTITIONS_AT_ONCE
            yield PARTITIONS_AT_ONCE
        for number in range(_present(count)):
            if number and not number % PARTITIONS_AT_ONCE:
                yield PARTITIONS_AT_ONCE
            (partition,) = _INT32.unpack_from(frame, at)
            records, at = read.read_bytes(frame, at + 4)
            at, budget = read.skip_tags(frame, at, budget)
            partitions.append(PartitionData(partition, records))
        at, budget = read.skip_tags(frame, at, budget)
        topics.append((required(name), partitions))
    at, budget = read.skip_tags(frame, at, budget)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _present(count: int) -> int:
    """Return the count of an array that may not be null."""
    if count < 0:
        misfit(count, 0)
    return count


def encode_response(
    version: int, topics: Sequence[tuple[str, Sequence[PartitionAnswer]]], *, throttle_time_ms: int = 0
) -> bytes:
    """Return the body of the response."""
    write = _encoding(version)
    out = bytearray(write.length(len(topics)))
    for name, answers in topics:
        out += write.string(name)
        out += write.length(len(answers))
        for answer in answers:
            out += _answer(version, write, answer)
        out += write.NO_TAGS
    out += _INT32.pack(throttle_time_ms)
    out += write.NO_TAGS
    return bytes(out)


def _answer(version: int, write: Encoding, answer: PartitionAnswer) -> bytes:
    partition, error_code, base_offset, append_time, log_start, record_errors, message = answer
    if version < 5:
        return _ANSWER_V3.pack(partition, error_code, base_offset, append_time)
    if version < 8:
        return _ANSWER_V5.pack(partition, error_code, base_offset, append_time, log_start)
    if not record_errors and message is None:
        if write is Compact:
            return _CLEAN_V9.pack(partition, error_code, base_offset, append_time, log_start, 1, 0, 0)
        return _CLEAN_V8.pack(partition, error_code, base_offset, append_time, log_start, 0, -1)
    out = bytearray(_ANSWER_V5.pack(partition, error_code, base_offset, append_time, log_start))
    out += write.length(len(record_errors))
    for index, record_message in record_errors:
        out += _INT32.pack(index) + write.string(record_message) + write.NO_TAGS
    out += write.string(message) + write.NO_TAGS
    return bytes(out)


def encode_request(version: int, request: ProduceRequest) -> bytes:
    """Return the body of the request."""
    if version not in VERSIONS:
        raise ValueError(f"produce has no version {version}")
    write = _encoding(version)
    out: list[bytes | memoryview] = [
        write.string(request.transactional_id),
        _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms),
        write.length(len(request.topics)),
    ]
    for name, partitions in request.topics:
        out += (write.string(name), write.length(len(partitions)))
        for partition, records in partitions:
            out.append(_INT32.pack(partition))
            out += (write.NULL,) if records is None else (write.length(len(records)), records)
            out.append(write.NO_TAGS)
        out.append(write.NO_TAGS)
    out.append(write.NO_TAGS)
    return b"".join(out)


def decode_response(version: int, body: memoryview | bytes, *, budget: int = RESPONSE_OBJECTS_MAX) -> ProduceResponse:
    """Return the response in `body`, which holds nothing else."""
    if version not in VERSIONS:
        raise Malformed(f"produce has no version {version}")
    try:
        return _read_response(version, memoryview(body), budget)
    except BROKEN as error:
        raise Malformed(f"a produce response is broken: {error}") from error


def _read_response(version: int, frame: memoryview, budget: int) -> ProduceResponse:
    read = _encoding(version)
    topic_count, at, budget = read.read_count(frame, 0, 3 if read is Compact else 6, budget)
    topics = []
    for _ in range(_present(topic_count)):
        name, at = read.read_string(frame, at)
        count, at, budget = read.read_count(frame, at, _ANSWER_V3.size, budget)
        answers = []
        for _ in range(_present(count)):
            answer, at, budget = _read_answer(version, frame, at, budget)
            answers.append(answer)
        at, budget = read.skip_tags(frame, at, budget)
        topics.append((required(name), answers))
    (throttle_time_ms,) = _INT32.unpack_from(frame, at)
    at, budget = read.skip_tags(frame, at + 4, budget)
    if at != len(frame):
        trailing(len(frame) - at)
    return ProduceResponse(topics, throttle_time_ms)


def _read_answer(version: int, frame: memoryview, at: int, budget: int) -> tuple[PartitionAnswer, int, int]:
    if version < 5:
        partition, error_code, base_offset, append_time = _ANSWER_V3.unpack_from(frame, at)
        at += _ANSWER_V3.size
        return PartitionAnswer(partition, error_code, base_offset, append_time, -1), at, budget
    partition, error_code, base_offset, append_time, log_start = _ANSWER_V5.unpack_from(frame, at)
    at += _ANSWER_V5.size
    if version < 8:
        return PartitionAnswer(partition, error_code, base_offset, append_time, log_start), at, budget
    read = _encoding(version)
    record_errors, at, budget = _read_record_errors(read, frame, at, budget)
    message, at = read.read_string(frame, at)
    at, budget = read.skip_tags(frame, at, budget)
    answer = PartitionAnswer(partition, error_code, base_offset, append_time, log_start, record_errors, message)
    return answer, at, budget


def _read_record_errors(
    read: Encoding, frame: memoryview, at: int, budget: int
) -> tuple[Sequence[tuple[int, str | None]], int, int]:
    count, at, budget = read.read_count(frame, at, 6, budget)
    record_errors = []
    for _ in range(_present(count)):
        (index,) = _INT32.unpack_from(frame, at)
        record_message, at = read.read_string(frame, at + 4)
        at, budget = read.skip_tags(frame, at, budget)
        record_errors.append((index, record_message))
    return tuple(record_errors), at, budget
