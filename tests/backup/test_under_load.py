"""A broker under load is backed up both ways, restored elsewhere and served: nothing is missing, and clients go on."""

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from logmark.backup.manifest import Manifest
from logmark.client.client import Client
from logmark.log.checkpoints import CLEANED, read_offsets
from logmark.names import OFFSETS_TOPIC, TopicPartition
from logmark.testing import Broker
from tests.backup.backup_driver import batches_of, copy_brokers, copy_directory, keys_of, restored
from tests.cli.conftest import run
from tests.harness.brokers import QUIET
from tests.harness.node import wait_until

SETTINGS = {
    "log.initial.task.delay.ms": "50",
    "log.retention.check.interval.ms": "50",
    "log.cleaner.backoff.ms": "50",
}
# Where records are compared, none shall expire meanwhile.
CALM = {**SETTINGS, "log.initial.task.delay.ms": "600000", "log.cleaner.enable": "false"}
GROUP = "billing"
SESSION_S = 60
PARTITIONS = 3
KEYS = 20
# One topic keeps everything, one lets segments go all the time, and one is compacted all the time.
TOPICS = {
    "orders": {"segment.bytes": "1048576", "retention.ms": "-1"},
    "clicks": {"segment.bytes": "1048576", "retention.bytes": "1048576", "file.delete.delay.ms": "0"},
    "prices": {
        "segment.bytes": "1048576", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "0",
    },
}  # fmt: skip


class WrittenRecord(NamedTuple):
    """What was acknowledged, without its bytes: a long load has many."""

    key: bytes
    checksum: int


@dataclass
class Load:
    """Producers with acks=all and a group that commits; what was acknowledged to them."""

    bootstrap_servers: str
    value_bytes: int = 2000
    pause_s: float = 0.004
    written: dict[TopicPartition, dict[int, WrittenRecord]] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    errors: list[object] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True, "linger.ms": 2, **QUIET}
        )
        number = 0
        while not self.is_over.is_set():
            for topic in TOPICS:
                key = TopicPartition(topic, number % PARTITIONS)
                value = b"%s %d " % (str(key).encode(), number)
                value += b"x" * (self.value_bytes - len(value))
                producer.produce(
                    topic, value, key=b"%d" % (number % KEYS), partition=key.partition, on_delivery=self._delivered
                )
            number += 1
            producer.poll(0)
            if not number % 16:
                time.sleep(self.pause_s)
        self.errors += [f"{left} records were not acknowledged"] if (left := producer.flush(60)) else []

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        key = TopicPartition(message.topic(), message.partition())
        self.written.setdefault(key, {})[message.offset()] = written(message)

    @property
    def size_bytes(self) -> int:
        return sum(len(found) for found in list(self.written.values())) * self.value_bytes

    def consume(self) -> None:
        consumer = Consumer({**consumer_settings(self.bootstrap_servers), "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while not self.is_over.is_set():
            messages = consumer.consume(50, 0.05)
            self.errors += [message.error() for message in messages if message.error()]
            if messages and not self.errors:
                for partition in consumer.commit(asynchronous=False):
                    # A partition of which nothing was read yet is told without an offset.
                    if partition.offset >= 0:
                        self.committed[TopicPartition(partition.topic, partition.partition)] = partition.offset
        # Not closed before it is over: while backups are taken the group has a member.
        consumer.close()

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=self.produce), threading.Thread(target=self.consume)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()
        assert not self.errors, self.errors[0]


def written(message: Message) -> WrittenRecord:
    return WrittenRecord(message.key(), zlib.crc32(message.value()))


def consumer_settings(bootstrap_servers: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": GROUP,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "session.timeout.ms": SESSION_S * 1000,
        "heartbeat.interval.ms": 100,
        **QUIET,
    }


def check_restored(
    source: Client, data_dir: Path, backup: Manifest, load: Load, acknowledged: dict[TopicPartition, int]
) -> None:
    """The restored directory is the source as it was: records, commits, ids and settings; and clients go on."""
    with Broker(CALM, data_dir=str(data_dir)) as broker, Client(broker.bootstrap_servers) as client:
        keys = [key for topic in TOPICS for key in keys_of(topic, PARTITIONS)]
        starts, ends = client.earliest(keys), client.latest(keys)
        for key in keys:
            stored = backup.partitions[key]
            assert (stored.log_start_offset, stored.log_end_offset) == (starts[key], ends[key])
            assert ends[key] > starts[key], f"nothing of {key} was copied"
            if key.topic == "prices":
                # The source is compacted on; what must be there is checked by key.
                continue
            # The source has deleted old segments since.
            first = max(starts[key], source.earliest([key])[key])
            there = {base: batch for base, batch in batches_of(source, key, first, ends[key]).items() if base >= first}
            here = {base: batch for base, batch in batches_of(client, key, first, ends[key]).items() if base >= first}
            assert there == here, f"{key} has other batches"
        check_values(broker.bootstrap_servers, load, starts, ends)

        committed = {key: one.offset for key, one in client.committed(GROUP).items()}
        for key, offset in acknowledged.items():
            assert offset <= committed[key] <= ends[key], f"{key}: {offset} was acknowledged, {committed[key]} is kept"
        before, after = source.metadata(), client.metadata()
        assert before.cluster_id == after.cluster_id
        for topic in TOPICS:
            assert before.topics[topic].topic_id == after.topics[topic].topic_id
            overrides = [entry for entry in client.describe_configs([topic])[topic] if not entry.is_default]
            assert TOPICS[topic] == {entry.name: entry.value for entry in overrides}
        # The member that the group had when it was copied never says goodbye.
        broker.advance(SESSION_S)
        check_clients_go_on(broker.bootstrap_servers, committed, ends)


def check_values(servers: str, load: Load, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    """Every acknowledged record up to the copied end is at its offset; of a compacted log, the last of each key."""
    consumer = Consumer({**consumer_settings(servers), "group.id": "checker", "enable.partition.eof": True})
    consumer.assign([ClientPartition(key.topic, key.partition, start) for key, start in starts.items()])
    read: dict[TopicPartition, dict[int, WrittenRecord]] = {key: {} for key in starts}
    ended: set[TopicPartition] = set()
    while ended != starts.keys():
        message = consumer.poll(60)
        assert message is not None, f"of {starts.keys() - ended} not everything could be read"
        key = TopicPartition(message.topic(), message.partition())
        if message.error() is None:
            read[key][message.offset()] = written(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(key)
    consumer.close()
    for key, found in read.items():
        wanted = {offset: one for offset, one in load.written[key].items() if starts[key] <= offset < ends[key]}
        assert found.items() <= wanted.items(), f"{key} has records that nobody wrote"
        if key.topic == "prices":
            last = {one.key: offset for offset, one in sorted(wanted.items())}
            assert set(last.values()) <= found.keys(), f"{key} lacks the last record of a key"
        else:
            assert wanted.keys() == found.keys()
            assert list(range(starts[key], ends[key])) == sorted(found), f"{key} has gaps"


def check_clients_go_on(servers: str, committed: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **QUIET})
    offsets = {}
    for key in ends:
        producer.produce(
            key.topic, b"after", key=b"0", partition=key.partition,
            on_delivery=lambda error, message, key=key: offsets.update({key: message.offset()}),
        )  # fmt: skip
    assert 0 == producer.flush(60)
    assert ends == offsets, "the next record gets the next offset"
    consumer = Consumer(consumer_settings(servers))
    consumer.subscribe(["orders"])
    first: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + 60
    while first.keys() != set(keys_of("orders", PARTITIONS)):
        assert time.monotonic() < deadline, f"the group read only {first}"
        for message in consumer.consume(500, 0.1):
            assert message.error() is None, message.error()
            first.setdefault(TopicPartition(message.topic(), message.partition()), message.offset())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert committed == first, "the group goes on where it was"


def compacted_ends(data_dir: Path) -> dict[TopicPartition, int]:
    """Return up to which offset each log is compacted."""
    file = data_dir / CLEANED
    return read_offsets(file.read_bytes()) if file.exists() else {}


def back_up_under_load(tmp_path: Path, *, warm_up_bytes: int, runs: int) -> int:
    """Says how many bytes were written."""
    with Broker(SETTINGS, data_dir=str(tmp_path / "data"), durability="sync", subprocess=True) as broker:
        for topic, overrides in TOPICS.items():
            broker.create_topic(topic, PARTITIONS, overrides)
        load = Load(broker.bootstrap_servers)
        backups: dict[str, tuple[Manifest, dict[TopicPartition, int]]] = {}

        with load.running(), Client(broker.bootstrap_servers) as source:

            def is_warm(wanted_bytes: int) -> bool:
                """Tell if so much was written, offsets were committed, a log was shortened and one was compacted."""
                assert not load.errors, load.errors[0]
                return (
                    load.size_bytes >= wanted_bytes
                    and len(load.committed) == PARTITIONS
                    and any(source.earliest(keys_of("clicks", PARTITIONS)).values())
                    and any(map(compacted_ends(tmp_path / "data").get, keys_of("prices", PARTITIONS)))
                )

            for number in range(runs):
                wait_until(partial(is_warm, warm_up_bytes * (number + 1)), "the load is warm", deadline_s=120)
                acknowledged = dict(load.committed)
                backups["directory"] = copy_directory(tmp_path / "data", tmp_path / "directory"), acknowledged
                acknowledged = dict(load.committed)
                backups["brokers"] = copy_brokers(broker.bootstrap_servers, tmp_path / "brokers"), acknowledged
                assert number or source.earliest(keys_of("clicks", 1)), "the source answers while it is copied"
            prices = [backups["directory"][0].partitions[key] for key in keys_of("prices", PARTITIONS)]
            assert any(partition.cleaned_to for partition in prices), "what was compacted is not told"
        with Client(broker.bootstrap_servers) as source:
            for way, (manifest, acknowledged) in backups.items():
                assert OFFSETS_TOPIC in {entry.name for entry in manifest.topics}
                data_dir = restored(tmp_path / way, tmp_path / f"restored-{way}")
                verified = run("verify", str(data_dir))
                assert 0 == verified.exit_code, verified.out
                check_restored(source, data_dir, manifest, load, acknowledged)
    return load.size_bytes


def test_a_broker_under_load_is_backed_up_and_served_elsewhere(tmp_path: Path) -> None:
    back_up_under_load(tmp_path, warm_up_bytes=10_000_000, runs=2)


@pytest.mark.soak
def test_a_broker_under_long_load_is_backed_up_again_and_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    size = back_up_under_load(tmp_path, warm_up_bytes=60_000_000, runs=10)
    record_property("backups under load, both ways", 10)
    record_property("MB written meanwhile", size // 1_000_000)
