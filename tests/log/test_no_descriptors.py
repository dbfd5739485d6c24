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
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, WAL_FILES, Lab, batch, settings, values

SMALL = settings(segment_bytes=300, index_interval_bytes=100)
SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


def refused(partition, value: bytes = b"refused" * 10, **more) -> str:
    with pytest.raises(LogFailed) as failed:
        partition.append(batch(value, **more), now_ms=NOW_MS)
    return str(failed.value)


def recover(lab: Lab, partition) -> None:
    """What the broker does every second for the logs that something passing holds up."""
    for _ in range(2):
        if partition in lab.committer.flusher.troubled:
            lab.recover(partition)
            lab.turn()
            lab.committer.flusher.settle()


@pytest.mark.parametrize("number", SHORT)
def test_a_write_without_a_descriptor_is_refused_and_the_next_one_is_taken(lab: Lab, number: int) -> None:
    partition = lab.create()
    lab.append(partition, b"a", producer=(PRODUCER_ID, 0, 0))
    lab.files.fail_opens("clicks-0", number)

    said = refused(partition, producer=(PRODUCER_ID, 0, 1))

    assert "clicks-0" in said and "by itself" in said
    assert ("memory" if number == errno.ENOMEM else "file descriptor") in said
    assert "epair" not in said and "restart" not in said
    lab.files.heal()
    recover(lab, partition)
    assert partition.failure is None
    lab.append(partition, b"b", producer=(PRODUCER_ID, 0, 1))
    assert {0: b"a", 1: b"b"} == values(partition)
    assert {0: b"a", 1: b"b"} == values(lab.reopen())


def test_a_refused_write_does_not_stop_the_log(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"a")
    lab.files.fail_opens("clicks-0", errno.EMFILE)

    refused(partition)

    assert partition.failure is None


@pytest.mark.parametrize("number", SHORT)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "part", ["", ".log", ".index", ".timeindex", ".snapshot", "leader-epoch", "partition.metadata", "clicks-0"]
)
def test_whatever_a_roll_cannot_open_it_takes_nothing_back_and_is_tried_again(
    lab: Lab, number: int, part: str, clean: bool
) -> None:
    partition = lab.create(config=SMALL)
    for sequence in range(2):
        lab.append(partition, b"x" * 60, producer=(PRODUCER_ID, 0, sequence))
    lab.files.fail_opens(part, number)

    with suppress(LogFailed):
        partition.append(batch(b"y" * 100, producer=(PRODUCER_ID, 0, 2)), now_ms=NOW_MS)
    lab.committer.settle()
    lab.committer.flusher.mark(partition)
    lab.committer.flusher.settle()
    lab.files.heal()
    recover(lab, partition)

    assert partition.failure is None and lab.committer.failure is None
    for sequence in range(partition.log_end_offset, 6):
        assert sequence == lab.append(partition, b"y" * 100, producer=(PRODUCER_ID, 0, sequence)).base_offset
    expected = {0: b"x" * 60, 1: b"x" * 60, **dict.fromkeys(range(2, 6), b"y" * 100)}
    assert expected == values(partition)
    lab.finish(partition)
    assert 6 == partition.recovery_point
    assert expected == values(lab.reopen(clean=clean, config=SMALL))


@pytest.mark.parametrize("number", SHORT)
@pytest.mark.parametrize("part", ["logmark.wal", WAL_FILES, "inventory", "recovery-points", "clicks-7", "leader-epoch"])
def test_a_log_that_cannot_begin_begins_later(lab: Lab, number: int, part: str) -> None:
    lab.open()
    (partition,) = lab.directory.create_partitions("clicks", [7], bytes(16), settings(), lazily=True)
    lab.files.fail_opens(part, number)

    for _ in range(3):
        with suppress(LogFailed):
            partition.append(batch(b"lost"), now_ms=NOW_MS)
            lab.settle(partition)
    lab.files.heal()
    recover(lab, partition)

    first = partition.log_end_offset
    assert first == lab.append(partition, b"first").base_offset
    assert b"first" == values(partition)[first]
    assert lab.committer.failure is None


@pytest.mark.parametrize("number", SHORT)
def test_a_round_of_group_commit_that_meets_it_is_refused_and_the_next_is_taken(lab: Lab, number: int) -> None:
    partition = lab.create()
    lab.append(partition, b"kept", producer=(PRODUCER_ID, 0, 0))
    lab.files.fail_opens(WAL_FILES, number)
    partition.append(batch(b"lost", producer=(PRODUCER_ID, 0, 1)), now_ms=NOW_MS)
    with pytest.raises(LogFailed) as failed:
        lab.loop.run_until_complete(partition.durable(2))

    assert "by itself" in str(failed.value)
    lab.files.heal()
    recover(lab, partition)

    assert 1 == lab.append(partition, b"again", producer=(PRODUCER_ID, 0, 1)).base_offset
    assert {0: b"kept", 1: b"again"} == values(lab.reopen(clean=False))


def test_a_sync_that_fails_with_eio_makes_the_log_suspect_as_before(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"kept")
    lab.files.fail_syncs("clicks-0", errno.EIO, times=1)
    lab.finish(partition)

    assert "tries to write it again" in str(partition.failure)
    assert partition in lab.committer.flusher.troubled


def test_a_flush_without_a_descriptor_leaves_the_log_open(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"kept")
    lab.files.fail_opens("clicks-0", errno.EMFILE)
    lab.finish(partition)

    assert partition.failure is None and partition in lab.committer.flusher.troubled
    lab.files.heal()
    recover(lab, partition)
    assert 1 == partition.recovery_point and not lab.committer.flusher.troubled


def test_a_duplicate_is_known_although_the_tail_of_the_log_could_not_be_read_the_first_time(lab: Lab) -> None:
    partition = lab.create()
    for sequence in range(3):
        lab.append(partition, b"%d" % sequence, producer=(PRODUCER_ID, 0, sequence))
    partition = lab.reopen()
    lab.files.fail_opens("clicks-0", errno.EMFILE)

    refused(partition, b"1", producer=(PRODUCER_ID, 0, 1))

    lab.files.heal()
    assert partition.append(batch(b"1", producer=(PRODUCER_ID, 0, 1)), now_ms=NOW_MS).is_duplicate
    assert 3 == partition.log_end_offset


def test_timestamps_that_could_not_be_read_are_read_the_next_time(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"a", timestamp_ms=NOW_MS - 5000)
    partition = lab.reopen(config=settings(retention_ms=1000, file_delete_delay_ms=0))
    for part in (".timeindex", ".log"):
        lab.files.fail_opens(part, errno.EMFILE)
        assert 0 == partition.apply_retention(NOW_MS)
        assert partition.failure is None
        lab.files.heal()

    assert NOW_MS - 5000 in partition.max_timestamp()
    assert 1 == partition.apply_retention(NOW_MS)


def test_indexes_that_could_not_be_rebuilt_are_rebuilt_the_next_time(lab: Lab) -> None:
    partition = lab.create(config=settings(index_interval_bytes=1))
    for number in range(9):
        lab.append(partition, b"%d" % number)
    lab.stop()
    (lab.folder() / "00000000000000000000.index").write_bytes(b"?")
    partition = lab.reopen(config=settings(index_interval_bytes=1))
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
        lab = Lab(Path(folder), durability=durability)
        partition = lab.create(config=SMALL)
        acknowledged: dict[int, bytes] = {}
        for number, part, count, times in steps:
            if number:
                lab.files.fail_opens(part, number, times=times)
            sequence = len(acknowledged)
            for at in range(sequence, sequence + count):
                value = b"%04d" % at + b"x" * 60
                with suppress(LogFailed):
                    made = partition.append(batch(value, producer=(PRODUCER_ID, 0, at)), now_ms=NOW_MS)
                    waiting = partition.durable(made.last_offset + 1)
                    if waiting is not None:
                        lab.loop.run_until_complete(waiting)
                    acknowledged[made.base_offset] = value
                    continue
                break
            lab.committer.settle()
            lab.committer.flusher.mark(partition)
            lab.committer.flusher.settle()
            lab.turn()
            lab.files.heal()
            recover(lab, partition)
            assert partition.failure is None and lab.committer.failure is None, (number, part)
            shown = values(partition)
            assert acknowledged == {offset: shown.get(offset) for offset in acknowledged}, (number, part)
            acknowledged = shown
        lab.append(partition, b"last", producer=(PRODUCER_ID, 0, len(acknowledged)))
        expected = [*acknowledged.values(), b"last"]
        assert expected == list(values(partition).values())
        assert expected == list(values(lab.reopen(clean=False, config=SMALL)).values())
        lab.close()


def test_what_the_checkpoints_say_of_a_deleted_partition_is_dropped_also_after_a_failed_attempt(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"a")
    lab.finish(partition)
    lab.directory.note_cleaned(partition, 1)()
    lab.directory.write_checkpoints()
    lab.delete()
    key = TopicPartition("clicks", 0)
    for part in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        lab.files.fail_opens(part)
        with suppress(OSError):
            lab.directory.forget_predecessors([key])()
        lab.files.heal()

    lab.directory.forget_predecessors([key])()

    named = [path.name for path in lab.path.glob("*checkpoint*") if "clicks 0" in path.read_text()]
    assert [] == named
