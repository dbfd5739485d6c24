"""Directories that Apache Kafka wrote are read to the same records and offsets, and Apache Kafka opens ours."""

import asyncio
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from logmark.client.client import Client
from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import PRODUCER_ID_BASE, Catalog, Entry
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.settings import TopicSettings
from logmark.testing import Broker
from logmark.wire import batches, codecs
from tests.cli.conftest import run
from tests.compat import dumped
from tests.compat.clients import CODECS
from tests.harness import wire
from tests.harness.brokers import DEADLINE_S, BrokerUnderTest, at
from tests.harness.distribution import KafkaUnavailable
from tests.harness.node import KafkaNode, start_node, wait_until

pytestmark = pytest.mark.kafka

BEGAN_MS = 1_700_000_000_000
PRODUCER_ID = 2**40 + 7
STATES = ["closed cleanly", "killed"]
TOPICS = ["clicks", "payments", "profiles"]
# Kafka reserves this much for both indexes of every one of its hundred partitions, and copies are made of all that.
SETTINGS = {
    "log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "0", "log.index.size.max.bytes": "262144",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """What a topic's readers and Kafka's answers said while the node ran."""

    records: Mapping[int, tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
    committed: frozenset[int]
    times: Mapping[int, tuple[int, int]]
    largest: tuple[int, int]
    end: int
    last_stable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryCopies:
    """Copies of a node's directory, and what was known of each topic when it was taken."""

    copies: Mapping[str, Path]
    known: Mapping[str, Mapping[str, TopicObservation]]
    names: Mapping[str, str]
    group: str

    def folder(self, state: str, topic: str) -> Path:
        return self.copies[state] / f"{self.names[topic]}-0"


def ask_time(broker: BrokerUnderTest, topic: str, spec: OffsetSpec) -> tuple[int, int]:
    where = TopicPartition(topic, 0)
    answer = broker.admin.list_offsets({where: spec})[where].result(DEADLINE_S)
    return answer.offset, answer.timestamp


def is_served(broker: BrokerUnderTest, topic: str) -> bool:
    """Apache Kafka answers before it leads the partitions that it had before."""
    try:
        return broker.end_offset(topic) >= 0
    except KafkaException:
        return False


def all_of(broker: BrokerUnderTest, topic: str, end: int, isolation: str) -> list[Message]:
    """Every record below an end, whatever is left out of it."""
    consumer = broker.consumer(isolation_level=isolation, enable_partition_eof=True)
    consumer.assign(at((topic, 0, 0)))
    found: list[Message] = []
    while consumer.position(at((topic, 0)))[0].offset < end:
        message = consumer.poll(60)
        if message is None or message.error() is not None:
            break
        found.append(message)
    return found


def knowledge(broker: BrokerUnderTest, topic: str) -> TopicObservation:
    end = broker.end_offset(topic)
    where = TopicPartition(topic, 0)
    asked = broker.admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    stable = asked[where].result(DEADLINE_S)
    shown = all_of(broker, topic, end, "read_uncommitted")
    committed = all_of(broker, topic, stable.offset, "read_committed")
    wanted = {message.timestamp()[1] for message in shown[:: max(len(shown) // 8, 1)]}
    return TopicObservation(
        records={
            one.offset(): (one.timestamp()[1], one.key(), one.value(), tuple(one.headers() or ())) for one in shown
        },
        committed=frozenset(message.offset() for message in committed),
        times={
            time: ask_time(broker, topic, OffsetSpec.for_timestamp(time))
            for time in (*sorted(wanted), BEGAN_MS - 1, BEGAN_MS + 501)
        },
        largest=ask_time(broker, topic, OffsetSpec.max_timestamp()),
        end=end,
        last_stable=stable.offset,
    )


def write_clicks(broker: BrokerUnderTest, topic: str, rounds: int) -> None:
    """Every codec, headers, tombstones and empty values, at times of our choice, over several segments."""
    for turn in range(rounds):
        for index, codec in enumerate(CODECS):
            producer = broker.producer(compression_type=codec, enable_idempotence=index % 2 == 0)
            for number in range(40):
                value = None if number % 7 == 0 else b"" if number % 11 == 0 else b"click %d " % number * 30
                producer.produce(
                    topic, value, b"user-%d" % number if number % 3 else None, partition=0,
                    timestamp=BEGAN_MS + turn * 10_000 + index * 100 + number,
                    headers=[("trace", b"%d" % number), ("none", None)] if number % 2 else [],
                )  # fmt: skip
            assert 0 == producer.flush(60)
    producer = broker.producer()
    for number in range(3):
        producer.produce(topic, b"x" * 600_000, b"large", partition=0, timestamp=BEGAN_MS + 900_000 + number)
        assert 0 == producer.flush(60)


def write_payments(broker: BrokerUnderTest, topic: str, turns: int, *, leave_open: bool) -> Producer:
    """Transactions of two producers that overlap; every second one is aborted."""

    def started(name: str) -> Producer:
        made = broker.producer(transactional_id=broker.unique(name), transaction_timeout_ms=900_000)
        made.init_transactions(120)
        return made

    one, two = started("one"), started("two")
    for turn in range(turns):
        for producer in (one, two):
            producer.begin_transaction()
            for number in range(3):
                producer.produce(topic, b"payment %d" % number, b"turn %d" % turn, partition=0)
            producer.flush()
        (one.abort_transaction if turn % 2 else one.commit_transaction)(120)
        (two.commit_transaction if turn % 2 else two.abort_transaction)(120)
    if leave_open:
        one.begin_transaction()
        one.produce(topic, b"never decided", partition=0)
        one.flush()
    # Kafka answers before it writes the marker; a successor of that name is let in when the marker is there.
    started("two")
    return one if leave_open else started("one")


def write_profiles(broker: BrokerUnderTest, topic: str, node: KafkaNode) -> None:
    """Keys written again and again, until Kafka has compacted them."""
    for turn in range(3):
        producer = broker.producer(compression_type=CODECS[turn + 1])
        for number in range(60):
            value = None if number % 13 == 0 else b"profile %d of %d" % (number, turn)
            producer.produce(topic, value, b"user-%d" % (number % 20), partition=0, timestamp=BEGAN_MS + turn * 100_000)
        assert 0 == producer.flush(60)
    checkpoint = node.log_dir / checkpoints.CLEANED
    folder = node.log_dir / f"{topic}-0"
    active = max(int(log.stem) for log in folder.glob("*.log"))

    def is_compacted() -> bool:
        """Tell if all that can be compacted is: the first pass may have come before the last records."""
        cleaned = checkpoints.read_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
        is_cleaned = cleaned.get((topic, 0), 0) == active > 0
        return is_cleaned and not any(".cleaned" in one.name or ".swap" in one.name for one in folder.iterdir())

    wait_until(is_compacted, "Apache Kafka has compacted the topic")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryCopies]:
    """One node that writes everything, is closed cleanly, writes more and is killed."""
    root = tmp_path_factory.mktemp("apache")
    node = start_node(root / "node", SETTINGS)
    try:
        broker = BrokerUnderTest("kafka", node.bootstrap_servers, node)
        small = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
        compact = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
        names = {
            "clicks": broker.create_topic("clicks", config={**small, "retention.ms": "-1"}),
            "payments": broker.create_topic("payments"),
            "profiles": broker.create_topic("profiles", config=compact),
            "same": broker.create_topic("same", config={**small, "retention.ms": "-1"}),
        }
        write_clicks(broker, names["clicks"], 2)
        produce_the_same(node.bootstrap_servers, names["same"])
        write_payments(broker, names["payments"], 4, leave_open=False)
        write_profiles(broker, names["profiles"], node)
        group = broker.group("billing")
        broker.commit(group, {(names["clicks"], 0): 42})
        copies, known = {}, {}
        known["closed cleanly"] = {topic: knowledge(broker, names[topic]) for topic in TOPICS}
        broker.close()
        node.stop()
        copies["closed cleanly"] = Path(shutil.copytree(node.log_dir, root / "clean"))

        node = start_node(root / "node", SETTINGS)
        again = BrokerUnderTest("kafka", node.bootstrap_servers, node)
        again.share_names(broker)
        for name in names.values():
            wait_until(lambda name=name: is_served(again, name), f"Apache Kafka leads {name}")
        write_clicks(again, names["clicks"], 1)
        undecided = write_payments(again, names["payments"], 2, leave_open=True)
        known["killed"] = {topic: knowledge(again, names[topic]) for topic in TOPICS}
        again.close()
        node.stop(is_kill=True)
        del undecided
        copies["killed"] = Path(shutil.copytree(node.log_dir, root / "killed"))
        yield DirectoryCopies(copies=copies, known=known, names=names, group=group)
    finally:
        node.remove()


# The tools


@pytest.mark.parametrize("state", STATES)
def test_verify_finds_nothing_wrong_in_a_directory_of_apache_kafka(written: DirectoryCopies, state: str) -> None:
    done = run("verify", str(written.copies[state]), "--output", "json")

    assert (0, []) == (done.exit_code, done.json["findings"])
    assert "apache kafka" == done.json["written_by"]
    assert (state == "closed cleanly") == done.json["closed_cleanly"]


def items_of(path: Path, *extra: str) -> list[dict[str, Any]]:
    done = run("log", "dump", str(path), "--records", "--output", "json", *extra)
    assert 0 == done.exit_code, done.error
    return [json.loads(line) for line in done.lines]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("state", STATES)
def test_the_dump_has_the_records_that_consumers_of_apache_kafka_had(
    written: DirectoryCopies, state: str, topic: str
) -> None:
    items = items_of(written.folder(state, topic))

    assert not [item for item in items if item["kind"] == "damage"]
    shown = {
        item["offset"]: (
            item["timestamp"],
            *(None if item[name] is None else item[name].encode() for name in ("key", "value")),
            tuple((one["key"], None if one["value"] is None else one["value"].encode()) for one in item["headers"]),
        )
        for item in items
        if item["kind"] == "record"
    }
    assert written.known[state][topic].records == shown


@pytest.mark.parametrize("state", STATES)
def test_the_dump_says_what_apaches_dump_says(written: DirectoryCopies, state: str) -> None:
    folders = [written.folder(state, topic) for topic in TOPICS]
    kinds = ("log", "txnindex") if state == "killed" else ("log", "txnindex", "snapshot")
    files = [file for folder in folders for kind in kinds for file in sorted(folder.glob(f"*.{kind}"))]
    theirs = dumped.dump(files, is_compacted=True)
    assert {"none", "gzip", "snappy", "lz4", "zstd"} == {one.codec for each in theirs.values() for one in each.batches}
    for file in files:
        ours = items_of(file)
        told = theirs[file]
        assert [
            (
                one["base_offset"], one["last_offset"], one["record_count"], one["base_sequence"], one["producer_id"],
                one["producer_epoch"], one["leader_epoch"], one["is_transactional"], one["is_control"],
                one["position"], one["max_timestamp"], one["size_bytes"], one["codec"], one["crc"],
            )
            for one in ours if one["kind"] == "batch"
        ] == told.batches, file  # fmt: skip
        assert {
            one["offset"]: (one["timestamp"], one["key"], one["value"], tuple(each["key"] for each in one["headers"]))
            for one in ours if one["kind"] == "record"
        } == {
            one.offset: (one.timestamp, one.key, one.value, one.header_keys)
            for one in told.records if one.marker is None
        }, file  # fmt: skip
        assert [(one["offset"], one["type"], one["coordinator_epoch"]) for one in ours if one["kind"] == "marker"] == [
            (one.offset, *one.marker) for one in told.records if one.marker is not None
        ]
        for one in ours:
            if one["kind"] == "aborted_transaction":
                assert any(
                    f"producerId: {one['producer_id']} firstOffset: {one['first_offset']} lastOffset: "
                    f"{one['last_offset']} lastStableOffset: {one['last_stable_offset']}" in line
                    for line in told.lines
                ), told.lines
            if one["kind"] == "producer":
                assert any(
                    f"producerId: {one['producer_id']} producerEpoch: {one['producer_epoch']} coordinatorEpoch: "
                    f"{one['coordinator_epoch']}" in line
                    for line in told.lines
                ), told.lines
        if file.suffix == ".txnindex":
            assert [one["kind"] for one in ours].count("aborted_transaction") == len(
                [line for line in told.lines if "firstOffset" in line]
            )


def test_the_dump_decodes_the_offsets_that_a_group_of_apache_kafka_committed(written: DirectoryCopies) -> None:
    said = [
        item["says"]
        for folder in sorted(written.copies["closed cleanly"].glob("__consumer_offsets-*"))
        for item in items_of(folder)
        if item["kind"] == "record"
    ]
    mine = [one for one in said if one.get("group") == written.group and one["type"] == "OffsetCommitted"]
    assert [(written.names["clicks"], 0, 42)] == [(one["topic"], one["partition"], one["offset"]) for one in mine]


# The log layer


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens a copy of a folder at the log layer."""
    loop = asyncio.new_event_loop()
    committer = GroupCommit(loop, durability="os")
    partitions: list[Partition] = []

    def open_copy(folder: Path, *, clean: bool, is_compacted: bool) -> Partition:
        copy = shutil.copytree(folder, tmp_path / f"{folder.name}-{len(partitions)}")
        topic = folder.name.rpartition("-")[0]
        policy = "compact" if is_compacted else "delete"
        cleaned = checkpoints.read_offsets((folder.parent / checkpoints.CLEANED).read_bytes())
        assert is_compacted == ((topic, 0) in cleaned)
        partition = Partition.open(
            str(copy), topic, 0, bytes(16), TopicSettings({"cleanup.policy": policy}),
            files=RealFileSystem(sync=False), committer=committer, clock=SystemClock(), clean=clean,
            cleaned_to=cleaned.get((topic, 0)), leader_epoch=-1,
        )  # fmt: skip
        partitions.append(partition)
        return partition

    yield open_copy
    for partition in partitions:
        partition.close(clean=False)
    committer.close()
    loop.close()


def read_all(partition: Partition) -> dict[int, Any]:
    found: dict[int, Any] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        data = partition.read(offset, bytes_max=1 << 20)
        for one in batches.unpack(data):
            headers = tuple((name.decode(), value) for name, value in one.headers)
            found[one.offset] = (one.timestamp_ms, one.key, one.value, headers)
        position = 0
        while position < len(data):
            header = batches.read_header(data, position)
            offset, position = header.next_offset, position + header.size
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("state", STATES)
def test_the_log_layer_opens_it_to_the_same_records_offsets_times_and_aborts(
    written: DirectoryCopies, opened: Any, state: str, topic: str
) -> None:
    known = written.known[state][topic]
    partition = opened(written.folder(state, topic), clean=state == "closed cleanly", is_compacted=topic == "profiles")

    assert [] == partition.damage
    assert (known.end, known.last_stable) == (partition.log_end_offset, partition.last_stable_offset)
    assert known.records == read_all(partition)
    for time, (offset, timestamp) in known.times.items():
        found = partition.offset_for_timestamp(time)
        assert (offset, timestamp) == ((-1, -1) if found is None else (found[0], found[1])), f"at {time}"
    largest = partition.max_timestamp()
    assert largest is not None
    assert known.largest == (largest[0], largest[1])
    aborted = partition.aborted_transactions(0, known.last_stable)
    assert known.committed == committed_offsets(written.folder(state, topic), aborted, known.last_stable)
    if topic == "payments":
        assert len(aborted) == (4 if state == "closed cleanly" else 6)


def committed_offsets(folder: Path, aborted: list[tuple[int, int]], end: int) -> frozenset[int]:
    """What a client keeps that is told which transactions were aborted: by producer, from the first offset on."""
    kept, open_aborts = set(), dict[int, int]()
    waiting = sorted(aborted, key=lambda one: one[1])
    batch: dict[str, Any] = {}
    for item in items_of(folder):
        if item["kind"] == "batch":
            batch = item
            while waiting and waiting[0][1] <= item["last_offset"]:
                producer_id, first = waiting.pop(0)
                open_aborts[producer_id] = first
        elif item["kind"] == "marker" and item["type"] == "ABORT":
            open_aborts.pop(item["producer_id"], None)
        elif item["kind"] == "record" and item["offset"] < end:
            is_aborted = batch["is_transactional"] and batch["producer_id"] in open_aborts
            if not is_aborted:
                kept.add(item["offset"])
    return frozenset(kept)


# The same operations on both brokers


def produce_the_same(bootstrap_servers: str, topic: str) -> None:
    """Requests that are the same to the byte, whoever gets them."""
    sequence = 0
    for turn in range(60):
        codec = turn % 5
        records = [
            (None if turn % 3 == 0 else b"user-%d" % number, None if number == 3 else b"click %d " % turn * 400)
            for number in range(8)
        ]
        batch = batches.build(
            records,
            timestamp_ms=[BEGAN_MS + (turn * 7) % 40 * 1000 + number for number in range(8)],
            codec=codec,
            headers=[[("trace", b"%d" % number)] if number % 2 else [] for number in range(8)],
            producer_id=PRODUCER_ID if turn % 2 else -1,
            producer_epoch=0 if turn % 2 else -1,
            base_sequence=sequence if turn % 2 else -1,
        )
        sequence += 8 if turn % 2 else 0
        assert codecs.NAMES[codec]
        answer = wire.produce(bootstrap_servers, topic, bytes(batch))
        assert (0, turn * 8) == (answer.error_code, answer.base_offset), answer
    large = batches.build([(b"large", b"x" * 900_000)], timestamp_ms=BEGAN_MS + 5)
    for turn in range(2):
        assert (0, 480 + turn) == wire.produce(bootstrap_servers, topic, bytes(large))[:2]


# What differs, by name, and why.
DIFFERS = {
    "partition.metadata": "every cluster draws the topic's id by itself",
}


def test_the_same_operations_leave_the_same_bytes_on_both_brokers(written: DirectoryCopies, tmp_path: Path) -> None:
    config = {"segment.bytes": "1048576", "index.interval.bytes": "512", "retention.ms": "-1"}
    with Broker(data_dir=str(tmp_path)) as broker:
        broker.create_topic("same", config=config)
        produce_the_same(broker.bootstrap_servers, "same")

    theirs, ours = written.folder("closed cleanly", "same"), tmp_path / "same-0"
    assert {file.name for file in theirs.iterdir()} == {file.name for file in ours.iterdir()}
    assert len(list(ours.glob("*.log"))) >= 3
    for file in sorted(theirs.iterdir()):
        if file.name not in DIFFERS:
            assert file.read_bytes() == (ours / file.name).read_bytes(), file.name
    entries = struct.calcsize(">ii")
    assert any(file.stat().st_size >= 10 * entries for file in ours.glob("*.index"))


# A repair, and Apache Kafka behind it


def test_apache_kafka_opens_a_directory_that_we_repaired_and_serves_all_but_the_gap(
    written: DirectoryCopies, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    data = Path(shutil.copytree(written.copies["closed cleanly"], folder / "data"))
    (folder / "server.properties").touch()  # there already, so that nothing is formatted
    topic, known = written.names["clicks"], written.known["closed cleanly"]["clicks"]
    log = data / f"{topic}-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    first, position = 0, 0
    for _ in range(5):
        header = batches.read_header(content, position)
        first, position = header.next_offset, position + header.size
    lost = range(first, batches.read_header(content, position).next_offset)
    content[position + 70] ^= 1
    log.write_bytes(content)
    other = data / f"{written.names['payments']}-0" / "00000000000000000000.log"
    content = bytearray(other.read_bytes())
    content[7] ^= 1  # a base offset, which can be put right
    other.write_bytes(content)

    assert 1 == run("verify", str(data)).exit_code
    repaired = run("verify", str(data), "--repair", "--yes")
    assert 0 == repaired.exit_code, repaired.out + repaired.error
    assert list(log.parent.glob("*.damaged-*"))

    node = start_node(folder, SETTINGS)
    try:
        broker = BrokerUnderTest("kafka", node.bootstrap_servers, node)
        for name in (topic, written.names["payments"]):
            wait_until(lambda name=name: is_served(broker, name), f"Apache Kafka leads {name}")
        assert known.end == broker.end_offset(topic)
        shown = [message.offset() for message in all_of(broker, topic, known.end, "read_uncommitted")]
        assert [offset for offset in known.records if offset not in lost] == shown
        payments = written.known["closed cleanly"]["payments"]
        found = all_of(broker, written.names["payments"], payments.last_stable, "read_committed")
        assert payments.committed == {message.offset() for message in found}
        broker.close()
    finally:
        node.stop()
    assert list(log.parent.glob("*.damaged-*")), "what was cut out is still there"


# A directory of ours, handed over to Apache Kafka

VALUES = [b"ORD-%d" % number for number in range(100)]
# What only Apache Kafka has: the topics as its controller knows them.
THEIR_OWN = ("__cluster_metadata-0", "bootstrap.checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOverDirectory:
    """A directory that our broker wrote for a cluster of Apache Kafka, which has the topic already."""

    folder: Path
    topic: str
    node_data: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start_kafka(self) -> KafkaNode:
        for name in THEIR_OWN:
            source = self.node_data / name
            if source.is_dir():
                shutil.copytree(source, self.data / name)
            elif source.exists():
                shutil.copy(source, self.data / name)
        (self.folder / "server.properties").touch()  # there already, so that nothing is formatted
        return start_node(self.folder, SETTINGS)

    def take_back(self) -> None:
        """Removes what Apache Kafka has brought along."""
        for name in THEIR_OWN:
            shutil.rmtree(self.data / name, ignore_errors=True)
            (self.data / name).unlink(missing_ok=True)


@pytest.fixture
def crashed(tmp_path: Path) -> HandedOverDirectory:
    """The broker that wrote it was killed, and of its segments nothing came to the disk."""
    node = start_node(tmp_path / "node", SETTINGS)
    theirs = BrokerUnderTest("kafka", node.bootstrap_servers, node)
    topic = theirs.create_topic("orders")
    wait_until(lambda: is_served(theirs, topic), f"Apache Kafka leads {topic}")
    with Client(node.bootstrap_servers) as client:
        topic_id = client.metadata([topic]).topics[topic].topic_id
    theirs.close()
    node.stop()
    handed = HandedOverDirectory(folder=tmp_path / "handed", topic=topic, node_data=node.log_dir)
    handed.data.mkdir(parents=True)
    shutil.copy(node.log_dir / "meta.properties", handed.data)
    catalogue = Catalog(None)
    catalogue.adopt([Entry(name=topic, id=topic_id, partitions=1)], PRODUCER_ID_BASE)
    (handed.data / CATALOG).write_bytes(catalogue.encode())
    with Broker(data_dir=str(handed.data), durability="sync", subprocess=True) as ours:
        clients = BrokerUnderTest("logmark", ours.bootstrap_servers, ours)
        clients.produce(topic, VALUES)
        clients.close()
        ours.kill()
    for log in (handed.data / f"{topic}-0").glob("*.log"):
        log.write_bytes(b"")
    return handed


def values_of(node: KafkaNode, topic: str, end: int) -> list[bytes | None]:
    """What Apache Kafka serves of a topic below an end."""
    theirs = BrokerUnderTest("kafka", node.bootstrap_servers, node)
    try:
        wait_until(lambda: is_served(theirs, topic), f"Apache Kafka leads {topic}")
        assert end == theirs.end_offset(topic)
        return [message.value() for message in all_of(theirs, topic, end, "read_uncommitted")] if end else []
    finally:
        theirs.close()


def test_apache_kafka_refuses_a_crashed_directory_of_ours_and_opens_it_after_a_recovery(
    crashed: HandedOverDirectory,
) -> None:
    with pytest.raises(KafkaUnavailable, match="ended before it was ready"):
        crashed.start_kafka().stop()

    crashed.take_back()
    recovered = run("recover", str(crashed.data))
    assert 0 == recovered.exit_code, recovered.error
    node = crashed.start_kafka()
    try:
        assert VALUES == values_of(node, crashed.topic, len(VALUES)), "every acknowledged record, and nothing else"
    finally:
        node.stop()


def test_it_is_the_write_ahead_log_that_keeps_apache_kafka_from_opening_a_directory_without_acknowledged_records(
    crashed: HandedOverDirectory,
) -> None:
    (crashed.data / "logmark.wal").rename(crashed.folder / "logmark.wal")

    node = crashed.start_kafka()
    try:
        assert [] == values_of(node, crashed.topic, 0), "without the write-ahead log nothing of them is left"
    finally:
        node.stop()
