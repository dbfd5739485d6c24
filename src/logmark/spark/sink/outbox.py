"""The rows of one task on their way into partitions: routed, gathered into record batches, sent, each once."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from logmark.client.client import Client
from logmark.client.errors import ClientError, RefusedByBroker, UnknownTopic
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.offsets.partitioner import partition_for_key
from logmark.spark.errors import is_transient
from logmark.spark.sink.delivery import (
    SEQUENCE_MAX,
    DeliveryPlan,
    Sender,
    find_written,
    fingerprint,
    list_partitions,
    make_sender,
    read_fingerprints,
)
from logmark.spark.sink.options import SinkOptions
from logmark.wire import batches

log = logging.getLogger(__name__)

T = TypeVar("T")
Record = tuple[bytes | None, bytes | None]
Headers = Sequence[tuple[str | bytes, bytes | None]]

TIMEOUT_S = 30.0
PAUSE_S = 1.0
ROWS_PER_STICK = 1000
LOOKS_MAX = 10
RECORD_OVERHEAD_BYTES = 32  # lengths, deltas and counts, which are mostly smaller
DEFAULT_MESSAGE_BYTES_MAX = 1_048_588


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which task of which batch of which query this is, and whether it is tried for the first time."""

    query: str
    batch: int
    task: int
    is_first: bool = True

    def __str__(self) -> str:
        return f"Spark partition {self.task} of batch {self.batch}"


def connect_sink(options: SinkOptions, *, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client for the cluster that the options name."""
    return Client(options.bootstrap_servers, config=options.client, client_id=options.client_id, timeout_s=timeout_s)


def retry_call(call: Callable[[], T], options: SinkOptions, what: str) -> T:
    """Return what the call returns; retry it while a broker is away for less than the patience."""
    began = time.monotonic()
    while True:
        try:
            return call()
        except ClientError as error:
            waited_s = time.monotonic() - began
            # The client has asked for half a minute already before it says that there is no such topic.
            if not is_transient(error) or isinstance(error, UnknownTopic) or waited_s >= options.patience_s:
                raise
            log.warning("%s %s is tried again for up to %.0f s.", error, what, options.patience_s - waited_s)
            time.sleep(PAUSE_S)


class Outbox:
    """What one task writes; `close` sends what is left, and without it nothing more is sent."""

    def __init__(self, client: Client, options: SinkOptions, plan: DeliveryPlan, attempt: Attempt) -> None:
        self._client = client
        self._options = options
        self._plan = plan
        self._attempt = attempt
        self._sender: Sender | None = None
        self._counts = dict(plan.counts)
        self._boxes: dict[TopicPartition, _PendingBatch] = {}
        self._without_key: dict[str, int] = {}
        self._size_max: dict[str, int] = {}
        self.rows = 0

    @property
    def topics(self) -> frozenset[str]:
        """The topics that rows were for."""
        return frozenset(self._counts)

    def put(
        self, topic: str | None, partition: int | None, key: bytes | None, value: bytes | None, headers: Headers,
        timestamp_ms: int,
    ) -> None:  # fmt: skip
        """Take one row, and sends the batch that is full with it."""
        self.rows += 1
        topic_partition = self._choose_partition(topic, partition, key)
        box = self._boxes.get(topic_partition) or self._open(topic_partition)
        self._fill(box, [(key, value)], [headers], [timestamp_ms])

    def put_all(
        self, topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None],
        headers: Sequence[Headers], timestamps: Sequence[int], spread: Callable[[int], Sequence[int]],
    ) -> None:  # fmt: skip
        """Take rows for one topic at once; `spread` gives the partitions of the keys among so many.

        What a row costs here is what the sink costs.
        """
        self.rows += 1
        count = self._counts.get(topic) or self._count(topic)
        by_partition: dict[int, list[int]] = {}
        numbers = spread(count) if keys else ()
        for row, key in enumerate(keys or [None] * len(values)):
            number = self._stick(topic, count) if key is None else numbers[row]
            if number in by_partition:
                by_partition[number].append(row)
            else:
                by_partition[number] = [row]
        for number, rows in by_partition.items():
            topic_partition = TopicPartition(topic, number)
            box = self._boxes.get(topic_partition) or self._open(topic_partition)
            records: list[Record] = [(keys[row] if keys else None, values[row]) for row in rows]
            self._fill(box, records, [headers[row] for row in rows], [timestamps[row] for row in rows])
        self.rows += len(values) - 1

    def _fill(self, box: "_PendingBatch", records: list[Record], headers: list[Headers], timestamps: list[int]) -> None:
        """Add the rows that are not in the log, in order; a batch goes out when no other row fits into it."""
        done = min(len(records), max(0, box.written - box.row))
        for number, (key, value) in enumerate(records[:done], box.row):
            self._compare(box, number, key, value)
        box.row += done
        size, at = box.size, done
        for index in range(done, len(records)):
            key, value = records[index]
            more = RECORD_OVERHEAD_BYTES
            if key:
                more += len(key)
            if value:
                more += len(value)
            for name, content in headers[index]:
                more += len(name) + len(content or b"") + 10
            if size + more > box.size_max and (box.records or index > at):
                box.add(records[at:index], headers[at:index], timestamps[at:index], size)
                self._send(box)
                if box.row < box.written:  # another attempt is ahead by now
                    self._fill(box, records[index:], headers[index:], timestamps[index:])
                    return
                size, at = 0, index
            size += more
        box.add(records[at:], headers[at:], timestamps[at:], size)

    def close(self) -> None:
        """Send what is left."""
        for box in self._boxes.values():
            if box.records:
                self._send(box)

    def _choose_partition(self, topic: str | None, partition: int | None, key: bytes | None) -> TopicPartition:
        topic = self._options.topic or topic
        if not topic:
            raise UserError(
                f"Row {self.rows} of {self._attempt} names no topic. Fill the column topic in every row, or give the "
                "option topic."
            )
        count = self._counts.get(topic) or self._count(topic)
        if partition is not None:
            if not 0 <= partition < count and not 0 <= partition < self._count(topic):
                raise UserError(
                    f"Row {self.rows} of {self._attempt} is for partition {partition} of topic {topic}, which has "
                    f"partitions 0 to {self._counts[topic] - 1}."
                )
            return TopicPartition(topic, partition)
        if key is not None:
            return TopicPartition(topic, partition_for_key(key, count))
        return TopicPartition(topic, self._stick(topic, count))

    def _stick(self, topic: str, count: int) -> int:
        """Return the partition of the next row without a key: by its number alone, so that it is repeatable."""
        number = self._without_key.get(topic, 0)
        self._without_key[topic] = number + 1
        return (self._attempt.batch + self._attempt.task + number // ROWS_PER_STICK) % count

    def _count(self, topic: str) -> int:
        """Return how many partitions the topic has now; those that keys are spread over stay as they were planned."""
        there = len(retry_call(lambda: list_partitions(self._client, topic), self._options, f"Topic {topic}"))
        self._counts.setdefault(topic, there)
        return there

    def _open(self, topic_partition: TopicPartition) -> "_PendingBatch":
        if self._sender is None:
            self._sender = (
                make_sender(self._attempt.query, self._attempt.batch, self._attempt.task)
                if self._options.is_once
                else Sender(*retry_call(self._client.init_producer_id, self._options, "Asking for a producer id"))
            )
        written = self._plan.written.get(topic_partition, {}).get(self._sender, 0)
        if self._options.is_once and not self._attempt.is_first:
            written = self._written(topic_partition)
        size_max = self.message_bytes_max(topic_partition.topic)
        box = self._boxes[topic_partition] = _PendingBatch(
            topic_partition,
            written=written,
            # Less than the broker takes: the sizes are estimates.
            size_max=min(self._options.batch_bytes_max, size_max * 15 // 16),
        )
        if written:
            self._read_back(box)
        return box

    def _written(self, topic_partition: TopicPartition) -> int:
        """Return how many rows of this task the log holds by now."""
        assert self._sender is not None
        start = self._plan.starts.get(topic_partition, 0)
        found = retry_call(
            lambda: find_written(self._client, {topic_partition: start}), self._options, f"Looking at {topic_partition}"
        )
        return found.get(topic_partition, {}).get(self._sender, 0)

    def _read_back(self, box: "_PendingBatch") -> None:
        assert self._sender is not None
        start, sender = self._plan.starts.get(box.topic_partition, 0), self._sender
        box.there = retry_call(
            lambda: read_fingerprints(self._client, box.topic_partition, start, sender),
            self._options,
            f"Reading {box.topic_partition}",
        )

    def _compare(self, box: "_PendingBatch", number: int, key: bytes | None, value: bytes | None) -> None:
        """Raise UserError if a repeated row has changed: rows are recognised by their numbers, and it would be lost."""
        if box.there.pop(number, fingerprint(key, value)) != fingerprint(key, value):
            raise UserError(
                f"{self._attempt} is repeated with other rows than before: row {number} of those for "
                f"{box.topic_partition} is not the one that was written. Nothing more was written. Make the query "
                "deterministic, or finish this batch with delivery=at-least-once."
            )

    def message_bytes_max(self, topic: str) -> int:
        """Return how large a record batch the topic takes."""
        if topic not in self._size_max:
            name = "max.message.bytes"

            def ask() -> str | None:
                return self._client.topic_settings([topic], [name]).get(topic, {}).get(name)

            found = retry_call(ask, self._options, f"Topic {topic}")
            self._size_max[topic] = int(found) if found and found.isdecimal() else DEFAULT_MESSAGE_BYTES_MAX
        return self._size_max[topic]

    def _send(self, box: "_PendingBatch") -> None:
        """Write the batch to the log, unless another attempt has written it."""
        looks = 0
        while box.records:
            batch = self._sealed(box)
            try:
                retry_call(
                    lambda: self._client.produce(box.topic_partition, batch),  # noqa: B023
                    self._options,
                    f"Writing to {box.topic_partition}",
                )
            except RefusedByBroker as error:
                if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._options.is_once and looks < LOOKS_MAX:
                    # Another attempt of this task has written rows since the batch was planned, or writes them now.
                    looks += 1
                    self._skip(box, is_patient=looks > 1)
                    continue
                raise self._refusal(error, box, batch) from None
            box.clear()

    def _sealed(self, box: "_PendingBatch") -> bytearray:
        assert self._sender is not None
        if box.row > SEQUENCE_MAX:
            raise UserError(
                f"{self._attempt} has more rows for {box.topic_partition} than can be told apart. Use more tasks."
            )
        batch = batches.build(
            box.records,
            timestamp_ms=box.timestamps,
            codec=self._options.codec,
            headers=box.headers if any(box.headers) else None,
            producer_id=self._sender.producer_id,
            producer_epoch=self._sender.producer_epoch,
            base_sequence=box.first,
        )
        if len(batch) > self._size_max[box.topic_partition.topic]:
            raise self._too_large(box, len(batch))
        return batch

    def _skip(self, box: "_PendingBatch", *, is_patient: bool) -> None:
        """Leave out the rows that the log holds by now."""
        if is_patient:
            time.sleep(PAUSE_S)  # what was written may not be visible yet
        written = self._written(box.topic_partition)
        if written > box.first:
            self._read_back(box)
            for number, (key, value) in enumerate(box.records[: written - box.first], box.first):
                self._compare(box, number, key, value)
            box.leave_out(written)

    def _too_large(self, box: "_PendingBatch", size: int) -> UserError:
        return UserError(
            f"A row of {self._attempt} makes a record of {size} bytes (row {box.first} of those for "
            f"{box.topic_partition}), more than max.message.bytes of topic {box.topic_partition.topic}, "
            f"{self._size_max[box.topic_partition.topic]}. It was not written. Make the row smaller, compress with "
            "compression.type, or raise the topic's setting."
        )

    def _refusal(self, error: RefusedByBroker, box: "_PendingBatch", batch: bytearray) -> ClientError | UserError:
        match error.code:
            case ErrorCode.MESSAGE_TOO_LARGE:
                return self._too_large(box, len(batch))
            case ErrorCode.INVALID_PRODUCER_EPOCH:
                return UserError(
                    f"A later batch of this query has written to {box.topic_partition} already, so this late attempt "
                    f"of {self._attempt} ends. It wrote nothing more."
                )
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return UserError(
                    f"{box.topic_partition} refuses row {box.first} of {self._attempt} as out of order, and the rows "
                    "before it are not in the log: records were deleted there while the batch was written. Nothing "
                    "more was written. Start the query again with delivery=at-least-once for this one batch."
                )
            case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return UserError(
                    f"You are not allowed to write to topic {box.topic_partition.topic}. Nothing was written."
                )
            case ErrorCode.INVALID_RECORD:
                return UserError(f"{error} A compacted topic takes no row without a key. The rows were not written.")
            case ErrorCode.INVALID_TIMESTAMP:
                return UserError(
                    f"Topic {box.topic_partition.topic} refuses the timestamp of a row of {self._attempt}: it is too "
                    "old or too far in the future (message.timestamp.before.max.ms and message.timestamp.after.max.ms "
                    "of the topic). The rows were not written."
                )
        return error


class _PendingBatch:
    """The rows for one partition of a topic that are not sent yet."""

    __slots__ = (
        "headers", "records", "row", "size", "size_max", "there", "timestamps", "topic_partition", "written"
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, *, written: int, size_max: int) -> None:
        self.topic_partition = topic_partition
        self.written = written  # rows below this one are in the log
        self.row = 0  # the row that comes next
        self.there: dict[int, int] = {}  # the rows that the log holds, to be compared
        self.size_max = size_max
        self.clear()

    @property
    def first(self) -> int:
        """The number of the first row that is held here."""
        return self.row - len(self.records)

    def clear(self) -> None:
        self.records: list[Record] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] = []
        self.size = 0

    def add(self, records: list[Record], headers: list[Headers], timestamps: list[int], size: int) -> None:
        """Add rows, after which the batch has this size."""
        self.records += records
        self.headers += headers
        self.timestamps += timestamps
        self.row += len(records)
        self.size = size

    def leave_out(self, written: int) -> None:
        """Leave out the rows below this one, which are in the log by now."""
        count = written - self.first
        self.written = max(self.written, written)
        del self.records[:count], self.timestamps[:count], self.headers[:count]
