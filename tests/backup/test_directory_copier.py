"""A data directory is copied while files come, go and grow: the copy is always one that a broker could have left."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.backup.directory_copier import DirectoryCopier
from logmark.backup.manifest import Manifest
from logmark.client.client import Client
from logmark.disk.file_system import RealFileSystem
from logmark.errors import DataDirectoryUnusable, UserError
from logmark.log import checkpoints
from logmark.log.checkpoints import SegmentList
from logmark.log.clean_stop import CLEAN, write_mark
from logmark.names import OFFSETS_TOPIC, TopicPartition
from logmark.testing import Broker
from logmark.wire import batches
from tests.backup.backup_driver import (
    batches_of,
    copy_brokers,
    copy_directory,
    ends_of,
    keys_of,
    log_bytes,
    restored,
    write_source,
)
from tests.cli.conftest import run
from tests.harness import crashed
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.restartable_broker import OUR_SETTINGS

ORDERS = TopicPartition("orders", 0)
SMALL = {"segment.bytes": "1048576"}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        yield broker


def write(broker: Broker, values: list[bytes], topic: str = "orders", partition: int = 0, **config: bool) -> int:
    """Writes records, each in a batch of its own, and returns the last offset."""
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    offsets = clients.produce(topic, values, partition=partition, batch_num_messages=1, **config)
    clients.close()
    return offsets[-1]


def once(action: Callable[[], None]) -> Callable[[int], None]:
    """Acts when the first bytes have been copied."""
    waiting = [action]

    def on_progress(_: int) -> None:
        if waiting:
            waiting.pop()()

    return on_progress


def served(data_dir: Path) -> dict[TopicPartition, tuple[int, int]]:
    """Log start and end of every partition with records, as a broker serves them."""
    with Broker(OUR_SETTINGS, data_dir=str(data_dir)) as broker, Client(broker.bootstrap_servers) as client:
        cluster = client.metadata()
        keys = [key for topic in cluster.topics for key in cluster.partitions(topic) if topic != OFFSETS_TOPIC]
        starts, ends = client.earliest(keys), client.latest(keys)
        return {key: (starts[key], ends[key]) for key in keys if ends[key]}


def test_a_copy_of_a_stopped_broker_is_the_same_files(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 100_000] * 25)
    broker.stop()

    copy_directory(tmp_path / "data", tmp_path / "backup")
    restored(tmp_path / "backup", tmp_path / "again")

    there, here = tmp_path / "data" / "orders-0", tmp_path / "again" / "orders-0"
    assert len(log_bytes(there)) > 2
    for file in sorted(there.iterdir()):
        # A snapshot of every roll is the source's own; the newest says all that the others do.
        if file.suffix != ".snapshot" or file.name in os.listdir(here):
            assert file.read_bytes() == (here / file.name).read_bytes(), file.name
    assert max(there.glob("*.snapshot")).name == max(here.glob("*.snapshot")).name


def test_a_second_run_copies_only_what_is_new(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 100_000] * 25)
    copied: list[int] = []

    copy_directory(tmp_path / "data", tmp_path / "backup", copied.append)
    first = sum(copied)
    copied.clear()
    copy_directory(tmp_path / "data", tmp_path / "backup", copied.append)
    assert (True, []) == (first > 2_500_000, copied)
    write(broker, [b"y" * 1000])
    copy_directory(tmp_path / "data", tmp_path / "backup", copied.append)

    assert 1000 < sum(copied) < 1200
    broker.stop()
    restored(tmp_path / "backup", tmp_path / "again")
    assert log_bytes(tmp_path / "data" / "orders-0") == log_bytes(tmp_path / "again" / "orders-0")


def note_cleaned(data: Path, key: TopicPartition, offset: int) -> None:
    """Say of a directory that was stopped cleanly that a partition was cleaned up to an offset."""
    listed = SegmentList.decode((data / checkpoints.SEGMENTS).read_bytes())
    cleaned = {key: offset}
    (data / checkpoints.SEGMENTS).write_bytes(listed._replace(cleaned=cleaned).encode())
    (data / checkpoints.CLEANED).write_bytes(checkpoints.write_offsets(cleaned))
    write_mark(str(data), RealFileSystem())


def test_a_log_with_holes_is_known_for_one_after_a_restore(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 1000] * 5)
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    data = file.read_bytes()
    size = len(data) // 5
    # As compaction leaves it: the second record is gone.
    file.write_bytes(data[:size] + data[2 * size :])
    note_cleaned(tmp_path / "data", ORDERS, 5)

    copy_directory(tmp_path / "data", tmp_path / "backup")

    again = restored(tmp_path / "backup", tmp_path / "again")
    assert "0\n1\norders 0 5\n" == (again / "cleaner-offset-checkpoint").read_text()
    with Broker(OUR_SETTINGS, data_dir=str(again)) as broker, Client(broker.bootstrap_servers) as client:
        assert [0, 2, 3, 4] == sorted(batches_of(client, ORDERS, 0, 5))


def test_segments_that_retention_takes_during_the_copy_are_missed_by_nobody(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, {**SMALL, "file.delete.delay.ms": "0"})
    write(broker, [b"x" * 100_000] * 60)
    segments = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    assert len(segments) > 5

    def delete_segments() -> None:
        with Client(broker.bootstrap_servers) as client:
            client.delete_records({ORDERS: int(segments[4].stem) + 2})
        broker.apply_retention()
        wait_until(lambda: not segments[2].exists(), "the files were deleted")

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup", once(delete_segments))

    # What was deleted while it was copied may be there or not; what is there has no gap and reaches the end.
    start, end = ends_of(manifest, [ORDERS])[ORDERS]
    assert 60 == end
    assert start in [int(segment.stem) for segment in segments]
    assert {ORDERS: (start, end)} == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_a_listing_that_misses_a_file_which_is_being_renamed_is_not_believed(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 100_000] * 35)
    broker.stop()
    segments = log_bytes(tmp_path / "data" / "orders-0")
    missed = [sorted(segments)[0], sorted(segments)[1]]
    listdir = os.listdir

    def blind(path: str) -> list[str]:
        names = set(listdir(path))
        return sorted(names - {missed.pop()} if missed and segments.keys() <= names else names)

    monkeypatch.setattr("logmark.backup.directory_copier.os.listdir", blind)
    monkeypatch.setattr(DirectoryCopier, "_size_to_come", lambda *_: 0)
    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")

    assert [] == missed
    assert [int(name[:20]) for name in segments] == [one.base_offset for one in manifest.partitions[ORDERS].segments]


@pytest.mark.parametrize("stage", ["beside", "swap", "done"])
def test_segments_that_compaction_swaps_during_the_copy_are_copied_again(
    tmp_path: Path, broker: Broker, stage: str
) -> None:
    broker.create_topic("orders", 1, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"})
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    producer = clients.producer(batch_num_messages=1)
    for number in range(40):
        producer.produce("orders", b"x" * 100_000, key=b"%d" % (number % 3))
    assert 0 == producer.flush(60)
    clients.close()
    broker.stop()
    folder = tmp_path / "data" / "orders-0"
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 3
    last = segments[1].read_bytes()[-100_000:]
    kept = _last_batch(segments[1].read_bytes())
    assert kept.endswith(last[-50_000:])

    def compact() -> None:
        """The first two segments become one with the last batch of both, as compaction leaves it."""
        swap = Path(f"{segments[0]}.swap")
        swap.write_bytes(kept)
        if stage == "beside":
            return
        for segment in segments[:2]:
            segment.rename(f"{segment}.deleted")
            segment.with_suffix(".index").unlink()
            segment.with_suffix(".timeindex").unlink()
        if stage == "done":
            swap.rename(segments[0])

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup", once(compact))

    names = [segment.base_offset for segment in manifest.partitions[ORDERS].segments]
    assert [int(segment.stem) for segment in [segments[0], *segments[2:]]] == names
    again = log_bytes(restored(tmp_path / "backup", tmp_path / "again") / "orders-0")
    assert kept == again[segments[0].name]
    assert {segment.name: segment.read_bytes() for segment in segments[2:]} == {
        name: data for name, data in again.items() if name != segments[0].name
    }


def _last_batch(data: bytes) -> bytes:
    at = 0
    while at + batches.read_header(data, at).size < len(data):
        at += batches.read_header(data, at).size
    return data[at:]


def test_a_topic_that_is_recreated_during_the_copy_has_the_new_id_and_no_old_committed_offset(
    tmp_path: Path, broker: Broker
) -> None:
    broker.create_topic("orders")
    broker.create_topic("zebras")
    write(broker, [b"old"] * 10)
    write(broker, [b"z"], topic="zebras")
    with Client(broker.bootstrap_servers) as client:
        client.commit("billing", {ORDERS: 10})

        def anew() -> None:
            client.delete_topics(["orders"])
            client.create_topic("orders", partitions=1)
            write(broker, [b"new"] * 2)

        manifest = copy_directory(tmp_path / "data", tmp_path / "backup", once(anew))
        topic_id = client.metadata(["orders"]).topics["orders"].topic_id

    assert topic_id == manifest.partitions[ORDERS].topic_id
    broker.stop()
    restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "again")) as other, Client(other.bootstrap_servers) as client:
        assert 2 == client.latest([ORDERS])[ORDERS]
        assert {} == client.committed("billing")


@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_no_committed_offset_points_beyond_the_records_that_were_copied(
    tmp_path: Path, broker: Broker, way: str,
) -> None:
    keys = keys_of("orders", 3)
    broker.create_topic("orders", len(keys))
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    for key in keys:
        clients.produce("orders", [b"x"] * 3, partition=key.partition)
    with Client(broker.bootstrap_servers) as client:
        client.commit("billing", dict.fromkeys(keys, 3))
        pieces: list[int] = []

        def go_on(size: int) -> None:
            """After each piece that was copied the load goes on: everything is read and its end committed."""
            pieces.append(size)
            for key in keys:
                (offset,) = clients.produce("orders", [b"y"], partition=key.partition)
                client.commit("billing", {key: offset + 1})

        if way == "directory":
            manifest = copy_directory(tmp_path / "data", tmp_path / "backup", go_on)
        else:
            manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup", go_on)
    clients.close()
    assert len(pieces) >= 4

    restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "again")) as other, Client(other.bootstrap_servers) as client:
        committed, ends = client.committed("billing"), client.latest(keys)
    for key in keys:
        assert manifest.partitions[key].log_end_offset == ends[key]
        assert 3 <= committed[key].offset <= ends[key]


def test_topics_that_come_and_go_during_the_copy_are_there_or_not_as_a_whole(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("old")
    write(broker, [b"a"] * 3)
    write(broker, [b"a"] * 3, topic="old")
    with Client(broker.bootstrap_servers) as client:

        def change() -> None:
            client.delete_topics(["old"])
            client.create_topic("new", partitions=2)
            write(broker, [b"n"] * 4, topic="new", partition=1)
            client.create_partitions({"orders": 3})
            write(broker, [b"b"] * 5, partition=2)

        copy_directory(tmp_path / "data", tmp_path / "backup", once(change))

    wanted = {ORDERS: (0, 3), TopicPartition("orders", 2): (0, 5), TopicPartition("new", 1): (0, 4)}
    assert wanted == served(restored(tmp_path / "backup", tmp_path / "again"))


@pytest.mark.parametrize("tail", ["half a batch", "zeros", "garbage"])
def test_a_torn_tail_is_left_out(tmp_path: Path, broker: Broker, tail: str) -> None:
    broker.create_topic("orders")
    write(broker, [b"x" * 100] * 5)
    broker.stop()
    # As of a broker that runs: it is about to write the batch.
    (tmp_path / "data" / CLEAN).unlink()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    whole = file.read_bytes()
    torn = {"half a batch": _next(whole)[:90], "zeros": bytes(5000), "garbage": os.urandom(500)}[tail]
    file.write_bytes(whole + torn)

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")
    assert (len(whole), 5) == (manifest.size_bytes, manifest.partitions[ORDERS].log_end_offset)

    # The batch is whole now: a second run takes it up.
    file.write_bytes(whole + _next(whole))
    assert 6 == copy_directory(tmp_path / "data", tmp_path / "backup").partitions[ORDERS].log_end_offset


def _next(data: bytes) -> bytes:
    return bytes(batches.build([(None, b"next" * 30)], timestamp_ms=1, base_offset=_end(data)))


def _end(data: bytes) -> int:
    return batches.read_header(_last_batch(data)).next_offset


def test_damage_at_the_source_is_copied_as_it_is_and_named(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    write(broker, [b"x" * 1000] * 5)
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    data = bytearray(file.read_bytes())
    size = len(data) // 5
    data[2 * size + 500] ^= 1
    file.write_bytes(data)

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")

    ((key, _, damage),) = manifest.damage()
    assert (ORDERS, 2 * size, size) == (key, damage.position, damage.size_bytes)
    again = restored(tmp_path / "backup", tmp_path / "again")
    assert bytes(data) == (again / "orders-0" / file.name).read_bytes()
    assert {ORDERS: (0, 5)} == served(again)


def test_no_batch_inside_a_damaged_record_is_copied_as_one_of_the_log(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    forged = bytearray(batches.build([(None, b"forged")], timestamp_ms=1, base_offset=3))
    forged[12:16] = bytes(4)
    write(broker, [b"0", b"1", b"x" * 100 + bytes(forged) * 3, b"3", b"4"])
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    data = bytearray(file.read_bytes())
    begin = 2 * batches.read_header(data).size
    size = batches.read_header(data, begin).size
    # The length: what it leads to is no batch, and the forged ones are the next that look like one.
    data[begin + 10] ^= 1
    file.write_bytes(data)

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")

    ((_, _, damage),) = manifest.damage()
    assert (begin, size) == (damage.position, damage.size_bytes)
    assert 5 == manifest.partitions[ORDERS].log_end_offset


def test_a_bad_end_of_a_segment_that_others_follow_is_damage_and_no_torn_tail(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 100_000] * 25)
    broker.stop()
    first, *_ = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)

    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")

    ((_, _, damage),) = manifest.damage()
    assert len(data) == damage.position + damage.size_bytes
    again = restored(tmp_path / "backup", tmp_path / "again")
    assert log_bytes(tmp_path / "data" / "orders-0") == log_bytes(again / "orders-0")
    assert {ORDERS: (0, 25)} == served(again)


def test_offsets_that_are_missing_at_the_source_are_named_and_the_rest_is_restored(tmp_path: Path) -> None:
    source, backup = tmp_path / "source", tmp_path / "backup"
    write_source(source, segments={0: 4, 8: 3})
    missing = "offsets 4 to 7 before the next segment are missing"

    for _ in range(2):
        told = run("backup", str(source), str(backup))
        assert 1 == told.exit_code, "damage at the source"
        assert f"orders-0/{0:020d}.log, byte " in told.error and missing in told.error
    again = restored(backup, tmp_path / "again")
    assert log_bytes(source / "orders-0") == log_bytes(again / "orders-0")

    # A repair fills the gap with an empty batch, behind what is stored already.
    assert 0 == run("verify", str(again), "--repair", "--yes").exit_code
    shutil.rmtree(source)
    again.rename(source)
    assert 0 == run("backup", str(source), str(backup)).exit_code
    assert log_bytes(source / "orders-0") == log_bytes(restored(backup, tmp_path / "repaired") / "orders-0")


def test_a_log_start_inside_of_a_batch_and_an_expired_log_keep_their_offsets(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    broker.create_topic("expired", config={"retention.ms": "1000", "file.delete.delay.ms": "0"})
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    clients.produce("orders", [b"x"] * 100, linger_ms=200)
    clients.produce("expired", [b"x"] * 7, timestamp_ms=1_700_000_000_000)
    clients.delete_records("orders", 42)
    clients.close()
    broker.apply_retention()
    first = tmp_path / "data" / "expired-0" / f"{0:020d}.log"
    wait_until(lambda: not first.exists(), "the expired file was deleted")

    expired = TopicPartition("expired", 0)
    wanted = {ORDERS: (42, 100), expired: (7, 7)}
    assert wanted == ends_of(copy_directory(tmp_path / "data", tmp_path / "backup"), wanted)
    assert wanted == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_a_directory_that_was_copied_elsewhere_is_known_by_its_content(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    last = write(broker, [b"x" * 100] * 5)
    broker.stop()
    copy_directory(tmp_path / "data", tmp_path / "backup")
    moved = restored(tmp_path / "backup", tmp_path / "moved")
    copied: list[int] = []

    copy_directory(moved, tmp_path / "backup", copied.append)
    assert [] == copied

    # The same length and other bytes: nothing of it is the same log.
    (file,) = (moved / "orders-0").glob("*.log")
    (moved / CLEAN).unlink()
    data = file.read_bytes()
    file.unlink()
    other = b"".join(bytes(batches.build([(None, b"y" * 100)], timestamp_ms=5, base_offset=n)) for n in range(last + 1))
    file.write_bytes(other[: len(data)] if len(other) > len(data) else other)
    copy_directory(moved, tmp_path / "backup", copied.append)
    assert other == (restored(tmp_path / "backup", tmp_path / "again") / "orders-0" / file.name).read_bytes()


def test_nobody_gets_a_producer_id_that_was_given_out_after_the_backup(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    write(broker, [b"x"], enable_idempotence=True)
    manifest = copy_directory(tmp_path / "data", tmp_path / "backup")
    write(broker, [b"x"], enable_idempotence=True)
    broker.stop()
    catalog = json.loads((tmp_path / "data" / "logmark.catalog").read_text())
    again = json.loads((restored(tmp_path / "backup", tmp_path / "again") / "logmark.catalog").read_text())

    assert catalog["topics"] == again["topics"]
    assert again["next_producer_id"] > catalog["next_producer_id"] + 1_000_000
    assert manifest.next_producer_id <= catalog["next_producer_id"]


def test_the_cluster_id_is_kept_unless_a_new_one_is_asked_for(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders")
    manifest: Manifest = copy_directory(tmp_path / "data", tmp_path / "backup")

    def cluster_id(data_dir: Path) -> str:
        lines = (data_dir / "meta.properties").read_text().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))

    assert manifest.cluster_id == cluster_id(tmp_path / "data")
    assert manifest.cluster_id == cluster_id(restored(tmp_path / "backup", tmp_path / "same"))
    other = restored(tmp_path / "backup", tmp_path / "other", is_new_cluster=True)
    assert manifest.cluster_id != cluster_id(other)
    with Broker(OUR_SETTINGS, data_dir=str(other)) as broker, Client(broker.bootstrap_servers) as client:
        assert cluster_id(other) == client.metadata().cluster_id
        assert "orders" in client.metadata().topics


@pytest.mark.parametrize(
    ("before", "after", "is_served"),
    [
        (b"version=1", b"version=9", False),
        (b"version=1", b"version=1\n#\xff\xfe", True),
        (b"version=1", b"version=1\n\xc8\x96\xff", True),
        (b"directory.id=", b"directory.jd=", False),
    ],
)
def test_a_backup_accepts_the_ids_of_a_directory_that_a_start_accepts_and_no_others(
    tmp_path: Path, broker: Broker, before: bytes, after: bytes, is_served: bool
) -> None:
    broker.create_topic("orders")
    broker.stop()
    meta = tmp_path / "data" / "meta.properties"
    meta.write_bytes(meta.read_bytes().replace(before, after))

    def is_accepted(action: Callable[[], object]) -> bool:
        try:
            action()
        except DataDirectoryUnusable:
            return False
        return True

    assert is_served is is_accepted(lambda: copy_directory(tmp_path / "data", tmp_path / "backup"))
    assert is_served is is_accepted(broker.start)


# A broker that crashed


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a killed broker."""
    return crashed.write_crashed(tmp_path / "crashed")


@pytest.mark.parametrize("state", ["killed", "after a power loss"])
def test_a_copy_of_a_crashed_broker_has_every_acknowledged_record_and_leaves_the_source_as_it_is(
    killed: Path, tmp_path: Path, state: str
) -> None:
    if state == "killed":
        with (killed / "orders-0" / crashed.LOG).open("ab") as file:
            file.write(b"never acknowledged")
    else:
        crashed.lose_power(killed)
    before = crashed.tree(killed)

    copied = copy_directory(killed, tmp_path / "backup")

    assert before == crashed.tree(killed), "a backup does not change its source"
    assert [] == list(copied.damage()), "what was never acknowledged is no damage"
    assert any("was not stopped cleanly" in note for note in copied.notes)
    assert (0, len(crashed.VALUES)) == ends_of(copied, [ORDERS])[ORDERS]
    again = restored(tmp_path / "backup", tmp_path / "again")
    assert (crashed.VALUES, crashed.COMMITTED) == crashed.served(again)


def test_a_copy_of_a_crashed_broker_is_continued_after_its_recovery(killed: Path, tmp_path: Path) -> None:
    crashed.lose_power(killed)
    copied: list[int] = []
    first = copy_directory(killed, tmp_path / "backup", copied.append)
    copied.clear()
    second = copy_directory(killed, tmp_path / "backup", copied.append)
    assert 0 == run("recover", str(killed)).exit_code
    third = copy_directory(killed, tmp_path / "backup", copied.append)

    assert [] == copied, "a recovery changes nothing that the backup does not have already"
    assert 1 == len({ends_of(one, [ORDERS])[ORDERS] for one in (first, second, third)})
    assert log_bytes(killed / "orders-0") == log_bytes(restored(tmp_path / "backup", tmp_path / "again") / "orders-0")


def test_no_broker_starts_on_a_crashed_directory_while_it_is_copied(killed: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def start() -> None:
        try:
            Broker(OUR_SETTINGS, data_dir=str(killed), subprocess=True).start()
        except ValueError as error:
            refused.append(str(error))

    copy_directory(killed, tmp_path / "backup", once(start))

    assert ["in use by another broker" in one for one in refused] == [True]
    with Broker(OUR_SETTINGS, data_dir=str(killed)):
        pass


def test_a_running_broker_is_copied_from_its_segments_alone(tmp_path: Path) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data"), durability="sync") as broker:
        broker.create_topic("orders", 1)
        end = write(broker, [b"x" * 100] * 30) + 1
        wal = tmp_path / "data" / "logmark.wal"
        assert wal.is_dir(), "the records are in the write-ahead log too"
        copied = copy_directory(tmp_path / "data", tmp_path / "backup")
        assert wal.is_dir()

    assert (0, end) == ends_of(copied, [ORDERS])[ORDERS]
    assert not copied.notes
    assert not (restored(tmp_path / "backup", tmp_path / "again") / "logmark.wal").exists()


def test_a_crashed_broker_whose_write_ahead_log_cannot_be_used_is_not_copied(killed: Path, tmp_path: Path) -> None:
    (killed / "logmark.wal" / "recovery-points").write_bytes(b"")

    with pytest.raises(UserError, match="holds acknowledged records that are not yet in the segments"):
        copy_directory(killed, tmp_path / "backup")


def test_a_directory_with_a_write_ahead_log_of_another_moment_is_not_copied(killed: Path, tmp_path: Path) -> None:
    (killed / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')

    with pytest.raises(UserError, match="does not belong to the last clean stop"):
        copy_directory(killed, tmp_path / "backup")


def test_damage_at_the_acknowledged_end_of_a_log_is_reported_and_not_left_out(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1)
    write(broker, [b"x" * 100] * 3)
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"y")

    copied = copy_directory(tmp_path / "data", tmp_path / "backup")

    assert [ORDERS] == [key for key, _, _ in copied.damage()], "it is no batch that was being written"


def _flip_the_last_byte(folder: Path) -> None:
    (file,) = folder.glob("*.log")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _remove_the_segment(folder: Path) -> None:
    (file,) = folder.glob("*.log")
    file.unlink()


@pytest.mark.parametrize("harm", [_flip_the_last_byte, _remove_the_segment, shutil.rmtree])
def test_a_log_whose_end_is_lost_gives_no_offset_out_again_after_a_restore(
    tmp_path: Path, broker: Broker, harm: Callable[[Path], None]
) -> None:
    broker.create_topic("orders", 1)
    write(broker, [b"x" * 100] * 3)
    end = write(broker, [b"y" * 100] * 3) + 1
    broker.stop()
    harm(tmp_path / "data" / "orders-0")

    copied = copy_directory(tmp_path / "data", tmp_path / "backup")

    assert any(segment.damage for segment in copied.partitions[ORDERS].segments), "it is named"
    again = restored(tmp_path / "backup", tmp_path / "again")
    with Broker(OUR_SETTINGS, data_dir=str(again)) as serving:
        assert end == write(serving, [b"next"])


# Damage that only the ends of a log and its neighbours tell


def _last_batch_at(data: bytes) -> int:
    return len(data) - len(_last_batch(data))


@pytest.mark.parametrize(
    ("byte", "bit"), [(7, 0), (7, 1), (5, 0), (15, 0)], ids=["offset bit 0", "offset bit 1", "offset bit 16", "epoch"]
)
def test_a_flipped_bit_in_the_head_of_the_last_batch_is_damage(
    tmp_path: Path, broker: Broker, byte: int, bit: int
) -> None:
    broker.create_topic("orders")
    end = write(broker, [b"x" * 100] * 5) + 1
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    data = bytearray(file.read_bytes())
    position = _last_batch_at(bytes(data))
    data[position + byte] ^= 1 << bit
    file.write_bytes(data)

    told = run("backup", str(tmp_path / "data"), str(tmp_path / "backup"))

    assert 1 == told.exit_code, "damage at the source"
    assert f"orders-0/{file.name}, byte {position}, " in told.error
    again = restored(tmp_path / "backup", tmp_path / "again")
    assert bytes(data) == (again / "orders-0" / file.name).read_bytes()
    assert {ORDERS: (0, end)} == served(again), "the log ends where it ended"
    assert 1 == run("verify", str(again)).exit_code, "the restored directory says so too"
    with Broker(OUR_SETTINGS, data_dir=str(again)) as serving, Client(serving.bootstrap_servers) as client:
        assert list(range(end - 1)) == sorted(batches_of(client, ORDERS, 0, end - 1))


def test_segments_that_overlap_are_damage_and_can_be_restored(tmp_path: Path) -> None:
    write_source(tmp_path / "source", segments={0: 6, 4: 3})

    copied = copy_directory(tmp_path / "source", tmp_path / "backup")

    assert ["offset 4 in a segment that ends below 4", "offset 5 in a segment that ends below 4"] == [
        damage.problem for _, _, damage in copied.damage()
    ]
    again = restored(tmp_path / "backup", tmp_path / "again")
    assert log_bytes(tmp_path / "source" / "orders-0") == log_bytes(again / "orders-0")


def test_offsets_that_are_missing_inside_of_a_segment_are_named(tmp_path: Path) -> None:
    source, backup = tmp_path / "source", tmp_path / "backup"
    write_source(source, segments={0: 6})
    file = source / "orders-0" / f"{0:020d}.log"
    data = file.read_bytes()
    size = len(data) // 6
    file.write_bytes(data[: 2 * size] + data[3 * size :])

    for _ in range(2):
        told = run("backup", str(source), str(backup))
        assert 1 == told.exit_code, "damage at the source"
        assert f"byte {2 * size}, 0 bytes: the offsets before 3 are missing" in told.error
    again = restored(backup, tmp_path / "again")
    assert file.read_bytes() == (again / "orders-0" / file.name).read_bytes()

    # The broker writes on: what is new is judged with the offsets before it.
    file.write_bytes(file.read_bytes() + batches.build([(None, b"next")], timestamp_ms=1, base_offset=6))
    copied = copy_directory(source, backup)
    assert (1, 7) == (len(list(copied.damage())), copied.partitions[ORDERS].log_end_offset)


@pytest.mark.parametrize("state", ["stopped", "crashed"])
def test_a_first_segment_that_is_missing_at_the_source_is_missing_after_a_restore_too(
    tmp_path: Path, state: str
) -> None:
    source, backup = tmp_path / "data", tmp_path / "backup"
    with Broker(OUR_SETTINGS, data_dir=str(source), durability="sync", subprocess=True) as broker:
        broker.create_topic("orders", 1, SMALL)
        write(broker, [b"x" * 100_000] * 25)
        if state == "crashed":
            # With a recovery point behind the first segment.
            broker.restart()
            write(broker, [b"y" * 100])
            broker.kill()
        else:
            broker.stop()
    first, second, *_ = sorted((source / "orders-0").glob("*.log"))
    for file in (source / "orders-0").glob(f"{first.stem}.*"):
        file.unlink()
    missing = f"offsets 0 to {int(second.stem) - 1} before the next segment are missing"

    for _ in range(2):
        told = run("backup", str(source), str(backup))
        assert 1 == told.exit_code, "damage at the source"
        assert f"orders-0/{first.name}, byte 0, 0 bytes: {missing}" in told.error
    again = restored(backup, tmp_path / "again")
    found = run("verify", str(again))
    assert 1 == found.exit_code
    assert f"offsets 0 to {int(second.stem) - 1}" in found.out
    end = 25 + (state == "crashed")
    assert {ORDERS: (0, end)} == served(again)

    # A backup of the restored directory says it again.
    assert missing in run("backup", str(again), str(tmp_path / "other")).error


def test_a_segment_of_a_compacted_log_that_is_missing_is_named(tmp_path: Path, broker: Broker) -> None:
    broker.create_topic("orders", 1, SMALL)
    write(broker, [b"x" * 100_000] * 35)
    broker.stop()
    note_cleaned(tmp_path / "data", ORDERS, 10)
    assert 0 == run("backup", str(tmp_path / "data"), str(tmp_path / "backup")).exit_code
    _, second, third, *_ = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    second.unlink()

    told = run("backup", str(tmp_path / "data"), str(tmp_path / "backup"))

    assert 1 == told.exit_code
    assert f"offsets {int(second.stem)} to {int(third.stem) - 1} before the next segment are missing" in told.error
    restored(tmp_path / "backup", tmp_path / "again")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_last_segment_that_is_missing_after_a_crash_is_named(tmp_path: Path, *, is_compacted: bool) -> None:
    source = tmp_path / "data"
    with Broker(OUR_SETTINGS, data_dir=str(source), durability="os", subprocess=True) as broker:
        broker.create_topic("orders", 1, SMALL)
        write(broker, [b"x" * 100_000] * 25)
        # The stop writes the recovery point, and the next run ends without one.
        broker.restart()
        broker.kill()
    assert not (source / ".kafka_cleanshutdown").exists()
    if is_compacted:
        (source / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 10\n")
    assert 0 == run("backup", str(source), str(tmp_path / "whole")).exit_code
    last = max((source / "orders-0").glob("*.log"))
    last.unlink()

    told = run("backup", str(source), str(tmp_path / "backup"))

    assert 1 == told.exit_code, "damage at the source"
    assert f"offsets {int(last.stem)} to 24 before the next segment are missing" in told.error
    assert {ORDERS: (0, 25)} == served(restored(tmp_path / "backup", tmp_path / "again"))


def test_entries_of_the_write_ahead_log_that_cannot_be_read_are_damage(killed: Path, tmp_path: Path) -> None:
    (wal,) = (file for file in (killed / "logmark.wal").glob("*.wal") if crashed.VALUES[40] in file.read_bytes())
    content = bytearray(wal.read_bytes())
    content[content.index(crashed.VALUES[40])] ^= 1
    wal.write_bytes(content)

    told = run("backup", str(killed), str(tmp_path / "backup"))

    assert 1 == told.exit_code, "damage at the source"
    assert "of the write-ahead log cannot be read; records in them may be lost." in told.error
    restored(tmp_path / "backup", tmp_path / "again")


def test_a_last_batch_with_a_wrong_leader_epoch_keeps_its_offsets_where_nobody_else_knows_the_end(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    write_source(source, segments={0: 5})
    file = source / "orders-0" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[_last_batch_at(bytes(data)) + 15] ^= 1
    file.write_bytes(data)

    for number in range(2):
        copied = copy_directory(source, tmp_path / "backup")
        assert ["leader epoch 1 where 0 belongs"] == [damage.problem for _, _, damage in copied.damage()]
        assert 5 == copied.partitions[ORDERS].log_end_offset
        restored(tmp_path / "backup", tmp_path / f"again-{number}")
