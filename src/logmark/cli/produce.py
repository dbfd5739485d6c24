"""`logmark produce`: lines of standard input become records."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from confluent_kafka import Producer

from logmark.cli.clusters import Cluster, complete_topic, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import count, counted, print_json, say, write_line
from logmark.cli.topics import check_topic_name
from logmark.client.properties import librdkafka_properties
from logmark.client.views import view_produced
from logmark.errors import UserError

_FLUSH_S = 30.0


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Tally:
    """The offsets that the broker gave, by partition, and the first thing that went wrong."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {}
        self.failure: str | None = None

    def delivered(self, error: Any, message: Any) -> None:
        """Count a record that was acknowledged, or keep the first failure; the producer calls it for each record."""
        if error is not None:
            self.failure = self.failure or str(error.str())
            return
        known = self.offsets.setdefault(message.partition(), [message.offset(), message.offset(), 0])
        known[0] = min(known[0], message.offset())
        known[1] = max(known[1], message.offset())
        known[2] += 1

    @property
    def records(self) -> int:
        return sum(known[2] for known in self.offsets.values())


@on_cluster
def produce(
    cluster: Cluster,
    topic: Annotated[
        str,
        typer.Argument(help="The topic to write to; it must exist.", autocompletion=complete_topic, show_default=False),
    ],
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What stands between key and value in a line; without it there are no keys."),
    ] = None,
    partition: Annotated[int, typer.Option(help="The partition; -1 lets the key or chance decide.", min=-1)] = -1,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.NONE,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write each line of standard input as a record, and print the offsets that the broker assigned."""
    if key_separator == "":
        raise UserError("--key-separator must not be empty.", exit_code=2)
    cluster.refuse_writing()
    _check_topic(topic, partition, cluster)
    tally = Tally()
    producer = _producer(cluster, compression)
    if sys.stdin.isatty():
        say("Each line becomes a record; Ctrl-D ends.")
    problem = None
    try:
        problem = _send_lines(producer, topic, partition, key_separator, tally)
    finally:
        producer.flush(_FLUSH_S)
        _report(topic, tally, output)
    if tally.failure or len(producer):
        raise UserError(
            f"{counted(tally.records, 'record')} written to {topic}, and then one was refused: "
            f"{tally.failure or 'the broker did not answer in time'}."
        )
    if problem:
        raise UserError(f"{problem} {counted(tally.records, 'record')} written before it.")


def _check_topic(topic: str, partition: int, cluster: Cluster) -> None:
    """Raise UserError if the topic does not exist: a typo must not create one."""
    check_topic_name(topic)
    with cluster.connect() as client:
        known = client.metadata([topic]).partitions(topic)
    if not known:
        raise UserError(f"Topic {topic} does not exist. Create it first: logmark topics create {topic} --partitions 1")
    if partition >= len(known):
        raise UserError(f"Topic {topic} has no partition {partition}: it has {len(known)}, numbered from 0.")


def _producer(cluster: Cluster, compression: Compression) -> Any:
    return Producer(
        {
            **librdkafka_properties(cluster.properties),
            "bootstrap.servers": cluster.bootstrap_servers,
            "client.id": "logmark-produce",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": compression.value,
            "delivery.timeout.ms": int(_FLUSH_S * 1000),
            "log_level": 0,
        }
    )


def _send_lines(producer: Any, topic: str, partition: int, separator: str | None, tally: Tally) -> str | None:
    """Send until the input ends, or a line cannot be parsed; return that line's problem."""
    wanted = None if separator is None else separator.encode()
    for number, line in enumerate(_lines(), 1):
        key, value = None, line
        if wanted is not None:
            key, found, value = line.partition(wanted)
            if not found:
                return f"Line {number} has no key: {separator!r} is not in it."
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition, on_delivery=tally.delivered)
                break
            except BufferError:
                producer.poll(0.1)  # The queue is full: wait for the broker.
        producer.poll(0)
        if tally.failure:
            return None
    return None


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _report(topic: str, tally: Tally, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([asdict(one) for one in view_produced(topic, tally.offsets)])
        return
    for number, (first, last, records) in sorted(tally.offsets.items()):
        where = f"offset {first}" if first == last else f"offsets {first} to {last}"
        write_line(f"Wrote {count(records, 'record')} to {topic}, partition {number}: {where}.")
    if not tally.offsets:
        say("There was nothing to write.")
