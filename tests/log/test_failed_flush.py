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
from tests.log.directory_driver import NOW_MS, Lab, batch, settings, values

SMALL = settings(segment_bytes=300)


def fail_a_flush(lab: Lab) -> Partition:
    """Return a partition whose flush failed after ten records in three segments were acknowledged."""
    partition = lab.create(config=SMALL)
    lab.append(partition, b"flushed")
    lab.finish(partition)
    with lab.files.hold_syncs("clicks-0/"):
        for number in range(10):
            lab.append(partition, b"%d" % number)
        lab.files.fail_syncs("clicks-0/", errno.EIO)
    lab.committer.flusher.mark(partition)
    lab.committer.flusher.settle()
    assert partition.failure is not None
    return partition


def spoil(lab: Lab) -> None:
    """Do to the segments what the kernel may do after a failed sync: drop what was not synced."""
    for path in sorted(lab.folder().glob("*.log")):
        content = path.read_bytes()
        path.write_bytes(content[:80].ljust(len(content), b"\0") if int(path.stem) == 0 else bytes(len(content)))


def test_what_a_failed_flush_may_have_lost_is_written_again_from_the_wal(lab: Lab) -> None:
    partition = fail_a_flush(lab)
    before, end = values(partition), partition.high_watermark
    spoil(lab)
    lab.files.heal()

    lab.recover(partition)
    lab.finish(partition)

    assert partition.failure is None
    assert (before, end) == (values(partition), partition.log_end_offset)
    assert [] == partition.damage
    assert [] == [name for name in lab.files.listdir(f"{lab.path}/{FOLDER}") if saved_entries.is_saved(name)]
    lab.append(partition, b"goes on")
    assert b"goes on" == values(partition)[end]


def test_a_disk_that_stays_broken_keeps_the_records_aside_and_does_not_pin_the_wal(lab: Lab) -> None:
    partition = fail_a_flush(lab)
    before = values(partition)
    flusher = lab.committer.flusher

    lab.recover(partition)
    lab.turn()

    assert partition.failure is not None and partition in flusher.troubled
    assert 1 == len([name for name in lab.files.listdir(f"{lab.path}/{FOLDER}") if saved_entries.is_saved(name)])
    assert partition not in flusher._dirty
    # A restart finds the records where they were saved.
    spoil(lab)
    lab.files.heal()
    again = lab.reopen(clean=False, config=SMALL)
    assert before == values(again)
    assert [] == again.damage


@pytest.mark.parametrize("which", [0, 1])
def test_other_partitions_go_on_while_one_is_broken(lab: Lab, which: int) -> None:
    broken = fail_a_flush(lab)
    other = lab.create(index=1, config=SMALL)

    lab.append(other, b"acknowledged")
    if which:
        lab.recover(broken)
    lab.finish(other)

    assert {0: b"acknowledged"} == values(other)
    assert 1 == other.recovery_point


def seconds_of_attempts(lab: Lab, partition: Partition, monkeypatch: pytest.MonkeyPatch, *, last: int) -> list[int]:
    """Ask the partition every second to recover, as the broker does, and return when it was written again."""
    attempts: list[int] = []
    rewrite, begun_ms = lab.committer.rewrite, lab.clock.now_ms()

    def note(*arguments: Any) -> None:
        attempts.append((lab.clock.now_ms() - begun_ms) // 1000)
        rewrite(*arguments)

    monkeypatch.setattr(lab.committer, "rewrite", note)
    for _ in range(last + 1):
        assert partition in lab.committer.flusher.troubled
        lab.recover(partition)
        lab.committer.flusher.settle()
        assert partition.failure is not None
        lab.clock.advance(seconds=1)
    return attempts


BACKED_OFF = [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_a_partition_that_stays_broken_is_written_again_less_and_less_often_and_each_failure_is_logged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = fail_a_flush(lab)
    caplog.clear()

    assert BACKED_OFF == seconds_of_attempts(lab, partition, monkeypatch, last=200)
    assert len(BACKED_OFF) == len([one for one in caplog.messages if "The disk failed the log of clicks-0" in one])


def test_a_partition_whose_next_flush_fails_again_is_written_again_less_and_less_often(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = fail_a_flush(lab)
    lab.files.heal()
    # Only a flush syncs the topic id: every attempt succeeds, and the flush after it fails.
    lab.files.fail_syncs(METADATA, errno.EIO)
    load = partition.load
    loads: list[object] = []
    monkeypatch.setattr(partition, "load", lambda *loaded: (loads.append(loaded), load(*loaded)))

    assert BACKED_OFF == seconds_of_attempts(lab, partition, monkeypatch, last=200)
    assert len(BACKED_OFF) == len(loads)


def test_a_partition_that_a_full_disk_has_stopped_is_tried_every_second(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    partition = fail_a_flush(lab)
    lab.files.heal()
    lab.files.fail_syncs("clicks-0/", errno.ENOSPC)

    # The first attempt finds that the disk is not broken but full.
    assert list(range(21)) == seconds_of_attempts(lab, partition, monkeypatch, last=20)


def test_a_flush_that_succeeds_ends_the_back_off(lab: Lab) -> None:
    partition = fail_a_flush(lab)
    for _ in range(5):
        lab.recover(partition)
        lab.clock.advance(seconds=60)
    lab.files.heal()
    lab.recover(partition)
    assert partition.failure is None
    lab.finish(partition)

    lab.files.fail_syncs("clicks-0/", errno.EIO, times=1)
    lab.append(partition, b"acknowledged")
    lab.finish(partition)
    assert partition.failure is not None
    lab.recover(partition)

    assert partition.failure is None


def test_a_clock_that_is_set_back_does_not_delay_a_recovery(lab: Lab) -> None:
    partition = fail_a_flush(lab)
    lab.recover(partition)
    lab.files.heal()
    lab.recover(partition)
    assert partition.failure is not None, "the back-off is not over"

    lab.clock._now_ms -= 1
    lab.recover(partition)

    assert partition.failure is None


def test_a_second_flush_that_fails_costs_nothing_that_came_after_the_first(lab: Lab) -> None:
    """What the first recovery saved aside is older than what was acknowledged since."""
    partition = fail_a_flush(lab)
    lab.files.heal()
    with lab.files.hold_syncs(METADATA):
        lab.recover(partition)
        for number in range(5):
            partition.append(batch(b"new %d" % number), now_ms=NOW_MS)
        lab.loop.run_until_complete(partition.durable(partition.log_end_offset))
        acknowledged = partition.high_watermark
        lab.files.fail_syncs(METADATA, errno.EIO)
    lab.committer.flusher.settle()
    assert partition.failure is not None

    lab.files.heal()
    lab.clock.advance(seconds=120)
    lab.recover(partition)
    lab.finish(partition)

    assert (16, acknowledged, []) == (acknowledged, partition.log_end_offset, partition.damage)
    again = lab.reopen(config=SMALL, clean=False)
    assert (acknowledged, []) == (again.log_end_offset, again.damage)
    assert acknowledged == len(values(again))


def saved_aside(lab: Lab) -> tuple[Path, int]:
    """Return the file of the entries that were saved aside of a log that was killed, and the log's acknowledged end."""
    partition = fail_a_flush(lab)
    acknowledged = partition.high_watermark
    lab.recover(partition)
    lab.turn()
    lab.files.heal()
    other = lab.create(index=1)
    lab.append(other, b"x")
    lab.finish(other)
    lab.stop(clean=False)
    (path,) = (lab.path / FOLDER).glob("saved-*")
    return path, acknowledged


def flip(path: Path, *positions: int) -> None:
    content = bytearray(path.read_bytes())
    for at in positions:
        content[at] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_in_saved_entries_is_reported_and_lets_no_offset_be_given_out_twice(lab: Lab) -> None:
    path, acknowledged = saved_aside(lab)
    flip(path, path.stat().st_size - 4096 + 60)

    again = lab.reopen(config=SMALL)

    assert acknowledged == again.log_end_offset
    assert values(again).keys() <= set(range(acknowledged))
    # The segment still has the records: only the disk under it was not believed.
    assert acknowledged == len(values(again))


@pytest.mark.parametrize("first, last", [(10, 8192), (8192 + 60, None)], ids=["both headers", "every entry"])
def test_saved_entries_that_cannot_be_read_refuse_the_start(lab: Lab, first: int, last: int | None) -> None:
    path, _ = saved_aside(lab)
    flip(path, *range(first, last or path.stat().st_size, 4096))

    with pytest.raises(UserError, match="It holds acknowledged records"):
        lab.reopen(config=SMALL)


def test_a_flush_that_fails_before_the_first_record_of_a_run_is_tried_again(lab: Lab) -> None:
    config = settings(retention_ms=1000)
    lab.append(lab.create(config=config), b"old")
    partition = lab.reopen(config=config)
    lab.clock.advance(seconds=100)
    lab.files.fail_syncs("clicks-0/", errno.EIO)
    assert 1 == partition.apply_retention(lab.clock.now_ms())
    lab.committer.flusher.settle()
    assert partition.failure is not None

    lab.files.heal()
    lab.recover(partition)

    assert partition.failure is None
    lab.append(partition, b"new")
    assert (1, 2) == (partition.log_start_offset, partition.high_watermark)


def test_a_log_whose_write_failed_does_not_keep_the_wal_from_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    broken = lab.create(index=0)
    lab.append(broken, b"kept")
    append = Segment.append

    def fail(self: Segment, *batch: Any) -> None:
        if "clicks-0/" in self.path:
            raise OSError(errno.EIO, "Input/output error")
        append(self, *batch)

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", fail)
        with pytest.raises(LogFailed):
            broken.append(batch(b"refused"), now_ms=NOW_MS)
    assert broken in lab.committer.flusher.troubled
    lab.committer.flusher.finish()
    lab.recover(broken)

    assert broken.failure is None
    lab.append(broken, b"again")
    assert {0: b"kept", 1: b"again"} == values(broken)


def test_a_wal_that_is_full_because_entries_cannot_be_saved_aside_is_not_called_a_full_disk(lab: Lab) -> None:
    block = 4096
    lab._wal_limits = WalLimits(bytes_max=64 * block, file_bytes=16 * block, first_file_bytes=16 * block)
    broken = fail_a_flush(lab)
    other = lab.create(index=1)
    lab.files.fail_writes(saved_entries.PREFIX, errno.EIO)
    lab.recover(broken)
    assert [] == [name for name in lab.files.listdir(f"{lab.path}/{FOLDER}") if saved_entries.is_saved(name)]

    with pytest.raises(LogFailed) as failed:
        # More entries than the WAL has blocks.
        for _ in range(64):
            lab.append(other, b"x")

    said = str(failed.value)
    assert said.startswith("The write-ahead log is full, so the log of clicks-1 did not take the records.")
    assert "could not be saved elsewhere" in said and "Repair the disk" in said
    assert "Free some space" not in said
    # It passes as a full disk does: by itself, when the disk is good again.
    acknowledged = values(other)
    lab.files.heal()
    lab.clock.advance(seconds=60)
    for each in (broken, other):
        lab.recover(each)
    lab.finish(broken)
    lab.append(other, b"goes on")
    assert {**acknowledged, len(acknowledged): b"goes on"} == values(other)
