"""The topic of the clicks, and how they get into it."""

from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, Message, Producer

from examples.clicks.generator import PARTITIONS, TOPIC, Click
from logmark.client import Client
from logmark.client.answers import NewTopic

REPORT_EVERY = 10_000


def create(bootstrap_servers: str) -> None:
    """The topic is there and keeps its clicks for ever."""
    # Retention goes by the clicks' own times: a click of last month would be due for removal as soon as it is written.
    settings = {"retention.ms": "-1"}
    with Client(bootstrap_servers) as client:
        for refusal in client.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, config=settings)]).values():
            raise refusal


def publish(
    bootstrap_servers: str, clicks: Iterable[Click], progress: Callable[[int], None] = lambda done: None
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
        if sent % REPORT_EVERY == 0:
            producer.poll(0)
            progress(sent)
    left = producer.flush(120)
    if failures or left:
        reason = failures[0].str() if failures else "the broker did not answer in time"
        raise RuntimeError(f"{left + len(failures)} of {sent} clicks were not written: {reason}")
    progress(sent)
    return sent


def _send(producer: Producer, click: Click) -> None:
    while True:
        try:
            producer.produce(TOPIC, click.value, click.key, timestamp=click.at_ms)
            return
        except BufferError:
            producer.poll(0.1)  # the queue is full: let it drain
