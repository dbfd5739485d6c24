"""Nothing is acknowledged or shown before it is in the WAL; files change only below a durable recovery point."""

import errno

import pytest

from logmark.errors import LogFailed
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, POINTS, WAL_FILES, Lab, batch, settings, values


def test_nothing_is_acknowledged_or_shown_while_the_sync_is_held(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"before")
    with lab.files.hold_syncs(WAL_FILES):
        appended = partition.append(batch(b"held"), now_ms=NOW_MS)
        waiting = partition.durable(appended.last_offset + 1)
        lab.turn()
        lab.files.wait_for_held_sync()
        lab.turn()

        assert waiting is not None and not waiting.done()
        assert (1, 2) == (partition.high_watermark, partition.log_end_offset)
        assert {0: b"before"} == values(partition)
        assert (0, 1) == partition.end_offset_for_epoch(0)
    lab.loop.run_until_complete(waiting)
    assert 2 == partition.high_watermark
    assert {0: b"before", 1: b"held"} == values(partition)


def test_what_is_durable_already_need_not_be_waited_for(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"x")

    assert partition.durable(1) is None


def test_appends_of_one_turn_share_a_sync_and_later_ones_join_the_next(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"first")
    lab.finish(partition)
    lab.files.syncs_done.clear()
    ends: list[int] = []
    partition.watchers.add(lambda: ends.append(partition.high_watermark))
    with lab.files.hold_syncs(WAL_FILES):
        for _ in range(10):
            partition.append(batch(b"x"), now_ms=NOW_MS)
        lab.turn()
        lab.files.wait_for_held_sync()
        for _ in range(10):
            partition.append(batch(b"y"), now_ms=NOW_MS)
    lab.settle(partition)

    assert [11, 21] == ends
    assert 2 == len([path for path in lab.files.syncs_done if WAL_FILES in path])


def test_appends_of_all_partitions_share_one_sync(lab: Lab) -> None:
    partitions = [lab.create(index=index) for index in range(5)]
    for partition in partitions:
        lab.append(partition, b"x")
        lab.finish(partition)
    lab.files.syncs_done.clear()
    for partition in partitions:
        partition.append(batch(b"y"), now_ms=NOW_MS)
    for partition in partitions:
        lab.settle(partition)

    assert {2} == {partition.high_watermark for partition in partitions}
    assert 1 == len(lab.files.syncs_done), lab.files.syncs_done


def test_no_partition_waits_for_the_own_files_of_any_partition(lab: Lab) -> None:
    slow, quick = lab.create("slow"), lab.create("quick")
    with lab.files.hold_syncs("slow-0"), lab.files.hold_syncs("quick-0"):
        lab.append(slow, b"x")
        lab.append(quick, b"x")
        lab.append(slow, b"y")

        assert (2, 1) == (slow.high_watermark, quick.high_watermark)
        assert (0, 0) == (slow.recovery_point, quick.recovery_point)


def test_a_failed_flush_stops_that_log_and_no_other_and_takes_nothing_back(lab: Lab) -> None:
    broken, sound = lab.create("broken"), lab.create("sound")
    lab.append(broken, b"flushed")
    lab.finish(broken)
    lab.append(broken, b"kept")
    told: list[bool] = []
    broken.watchers.add(lambda: told.append(broken.failure is not None))
    lab.files.fail_syncs("broken-0", errno.EIO, times=1)
    lab.finish(broken)

    # The disk answers again, but the kernel may have dropped the pages: the recovery point must not move.
    with pytest.raises(LogFailed):
        broken.append(batch(b"refused"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(broken.durable(3))
    assert [True] == told
    assert (2, 1) == (broken.high_watermark, broken.recovery_point)
    lab.append(sound, b"goes on")
    lab.finish(sound)
    assert {0: b"goes on"} == values(sound)
    assert not lab.stop()
    # Whatever the segment has lost, the WAL has it.
    path = lab.folder("broken") / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-30])
    again = lab.reopen("broken")
    assert ({0: b"flushed", 1: b"kept"}, []) == (values(again), again.damage)


def test_a_failed_write_stops_that_log_and_keeps_what_was_acknowledged(lab: Lab) -> None:
    broken, other = lab.create("broken"), lab.create("other")
    lab.append(broken, b"kept")
    lab.files.fail_writes("broken-0", errno.EIO)

    with pytest.raises(LogFailed) as failed:
        broken.append(batch(b"refused"), now_ms=NOW_MS)

    assert "broken-0" in str(failed.value) and "restart" in str(failed.value)
    assert {0: b"kept"} == values(broken)
    lab.append(other, b"goes on")
    lab.files.heal()
    with pytest.raises(LogFailed):
        broken.append(batch(b"refused"), now_ms=NOW_MS)
    lab.stop()
    again = lab.reopen("broken")
    assert {0: b"kept"} == values(again)
    lab.append(again, b"after")
    assert {0: b"kept", 1: b"after"} == values(again)


def test_a_failed_write_fails_those_who_wait_for_earlier_ones(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"x")
    with lab.files.hold_syncs():
        partition.append(batch(b"y"), now_ms=NOW_MS)
        waiting = partition.durable(2)
        lab.turn()
        lab.files.fail_writes(".log", errno.EIO, times=1)
        with pytest.raises(LogFailed):
            partition.append(batch(b"z"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(waiting)
    lab.committer.settle()
    assert {0: b"x", 1: b"y"} == values(partition), "what has reached the WAL is kept, although its sender was refused"
    assert {0: b"x", 1: b"y"} == values(lab.reopen(clean=False))


def test_no_record_is_acknowledged_that_the_wal_could_not_take(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"x")
    lab.files.fail_syncs(WAL_FILES)
    partition.append(batch(b"y"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(partition.durable(2))

    assert 1 == partition.high_watermark


@pytest.mark.parametrize(
    "part", ["0.log", "0.index", "0.timeindex", ".snapshot", "leader-epoch", "partition.metadata", "clicks-0", "2.log"]
)
def test_the_recovery_point_does_not_move_while_a_file_below_it_cannot_be_synced(lab: Lab, part: str) -> None:
    partition = lab.create(config=settings(segment_bytes=200))
    lab.files.fail_syncs(part)
    with lab.files.hold_syncs(part):
        for _ in range(3):
            partition.append(batch(b"y" * 60), now_ms=NOW_MS)
        lab.settle(partition)
    lab.finish(partition)

    assert (3, 0) == (partition.high_watermark, partition.recovery_point)
    assert partition.failure is not None
    lab.files.heal()
    assert 3 == len(values(lab.reopen(clean=False)))


def test_a_roll_is_flushed_in_the_background_and_nobody_waits_for_it(lab: Lab) -> None:
    partition = lab.create(config=settings(segment_bytes=200))
    lab.append(partition, b"x" * 60)
    lab.finish(partition)
    lab.files.syncs_done.clear()
    with lab.files.hold_syncs("00000000000000000000.log"):
        partition.append(batch(b"a"), now_ms=NOW_MS)
        lab.append(partition, b"b" * 60)
        lab.files.wait_for_held_sync()

        assert 2 == len(partition.segments)
        assert (3, 1) == (partition.high_watermark, partition.recovery_point)
    lab.finish(partition)

    names = [path.rsplit("/", 1)[1] for path in lab.files.syncs_done]
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
def test_files_are_renamed_only_after_the_recovery_point_is_durable(lab: Lab, part: str) -> None:
    config = settings(segment_bytes=200, retention_ms=0, file_delete_delay_ms=0)
    partition = lab.create(config=config)
    for number in range(4):
        lab.append(partition, b"%d" % number * 60)
    lab.finish(partition)
    before = sorted(path.name for path in lab.folder().glob("*.log"))
    with lab.files.hold_syncs(part):
        assert 0 < partition.apply_retention(NOW_MS + 1000)
        lab.turn()
        lab.files.wait_for_held_sync()

        assert before == [name for name in before if (lab.folder() / name).exists()]
    lab.finish(partition)
    lab.finish(partition)
    assert ["00000000000000000004.log"] == [path.name for path in lab.folder().glob("*.log")]


def test_recovery_points_that_cannot_be_written_hold_changes_up_until_they_can(lab: Lab) -> None:
    config = settings(segment_bytes=200, retention_ms=0, file_delete_delay_ms=0)
    partition = lab.create(config=config)
    for number in range(4):
        lab.append(partition, b"%d" % number * 60)
    lab.finish(partition)
    names = {path.name for path in lab.folder().glob("*.log")}
    lab.files.fail_syncs(POINTS, errno.EIO)
    partition.apply_retention(NOW_MS + 1000)
    lab.finish(partition)

    assert names <= {path.name for path in lab.folder().glob("*.log")}
    assert partition.failure is None and partition in lab.committer.flusher.troubled
    lab.append(partition, b"still taken")
    lab.files.heal()
    lab.recover(partition)
    lab.finish(partition)
    assert not names & {path.name for path in lab.folder().glob("*.log")}
    assert [b"still taken"] == list(values(lab.reopen(clean=False, config=config)).values())


def test_with_durability_os_a_record_is_shown_at_once_and_nothing_waits(fast_lab: Lab) -> None:
    partition = fast_lab.create()
    with fast_lab.files.hold_syncs():
        appended = partition.append(batch(b"x"), now_ms=NOW_MS)

        assert partition.durable(appended.last_offset + 1) is None
        assert 1 == partition.high_watermark
        assert {0: b"x"} == values(partition)


def test_closing_waits_for_the_round_under_way(lab: Lab) -> None:
    partition = lab.create()
    appended = partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(appended.last_offset + 1)
    lab.turn()

    assert lab.stop()

    assert waiting.done() and waiting.exception() is None
    assert {0: b"x"} == values(lab.reopen())


def test_closing_syncs_what_no_round_has_taken_yet(lab: Lab) -> None:
    partition = lab.create()
    partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(1)

    assert lab.stop()

    assert waiting.done() and waiting.exception() is None
    with pytest.raises(LogFailed):
        partition.append(batch(b"y"), now_ms=NOW_MS)


def test_a_kill_fails_those_who_wait(lab: Lab) -> None:
    partition = lab.create()
    partition.append(batch(b"x"), now_ms=NOW_MS)
    waiting = partition.durable(1)

    lab.stop(clean=False)

    assert isinstance(waiting.exception(), LogFailed)


def test_the_high_watermark_never_goes_back(lab: Lab) -> None:
    partition = lab.create(config=settings(segment_bytes=300))
    seen = [0]
    partition.watchers.add(lambda: seen.append(partition.high_watermark))
    for _ in range(30):
        for _ in range(3):
            partition.append(batch(b"x" * 20), now_ms=NOW_MS)
        lab.turn()
    lab.settle(partition)

    assert sorted(seen) == seen
    assert 90 == seen[-1]
    assert batches.read_header(partition.read(89, bytes_max=1)).base_offset == 89
