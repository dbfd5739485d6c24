"""Every client reports a damaged batch, does not retry it in silence, and reads what lies behind it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import CorruptRecordException
from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaConsumer
from kafka.errors import CorruptRecordError
from kafka.structs import TopicPartition as KafkaPythonPartition

from logmark.errors import Malformed
from logmark.testing import Broker
from logmark.wire import batches
from tests.compat.clients import kcat
from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read
from tests.harness.tools import CONSOLE_CONSUMER, run_tool

TOPIC = "orders"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
BATCHES, RECORDS = 10, 3
DAMAGED = 4
FIRST, NEXT = DAMAGED * RECORDS, (DAMAGED + 1) * RECORDS


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """A broker whose topic has a damaged batch in the middle."""
    path = tmp_path_factory.mktemp("damaged")
    with Broker(data_dir=str(path)) as broker:
        broker.create_topic(TOPIC)
        for _ in range(BATCHES):
            assert 0 == wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"order"] * RECORDS)).error_code
    log = Path(path, f"{TOPIC}-0", "00000000000000000000.log")
    content = bytearray(log.read_bytes())
    content[len(content) // BATCHES * DAMAGED + 80] ^= 1
    log.write_bytes(content)
    with Broker(data_dir=str(path)) as broker:
        under_test = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        yield under_test
        under_test.close()


def test_confluent_kafka_raises_and_reads_on_after_a_seek(damaged: BrokerUnderTest) -> None:
    consumer = damaged.consumer()
    consumer.assign(at((TOPIC, 0, 0)))
    assert list(range(FIRST)) == offsets_of(read(consumer, FIRST))

    for _ in range(2):
        with pytest.raises(KafkaException) as told:
            read(consumer, 1)
        assert KafkaError.INVALID_MSG == told.value.args[0].code()
    consumer.seek(at((TOPIC, 0, NEXT))[0])
    assert [NEXT] == offsets_of(read(consumer, 1))


def test_kafka_python_raises_and_reads_on_after_a_seek(damaged: BrokerUnderTest) -> None:
    consumer = damaged.closing(KafkaConsumer(bootstrap_servers=damaged.bootstrap_servers))
    where = KafkaPythonPartition(TOPIC, 0)
    consumer.assign([where])
    consumer.seek(where, 0)
    found: list[int] = []
    while len(found) < FIRST:
        found += [one.offset for one in consumer.poll(30_000).get(where, [])]
    assert list(range(FIRST)) == found

    for _ in range(3):
        with pytest.raises(CorruptRecordError):
            while not consumer.poll(30_000):
                pass
    consumer.seek(where, NEXT)
    assert NEXT == consumer.poll(30_000)[where][0].offset


def test_aiokafka_raises_and_reads_on_after_a_seek(damaged: BrokerUnderTest) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=damaged.bootstrap_servers, enable_auto_commit=False)
        await consumer.start()
        try:
            where = AiokafkaPartition(TOPIC, 0)
            consumer.assign([where])
            consumer.seek(where, 0)
            assert list(range(FIRST)) == [(await consumer.getone()).offset for _ in range(FIRST)]
            for _ in range(3):
                with pytest.raises(CorruptRecordException):
                    await consumer.getone()
            consumer.seek(where, NEXT)
            assert NEXT == (await consumer.getone()).offset
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), 120))


def test_kcat_ends_with_an_error_and_reads_what_lies_behind(damaged: BrokerUnderTest) -> None:
    with pytest.raises(AssertionError, match=r"Invalid message|Invalid compressed data"):
        kcat(damaged, "-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-c", str(FIRST + 1))
    shown = kcat(damaged, "-C", "-t", TOPIC, "-p", "0", "-o", str(NEXT), "-c", "2", "-f", "%o\n")
    assert [str(NEXT), str(NEXT + 1)] == shown.decode().split()


@pytest.mark.kafka
def test_javas_consumer_raises_and_reads_what_lies_behind(damaged: BrokerUnderTest) -> None:
    failed = run_tool(
        *(CONSUMER_PERFORMANCE, "--topic", TOPIC, "--num-records", str(BATCHES * RECORDS), "--timeout", "60000"),
        broker=damaged,
    )
    assert 1 == failed.exit_code, failed
    assert f"Encountered corrupt message when fetching offset {FIRST} for topic-partition {TOPIC}-0" in failed.stderr

    behind = run_tool(
        *(CONSOLE_CONSUMER, "--topic", TOPIC, "--partition", "0", "--offset", str(NEXT), "--timeout-ms", "60000"),
        *("--max-messages", "2", "--formatter-property", "print.offset=true"),
        broker=damaged,
    ).check()
    assert [f"Offset:{NEXT}\torder", f"Offset:{NEXT + 1}\torder"] == behind.stdout.splitlines()


def test_the_batch_for_those_who_did_not_hear_is_taken_for_records_by_nobody() -> None:
    from logmark.broker import corrupt_fetch

    sent = corrupt_fetch.batch(12)

    assert (12, 12) == (batches.read_header(sent).base_offset, batches.read_header(sent).last_offset)
    assert not batches.crc_is_right(sent, 0, len(sent))
    with pytest.raises(Malformed):
        batches.unpack(sent)
    # Nor by those who leave checksums out.
    right = bytearray(sent)
    batches._seal(right)
    with pytest.raises(Malformed, match="gzip"):
        batches.unpack(right)
