"""The flusher: a log's syncs, then the recovery points, then its changes; never in another order."""

import asyncio
from collections.abc import Iterator

import pytest

from logmark.log.flusher import Flush, Flusher
from logmark.log.wal.files import WalFile
from logmark.log.wal.recovery_points import RecoveryPoint
from tests.log.stepped_workers import SteppedWorker


class FakeWal:
    """A WAL that notes what is made durable and freed."""

    def __init__(self, done: list[str]) -> None:
        self.done = done
        self.first_entries: list[int] = []
        self.points: dict[bytes, RecoveryPoint] = {}
        self.released: list[int] = []
        self.error: OSError | None = None

    def write_points(self, first_entry: int, points: dict[bytes, RecoveryPoint]) -> None:
        if self.error is not None:
            raise self.error
        self.done.append("points")
        self.first_entries.append(first_entry)
        self.points = points

    def release(self, first_entry: int) -> list[WalFile]:
        self.released.append(first_entry)
        return []


class FakeLog:
    """A log whose syncs and changes can fail."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name = name
        self.key = name.encode()
        self.done = done
        self.end = 1
        self.failing: str | None = None
        self.ended: list[Flush] = []
        self.is_idle = False

    def _do(self, what: str) -> None:
        if self.failing == what:
            raise OSError(5, what)
        self.done.append(f"{self.name} {what}")

    def begin_flush(self) -> Flush | None:
        if self.is_idle:
            return None
        syncs = [lambda: self._do("sync 1"), lambda: self._do("sync 2")]
        changes = [lambda: self._do("change 1"), lambda: self._do("change 2")]
        return Flush(self, syncs, RecoveryPoint(self.end, 0, 0), changes)

    def end_flush(self, flush: Flush) -> None:
        self.ended.append(flush)

    async def recover(self) -> None:
        """Nothing to do."""


class FlusherDriver:
    """A flusher with its worker, WAL and logs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.done: list[str] = []
        self.worker = SteppedWorker()
        self.flusher = Flusher(self.loop, self.worker)
        self.wal = FakeWal(self.done)
        self.flusher.wal = self.wal  # type: ignore[assignment]
        self.a, self.b = FakeLog("a", self.done), FakeLog("b", self.done)

    def commit(self, number: int, *logs: FakeLog) -> None:
        """Let an entry with batches of these logs become durable."""
        self.flusher.begin_entry(number, logs)
        self.flusher.end_entry(number)

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def driver() -> Iterator[FlusherDriver]:
    made = FlusherDriver()
    yield made
    made.loop.close()


def test_the_points_follow_all_syncs_and_the_changes_follow_the_points(driver: FlusherDriver) -> None:
    driver.flusher.mark(driver.a)
    driver.flusher.mark(driver.b)
    driver.flusher.settle()

    assert ["a sync 1", "a sync 2", "b sync 1", "b sync 2", "points",
            "a change 1", "a change 2", "b change 1", "b change 2"] == driver.done  # fmt: skip


def test_marks_of_one_turn_share_a_cycle_and_later_ones_join_the_next(driver: FlusherDriver) -> None:
    driver.flusher.mark(driver.a)
    driver.flusher.mark(driver.a)
    driver.turn()
    driver.flusher.mark(driver.b)
    driver.turn()
    assert driver.flusher.is_busy_with(driver.a) and not driver.flusher.is_busy_with(driver.b)
    driver.worker.finish_job()
    assert [1, 0] == [len(driver.a.ended), len(driver.b.ended)]
    driver.turn()
    driver.worker.finish_job()

    assert [1, 1] == [len(driver.a.ended), len(driver.b.ended)]
    assert not driver.flusher.is_busy


@pytest.mark.parametrize("steps", range(3))
def test_no_change_is_made_before_the_points_are_durable(driver: FlusherDriver, steps: int) -> None:
    driver.flusher.mark(driver.a)
    driver.turn()
    for _ in range(steps):
        driver.worker.step()

    assert [] == [each for each in driver.done if "change" in each]
    assert {} == driver.flusher.points, "the point is known only after the cycle"
    driver.worker.finish()
    assert {b"a": RecoveryPoint(1, 0, 0)} == driver.flusher.points == driver.wal.points


def test_entries_are_freed_up_to_the_first_one_that_a_log_still_needs(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a)
    driver.commit(2, driver.b)
    driver.commit(3, driver.a)
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    assert ([2], [2]) == (driver.wal.first_entries, driver.wal.released)
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert ([2, 4], [2, 4]) == (driver.wal.first_entries, driver.wal.released)


def test_an_entry_that_is_being_written_is_needed_after_the_flush(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a)
    driver.flusher.begin_entry(2, [driver.a])
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    driver.flusher.end_entry(2)
    assert [2] == driver.wal.released
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert [2, 3] == driver.wal.released


def test_an_entry_that_was_given_up_is_not_needed(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a)
    driver.flusher.begin_entry(2, [driver.a])
    driver.flusher.give_up_entry()
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    driver.a.is_idle = True
    driver.commit(2, driver.b)
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert 3 == driver.wal.released[-1], "a log without batches in the WAL keeps its files"


def test_a_log_whose_sync_fails_keeps_its_entries_and_does_not_stop_the_others(driver: FlusherDriver) -> None:
    driver.commit(1, driver.b)
    driver.commit(2, driver.a)
    driver.commit(3, driver.b)
    driver.a.failing = "sync 2"
    driver.flusher.flush_all()
    driver.flusher.settle()

    (failed,), (sound,) = driver.a.ended, driver.b.ended
    assert (1, 0, False) == (failed.sync_count, failed.change_count, failed.is_held_up)
    assert isinstance(failed.error, OSError) and not failed.is_proved
    assert sound.is_proved and sound.error is None and 2 == sound.change_count
    assert {b"b"} == driver.wal.points.keys() == driver.flusher.points.keys()
    assert ([2], [2]) == (driver.wal.first_entries, driver.wal.released), "entry 2 is the only copy of what failed"
    driver.a.failing = None
    driver.flusher.flush_all()
    driver.flusher.settle()
    assert 4 == driver.wal.released[-1]


def test_a_change_that_fails_takes_nothing_back_and_does_not_stop_the_others(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a, driver.b)
    driver.a.failing = "change 2"
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert (2, 1, True) == (driver.a.ended[0].sync_count, driver.a.ended[0].change_count, driver.a.ended[0].is_proved)
    assert isinstance(driver.a.ended[0].error, OSError)
    assert 2 == driver.b.ended[0].change_count
    assert {b"a", b"b"} == driver.flusher.points.keys()
    assert [2] == driver.wal.released


def test_points_that_cannot_be_written_hold_everything_up_and_are_tried_again(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a)
    driver.wal.error = OSError(28, "full")
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert [] == [each for each in driver.done if "change" in each]
    assert driver.a.ended[0].is_held_up and 0 == driver.a.ended[0].change_count
    assert ({}, []) == (driver.flusher.points, driver.wal.released)
    driver.wal.error = None
    driver.flusher.flush_all()
    driver.flusher.settle()
    assert {b"a": RecoveryPoint(1, 0, 0)} == driver.flusher.points
    assert [2] == driver.wal.released


def test_the_end_of_every_cycle_is_told_also_of_one_that_failed_or_had_nothing_to_do(driver: FlusherDriver) -> None:
    ends: list[str] = []
    driver.flusher.on_end = lambda: ends.append("end")
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    assert 1 == len(ends)
    driver.wal.error = OSError(28, "full")
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    assert 2 == len(ends)
    driver.a.is_idle = True
    driver.flusher.mark(driver.a)
    driver.flusher.settle()
    assert 3 == len(ends)


def test_a_log_that_is_closed_is_flushed_no_more(driver: FlusherDriver) -> None:
    driver.commit(1, driver.a)
    driver.commit(2, driver.b)
    driver.flusher.mark(driver.a)
    driver.flusher.forget(driver.a)
    driver.flusher.flush_all()
    driver.flusher.settle()

    assert [] == driver.a.ended and 1 == len(driver.b.ended)
    assert [3] == driver.wal.released


def test_a_log_that_is_closed_has_no_recovery_point_any_more(driver: FlusherDriver) -> None:
    for log in (driver.a, driver.b):
        driver.flusher.mark(log)
    driver.flusher.settle()
    driver.flusher.forget(driver.a)
    driver.flusher.mark(driver.b)
    driver.flusher.settle()

    assert {b"b"} == driver.flusher.points.keys() == driver.wal.points.keys()


def test_without_a_wal_the_changes_follow_the_syncs(driver: FlusherDriver) -> None:
    driver.flusher.wal = None
    driver.flusher.mark(driver.a)
    driver.flusher.settle()

    assert ["a sync 1", "a sync 2", "a change 1", "a change 2"] == driver.done
    assert {b"a"} == driver.flusher.points.keys()


def test_closing_finishes_the_cycle_under_way_and_begins_none(driver: FlusherDriver) -> None:
    driver.flusher.mark(driver.a)
    driver.turn()
    driver.flusher.mark(driver.b)
    driver.flusher.close()

    assert [1, 0] == [len(driver.a.ended), len(driver.b.ended)]
