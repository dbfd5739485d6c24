"""Older files that somebody puts back into a stopped data directory: no start believes them in silence."""

from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.log import checkpoints
from logmark.log.partition import Partition
from tests.cli.conftest import run
from tests.log.directory_driver import LogDriver, settings
from tests.log.test_compaction_takeover import COMPACT, KEYS, VALUES, newest
from tests.log.test_missing_segments import COMMANDS, END, FOLDER, LOOKS, SMALL, fill, leave, look, stop

SEGMENT = f"{FOLDER}/{0:020d}.log"
START = 12


def write_and_compact(driver: LogDriver, partition: Partition, rounds: range) -> Path:
    """Write every key in each round, compact the log into one segment, stop, and return the data directory."""
    for at in rounds:
        for key in range(KEYS):
            driver.append_keyed(partition, (b"key-%d" % key, b"value %d" % at))
    # All that was closed becomes one segment.
    partition.configure(settings(**{**VALUES, "segment_bytes": 1_000_000}))
    driver.compact(partition)
    return stop(driver, "stopped")


def put_older_segment_back(driver: LogDriver) -> Path:
    """Leave a compacted log, its first segment replaced by an older output of compaction of the same size."""
    data = write_and_compact(driver, driver.create(config=COMPACT), range(4))
    older = (data / SEGMENT).read_bytes()
    write_and_compact(driver, driver.reopen(config=COMPACT), range(4, 10))
    newer = (data / SEGMENT).read_bytes()
    assert len(older) == len(newer) and older != newer
    (data / SEGMENT).write_bytes(older)
    return data


def test_no_start_serves_an_older_output_of_compaction_of_the_same_size(driver: LogDriver) -> None:
    put_older_segment_back(driver)

    with pytest.raises(UserError, match="may be an older copy, from before a compaction"):
        driver.reopen(config=COMPACT)


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_every_command_reports_an_older_output_of_compaction(driver: LogDriver, command: tuple[str, ...]) -> None:
    done = look(put_older_segment_back(driver), command)

    assert 0 != done.exit_code
    assert "may be an older copy, from before a compaction" in " ".join((done.out + done.error).split())


def test_no_backup_holds_an_older_output_of_compaction(driver: LogDriver, tmp_path: Path) -> None:
    data = put_older_segment_back(driver)

    done = run("backup", str(data), str(tmp_path / "copy"))

    assert 0 != done.exit_code
    assert "may be an older copy, from before a compaction" in " ".join((done.out + done.error).split())


def test_a_copied_directory_with_a_compacted_log_is_opened(driver: LogDriver) -> None:
    """A copy has other inodes and times: what it holds decides."""
    data = write_and_compact(driver, driver.create(config=COMPACT), range(6))
    content = (data / SEGMENT).read_bytes()
    (data / SEGMENT).unlink()
    (data / SEGMENT).write_bytes(content)

    partition = driver.reopen(config=COMPACT)

    assert {b"key-%d" % key: b"value 5" for key in range(KEYS)} == newest(partition)
    assert [] == partition.damage


def test_the_content_of_a_compacted_segment_is_known_to_every_later_stop(driver: LogDriver) -> None:
    data = write_and_compact(driver, driver.create(config=COMPACT), range(6))
    before = checkpoints.SegmentList.decode((data / checkpoints.SEGMENTS).read_bytes())
    driver.reopen(config=COMPACT)

    stop(driver, "stopped")

    assert before == checkpoints.SegmentList.decode((data / checkpoints.SEGMENTS).read_bytes())
    assert [0] == [base for found in before.segments.values() for base, one in found.items() if one.content is not None]


def test_a_compacted_segment_with_a_flipped_bit_is_damaged_and_not_another_one(driver: LogDriver) -> None:
    data = write_and_compact(driver, driver.create(config=COMPACT), range(6))
    content = bytearray((data / SEGMENT).read_bytes())
    content[-1] ^= 1
    (data / SEGMENT).write_bytes(content)

    partition = driver.reopen(config=COMPACT)

    assert 1 == len(partition.damage)


# The list of segments


def put_older_list_back(driver: LogDriver) -> Path:
    """Leave a log to which records were added since the stop whose list of segments is put back."""
    data = leave(driver, fill(driver), "stopped")
    older = (data / checkpoints.SEGMENTS).read_bytes()
    partition = driver.reopen(config=SMALL)
    for number in range(3):
        driver.append(partition, b"more %d" % number)
    partition.delete_records(START)
    stop(driver, "stopped")
    (data / checkpoints.SEGMENTS).write_bytes(older)
    return data


def test_the_list_of_an_earlier_stop_takes_no_record_out_of_a_log_and_brings_none_back(driver: LogDriver) -> None:
    data = put_older_list_back(driver)

    partition = driver.reopen(config=SMALL)

    assert (START, END + 3) == (partition.log_start_offset, partition.log_end_offset)
    assert [] == list((data / FOLDER).glob("*.cut"))


def test_verify_reports_the_list_of_an_earlier_stop(driver: LogDriver) -> None:
    done = look(put_older_list_back(driver), ("verify",))

    assert 1 == done.exit_code
    assert "it is not the list of the last clean stop, but of an earlier one" in done.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_segment_that_is_put_back_after_a_crash_is_reported_if_its_offsets_are_in_another_one(
    driver: LogDriver, command: tuple[str, ...]
) -> None:
    partition = driver.create(config=COMPACT)
    for at in range(6):
        for key in range(KEYS):
            driver.append_keyed(partition, (b"key-%d" % key, b"value %d" % at))
    driver.finish(partition)
    name = f"{FOLDER}/{partition.segments[1].base_offset:020d}.log"
    older = (driver.path / name).read_bytes()
    write_and_compact(driver, partition, range(6, 8))
    driver.append_keyed(driver.reopen(config=COMPACT), (b"key-0", b"last"))
    data = stop(driver, "crashed")
    (data / name).write_bytes(older)

    done = look(data, command)

    assert 1 == done.exit_code
    assert f"{int(Path(name).stem)}" in done.out + done.error
