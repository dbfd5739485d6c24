"""Nothing is acknowledged or shown before it is in the WAL; files change only below a durable recovery point."""

import errno
import os

import pytest

from logmark.errors import LogFailed
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, POINTS, WAL_FILES, LogDriver, batch, settings, values


def test_nothing_is_acknowledged_or_shown_while_the_sync_is_held(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"before")
    with driver.files.hold_syncs(f"{WAL_FILES}001"):
        appended = partition.append(batch(b"held"), now_ms=NOW_MS)
        waiting = partition.durable(appended.last_offset + 1)
        driver.turn()
        driver.files.wait_for_held_sync()
        driver.turn()

        assert waiting is not None and not waiting.done()
        assert (1, 2) == (partition.high_watermark, partition.log_end_offset)
        assert {0: b"before"} == values(partition)
        assert (0, 1) == partition.end_offset_for_epoch(0)
    driver.loop.run_until_complete(waiting)
    assert 2 == partition.high_watermark
    assert {0: b"before", 1: b"held"} == values(partition)


def test_what_is_durable_already_need_not_be_waited_for(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")

    assert partition.durable(1) is None


def test_appends_of_one_turn_share_a_sync_and_later_ones_join_the_next(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"first")
    driver.finish(partition)
    driver.files.syncs_done.clear()
    ends: list[int] = []
    partition.change_listeners.add(lambda: ends.append(partition.high_watermark))
    with driver.files.hold_syncs(f"{WAL_FILES}001"):
        for _ in range(10):
            partition.append(batch(b"x"), now_ms=NOW_MS)
        driver.turn()
        driver.files.wait_for_held_sync()
        for _ in range(10):
            partition.append(batch(b"y"), now_ms=NOW_MS)
    driver.settle(partition)

    assert [11, 21] == ends
    # The next file of the WAL is made in the background.
    assert 2 == len([path for path in driver.files.syncs_done if path.endswith("/0001.wal")])


def test_appends_of_all_partitions_share_one_sync(driver: LogDriver) -> None:
    partitions = [driver.create(index=index) for index in range(5)]
    for partition in partitions:
        driver.append(partition, b"x")
        driver.finish(partition)
    driver.files.syncs_done.clear()
    for partition in partitions:
        partition.append(batch(b"y"), now_ms=NOW_MS)
    for partition in partitions:
        driver.settle(partition)

    assert {2} == {partition.high_watermark for partition in partitions}
    # The next file of the WAL is made in the background.
    synced = [os.path.basename(path) for path in driver.files.syncs_done if "/clicks-" in path or "0001" in path]
    assert ["0001.wal"] == synced


def test_no_partition_waits_for_the_own_files_of_any_partition(driver: LogDriver) -> None:
    slow, quick = driver.create("slow"), driver.create("quick")
    with driver.files.hold_syncs("slow-0"), driver.files.hold_syncs("quick-0"):
        driver.append(slow, b"x")
        driver.append(quick, b"x")
        driver.append(slow, b"y")

        assert (2, 1) == (slow.high_watermark, quick.high_watermark)
        assert (0, 0) == (slow.recovery_point, quick.recovery_point)


def test_a_failed_flush_stops_that_log_and_no_other_and_takes_nothing_back(driver: LogDriver) -> None:
    broken, sound = driver.create("broken"), driver.create("sound")
    driver.append(broken, b"flushed")
    driver.finish(broken)
    driver.append(broken, b"kept")
    told: list[bool] = []
    broken.change_listeners.add(lambda: told.append(broken.failure is not None))
    driver.files.fail_syncs("broken-0", errno.EIO, times=1)
    driver.finish(broken)

    # The disk answers again, but the kernel may have dropped the pages: the recovery point must not move.
    with pytest.raises(LogFailed):
        broken.append(batch(b"refused"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        driver.loop.run_until_complete(broken.durable(3))
    assert [True] == told
    assert (2, 1) == (broken.high_watermark, broken.recovery_point)
    driver.append(sound, b"goes on")
    driver.finish(sound)
    assert {0: b"goes on"} == values(sound)
    assert not driver.stop()
    # Whatever the segment has lost, the WAL has it.
    path = driver.folder("broken") / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-30])
    again = driver.reopen("broken")
    assert ({0: b"flushed", 1: b"kept"}, []) == (values(again), again.damage)


def test_a_failed_write_stops_that_log_and_keeps_what_was_acknowledged(driver: LogDriver) -> None:
    broken, other = driver.create("broken"), driver.create("other")
    driver.append(broken, b"kept")
    driver.files.fail_writes("broken-0", errno.EIO)

    with pytest.raises(LogFailed) as failed:
        broken.append(batch(b"refused"), now_ms=NOW_MS)

    assert "broken-0" in str(failed.value) and "restart" in str(failed.value)
    assert {0: b"kept"} == values(broken)
    driver.append(other, b"goes on")
    driver.files.heal()
    with pytest.raises(LogFailed):
        broken.append(batch(b"refused"), now_ms=NOW_MS)
    driver.stop()
    again = driver.reopen("broken")
    assert {0: b"kept"} == values(again)
    driver.append(again, b"after")
    assert {0: b"kept", 1: b"after"} == values(again)


def test_a_failed_write_fails_those_who_wait_for_earlier_ones(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    with driver.files.hold_syncs():
        partition.append(batch(b"y"), now_ms=NOW_MS)
        waiting = partition.durable(2)
        driver.turn()
        driver.files.fail_writes(".log", errno.EIO, times=1)
        with pytest.raises(LogFailed):
            partition.append(batch(b"z"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        driver.loop.run_until_complete(waiting)
    driver.committer.settle()
    assert {0: b"x", 1: b"y"} == values(partition), "what has reached the WAL is kept, although its sender was refused"
    assert {0: b"x", 1: b"y"} == values(driver.reopen(clean=False))


def test_no_record_is_acknowledged_that_the_wal_could_not_take(driver: LogDriver) -> None:
    partition = driver.create()
    driver.append(partition, b"x")
    driver.files.fail_syncs(WAL_FILES)
    partition.append(batch(b"y"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        driver.loop.run_until_complete(partition.durable(2))

    assert 1 == partition.high_watermark


@pytest.mark.parametrize(
    "part", ["0.log", "0.index", "0.timeindex", ".snapshot", "leader-epoch", "partition.metadata", "clicks-0", "2.log"]
)
def test_the_recovery_point_does_not_move_while_a_file_below_it_cannot_be_synced(driver: LogDriver, part: str) -> None:
    partition = driver.create(config=settings(segment_bytes=200))
    driver.files.fail_syncs(part)
    with driver.files.hold_syncs(part):
        for _ in range(3):
            partition.append(batch(b"y" * 60), now_ms=NOW_MS)
        driver.settle(partition)
    driver.finish(partition)

    assert (3, 0) == (partition.high_watermark, partition.recovery_point)
    assert partition.failure is not None
    driver.files.heal()
    assert 3 == len(values(driver.reopen(clean=False)))


def test_a_roll_is_flushed_in_the_background_and_nobody_waits_for_it(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=200))
    driver.append(partition, b"x" * 60)
    driver.finish(partition)
    driver.files.syncs_done.clear()
    with driver.files.hold_syncs("00000000000000000000.log"):
        partition.append(batch(b"a"), now_ms=NOW_MS)
        driver.append(partition, b"b" * 60)
        driver.files.wait_for_held_sync()

        assert 2 == len(partition.segments)
        assert (3, 1) == (partition.high_watermark, partition.recovery_point)
    driver.finish(partition)

    names = [path.rsplit("/", 1)[1] for path in driver.files.syncs_done]
    assert {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot.tmp",
        "00000000000000000002.log",
        "clicks-0",
    } <= set(names)
    # A snapshot is proof of all that lies below it.
    assert names.index("00000000000000000000.log") < names.index("00000000000000000002.snapshot.tmp")
    assert 3 == partition.recovery_point
    assert {0: b"x" * 60, 1: b"a", 2: b"b" * 60} == values(partition)


@pytest.mark.parametrize("part", [POINTS, ".log"])
def test_files_are_renamed_only_after_the_recovery_point_is_durable(driver: LogDriver, part: str) -> None:
    config = settings(segment_bytes=200, retention_ms=0, file_delete_delay_ms=0)
    partition = driver.create(config=config)
    for number in range(4):
        driver.append(partition, b"%d" % number * 60)
    driver.finish(partition)
    before = sorted(path.name for path in driver.folder().glob("*.log"))
    with driver.files.hold_syncs(part):
        assert 0 < partition.apply_retention(NOW_MS + 1000)
        driver.turn()
        driver.files.wait_for_held_sync()

        assert before == [name for name in before if (driver.folder() / name).exists()]
    driver.finish(partition)
    driver.finish(partition)
    assert ["00000000000000000004.log"] == [path.name for path in driver.folder().glob("*.log")]


def test_recovery_points_that_cannot_be_written_hold_changes_up_until_they_can(driver: LogDriver) -> None:
    config = settings(segment_bytes=200, retention_ms=0, file_delete_delay_ms=0)
    partition = driver.create(config=config)
    for number in range(4):
        driver.append(partition, b"%d" % number * 60)
    driver.finish(partition)
    names = {path.name for path in driver.folder().glob("*.log")}
    driver.files.fail_syncs(POINTS, errno.EIO)
    partition.apply_retention(NOW_MS + 1000)
    driver.finish(partition)

    assert names <= {path.name for path in driver.folder().glob("*.log")}
    assert partition.failure is None and partition in driver.committer.flusher.troubled
    driver.append(partition, b"still taken")
    driver.files.heal()
    driver.recover(partition)
    driver.finish(partition)
    assert not names & {path.name for path in driver.folder().glob("*.log")}
    assert [b"still taken"] == list(values(driver.reopen(clean=False, config=config)).values())


def test_with_durability_os_a_record_is_shown_at_once_and_nothing_waits(fast_driver: LogDriver) -> None:
    partition = fast_driver.create()
    with fast_driver.files.hold_syncs():
        appended = partition.append(batch(b"x"), now_ms=NOW_MS)

        assert partition.durable(appended.last_offset + 1) is None
        assert 1 == partition.high_watermark
        assert {0: b"x"} == values(partition)


def test_closing_waits_for_the_round_under_way(driver: LogDriver) -> None:
    partition = driver.create()
    appended = partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(appended.last_offset + 1)
    driver.turn()

    assert driver.stop()

    assert waiting.done() and waiting.exception() is None
    assert {0: b"x"} == values(driver.reopen())


def test_closing_syncs_what_no_round_has_taken_yet(driver: LogDriver) -> None:
    partition = driver.create()
    partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(1)

    assert driver.stop()

    assert waiting.done() and waiting.exception() is None
    with pytest.raises(LogFailed):
        partition.append(batch(b"y"), now_ms=NOW_MS)


def test_a_kill_fails_those_who_wait(driver: LogDriver) -> None:
    partition = driver.create()
    partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(1)

    driver.stop(clean=False)

    assert isinstance(waiting.exception(), LogFailed)


def test_the_high_watermark_never_goes_back(driver: LogDriver) -> None:
    partition = driver.create(config=settings(segment_bytes=300))
    seen, early = [0], None
    partition.change_listeners.add(lambda: seen.append(partition.high_watermark))
    for _ in range(30):
        for _ in range(3):
            partition.append(batch(b"x" * 20), now_ms=NOW_MS)
        driver.turn()
        early = early or partition.commit_point()
    driver.settle(partition)
    # A round of group commit that is told late.
    partition.committed(early)

    assert sorted(seen) == seen
    assert 90 == seen[-1] == partition.high_watermark
    assert batches.read_header(partition.read(89, bytes_max=1)).base_offset == 89
