"""The data directory: who may use it, what it says of itself, and the life of partition folders."""

import errno
import os
import re
import shutil
import subprocess
import sys

import pytest

from logmark import properties
from logmark.errors import UserError
from logmark.log.checkpoints import SEGMENTS
from logmark.log.sealed_offsets import BESIDE_WAL
from logmark.names import TopicPartition
from logmark.wire.columns import crc32c
from tests.log.directory_driver import NOW_MS, TOPIC_ID, LogDriver, batch, settings, topic_id, values

OTHER_ID = bytes(range(100, 116))
CLICKS = TopicPartition("clicks", 0)


def test_a_new_directory_says_who_it_is_and_stays_it(driver: LogDriver) -> None:
    directory = driver.open()
    first = (directory.cluster_id, directory.directory_id, directory.node_id)
    meta = properties.parse((driver.path / "meta.properties").read_text())

    assert {"version": "1", "cluster.id": first[0], "directory.id": first[1], "node.id": "1"} == meta
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in first[:2])
    driver.stop()
    again = driver.open()
    assert first == (again.cluster_id, again.directory_id, again.node_id)


def test_a_directory_is_made_with_its_parents(driver: LogDriver) -> None:
    driver.path = driver.path / "deep" / "deeper"

    driver.open()

    assert (driver.path / "meta.properties").exists()


def test_a_second_broker_is_refused_in_this_process_and_in_another(driver: LogDriver) -> None:
    driver.open()
    with pytest.raises(UserError, match="in use by another broker"):
        LogDriver(driver.path.parent).open()

    attempt = (
        "import fcntl, sys\n"
        "try:\n    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError:\n    sys.exit(7)\n"
    )
    lock = str(driver.path / ".lock")
    assert 7 == subprocess.run([sys.executable, "-c", attempt, lock], check=False).returncode
    driver.stop()
    assert 0 == subprocess.run([sys.executable, "-c", attempt, lock], check=False).returncode


def test_a_directory_of_apache_kafka_is_refused_and_left_as_it_is(driver: LogDriver) -> None:
    driver.path.mkdir()
    (driver.path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=y\n")
    (driver.path / "bootstrap.checkpoint").write_bytes(b"")
    before = sorted(path.name for path in driver.path.iterdir())

    with pytest.raises(UserError, match="Apache Kafka wrote"):
        driver.open()

    assert sorted([*before, ".lock"]) == sorted(path.name for path in driver.path.iterdir())


def test_a_directory_that_apache_kafka_has_taken_over_is_refused(driver: LogDriver) -> None:
    driver.create()
    driver.stop()
    (driver.path / "__cluster_metadata-0").mkdir()

    with pytest.raises(UserError, match="Apache Kafka wrote"):
        driver.open()


def test_a_directory_with_other_folders_is_refused(driver: LogDriver) -> None:
    (driver.path / "photographs").mkdir(parents=True)

    with pytest.raises(UserError, match="'photographs'"):
        driver.open()
    assert not (driver.path / "meta.properties").exists()


def test_a_file_is_not_a_directory(driver: LogDriver) -> None:
    driver.path.write_text("something")

    with pytest.raises(UserError, match="is not a directory"):
        driver.open()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EROFS, "cannot be written"), (errno.ENOSPC, "full disk"), (errno.EIO, "cannot be used")],
)
def test_a_disk_that_does_not_take_writes_is_an_error(driver: LogDriver, number: int, words: str) -> None:
    driver.files.fail_writes("meta.properties", number)

    with pytest.raises(UserError, match=f"{words}.* removed no record"):
        driver.open()
    driver.files.heal()
    assert driver.open().was_clean is False


def test_a_crash_before_the_catalogue_was_written_does_not_lock_us_out(driver: LogDriver) -> None:
    driver.open()
    driver.stop(clean=False)
    (driver.path / "logmark.catalog").unlink()

    driver.open()


def test_the_marker_of_a_clean_stop_is_there_only_while_nobody_uses_the_directory(driver: LogDriver) -> None:
    marker = driver.path / ".kafka_cleanshutdown"
    assert driver.open().was_clean is False
    assert driver.stop()
    # Kafka's two fields and no others. The epoch is negative, which no epoch of Kafka's is, and belongs to the list.
    listed = (driver.path / SEGMENTS).read_bytes()
    assert f'{{"version":0,"brokerEpoch":{-2 - crc32c(listed, 0, len(listed))}}}' == marker.read_text()
    assert driver.open().was_clean
    assert not marker.exists()
    driver.stop(clean=False)
    assert not marker.exists()
    assert driver.open().was_clean is False


def test_there_is_no_marker_when_a_log_failed(driver: LogDriver) -> None:
    partition = driver.create()
    driver.files.fail_syncs("clicks-0")
    partition.append(batch(b"x"), now_ms=NOW_MS)

    assert not driver.stop()
    assert not (driver.path / ".kafka_cleanshutdown").exists()


def test_the_checkpoints_say_where_each_log_stands(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, *[b"x"] * 5)
    partition.delete_records(3)
    driver.finish(partition)
    driver.append(partition, b"only in the WAL")

    driver.directory.write_checkpoints()

    assert "0\n1\nclicks 0 5\n" == (driver.path / "recovery-point-offset-checkpoint").read_text()
    assert "0\n1\nclicks 0 6\n" == (driver.path / "replication-offset-checkpoint").read_text()
    assert "0\n1\nclicks 0 3\n" == (driver.path / "log-start-offset-checkpoint").read_text()


def test_a_checkpoint_that_was_taken_earlier_never_replaces_a_later_one(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    driver.finish(partition)
    earlier = driver.directory.checkpoint()
    driver.append(partition, b"x")
    driver.finish(partition)
    driver.directory.checkpoint()()

    earlier()

    assert "0\n1\nclicks 0 2\n" == (driver.path / "recovery-point-offset-checkpoint").read_text()


def test_a_log_start_that_the_disk_refused_is_not_in_force_after_a_kill(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", b"b", b"c")
    driver.finish(partition)
    driver.files.fail_writes(BESIDE_WAL, errno.EPERM)
    with pytest.raises(PermissionError), driver.directory.announce_log_starts({CLICKS: 2}):
        driver.directory.write_checkpoints()
    driver.files.heal()

    assert {0: b"a", 1: b"b", 2: b"c"} == values(driver.reopen(clean=False))


def test_an_announced_log_start_is_in_the_write_ahead_log_that_the_next_record_makes(driver: LogDriver) -> None:
    driver.append(driver.create(), b"a", b"b", b"c")
    partition = driver.reopen()
    with driver.directory.announce_log_starts({CLICKS: 2}):
        driver.directory.write_checkpoints()
        partition.delete_records(2)
    driver.append(partition, b"d")
    driver.finish(partition)

    assert {2: b"c", 3: b"d"} == values(driver.reopen(clean=False))


def test_a_topic_made_again_does_not_inherit_a_log_start_that_was_just_announced(driver: LogDriver) -> None:
    driver.append(driver.create(), b"a", b"b", b"c")
    with driver.directory.announce_log_starts({CLICKS: 2}):
        driver.directory.write_checkpoints()
        driver.delete()
        again = driver.create()
        driver.append(again, b"new")
        driver.finish(again)

    assert {0: b"new"} == values(driver.reopen(clean=False))


def test_a_checkpoint_that_cannot_be_read_costs_a_check_and_nothing_else(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    driver.stop(clean=False)
    (driver.path / "recovery-point-offset-checkpoint").write_text("nonsense")

    assert {0: b"x"} == values(driver.reopen())


def test_a_deleted_partition_is_out_of_use_at_once_and_its_files_go_later(driver: LogDriver) -> None:
    directory = driver.open()
    partition = directory.create_partition("clicks", 0, TOPIC_ID, settings(file_delete_delay_ms=1000))
    driver.append(partition, b"x")

    directory.delete_partition("clicks", 0)

    (going,) = driver.partition_folders()
    assert re.fullmatch(r"clicks-0\.[0-9a-f]{32}-delete", going)
    directory.purge(NOW_MS + 999)
    assert (driver.path / going).exists()
    directory.purge(NOW_MS + 1000)
    assert not (driver.path / going).exists()


def test_the_folders_of_deleted_partitions_are_gone_after_a_restart(driver: LogDriver) -> None:
    driver.append(driver.create(), b"x")
    driver.delete()
    driver.stop(clean=False)

    driver.open()

    assert [] == driver.partition_folders(), "the WAL must not bring a deleted partition back"


def test_the_name_of_a_folder_that_goes_is_never_too_long(driver: LogDriver) -> None:
    name = "t" * 249
    driver.append(driver.create(name), b"x")

    driver.directory.delete_partition(name, 0)

    (going,) = driver.partition_folders()
    assert 255 == len(going)


def test_a_topic_made_again_inherits_nothing_from_its_predecessor(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, *[b"old"] * 50)
    partition.delete_records(40)
    driver.directory.write_checkpoints()
    driver.delete()

    again = driver.create()
    driver.append(again, b"new")

    for clean in (False, True):
        again = driver.reopen(clean=clean)
        assert {0: b"new"} == values(again)


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_another_topic_id_is_refused_and_kept(driver: LogDriver, clean: bool) -> None:
    driver.append(driver.create(), b"precious")
    driver.stop(clean=clean)

    with pytest.raises(UserError, match="has the topic id"):
        driver.open().open_partition("clicks", 0, OTHER_ID, settings())

    driver.stop(clean=False)
    assert {0: b"precious"} == values(driver.reopen(clean=False))


def test_a_folder_that_a_crash_left_half_made_is_completed(driver: LogDriver) -> None:
    driver.open()
    (driver.path / "clicks-0").mkdir()

    partition = driver.directory.open_partition("clicks", 0, TOPIC_ID, settings())
    driver.append(partition, b"x")

    assert b"topic_id" in (driver.folder() / "partition.metadata").read_bytes()
    assert {0: b"x"} == values(driver.reopen(clean=False))


def test_the_folders_are_listed_as_partitions(driver: LogDriver) -> None:
    driver.create("a.b_c-d", 3)
    driver.create("clicks", 0)

    assert [("a.b_c-d", 3), ("clicks", 0)] == driver.directory.folders()


def test_idle_partitions_hold_no_file_open(driver: LogDriver) -> None:
    driver.open()
    before = len(os.listdir("/dev/fd"))

    driver.directory.create_partitions("idle", range(50), TOPIC_ID, settings())
    driver.stop()
    directory = driver.open()
    for index in range(50):
        directory.open_partition("idle", index, TOPIC_ID, settings())

    # Fewer is possible: what earlier tests left to the garbage collector may go meanwhile.
    assert before >= len(os.listdir("/dev/fd"))


def test_a_start_that_fails_halfway_leaves_the_rest_to_be_checked(driver: LogDriver) -> None:
    first, second = driver.create("first"), driver.create("second")
    driver.append(first, b"x")
    driver.append(second, b"y")
    second.delete_records(1)
    driver.directory.write_checkpoints()
    driver.stop(clean=False)
    with (driver.folder("second") / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")

    driver.open().open_partition("first", 0, topic_id("first"), settings())
    assert not driver.stop()

    directory = driver.open()
    assert not directory.was_clean
    again = directory.open_partition("second", 0, topic_id("second"), settings())
    assert (1, 1) == (again.log_start_offset, again.log_end_offset)
    directory.open_partition("first", 0, topic_id("first"), settings())
    assert driver.stop()


def test_a_start_that_fails_halfway_after_a_clean_stop_changes_nothing(driver: LogDriver) -> None:
    driver.append(driver.create("first"), b"x")
    driver.append(driver.create("second"), b"y")
    driver.stop()

    driver.open().open_partition("first", 0, topic_id("first"), settings())

    assert driver.stop()
    assert "0\n2\nfirst 0 1\nsecond 0 1\n" == (driver.path / "recovery-point-offset-checkpoint").read_text()


def test_a_wal_next_to_the_mark_of_a_clean_stop_is_refused_and_nothing_is_changed(driver: LogDriver) -> None:
    """A copy over an older copy leaves that: the WAL of one moment, and everything else of a later one."""
    partition = driver.create()
    driver.append(partition, b"old")
    unfinished = shutil.ignore_patterns("*.tmp", "*.new")
    shutil.copytree(driver.path / "logmark.wal", driver.path.parent / "old.wal", ignore=unfinished)
    for number in range(20):
        driver.append(partition, b"%d" % number)
    assert driver.stop()
    shutil.copytree(driver.path.parent / "old.wal", driver.path / "logmark.wal")

    with pytest.raises(UserError, match="Files of two moments were mixed"):
        driver.reopen()
    shutil.rmtree(driver.path / "logmark.wal")
    assert 21 == len(values(driver.reopen()))


@pytest.mark.parametrize("lost", ["folder", "segments"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_whose_files_were_taken_away_gives_no_offset_out_again(
    driver: LogDriver, lost: str, clean: bool,
) -> None:
    partition = driver.create()
    for number in range(5):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    if lost == "segments":
        driver.directory.write_checkpoints()
    driver.stop(clean=clean)
    if lost == "folder":
        shutil.rmtree(driver.folder())
    else:
        for path in driver.folder().glob("0*"):
            path.unlink()

    again = driver.reopen()

    assert (5, 5) == (again.log_end_offset, driver.append(again, b"next").base_offset)


def test_a_segment_that_was_removed_under_the_broker_is_written_again_from_the_wal(driver: LogDriver) -> None:
    partition = driver.create()
    for number in range(5):
        driver.append(partition, b"%d" % number)
    next(driver.folder().glob("*.log")).unlink()

    assert not driver.stop(), "the stop must not remove the WAL"
    assert [b"%d" % number for number in range(5)] == list(values(driver.reopen()).values())
