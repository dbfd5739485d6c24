"""A load that survives its broker: an idempotent producer and a committer, with a history of what was acknowledged."""

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

GROUP = "readers"
QUIET = {"log_level": 0}


@dataclass(slots=True)
class History:
    """What the clients were told, partition by partition; written by the load's threads, read by the test."""

    sent: list[int]
    acknowledged: list[dict[int, str]]
    committed: list[int]
    attempted: list[int]
    commit_count: int = 0
    failures: list[KafkaError] = field(default_factory=list)

    @classmethod
    def of(cls, partitions: int) -> "History":
        """An empty history."""
        zeros = [0] * partitions
        return cls(sent=zeros[:], acknowledged=[{} for _ in zeros], committed=zeros[:], attempted=zeros[:])

    @property
    def acknowledged_count(self) -> int:
        """How many records were acknowledged so far."""
        return sum(len(offsets) for offsets in self.acknowledged)


def value_of(number: int) -> str:
    """The value of the n-th record of a partition: long enough that a run of them fills segments."""
    return f"{number:0200}"


class Load:
    """Produces and commits as fast as the broker allows, through its deaths, until the block is left."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.history = History.of(partitions)
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                **QUIET,
            }
        )
        self._committer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                **QUIET,
            }
        )
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._commit)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            assert 0 == self._producer.flush(60), "records without an answer"
        self._committer.close()

    def _produce(self) -> None:
        history, partition = self.history, 0
        while not self._stopping.is_set():
            # A bound on what is in flight, so that each round's kill finds acknowledged and unacknowledged records.
            if len(self._producer) > 2000:
                self._producer.poll(0.01)
                continue
            number = history.sent[partition]
            self._producer.produce(self._topic, value_of(number), partition=partition, on_delivery=self._on_delivery)
            history.sent[partition] = number + 1
            partition = (partition + 1) % len(history.sent)
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.history.failures.append(error)
            return
        self.history.acknowledged[message.partition()][message.offset()] = message.value().decode()

    def _commit(self) -> None:
        history, number = self.history, 0
        while not self._stopping.is_set():
            number += 1
            partition = number % len(history.committed)
            # What a reader could have processed: never beyond what was acknowledged.
            offset = max(history.attempted[partition], len(history.acknowledged[partition]))
            history.attempted[partition] = offset
            try:
                self._committer.commit(offsets=[TopicPartition(self._topic, partition, offset)], asynchronous=False)
            except KafkaException:
                continue  # the broker is dead for the moment; nothing was promised
            history.committed[partition] = offset
            history.commit_count += 1


def committed_offsets(bootstrap_servers: str, topic: str, partitions: int) -> list[int]:
    """The group's committed offset in each partition; 0 where there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    wanted = [TopicPartition(topic, index) for index in range(partitions)]
    deadline = time.monotonic() + 60
    while True:
        try:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, wanted)])
            answer = asked[GROUP].result(60)
            break
        except KafkaException as error:
            # After a start the coordinator loads what was committed, and says so; clients ask again.
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    return [max(0, each.offset) for each in sorted(answer.topic_partitions, key=lambda each: each.partition)]


def whole_logs(bootstrap_servers: str, topic: str, partitions: int) -> list[list[tuple[int, str]]]:
    """Every record of each partition, as (offset, value), as a reader gets them."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    records: list[list[tuple[int, str]]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    while len(ended) < partitions:
        message = reader.poll(60)
        assert message is not None, f"nothing came for 60 s after {sum(map(len, records))} records"
        if (error := message.error()) is not None:
            assert KafkaError._PARTITION_EOF == error.code(), error
            ended.add(message.partition())
        else:
            records[message.partition()].append((message.offset(), message.value().decode()))
    reader.close()
    return records
