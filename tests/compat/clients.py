"""Four client libraries behind one pair of calls: write these records, read what is there."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import KafkaError, Message
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.harness.brokers import BrokerUnderTest, at, read
from tests.harness.node import wait_until

T = TypeVar("T")

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Record(NamedTuple):
    """One record as every client sees it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Confluent:
    """confluent-kafka, on librdkafka."""

    @staticmethod
    def write(broker: BrokerUnderTest, topic: str, records: Sequence[Record], codec: str, **config: Any) -> list[int]:
        told: list[int] = []
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            told.append(message.offset()) if error is None else errors.append(error)

        producer = broker.producer(compression_type=codec, **config)
        for record in records:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers), partition=0, on_delivery=on_delivery
            )
        assert 0 == producer.flush(60)
        assert not errors, errors[0]
        return told

    @staticmethod
    def read(broker: BrokerUnderTest, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        consumer = broker.consumer(group)
        if group is None:
            consumer.assign(at((topic, 0, 0)))
        else:
            consumer.subscribe([topic])
        messages = read(consumer, count)
        if group is not None:
            consumer.commit(asynchronous=False)
        return [Record(each.key(), each.value(), tuple(each.headers() or ())) for each in messages]


class KafkaPython:
    """kafka-python, idempotent unless told otherwise."""

    @staticmethod
    def write(broker: BrokerUnderTest, topic: str, records: Sequence[Record], codec: str, **config: Any) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            **config,
        )
        sent = [
            producer.send(topic, record.value, record.key, headers=list(record.headers), partition=0)
            for record in records
        ]
        producer.flush(60)
        told = [future.get(60).offset for future in sent]
        producer.close()
        return told

    @staticmethod
    def read(broker: BrokerUnderTest, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        consumer = broker.closing(
            KafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
        )
        if group is None:
            consumer.assign([KafkaPythonPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        messages: list[Any] = []

        def has_all() -> bool:
            # Long: kafka-python 3.0 never takes up an assignment whose answer comes between two polls.
            for polled in consumer.poll(timeout_ms=60_000).values():
                messages.extend(polled)
            return len(messages) >= count

        wait_until(has_all, f"{count} messages come", deadline_s=120)
        if group is not None:
            consumer.commit()
        return [Record(each.key, each.value, tuple(each.headers)) for each in messages]


class Aiokafka:
    """aiokafka, on asyncio."""

    @staticmethod
    def write(broker: BrokerUnderTest, topic: str, records: Sequence[Record], codec: str, **config: Any) -> list[int]:
        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers,
                compression_type=None if codec == "none" else codec,
                linger_ms=5,
                **config,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(topic, record.value, record.key, headers=list(record.headers), partition=0)
                    for record in records
                ]
                answers = [await future for future in sent]
                return [answer.offset for answer in answers if answer is not None]  # acks=0 has no answers
            finally:
                await producer.stop()

        return _run(run())

    @staticmethod
    def read(broker: BrokerUnderTest, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        async def run() -> list[Record]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            try:
                if group is None:
                    consumer.assign([AiokafkaPartition(topic, 0)])
                    consumer.seek(AiokafkaPartition(topic, 0), 0)
                else:
                    consumer.subscribe([topic])
                messages = [await consumer.getone() for _ in range(count)]
                if group is not None:
                    await consumer.commit()
                return [Record(each.key, each.value, tuple(each.headers)) for each in messages]
            finally:
                await consumer.stop()

        return _run(run())


class Kcat:
    """kcat, with the librdkafka that Debian packs with it; it has no group of its own here and text only."""

    @staticmethod
    def write(broker: BrokerUnderTest, topic: str, records: Sequence[Record], codec: str, **config: Any) -> list[int]:
        first = broker.end_offset(topic)
        for headers in dict.fromkeys(record.headers for record in records):  # one call gives all its records the same
            batch = [record for record in records if record.headers == headers]
            lines = b"".join((record.key or b"") + b"|" + (record.value or b"") + b"\n" for record in batch)
            named = [part for name, value in headers for part in ("-H", f"{name}={(value or b'').decode()}")]
            kcat(broker, "-P", "-t", topic, "-p", "0", "-K", "|", "-Z", "-z", codec, *named, stdin=lines)
        return list(range(first, broker.end_offset(topic)))

    @staticmethod
    def read(broker: BrokerUnderTest, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        if group is None:
            lines = kcat(broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J")
        else:
            options = ("-X", "auto.offset.reset=earliest", "-X", "enable.auto.commit=true")
            lines = kcat(broker, "-G", group, "-c", str(count), "-J", *options, topic)
        return [_from_json(json.loads(line)) for line in lines.splitlines() if line.startswith(b"{")]


def kcat(broker: BrokerUnderTest, *args: str, stdin: bytes | None = None) -> bytes:
    """What kcat prints, once it has ended well."""
    assert shutil.which("kcat"), "kcat is not installed, and these tests run it: install it (Debian: kcat)"
    done = subprocess.run(
        ["kcat", "-q", "-b", broker.bootstrap_servers, *args],
        input=stdin or b"",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def _from_json(message: dict[str, Any]) -> Record:
    headers = message.get("headers", [])
    pairs = zip(headers[::2], headers[1::2], strict=True)
    return Record(
        _encoded(message["key"]), _encoded(message["payload"]), tuple((name, _encoded(value)) for name, value in pairs)
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _run(wanted: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(wanted, 120)

    return asyncio.run(limited())


CLIENTS: dict[str, Any] = {
    "confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka, "kcat": Kcat,
}  # fmt: skip
