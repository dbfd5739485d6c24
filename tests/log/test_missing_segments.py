"""Segments that somebody has taken away: `logmark recover` and `logmark verify` name the offsets that are missing."""

import json
import re
import shutil
from pathlib import Path

import pytest

from logmark.broker.internal_partition import PartitionLog
from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import text_of_id
from logmark.log.clean_stop import CLEAN
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Limits
from logmark.wire import batches
from tests.cli.conftest import CommandResult, run
from tests.harness.crashed import tree
from tests.log.directory_driver import NOW_MS, TOPIC_ID, LogDriver, batch, settings

FOLDER = "clicks-0"
END = 21
SMALL = settings(segment_bytes=300)
COMPACTED = settings(segment_bytes=300, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
STATES = ["stopped", "crashed"]
LOOKS = [("recover", "--dry-run"), ("verify",)]
COMMANDS = [*LOOKS, ("recover",)]


def fill(driver: LogDriver, *, cleaned_to: int | None = None) -> Partition:
    """Write a log of several segments, all of them flushed, of which compaction has cleaned a part if asked for."""
    partition = driver.create(config=SMALL)
    for number in range(END - 1):
        driver.append(partition, b"click %d" % number)
    driver.finish(partition)
    assert len(partition.segments) > 4
    if cleaned_to is not None:
        assert driver.directory is not None
        driver.directory.note_cleaned(partition, cleaned_to)()
    return partition


def leave(driver: LogDriver, partition: Partition, state: str) -> Path:
    """Write one more record, stop or kill the broker, and return the directory."""
    driver.append(partition, b"last")
    return stop(driver, state)


def stop(driver: LogDriver, state: str) -> Path:
    """Stop or kill the broker, and return the directory; its catalogue has the topic."""
    driver.stop(clean=state == "stopped")
    topic = {"name": "clicks", "id": text_of_id(TOPIC_ID), "partitions": 1, "overrides": {}}
    document = {"version": 1, "next_producer_id": 1 << 41, "topics": [topic]}
    (driver.path / CATALOG).write_text(json.dumps(document))
    return driver.path


def take_away(data: Path, at: int) -> tuple[int, int]:
    """Remove all files of a segment, and return its first offset and the one behind its last."""
    bases = sorted(int(path.stem) for path in (data / FOLDER).glob("*.log"))
    for path in (data / FOLDER).glob(f"{bases[at]:020d}.*"):
        if path.suffix != ".snapshot":
            path.unlink()
    return bases[at], [*bases[1:], END][at]


def look(data: Path, command: tuple[str, ...]) -> CommandResult:
    """Run a command on the directory; one that only looks must change nothing."""
    before = tree(data)
    done = run(*command, str(data))
    assert command not in LOOKS or before == tree(data)
    return done


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_log_that_is_whole_is_said_to_be_so(driver: LogDriver, state: str, command: tuple[str, ...]) -> None:
    done = look(leave(driver, fill(driver), state), command)

    assert 0 == done.exit_code, done.out + done.error


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_segment_that_is_missing_in_the_middle_is_told_with_its_offsets(
    driver: LogDriver, state: str, command: tuple[str, ...]
) -> None:
    data = leave(driver, fill(driver), state)
    first, following = take_away(data, 2)

    done = look(data, command)

    assert 1 == done.exit_code, done.out + done.error
    told = done.out + done.error
    assert f"offsets {first} to {following - 1}" in told
    assert 1 == told.count(f"offsets {first} to"), "each gap is told once"
    if "recover" in command and state == "stopped":
        assert "nothing was changed" in told


def cut(data: Path, at: int, torn_bytes: int) -> int:
    """Cut the last batch off a segment, and all but so many bytes of the one before it; return that one's offset."""
    path = sorted((data / FOLDER).glob("*.log"))[at]
    content = path.read_bytes()
    positions = [0]
    while (end := positions[-1] + batches.read_header(content, positions[-1]).size) < len(content):
        positions.append(end)
    path.write_bytes(content[: positions[-2] + torn_bytes])
    return batches.read_header(content, positions[-2]).base_offset


@pytest.mark.parametrize("torn_bytes", [0, 10], ids=["between two batches", "inside a batch"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_segment_that_is_cut_after_a_crash_is_told(
    driver: LogDriver, command: tuple[str, ...], torn_bytes: int
) -> None:
    data = leave(driver, fill(driver), "crashed")
    first = cut(data, 2, torn_bytes)

    done = look(data, command)

    assert 1 == done.exit_code, done.out + done.error
    assert re.search(rf"offsets (from )?{first}\b", done.out + done.error)


@pytest.mark.parametrize("torn_bytes", [0, 10], ids=["between two batches", "inside a batch"])
def test_what_a_recovery_has_told_of_a_cut_segment_is_damage_from_the_next_start_on(
    driver: LogDriver, torn_bytes: int
) -> None:
    data = leave(driver, fill(driver), "crashed")
    first = cut(data, 2, torn_bytes)
    assert 1 == run("recover", str(data)).exit_code

    partition = driver.reopen(config=SMALL)

    assert [first] == [damage.first_offset for damage in partition.damage]
    assert [None, ErrorCode.CORRUPT_MESSAGE] == read_errors(partition, range(first - 1, first + 1))


def test_a_missing_segment_is_told_by_every_recovery_until_it_is_repaired(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "crashed")
    take_away(data, 2)
    assert [1, 1] == [run("recover", str(data)).exit_code for _ in range(2)]

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code

    assert 0 == run("recover", str(data)).exit_code


def test_programs_get_what_is_missing_as_damage(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    first, following = take_away(data, 2)

    found = run("recover", str(data), "--dry-run", "--output", "json").json

    (damage,) = found["damage"]
    assert found["was_clean"]
    assert f"{FOLDER}: offsets {first} to {following - 1} are missing" in damage


def test_the_end_of_a_log_and_a_whole_log_that_are_missing_after_a_clean_stop_are_told(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    first, _ = take_away(data, -1)
    done = look(data, ("recover", "--dry-run"))
    assert (1, True) == (done.exit_code, f"{FOLDER}: offsets {first} to {END - 1} are missing" in done.error)

    shutil.rmtree(data / FOLDER)

    done = look(data, ("recover", "--dry-run"))
    assert (1, True) == (done.exit_code, f"{FOLDER}: offsets 0 to {END - 1} are missing" in done.error)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_log_that_was_compacted_may_lack_segments(driver: LogDriver, command: tuple[str, ...]) -> None:
    data = leave(driver, fill(driver, cleaned_to=15), "crashed")
    take_away(data, 2)

    done = look(data, command)

    assert 0 == done.exit_code, done.out + done.error


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_after_a_clean_stop_a_segment_of_a_compacted_log_is_missed_too(
    driver: LogDriver, command: tuple[str, ...],
) -> None:
    data = leave(driver, fill(driver, cleaned_to=15), "stopped")
    first, following = take_away(data, 2)

    done = look(data, command)

    assert 1 == done.exit_code
    assert f"offsets {first} to {following - 1}" in done.out + done.error


# The log start


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_first_segment_that_is_missing_is_told_with_its_offsets(
    driver: LogDriver, state: str, command: tuple[str, ...]
) -> None:  # fmt: skip
    data = leave(driver, fill(driver), state)
    first, following = take_away(data, 0)

    done = look(data, command)

    assert 1 == done.exit_code, done.out + done.error
    told = done.out + done.error
    assert f"{FOLDER}, offsets {first} to {following - 1}" in told.replace(": offsets", ", offsets")
    assert f"the log started at offset {first}, and its first segment begins at {following}" in told


@pytest.mark.parametrize("evidence", ["leader epochs", "log starts"])
def test_a_segment_that_held_the_log_start_is_missed_by_what_a_file_says_of_it(
    driver: LogDriver, evidence: str,
) -> None:
    partition = fill(driver)
    partition.delete_records(1)
    data = leave(driver, partition, "stopped")
    _, following = take_away(data, 0)
    if evidence == "leader epochs":
        (data / checkpoints.LOG_STARTS).unlink()
    else:
        (data / FOLDER / EPOCHS).unlink()

    for command in LOOKS:
        done = look(data, command)
        assert f"its first segment begins at {following}" in done.out + done.error


def test_a_repair_makes_the_first_record_that_is_there_the_log_start(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    _, following = take_away(data, 0)

    repaired = run("verify", str(data), "--repair", "--yes")

    assert 0 == repaired.exit_code, repaired.out + repaired.error
    assert 0 == run("recover", str(data)).exit_code
    assert following == driver.reopen().log_start_offset


def test_a_missing_first_segment_is_told_after_a_start_and_a_stop_too(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    first, following = take_away(data, 0)
    driver.reopen()
    driver.stop()

    assert f"offsets {first} to {following - 1}" in look(data, ("verify",)).out


# What retention and DeleteRecords do


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_a_crash_leaves_of_segments_below_the_log_start_is_no_damage(
    driver: LogDriver, command: tuple[str, ...],
) -> None:
    """The names of deleted segments may come back in any order."""
    partition = fill(driver)
    partition.delete_records(12)
    driver.finish(partition)
    data = leave(driver, partition, "crashed")
    _, following = take_away(data, 1)
    assert following < 12

    done = look(data, command)

    assert 0 == done.exit_code, done.out + done.error


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_segments_that_were_deleted_are_missed_by_nobody(
    driver: LogDriver, state: str, command: tuple[str, ...],
) -> None:
    partition = fill(driver)
    partition.delete_records(9)
    assert partition.apply_retention(NOW_MS) > 1
    driver.finish(partition)

    done = look(leave(driver, partition, state), command)

    assert 0 == done.exit_code, done.out + done.error


# What a start does


def read_errors(partition: Partition, offsets: range) -> list[ErrorCode | None]:
    """Return how a read at each offset is refused; None if it is served."""
    found: list[ErrorCode | None] = []
    for offset in offsets:
        try:
            assert offset == batches.read_header(partition.read(offset, bytes_max=1)).base_offset
            found.append(None)
        except Refused as refused:
            found.append(refused.code)
    return found


@pytest.mark.parametrize(
    ("state", "at"), [("stopped", 0), ("stopped", 2), ("stopped", -1), ("crashed", 0), ("crashed", 2)]
)
def test_a_start_refuses_the_offsets_of_a_missing_segment_as_damaged_and_serves_all_others(
    driver: LogDriver, state: str, at: int
) -> None:  # fmt: skip
    data = leave(driver, fill(driver), state)
    first, following = take_away(data, at)

    partition = driver.reopen(config=SMALL)

    expected = [ErrorCode.CORRUPT_MESSAGE if first <= offset < following else None for offset in range(END)]
    assert expected == read_errors(partition, range(END))
    assert (0, END) == (partition.log_start_offset, partition.log_end_offset)


@pytest.mark.parametrize("at", [0, 2, -1], ids=["first", "middle", "last"])
def test_a_missing_segment_is_damage_at_every_start_until_it_is_repaired(driver: LogDriver, at: int) -> None:
    data = leave(driver, fill(driver), "stopped")
    first, following = take_away(data, at)

    for _ in range(3):
        (gap,) = driver.reopen(config=SMALL).damage
        assert (first, following) == (gap.first_offset, gap.next_offset)
        driver.stop()

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
    assert [] == driver.reopen(config=SMALL).damage


def test_a_missing_segment_that_is_put_back_is_served_again(driver: LogDriver, tmp_path: Path) -> None:
    data = leave(driver, fill(driver), "stopped")
    shutil.copytree(data / FOLDER, tmp_path / "copy")
    take_away(data, 2)
    assert driver.reopen(config=SMALL).damage
    driver.stop()

    shutil.copytree(tmp_path / "copy", data / FOLDER, dirs_exist_ok=True)

    partition = driver.reopen(config=SMALL)
    assert [] == partition.damage
    assert [None] * END == read_errors(partition, range(END))


def test_a_segment_that_is_cut_after_a_clean_stop_is_damage_from_the_start_on(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    path = sorted((data / FOLDER).glob("*.log"))[2]
    path.write_bytes(path.read_bytes()[:-1])

    (damage,) = driver.reopen(config=SMALL).damage

    assert path == Path(damage.path)


def test_damage_that_a_read_has_found_is_known_after_a_clean_stop_and_a_start(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    path = sorted((data / FOLDER).glob("*.log"))[2]
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    partition = driver.reopen(config=SMALL)
    assert [] == partition.damage, "a clean start reads no records"
    assert ErrorCode.CORRUPT_MESSAGE in read_errors(partition, range(END))
    found = partition.damage
    driver.stop()

    assert found == driver.reopen(config=SMALL).damage


def test_a_reader_of_a_compacted_log_does_not_pass_over_a_missing_segment(driver: LogDriver) -> None:
    data = leave(driver, fill(driver, cleaned_to=15), "stopped")
    first, following = take_away(data, 2)

    errors = read_errors(driver.reopen(config=SMALL), range(first, following + 1))

    assert [ErrorCode.CORRUPT_MESSAGE] * (following - first) + [None] == errors


@pytest.mark.parametrize("at", [0, 2, -2], ids=["first", "middle", "last but one"])
def test_a_log_that_lacks_a_segment_is_not_compacted(driver: LogDriver, at: int) -> None:
    data = leave(driver, fill(driver), "stopped")
    first, following = take_away(data, at)
    partition = driver.reopen(config=COMPACTED)
    part = partition.dirty_part(NOW_MS)
    assert part is not None

    with pytest.raises(Malformed, match=f"offsets {first} to {following - 1} are missing"):
        partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())


def test_a_compacted_log_is_loaded_though_it_ends_in_a_hole(driver: LogDriver) -> None:
    data = leave(driver, fill(driver, cleaned_to=15), "stopped")
    first, _ = take_away(data, -1)
    lacking = PartitionLog(driver.reopen(config=COMPACTED))
    with pytest.raises(Refused):
        list(lacking.read())
    # After a crash nobody knows any more that the log had more records.
    partition = driver.reopen(clean=False, config=COMPACTED)
    assert END == partition.high_watermark and [] == partition.damage

    assert first == sum(len(batch.records) for batch in PartitionLog(partition).read())


def test_deleting_records_behind_a_gap_ends_it(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    _, following = take_away(data, 0)
    partition = driver.reopen(config=SMALL)
    assert partition.damage

    partition.delete_records(following)

    assert [] == partition.damage
    driver.stop()
    assert [] == driver.reopen(config=SMALL).damage


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked as clean", "without the mark"])
def test_a_start_on_a_directory_without_a_partitions_folder_gives_no_offset_out_again(
    driver: LogDriver, is_marked: bool
) -> None:
    data = leave(driver, fill(driver), "stopped")
    shutil.rmtree(data / FOLDER)
    if not is_marked:
        (data / CLEAN).unlink()

    partition = driver.reopen(config=SMALL)

    assert END == driver.append(partition, b"new").base_offset
    (gap,) = partition.damage
    assert (0, END) == (gap.first_offset, gap.next_offset)


def test_what_apache_kafka_has_deleted_is_missed_by_nobody(driver: LogDriver) -> None:
    """Its mark of a clean stop names the epoch of its broker; the list of segments is older than that."""
    data = leave(driver, fill(driver), "stopped")
    _, following = take_away(data, 0)
    (data / CLEAN).write_text('{"version":0,"brokerEpoch":17}')

    partition = driver.reopen(config=SMALL)

    assert ([], following) == (partition.damage, partition.log_start_offset)


def test_offsets_of_a_lost_partition_are_known_by_every_file_that_says_them(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    last = max(int(path.stem) for path in (data / FOLDER).glob("*.log"))
    shutil.rmtree(data / FOLDER)
    (data / checkpoints.RECOVERY_POINTS).unlink()
    assert END == driver.reopen(config=SMALL).log_end_offset
    driver.stop(clean=False)

    data = leave_again(data, driver)
    (data / checkpoints.HIGH_WATERMARKS).unlink()

    assert last <= driver.reopen(config=SMALL).log_end_offset


def leave_again(data: Path, driver: LogDriver) -> Path:
    """Make the same directory once more, without the folder and the recovery points."""
    shutil.rmtree(data)
    leave(driver, fill(driver), "stopped")
    shutil.rmtree(data / FOLDER)
    (data / checkpoints.RECOVERY_POINTS).unlink()
    return data


def test_a_reader_of_a_log_without_any_segment_gets_an_error(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    for path in (data / FOLDER).glob("0*.*"):
        path.unlink()

    partition = driver.reopen(config=SMALL)

    assert [ErrorCode.CORRUPT_MESSAGE] * END == read_errors(partition, range(END))


def test_a_gap_that_a_read_is_the_first_to_notice_is_damage_from_then_on(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "crashed")
    first, following = take_away(data, 2)
    partition = driver.reopen(config=SMALL)
    assert [] == partition.damage, "a start reads nothing below the recovery point"

    read_errors(partition, range(following - 1, first - 1, -1))

    (gap,) = partition.damage
    assert (first, following) == (gap.first_offset, gap.next_offset)
    driver.stop()
    assert [gap] == driver.reopen(config=SMALL).damage


# What somebody adds


def foreign_batch(base_offset: int) -> bytes:
    made = batch(b"forged", b"forged", b"forged")
    batches.assign_offset(made, base_offset)
    return bytes(made.data)


@pytest.mark.parametrize("state", STATES)
def test_batches_behind_the_last_offset_of_a_segment_are_not_served(driver: LogDriver, state: str) -> None:
    data = leave(driver, fill(driver), state)
    path = sorted((data / FOLDER).glob("*.log"))[2]
    following = int(sorted((data / FOLDER).glob("*.log"))[3].stem)
    path.write_bytes(path.read_bytes() + foreign_batch(following))

    partition = driver.reopen(config=SMALL)

    for begin in range(following):
        offset, values = begin, []
        while offset < END:
            records = partition.read(offset, bytes_max=1_000_000)
            assert b"forged" not in bytes(records), f"read from {begin}"
            offset = last_offset_of(records) + 1
            values.append(offset)
    assert [str(path)] == [damage.path for damage in partition.damage]


def last_offset_of(records: bytes | memoryview) -> int:
    at, last = 0, -1
    while at < len(records):
        header = batches.read_header(records, at)
        at, last = at + header.size, header.last_offset
    return last
