"""Reads one partition from its leader, one request ahead of its reader."""

import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from logmark.client.answers import FetchedPartition
from logmark.client.connection import Connection
from logmark.client.errors import BrokerUnreachable, OffsetOutOfRange, RefusedByBroker, error_code
from logmark.errors import ErrorCode, Malformed
from logmark.names import TopicPartition
from logmark.wire import fetch
from logmark.wire.schema import list_offsets

EMPTY_ANSWERS = 3  # in a row, before a leader is asked whether it has anything there
_EARLIEST_LOCAL, _EARLIEST_LOCAL_SINCE = -4, 8
_BACKOFF_S = 0.1
_HEADER_BYTES = 61
_LENGTH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")


class Fetcher:
    """One partition, one socket; `send` and `receive` are the halves of a fetch, and at most one is under way.

    The records of an answer are a view of a buffer that the next `receive` writes over.
    """

    def __init__(
        self,
        partition: TopicPartition,
        *,
        connect: Callable[[], Connection],
        moved: Callable[[], None],
        bounds: Callable[[], tuple[int, int]],
        timeout_s: float,
        bytes_max: int,
        max_wait_ms: int,
        min_bytes: int,
        read_committed: bool,
    ) -> None:
        """Prepare a fetcher, which connects at the first `send`; `moved` forgets the leader, `bounds` lists offsets."""
        self.partition = partition
        self._connect = connect
        self._moved = moved
        self._bounds = bounds
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._isolation_level = int(read_committed)
        self._connection: Connection | None = None
        self._version = fetch.VERSIONS[-1]
        self._asked: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; a response under way is lost."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._asked = None

    def send(self, offset: int) -> None:
        """Ask for the batches from `offset` on."""
        assert self._asked is None, "the answer to the last request was not received"
        self._asked = offset
        try:
            self._send()
        except BrokerUnreachable:
            # `receive` connects again; what was asked is remembered.
            self._drop()

    def receive(self) -> FetchedPartition:
        """Return the response to the last `send`, from the present leader of the partition."""
        assert self._asked is not None, "nothing was asked"
        offset = self._asked
        deadline = time.monotonic() + self._timeout_s + self._max_wait_ms / 1000
        is_held_back = False
        while True:
            try:
                if self._connection is None or is_held_back:
                    self._send()
                answer = self._receive(deadline)
                is_held_back = answer is None
            except BrokerUnreachable:
                self._drop()
                if time.monotonic() + _BACKOFF_S >= deadline:
                    raise
                time.sleep(_BACKOFF_S)
                continue
            if answer is None:
                self._wait_for_quota(offset, deadline)
                continue
            if answer.error == ErrorCode.NONE:
                self._asked = None
                return answer
            if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._asked = None
                start, end = self._bounds()
                raise OffsetOutOfRange(self.partition, offset, log_start=start, log_end=end)
            if not answer.error.is_retriable or answer.error == ErrorCode.CORRUPT_MESSAGE:
                self._asked = None
                raise self._refusal(offset, answer.error)
            self._drop()
            if time.monotonic() + _BACKOFF_S >= deadline:
                self._asked = None
                raise self._refusal(offset, answer.error)
            time.sleep(_BACKOFF_S)

    def read(self, start: int, stop: int) -> Iterator[FetchedPartition]:
        """Yield every response from offset `start` until a batch reaches `stop`; request the next one ahead.

        The first batch may begin below `start`, and the last may end beyond `stop`.
        """
        position = start
        silence = Silence(stop, timeout_s=self._timeout_s)
        if position < stop:
            self.send(position)
        while position < stop:
            answer = self.receive()
            after = next_offset(answer.records, position)
            if after > position:
                position = after
                silence.end()
            elif silence.is_all(self, answer, position):
                return
            if position < stop:
                self.send(position)
            if answer.records:
                yield answer

    def visible_end(self, answer: FetchedPartition) -> int:
        """Return where this reader's view of the log ended in the last response."""
        return answer.last_stable_offset if self._isolation_level else answer.high_watermark

    def local_start(self) -> int | None:
        """Return the first offset that the leader has on its own disk, None if it is too old to report it."""
        assert self._asked is None, "a fetch is under way"
        if self._connection is None:
            self._connection = self._connect()
        version = self._connection.version_of(list_offsets.KEY, list_offsets.VERSIONS)
        if version < _EARLIEST_LOCAL_SINCE:
            return None
        one = list_offsets.RequestPartition(partition_index=self.partition.partition, timestamp=_EARLIEST_LOCAL)
        request = list_offsets.Request(
            replica_id=-1,
            isolation_level=0,
            topics=[list_offsets.RequestTopic(name=self.partition.topic, partitions=[one])],
            timeout_ms=round(self._timeout_s * 1000),
        )
        response = self._connection.call(list_offsets, request, timeout_s=self._timeout_s, version=version)
        assert isinstance(response, list_offsets.Response)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise RefusedByBroker(
                error_code(found.error_code),
                f"Partition {self.partition}: its leader does not say which records it has itself "
                f"({error_code(found.error_code).name}).",
            )
        return found.offset if found.offset >= 0 else None

    def _send(self) -> None:
        assert self._asked is not None
        if self._connection is None:
            self._connection = self._connect()
            self._version = self._connection.version_of(fetch.KEY, fetch.VERSIONS)
        request = fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._bytes_max,
            isolation_level=self._isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=[
                (
                    self.partition.topic,
                    [
                        fetch.FetchPartition(
                            partition=self.partition.partition,
                            current_leader_epoch=-1,
                            fetch_offset=self._asked,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            bytes_max=self._bytes_max,
                        )
                    ],
                )
            ],
            forgotten=[],
            rack_id="",
        )
        self._connection.send(
            fetch.KEY,
            self._version,
            fetch.encode_request(self._version, request),
            flexible=self._version >= fetch.FLEXIBLE_FROM,
            deadline=time.monotonic() + self._timeout_s,
        )

    def _wait_for_quota(self, offset: int, deadline: float) -> None:
        """Pause before another try on the same connection, which the broker reads when the client may have more."""
        if time.monotonic() + _BACKOFF_S >= deadline:
            self._asked = None
            raise RefusedByBroker(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Partition {self.partition} cannot be read at offset {offset}: the broker holds this client back "
                f"for longer than {self._timeout_s:.0f} s, because its quota is used up.",
            )
        time.sleep(_BACKOFF_S)

    def _receive(self, deadline: float) -> FetchedPartition | None:
        """Return the response, None if it leaves the partition out: that is how a broker throttles a client."""
        assert self._connection is not None
        body = self._connection.receive(deadline)
        try:
            response = fetch.decode_response(self._version, body)
        except Malformed as error:
            raise BrokerUnreachable(f"The answer to a fetch of {self.partition} cannot be read: {error}.") from None
        if response.error_code:
            return _failed(error_code(response.error_code))
        if not response.topics:
            return None
        one = response.topics[0][1][0]
        return FetchedPartition(
            records=memoryview(one.records),
            high_watermark=one.high_watermark,
            last_stable_offset=one.last_stable_offset,
            log_start_offset=one.log_start_offset,
            aborted_transactions=one.aborted_transactions or (),
            error=error_code(one.error_code),
        )

    def _drop(self) -> None:
        asked = self._asked
        self.close()
        self._asked = asked
        self._moved()

    def _refusal(self, offset: int, code: ErrorCode) -> RefusedByBroker:
        if code == ErrorCode.CORRUPT_MESSAGE:
            what = "the broker found damaged records there and sends none of them"
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            what = "you are not allowed to read this topic"
        else:
            what = f"the broker answered {code.name}"
        return RefusedByBroker(code, f"Partition {self.partition} cannot be read at offset {offset}: {what}.")


class Silence:
    """Answers without anything new, to a reader of all up to `stop`.

    A leader that has records below its end sends some at once. If it sends none, older brokers' cleaners have taken the
    last batches of a compacted log away, and nothing lies there for ever; or they are in tiered storage, which was too
    slow to answer, and then the leader's own records begin behind. One that cannot tell where they begin is too old to
    have tiers, and is believed when it has been silent for the whole timeout.
    """

    def __init__(self, stop: int, *, timeout_s: float) -> None:
        self._stop = stop
        self._timeout_s = timeout_s
        self._empty = 0
        self._since = time.monotonic()

    def end(self) -> None:
        """End the silence: something new came."""
        self._empty = 0
        self._since = time.monotonic()

    def is_all(self, fetcher: Fetcher, answer: FetchedPartition, at: int) -> bool:
        """Return whether the log has no records from `at` to the stop; raise ClientError if it stays open."""
        is_late = time.monotonic() - self._since > self._timeout_s
        end = fetcher.visible_end(answer)
        is_inside = answer.log_start_offset <= at and self._stop <= end
        self._empty = 0 if answer.records else self._empty + 1
        if is_inside and self._empty and (is_late or self._empty == EMPTY_ANSWERS):
            local = fetcher.local_start()
            if is_late if local is None else local <= at:
                return True
        if not is_late:
            return False
        if is_inside:
            raise RefusedByBroker(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Partition {fetcher.partition} has records up to offset {end}, but its leader has sent none from "
                f"offset {at} on for {self._timeout_s:.0f} s. If they are in tiered storage, that is slow or away.",
            )
        raise OffsetOutOfRange(
            fetcher.partition, self._stop, log_start=answer.log_start_offset, log_end=answer.high_watermark
        )


def _failed(code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(
        records=memoryview(b""), high_watermark=-1, last_stable_offset=-1, log_start_offset=-1, error=code
    )


def next_offset(records: memoryview, position: int) -> int:
    """Return the offset behind the last whole batch, or `position` if there is none."""
    at, size = 0, len(records)
    while size - at >= _HEADER_BYTES:
        base, length = _LENGTH.unpack_from(records, at)
        if length < _HEADER_BYTES - _LENGTH.size:
            raise Malformed(f"a batch of {length} bytes in an answer to a fetch")
        if at + _LENGTH.size + length > size:
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, at + 23)
        position = max(position, base + delta + 1)
        at += _LENGTH.size + length
    return position
