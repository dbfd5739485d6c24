"""Fetch sends whole batches as they lie on disk, from the one that holds the asked offset on.

v5  log start offset     v7  fetch sessions (KIP-227)     v9  leader epochs     v10 zstd     v11 racks     v12 flexible
Topic ids replace names in version 13, which is not served yet.
A fetch without enough bytes waits until data comes or its time is over; nothing polls, no other connection waits. It
counts what becomes visible meanwhile, and the log is read again only when that may be enough. Records in a response are
ranges of their files, so that a client that does not read its responses costs no memory.
Who asks for committed records only gets batches below the last stable offset, and what to leave out of them.
"""

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker import corrupt_fetch
from logmark.broker.answers import Buffer, LateAnswer, LongWork
from logmark.broker.event_loop_turns import Steps, run_at_once, run_in_turns
from logmark.broker.fetch_sessions import FetchSession
from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log.file_range import FileRange
from logmark.log.partition import Partition
from logmark.names import TopicPartition
from logmark.wire import fetch as wire

if TYPE_CHECKING:
    from logmark.broker.answers import Buffers
    from logmark.broker.dispatch import Request

schema = wire
KEY = wire.KEY
VERSIONS = range(4, 13)

MAX_WAIT_MS_MAX = 600_000
CONSUMER = -1
DEBUG_CONSUMER = -2
READ_COMMITTED = 1

# A response carries no more than this, or one batch: reading and checking it is one turn of the event loop.
RECORDS_BYTES_MAX = 8 * 1024 * 1024
# While other fetches wait for their turn it carries no more than this, or one batch: hundreds of readers that are far
# behind must not keep those waiting that are at the end of the log.
CONTENDED_BYTES_MAX = 1024 * 1024
# A fetch at the end of the log is short: there are at most so many records, or bytes, for it.
SHORT_RECORDS, SHORT_BYTES = 100, 64 * 1024
# Records below this size are sent as the bytes that were read.
RANGE_BYTES_MIN = 4 * 1024
# So many partitions are looked at in some milliseconds; more in turns. A longer request is decoded in a thread.
LARGE = 500
LARGE_BYTES = 16 * 1024
# To look at a partition takes as long as to read so many bytes, and so does a request that is decoded late.
PARTITION_COST = 16 * 1024
DECODE_COST = 8 * 1024
# What a waiting fetch takes in memory, about, and each of its partitions.
FETCH_BYTES, PARTITION_BYTES = 2000, 600

Answer = wire.FetchAnswer[Buffer]
Collected = list[tuple[TopicPartition, Answer]]


def handle_frame(
    frame: memoryview, body_at: int, request: "Request", *, refuse_with: ErrorCode | None
) -> "Buffers | LateAnswer | LongWork":
    """Answer with what there is, or when there is enough."""
    decode = partial(wire.decode_request, request.version, frame, body_at)
    if len(frame) > LARGE_BYTES:
        return LongWork(_handle_large(decode, request, refuse_with))
    fetch = _DelayedFetch(request)
    if refuse_with is None and request.broker.read_turns.is_over:
        # Thousands may come in the same moment: even to decode them takes many turns.
        fetch.wait_for_turn(decode, FETCH_BYTES + len(frame))
        return fetch
    return fetch.begin(decode(), refuse_with)


async def _handle_large(
    decode: Callable[[], wire.FetchRequest], request: "Request", refuse_with: ErrorCode | None
) -> "Buffers | LateAnswer | None":
    answer = _DelayedFetch(request).begin(await request.broker.dispatcher.in_thread(decode), refuse_with)
    return await answer.work if isinstance(answer, LongWork) else answer  # type: ignore[return-value]


def _refusal(message: wire.FetchRequest, code: ErrorCode, version: int) -> "Buffers":
    failed: list[tuple[str, list[Answer]]] = [
        (topic, [_failed(partition.partition, code) for partition in partitions])
        for topic, partitions in message.topics
    ]
    # The error of the whole answer exists from version 7 on.
    return wire.encode_response(version, throttle_time_ms=0, error_code=int(code), session_id=0, topics=failed)


class _PartitionListener:
    """What a waiting fetch knows of one partition; the log calls it after each change."""

    __slots__ = ("_fetch", "_is_committed", "_shown_bytes", "_stable", "partition")

    def __init__(self, fetch: "_DelayedFetch", partition: Partition, *, is_committed: bool) -> None:
        self._fetch = fetch
        self._is_committed = is_committed
        self.partition = partition
        self.begin()

    def begin(self) -> None:
        """Count from here: everything before was read."""
        self._shown_bytes = self.partition.shown_bytes
        self._stable = self.partition.last_stable_offset if self._is_committed else 0

    def __call__(self) -> None:
        grown = self.partition.shown_bytes - self._shown_bytes
        if grown and self._is_committed and self.partition.last_stable_offset == self._stable:
            return  # of an open transaction
        self.begin()
        # Without new records it is the log start that was moved, a log that has failed, or a topic that was deleted.
        self._fetch.count(grown or None)


class _DelayedFetch(LateAnswer):
    """One fetch from its arrival to its answer, which waits until there are enough records."""

    __slots__ = (
        "_bytes", "_grown", "_is_changed", "_is_due", "_is_over", "_listeners", "_memory_bytes", "_message",
        "_only_news", "_reading", "_request", "_session", "_timer", "_wanted",
    )  # fmt: skip

    def __init__(self, request: "Request") -> None:
        super().__init__()
        self._request = request
        self._message: wire.FetchRequest
        self._session: FetchSession | None = None
        self._only_news = False
        self._wanted: list[tuple[TopicPartition, wire.FetchPartition]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[_PartitionListener] = []
        # Whether it stands in line to read again.
        self._is_due = False
        # Whether the client waits no more.
        self._is_over = False
        # How many bytes there are for it, at most.
        self._bytes = 0
        # The read of many partitions that is under way; what became visible meanwhile, and whether more changed.
        self._reading: asyncio.Task[None] | None = None
        self._grown = 0
        self._is_changed = False
        # What it holds of the memory budget while it waits.
        self._memory_bytes = 0

    # Beginning

    def begin(self, message: wire.FetchRequest, refuse_with: ErrorCode | None) -> "Buffers | LateAnswer | LongWork":
        """Return the answer, or this fetch if it has to wait for records."""
        refused = self._accept(message, refuse_with)
        if refused is not None:
            return self._request.frame(refused)
        if len(self._wanted) > LARGE:
            return LongWork(self._answer_large())
        body = self._read(is_first=True)
        if body is None:
            self._hold(self._waiting_bytes)
            self._start_waiting()
            return self
        return self._request.frame(body)

    def _accept(self, message: wire.FetchRequest, refuse_with: ErrorCode | None) -> "Buffers | None":
        """Take the request, or return the body of the response that refuses it."""
        if message.replica_id not in (CONSUMER, DEBUG_CONSUMER):
            # Replicas are brokers, and there is no other broker (CVE-2018-1288).
            refuse_with = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if refuse_with is not None:
            return _refusal(message, refuse_with, self._request.version)
        try:
            session, self._only_news = self._request.broker.fetch_sessions.resume(message)
        except Refused as refused:
            # A session's error is the whole answer: there are no partitions to speak of.
            none: list[tuple[str, list[Answer]]] = []
            return wire.encode_response(
                self._request.version, throttle_time_ms=0, error_code=int(refused.code), session_id=0, topics=none
            )
        self._message = message
        self._session = session
        # Of a partition that is asked for twice the last counts, as in Kafka.
        partitions = session.partitions if session is not None else {
            TopicPartition(topic, each.partition): each for topic, asked in message.topics for each in asked
        }  # fmt: skip
        self._wanted = list(partitions.items())
        self._is_over = message.max_wait_ms <= 0
        connection = self._request.connection
        if self._wanted and not connection.undecoded_fetches:
            # Not before: the fetches of a connection are decoded in order.
            connection.fetch_line = self._wanted[0][0]
        return None

    def wait_for_turn(self, decode: Callable[[], wire.FetchRequest], memory_bytes: int) -> None:
        """Decode the request when it is its turn, and begin."""
        self._hold(memory_bytes)
        self._request.connection.undecoded_fetches += 1
        self._stand_in_line(partial(self._begin_late, decode), is_short=True)

    def _begin_late(self, decode: Callable[[], wire.FetchRequest]) -> None:
        connection = self._request.connection
        connection.undecoded_fetches -= 1
        if self.done():
            return
        read_turns = self._request.broker.read_turns
        read_turns.count(DECODE_COST)
        try:
            refused = self._accept(decode(), None)
        except Malformed as error:
            connection.refuse(str(error))
            return
        if refused is not None:
            self.complete(refused)
        elif len(self._wanted) > LARGE:
            connection.hold_during(asyncio.ensure_future(self._begin_large()))
        else:
            self._hold(self._waiting_bytes)
            if self._records_behind() > SHORT_RECORDS:
                self._stand_in_line(self._read_late, is_short=False)
            else:
                self._read_late()

    def _stand_in_line(self, read: Callable[[], None], *, is_short: bool) -> None:
        self._request.broker.read_turns.wait(
            partial(self._take_turn, read), line=self._request.connection.fetch_line, is_short=is_short
        )

    def _take_turn(self, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as error:  # noqa: BLE001 - the connection logs it and is closed
            self.fail(error)

    def _records_behind(self) -> int:
        """Return how many records there are for it, at most."""
        count = 0
        for where, wanted in self._wanted:
            partition = self._request.broker.logs.partition(where.topic, where.partition)
            if partition is not None:
                count += max(partition.high_watermark - wanted.fetch_offset, 0)
        return count

    def _read_late(self) -> None:
        if self.done():
            return
        body = self._read(is_first=True)
        if body is None:
            self._start_waiting()
        else:
            self.complete(body)

    async def _answer_large(self) -> "Buffers | LateAnswer | None":
        await self._begin_large()
        if (error := self.exception()) is not None:
            raise error
        return self.result() if self.done() else self

    async def _begin_large(self) -> None:
        # It listens before it reads: others have their turns meanwhile, and may append.
        self._is_over = self._is_over or not self._has_room()
        self._hold(self._waiting_bytes)
        self._start_waiting()
        await self._read_large()

    # Waiting

    @property
    def _waiting_bytes(self) -> int:
        return FETCH_BYTES + PARTITION_BYTES * len(self._wanted)

    def _has_room(self) -> bool:
        """Return whether it may wait: where memory is short nobody does, and the client asks again."""
        return self._request.broker.budget.has_room(self._waiting_bytes)

    def _hold(self, memory_bytes: int) -> None:
        """Hold so much of the memory budget until the end."""
        self._request.broker.budget.hold(memory_bytes - self._memory_bytes)
        self._memory_bytes = memory_bytes

    def _start_waiting(self) -> None:
        """Wait for records, as long as the client does."""
        broker = self._request.broker
        wait_s = min(self._message.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
        self._timer = broker.loop.call_later(wait_s, self._end_wait)
        is_committed = self._message.isolation_level == READ_COMMITTED
        for where, _ in self._wanted:
            partition = broker.logs.partition(where.topic, where.partition)
            if partition is not None:
                listener = _PartitionListener(self, partition, is_committed=is_committed)
                partition.change_listeners.add(listener)
                self._listeners.append(listener)

    def count(self, grown: int | None) -> None:
        """Count what became visible, and look if it is enough; None is a change that the client may have to know of."""
        if self._reading is not None:
            self._grown += grown or 0
            self._is_changed = self._is_changed or grown is None
            return
        self._bytes += grown or 0
        # Many changes in one turn of the loop are one reason to look.
        if not self._is_due and (grown is None or self._bytes >= self._message.min_bytes):
            self._is_due = True
            self._look_again()

    def _end_wait(self) -> None:
        self._is_over = True
        self._look_again()

    def _look_again(self) -> None:
        """Read when it is its turn: not now, because a record may be there for thousands."""
        if self.done() or self._reading is not None:
            return
        if len(self._wanted) > LARGE:
            self._reading = asyncio.ensure_future(self._read_large())
        else:
            self._stand_in_line(self._read_again, is_short=self._bytes <= SHORT_BYTES)

    def _read_again(self) -> None:
        self._is_due = False
        if self.done():
            return
        body = self._read(is_first=False)
        if body is not None:
            self.complete(body)
            return
        for listener in self._listeners:
            listener.begin()

    async def _read_large(self) -> None:
        """Read many partitions while others have their turns, and answer if there is enough."""
        self._reading = asyncio.current_task()
        try:
            while not self.done():
                self._grown, self._is_changed = 0, False
                for listener in self._listeners:
                    listener.begin()
                collected, is_enough = await run_in_turns(self._collect())
                if self.done():
                    return
                if is_enough or self._is_over:
                    self.complete(self._encoded(collected))
                # What became visible meanwhile may have been read or not.
                self._bytes += self._grown
                if not self._is_changed and self._bytes < self._message.min_bytes:
                    return
        except Exception as error:  # noqa: BLE001 - the connection logs it and is closed
            self.fail(error)
        finally:
            self._reading = None
            self._is_due = False

    # Ending

    def complete(self, body: "Buffers | None") -> None:
        self._end()
        super().complete(None if body is None else self._request.frame(body))

    def fail(self, error: Exception) -> None:
        self._end()
        super().fail(error)

    def cancel(self) -> bool:
        self._end()
        return super().cancel()

    def _end(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for listener in self._listeners:
            listener.partition.change_listeners.discard(listener)
        # Each knows this fetch: as a cycle they would wait for the garbage collector.
        self._listeners = []
        self._hold(0)

    # Reading

    def _read(self, *, is_first: bool) -> "Buffers | None":
        """Return the body of the response, or None if the client waits for more.

        It waits the first time only if there is memory for that. Those who ask for the same in one turn share what was
        read and encoded for the first of them.
        """
        read_turns = self._request.broker.read_turns
        shared, key = read_turns.shared, None
        if shared is not None and self._session is None and len(self._wanted) == 1:
            message = self._message
            key = (
                self._request.version, *self._wanted[0], message.max_bytes, message.min_bytes, message.isolation_level,
                read_turns.is_contended,
            )  # fmt: skip
            found = shared.get(key)
            if found is not None:
                read_turns.count(PARTITION_COST + sum(map(len, found)))
                return _copy(found)
        collected, is_enough = run_at_once(self._collect())
        if not (is_enough or self._is_over) and (not is_first or self._has_room()):
            return None
        body = self._encoded(collected)
        if shared is not None and key is not None and is_enough and not collected[0][1].error_code:
            shared[key] = _copy(body)
        return body

    def _collect(self) -> "Steps[tuple[Collected, bool]]":
        """Find what can be sent now, and whether it is worth sending."""
        is_contended = self._request.broker.read_turns.is_contended
        bytes_max = CONTENDED_BYTES_MAX if is_contended else RECORDS_BYTES_MAX
        left = min(self._message.max_bytes, self._request.broker.fetch_bytes_max, bytes_max)
        total = known = 0
        is_urgent = False
        is_committed = self._message.isolation_level == READ_COMMITTED
        collected: Collected = []
        find: Callable[[str, int], Partition | None] = self._request.broker.logs.partition
        for where, wanted in self._wanted:
            partition = find(where.topic, where.partition)
            answer, is_followed = _read(partition, wanted, left, is_first=total == 0, is_committed=is_committed)
            if partition is not None:
                known += 1
                # Behind the end of a segment there is more, which only the next fetch can get.
                is_urgent = is_urgent or is_followed or answer.error_code != 0
                if answer.error_code == ErrorCode.CORRUPT_MESSAGE:
                    answer = self._complain(where, wanted.fetch_offset, partition, answer)
            total += len(answer.records)
            left = max(left - len(answer.records), 0)
            collected.append((where, answer))
            yield 1
        # A partition that nobody knows waits with the others, or its reader would ask without a pause; one that is
        # deleted meanwhile ends the wait.
        is_urgent = is_urgent or not known or known < len(self._listeners)
        # There may be as much as the client wants, but it gets no more now.
        is_urgent = is_urgent or (is_contended and total >= CONTENDED_BYTES_MAX // 2)
        self._bytes = total
        self._request.broker.read_turns.count(total + PARTITION_COST * len(collected))
        return collected, is_urgent or total >= self._message.min_bytes

    def _complain(self, where: TopicPartition, offset: int, partition: Partition, answer: Answer) -> Answer:
        """Return the response for a damaged offset: the error code, or a corrupt batch if the code was ignored."""
        is_old = self._request.version in corrupt_fetch.OLD_VERSIONS
        if not is_old or self._request.connection.complaints.is_heard(where, offset):
            return answer
        ends = partition.high_watermark, partition.last_stable_offset, partition.log_start_offset
        return wire.FetchAnswer(where.partition, 0, *ends, corrupt_fetch.batch(offset), answer.aborted_transactions)

    def _encoded(self, collected: Collected) -> "Buffers":
        session = self._session
        if session is not None:
            if self._only_news:
                collected = [(where, answer) for where, answer in collected if session.has_news(where, answer)]
            for where, answer in collected:
                # The fetch that begins a session is no turn yet, as in Kafka.
                session.tell(where, answer, turns=self._only_news)
        topics: dict[str, list[Answer]] = {}
        for where, answer in collected:
            topics.setdefault(where.topic, []).append(answer)
        return wire.encode_response(
            self._request.version,
            throttle_time_ms=0,
            error_code=0,
            session_id=0 if session is None else session.id,
            topics=list(topics.items()),
        )


def _read(
    partition: Partition | None, wanted: wire.FetchPartition, bytes_left: int, *, is_first: bool, is_committed: bool
) -> tuple[Answer, bool]:
    """Return what there is of a partition, and whether records of another segment follow."""
    index = wanted.partition
    if partition is None:
        return _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), False
    if wanted.last_fetched_epoch > 0:
        return _failed(index, ErrorCode.OFFSET_OUT_OF_RANGE), False
    if wanted.current_leader_epoch > 0:
        return _failed(index, ErrorCode.UNKNOWN_LEADER_EPOCH), False
    bytes_max = min(wanted.bytes_max, bytes_left)
    try:
        # The first partition with data may send one batch above the limits, or a large batch could never be read.
        fetched = partition.fetch(
            wanted.fetch_offset, bytes_max=bytes_max, at_least_one=is_first, is_committed=is_committed
        )
        records = fetched.records if len(fetched.records) < RANGE_BYTES_MIN else partition.hold_open(fetched)
    except Refused as refused:
        return _failed(index, refused.code), False
    stable, start = partition.last_stable_offset, partition.log_start_offset
    answer = wire.FetchAnswer(index, 0, partition.high_watermark, stable, start, records, fetched.aborted)
    return answer, fetched.is_followed and len(records) > 0


def _copy(body: "Buffers") -> "Buffers":
    """Return a body with ranges of files of its own: each is used up as it is sent."""
    return [copy.copy(piece) if isinstance(piece, FileRange) else piece for piece in body]


def _failed(partition: int, code: ErrorCode) -> Answer:
    return wire.FetchAnswer(partition, int(code), -1, -1, -1, b"")
