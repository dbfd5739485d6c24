"""A partition that Apache Kafka wrote, with transactions committed, aborted and open, is the same to us and clients."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KafkaPythonPartition

from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.log.folder import METADATA
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.producers import Producers
from logmark.log.settings import TopicSettings
from logmark.testing import Broker
from logmark.wire import batches
from logmark.wire.fetch import FetchPartition, FetchRequest
from logmark.wire.schema import list_offsets
from tests.compat.asking import Connection
from tests.harness.brokers import QUIET
from tests.harness.gateway import call_tool
from tests.harness.node import kafka_node
from tests.harness.tools import PRODUCER_PERFORMANCE, TOPICS, run_tool

pytestmark = pytest.mark.kafka

TOPIC = "orders"
CONFIG = {"segment.index.bytes": "64", "index.interval.bytes": "1", "retention.ms": "-1"}
TIME_MS = 1_700_000_000_000
TRANSACTION_MS = 900_000  # Apache Kafka itself ends what is open for longer
WHOLE = 1 << 20
SIZES = (1, 400, WHOLE)


@dataclass(frozen=True, kw_only=True)
class WrittenLog:
    """What Apache Kafka wrote and said."""

    folder: Path
    seen: dict[str, Any]


def transaction(producer: Producer, count: int, at: int, *, commit: bool | None) -> None:
    producer.begin_transaction()
    for number in range(count):
        producer.produce(TOPIC, f"{at}-{number}-{commit}", partition=0, timestamp=TIME_MS + 1000 * at + number)
        producer.flush(60)
    if commit is not None:
        producer.commit_transaction(120) if commit else producer.abort_transaction(120)


def write(bootstrap_servers: str) -> Producer:
    """Transactions that follow each other, lie in each other, span segments; the last one stays open."""

    def producer(name: str) -> Producer:
        options = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS, "linger.ms": 0}
        made = Producer({"bootstrap.servers": bootstrap_servers, **options, **QUIET})
        made.init_transactions(120)
        return made

    first, second, spanning, last = (producer(name) for name in ("first", "second", "spanning", "last"))
    transaction(spanning, 1, 1, commit=None)
    for number in range(6):
        transaction(first, 2, 10 + number, commit=number % 2 == 0)
        transaction(second, 1, 20 + number, commit=None)
        transaction(first, 1, 30 + number, commit=number % 3 != 0)
        second.commit_transaction(120) if number % 2 else second.abort_transaction(120)
    spanning.abort_transaction(120)
    # The Java client ends each transaction with another epoch (KIP-890).
    run_tool(
        PRODUCER_PERFORMANCE, "--topic", TOPIC, "--num-records", "30", "--record-size", "20", "--throughput", "300",
        "--transactional-id", "java", "--transaction-duration-ms", "20", "--bootstrap-server", bootstrap_servers,
        "--command-property", "batch.size=100",
    ).check()  # fmt: skip
    transaction(last, 2, 90, commit=None)
    transaction(first, 2, 95, commit=False)
    # Kafka answers before it writes the marker; a successor of that name is let in when the marker is there.
    producer("first")
    return last


def read_answers(bootstrap_servers: str) -> dict[str, Any]:
    """What a broker answers from every offset, and to every question about offsets; and what clients read."""
    seen: dict[str, Any] = {}
    with closing(Connection(SimpleNamespace(bootstrap_servers=bootstrap_servers))) as connection:  # type: ignore[arg-type]
        ends = [
            look_up(connection, timestamp, isolation) for timestamp in (-1, -2, -3) for isolation in (0, 1)
        ]
        seen["ends"] = ends
        end = ends[0][0]
        for isolation in (0, 1):
            seen["times", isolation] = [
                look_up(connection, TIME_MS + 1000 * at + plus, isolation) for at in range(100) for plus in (0, 1, 2)
            ]
            for version in (4, 12):
                for size in SIZES:
                    seen["fetch", isolation, version, size] = [
                        fetched(connection, version, offset, size, isolation) for offset in range(end + 2)
                    ]
    for name, reads in (("confluent", confluent), ("kafka-python", kafka_python), ("aiokafka", aiokafka)):
        for isolation in ("read_uncommitted", "read_committed"):
            seen[name, isolation] = reads(bootstrap_servers, isolation)
    return seen


def look_up(connection: Connection, timestamp: int, isolation: int) -> tuple[int, int]:
    wanted = list_offsets.RequestPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topic = list_offsets.RequestTopic(name=TOPIC, partitions=[wanted])
    request = list_offsets.Request(replica_id=-1, isolation_level=isolation, topics=[topic], timeout_ms=1000)
    (answer,) = connection.ask(list_offsets, 10, request).topics[0].partitions
    assert 0 == answer.error_code
    return answer.offset, answer.timestamp


def fetched(connection: Connection, version: int, offset: int, size: int, isolation: int) -> tuple[Any, ...]:
    asked_for = FetchPartition(0, -1, offset, -1, -1, size)
    request = FetchRequest(-1, 0, 1, 1 << 20, isolation, 0, -1, [(TOPIC, [asked_for])], [], "")
    ((_, (answer,)),) = connection.fetch(version, request).topics
    data = bytes(answer.records)
    # Apache Kafka cuts the last batch where the asked size ends; clients drop what is not whole.
    whole, end, problem = batches.sound_prefix(data, base=0, end=None)
    assert problem is None
    if answer.error_code:
        return (answer.error_code,)
    # Of a fetch that ends inside a segment Apache Kafka may name transactions that begin behind it, now and then one
    # more than its index gives: its search takes the second entry where the fetch ends exactly at the first.
    named = sorted(each for each in answer.aborted_transactions or () if size == WHOLE or each[1] < end)
    return (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset, named, data[:whole])


def confluent(bootstrap_servers: str, isolation: str) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "isolation.level": isolation,
         "enable.partition.eof": True, "enable.auto.commit": False, **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "the end was not reached"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return found
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()


def kafka_python(bootstrap_servers: str, isolation: str) -> list[tuple[int, bytes]]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level=isolation, enable_auto_commit=False, check_crcs=True
    )
    partition = KafkaPythonPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found = []
    try:
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            for messages in consumer.poll(timeout_ms=500).values():
                found += [(message.offset, message.value) for message in messages]
        return found
    finally:
        consumer.close()


def aiokafka(bootstrap_servers: str, isolation: str) -> list[tuple[int, bytes]]:
    async def run() -> list[tuple[int, bytes]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers, isolation_level=isolation, enable_auto_commit=False
        )
        await consumer.start()
        try:
            partition = AiokafkaPartition(TOPIC, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[tuple[int, bytes]] = []
            while await consumer.position(partition) < end:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    found += [(message.offset, message.value) for message in messages]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WrittenLog]:
    """Apache Kafka's folder after a clean stop, with one transaction still open, and its answers before."""
    path = tmp_path_factory.mktemp("transactions")
    with kafka_node(path / "node", {"transaction.max.timeout.ms": str(TRANSACTION_MS)}) as node:
        options = [part for name, value in CONFIG.items() for part in ("--config", f"{name}={value}")]
        call_tool(TOPICS, "--create", "--topic", TOPIC, "--partitions", "1", *options, broker=node).check()
        still_open = write(node.bootstrap_servers)
        seen = read_answers(node.bootstrap_servers)
        shutil.copytree(node.log_dir / f"{TOPIC}-0", path / "running")
        node.stop()
        del still_open
        shutil.copytree(node.log_dir / f"{TOPIC}-0", path / "stopped")
    yield WrittenLog(folder=path / "stopped", seen=seen)


def opened(folder: Path, *, clean: bool) -> tuple[Partition, asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    partition = Partition.open(
        str(folder), TOPIC, 0, bytes(16), TopicSettings(CONFIG),
        files=RealFileSystem(sync=False), committer=GroupCommit(loop, durability="os"), clock=SystemClock(),
        clean=clean,
    )  # fmt: skip
    return partition, loop


def files(folder: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"*{suffix}")}


@pytest.mark.parametrize("state", ["clean", "unclean", "only the log", "clean without producers"])
def test_the_log_layer_knows_what_kafka_knew(written: WrittenLog, tmp_path: Path, state: str) -> None:
    folder = tmp_path / f"{TOPIC}-0"
    shutil.copytree(written.folder, folder)
    for path in list(folder.iterdir()):
        if (state == "only the log" and path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")) or (
            state == "clean without producers" and path.suffix in (".txnindex", ".snapshot")
        ):
            path.unlink()
    theirs = written.seen["fetch", 1, 12, WHOLE]

    partition, loop = opened(folder, clean=state.startswith("clean"))

    try:
        assert written.seen["ends"][:2] == [(partition.high_watermark, -1), (partition.last_stable_offset, -1)]
        for offset, answer in enumerate(theirs[:-1]):
            records, aborted = partition.fetch(offset, bytes_max=1 << 20, at_least_one=True, is_committed=True)[:2]
            assert answer[3:] == (sorted(aborted), bytes(records)), f"from offset {offset}"
        assert files(written.folder, ".txnindex") == files(folder, ".txnindex")
        newest = max(files(written.folder, ".snapshot").items())[1]
        snapshot = known(Producers.decode(newest, now_ms=0))
        assert snapshot == known(partition.producers)
        assert [each for each in snapshot if each[-1] >= 0], "no transaction was open"
        assert len(files(folder, ".log")) > 3
    finally:
        partition.close()
        loop.close()
    assert files(written.folder, ".log") == files(folder, ".log")
    for suffix in (".index", ".timeindex", ".txnindex"):
        assert files(written.folder, suffix) == files(folder, suffix)
    ours = max(files(folder, ".snapshot").items())
    assert max(files(written.folder, ".snapshot"))[:20] == ours[0][:20]
    assert snapshot == known(Producers.decode(ours[1], now_ms=0))


def known(producers: Producers) -> list[tuple[Any, ...]]:
    return sorted(
        (
            key, producer.producer_epoch, producer.last[1:4] if producer.last else None, producer.last_timestamp,
            producer.coordinator_epoch, producer.transaction_first_offset,
        )
        for key, producer in producers
    )  # fmt: skip


@pytest.mark.parametrize("is_clean", [True, False])
def test_our_broker_on_kafkas_folder_serves_exactly_what_kafka_serves(
    written: WrittenLog, tmp_path: Path, is_clean: bool
) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=str(data)) as broker:
        broker.create_topic(TOPIC, config=CONFIG)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        producer.produce(TOPIC, b"makes the folder")
        producer.flush(60)
    folder = data / f"{TOPIC}-0"
    for path in list(folder.iterdir()):
        if path.name != METADATA:
            path.unlink()
    for path in written.folder.iterdir():
        if path.name != METADATA:
            shutil.copy(path, folder)
    (data / "recovery-point-offset-checkpoint").unlink()
    # It lists the segments that were there.
    (data / "logmark.segments").unlink()
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()

    with Broker(data_dir=str(data)) as broker:
        ours = read_answers(broker.bootstrap_servers)

    assert written.seen.keys() == ours.keys()
    for what, theirs in written.seen.items():
        assert theirs == ours[what], what
    assert written.seen["confluent", "read_committed"] != written.seen["confluent", "read_uncommitted"]
    values = {value for _, value in written.seen["confluent", "read_committed"]}
    assert not [value for value in values if value.endswith((b"False", b"-90"))]
