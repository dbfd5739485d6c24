"""Calls about what partitions hold: offsets by time, records, and the log start."""

import time
from collections.abc import Iterable, Mapping

from logmark.client.answers import EARLIEST, LATEST, FetchedPartition, OffsetAndTimestamp
from logmark.client.errors import OffsetOutOfRange, RefusedByBroker, UnknownTopic, error_code
from logmark.client.fetcher import Fetcher
from logmark.client.router import Router
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.wire.schema import delete_records, list_offsets

_REASONS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "you are not allowed to use this topic",
    ErrorCode.POLICY_VIOLATION: "the topic's settings do not allow it (a compacted topic keeps its records)",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed this log",
    ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader at the moment",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "its records are too old to have timestamps",
}


def partition_refusal(partition: TopicPartition, code: ErrorCode) -> RefusedByBroker:
    """Return the error that names a partition and what the broker said about it."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"Topic {partition.topic} has no partition {partition.partition}, or does not exist.")
    return RefusedByBroker(
        code,
        f"Partition {partition.partition} of topic {partition.topic}: "
        f"{_REASONS.get(code, f'the broker answered {code.name}')}.",
    )


class LogCalls(Router):
    """Offsets by time, records, and the log start of partitions, each asked of the leader."""

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after each timestamp (-1 the end, -2 the log start, -3 the youngest record)."""
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for partition, answer in self.try_list_offsets(wanted, read_committed=read_committed).items():
            if isinstance(answer, RefusedByBroker):
                raise answer
            found[partition] = answer
        return found

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets."""
        answers = self.list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {partition: answer.offset for partition, answer in answers.items()}

    def latest(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the visible ends: the next offsets that a reader will see."""
        answers = self.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
        return {partition: answer.offset for partition, answer in answers.items()}

    def try_list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp | RefusedByBroker]:
        """Return the same as `list_offsets`, with an error for each partition that could not be asked."""
        deadline = self._deadline()
        left = dict(wanted)
        found: dict[TopicPartition, OffsetAndTimestamp | RefusedByBroker] = {}
        for _ in self._tries(deadline):
            located, failures = self._located(left, deadline)
            found |= failures
            for leader, partitions in located.items():
                request = offsets_request(
                    partitions, left, read_committed=read_committed, timeout_ms=self._timeout_ms(deadline)
                )
                answer = self._ask(list_offsets, request, list_offsets.Response, to=leader, deadline=deadline)
                for topic in answer.topics:
                    for one in topic.partitions:
                        found[TopicPartition(topic.name, one.partition_index)] = _read_offset(topic.name, one)
            again = [
                partition
                for partition in left
                if partition not in failures
                and isinstance(answered := found.get(partition), RefusedByBroker)
                and answered.code.is_retriable
            ]
            left = {partition: wanted[partition] for partition in again}
            if not left:
                break
            self.forget_leaders(left)
        return {partition: found[partition] for partition in wanted}

    def fetch(
        self, partition: TopicPartition, offset: int, *,
        bytes_max: int = 1 << 20, max_wait_ms: int = 500, min_bytes: int = 1, read_committed: bool = False,
    ) -> FetchedPartition:  # fmt: skip
        """Return the batches from the one that holds `offset` on; none if there is nothing new in `max_wait_ms`."""
        with self.fetcher(
            partition, bytes_max=bytes_max, max_wait_ms=max_wait_ms, min_bytes=min_bytes, read_committed=read_committed
        ) as fetcher:
            fetcher.send(offset)
            return fetcher.receive()

    def fetcher(
        self, partition: TopicPartition, *,
        bytes_max: int = 4 << 20, max_wait_ms: int = 500, min_bytes: int = 1, read_committed: bool = False,
    ) -> Fetcher:  # fmt: skip
        """Return a reader of one partition on a socket of its own, which requests the next response ahead."""
        return Fetcher(
            partition,
            connect=lambda: self.dedicated(partition, timeout_s=self.timeout_s),
            moved=lambda: self.forget_leaders([partition]),
            bounds=lambda: (self.earliest([partition])[partition], self.latest([partition])[partition]),
            timeout_s=self.timeout_s,
            bytes_max=bytes_max,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            read_committed=read_committed,
        )

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what lies below these offsets (-1: everything) and return the new log start offsets."""
        deadline = self._deadline()
        left = dict(before)
        starts: dict[TopicPartition, int] = {}
        code, failed = ErrorCode.REQUEST_TIMED_OUT, next(iter(before), TopicPartition("", 0))
        for _ in self._tries(deadline):
            for leader, partitions in self._by_leader(left, deadline).items():
                request = delete_records.Request(
                    topics=[
                        delete_records.RequestTopic(
                            name=topic,
                            partitions=[
                                delete_records.RequestPartition(
                                    partition_index=number, offset=left[TopicPartition(topic, number)]
                                )
                                for number in numbers
                            ],
                        )
                        for topic, numbers in by_topic(partitions).items()
                    ],
                    timeout_ms=self._timeout_ms(deadline),
                )
                answer = self._ask(delete_records, request, delete_records.Response, to=leader, deadline=deadline)
                for topic in answer.topics:
                    for one in topic.partitions:
                        partition = TopicPartition(topic.name, one.partition_index)
                        if not one.error_code:
                            starts[partition] = one.low_watermark
                            continue
                        code, failed = error_code(one.error_code), partition
                        if not code.is_retriable:
                            raise self._deletion_refusal(partition, before[partition], code)
            left = {partition: offset for partition, offset in left.items() if partition not in starts}
            if not left:
                return starts
            self.forget_leaders(left)
        raise partition_refusal(failed, code)

    def _deletion_refusal(self, partition: TopicPartition, offset: int, code: ErrorCode) -> RefusedByBroker:
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            return partition_refusal(partition, code)
        start, end = self.earliest([partition])[partition], self.latest([partition])[partition]
        return OffsetOutOfRange(partition, offset, log_start=start, log_end=end)

    def _timeout_ms(self, deadline: float) -> int:
        return max(int((deadline - time.monotonic()) * 1000), 1)


def offsets_request(
    partitions: Iterable[TopicPartition], wanted: Mapping[TopicPartition, int], *, read_committed: bool, timeout_ms: int
) -> list_offsets.Request:
    """Return a request to one leader for the offsets of these partitions, each at its timestamp."""
    return list_offsets.Request(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            list_offsets.RequestTopic(
                name=topic,
                partitions=[
                    list_offsets.RequestPartition(
                        partition_index=number, timestamp=wanted[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ],
        timeout_ms=timeout_ms,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers by topic, as most requests want them."""
    grouped: dict[str, list[int]] = {}
    for topic, number in partitions:
        grouped.setdefault(topic, []).append(number)
    return grouped


def _read_offset(topic: str, one: list_offsets.ResponsePartition) -> OffsetAndTimestamp | RefusedByBroker:
    if one.error_code:
        return partition_refusal(TopicPartition(topic, one.partition_index), error_code(one.error_code))
    return OffsetAndTimestamp(offset=one.offset, timestamp_ms=one.timestamp, leader_epoch=one.leader_epoch)
