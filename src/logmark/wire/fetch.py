"""Fetch reads record batches; the records of a response are sent as they are, never copied.

v5  asks and answers the log start offset   v9   asks with the leader epoch
v7  sessions                                v11  racks, preferred replica      v12  flexible, last fetched epoch
"""

import struct
from collections.abc import Callable, Sequence, Sized
from typing import Generic, NamedTuple, TypeVar

from logmark.errors import Malformed
from logmark.wire.primitives import BROKEN, Compact, Encoding, Plain, misfit, required, trailing

KEY = 1
VERSIONS = range(4, 13)
FLEXIBLE_FROM = 12

REQUEST_OBJECTS_MAX = 100_000
RESPONSE_OBJECTS_MAX = 10_000_000

_INT32 = struct.Struct(">i")
_REQUEST_V4 = struct.Struct(">iiiib")
_REQUEST_V7 = struct.Struct(">iiiibii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_RESPONSE_V7 = struct.Struct(">ihi")
_ANSWER_V4 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_NO_EPOCH = -1


class FetchPartition(NamedTuple):
    """From where, and how much, of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """What a consumer wants, and how long it will wait for it."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str, list[FetchPartition]]]
    forgotten: list[tuple[str, list[int]]]
    rack_id: str


Records = TypeVar("Records", bound=Sized, covariant=True)


class FetchAnswer(NamedTuple, Generic[Records]):
    """What one partition has; aborted transactions are pairs of producer id and first offset, None is sent as null.

    Records are bytes, or an object instead of bytes of which the length is known.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Records
    aborted_transactions: Sequence[tuple[int, int]] | None = ()
    preferred_read_replica: int = -1


class FetchResponse(NamedTuple):
    """The answers for the partitions of a request or session."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: list[tuple[str, list[FetchAnswer[memoryview]]]]


def _encoding(version: int) -> Encoding:
    return Compact if version >= FLEXIBLE_FROM else Plain


def _present(count: int) -> int:
    """Return the count of an array that may not be null."""
    if count < 0:
        misfit(count, 0)
    return count


def decode_request(version: int, frame: memoryview, at: int, *, budget: int = REQUEST_OBJECTS_MAX) -> FetchRequest:
    """Return the request whose body begins at `at`; ignore bytes after it, as Kafka does."""
    if version not in VERSIONS:
        raise Malformed(f"fetch has no version {version}")
    try:
        return _read_request(version, frame, at, budget)
    except BROKEN as error:
        raise Malformed(f"a fetch request is broken: {error}") from error


def _read_request(version: int, frame: memoryview, at: int, budget: int) -> FetchRequest:
    read = _encoding(version)
    if version >= 7:
        fixed = _REQUEST_V7.unpack_from(frame, at)
        at += _REQUEST_V7.size
    else:
        fixed = (*_REQUEST_V4.unpack_from(frame, at), 0, -1)
        at += _REQUEST_V4.size
    topics, at, budget = _read_topics(version, frame, at, budget)
    forgotten: list[tuple[str, list[int]]] = []
    if version >= 7:
        forgotten, at, budget = _read_forgotten(read, frame, at, budget)
    rack_id: str | None = ""
    if version >= 11:
        rack_id, at = read.read_string(frame, at)
    at, budget = read.skip_tags(frame, at, budget)
    return FetchRequest._make((*fixed, topics, forgotten, required(rack_id)))


def _read_topics(
    version: int, frame: memoryview, at: int, budget: int
) -> tuple[list[tuple[str, list[FetchPartition]]], int, int]:
    read = _encoding(version)
    layout, build = _partition_shape(version)
    read_partition, partition_bytes = layout.unpack_from, layout.size
    topic_count, at, budget = read.read_count(frame, at, 3 if read is Compact else 6, budget)
    topics = []
    for _ in range(_present(topic_count)):
        name, at = read.read_string(frame, at)
        count, at, budget = read.read_count(frame, at, partition_bytes + (read is Compact), budget)
        partitions = []
        for _ in range(_present(count)):
            partitions.append(build(*read_partition(frame, at)))
            at += partition_bytes
            if read is Compact:
                at, budget = read.skip_tags(frame, at, budget)
        at, budget = read.skip_tags(frame, at, budget)
        topics.append((required(name), partitions))
    return topics, at, budget


def _partition_shape(version: int) -> tuple[struct.Struct, Callable[..., FetchPartition]]:
    """Return how a partition looks in a request of this version, and what makes it one of ours."""
    if version >= 12:
        return _PARTITION_V12, FetchPartition
    if version >= 9:
        return _PARTITION_V9, _partition_v9
    return (_PARTITION_V5, _partition_v5) if version >= 5 else (_PARTITION_V4, _partition_v4)


def _partition_v9(partition: int, leader_epoch: int, offset: int, log_start: int, size: int) -> FetchPartition:
    return FetchPartition(partition, leader_epoch, offset, _NO_EPOCH, log_start, size)


def _partition_v5(partition: int, offset: int, log_start: int, size: int) -> FetchPartition:
    return FetchPartition(partition, _NO_EPOCH, offset, _NO_EPOCH, log_start, size)


def _partition_v4(partition: int, offset: int, size: int) -> FetchPartition:
    return FetchPartition(partition, _NO_EPOCH, offset, _NO_EPOCH, -1, size)


def _read_forgotten(
    read: Encoding, frame: memoryview, at: int, budget: int
) -> tuple[list[tuple[str, list[int]]], int, int]:
    topic_count, at, budget = read.read_count(frame, at, 3 if read is Compact else 6, budget)
    forgotten = []
    for _ in range(_present(topic_count)):
        name, at = read.read_string(frame, at)
        count, at, budget = read.read_count(frame, at, 4, budget)
        partitions = list(struct.unpack_from(f">{_present(count)}i", frame, at))
        at, budget = read.skip_tags(frame, at + 4 * count, budget)
        forgotten.append((required(name), partitions))
    return forgotten, at, budget


def encode_response(
    version: int,
    *,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str, Sequence[FetchAnswer[Records]]]],
) -> list[bytes | Records]:
    """Return the response body as buffers to send in this order; records are never null: librdkafka refuses that."""
    write = _encoding(version)
    buffers: list[bytes | Records] = []
    if version >= 7:
        head = bytearray(_RESPONSE_V7.pack(throttle_time_ms, error_code, session_id))
    else:
        head = bytearray(_INT32.pack(throttle_time_ms))
    head += write.length(len(topics))
    for name, answers in topics:
        head += write.string(name)
        head += write.length(len(answers))
        for answer in answers:
            head += _answer_head(version, write, answer)
            if len(answer.records):
                buffers += (bytes(head), answer.records)
                head.clear()
            head += write.NO_TAGS
        head += write.NO_TAGS
    head += write.NO_TAGS
    if head:
        buffers.append(bytes(head))
    return buffers


def _answer_head(version: int, write: Encoding, answer: FetchAnswer[Records]) -> bytes:
    """Return everything of a partition's response before its records."""
    partition, error_code, high_watermark, stable, log_start, records, aborted, replica = answer
    if version >= 5:
        head = _ANSWER_V5.pack(partition, error_code, high_watermark, stable, log_start)
    else:
        head = _ANSWER_V4.pack(partition, error_code, high_watermark, stable)
    head += write.NULL if aborted is None else write.length(len(aborted))
    for producer_id, first_offset in aborted or ():
        head += _ABORTED.pack(producer_id, first_offset) + write.NO_TAGS
    if version >= 11:
        head += _INT32.pack(replica)
    return head + write.length(len(records))


def encode_request(version: int, request: FetchRequest) -> bytes:
    """Return the body of the request."""
    if version not in VERSIONS:
        raise ValueError(f"fetch has no version {version}")
    write = _encoding(version)
    out = bytearray(_REQUEST_V7.pack(*request[:7]) if version >= 7 else _REQUEST_V4.pack(*request[:5]))
    out += write.length(len(request.topics))
    layout, _ = _partition_shape(version)
    for name, partitions in request.topics:
        out += write.string(name)
        out += write.length(len(partitions))
        for partition in partitions:
            out += layout.pack(*_partition_values(version, partition))
            out += write.NO_TAGS
        out += write.NO_TAGS
    if version >= 7:
        out += write.length(len(request.forgotten))
        for name, numbers in request.forgotten:
            out += write.string(name)
            out += write.length(len(numbers))
            out += struct.pack(f">{len(numbers)}i", *numbers)
            out += write.NO_TAGS
    if version >= 11:
        out += write.string(request.rack_id)
    out += write.NO_TAGS
    return bytes(out)


def _partition_values(version: int, asked: FetchPartition) -> tuple[int, ...]:
    partition, leader_epoch, offset, _, log_start, size = asked
    if version >= 12:
        return asked
    if version >= 9:
        return (partition, leader_epoch, offset, log_start, size)
    return (partition, offset, log_start, size) if version >= 5 else (partition, offset, size)


def decode_response(version: int, body: memoryview | bytes, *, budget: int = RESPONSE_OBJECTS_MAX) -> FetchResponse:
    """Return the response in `body`, which holds nothing else; its records are slices of `body`."""
    if version not in VERSIONS:
        raise Malformed(f"fetch has no version {version}")
    try:
        return _read_response(version, memoryview(body), budget)
    except BROKEN as error:
        raise Malformed(f"a fetch response is broken: {error}") from error


def _read_response(version: int, frame: memoryview, budget: int) -> FetchResponse:
    read = _encoding(version)
    if version >= 7:
        throttle_time_ms, error_code, session_id = _RESPONSE_V7.unpack_from(frame)
        at = _RESPONSE_V7.size
    else:
        (throttle_time_ms,) = _INT32.unpack_from(frame)
        error_code, session_id, at = 0, 0, 4
    topic_count, at, budget = read.read_count(frame, at, 3 if read is Compact else 6, budget)
    topics = []
    for _ in range(_present(topic_count)):
        name, at = read.read_string(frame, at)
        count, at, budget = read.read_count(frame, at, _ANSWER_V4.size, budget)
        answers = []
        for _ in range(_present(count)):
            answer, at, budget = _read_answer(version, frame, at, budget)
            answers.append(answer)
        at, budget = read.skip_tags(frame, at, budget)
        topics.append((required(name), answers))
    at, budget = read.skip_tags(frame, at, budget)
    if at != len(frame):
        trailing(len(frame) - at)
    return FetchResponse(throttle_time_ms, error_code, session_id, topics)


def _read_answer(version: int, frame: memoryview, at: int, budget: int) -> tuple[FetchAnswer[memoryview], int, int]:
    read = _encoding(version)
    if version >= 5:
        fixed = _ANSWER_V5.unpack_from(frame, at)
        at += _ANSWER_V5.size
    else:
        fixed = (*_ANSWER_V4.unpack_from(frame, at), -1)
        at += _ANSWER_V4.size
    # Null here means that the consumer did not ask for committed records only.
    count, at, budget = read.read_count(frame, at, _ABORTED.size + (read is Compact), budget)
    aborted = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, at))
        at, budget = read.skip_tags(frame, at + _ABORTED.size, budget)
    replica = -1
    if version >= 11:
        (replica,) = _INT32.unpack_from(frame, at)
        at += 4
    records, at = read.read_bytes(frame, at)
    at, budget = read.skip_tags(frame, at, budget)
    taken = frame[:0] if records is None else records
    answer: FetchAnswer[memoryview] = FetchAnswer._make((*fixed, taken, tuple(aborted), replica))
    return answer, at, budget
