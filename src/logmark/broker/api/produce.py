"""Produce appends batches: checked, given their offsets, written, and acknowledged when the disk has them.

v5  log start offset in the answer     v7  zstd allowed     v8  errors of single records     v9  flexible
v12 the highest version before topic ids replace names
acks=0 gets no answer; acks=1 and acks=all are answered alike: after the sync.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from logmark.broker.answers import Buffers, LateAnswer
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log.partition import Appended, Partition
from logmark.wire import batches, usual
from logmark.wire import produce as wire

if TYPE_CHECKING:
    from logmark.broker.connection import Connection
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker
    from logmark.wire.usual import Usual

log = logging.getLogger(__name__)

schema = wire
KEY = wire.KEY
VERSIONS = range(3, 13)

_LEGAL_ACKS = (-1, 0, 1)
_MAGIC_AT = 16
_ATTRIBUTES_AT = 22
_TRANSACTIONAL = 0x10


Topics = list[tuple[str, list[wire.PartitionAnswer]]]


class _Waiting(NamedTuple):
    """An appended batch whose bytes are not yet on disk: where its answer stands, and what completes it."""

    answers: list[wire.PartitionAnswer]
    at: int
    durable: asyncio.Future[None]


def handle_frame(
    frame: memoryview, body_at: int, at: "Request", *, refuse_with: ErrorCode | None
) -> "Buffers | asyncio.Future[Buffers | None] | None":
    """Appends every batch of the request, then waits for the disk."""
    request = wire.decode_request(at.version, frame, body_at)
    if request.acks not in _LEGAL_ACKS:
        refuse_with = ErrorCode.INVALID_REQUIRED_ACKS
    topics: Topics = []
    waiting: list[_Waiting] = []
    for name, partitions in request.topics:
        answers: list[wire.PartitionAnswer] = []
        topics.append((name, answers))
        if len(partitions) > 1:
            # Of what is sent twice to one partition the last counts, as in Kafka.
            partitions = list({each.partition: each for each in partitions}.values())
        for index, records in partitions:
            try:
                if refuse_with is not None:
                    raise Refused(refuse_with)
                partition, appended = _append(name, index, records, at.broker, at.version)
            except Refused as refused:
                answers.append(_refused(index, refused))
                continue
            except LogFailed as failed:
                answers.append(_refused_by_disk(index, failed))
                continue
            durable = partition.durable(appended.last_offset + 1)
            if durable is not None:
                waiting.append(_Waiting(answers, len(answers), durable))
            answers.append(_written(index, appended))
    return _answer(request.acks, topics, waiting, at.version, at.connection)


def handle_usual(
    asked: "Usual", frame: memoryview, connection: "Connection", broker: "Broker"
) -> "bytes | LateAnswer | Buffers | asyncio.Future[Buffers | None] | None":
    """Handle the usual request: return the whole answer, now or later, or the body of an answer."""
    version, correlation_id, acks, name_at, name_size, index, records_at, records_size = asked
    name = str(frame[name_at : name_at + name_size], "ascii")
    try:
        partition, appended = _append(name, index, frame[records_at : records_at + records_size], broker, version)
    except Refused as refused:
        return _answer(acks, [(name, [_refused(index, refused)])], [], version, connection)
    except LogFailed as failed:
        return _answer(acks, [(name, [_refused_by_disk(index, failed)])], [], version, connection)
    if acks == 0:
        return None
    base, last, append_time_ms, log_start, _ = appended
    answer = usual.produced(
        frame.obj, name_at, name_size, correlation_id, index, base, append_time_ms, log_start  # type: ignore[arg-type]
    )  # fmt: skip
    late = LateAnswer()

    def told(failure: LogFailed | None) -> None:
        if failure is None:
            late.complete([answer])
        else:
            body = wire.encode_response(version, [(name, [_refused_by_disk(index, failure)])])
            late.complete(broker.dispatcher.framed(correlation_id, True, [body]))

    return late if partition.when_durable(last + 1, told) else answer


def _answer(
    acks: int, topics: Topics, waiting: list[_Waiting], version: int, connection: "Connection"
) -> "Buffers | asyncio.Future[Buffers | None] | None":
    if acks == 0:
        _close_when_refused(topics, waiting, connection)
        return None
    if not waiting:
        return [wire.encode_response(version, topics)]
    return _when_durable(topics, waiting, version)


def _append(
    name: str, index: int, records: memoryview | None, broker: "Broker", version: int
) -> tuple[Partition, Appended]:
    topic = broker.logs.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
    if records is None:
        raise Refused(ErrorCode.INVALID_RECORD, "Request contains no record batch")
    if len(records) > _ATTRIBUTES_AT and records[_MAGIC_AT] == 2 and records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
        # Transactions are not served yet: InitProducerId told the producer so, and nothing half-done is kept.
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not supported by this broker"
        )
    now_ms = broker.clock.now_ms()
    batch = batches.check_produced(records, topic.rules, now_ms=now_ms, produce_version=version)
    partition = topic.partitions[index]
    return partition, partition.append(batch, now_ms=now_ms)


def _written(index: int, appended: Appended) -> wire.PartitionAnswer:
    return wire.PartitionAnswer(index, 0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset)


def _refused(index: int, refused: Refused) -> wire.PartitionAnswer:
    return wire.PartitionAnswer(index, int(refused.code), -1, -1, -1, refused.record_errors, refused.message)


def _refused_by_disk(index: int, failed: LogFailed) -> wire.PartitionAnswer:
    return _refused(index, Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failed)))


def _when_durable(
    topics: Topics, waiting: list[_Waiting], version: int
) -> "asyncio.Future[Buffers | None]":
    answered: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()
    left = len(waiting)

    def one_is_done(wait: _Waiting) -> None:
        nonlocal left
        left -= 1
        if wait.durable.cancelled() or wait.durable.exception() is not None:
            index = wait.answers[wait.at].partition
            sentence = "The log was closed." if wait.durable.cancelled() else str(wait.durable.exception())
            wait.answers[wait.at] = _refused(index, Refused(ErrorCode.KAFKA_STORAGE_ERROR, sentence))
        if left == 0 and not answered.done():
            answered.set_result([wire.encode_response(version, topics)])

    for wait in waiting:
        wait.durable.add_done_callback(lambda _, wait=wait: one_is_done(wait))  # type: ignore[misc]
    return answered


def _close_when_refused(topics: Topics, waiting: list[_Waiting], connection: "Connection") -> None:
    """A producer with acks=0 learns of an error by its connection being closed, as with Kafka."""
    for wait in waiting:
        wait.durable.add_done_callback(lambda durable: durable.cancelled() or durable.exception())
    if any(answer.error_code for _, answers in topics for answer in answers):
        connection.refuse("a record sent with acks=0 was refused")
