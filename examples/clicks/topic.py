"""The topics of the clicks: how they get into them, and what is in them."""

from collections.abc import Callable, Iterable, Iterator

from confluent_kafka import KafkaError, Message, Producer

from examples.clicks.generator import Click
from examples.clicks.world import PARTITIONS, TOPIC
from logmark.client import Client
from logmark.client.answers import NewTopic
from logmark.errors import ErrorCode
from logmark.offsets.records import read_records
from logmark.wire.batches import Record

ALERTS, DEAD_LETTERS = "alerts", "clicks.dead"
REPORT_EVERY = 10_000


def create(bootstrap_servers: str) -> None:
    """The topics are there and keep what is in them for ever."""
    # Retention goes by the clicks' own times: a click of last month would be due for removal as soon as it is written.
    wanted = {TOPIC: PARTITIONS, ALERTS: 1, DEAD_LETTERS: 1}
    topics = [NewTopic(name=name, partitions=number, config={"retention.ms": "-1"}) for name, number in wanted.items()]
    with Client(bootstrap_servers) as client:
        for refusal in client.create_topics(topics).values():
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise refusal


def publish(
    bootstrap_servers: str,
    clicks: Iterable[Click],
    progress: Callable[[int], None] = lambda done: None,
    *,
    every: int = REPORT_EVERY,
) -> int:
    """Every click is acknowledged by the broker; returns how many there were, or raises what stopped one."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "partitioner": "consistent",
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
    )
    sent = 0
    for click in clicks:
        _send(producer, click)
        sent += 1
        if sent % every == 0:
            producer.poll(0)
            progress(sent)
    left = producer.flush(120)
    if failures or left:
        reason = failures[0].str() if failures else "the broker did not answer in time"
        raise RuntimeError(f"{left + len(failures)} of {sent} clicks were not written: {reason}")
    progress(sent)
    return sent


def read(bootstrap_servers: str, topic: str) -> Iterator[Record]:
    """All records that the topic has now, partition by partition."""
    with Client(bootstrap_servers) as client:
        partitions = client.metadata([topic]).partitions(topic)
        starts, ends = client.earliest(partitions), client.latest(partitions)
        for partition in partitions:
            if starts[partition] < ends[partition]:
                yield from read_records(client, partition, starts[partition], ends[partition])


def _send(producer: Producer, click: Click) -> None:
    while True:
        try:
            producer.produce(TOPIC, click.value, click.key, timestamp=click.arrived_ms)
            return
        except BufferError:
            producer.poll(0.1)  # the queue is full: let it drain
