"""Tasks of a sink without Spark: what one of them writes, and what is in the topic then."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.spark.sink.delivery import Content, DeliveryPlan, commit_batch, read_delivery_plan, sink_group
from logmark.spark.sink.options import SinkOptions, parse_sink_options
from logmark.spark.sink.outbox import Attempt, connect_sink
from logmark.spark.sink.writer import Sent, send
from tests.harness.brokers import BrokerUnderTest, at
from tests.harness.brokers import read as read_messages

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "key": pa.string(), "value": pa.string(), "headers": HEADERS, "topic": pa.string(), "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "id": pa.string(),
}  # fmt: skip
Row = Mapping[str, Any]


def arrow(rows: Sequence[Row], *, rows_each: int = 1000) -> Iterator[pa.RecordBatch]:
    """The rows as Spark hands them to a task."""
    names = [name for name in TYPES if any(name in row for row in rows)]
    for first in range(0, len(rows), rows_each):
        part = rows[first : first + rows_each]
        yield pa.record_batch({name: pa.array([row.get(name) for row in part], TYPES[name]) for name in names})


class Query:
    """A query that writes batches: what its driver and its tasks do, step by step."""

    def __init__(self, servers: str, topic: str | None, *, id: str = "alerts", query: str = "q", **given: str) -> None:
        named = {"bootstrap.servers": servers, "id": id, **({"topic": topic} if topic else {}), **given}
        self.options: SinkOptions = parse_sink_options(named, is_stream=True)
        self.group = sink_group(id, is_stream=True)
        self.query = query

    def plan(self) -> DeliveryPlan:
        with connect_sink(self.options) as client:
            return read_delivery_plan(client, topic=self.options.topic, group=self.group)

    def attempt(self, batch: int, task: int = 0, *, is_first: bool = True) -> Attempt:
        return Attempt(query=self.query, batch=batch, task=task, is_first=is_first)

    def task(
        self, planned: DeliveryPlan, batch: int, rows: Sequence[Row], *, task: int = 0, is_first: bool = True
    ) -> Sent:
        return send(self.options, planned, self.attempt(batch, task, is_first=is_first), arrow(rows))

    def commit(self, batch: int, *sent: Sent) -> None:
        topics = {topic for one in sent for topic in one.topics} | ({self.options.topic} - {None})  # type: ignore[arg-type]
        with connect_sink(self.options) as client:
            content = sum((one.content for one in sent), Content())
            commit_batch(client, topics=topics, group=self.group, query=self.query, batch=batch, content=content)

    def run(self, batch: int, *tasks: Sequence[Row]) -> None:
        planned = self.plan()
        self.commit(batch, *(self.task(planned, batch, rows, task=number) for number, rows in enumerate(tasks)))


class Killed(Exception):
    """The process is gone at this point."""


def kill_after(client_type: type[Client], monkeypatch: Any, batches: int, *, is_answered: bool = True) -> None:
    """The next process dies when so many batches are written; of the last one it hears nothing, if it is so said."""
    produce, left = client_type.produce, [batches]

    def produce_or_die(self: Client, *arguments: Any) -> int:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        offset = produce(self, *arguments)
        if left[0] == 0 and not is_answered:
            raise Killed
        return offset

    monkeypatch.setattr(client_type, "produce", produce_or_die)


def values(broker: BrokerUnderTest, topic: str, partitions: int = 1) -> list[list[str]]:
    """The values of each partition, in order."""
    return [[row["value"].decode() for row in rows(broker, topic, number)] for number in range(partitions)]


def rows(broker: BrokerUnderTest, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    """The records of a partition as librdkafka reads them."""
    log = TopicPartition(topic, partition)
    with Client(broker.bootstrap_servers) as client:
        start, end = client.earliest([log])[log], client.latest([log])[log]
    if start == end:
        return []
    consumer = broker.consumer()
    consumer.assign(at((topic, partition, start)))
    return [
        {
            "key": message.key(), "value": message.value(), "headers": message.headers() or [],
            "timestamp": message.timestamp()[1],
        }
        for message in read_messages(consumer, end - start)
    ]  # fmt: skip
