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
from tests.log.directory_driver import NOW_MS, TOPIC_ID, Lab, batch, settings, topic_id, values

OTHER_ID = bytes(range(100, 116))


def test_a_new_directory_says_who_it_is_and_stays_it(lab: Lab) -> None:
    directory = lab.open()
    first = (directory.cluster_id, directory.directory_id, directory.node_id)
    meta = properties.parse((lab.path / "meta.properties").read_text())

    assert {"version": "1", "cluster.id": first[0], "directory.id": first[1], "node.id": "1"} == meta
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in first[:2])
    lab.stop()
    again = lab.open()
    assert first == (again.cluster_id, again.directory_id, again.node_id)


def test_a_directory_is_made_with_its_parents(lab: Lab) -> None:
    lab.path = lab.path / "deep" / "deeper"

    lab.open()

    assert (lab.path / "meta.properties").exists()


def test_a_second_broker_is_refused_in_this_process_and_in_another(lab: Lab) -> None:
    lab.open()
    with pytest.raises(UserError, match="in use by another broker"):
        Lab(lab.path.parent).open()

    attempt = (
        "import fcntl, sys\n"
        "try:\n    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError:\n    sys.exit(7)\n"
    )
    lock = str(lab.path / ".lock")
    assert 7 == subprocess.run([sys.executable, "-c", attempt, lock], check=False).returncode
    lab.stop()
    assert 0 == subprocess.run([sys.executable, "-c", attempt, lock], check=False).returncode


def test_a_directory_of_apache_kafka_is_refused_and_left_as_it_is(lab: Lab) -> None:
    lab.path.mkdir()
    (lab.path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=y\n")
    (lab.path / "bootstrap.checkpoint").write_bytes(b"")
    before = sorted(path.name for path in lab.path.iterdir())

    with pytest.raises(UserError, match="Apache Kafka wrote"):
        lab.open()

    assert sorted([*before, ".lock"]) == sorted(path.name for path in lab.path.iterdir())


def test_a_directory_that_apache_kafka_has_taken_over_is_refused(lab: Lab) -> None:
    lab.create()
    lab.stop()
    (lab.path / "__cluster_metadata-0").mkdir()

    with pytest.raises(UserError, match="Apache Kafka wrote"):
        lab.open()


def test_a_directory_with_other_folders_is_refused(lab: Lab) -> None:
    (lab.path / "photographs").mkdir(parents=True)

    with pytest.raises(UserError, match="'photographs'"):
        lab.open()
    assert not (lab.path / "meta.properties").exists()


def test_a_file_is_not_a_directory(lab: Lab) -> None:
    lab.path.write_text("something")

    with pytest.raises(UserError, match="is not a directory"):
        lab.open()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EROFS, "cannot be written"), (errno.ENOSPC, "full disk"), (errno.EIO, "cannot be used")],
)
def test_a_disk_that_does_not_take_writes_is_a_sentence(lab: Lab, number: int, words: str) -> None:
    lab.files.fail_writes("meta.properties", number)

    with pytest.raises(UserError, match=f"{words}.* removed no record"):
        lab.open()
    lab.files.heal()
    assert lab.open().was_clean is False


def test_a_crash_before_the_catalogue_was_written_does_not_lock_us_out(lab: Lab) -> None:
    lab.open()
    lab.stop(clean=False)
    (lab.path / "logmark.catalog").unlink()

    lab.open()


def test_the_marker_of_a_clean_stop_is_there_only_while_nobody_uses_the_directory(lab: Lab) -> None:
    marker = lab.path / ".kafka_cleanshutdown"
    assert lab.open().was_clean is False
    assert lab.stop()
    assert '{"version":0,"brokerEpoch":-1}' == marker.read_text()
    assert lab.open().was_clean
    assert not marker.exists()
    lab.stop(clean=False)
    assert not marker.exists()
    assert lab.open().was_clean is False


def test_there_is_no_marker_when_a_log_failed(lab: Lab) -> None:
    partition = lab.create()
    lab.files.fail_syncs("clicks-0")
    partition.append(batch(b"x"), now_ms=NOW_MS)

    assert not lab.stop()
    assert not (lab.path / ".kafka_cleanshutdown").exists()


def test_the_checkpoints_say_where_each_log_stands(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, *[b"x"] * 5)
    partition.delete_records(3)
    lab.finish(partition)
    lab.append(partition, b"only in the WAL")

    lab.directory.write_checkpoints()

    assert "0\n1\nclicks 0 5\n" == (lab.path / "recovery-point-offset-checkpoint").read_text()
    assert "0\n1\nclicks 0 6\n" == (lab.path / "replication-offset-checkpoint").read_text()
    assert "0\n1\nclicks 0 3\n" == (lab.path / "log-start-offset-checkpoint").read_text()


def test_a_checkpoint_that_was_taken_earlier_never_replaces_a_later_one(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"x")
    lab.finish(partition)
    earlier = lab.directory.checkpoint()
    lab.append(partition, b"x")
    lab.finish(partition)
    lab.directory.checkpoint()()

    earlier()

    assert "0\n1\nclicks 0 2\n" == (lab.path / "recovery-point-offset-checkpoint").read_text()


def test_a_checkpoint_that_cannot_be_read_costs_a_check_and_nothing_else(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"x")
    lab.stop(clean=False)
    (lab.path / "recovery-point-offset-checkpoint").write_text("nonsense")

    assert {0: b"x"} == values(lab.reopen())


def test_a_deleted_partition_is_out_of_use_at_once_and_its_files_go_later(lab: Lab) -> None:
    directory = lab.open()
    partition = directory.create_partition("clicks", 0, TOPIC_ID, settings(file_delete_delay_ms=1000))
    lab.append(partition, b"x")

    directory.delete_partition("clicks", 0)

    (going,) = lab.partition_folders()
    assert re.fullmatch(r"clicks-0\.[0-9a-f]{32}-delete", going)
    directory.purge(NOW_MS + 999)
    assert (lab.path / going).exists()
    directory.purge(NOW_MS + 1000)
    assert not (lab.path / going).exists()


def test_the_folders_of_deleted_partitions_are_gone_after_a_restart(lab: Lab) -> None:
    lab.append(lab.create(), b"x")
    lab.delete()
    lab.stop(clean=False)

    lab.open()

    assert [] == lab.partition_folders(), "the WAL must not bring a deleted partition back"


def test_the_name_of_a_folder_that_goes_is_never_too_long(lab: Lab) -> None:
    name = "t" * 249
    lab.append(lab.create(name), b"x")

    lab.directory.delete_partition(name, 0)

    (going,) = lab.partition_folders()
    assert 255 == len(going)


def test_a_topic_made_again_inherits_nothing_from_its_predecessor(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, *[b"old"] * 50)
    partition.delete_records(40)
    lab.directory.write_checkpoints()
    lab.delete()

    again = lab.create()
    lab.append(again, b"new")

    for clean in (False, True):
        again = lab.reopen(clean=clean)
        assert {0: b"new"} == values(again)


def test_a_folder_of_another_topic_id_is_set_aside_and_kept(lab: Lab) -> None:
    lab.append(lab.create(), b"precious")
    lab.stop()

    again = lab.open().open_partition("clicks", 0, OTHER_ID, settings())

    assert 1 == again.log_end_offset, "its offsets are not given out again"
    (aside,) = [path for path in lab.path.iterdir() if path.name.endswith("-stray")]
    assert b"precious" in (aside / "00000000000000000000.log").read_bytes()
    lab.stop()
    assert lab.open().was_clean


def test_a_folder_that_a_crash_left_half_made_is_completed(lab: Lab) -> None:
    lab.open()
    (lab.path / "clicks-0").mkdir()

    partition = lab.directory.open_partition("clicks", 0, TOPIC_ID, settings())
    lab.append(partition, b"x")

    assert b"topic_id" in (lab.folder() / "partition.metadata").read_bytes()
    assert {0: b"x"} == values(lab.reopen(clean=False))


def test_the_folders_are_listed_as_partitions(lab: Lab) -> None:
    lab.create("a.b_c-d", 3)
    lab.create("clicks", 0)

    assert [("a.b_c-d", 3), ("clicks", 0)] == lab.directory.folders()


def test_idle_partitions_hold_no_file_open(lab: Lab) -> None:
    lab.open()
    before = len(os.listdir("/dev/fd"))

    lab.directory.create_partitions("idle", range(50), TOPIC_ID, settings())
    lab.stop()
    directory = lab.open()
    for index in range(50):
        directory.open_partition("idle", index, TOPIC_ID, settings())

    # Fewer is possible: what earlier tests left to the garbage collector may go meanwhile.
    assert before >= len(os.listdir("/dev/fd"))


def test_a_start_that_fails_halfway_leaves_the_rest_to_be_checked(lab: Lab) -> None:
    first, second = lab.create("first"), lab.create("second")
    lab.append(first, b"x")
    lab.append(second, b"y")
    second.delete_records(1)
    lab.directory.write_checkpoints()
    lab.stop(clean=False)
    with (lab.folder("second") / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")

    lab.open().open_partition("first", 0, topic_id("first"), settings())
    assert not lab.stop()

    directory = lab.open()
    assert not directory.was_clean
    again = directory.open_partition("second", 0, topic_id("second"), settings())
    assert (1, 1) == (again.log_start_offset, again.log_end_offset)
    directory.open_partition("first", 0, topic_id("first"), settings())
    assert lab.stop()


def test_a_start_that_fails_halfway_after_a_clean_stop_changes_nothing(lab: Lab) -> None:
    lab.append(lab.create("first"), b"x")
    lab.append(lab.create("second"), b"y")
    lab.stop()

    lab.open().open_partition("first", 0, topic_id("first"), settings())

    assert lab.stop()
    assert "0\n2\nfirst 0 1\nsecond 0 1\n" == (lab.path / "recovery-point-offset-checkpoint").read_text()


def test_a_wal_beside_the_mark_of_a_clean_stop_is_refused_and_nothing_is_changed(lab: Lab) -> None:
    """A copy over an older copy leaves that: the WAL of one moment, and everything else of a later one."""
    partition = lab.create()
    lab.append(partition, b"old")
    unfinished = shutil.ignore_patterns("*.tmp", "*.new")
    shutil.copytree(lab.path / "logmark.wal", lab.path.parent / "old.wal", ignore=unfinished)
    for number in range(20):
        lab.append(partition, b"%d" % number)
    assert lab.stop()
    shutil.copytree(lab.path.parent / "old.wal", lab.path / "logmark.wal")

    with pytest.raises(UserError, match="Files of two moments were mixed"):
        lab.reopen()
    shutil.rmtree(lab.path / "logmark.wal")
    assert 21 == len(values(lab.reopen()))


@pytest.mark.parametrize("lost", ["folder", "segments"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_whose_files_were_taken_away_gives_no_offset_out_again(lab: Lab, lost: str, clean: bool) -> None:
    partition = lab.create()
    for number in range(5):
        lab.append(partition, b"%d" % number)
    lab.finish(partition)
    if lost == "segments":
        lab.directory.write_checkpoints()
    lab.stop(clean=clean)
    if lost == "folder":
        shutil.rmtree(lab.folder())
    else:
        for path in lab.folder().glob("0*"):
            path.unlink()

    again = lab.reopen()

    assert (5, 5) == (again.log_end_offset, lab.append(again, b"next").base_offset)


def test_a_segment_that_was_removed_under_the_broker_is_written_again_from_the_wal(lab: Lab) -> None:
    partition = lab.create()
    for number in range(5):
        lab.append(partition, b"%d" % number)
    next(lab.folder().glob("*.log")).unlink()

    assert not lab.stop(), "the stop must not remove the WAL"
    assert [b"%d" % number for number in range(5)] == list(values(lab.reopen()).values())
