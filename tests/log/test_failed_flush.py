"""A flush that the disk fails after the acknowledgement costs nobody a record, and no other partition its WAL."""

import errno
from pathlib import Path
from typing import Any

import pytest

from logmark.errors import LogFailed, UserError
from logmark.log.folder import METADATA
from logmark.log.partition import Partition
from logmark.log.segment import Segment
from logmark.log.wal import saved_entries
from logmark.log.wal.log import FOLDER, WalLimits
from tests.harness.patches import in_this_thread
from tests.log.directory_driver import NOW_MS, LogDriver, batch, settings, values

SMALL = settings(segment_bytes=300)


def fail_a_flush(driver: LogDriver) -> Partition:
    """Return a partition whose flush failed after ten records in three segments were acknowledged."""
    partition = driver.create(config=SMALL)
    driver.append(partition, b"flushed")
    driver.finish(partition)
    with driver.files.hold_syncs("clicks-0/"):
        for number in range(10):
            driver.append(partition, b"%d" % number)
        driver.files.fail_syncs("clicks-0/", errno.EIO)
    driver.committer.flusher.mark(partition)
    driver.committer.flusher.settle()
    assert partition.failure is not None
    return partition


def spoil(driver: LogDriver) -> None:
    """Do to the segments what the kernel may do after a failed sync: drop what was not synced."""
    for path in sorted(driver.folder().glob("*.log")):
        content = path.read_bytes()
        path.write_bytes(content[:80].ljust(len(content), b"\0") if int(path.stem) == 0 else bytes(len(content)))


def test_what_a_failed_flush_may_have_lost_is_written_again_from_the_wal(driver: LogDriver) -> None:
    partition = fail_a_flush(driver)
    before, end = values(partition), partition.high_watermark
    spoil(driver)
    driver.files.heal()

    driver.recover(partition)
    driver.finish(partition)

    assert partition.failure is None
    assert (before, end) == (values(partition), partition.log_end_offset)
    assert [] == partition.damage
    assert [] == [name for name in driver.files.listdir(f"{driver.path}/{FOLDER}") if saved_entries.is_saved(name)]
    driver.append(partition, b"goes on")
    assert b"goes on" == values(partition)[end]


def test_a_disk_that_stays_broken_keeps_the_records_in_saved_entries_and_does_not_pin_the_wal(
    driver: LogDriver,
) -> None:
    partition = fail_a_flush(driver)
    before = values(partition)
    flusher = driver.committer.flusher

    driver.recover(partition)
    driver.turn()

    assert partition.failure is not None and partition in flusher.troubled
    assert 1 == len([name for name in driver.files.listdir(f"{driver.path}/{FOLDER}") if saved_entries.is_saved(name)])
    assert partition not in flusher._dirty
    # A restart finds the records where they were saved.
    spoil(driver)
    driver.files.heal()
    again = driver.reopen(clean=False, config=SMALL)
    assert before == values(again)
    assert [] == again.damage


@pytest.mark.parametrize("which", [0, 1])
def test_other_partitions_go_on_while_one_is_broken(driver: LogDriver, which: int) -> None:
    broken = fail_a_flush(driver)
    other = driver.create(index=1, config=SMALL)

    driver.append(other, b"acknowledged")
    if which:
        driver.recover(broken)
    driver.finish(other)

    assert {0: b"acknowledged"} == values(other)
    assert 1 == other.recovery_point


def seconds_of_attempts(
    driver: LogDriver, partition: Partition, monkeypatch: pytest.MonkeyPatch, *, last: int,
) -> list[int]:
    """Ask the partition every second to recover, as the broker does, and return when it was written again."""
    attempts: list[int] = []
    rewrite, begun_ms = driver.committer.rewrite, driver.clock.now_ms()

    def note(*arguments: Any) -> None:
        attempts.append((driver.clock.now_ms() - begun_ms) // 1000)
        rewrite(*arguments)

    monkeypatch.setattr(driver.committer, "rewrite", note)
    for _ in range(last + 1):
        assert partition in driver.committer.flusher.troubled
        driver.recover(partition)
        driver.committer.flusher.settle()
        assert partition.failure is not None
        driver.clock.advance(seconds=1)
    return attempts


BACKED_OFF = [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_a_partition_that_stays_broken_is_written_again_less_and_less_often_and_each_failure_is_logged(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = fail_a_flush(driver)
    caplog.clear()

    assert BACKED_OFF == seconds_of_attempts(driver, partition, monkeypatch, last=200)
    assert len(BACKED_OFF) == len([one for one in caplog.messages if "The disk failed the log of clicks-0" in one])


def test_a_partition_whose_next_flush_fails_again_is_written_again_less_and_less_often(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = fail_a_flush(driver)
    driver.files.heal()
    # Only a flush syncs the topic id: every attempt succeeds, and the flush after it fails.
    driver.files.fail_syncs(METADATA, errno.EIO)
    load = partition.load
    loads: list[object] = []
    monkeypatch.setattr(partition, "load", lambda *loaded: (loads.append(loaded), load(*loaded)))

    assert BACKED_OFF == seconds_of_attempts(driver, partition, monkeypatch, last=200)
    assert len(BACKED_OFF) == len(loads)


def test_a_partition_that_a_full_disk_has_stopped_is_tried_every_second(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    partition = fail_a_flush(driver)
    driver.files.heal()
    driver.files.fail_syncs("clicks-0/", errno.ENOSPC)

    # The first attempt finds that the disk is not broken but full.
    assert list(range(21)) == seconds_of_attempts(driver, partition, monkeypatch, last=20)


def test_a_flush_that_succeeds_ends_the_back_off(driver: LogDriver) -> None:
    partition = fail_a_flush(driver)
    for _ in range(5):
        driver.recover(partition)
        driver.clock.advance(seconds=60)
    driver.files.heal()
    driver.recover(partition)
    assert partition.failure is None
    driver.finish(partition)

    driver.files.fail_syncs("clicks-0/", errno.EIO, times=1)
    driver.append(partition, b"acknowledged")
    driver.finish(partition)
    assert partition.failure is not None
    driver.recover(partition)

    assert partition.failure is None


def test_a_clock_that_is_set_back_does_not_delay_a_recovery(driver: LogDriver) -> None:
    partition = fail_a_flush(driver)
    driver.recover(partition)
    driver.files.heal()
    driver.recover(partition)
    assert partition.failure is not None, "the back-off is not over"

    driver.clock.set_time(driver.clock.now_ms() - 2 * 86_400_000)
    driver.clock.advance(seconds=1)
    driver.recover(partition)

    assert partition.failure is None


def test_a_second_flush_that_fails_costs_nothing_that_came_after_the_first(driver: LogDriver) -> None:
    """What the first recovery saved aside is older than what was acknowledged since."""
    partition = fail_a_flush(driver)
    driver.files.heal()
    with driver.files.hold_syncs(METADATA):
        driver.recover(partition)
        for number in range(5):
            partition.append(batch(b"new %d" % number), now_ms=NOW_MS)
        driver.loop.run_until_complete(partition.durable(partition.log_end_offset))
        acknowledged = partition.high_watermark
        driver.files.fail_syncs(METADATA, errno.EIO)
    driver.committer.flusher.settle()
    assert partition.failure is not None

    driver.files.heal()
    driver.clock.advance(seconds=120)
    driver.recover(partition)
    driver.finish(partition)

    assert (16, acknowledged, []) == (acknowledged, partition.log_end_offset, partition.damage)
    again = driver.reopen(config=SMALL, clean=False)
    assert (acknowledged, []) == (again.log_end_offset, again.damage)
    assert acknowledged == len(values(again))


def saved_aside(driver: LogDriver) -> tuple[Path, int]:
    """Return the file of the entries that were saved aside of a log that was killed, and the log's acknowledged end."""
    partition = fail_a_flush(driver)
    acknowledged = partition.high_watermark
    driver.recover(partition)
    driver.turn()
    driver.files.heal()
    other = driver.create(index=1)
    driver.append(other, b"x")
    driver.finish(other)
    driver.stop(clean=False)
    (path,) = (driver.path / FOLDER).glob("saved-*")
    return path, acknowledged


def flip(path: Path, *positions: int) -> None:
    content = bytearray(path.read_bytes())
    for at in positions:
        content[at] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_in_saved_entries_is_reported_and_lets_no_offset_be_given_out_twice(driver: LogDriver) -> None:
    path, acknowledged = saved_aside(driver)
    flip(path, path.stat().st_size - 4096 + 60)

    again = driver.reopen(config=SMALL)

    assert acknowledged == again.log_end_offset
    assert values(again).keys() <= set(range(acknowledged))
    # The segment still has the records: only the disk under it was not believed.
    assert acknowledged == len(values(again))


@pytest.mark.parametrize("first, last", [(10, 8192), (8192 + 60, None)], ids=["both headers", "every entry"])
def test_saved_entries_that_cannot_be_read_refuse_the_start(driver: LogDriver, first: int, last: int | None) -> None:
    path, _ = saved_aside(driver)
    flip(path, *range(first, last or path.stat().st_size, 4096))

    with pytest.raises(UserError, match="It holds acknowledged records"):
        driver.reopen(config=SMALL)


def test_a_flush_that_fails_before_the_first_record_of_a_run_is_tried_again(driver: LogDriver) -> None:
    config = settings(retention_ms=1000)
    driver.append(driver.create(config=config), b"old")
    partition = driver.reopen(config=config)
    driver.clock.advance(seconds=100)
    driver.files.fail_syncs("clicks-0/", errno.EIO)
    assert 1 == partition.apply_retention(driver.clock.now_ms())
    driver.committer.flusher.settle()
    assert partition.failure is not None

    driver.files.heal()
    driver.recover(partition)

    assert partition.failure is None
    driver.append(partition, b"new")
    assert (1, 2) == (partition.log_start_offset, partition.high_watermark)


def test_a_log_whose_write_failed_does_not_keep_the_wal_from_the_others(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    broken = driver.create(index=0)
    driver.append(broken, b"kept")
    append = Segment.append

    def fail(self: Segment, *batch: Any) -> None:
        if "clicks-0/" in self.path:
            raise OSError(errno.EIO, "Input/output error")
        append(self, *batch)

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", in_this_thread(fail, append))
        with pytest.raises(LogFailed):
            broken.append(batch(b"refused"), now_ms=NOW_MS)
    assert broken in driver.committer.flusher.troubled
    driver.committer.flusher.finish()
    driver.recover(broken)

    assert broken.failure is None
    driver.append(broken, b"again")
    assert {0: b"kept", 1: b"again"} == values(broken)


def test_a_wal_that_is_full_because_entries_cannot_be_saved_is_not_called_a_full_disk(driver: LogDriver) -> None:
    block = 4096
    driver._wal_limits = WalLimits(bytes_max=64 * block, file_bytes=16 * block, first_file_bytes=16 * block)
    broken = fail_a_flush(driver)
    other = driver.create(index=1)
    driver.files.fail_writes(saved_entries.PREFIX, errno.EIO)
    driver.recover(broken)
    assert [] == [name for name in driver.files.listdir(f"{driver.path}/{FOLDER}") if saved_entries.is_saved(name)]

    with pytest.raises(LogFailed) as failed:
        # More entries than the WAL has blocks.
        for _ in range(64):
            driver.append(other, b"x")

    said = str(failed.value)
    assert said.startswith("The write-ahead log is full, so the log of clicks-1 did not take the records.")
    assert "could not be saved elsewhere" in said and "Repair the disk" in said
    assert "Free some space" not in said
    # It passes as a full disk does: by itself, when the disk is good again.
    acknowledged = values(other)
    driver.files.heal()
    driver.clock.advance(seconds=60)
    for each in (broken, other):
        driver.recover(each)
    driver.finish(broken)
    driver.append(other, b"goes on")
    assert {**acknowledged, len(acknowledged): b"goes on"} == values(other)


def test_a_log_resumes_only_when_the_disk_takes_a_write_ahead_log(driver: LogDriver) -> None:
    """Otherwise every record would stop it again, and the broker would call it healthy in between."""
    partition = driver.create()
    driver.files.fail_writes("logmark.wal", errno.EPERM)
    with pytest.raises(LogFailed):
        driver.append(partition, b"refused")

    driver.recover(partition)
    assert partition.failure is not None

    driver.files.heal()
    driver.clock.advance(seconds=60)
    driver.recover(partition)
    assert partition.failure is None
    driver.append(partition, b"acknowledged")
    driver.finish(partition)
    assert {0: b"acknowledged"} == values(partition)


@pytest.mark.parametrize("is_healed", [False, True])
def test_a_stop_that_cannot_prove_a_recovery_point_takes_no_file_away_that_a_recovery_needs(
    driver: LogDriver, is_healed: bool
) -> None:
    partition = driver.create(config=SMALL)
    for number in range(10):
        driver.append(partition, b"%d" % number)
    driver.finish(partition)
    for number in range(10, 20):
        driver.append(partition, b"%d" % number)
    # As on a directory that somebody has made immutable.
    driver.files.fail_writes("recovery-points", errno.EPERM)
    partition.delete_records(15)
    driver.directory.write_checkpoints()
    driver.committer.flusher.mark(partition)
    driver.committer.flusher.settle()
    if is_healed:
        driver.files.heal()

    assert is_healed == driver.stop()
    driver.files.heal()
    again = driver.reopen(config=SMALL)

    assert {offset: b"%d" % offset for offset in range(15, 20)} == values(again)
    assert [] == again.damage
