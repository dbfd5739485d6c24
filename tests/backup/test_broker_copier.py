"""A backup through brokers, ours or Apache Kafka's: the same records and offsets, and what groups committed."""

import struct
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from logmark.backup.manifest import BROKERS
from logmark.backup.manifest_draft import Draft
from logmark.backup.store import Store
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.wire import columns
from tests.backup.backup_driver import QUICK, batches_of, copy_brokers, ends_of, keys_of, nothing, restored
from tests.backup.test_directory_copier import once, served
from tests.cli.conftest import run
from tests.harness.brokers import QUIET, BrokerUnderTest
from tests.harness.gateway import call_tool
from tests.harness.node import start_node, wait_until
from tests.harness.restartable_broker import OUR_SETTINGS
from tests.harness.tools import DUMP_LOG

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        yield broker


def write(broker: Broker, values: list[bytes], topic: str = "orders", **config: object) -> None:
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    clients.produce(topic, values, **config)
    clients.close()


def test_a_second_run_fetches_only_what_is_new(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, {"segment.bytes": "1048576"})
    write(broker, [b"x" * 90_000] * 30, batch_num_messages=1)
    copied: list[int] = []
    copy_brokers(broker.bootstrap_servers, tmp_path / "backup", copied.append)
    copied.clear()

    copy_brokers(broker.bootstrap_servers, tmp_path / "backup", copied.append)
    assert [] == copied
    write(broker, [b"y" * 1000])
    copy_brokers(broker.bootstrap_servers, tmp_path / "backup", copied.append)

    assert 1000 < sum(copied) < 1200
    assert {ORDERS: (0, 31)} == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_records_that_expire_while_they_are_read_are_not_missed(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders", 1, {"segment.bytes": "1048576", "file.delete.delay.ms": "0"})
    write(broker, [b"x" * 90_000] * 60, batch_num_messages=1)
    monkeypatch.setattr("logmark.backup.broker_copier.FETCH_BYTES", 100_000)

    def expire() -> None:
        with Client(broker.bootstrap_servers) as client:
            client.delete_records({ORDERS: 40})
        broker.apply_retention()

    manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup", once(expire))

    assert {ORDERS: (40, 60)} == ends_of(manifest, [ORDERS])
    assert {ORDERS: (40, 60)} == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_a_log_start_inside_of_a_batch_and_an_expired_log_keep_their_offsets(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("expired", config={"retention.ms": "1000", "file.delete.delay.ms": "0"})
    write(broker, [b"x"] * 100, linger_ms=200)
    write(broker, [b"x"] * 7, topic="expired", timestamp_ms=1_700_000_000_000)
    with Client(broker.bootstrap_servers) as client:
        client.delete_records({ORDERS: 42})
    broker.apply_retention()

    wanted = {ORDERS: (42, 100), TopicPartition("expired", 0): (7, 7)}
    assert wanted == ends_of(copy_brokers(broker.bootstrap_servers, tmp_path / "backup"), wanted)
    assert wanted == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_a_second_run_goes_on_after_records_were_deleted_up_to_the_middle_of_the_last_batch(
    tmp_path: Path, broker: Broker
) -> None:
    broker.create_topic("orders")
    write(broker, [b"x"] * 20, linger_ms=200)
    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")
    with Client(broker.bootstrap_servers) as client:
        client.delete_records({ORDERS: 15})
    write(broker, [b"y"])

    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")

    assert {ORDERS: (15, 21)} == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_a_compacted_log_keeps_its_holes_and_is_always_fetched_again(tmp_path: Path) -> None:
    settings = {**OUR_SETTINGS, "log.cleaner.backoff.ms": "20"}
    copied: list[int] = []
    with Broker(settings, data_dir=str(tmp_path / "data")) as broker, Client(broker.bootstrap_servers) as client:
        broker.create_topic(
            "orders", 1,
            {"segment.bytes": "1048576", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        )  # fmt: skip
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        producer = clients.producer(batch_num_messages=1)
        for number in range(25):
            producer.produce("orders", b"x" * 100_000, key=b"%d" % (number % 2))
        assert 0 == producer.flush(60)
        clients.close()
        # Ten records fill a segment; the last one is not cleaned. Nothing changes under the copies after that.
        left = {18, 19, *range(20, 25)}
        wait_until(lambda: left == set(batches_of(client, ORDERS, 0, 25)), "all is cleaned away that will ever be")
        copy_brokers(broker.bootstrap_servers, tmp_path / "backup")
        # A tombstone may come and go between two runs: only all of the log says what it deleted.
        manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup", copied.append)
        there = batches_of(client, ORDERS, 0, 25)

    assert manifest.partitions[ORDERS].size_bytes <= sum(copied)
    assert {ORDERS: (0, 25)} == ends_of(manifest, [ORDERS])
    again = restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(again)) as broker, Client(broker.bootstrap_servers) as client:
        assert there == batches_of(client, ORDERS, 0, 25)
    verified = run("verify", str(again))
    assert 0 == verified.exit_code, verified.out


def test_a_topic_that_is_recreated_during_the_copy_has_the_new_id_and_no_old_committed_offset(
    tmp_path: Path, broker: Broker
) -> None:
    broker.create_topic("orders")
    write(broker, [b"old"] * 10)
    with Client(broker.bootstrap_servers) as client:
        client.commit("billing", {ORDERS: 10})

        def anew() -> None:
            client.delete_topics(["orders"])
            client.create_topic("orders", partitions=1)
            write(broker, [b"new"] * 2)

        manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup", once(anew))
        assert client.metadata(["orders"]).topics["orders"].topic_id == manifest.partitions[ORDERS].topic_id

    restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "again")) as other, Client(other.bootstrap_servers) as client:
        assert 2 == client.latest([ORDERS])[ORDERS]
        assert {} == client.committed("billing")


def test_a_log_that_is_no_longer_the_one_that_was_stored_is_fetched_again(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    write(broker, [b"one"] * 3)
    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")
    with Store.open(str(tmp_path / "backup"), files=QUICK, on_progress=lambda _: None) as store:
        # As after a leader was lost with records that only it had.
        assert store.previous is not None
        (stored,) = store.previous.partitions[ORDERS].segments
        data = bytearray(store.read(stored, 0, stored.size_bytes))
        data[-2] ^= 1
        draft = Draft(kind=BROKERS, source="", cluster_id=store.previous.cluster_id)
        store.begin(draft, expect=nothing)
        (segment,) = draft.partitions[ORDERS].segments
        segment.size_bytes = segment.crc = 0
        segment.next_offset = 0
        with store.writer(segment) as writer:
            writer.append(memoryview(_sealed(data)), 3)
        store.complete()
    write(broker, [b"two"])

    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")

    restored(tmp_path / "backup", tmp_path / "again")
    assert _values(tmp_path / "again") == [b"one", b"one", b"one", b"two"]


@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_log_whose_last_batch_is_not_where_the_manifest_says_is_fetched_again(
    tmp_path: Path, broker: Broker, position: int
) -> None:
    broker.create_topic("orders")
    write(broker, [b"one"] * 3)
    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")
    with Store.open(str(tmp_path / "backup"), files=QUICK, on_progress=lambda _: None) as store:
        assert store.previous is not None
        draft = Draft(kind=BROKERS, source="", cluster_id=store.previous.cluster_id)
        store.begin(draft, expect=nothing)
        (segment,) = draft.partitions[ORDERS].segments
        segment.last_position = position % segment.size_bytes
        store.complete()
    write(broker, [b"two"])

    copy_brokers(broker.bootstrap_servers, tmp_path / "backup")

    restored(tmp_path / "backup", tmp_path / "again")
    assert _values(tmp_path / "again") == [b"one", b"one", b"one", b"two"]


def _sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, columns.crc32c(data, 21, len(data) - 21))
    return data


def _values(data_dir: Path) -> list[bytes]:
    with Broker(OUR_SETTINGS, data_dir=str(data_dir)) as broker:
        return [value for _, value in read_all(broker.bootstrap_servers, ORDERS, 0, is_committed=False)]


def read_all(servers: str, key: TopicPartition, start: int, *, is_committed: bool) -> list[tuple[int, bytes]]:
    """What a consumer reads of a partition from an offset up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted", **QUIET,
        }
    )  # fmt: skip
    consumer.assign([ClientPartition(key.topic, key.partition, start)])
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "the end was not reached"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def test_committed_offsets_outside_the_log_and_live_members_are_reported(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    write(broker, [b"x"] * 5)
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    consumer = clients.consumer("in-use")
    consumer.subscribe(["orders"])
    while consumer.poll(0.1) is None:
        pass
    consumer.commit(asynchronous=False)
    with Client(broker.bootstrap_servers) as client:
        client.commit("far", {ORDERS: 99})
        manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup")
    clients.close()

    assert "Groups with members, who join again after a restore: in-use." in manifest.notes
    assert "Group far is at 99 in orders-0, which ended at 5: so it was at the source." in manifest.notes


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.kafka
def test_apache_kafka_is_backed_up_and_served_by_logmark(tmp_path: Path) -> None:
    node = start_node(tmp_path / "node")
    try:
        kafka = BrokerUnderTest("kafka", node.bootstrap_servers, node)
        orders, table, group = _fill(kafka)
        node.stop()
        # The leaders have a new epoch from here on, and the batches are of two.
        node = start_node(tmp_path / "node")
        kafka = BrokerUnderTest("kafka", node.bootstrap_servers, node)
        _write_patiently(kafka, orders)
        kafka.close()
        backup = copy_brokers(node.bootstrap_servers, tmp_path / "backup")
        keys = [*keys_of(orders, 2), TopicPartition(table, 0)]
        with Client(node.bootstrap_servers) as client:
            there = _seen(client, keys, group)
        read = [read_all(node.bootstrap_servers, key, there.bounds[key][0], is_committed=True) for key in keys]
    finally:
        node.remove()

    assert there.bounds == ends_of(backup, keys)
    assert {0, 1} <= {struct.unpack_from(">i", batch, 12)[0] > 0 for batch in there.batches[keys[1]].values()}
    assert [note for note in backup.notes if "1 open transaction" in note], backup.notes
    data_dir = restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(data_dir)) as broker, Client(broker.bootstrap_servers) as client:
        here = _seen(client, keys, group)
        assert (there.ids, there.configs, there.committed) == (here.ids, here.configs, here.committed)
        for key in keys:
            # All bytes but the leader's epoch, which is 0 in every log of Logmark.
            same = {base: batch[:12] + bytes(4) + batch[16:] for base, batch in there.batches[key].items()}
            assert same == here.batches[key]
        assert read == [
            read_all(broker.bootstrap_servers, key, there.bounds[key][0], is_committed=True) for key in keys
        ]  # fmt: skip
        ours = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        assert [there.bounds[keys[1]][1]] == ours.produce(orders, [b"goes on"], partition=1, enable_idempotence=True)
        ours.close()

    verified = run("verify", str(data_dir))
    assert 0 == verified.exit_code, verified.out
    kinds = (".log", ".index", ".timeindex")
    files = [str(file) for file in sorted(data_dir.glob(f"{orders}-*/*")) if file.suffix in kinds]
    dumped = call_tool(DUMP_LOG, "--deep-iteration", "--files", ",".join(files)).check()
    for complaint in ("Mismatches", "Found timestamp mismatch", "isvalid: false", "corrupt", "invalid bytes"):
        assert complaint not in dumped.stdout + dumped.stderr


def _fill(kafka: BrokerUnderTest) -> tuple[str, str, str]:
    """Every codec, transactions, keys, a moved log start and a group's committed offset."""
    orders = kafka.create_topic("orders", 2, {"segment.bytes": "1048576", "retention.ms": "-1"})
    table = kafka.create_topic("table", 1, {"cleanup.policy": "compact"})
    for codec in CODECS:
        kafka.produce(orders, [b"click " * 50_000] * 2, compression_type=codec)
        kafka.produce(orders, [b"click %d" % number for number in range(100)], partition=1, compression_type=codec)
    producer = kafka.producer()
    for number in range(10):
        producer.produce(table, b"%d" % number, key=b"%d" % (number % 3))
    assert 0 == producer.flush(60)
    for ending in ("commit", "abort", "open"):
        producer = kafka.producer(transactional_id=ending)
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(orders, ending.encode(), partition=0)
        assert 0 == producer.flush(60)
        if ending != "open":
            getattr(producer, f"{ending}_transaction")(60)
    group = kafka.group("billing")
    kafka.commit(group, {(orders, 0): (7, "half way"), (orders, 1): 250})
    kafka.delete_records(orders, 33, partition=1)
    kafka.close()
    return orders, table, group


def _write_patiently(kafka: BrokerUnderTest, topic: str) -> None:
    """Writes one record as soon as a node that was started again leads its partitions."""
    kafka.produce(topic, [b"after the restart"], partition=1, message_timeout_ms=60_000)


class _Seen(NamedTuple):
    """What a client sees of some partitions and a group."""

    ids: tuple[object, ...]
    configs: dict[str, str | None]
    committed: dict[TopicPartition, tuple[int, str]]
    bounds: dict[TopicPartition, tuple[int, int]]
    batches: dict[TopicPartition, dict[int, bytes]]


def _seen(client: Client, keys: list[TopicPartition], group: str) -> _Seen:
    topics = sorted({key.topic for key in keys})
    cluster = client.metadata(topics)
    starts, ends = client.earliest(keys), client.latest(keys)
    described = client.describe_configs(topics)
    return _Seen(
        ids=(cluster.cluster_id, *(cluster.topics[topic].topic_id for topic in topics)),
        configs={
            f"{topic} {one.name}": one.value for topic in topics for one in described[topic] if not one.is_default
        },
        committed={key: (one.offset, one.metadata) for key, one in client.committed(group).items()},
        bounds={key: (starts[key], ends[key]) for key in keys},
        batches={key: batches_of(client, key, starts[key], ends[key]) for key in keys},
    )
