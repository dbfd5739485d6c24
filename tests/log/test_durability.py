"""Nothing is acknowledged or shown before it is on disk; a disk that fails stops one log and no other."""

import errno

import pytest

from logmark.errors import LogFailed
from logmark.wire import batches
from tests.log.lab import NOW_MS, Lab, batch, settings, values


def test_nothing_is_acknowledged_or_shown_while_the_sync_is_held(lab: Lab) -> None:
    partition = lab.create()
    lab.append(partition, b"before")
    with lab.files.hold_syncs():
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
    lab.files.syncs_done.clear()
    ends: list[int] = []
    partition.watchers.add(lambda: ends.append(partition.high_watermark))
    with lab.files.hold_syncs():
        for _ in range(10):
            partition.append(batch(b"x"), now_ms=NOW_MS)
        lab.turn()
        lab.files.wait_for_held_sync()
        for _ in range(10):
            partition.append(batch(b"y"), now_ms=NOW_MS)
    lab.settle(partition)

    assert [11, 21] == ends
    assert 2 == len([path for path in lab.files.syncs_done if path.endswith(".log")])


def test_the_partitions_wait_for_their_own_files_only(lab: Lab) -> None:
    slow, quick = lab.create("slow"), lab.create("quick")
    lab.append(slow, b"x")
    lab.append(quick, b"x")
    with lab.files.hold_syncs("slow-0"):
        slow.append(batch(b"y"), now_ms=NOW_MS)
        lab.append(quick, b"y")

        assert (1, 2) == (slow.high_watermark, quick.high_watermark)


def test_a_failed_sync_stops_that_log_for_good_and_no_other(lab: Lab) -> None:
    broken, sound = lab.create("broken"), lab.create("sound")
    lab.append(broken, b"kept")
    told: list[bool] = []
    broken.watchers.add(lambda: told.append(broken.failure is not None))
    lab.files.fail_syncs("broken-0", errno.EIO, times=1)

    appended = broken.append(batch(b"never acknowledged"), now_ms=NOW_MS)
    waiting = broken.durable(appended.last_offset + 1)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(waiting)

    # The disk answers again, but the kernel may have dropped the pages: an ack now could be a lie.
    with pytest.raises(LogFailed):
        broken.append(batch(b"refused"), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(broken.durable(2))
    assert [True] == told
    assert {0: b"kept"} == values(broken)
    assert 1 == broken.high_watermark
    lab.append(sound, b"goes on")
    assert {0: b"goes on"} == values(sound)
    assert not lab.stop()


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
    assert 1 == partition.high_watermark


@pytest.mark.parametrize("part", [".log", ".index", ".timeindex", ".snapshot", "leader-epoch", "clicks-0"])
def test_no_record_is_acknowledged_that_needs_a_file_which_cannot_be_synced(lab: Lab, part: str) -> None:
    partition = lab.create(config=settings(segment_bytes=200))
    acknowledged = 0
    if part != "leader-epoch":
        lab.append(partition, b"x" * 60)
        acknowledged = 1
    lab.files.fail_syncs(part)

    partition.append(batch(b"y" * 60), now_ms=NOW_MS)
    with pytest.raises(LogFailed):
        lab.loop.run_until_complete(partition.durable(acknowledged + 1))

    assert acknowledged == partition.high_watermark


def test_a_roll_is_durable_before_what_comes_after_it(lab: Lab) -> None:
    partition = lab.create(config=settings(segment_bytes=200))
    lab.append(partition, b"x" * 60)
    lab.files.syncs_done.clear()
    with lab.files.hold_syncs("00000000000000000000.log"):
        # The old segment has records that are not synced when the new one begins.
        partition.append(batch(b"a"), now_ms=NOW_MS)
        partition.append(batch(b"b" * 60), now_ms=NOW_MS)
        lab.turn()
        lab.files.wait_for_held_sync()
        lab.turn()

        assert 2 == len(partition.segments)
        assert 1 == partition.high_watermark
    lab.settle(partition)

    names = [path.rsplit("/", 1)[1] for path in lab.files.syncs_done]
    assert {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot.tmp",
        "00000000000000000002.log",
        "clicks-0",
    } <= set(names)
    assert {0: b"x" * 60, 1: b"a", 2: b"b" * 60} == values(partition)


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
