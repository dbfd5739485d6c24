"""Nobody is told what the disk does not have yet: the broker over a disk whose syncs wait or fail."""

import errno
from collections.abc import Iterator

import pytest

from logmark.client.client import Client
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.testing import Broker
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire import batches
from tests.crash.pending_requests import PendingCommit, PendingOffsetFetch, PendingProduce

TOPIC = "clicks"
# The files that hold entries, not the recovery points beside them.
WAL = "logmark.wal/0"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
NONE = ErrorCode.NONE
ACKS = [pytest.param(1, id="acks=1"), pytest.param(-1, id="acks=all")]


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem())


@pytest.fixture
def broker(files: FaultyFileSystem) -> Iterator[Broker]:
    with Broker(durability="sync", files=files) as broker:
        broker.create_topic(TOPIC, partitions=2)
        with PendingProduce(broker.bootstrap_servers, TOPIC, 0, batch(b"before")) as asked:
            assert (NONE, 0) == asked.answer()
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def batch(value: bytes, *, producer_id: int = -1, sequence: int = -1) -> bytes:
    epoch = -1 if producer_id < 0 else 0
    return bytes(
        batches.build(
            [(None, value)],
            timestamp_ms=1_700_000_000_000,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def visible(client: Client, partition: TopicPartition) -> list[bytes | None]:
    """What a reader sees, and it must agree with the end that the broker tells."""
    fetched = client.fetch(partition, 0, max_wait_ms=0)
    records = batches.unpack(fetched.records)
    assert len(records) == client.latest([partition])[partition] == fetched.high_watermark
    return [record.value for record in records]


@pytest.mark.parametrize("acks", ACKS)
def test_no_record_is_acknowledged_or_visible_before_the_disk_has_it(
    broker: Broker, files: FaultyFileSystem, client: Client, acks: int
) -> None:
    with files.hold_syncs(WAL):
        asked = PendingProduce(broker.bootstrap_servers, TOPIC, 0, batch(b"held"), acks=acks)
        files.wait_for_held_sync()

        assert [b"before"] == visible(client, FIRST)
        assert not asked.is_answered

    with asked:
        assert (NONE, 1) == asked.answer()
    assert [b"before", b"held"] == visible(client, FIRST)


@pytest.mark.parametrize("acks", ACKS)
def test_no_record_waits_for_the_files_of_its_partition(
    broker: Broker, files: FaultyFileSystem, client: Client, acks: int
) -> None:
    with (
        files.hold_syncs("clicks-1"),
        PendingProduce(broker.bootstrap_servers, TOPIC, 1, batch(b"in the WAL"), acks=acks) as asked,
    ):
        assert (NONE, 0) == asked.answer()
        assert [b"in the WAL"] == visible(client, SECOND)


def test_a_duplicate_of_an_unsynced_batch_is_not_acknowledged_before_the_batch_is(
    broker: Broker, files: FaultyFileSystem, client: Client
) -> None:
    sent = batch(b"held", producer_id=7, sequence=0)
    with files.hold_syncs(WAL):
        first = PendingProduce(broker.bootstrap_servers, TOPIC, 0, sent)
        files.wait_for_held_sync()
        again = PendingProduce(broker.bootstrap_servers, TOPIC, 0, sent)
        assert [b"before"] == visible(client, FIRST)
        assert (False, False) == (first.is_answered, again.is_answered)

    with first, again:
        assert (NONE, 1) == first.answer()
        assert (NONE, 1) == again.answer()
    assert [b"before", b"held"] == visible(client, FIRST)


def test_no_commit_is_answered_before_the_disk_has_it(broker: Broker, files: FaultyFileSystem, client: Client) -> None:
    client.commit("readers", {FIRST: 1})
    with files.hold_syncs(WAL):
        commit = PendingCommit(broker.bootstrap_servers, "readers", TOPIC, 2)
        files.wait_for_held_sync()
        committed = PendingOffsetFetch(broker.bootstrap_servers, "readers", TOPIC)
        assert [b"before"] == visible(client, FIRST)
        assert not commit.is_answered
        # Whoever asks now waits too: the old offset may be gone, and the new one may never come.
        assert not committed.is_answered

    with commit, committed:
        assert NONE == commit.answer()
        assert 2 == committed.answer()


@pytest.mark.parametrize("acks", ACKS)
def test_a_failed_sync_of_the_wal_acknowledges_nothing_until_a_restart_and_reads_go_on(
    broker: Broker, files: FaultyFileSystem, client: Client, acks: int
) -> None:
    # Without the next file, which is made in the background and may fail by itself.
    files.fail_syncs(f"{WAL}001", errno.EIO, times=1)
    sent = batch(b"lost", producer_id=7, sequence=0)
    # The same batch twice after the failure: a retry of it must not find it acknowledged either.
    for _ in range(3):
        with PendingProduce(broker.bootstrap_servers, TOPIC, 0, sent, acks=acks) as asked:
            assert ErrorCode.KAFKA_STORAGE_ERROR == asked.answer()[0]
    with PendingProduce(broker.bootstrap_servers, TOPIC, 1, batch(b"refused"), acks=acks) as asked:
        assert ErrorCode.KAFKA_STORAGE_ERROR == asked.answer()[0]
    assert [b"before"] == visible(client, FIRST)

    # The disk is well again since the first failure; a restart recovers the log and takes writes.
    broker.restart()
    with PendingProduce(broker.bootstrap_servers, TOPIC, 0, batch(b"after"), acks=acks) as asked:
        assert NONE == asked.answer()[0]
    with Client(broker.bootstrap_servers) as again:
        seen = visible(again, FIRST)
    assert (b"before", b"after") == (seen[0], seen[-1])


def test_a_commit_whose_sync_failed_is_never_answered_well(
    broker: Broker, files: FaultyFileSystem, client: Client
) -> None:
    client.commit("readers", {FIRST: 1})
    files.fail_syncs(WAL, errno.EIO)

    with PendingCommit(broker.bootstrap_servers, "readers", TOPIC, 2) as asked:
        assert NONE != asked.answer()
