"""No descriptor or no memory left: writes are refused, no log is given up, and each comes back by itself."""

import errno
import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from logmark.errors import LogFailed, Refused
from logmark.names import TopicPartition
from tests.harness.searches import examples
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, WAL_FILES, LogDriver, batch, settings, values

SMALL = settings(segment_bytes=300, index_interval_bytes=100)
SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


def refused(partition, value: bytes = b"refused" * 10, **more) -> str:
    with pytest.raises(LogFailed) as failed:
        partition.append(batch(value, **more), now_ms=NOW_MS)
    return str(failed.value)


def recover(driver: LogDriver, partition) -> None:
    """What the broker does every second for the logs that something passing holds up."""
    for _ in range(2):
        if partition in driver.committer.flusher.troubled:
            driver.recover(partition)
            driver.turn()
            driver.committer.flusher.settle()


@pytest.mark.parametrize("number", SHORT)
def test_a_write_without_a_descriptor_is_refused_and_the_next_one_is_taken(driver: LogDriver, number: int) -> None:
    partition = driver.create()
    driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 0))
    driver.files.fail_opens("clicks-0", number)

    said = refused(partition, producer=(PRODUCER_ID, 0, 1))

    assert "clicks-0" in said and "by itself" in said
    assert ("memory" if number == errno.ENOMEM else "file descriptor") in said
    assert "epair" not in said and "restart" not in said
    driver.files.heal()
    recover(driver, partition)
    assert partition.failure is None
    driver.append(partition, b"b", producer=(PRODUCER_ID, 0, 1))
    assert {0: b"a", 1: b"b"} == values(partition)
    assert {0: b"a", 1: b"b"} == values(driver.reopen())


def test_a_refused_write_does_not_stop_the_log(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a")
    driver.files.fail_opens("clicks-0", errno.EMFILE)

    refused(partition)

    assert partition.failure is None


@pytest.mark.parametrize("number", SHORT)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "part", ["", ".log", ".index", ".timeindex", ".snapshot", "leader-epoch", "partition.metadata", "clicks-0"]
)
def test_whatever_a_roll_cannot_open_it_takes_nothing_back_and_is_tried_again(
    driver: LogDriver, number: int, part: str, clean: bool
) -> None:
    partition = driver.create(config=SMALL)
    for sequence in range(2):
        driver.append(partition, b"x" * 60, producer=(PRODUCER_ID, 0, sequence))
    driver.files.fail_opens(part, number)

    with suppress(LogFailed):
        partition.append(batch(b"y" * 100, producer=(PRODUCER_ID, 0, 2)), now_ms=NOW_MS)
    driver.committer.settle()
    driver.committer.flusher.mark(partition)
    driver.committer.flusher.settle()
    driver.files.heal()
    recover(driver, partition)

    assert partition.failure is None and driver.committer.failure is None
    for sequence in range(partition.log_end_offset, 6):
        assert sequence == driver.append(partition, b"y" * 100, producer=(PRODUCER_ID, 0, sequence)).base_offset
    expected = {0: b"x" * 60, 1: b"x" * 60, **dict.fromkeys(range(2, 6), b"y" * 100)}
    assert expected == values(partition)
    driver.finish(partition)
    assert 6 == partition.recovery_point
    assert expected == values(driver.reopen(clean=clean, config=SMALL))


@pytest.mark.parametrize("number", SHORT)
@pytest.mark.parametrize("part", ["logmark.wal", WAL_FILES, "inventory", "recovery-points", "clicks-7", "leader-epoch"])
def test_a_log_that_cannot_begin_begins_later(driver: LogDriver, number: int, part: str) -> None:
    driver.open()
    (partition,) = driver.directory.create_partitions("clicks", [7], bytes(16), settings(), lazily=True)
    driver.files.fail_opens(part, number)

    for _ in range(3):
        with suppress(LogFailed):
            partition.append(batch(b"lost"), now_ms=NOW_MS)
            driver.settle(partition)
    driver.files.heal()
    recover(driver, partition)

    first = partition.log_end_offset
    assert first == driver.append(partition, b"first").base_offset
    assert b"first" == values(partition)[first]
    assert driver.committer.failure is None


@pytest.mark.parametrize("number", SHORT)
def test_a_round_of_group_commit_that_meets_it_is_refused_and_the_next_is_taken(driver: LogDriver, number: int) -> None:
    partition = driver.create()
    driver.append(partition, b"kept", producer=(PRODUCER_ID, 0, 0))
    driver.files.fail_opens(WAL_FILES, number)
    partition.append(batch(b"lost", producer=(PRODUCER_ID, 0, 1)), now_ms=NOW_MS)
    with pytest.raises(LogFailed) as failed:
        driver.loop.run_until_complete(partition.durable(2))

    assert "by itself" in str(failed.value)
    driver.files.heal()
    recover(driver, partition)

    assert 1 == driver.append(partition, b"again", producer=(PRODUCER_ID, 0, 1)).base_offset
    assert {0: b"kept", 1: b"again"} == values(driver.reopen(clean=False))


def test_a_sync_that_fails_with_eio_makes_the_log_suspect_as_before(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"kept")
    driver.files.fail_syncs("clicks-0", errno.EIO, times=1)
    driver.finish(partition)

    assert "tries to write it again" in str(partition.failure)
    assert partition in driver.committer.flusher.troubled


def test_a_flush_without_a_descriptor_leaves_the_log_open(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"kept")
    driver.files.fail_opens("clicks-0", errno.EMFILE)
    driver.finish(partition)

    assert partition.failure is None and partition in driver.committer.flusher.troubled
    driver.files.heal()
    recover(driver, partition)
    assert 1 == partition.recovery_point and not driver.committer.flusher.troubled


def test_a_duplicate_is_known_although_the_tail_of_the_log_could_not_be_read_the_first_time(driver: LogDriver) -> None:
    partition = driver.create()
    for sequence in range(3):
        driver.append(partition, b"%d" % sequence, producer=(PRODUCER_ID, 0, sequence))
    partition = driver.reopen()
    driver.files.fail_opens("clicks-0", errno.EMFILE)

    refused(partition, b"1", producer=(PRODUCER_ID, 0, 1))

    driver.files.heal()
    assert partition.append(batch(b"1", producer=(PRODUCER_ID, 0, 1)), now_ms=NOW_MS).is_duplicate
    assert 3 == partition.log_end_offset


def test_timestamps_that_could_not_be_read_are_read_the_next_time(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"a", timestamp_ms=NOW_MS - 5000)
    partition = driver.reopen(config=settings(retention_ms=1000, file_delete_delay_ms=0))
    for part in (".timeindex", ".log"):
        driver.files.fail_opens(part, errno.EMFILE)
        assert 0 == partition.apply_retention(NOW_MS)
        assert partition.failure is None
        driver.files.heal()

    assert NOW_MS - 5000 in partition.max_timestamp()
    assert 1 == partition.apply_retention(NOW_MS)


def test_indexes_that_could_not_be_rebuilt_are_rebuilt_the_next_time(driver: LogDriver) -> None:
    partition = driver.create(config=settings(index_interval_bytes=1))
    for number in range(9):
        driver.append(partition, b"%d" % number)
    driver.stop()
    (driver.folder() / "00000000000000000000.index").write_bytes(b"?")
    partition = driver.reopen(config=settings(index_interval_bytes=1))
    # The index is read, the log can be read some times, then it cannot.
    segment = partition.segments[0]
    walked = segment.file.pread
    calls = iter(range(3))

    def pread(size: int, at: int) -> bytes:
        if next(calls, None) is None:
            raise OSError(errno.EMFILE, "no descriptor")
        return walked(size, at)

    segment.file.pread = pread
    with pytest.raises(Refused):
        partition.read(7, bytes_max=10)
    del segment.file.pread

    assert 8 == len(segment.offset_index)
    assert {number: b"%d" % number for number in range(9)} == values(partition)


PARTS = ["", ".log", ".index", ".timeindex", ".snapshot", ".tmp", "clicks-0", "leader-epoch", "0002.", "0003.",
         "logmark.wal", WAL_FILES, "recovery-points"]  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from([*SHORT, 0]), st.sampled_from(PARTS), st.integers(1, 4), st.sampled_from([None, 1, 3])),
    min_size=3,
    max_size=20,
)


@pytest.mark.parametrize("durability", ["sync", "os"])
@hypothesis.settings(max_examples=examples(15, soak=300))
@hypothesis.given(steps=STEPS)
def test_whatever_cannot_be_opened_what_was_acknowledged_is_seen_and_every_log_comes_back(
    durability: str, steps: list[tuple[int, str, int, int | None]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver = LogDriver(Path(folder), durability=durability)
        partition = driver.create(config=SMALL)
        acknowledged: dict[int, bytes] = {}
        for number, part, count, times in steps:
            if number:
                driver.files.fail_opens(part, number, times=times)
            sequence = len(acknowledged)
            for at in range(sequence, sequence + count):
                value = b"%04d" % at + b"x" * 60
                with suppress(LogFailed):
                    made = partition.append(batch(value, producer=(PRODUCER_ID, 0, at)), now_ms=NOW_MS)
                    waiting = partition.durable(made.last_offset + 1)
                    if waiting is not None:
                        driver.loop.run_until_complete(waiting)
                    acknowledged[made.base_offset] = value
                    continue
                break
            driver.committer.settle()
            driver.committer.flusher.mark(partition)
            driver.committer.flusher.settle()
            driver.turn()
            driver.files.heal()
            recover(driver, partition)
            assert partition.failure is None and driver.committer.failure is None, (number, part)
            shown = values(partition)
            assert acknowledged == {offset: shown.get(offset) for offset in acknowledged}, (number, part)
            acknowledged = shown
        driver.append(partition, b"last", producer=(PRODUCER_ID, 0, len(acknowledged)))
        expected = [*acknowledged.values(), b"last"]
        assert expected == list(values(partition).values())
        assert expected == list(values(driver.reopen(clean=False, config=SMALL)).values())
        driver.close()


def test_what_the_checkpoints_say_of_a_deleted_partition_is_dropped_also_after_a_failed_attempt(
    driver: LogDriver,
) -> None:
    partition = driver.create()
    driver.append(partition, b"a")
    driver.finish(partition)
    driver.directory.note_cleaned(partition, 1)()
    driver.directory.write_checkpoints()
    driver.delete()
    key = TopicPartition("clicks", 0)
    for part in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        driver.files.fail_opens(part)
        with suppress(OSError):
            driver.directory.forget_predecessors([key])()
        driver.files.heal()

    driver.directory.forget_predecessors([key])()

    named = [path.name for path in driver.path.glob("*checkpoint*") if "clicks 0" in path.read_text()]
    assert [] == named
