"""Fetch sends whole batches as they lie on disk, from the one that holds the asked offset on.

v5  log start offset     v7  fetch sessions (KIP-227)     v9  leader epochs     v10 zstd     v11 racks     v12 flexible
Topic ids replace names in version 13, which is not served yet.
A fetch without enough bytes waits until data comes or its time is over; nothing polls, no other connection waits. It
counts what becomes visible meanwhile, and the log is read again only when that may be enough. Records in a response are
ranges of their files, so that a client that does not read its responses costs no memory.
Who asks for committed records only gets batches below the last stable offset, and what to leave out of them.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from logmark.broker import unreadable
from logmark.broker.answers import Buffer, LongWork
from logmark.broker.pace import Steps, run_at_once, run_in_turns
from logmark.broker.sessions import FetchSession
from logmark.errors import ErrorCode, Refused
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
# To look at a partition takes as long as to read so many bytes.
PARTITION_COST = 16 * 1024
# What a waiting fetch takes in memory, about, and each of its partitions.
FETCH_BYTES, PARTITION_BYTES = 2000, 600

Answer = wire.FetchAnswer[Buffer]
Collected = list[tuple[TopicPartition, Answer]]


def handle_frame(
    frame: memoryview, body_at: int, at: "Request", *, refuse_with: ErrorCode | None
) -> "Buffers | asyncio.Future[Buffers | None] | LongWork":
    """Answers with what there is, or when there is enough."""
    decode = partial(wire.decode_request, at.version, frame, body_at)
    if len(frame) > LARGE_BYTES:
        return LongWork(_handle_large(decode, at, refuse_with))
    return _handle(decode(), at, refuse_with)


async def _handle_large(
    decode: Callable[[], wire.FetchRequest], at: "Request", refuse_with: ErrorCode | None
) -> "Buffers | asyncio.Future[Buffers | None]":
    answer = _handle(await at.broker.dispatcher.in_thread(decode), at, refuse_with)
    return await answer.work if isinstance(answer, LongWork) else answer  # type: ignore[return-value]


def _handle(
    request: wire.FetchRequest, at: "Request", refuse_with: ErrorCode | None
) -> "Buffers | asyncio.Future[Buffers | None] | LongWork":
    try:
        if request.replica_id not in (CONSUMER, DEBUG_CONSUMER):
            # Replicas are brokers, and there is no other broker (CVE-2018-1288).
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if refuse_with is not None:
            raise Refused(refuse_with)
    except Refused as refused:
        return _refusal(request, refused.code, at.version)
    try:
        session, only_news = at.broker.fetch_sessions.resume(request)
    except Refused as refused:
        # A session's error is the whole answer: there are no partitions to speak of.
        none: list[tuple[str, list[Answer]]] = []
        return wire.encode_response(
            at.version, throttle_time_ms=0, error_code=int(refused.code), session_id=0, topics=none
        )
    return _Fetch(request, session, only_news, at).begin()


def _refusal(request: wire.FetchRequest, code: ErrorCode, version: int) -> "Buffers":
    failed: list[tuple[str, list[Answer]]] = [
        (topic, [_failed(partition.partition, code) for partition in partitions])
        for topic, partitions in request.topics
    ]
    # The error of the whole answer exists from version 7 on.
    return wire.encode_response(version, throttle_time_ms=0, error_code=int(code), session_id=0, topics=failed)


class _Watch:
    """What a waiting fetch knows of one partition; the log calls it after each change."""

    __slots__ = ("_fetch", "_is_committed", "_shown_bytes", "_stable", "partition")

    def __init__(self, fetch: "_Fetch", partition: Partition, *, is_committed: bool) -> None:
        self._fetch = fetch
        self._is_committed = is_committed
        self.partition = partition
        self.begin()

    def begin(self) -> None:
        """Count from here: everything before was read."""
        self._shown_bytes = self.partition.shown_bytes
        self._stable = self.partition.last_stable_offset

    def __call__(self) -> None:
        grown = self.partition.shown_bytes - self._shown_bytes
        if grown and self._is_committed and self.partition.last_stable_offset == self._stable:
            return  # of an open transaction
        self.begin()
        # Without new records it is the log start that was moved, a log that has failed, or a topic that was deleted.
        self._fetch.count(grown or None)


class _Fetch:
    """One fetch from its arrival to its answer."""

    __slots__ = (
        "_answered", "_at", "_bytes", "_grown", "_is_changed", "_is_due", "_is_over", "_memory_bytes", "_only_news",
        "_reading", "_request", "_session", "_timer", "_wanted", "_watches",
    )  # fmt: skip

    def __init__(
        self, request: wire.FetchRequest, session: FetchSession | None, only_news: bool, at: "Request"
    ) -> None:
        self._request = request
        self._session = session
        self._only_news = only_news
        self._at = at
        # Of a partition that is asked for twice the last counts, as in Kafka.
        partitions = session.partitions if session is not None else {
            TopicPartition(topic, each.partition): each for topic, asked in request.topics for each in asked
        }  # fmt: skip
        self._wanted: list[tuple[TopicPartition, wire.FetchPartition]] = list(partitions.items())
        self._answered: asyncio.Future[Buffers | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watches: list[_Watch] = []
        self._is_due = False
        # Whether the client waits no more.
        self._is_over = request.max_wait_ms <= 0
        # How many bytes there are for it, at most.
        self._bytes = 0
        # The read of many partitions that is under way; what became visible meanwhile, and whether more changed.
        self._reading: asyncio.Task[None] | None = None
        self._grown = 0
        self._is_changed = False
        self._memory_bytes = FETCH_BYTES + PARTITION_BYTES * len(self._wanted)

    def begin(self) -> "Buffers | asyncio.Future[Buffers | None] | LongWork":
        """Return the answer, or a future if it has to wait for records, or for its turn to read them."""
        if len(self._wanted) > LARGE:
            return LongWork(self._begin_large())
        if self._at.broker.read_turns.is_over:
            answered = self._answer_later()
            self._at.broker.read_turns.wait(self._begin_late, is_short=self._records_behind() <= SHORT_RECORDS)
            return answered
        collected, is_enough = run_at_once(self._collect())
        if self._is_answered_now(is_enough):
            return self._encoded(collected)
        answered = self._answer_later()
        self._watch()
        return answered

    def _records_behind(self) -> int:
        """Return how many records there are for it, at most."""
        count = 0
        for where, wanted in self._wanted:
            partition = self._at.broker.logs.partition(where.topic, where.partition)
            if partition is not None:
                count += max(partition.high_watermark - wanted.fetch_offset, 0)
        return count

    async def _begin_large(self) -> "asyncio.Future[Buffers | None]":
        # It watches before it reads: others have their turns meanwhile, and may append.
        answered = self._answer_later()
        self._watch()
        self._is_over = self._is_answered_now(False)
        await self._read_large()
        return answered

    def _begin_late(self) -> None:
        assert self._answered is not None
        if self._answered.done():
            return
        collected, is_enough = run_at_once(self._collect())
        if self._is_answered_now(is_enough):
            self._answered.set_result(self._encoded(collected))
        else:
            self._watch()

    def _is_answered_now(self, is_enough: bool) -> bool:
        # Where memory is short nobody waits: the client asks again.
        return is_enough or self._is_over or not self._at.broker.budget.has_room(self._memory_bytes)

    def _answer_later(self) -> "asyncio.Future[Buffers | None]":
        broker = self._at.broker
        broker.budget.hold(self._memory_bytes)
        self._answered = broker.loop.create_future()
        self._answered.add_done_callback(self._end)
        return self._answered

    def _watch(self) -> None:
        """Wait for records, as long as the client does."""
        broker = self._at.broker
        wait_s = min(self._request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
        self._timer = broker.loop.call_later(wait_s, self._end_wait)
        is_committed = self._request.isolation_level == READ_COMMITTED
        for where, _ in self._wanted:
            partition = broker.logs.partition(where.topic, where.partition)
            if partition is not None:
                watch = _Watch(self, partition, is_committed=is_committed)
                partition.watchers.add(watch)
                self._watches.append(watch)

    def count(self, grown: int | None) -> None:
        """Count what became visible, and look if it is enough; None is a change that the client may have to know of."""
        if self._reading is not None:
            self._grown += grown or 0
            self._is_changed = self._is_changed or grown is None
            return
        self._bytes += grown or 0
        # Many changes in one turn of the loop are one reason to look.
        if not self._is_due and (grown is None or self._bytes >= self._request.min_bytes):
            self._is_due = True
            self._at.broker.loop.call_soon(self._look_again)

    def _end_wait(self) -> None:
        self._is_over = True
        self._look_again()

    def _look_again(self) -> None:
        if self._answered is None or self._answered.done() or self._reading is not None:
            return
        if len(self._wanted) > LARGE:
            self._reading = asyncio.ensure_future(self._read_large())
        elif self._at.broker.read_turns.is_over:
            self._at.broker.read_turns.wait(self._read_again, is_short=self._bytes <= SHORT_BYTES)
        else:
            self._read_again()

    def _read_again(self) -> None:
        self._is_due = False
        if self._answered is None or self._answered.done():
            return
        collected, is_enough = run_at_once(self._collect())
        if is_enough or self._is_over:
            self._answered.set_result(self._encoded(collected))
            return
        for watch in self._watches:
            watch.begin()

    async def _read_large(self) -> None:
        """Read many partitions while others have their turns, and answer if there is enough."""
        assert self._answered is not None
        self._reading = asyncio.current_task()
        try:
            while not self._answered.done():
                self._grown, self._is_changed = 0, False
                for watch in self._watches:
                    watch.begin()
                collected, is_enough = await run_in_turns(self._collect())
                if self._answered.done():
                    return
                if is_enough or self._is_over:
                    self._answered.set_result(self._encoded(collected))
                # What became visible meanwhile may have been read or not.
                self._bytes += self._grown
                if not self._is_changed and self._bytes < self._request.min_bytes:
                    return
        except Exception as error:  # noqa: BLE001 - the connection logs it and is closed
            if not self._answered.done():
                self._answered.set_exception(error)
        finally:
            self._reading = None
            self._is_due = False

    def _end(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches:
            watch.partition.watchers.discard(watch)
        # Each knows this fetch: as a cycle they would wait for the garbage collector.
        self._watches = []
        self._at.broker.budget.hold(-self._memory_bytes)

    def _collect(self) -> "Steps[tuple[Collected, bool]]":
        """Find what can be sent now, and whether it is worth sending."""
        is_contended = self._at.broker.read_turns.has_waiting
        bytes_max = CONTENDED_BYTES_MAX if is_contended else RECORDS_BYTES_MAX
        left = min(self._request.max_bytes, self._at.broker.fetch_bytes_max, bytes_max)
        total = known = 0
        is_urgent = False
        is_committed = self._request.isolation_level == READ_COMMITTED
        collected: Collected = []
        find: Callable[[str, int], Partition | None] = self._at.broker.logs.partition
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
        is_urgent = is_urgent or not known or known < len(self._watches)
        # There may be as much as the client wants, but it gets no more now.
        is_urgent = is_urgent or (is_contended and total >= CONTENDED_BYTES_MAX // 2)
        self._bytes = total
        self._at.broker.read_turns.count(total + PARTITION_COST * len(collected))
        return collected, is_urgent or total >= self._request.min_bytes

    def _complain(self, where: TopicPartition, offset: int, partition: Partition, answer: Answer) -> Answer:
        """The answer to who asks for a damaged place: the code, or a broken batch when the code was not heard."""
        is_old = self._at.version in unreadable.OLD_VERSIONS
        if not is_old or self._at.connection.complaints.is_heard(where, offset):
            return answer
        ends = partition.high_watermark, partition.last_stable_offset, partition.log_start_offset
        return wire.FetchAnswer(where.partition, 0, *ends, unreadable.batch(offset), answer.aborted_transactions)

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
            self._at.version,
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


def _failed(partition: int, code: ErrorCode) -> Answer:
    return wire.FetchAnswer(partition, int(code), -1, -1, -1, b"")
