"""A full disk: writes are refused and leave nothing behind, reads go on, and the log comes back by itself."""

import errno
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from logmark.errors import LogFailed
from logmark.log.segment import Segment
from logmark.wire import batches
from tests.harness.patches import in_this_thread
from tests.harness.searches import examples
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, WAL_FILES, LogDriver, batch, settings, values

SMALL = settings(segment_bytes=300, index_interval_bytes=100)


def refused(driver: LogDriver, partition, value: bytes = b"refused" * 10, **more) -> str:
    with pytest.raises(LogFailed) as failed:
        partition.append(batch(value, **more), now_ms=NOW_MS)
    return str(failed.value)


def recover(driver: LogDriver, partition) -> None:
    driver.recover(partition)
    driver.turn()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_on_a_full_disk_is_refused_and_the_next_one_is_taken_when_there_is_space(
    driver: LogDriver, number: int,
) -> None:
    partition = driver.create()
    driver.append(partition, b"a", producer=(PRODUCER_ID, 0, 0))
    driver.files.fail_writes("clicks-0", number)

    said = refused(driver, partition, producer=(PRODUCER_ID, 0, 1))

    assert "clicks-0" in said and "full" in said and "by itself" in said
    assert partition.failure is None
    assert {0: b"a"} == values(partition)
    driver.files.heal()
    driver.append(partition, b"b", producer=(PRODUCER_ID, 0, 1))
    assert {0: b"a", 1: b"b"} == values(partition)
    assert {0: b"a", 1: b"b"} == values(driver.reopen())


def test_those_who_wait_for_earlier_records_are_answered_although_a_later_one_is_refused(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    with driver.files.hold_syncs():
        partition.append(batch(b"y"), now_ms=NOW_MS)
        waiting = partition.durable(2)
        driver.turn()
        driver.files.fail_writes(".log", times=1)
        refused(driver, partition)
    driver.loop.run_until_complete(waiting)

    assert {0: b"x", 1: b"y"} == values(partition)


@pytest.mark.parametrize("part", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_cannot_be_begun_leaves_no_trace(driver: LogDriver, part: str, clean: bool) -> None:
    partition = driver.create(config=SMALL)
    for _ in range(2):
        driver.append(partition, b"x" * 60)
    driver.files.fail_writes(f"00000000000000000002{part}")

    for _ in range(3):
        refused(driver, partition, b"y" * 100)

    assert 1 == len(partition.segments)
    assert not list(driver.folder().glob("00000000000000000002.*"))
    driver.files.heal()
    driver.append(partition, b"y" * 100)
    driver.append(partition, b"z" * 100)
    expected = {0: b"x" * 60, 1: b"x" * 60, 2: b"y" * 100, 3: b"z" * 100}
    assert expected == values(partition)
    assert expected == values(driver.reopen(clean=clean, config=SMALL))


@pytest.mark.parametrize("part", ["00000000000000000000.index", "00000000000000000000.timeindex"])
def test_a_segment_whose_indexes_cannot_be_written_goes_on_later(driver: LogDriver, part: str) -> None:
    partition = driver.create(config=SMALL)
    for _ in range(2):
        driver.append(partition, b"x" * 60)
    driver.files.fail_writes(part)

    refused(driver, partition, b"y" * 100)

    driver.files.heal()
    driver.append(partition, b"y" * 100)
    assert 2 == len(partition.segments)
    assert {0: b"x" * 60, 1: b"x" * 60, 2: b"y" * 100} == values(driver.reopen(clean=False, config=SMALL))


@pytest.mark.parametrize("part", ["clicks-7", "partition.metadata", "leader-epoch", ".log", ".index"])
def test_a_log_that_cannot_be_begun_begins_later(driver: LogDriver, part: str) -> None:
    driver.open()
    (partition,) = driver.directory.create_partitions("clicks", [7], bytes(16), settings(), lazily=True)
    driver.files.fail_writes(part)

    for _ in range(2):
        refused(driver, partition)

    driver.files.heal()
    driver.append(partition, b"first")
    assert {0: b"first"} == values(partition)


def test_a_wal_that_finds_the_disk_full_stops_the_log_until_it_is_recovered(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"kept", producer=(PRODUCER_ID, 0, 0))
    told = []
    partition.change_listeners.add(lambda: told.append(partition.failure is None))
    driver.finish(partition)
    driver.files.fail_syncs("", errno.ENOSPC)
    for sequence in (1, 2):
        partition.append(batch(b"lost", producer=(PRODUCER_ID, 0, sequence)), now_ms=NOW_MS)
    with pytest.raises(LogFailed) as failed:
        driver.loop.run_until_complete(partition.durable(3))

    assert "by itself" in str(failed.value)
    assert {0: b"kept"} == values(partition)
    recover(driver, partition)
    assert partition.failure is not None, "the disk is still full"
    refused(driver, partition)
    driver.files.heal()
    assert partition in driver.committer.flusher.troubled
    recover(driver, partition)

    assert partition.failure is None and not driver.committer.flusher.troubled
    assert [False, True] == told
    # What was neither acknowledged nor shown is gone, so the producer sends it again.
    assert 1 == partition.log_end_offset
    assert 1 == driver.append(partition, b"again", producer=(PRODUCER_ID, 0, 1)).base_offset
    assert {0: b"kept", 1: b"again"} == values(partition)
    assert {0: b"kept", 1: b"again"} == values(driver.reopen(clean=False))


@pytest.mark.parametrize("part", [".snapshot", ".index", ".timeindex", "00000000000000000002.log", "clicks-0"])
@pytest.mark.parametrize("fault", ["write", "sync"])
def test_a_roll_that_finds_the_disk_full_takes_nothing_back_and_is_tried_again(
    driver: LogDriver, part: str, fault: str,
) -> None:
    partition = driver.create(config=SMALL)
    for number in range(2):
        driver.append(partition, b"x" * 60, producer=(PRODUCER_ID, 0, number))
    if fault == "sync":
        driver.files.fail_syncs(part, errno.ENOSPC)
    else:
        driver.files.fail_writes(part, errno.ENOSPC)

    acknowledged = 2
    with suppress(LogFailed), driver.files.hold_syncs("clicks-0"):
        partition.append(batch(b"y" * 100, producer=(PRODUCER_ID, 0, 2)), now_ms=NOW_MS)
        driver.loop.run_until_complete(partition.durable(3))
        acknowledged = 3
    driver.committer.settle()
    driver.committer.flusher.mark(partition)
    driver.committer.flusher.settle()

    assert acknowledged == partition.high_watermark == len(values(partition))
    driver.files.heal()
    recover(driver, partition)
    for number in range(partition.log_end_offset, 6):
        assert number == driver.append(partition, b"y" * 100, producer=(PRODUCER_ID, 0, number)).base_offset
    expected = {0: b"x" * 60, 1: b"x" * 60, **dict.fromkeys(range(2, 6), b"y" * 100)}
    assert expected == values(partition)
    assert expected == values(driver.reopen(clean=False, config=SMALL))


def test_without_syncs_a_snapshot_that_finds_no_space_is_written_later(fast_driver: LogDriver) -> None:
    partition = fast_driver.create(config=SMALL)
    fast_driver.files.fail_writes(".snapshot")
    for _ in range(6):
        fast_driver.append(partition, b"x" * 100)
    fast_driver.committer.flusher.settle()
    fast_driver.turn()

    assert 6 == len(values(partition)) and partition.failure is None
    assert not list(fast_driver.folder().glob("*.snapshot"))
    fast_driver.files.heal()
    recover(fast_driver, partition)
    fast_driver.finish(partition)

    assert 2 <= len(list(fast_driver.folder().glob("*.snapshot")))
    assert fast_driver.stop()


def test_a_flush_that_fails_otherwise_stops_the_log_until_it_is_written_again_from_the_wal(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"kept")
    driver.finish(partition)
    driver.files.fail_syncs("clicks-0", errno.EIO, times=1)
    driver.append(partition, b"kept in the WAL")
    driver.finish(partition)
    said = str(partition.failure)
    assert "tries to write it again" in said and "restart" in said
    refused(driver, partition)
    assert partition in driver.committer.flusher.troubled

    recover(driver, partition)
    driver.finish(partition)

    assert partition.failure is None and not driver.committer.flusher.troubled
    assert 2 == partition.recovery_point
    assert {0: b"kept", 1: b"kept in the WAL"} == values(partition)
    assert {0: b"kept", 1: b"kept in the WAL"} == values(driver.reopen(clean=False))


def test_a_sync_of_the_wal_that_fails_otherwise_is_never_tried_again(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"kept")
    driver.finish(partition)
    driver.files.fail_syncs(f"{WAL_FILES}001", errno.EIO, times=1)
    partition.append(batch(b"lost"), now_ms=NOW_MS)
    with pytest.raises(LogFailed) as failed:
        driver.loop.run_until_complete(partition.durable(2))

    assert "restart" in str(failed.value)
    assert partition not in driver.committer.flusher.troubled


def test_an_abort_is_written_with_its_index_entry_or_not_at_all(driver: LogDriver) -> None:
    partition = driver.create()
    built = batches.build(
        [(None, b"x")], timestamp_ms=NOW_MS, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0,
        attributes=batches.TRANSACTIONAL_BIT,
    )  # fmt: skip
    partition.append(batches.own(built), now_ms=NOW_MS)
    driver.settle(partition)
    for part in (".txnindex", ".log"):
        driver.files.fail_writes(part)
        with pytest.raises(LogFailed):
            partition.append_marker(PRODUCER_ID, 0, commit=False, now_ms=NOW_MS)
        driver.files.heal()
        assert not list(driver.folder().glob("*.txnindex")), part
        assert (1, 0) == (partition.log_end_offset, partition.last_stable_offset)

    partition.append_marker(PRODUCER_ID, 0, commit=False, now_ms=NOW_MS)
    driver.settle(partition)

    assert [(PRODUCER_ID, 0)] == partition.aborted_transactions(0, 9)


def test_retention_makes_space_although_there_is_none_for_a_new_segment(driver: LogDriver) -> None:
    partition = driver.create(config=SMALL)
    for _ in range(6):
        driver.append(partition, b"x" * 100)
    count = len(partition.segments)
    partition.configure(settings(segment_bytes=300, retention_ms=0, file_delete_delay_ms=0))
    driver.files.fail_writes("00000000000000000006.log")

    assert count - 1 == partition.apply_retention(NOW_MS + 1000)
    driver.finish(partition)
    driver.files.heal()

    assert 1 == len(partition.segments)
    assert 1 == partition.apply_retention(NOW_MS + 1000)
    driver.finish(partition)
    assert (6, 6) == (partition.log_start_offset, partition.log_end_offset)


PARTS = ["", ".log", ".index", ".timeindex", ".snapshot", ".tmp", "clicks-0", "leader-epoch", "0002.", "0003.", "0005."]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "sync", "none", "none"]), st.sampled_from(PARTS), st.integers(1, 4), st.booleans()
    ),
    min_size=3,
    max_size=20,
)


@hypothesis.settings(max_examples=examples(10, soak=300))
@hypothesis.given(steps=STEPS)
def test_whatever_is_full_what_was_acknowledged_is_seen_and_nothing_else(
    steps: list[tuple[str, str, int, bool]],
) -> None:
    """Records are sent while a part of the disk is full, which ends before the next step; then they are sent again.

    A record that was refused although it had reached the WAL may be seen once the log is back, at its offset.
    """
    with tempfile.TemporaryDirectory() as folder:
        driver = LogDriver(Path(folder))
        partition = driver.create(config=SMALL)
        acknowledged: dict[int, bytes] = {}
        sequence = 0
        for fault, part, count, is_again in steps:
            {"write": driver.files.fail_writes, "sync": driver.files.fail_syncs, "none": lambda *_: None}[fault](
                part, errno.ENOSPC
            )
            for turn in range(1 + is_again):
                sent = []
                for number in range(sequence, sequence + count):
                    value = b"%04d" % number + b"x" * 60
                    with suppress(LogFailed):
                        made = partition.append(batch(value, producer=(PRODUCER_ID, 0, number)), now_ms=NOW_MS)
                        sent.append((made.base_offset, value, partition.durable(made.last_offset + 1)))
                        continue
                    break
                for offset, value, waiting in sent:
                    with suppress(LogFailed):
                        if waiting is not None:
                            driver.loop.run_until_complete(waiting)
                        acknowledged[offset] = value
                        sequence = max(sequence, int(value[:4]) + 1)
                driver.committer.settle()
                driver.committer.flusher.settle()
                driver.turn()
                shown = values(partition)
                assert acknowledged == {offset: shown.get(offset) for offset in acknowledged}, (fault, part, turn)
                assert [b"%04d" % offset for offset in range(len(shown))] == [value[:4] for value in shown.values()]
                driver.files.heal()
                driver.recover(partition)
                driver.turn()
                assert partition.failure is None
                assert shown == values(partition), "what was shown is taken back, or what was cut away is shown"
                acknowledged, sequence = shown, len(shown)
        driver.append(partition, b"last", producer=(PRODUCER_ID, 0, sequence))
        assert [*acknowledged.values(), b"last"] == list(values(partition).values())
        again = driver.reopen(clean=False, config=SMALL)
        assert [*acknowledged.values(), b"last"] == list(values(again).values())
        driver.close()


COMPACTED = settings(segment_bytes=400, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)


def newest(partition) -> dict[bytes | None, bytes | None]:
    """What a reader of everything ends up with."""
    found, offset = {}, 0
    while data := partition.read(offset, bytes_max=4096):
        found.update((record.key, record.value) for record in batches.unpack(data))
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            at, offset = at + header.size, header.next_offset
    return found


@pytest.mark.parametrize("which", ["driver", "fast_driver"])
@pytest.mark.parametrize("part", [".swap", ".deleted", "00000000000000000000.log", "00000000000000000000.index"])
def test_a_cleaned_segment_that_finds_no_space_for_its_name_loses_nothing(
    request: pytest.FixtureRequest, which: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver: LogDriver = request.getfixturevalue(which)
    partition = driver.create(config=COMPACTED)
    for number in range(30):
        driver.append_keyed(partition, (b"key-%d" % (number % 5), b"value %d" % (number // 5)))
    expected = {b"key-%d" % key: b"value 5" for key in range(5)}
    take_over = partition.take_over

    def take_over_when_full(*arguments: Any, **more: Any) -> Any:
        driver.files.fail_writes(part, errno.ENOSPC)
        driver.loop.call_later(0.05, try_again)
        return take_over(*arguments, **more)

    def try_again() -> None:
        if driver.committer.flusher.troubled:
            driver.files.heal()
            driver.loop.create_task(partition.recover())
        driver.loop.call_later(0.05, try_again)

    monkeypatch.setattr(partition, "take_over", take_over_when_full)
    with suppress(LogFailed):
        driver.compact(partition)
    assert expected == newest(partition)
    driver.files.heal()
    recover(driver, partition)

    assert ([], None) == (partition.damage, partition.failure)
    assert expected == newest(partition)
    assert 30 == driver.append_keyed(partition, (b"key-0", b"value 5")).base_offset
    again = driver.reopen(clean=False, config=COMPACTED)
    assert ([], expected) == (again.damage, newest(again))


def test_what_a_recovery_cut_away_is_gone_for_good_before_anything_is_acknowledged(driver: LogDriver) -> None:
    partition = driver.create(config=SMALL)
    for number in range(2):
        driver.append(partition, b"x" * 60, producer=(PRODUCER_ID, 0, number))
    driver.finish(partition)
    driver.files.fail_syncs(WAL_FILES, errno.ENOSPC)
    partition.append(batch(b"y" * 100, producer=(PRODUCER_ID, 0, 2)), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        driver.loop.run_until_complete(partition.durable(3))
    driver.committer.flusher.settle()
    driver.files.heal()
    driver.files.syncs_done.clear()

    recover(driver, partition)

    assert [0] == [path.stat().st_size for path in driver.folder().glob("00000000000000000002.log*")]
    assert str(driver.folder()) in driver.files.syncs_done
    assert str(driver.folder() / "00000000000000000002.log") in driver.files.syncs_done


def test_without_syncs_a_log_that_comes_back_after_a_full_disk_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = LogDriver(tmp_path, durability="os")
    partition = driver.create(config=settings(segment_bytes=300))
    for number in range(12):
        driver.append(partition, b"v%d" % number)
    driver.finish(partition)

    def fail(self: Segment, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        # Some file systems need space to cut a file, too.
        patched.setattr(Segment, "append", in_this_thread(fail, Segment.append))
        patched.setattr(Segment, "cut_torn", in_this_thread(fail, Segment.cut_torn))
        with pytest.raises(LogFailed):
            partition.append(batch(b"refused"), now_ms=NOW_MS)
    driver.recover(partition)

    assert (None, 12, []) == (partition.failure, partition.log_end_offset, partition.damage)
    assert 12 == len(values(partition))
    driver.close()
