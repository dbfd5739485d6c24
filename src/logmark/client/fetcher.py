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
        """Connects at the first `send`; `moved` forgets the leader, `bounds` asks for log start and visible end."""
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
        """Closes the socket; an answer under way is lost."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._asked = None

    def send(self, offset: int) -> None:
        """Asks for the batches from `offset` on."""
        assert self._asked is None, "the answer to the last request was not received"
        self._asked = offset
        try:
            self._send()
        except BrokerUnreachable:
            # `receive` connects again; what was asked is remembered.
            self._drop()

    def receive(self) -> FetchedPartition:
        """The answer to the last `send`, from whoever leads the partition by now."""
        assert self._asked is not None, "nothing was asked"
        offset = self._asked
        deadline = time.monotonic() + self._timeout_s + self._max_wait_ms / 1000
        while True:
            try:
                if self._connection is None:
                    self._send()
                answer = self._receive(deadline)
            except BrokerUnreachable:
                self._drop()
                if time.monotonic() + _BACKOFF_S >= deadline:
                    raise
                time.sleep(_BACKOFF_S)
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
        """Every answer from offset `start` until a batch reaches `stop`; the next one is on its way while you look.

        The first batch may begin below `start`, and the last may end beyond `stop`.
        """
        position = start
        moved_at = time.monotonic()
        if position < stop:
            self.send(position)
        while position < stop:
            answer = self.receive()
            after = next_offset(answer.records, position)
            if after > position:
                position, moved_at = after, time.monotonic()
            elif time.monotonic() - moved_at > self._timeout_s:
                raise OffsetOutOfRange(
                    self.partition, stop, log_start=answer.log_start_offset, log_end=answer.high_watermark
                )
            if position < stop:
                self.send(position)
            if answer.records:
                yield answer

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

    def _receive(self, deadline: float) -> FetchedPartition:
        assert self._connection is not None
        body = self._connection.receive(deadline)
        try:
            response = fetch.decode_response(self._version, body)
        except Malformed as error:
            raise BrokerUnreachable(f"The answer to a fetch of {self.partition} cannot be read: {error}.") from None
        if response.error_code:
            return _failed(error_code(response.error_code))
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


def _failed(code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(
        records=memoryview(b""), high_watermark=-1, last_stable_offset=-1, log_start_offset=-1, error=code
    )


def next_offset(records: memoryview, position: int) -> int:
    """The offset behind the last whole batch, or `position` if there is none."""
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
