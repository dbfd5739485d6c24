"""Produce appends batches: checked, given their offsets, written, and acknowledged when the disk has them.

v5  log start offset in the answer     v7  zstd allowed     v8  errors of single records     v9  flexible
v12 the highest version before topic ids replace names
acks=0 gets no answer; acks=1 and acks=all are answered alike: after the sync.
A request for many partitions is worked off in turns. A batch that unpacks to much is unpacked in a thread, and one that
the topic stores with another codec is compressed in one. A batch that begins a segment does that in a turn of its own,
over all connections: it makes files.
Most requests hold one batch: they are decoded, and their responses encoded, in one compiled step each.
"""

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logmark.broker.answers import Buffers, LateAnswer, LongWork
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Pace, run_in_turns
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log.partition import Appended, NeedsRoll, Partition
from logmark.wire import batches, fast_requests
from logmark.wire import produce as wire
from logmark.wire.batches import BatchRules, NeedsThread, ProducedBatch

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.logs import Topic
    from logmark.broker.server import Broker

log = logging.getLogger(__name__)

schema = wire
KEY = wire.KEY
VERSIONS = range(3, 13)

_LEGAL_ACKS = (-1, 0, 1)
_MAGIC_AT = 16
_ATTRIBUTES_AT = 22
_TRANSACTIONAL = 0x10
_CODEC = 0x07


# A batch that unpacks to more is unpacked in a thread: this much takes a millisecond or two.
DECOMPRESSED_BYTES_ON_LOOP_MAX = 1024 * 1024
# What batches of all connections unpack to in a turn of the event loop; what comes later waits for a turn of its own.
DECOMPRESSED_BYTES_IN_A_TURN = 4 * 1024 * 1024
# Checking and writing so many bytes takes as long as a step.
STEP_BYTES = 32 * 1024

Topics = list[tuple[str, list[wire.PartitionAnswer]]]


class _Later(Exception):
    """A batch for which this turn of the event loop is too short.

    It is checked already and begins a segment, or it is checked in a thread: it unpacks to much, or is built again.
    """

    def __init__(self, checked: ProducedBatch | None) -> None:
        super().__init__()
        self.checked = checked


class _NextTurn(Exception):
    """A compressed batch that waits: enough was unpacked in this turn of the event loop."""


class _Waiting(NamedTuple):
    """An appended batch whose bytes are not yet on disk: where its answer stands, and what completes it."""

    answers: list[wire.PartitionAnswer]
    at: int
    durable: asyncio.Future[None]


def handle_frame(
    frame: memoryview, body_at: int, request: "Request", *, refuse_with: ErrorCode | None
) -> "Buffers | LateAnswer | asyncio.Future[Buffers | None] | LongWork | None":
    """Append every batch of the request, and answer when the disk has them."""
    if request.version >= wire.FLEXIBLE_FROM and refuse_with is None:
        usual = fast_requests.read_produce(frame.obj, body_at)
        if usual is not None:
            return _append_only_batch(usual, frame, request)
    steps = wire.decode_request_in_steps(request.version, frame, body_at)
    try:
        next(steps)
    except StopIteration as stop:
        message: wire.ProduceRequest = stop.value
    else:
        return LongWork(_work(run_in_turns(steps), request, refuse_with))
    appends = _Appends(message, request, refuse_with)
    if appends.cost > STEPS_IN_A_TURN:
        return LongWork(appends.run_in_turns())
    cost = 0
    while appends.left:
        if cost >= STEPS_IN_A_TURN:
            return LongWork(appends.run_in_turns(), is_in_line=False)
        try:
            cost += appends.append_next()
        except _NextTurn:
            return LongWork(appends.run_in_turns(), is_in_line=False)
        except _Later as later:
            return LongWork(appends.run_in_turns(later.checked), is_in_line=False)
    return appends.answer()


async def _work(
    decoding: "Coroutine[Any, Any, wire.ProduceRequest]", request: "Request", refuse_with: ErrorCode | None
) -> "Buffers | asyncio.Future[Buffers | None] | None":
    return await _Appends(await decoding, request, refuse_with).run_in_turns()


def _append_only_batch(
    usual: tuple[int, int, int, int, int, int], frame: memoryview, request: "Request"
) -> "Buffers | LateAnswer | asyncio.Future[Buffers | None] | LongWork | None":
    """Append the one batch of a usual request, without the containers for many."""
    acks, name_at, name_size, index, records_at, records_size = usual
    name = str(frame[name_at : name_at + name_size], "ascii")
    records = frame[records_at : records_at + records_size]
    try:
        partition, appended, _ = _append(name, index, records, request.broker, request.version)
    except Refused as refused:
        return _answer(acks, [(name, [_refused(index, refused)])], [], request)
    except LogFailed as failed:
        return _answer(acks, [(name, [_refused_by_disk(index, failed)])], [], request)
    except (_Later, _NextTurn) as found:
        message = wire.ProduceRequest(None, acks, 0, [(name, [wire.PartitionData(index, records)])])
        later = (found.checked,) if isinstance(found, _Later) else ()
        return LongWork(_Appends(message, request).run_in_turns(*later), is_in_line=False)
    if acks == 0:
        return None
    base, last, append_time_ms, log_start, _ = appended
    written = fast_requests.produced(
        frame.obj, name_at, name_size, request.correlation_id, index, base, append_time_ms, log_start  # type: ignore[arg-type]
    )  # fmt: skip
    if partition.high_watermark > last:
        return [written]
    late = LateAnswer()

    def complete(failure: LogFailed | None) -> None:
        if failure is None:
            late.complete([written])
        else:
            late.complete(_encode([(name, [_refused_by_disk(index, failure)])], request))

    partition.when_durable(last + 1, complete)
    return late


class _Appends:
    """The batches of one request, appended one after another."""

    def __init__(self, message: wire.ProduceRequest, request: "Request", refuse_with: ErrorCode | None = None) -> None:
        self._request = request
        self._broker = request.broker
        self._acks = message.acks
        self._refuse_with = refuse_with if message.acks in _LEGAL_ACKS else ErrorCode.INVALID_REQUIRED_ACKS
        self._topics: dict[str, list[wire.PartitionAnswer]] = {}
        self._waiting: list[_Waiting] = []
        # Of what is sent twice to one partition the last counts, as in Kafka.
        wanted = {(name, each.partition): each.records for name, partitions in message.topics for each in partitions}
        for name, _ in message.topics:
            self._topics.setdefault(name, [])
        self.left = deque(wanted.items())

    @property
    def cost(self) -> int:
        """How many steps the appends take, about."""
        return sum(_cost(records) for _, records in self.left)

    def append_next(self, *, is_in_turn: bool = False) -> int:
        """Append the next batch and return how many steps that took.

        Raises _Later if it takes a turn of its own, _NextTurn if this is none for long work, and too much was unpacked.
        """
        (name, index), records = self.left[0]
        append = partial(_append, name, index, records, self._broker, self._request.version, is_in_turn=is_in_turn)
        unpacked = self._note(name, index, append)
        self.left.popleft()
        if unpacked < 0:
            unpacked = DECOMPRESSED_BYTES_ON_LOOP_MAX if _is_compressed(records) else 0
        return _cost(records) + unpacked // STEP_BYTES

    async def run_in_turns(self, *later: ProducedBatch | None) -> "Buffers | asyncio.Future[Buffers | None] | None":
        """Append what is left, with turns for others in between, and answer.

        `later` is what has made the first batch wait.
        """
        pace = Pace()
        # Others may have begun in this turn.
        cost = STEPS_IN_A_TURN
        while self.left:
            await pace.step(cost)
            if not later:
                try:
                    cost = self.append_next(is_in_turn=True)
                except _Later as found:
                    later = (found.checked,)
            if later:
                await self._append_later(later[0], pace)
                later, cost = (), STEPS_IN_A_TURN
        return self.answer()

    async def _append_later(self, batch: ProducedBatch | None, pace: Pace) -> None:
        """Append the next batch in a turn in which no other makes files; None is checked in a thread first."""
        (name, index), records = self.left[0]
        try:
            if batch is None:
                batch = await self._check_in_thread(name, index, records)
        except Refused as refused:
            self._topics[name].append(_refused(index, refused))
        else:
            await pace.step(STEPS_IN_A_TURN)
            self._note(name, index, partial(_append_checked, name, index, batch, self._broker))
        self.left.popleft()

    async def _check_in_thread(self, name: str, index: int, records: memoryview | None) -> ProducedBatch:
        broker = self._broker
        rules = _find_topic(name, index, broker).rules
        check = partial(
            batches.check_produced, records, rules, now_ms=broker.clock.now_ms(), produce_version=self._request.version
        )
        assert records is not None  # else it was refused
        # As it is unpacked, and as it is built again.
        unpacked_max = rules.decompressed_bytes_max if _is_compressed(records) else len(records)
        if not _is_compressed(records) or batches.is_recompressed(records[_ATTRIBUTES_AT], rules):
            return await broker.dispatcher.recompress(check, 2 * unpacked_max)
        async with broker.dispatcher.working(unpacked_max):
            return await broker.dispatcher.in_thread(check)

    def _note(self, name: str, index: int, append: "Callable[[], tuple[Partition, Appended, int]]") -> int:
        """Append a batch, note its answer, and return how many bytes its check has unpacked; -1 if it was refused."""
        answers = self._topics[name]
        try:
            if self._refuse_with is not None:
                raise Refused(self._refuse_with)
            partition, appended, unpacked = append()
        except Refused as refused:
            answers.append(_refused(index, refused))
            return -1
        except LogFailed as failed:
            answers.append(_refused_by_disk(index, failed))
            return -1
        durable = partition.durable(appended.last_offset + 1)
        if durable is not None:
            self._waiting.append(_Waiting(answers, len(answers), durable))
        answers.append(_written(index, appended))
        return unpacked

    def answer(self) -> "Buffers | asyncio.Future[Buffers | None] | None":
        """Return the answer, which waits for the disk."""
        return _answer(self._acks, list(self._topics.items()), self._waiting, self._request)


def _answer(
    acks: int, topics: Topics, waiting: list[_Waiting], request: "Request"
) -> "Buffers | asyncio.Future[Buffers | None] | None":
    if acks == 0:
        _close_when_refused(topics, waiting, request)
        return None
    if not waiting:
        return _encode(topics, request)
    return _when_durable(topics, waiting, request)


def _encode(topics: Topics, request: "Request") -> Buffers:
    return request.frame([wire.encode_response(request.version, topics)])


def _cost(records: memoryview | None) -> int:
    """Return how many steps it takes to check and to write a batch, about."""
    return 1 + (len(records) // STEP_BYTES if records is not None else 0)


def _is_compressed(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES_AT and bool(records[_ATTRIBUTES_AT] & _CODEC)


def _append(
    name: str, index: int, records: memoryview | None, broker: "Broker", version: int, *, is_in_turn: bool = False
) -> tuple[Partition, Appended, int]:
    topic = broker.logs.topic(name)
    if topic is None or topic.is_internal or not 0 <= index < len(topic.partitions):
        topic = _find_topic(name, index, broker)
    if records is None:
        raise Refused(ErrorCode.INVALID_RECORD, "Request contains no record batch")
    attributes = records[_ATTRIBUTES_AT] if len(records) > _ATTRIBUTES_AT else 0
    if attributes & _TRANSACTIONAL and records[_MAGIC_AT] == 2:
        # Transactions are not served yet: InitProducerId told the producer so, and nothing half-done is kept.
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not supported by this broker"
        )
    now_ms = broker.clock.now_ms()
    rules = topic.rules
    if (
        rules.compression_type != "producer"
        and len(records) > _ATTRIBUTES_AT
        and batches.is_recompressed(attributes, rules)
    ):
        raise _Later(None)
    try:
        if attributes & _CODEC:
            if not is_in_turn and broker.dispatcher.unpacked_in_turn >= DECOMPRESSED_BYTES_IN_A_TURN:
                raise _NextTurn
            batch = _check_compressed(records, rules, now_ms, version, broker)
            if batch.unpacked_size >= STEP_BYTES:
                broker.dispatcher.count_unpacked(batch.unpacked_size)
        else:
            batch = batches.check_produced(
                records, rules, now_ms=now_ms, produce_version=version, may_rebuild=False
            )
    except NeedsThread:
        raise _Later(None) from None
    partition = topic.partitions[index]
    try:
        return partition, partition.append(batch, now_ms=now_ms, may_roll=False), batch.unpacked_size
    except NeedsRoll:
        raise _Later(batch) from None


def _check_compressed(
    records: memoryview, rules: BatchRules, now_ms: int, version: int, broker: "Broker"
) -> ProducedBatch:
    """Return the batch, checked; raises _Later if it unpacks to more than can be checked at once."""
    if DECOMPRESSED_BYTES_ON_LOOP_MAX < len(records) <= rules.max_message_bytes:
        raise _Later(None)
    try:
        return batches.check_produced(
            records, _on_loop(rules), now_ms=now_ms, produce_version=version, may_rebuild=False
        )
    except Refused as refused:
        broker.dispatcher.count_unpacked(DECOMPRESSED_BYTES_ON_LOOP_MAX)
        is_for_thread = (
            refused.code is ErrorCode.MESSAGE_TOO_LARGE
            and len(records) <= rules.max_message_bytes
            and rules.decompressed_bytes_max > DECOMPRESSED_BYTES_ON_LOOP_MAX
        )
        if is_for_thread:
            raise _Later(None) from None
        raise


def _append_checked(name: str, index: int, batch: ProducedBatch, broker: "Broker") -> tuple[Partition, Appended, int]:
    partition = _find_topic(name, index, broker).partitions[index]
    return partition, partition.append(batch, now_ms=broker.clock.now_ms()), 0


def _find_topic(name: str, index: int, broker: "Broker") -> "Topic":
    """Return the topic of a partition to which a client may append."""
    topic = broker.logs.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
    return topic


@lru_cache(maxsize=256)
def _on_loop(rules: BatchRules) -> BatchRules:
    """Return the rules under which a batch can be checked in one turn of the event loop."""
    return dataclasses.replace(
        rules, decompressed_bytes_max=min(rules.decompressed_bytes_max, DECOMPRESSED_BYTES_ON_LOOP_MAX)
    )


def _written(index: int, appended: Appended) -> wire.PartitionAnswer:
    return wire.PartitionAnswer(index, 0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset)


def _refused(index: int, refused: Refused) -> wire.PartitionAnswer:
    return wire.PartitionAnswer(index, int(refused.code), -1, -1, -1, refused.record_errors, refused.message)


def _refused_by_disk(index: int, failed: LogFailed) -> wire.PartitionAnswer:
    return _refused(index, Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failed)))


def _when_durable(
    topics: Topics, waiting: list[_Waiting], request: "Request"
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
            answered.set_result(_encode(topics, request))

    for wait in waiting:
        wait.durable.add_done_callback(lambda _, wait=wait: one_is_done(wait))  # type: ignore[misc]
    return answered


def _close_when_refused(topics: Topics, waiting: list[_Waiting], request: "Request") -> None:
    """Close the connection after an error: that is how a producer with acks=0 learns of it, as with Kafka."""
    for wait in waiting:
        wait.durable.add_done_callback(lambda durable: durable.cancelled() or durable.exception())
    if any(answer.error_code for _, answers in topics for answer in answers):
        request.connection.refuse("a record sent with acks=0 was refused")
