"""A broker as a test sees it: ours or Apache Kafka, with the few calls that nearly every example needs."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from logmark.testing import Broker
from tests.harness.node import kafka_node, wait_until
from tests.harness.worker import Worker

DEADLINE_S = 60.0
QUIET = {"log_level": 0}  # librdkafka tells standard error of every broker that stops, and tests stop many

_COORDINATOR_NOT_READY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class BrokerUnderTest:
    """One broker and the clients that a test opened on it; names are made unique, so many tests share a broker."""

    def __init__(self, kind: str, bootstrap_servers: str, control: Any = None) -> None:
        self.kind = kind
        self.bootstrap_servers = bootstrap_servers
        self.control = control  # logmark.testing.Broker or KafkaNode: what starts, stops and disturbs it
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
        self._suffix = uuid.uuid4().hex[:8]
        self._opened: list[Any] = []
        self._producers: dict[tuple[tuple[str, Any], ...], Producer] = {}

    @property
    def is_ours(self) -> bool:
        """Whether this is Logmark and not Apache Kafka."""
        return self.kind == "logmark"

    def unique(self, name: str) -> str:
        """`name` with this test's ending; the same name gives the same answer within a test."""
        return f"{name}-{self._suffix}"

    group = unique

    def share_names(self, other: "BrokerUnderTest") -> None:
        """Gives both brokers the same names, for tests that compare what is printed."""
        self._suffix = other._suffix

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Creates a topic whose name begins with `name` and returns its full name, once clients can see it."""
        topic = self.unique(name)
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self.admin.create_topics([new])[topic].result(DEADLINE_S)

        def is_visible() -> bool:
            seen = self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
            return seen.error is None and len(seen.partitions) == partitions

        wait_until(is_visible, f"{topic} is visible")
        wait_until(lambda: all(self._is_served(topic, index) for index in range(partitions)), f"{topic} is served")
        return topic

    def _is_served(self, topic: str, partition: int) -> bool:
        """Apache Kafka tells of a new topic before the broker leads its partitions."""
        try:
            return self.start_offset(topic, partition) == 0
        except KafkaException:
            return False

    def producer(self, **config: Any) -> Producer:
        """A confluent-kafka producer; option names with underscores for dots."""
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, **QUIET, **_dotted(config)})

    def _kept_producer(self, config: Mapping[str, Any]) -> Producer:
        key = tuple(sorted(config.items()))
        if key not in self._producers:
            self._producers[key] = self.producer(**config)
        return self._producers[key]

    def produce(
        self,
        topic: str,
        values: Iterable[str | bytes | None],
        *,
        partition: int = 0,
        timestamp_ms: int | None = None,
        **config: Any,
    ) -> list[int]:
        """Sends the values and returns the offset that the broker gave to each."""
        producer = self._kept_producer(config)
        reports: list[Message] = []
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            reports.append(message) if error is None else errors.append(error)

        for value in values:
            at = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
            producer.produce(topic, value, partition=partition, on_delivery=on_delivery, **at)
        assert 0 == producer.flush(DEADLINE_S), "records without an answer"
        assert not errors, errors[0]
        return [report.offset() for report in reports]

    def consumer(self, group: str | None = None, **config: Any) -> Consumer:
        """A confluent-kafka consumer, closed at the end of the test; without a group it gets one of its own."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group or f"reader-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                **QUIET,
                **_dotted(config),
            }
        )
        self._opened.append(consumer)
        return consumer

    def worker(
        self, group: str, topic: str, *, partition: int | None = None, client: str = "confluent-kafka", **config: Any
    ) -> Worker:
        """A consumer in a process of its own that the test may crash; with a partition it assigns, else subscribes."""
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            ("fetch.wait.max.ms" if client == "confluent-kafka" else "fetch.max.wait.ms"): 50,
            # Tests that crash a worker wait for the end of its session; a shorter one ends by itself on a busy machine.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 100,
            **_dotted(config),
        }
        worker = Worker(settings, topic=topic, partition=partition, client=client)
        self._opened.append(worker)
        return worker

    def surviving_worker(self, group: str, topic: str, **config: Any) -> Worker:
        """A worker that no test crashes: nobody waits for the end of its session, so it may outlast a stall."""
        return self.worker(group, topic, session_timeout_ms=45_000, **config)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int | tuple[int, str]]) -> None:
        """Commits offsets for a group without being a member of it, each with its metadata when one is given."""
        partitions = [
            TopicPartition(topic, index, *(to if isinstance(to, tuple) else (to,)))
            for (topic, index), to in offsets.items()
        ]
        deadline = time.monotonic() + DEADLINE_S
        while True:
            wanted = ConsumerGroupTopicPartitions(group, partitions)
            try:
                answer = self.admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE_S)
                refused = next((each.error for each in answer.topic_partitions if each.error), None)
                if refused is None:
                    return
                raise KafkaException(refused)
            except KafkaException as failure:
                if failure.args[0].code() not in _COORDINATOR_NOT_READY or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Every offset that the group has committed: the next offset it will read."""
        wanted = ConsumerGroupTopicPartitions(group)
        answer = self.admin.list_consumer_group_offsets([wanted])[group].result(DEADLINE_S)
        return {(each.topic, each.partition): each.offset for each in answer.topic_partitions}

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The offset that the next record will get."""
        return self._offset(topic, partition, OffsetSpec.latest())

    def start_offset(self, topic: str, partition: int = 0) -> int:
        """The lowest offset that can still be read."""
        return self._offset(topic, partition, OffsetSpec.earliest())

    def _offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        at = TopicPartition(topic, partition)
        return int(self.admin.list_offsets({at: spec})[at].result(DEADLINE_S).offset)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Removes the records below `before`."""
        at = TopicPartition(topic, partition, before)
        self.admin.delete_records([at])[at].result(DEADLINE_S)

    def closing(self, client: Any) -> Any:
        """The client, which is closed at the end of the test."""
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Closes what the test opened."""
        for client in self._opened:
            client.close()
        self._opened.clear()
        self._producers.clear()


def read(consumer: Consumer, count: int, *, deadline_s: float = DEADLINE_S) -> list[Message]:
    """The next `count` messages, one poll each, so that the position moves message by message."""
    messages: list[Message] = []
    deadline = time.monotonic() + deadline_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came in {deadline_s} s"
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        messages.append(message)
    return messages


def at(*partitions: tuple[str, int] | tuple[str, int, int]) -> list[TopicPartition]:
    """Partitions, each with a position when one is given."""
    return [TopicPartition(*one) for one in partitions]


def offsets_of(messages: Sequence[Message]) -> list[int]:
    """The offset of each message."""
    return [message.offset() for message in messages]


def values_of(messages: Sequence[Message]) -> list[str]:
    """The value of each message, as text."""
    return [message.value().decode() for message in messages]


def warm_up(bootstrap_servers: str) -> None:
    """Has the group coordinator ready: a fresh node makes its internal topic at the first request of a group."""
    broker = BrokerUnderTest("kafka", bootstrap_servers)
    topic = broker.create_topic("warm-up")
    broker.commit(broker.group("warm-up"), {(topic, 0): 0})


def _dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options as Kafka spells them; call-backs keep the underscore."""
    return {name if callable(value) else name.replace("_", "."): value for name, value in config.items()}


@contextmanager
def own_broker(kind: str, folder: Path) -> Iterator[BrokerUnderTest]:
    """A broker in a process of its own, ours with all that it needs to be killed."""
    if kind == "kafka":
        with kafka_node(folder / "kafka") as node:
            warm_up(node.bootstrap_servers)
            yield BrokerUnderTest(kind, node.bootstrap_servers, node)
        return
    with Broker({"auto.create.topics.enable": "false"}, subprocess=True) as running:
        yield BrokerUnderTest(kind, running.bootstrap_servers, running)
