"""What must hold from the first byte so that Apache Kafka can open the directory one day."""

import fcntl
import multiprocessing
import os
import struct

from logmark.log.catalog import PRODUCER_ID_BASE
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, TOPIC_ID, Lab, batch, settings


def log_bytes(lab: Lab) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(lab.folder().glob("*.log")))


def test_the_leader_epoch_is_zero_in_every_batch_whatever_the_producer_sent(lab: Lab) -> None:
    partition = lab.create(config=settings(segment_bytes=300))
    for number in range(10):
        made = batch(b"x" * 30)
        struct.pack_into(">i", made.data, 12, number * 3 - 1)
        partition.append(made, now_ms=NOW_MS)
    lab.settle(partition)
    lab.stop()

    data, at, epochs = log_bytes(lab), 0, []
    while at < len(data):
        header = batches.read_header(data, at)
        epochs.append(header.leader_epoch)
        at += header.size
    assert [0] * 10 == epochs


def test_the_leader_epoch_is_zero_in_the_epoch_file(lab: Lab) -> None:
    lab.append(lab.create("low"), b"x")
    lab.append(lab.create("high", first_offset=500), b"x")
    lab.stop()

    assert b"0\n1\n0 0\n" == (lab.folder("low") / "leader-epoch-checkpoint").read_bytes()
    assert b"0\n1\n0 500\n" == (lab.folder("high") / "leader-epoch-checkpoint").read_bytes()


def test_the_topic_id_is_on_disk_before_any_data(lab: Lab) -> None:
    partition = lab.create()

    assert ["partition.metadata"] == os.listdir(lab.folder())
    assert any(path.endswith("clicks-0/partition.metadata") for path in lab.files.syncs_done)
    assert any(path.endswith("/clicks-0") for path in lab.files.syncs_done)
    lab.append(partition, b"x")


def test_a_lazy_partition_has_its_topic_id_synced_before_its_log(lab: Lab) -> None:
    (partition,) = lab.open().create_partitions("clicks", [0], TOPIC_ID, settings(), lazily=True)
    lab.files.syncs_done.clear()
    lab.append(partition, b"x")
    lab.finish(partition)

    names = [path.rsplit("/", 1)[1] for path in lab.files.syncs_done]
    assert names.index("partition.metadata") < names.index("00000000000000000000.log")


def test_partition_metadata_has_no_newline_at_its_end(lab: Lab) -> None:
    lab.create()

    data = (lab.folder() / "partition.metadata").read_bytes()

    assert b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw" == data


def take_lock(path: str, answer: "multiprocessing.Queue[bool]") -> None:
    try:
        with open(path, "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer.put(True)
    except OSError:
        answer.put(False)


def test_the_lock_is_the_one_that_kafka_takes(lab: Lab) -> None:
    """Java's FileChannel.lock is fcntl's lock on the same file."""
    lab.open()
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[bool] = context.Queue()
    process = context.Process(target=take_lock, args=(str(lab.path / ".lock"), answer))
    process.start()

    assert answer.get(timeout=60) is False
    process.join()


def test_only_files_and_partition_folders_lie_in_the_data_directory(lab: Lab) -> None:
    lab.append(lab.create(), b"x")
    lab.append(lab.create("__consumer_offsets", 17), b"x")
    lab.directory.delete_partition("clicks", 0)
    lab.stop()

    folders = {path.name for path in lab.path.iterdir() if path.is_dir()}
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
    } == {path.name for path in lab.path.iterdir() if path.is_file()}


def test_a_producer_id_of_the_high_base_survives_in_the_snapshot(lab: Lab) -> None:
    lab.append(lab.create(), b"x", producer=(PRODUCER_ID_BASE, 0, 0))
    lab.stop()

    data = (lab.folder() / "00000000000000000001.snapshot").read_bytes()

    assert (1, PRODUCER_ID_BASE) == struct.unpack_from(">iq", data, 6)


def test_a_clean_stop_leaves_all_the_files_that_kafka_would_have_left(lab: Lab) -> None:
    """Marker and indexes without a snapshot would make Kafka forget producers: all files or none."""
    partition = lab.create(config=settings(segment_bytes=300))
    for _ in range(7):
        lab.append(partition, b"x" * 60)
    bases = [segment.base_offset for segment in partition.segments]
    assert lab.stop()

    names = set(os.listdir(lab.folder()))
    expected = {f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")}
    expected |= {f"{offset:020d}.snapshot" for offset in [*bases[1:], 7]}
    assert expected | {"partition.metadata", "leader-epoch-checkpoint"} == names


def test_index_files_hold_entries_only_and_are_never_filled_up_with_zeros(lab: Lab) -> None:
    partition = lab.create(config=settings(index_interval_bytes=100))
    for number in range(10):
        lab.append(partition, b"x" * 60, timestamp_ms=NOW_MS + number)
    assert lab.stop()

    for suffix, size in ((".index", 8), (".timeindex", 12)):
        data = (lab.folder() / f"00000000000000000000{suffix}").read_bytes()
        assert data and not len(data) % size
        assert all(any(data[at : at + size]) for at in range(0, len(data), size))
