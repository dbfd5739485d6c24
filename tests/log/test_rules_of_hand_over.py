"""What must hold from the first byte so that Apache Kafka can open the directory one day."""

import fcntl
import multiprocessing
import os
import struct

from logmark.log.catalog import PRODUCER_ID_BASE
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, TOPIC_ID, LogDriver, batch, settings


def log_bytes(driver: LogDriver) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(driver.folder().glob("*.log")))


def test_the_leader_epoch_is_zero_in_every_batch_whatever_the_producer_sent(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300))
    for number in range(10):
        made = batch(b"x" * 30)
        struct.pack_into(">i", made.data, 12, number * 3 - 1)
        partition.append(made, now_ms=NOW_MS)
    driver.settle(partition)
    driver.stop()

    data, at, epochs = log_bytes(driver), 0, []
    while at < len(data):
        header = batches.read_header(data, at)
        epochs.append(header.leader_epoch)
        at += header.size
    assert [0] * 10 == epochs


def test_the_leader_epoch_is_zero_in_the_epoch_file(driver: LogDriver) -> None:
    driver.append(driver.create("low"), b"x")
    driver.append(driver.create("high", first_offset=500), b"x")
    driver.stop()

    assert b"0\n1\n0 0\n" == (driver.folder("low") / "leader-epoch-checkpoint").read_bytes()
    assert b"0\n1\n0 500\n" == (driver.folder("high") / "leader-epoch-checkpoint").read_bytes()


def test_the_topic_id_is_on_disk_before_any_data(driver: LogDriver) -> None:
    partition = driver.create()

    assert ["partition.metadata"] == os.listdir(driver.folder())
    assert any(path.endswith("clicks-0/partition.metadata") for path in driver.files.syncs_done)
    assert any(path.endswith("/clicks-0") for path in driver.files.syncs_done)
    driver.append(partition, b"x")


def test_a_lazy_partition_has_its_topic_id_synced_before_its_log(driver: LogDriver) -> None:
    (partition,) = driver.open().create_partitions("clicks", [0], TOPIC_ID, settings(), lazily=True)
    driver.files.syncs_done.clear()
    driver.append(partition, b"x")
    driver.finish(partition)

    names = [path.rsplit("/", 1)[1] for path in driver.files.syncs_done]
    assert names.index("partition.metadata") < names.index("00000000000000000000.log")


def test_partition_metadata_has_no_newline_at_its_end(driver: LogDriver) -> None:
    driver.create()

    data = (driver.folder() / "partition.metadata").read_bytes()

    assert b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw" == data


def take_lock(path: str, answer: "multiprocessing.Queue[bool]") -> None:
    try:
        with open(path, "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer.put(True)
    except OSError:
        answer.put(False)


def test_the_lock_is_the_one_that_kafka_takes(driver: LogDriver) -> None:
    """Java's FileChannel.lock is fcntl's lock on the same file."""
    driver.open()
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[bool] = context.Queue()
    process = context.Process(target=take_lock, args=(str(driver.path / ".lock"), answer))
    process.start()

    assert answer.get(timeout=60) is False
    process.join()


def test_only_files_and_partition_folders_lie_in_the_data_directory(driver: LogDriver) -> None:
    driver.append(driver.create(), b"x")
    driver.append(driver.create("__consumer_offsets", 17), b"x")
    driver.directory.delete_partition("clicks", 0)
    driver.stop()

    folders = {path.name for path in driver.path.iterdir() if path.is_dir()}
    gone = {name for name in folders if name.endswith("-delete")}
    assert {"__consumer_offsets-17"} == folders - gone
    assert {
        ".kafka_cleanshutdown",
        ".lock",
        "log-start-offset-checkpoint",
        "logmark.catalog",
        "logmark.segments",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    } == {path.name for path in driver.path.iterdir() if path.is_file()}


def test_a_producer_id_of_the_high_base_survives_in_the_snapshot(driver: LogDriver) -> None:
    driver.append(driver.create(), b"x", producer=(PRODUCER_ID_BASE, 0, 0))
    driver.stop()

    data = (driver.folder() / "00000000000000000001.snapshot").read_bytes()

    assert (1, PRODUCER_ID_BASE) == struct.unpack_from(">iq", data, 6)


def test_a_clean_stop_leaves_all_the_files_that_kafka_would_have_left(driver: LogDriver) -> None:
    """Marker and indexes without a snapshot would make Kafka forget producers: all files or none."""
    partition = driver.create(config=settings(segment_bytes=300))
    for _ in range(7):
        driver.append(partition, b"x" * 60)
    bases = [segment.base_offset for segment in partition.segments]
    assert driver.stop()

    names = set(os.listdir(driver.folder()))
    expected = {f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")}
    expected |= {f"{offset:020d}.snapshot" for offset in [*bases[1:], 7]}
    assert expected | {"partition.metadata", "leader-epoch-checkpoint"} == names


def test_index_files_hold_entries_only_and_are_never_filled_up_with_zeros(driver: LogDriver) -> None:
    partition = driver.create(config=settings(index_interval_bytes=100))
    for number in range(10):
        driver.append(partition, b"x" * 60, timestamp_ms=NOW_MS + number)
    assert driver.stop()

    for suffix, size in ((".index", 8), (".timeindex", 12)):
        data = (driver.folder() / f"00000000000000000000{suffix}").read_bytes()
        assert data and not len(data) % size
        assert all(any(data[at : at + size]) for at in range(0, len(data), size))
