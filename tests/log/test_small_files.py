"""The small files of a data directory, changed at rest: no record is hidden, forged or written over."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.errors import ErrorCode, UserError
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, text_of_id
from logmark.log.group_commit import Durability
from logmark.log.identity import META
from logmark.log.partition import Partition
from logmark.log.sealed_offsets import BESIDE_WAL
from logmark.names import TopicPartition
from logmark.testing import Broker
from tests.cli.conftest import run
from tests.harness.crashed import tree
from tests.log.directory_driver import TOPIC_ID, LogDriver, settings
from tests.log.test_compaction_takeover import records
from tests.log.test_missing_segments import (
    END,
    FOLDER,
    SMALL,
    STATES,
    fill,
    leave,
    read_errors,
    stop,
    take_away,
)

START = 12
COMPACTED = settings(
    segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
)


def leave_file(path: Path, content: bytes | None) -> None:
    """Write a file, or take it away."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def delete_records(driver: LogDriver, state: str) -> Path:
    """Leave a log whose records below an offset in the middle of a segment were deleted."""
    partition = fill(driver)
    partition.delete_records(START)
    assert driver.directory is not None
    driver.directory.write_checkpoints()
    return leave(driver, partition, state)


def offsets_of(partition: Partition) -> list[int]:
    return [record.offset for record in records(partition)]


def fill_with_holes(driver: LogDriver, state: str) -> tuple[Path, list[int]]:
    """Leave a log with holes that a compaction has made; return the directory and the offsets that have a record."""
    partition = driver.create(config=COMPACTED)
    for number in range(30):
        driver.append_keyed(partition, (b"key %d" % (number % 5), b"value %d" % number))
    driver.compact(partition)
    driver.append_keyed(partition, (b"last", b"value"))
    offsets = offsets_of(partition)
    assert 5 < len(offsets) < 31
    data = stop(driver, state)
    return data, offsets


# How far logs were cleaned

WRONG_CLEANED = {
    "taken away": None, "empty": b"", "of another topic": b"0\n1\nblicks 0 25\n", "unreadable": b"0\n9\nclicks 0 25\n",
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_CLEANED.values(), ids=WRONG_CLEANED)
@pytest.mark.parametrize("state", STATES)
def test_a_wrong_checkpoint_of_the_cleaner_takes_no_record_out_of_service(
    driver: LogDriver, tmp_path: Path, state: str, wrong: bytes | None
) -> None:
    data, offsets = fill_with_holes(driver, state)
    right = (data / checkpoints.CLEANED).read_bytes()
    leave_file(data / checkpoints.CLEANED, wrong)
    assert 0 == run("backup", str(data), str(tmp_path / "backup")).exit_code
    # A crash may have come before the file was written, but it leaves no file that cannot be read.
    is_reported = state == "stopped" or wrong == WRONG_CLEANED["unreadable"]
    assert is_reported == run("verify", str(data)).exit_code

    partition = driver.reopen(config=COMPACTED)

    assert ([], offsets) == (partition.damage, offsets_of(partition))
    driver.stop()
    assert right == (data / checkpoints.CLEANED).read_bytes(), "Apache Kafka knows it, too"


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("wrong", WRONG_CLEANED.values(), ids=WRONG_CLEANED)
def test_a_repair_moves_no_record_of_a_compacted_log_whatever_the_cleaners_checkpoint_says(
    driver: LogDriver, wrong: bytes | None, is_listed: bool
) -> None:
    """Without our list nobody knows of the holes: the first repair fills them."""
    data, offsets = fill_with_holes(driver, "stopped")
    leave_file(data / checkpoints.CLEANED, wrong)
    if not is_listed:
        (data / checkpoints.SEGMENTS).unlink()

    done = run("verify", str(data), "--repair", "--yes")

    assert 0 == done.exit_code, done.out + done.error
    assert 0 == run("verify", str(data)).exit_code
    partition = driver.reopen(config=COMPACTED)
    assert ([], offsets) == (partition.damage, offsets_of(partition))


# Log starts


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("wrong", [2, 16, 999])
def test_a_wrong_log_start_in_kafkas_checkpoint_hides_no_record_and_brings_none_back(
    driver: LogDriver, state: str, wrong: int
) -> None:  # fmt: skip
    data = delete_records(driver, state)
    (data / checkpoints.LOG_STARTS).write_text(f"0\n1\nclicks 0 {wrong}\n")

    partition = driver.reopen(config=SMALL)

    assert (START, END) == (partition.log_start_offset, partition.log_end_offset)
    assert [None] * (END - START) == read_errors(partition, range(START, END))


@pytest.mark.parametrize("name", ["recovery-points", "log-starts", "0001.wal", "inventory"])
def test_a_file_of_the_write_ahead_log_of_an_earlier_run_cuts_no_record_and_brings_none_back(
    driver: LogDriver, name: str
) -> None:
    partition = fill(driver)
    earlier = (driver.path / "logmark.wal" / name).read_bytes()
    driver.stop(clean=False)
    partition = driver.reopen(config=SMALL)
    driver.append(partition, b"of the next run")
    with driver.directory.announce_log_starts({TopicPartition("clicks", 0): START}):
        driver.directory.write_checkpoints()
        partition.delete_records(START)
    driver.stop(clean=False)
    (driver.path / "logmark.wal" / name).write_bytes(earlier)
    before = tree(driver.path)

    if name == "log-starts":
        # Kafka's file says it too.
        assert START == driver.reopen(config=SMALL).log_start_offset
        return
    with pytest.raises(UserError, match="of this write-ahead log"):
        driver.reopen(config=SMALL)
    assert before == tree(driver.path)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("wrong", [2, 16])
def test_a_backup_takes_the_log_start_that_a_start_would_take(
    driver: LogDriver, tmp_path: Path, state: str, wrong: int
) -> None:
    data = delete_records(driver, state)
    (data / checkpoints.LOG_STARTS).write_text(f"0\n1\nclicks 0 {wrong}\n")

    copied = run("backup", str(data), str(tmp_path / "backup"), "-o", "json")

    assert 0 == copied.exit_code, copied.error
    assert [(START, END)] == [(one["start"], one["end"]) for one in copied.json["partitions"]]


def test_verify_reports_a_log_start_that_a_clean_stop_has_not_left(driver: LogDriver) -> None:
    data = delete_records(driver, "stopped")
    (data / checkpoints.LOG_STARTS).write_text("0\n1\nclicks 0 16\n")

    done = run("verify", str(data))

    assert 1 == done.exit_code
    assert f"it says 16 for clicks-0, and the log starts at {START}" in done.out


def test_a_high_watermark_of_a_deleted_topic_is_no_finding_after_a_crash_because_no_start_believes_it(
    driver: LogDriver,
) -> None:
    data = delete_records(driver, "crashed")
    (data / checkpoints.HIGH_WATERMARKS).write_text(f"0\n2\nclicks 0 {END + 9}\nclicks 1 5\n")

    done = run("verify", str(data))

    assert 0 == done.exit_code, done.out
    assert END == driver.reopen(config=SMALL).log_end_offset


def test_log_starts_that_a_crash_has_torn_are_those_of_kafkas_checkpoint(driver: LogDriver) -> None:
    data = delete_records(driver, "crashed")
    (data / BESIDE_WAL).write_bytes(b"\0" * 30)

    assert START == driver.reopen(config=SMALL).log_start_offset


# The list of segments


def test_a_list_with_any_flipped_bit_is_not_believed(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    content = (data / checkpoints.SEGMENTS).read_bytes()
    kept = checkpoints.SegmentList.decode(content)

    for at in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(checkpoints.Malformed):
            checkpoints.SegmentList.decode(bytes(flipped))
    assert kept == checkpoints.SegmentList.decode(content)


def test_a_list_that_is_damaged_takes_no_record_out_of_service(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    path = data / checkpoints.SEGMENTS
    path.write_text(path.read_text().replace("clicks 0 0 ", "clicks 1 0 "))

    partition = driver.reopen(config=SMALL)

    assert [None] * END == read_errors(partition, range(END))
    assert [] == list((data / FOLDER).glob("*.cut"))


def test_a_first_segment_is_missed_after_a_clean_stop_also_without_the_list(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    (data / checkpoints.SEGMENTS).unlink()
    first, following = take_away(data, 0)
    assert 1 == run("recover", str(data)).exit_code

    partition = driver.reopen(config=SMALL)

    assert 0 == partition.log_start_offset
    assert [ErrorCode.CORRUPT_MESSAGE] * (following - first) == read_errors(partition, range(first, following))


# The catalogue


def write_catalog(data: Path, **topics: int) -> None:
    """Write a catalogue of an earlier moment: topics with their numbers of partitions."""
    rows = [
        {"name": name, "id": text_of_id(TOPIC_ID), "partitions": count, "overrides": {}}
        for name, count in topics.items()
    ]
    document = {"version": 1, "next_producer_id": 1 << 41, "topics": rows}
    (data / CATALOG).write_text(json.dumps(document))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("topics", [{}, {"others": 1}], ids=["older", "another name"])
def test_a_start_refuses_records_that_the_catalogue_does_not_know_and_changes_nothing(
    driver: LogDriver, tmp_path: Path, state: str, topics: dict[str, int]
) -> None:  # fmt: skip
    data = leave(driver, fill(driver), state)
    write_catalog(data, **topics)
    before = tree(data)

    with pytest.raises(UserError, match=r"clicks-0 holds records, and logmark.catalog does not have that partition"):
        driver.open()

    assert before == tree(data)
    assert 1 == run("recover", str(data)).exit_code
    assert 1 == run("verify", str(data)).exit_code
    backup = run("backup", str(data), str(tmp_path / "backup"))
    assert (1, True) == (backup.exit_code, "clicks-0 holds records" in backup.error)


def test_a_start_refuses_records_of_a_partition_above_the_count_of_its_topic(driver: LogDriver) -> None:
    partition = driver.create(index=1)
    driver.append(partition, b"click")
    data = leave(driver, fill(driver), "stopped")

    with pytest.raises(UserError, match="clicks-1 holds records"):
        driver.open()

    write_catalog(data, clicks=2)
    assert 1 == driver.reopen(index=1).log_end_offset


@pytest.mark.parametrize("last_run", ["not opened", "opened", "written and flushed"])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_flipped_topic_id_after_a_crash_gives_no_offset_out_again(
    tmp_path: Path, durability: Durability, last_run: str
) -> None:
    """The records are in no write-ahead log: only the folder has them."""
    driver = LogDriver(tmp_path, durability=durability)
    partition = driver.create()
    if last_run != "written and flushed":
        driver.append(partition, b"click")
        partition = driver.reopen()
    if last_run == "not opened":
        driver.stop()
    elif last_run == "written and flushed":
        driver.append(partition, b"click")
        driver.finish(partition)
    driver.append(driver.create("others"), b"other")
    driver.stop(clean=False)
    path = driver.folder() / "partition.metadata"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)

    with pytest.raises(UserError, match=r"clicks-0/partition.metadata has the topic id"):
        driver.reopen()

    driver.stop(clean=False)
    write_catalog(driver.path, clicks=1, others=1)
    refused = run("backup", str(driver.path), str(tmp_path / "backup"))
    assert (1, True) == (refused.exit_code, "clicks-0/partition.metadata has the id of another topic" in refused.error)
    content[-3] ^= 1
    path.write_bytes(content)
    assert 1 == driver.reopen().log_end_offset
    driver.close()


def test_a_flipped_topic_id_of_a_log_that_the_wal_has_is_put_right(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "crashed")
    path = data / FOLDER / "partition.metadata"
    right = path.read_bytes()
    path.write_bytes(checkpoints.write_partition_metadata(bytes(reversed(TOPIC_ID))))

    partition = driver.reopen(config=SMALL)

    assert [None] * END == read_errors(partition, range(END))
    assert right == path.read_bytes()


def test_a_folder_of_another_topic_is_not_written_over(driver: LogDriver) -> None:
    """Somebody puts it there while the broker runs, before the first record of the new topic's partition."""
    driver.open()
    assert driver.directory is not None
    (partition,) = driver.directory.create_partitions("clicks", [5], TOPIC_ID, SMALL, lazily=True)
    folder = driver.folder(index=5)
    folder.mkdir()
    other = checkpoints.write_partition_metadata(bytes(reversed(TOPIC_ID)))
    (folder / "partition.metadata").write_bytes(other)
    (folder / f"{0:020}.log").write_bytes(b"records of another topic")

    for _ in range(2):
        with pytest.raises(Exception, match=r"File exists|another topic|takes no"):
            driver.append(partition, b"click")
        driver.recover(partition)

    assert other == (folder / "partition.metadata").read_bytes()
    assert b"records of another topic" == (folder / f"{0:020}.log").read_bytes()


def test_a_catalogue_older_than_the_logs_gives_no_producer_id_out_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        broker.create_topic("clicks")
        before = (data / CATALOG).read_bytes()
        for number in range(3):
            produce(broker, b"first %d" % number)
    (data / CATALOG).write_bytes(before)

    with Broker(data_dir=data) as broker:
        for number in range(3):
            produce(broker, b"second %d" % number)
        assert [f"{run} {number}".encode() for run in ("first", "second") for number in range(3)] == consume(broker)


def produce(broker: Broker, value: bytes) -> None:
    """Write one record as a new idempotent producer."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    producer.produce("clicks", value)
    assert 0 == producer.flush(30)


def consume(broker: Broker) -> list[bytes]:
    """Return the values of all records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition("clicks", 0), timeout=30)
    consumer.assign([TopicPartition("clicks", 0, 0)])
    values = [message.value() for message in consumer.consume(end, timeout=30)]
    consumer.close()
    return values


def test_a_directory_of_another_cluster_is_refused_before_its_wal_is_recovered(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "crashed")
    known = Catalog(None, cluster_id="another cluster")
    known.adopt(Catalog((data / CATALOG).read_bytes()).entries(), 1 << 41)
    (data / CATALOG).write_bytes(known.encode())
    before = tree(data)

    with pytest.raises(UserError, match="files of two data directories were mixed"):
        driver.open()

    assert before == tree(data)
    assert 1 == run("verify", str(data)).exit_code


# Files that are none


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [make_pipe, link_to_zeros])
@pytest.mark.parametrize(
    "name",
    [CATALOG, META, checkpoints.SEGMENTS, checkpoints.LOG_STARTS, ".kafka_cleanshutdown",
     f"{FOLDER}/partition.metadata", f"{FOLDER}/leader-epoch-checkpoint"],
)  # fmt: skip
@pytest.mark.parametrize("command", [("recover", "--dry-run"), ("verify",)], ids=" ".join)
def test_a_pipe_or_a_device_instead_of_a_file_ends_a_command_with_an_error(
    driver: LogDriver, command: tuple[str, ...], name: str, make: Callable[[Path], None]
) -> None:
    data = leave(driver, fill(driver), "stopped")
    (data / name).unlink()
    make(data / name)

    done = run(*command, str(data))

    # A clean start does not read the leader epochs.
    is_unread = name.endswith("leader-epoch-checkpoint") and command[0] == "recover"
    assert done.exit_code in ((0, 1, 2) if is_unread else (1, 2)), done.out
    assert "Traceback" not in done.out + done.error
