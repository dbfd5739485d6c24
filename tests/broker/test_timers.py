"""Timers follow the broker's clock, and nobody who sets the time of day moves them."""

import asyncio
from collections.abc import Callable

import pytest

from logmark.broker.timers import Timers
from logmark.clock import ManualClock


def with_timers(test: Callable[[Timers, ManualClock], None]) -> None:
    async def run() -> None:
        clock = ManualClock(now_ms=1000)
        timers = Timers(asyncio.get_running_loop(), clock)
        test(timers, clock)
        timers.close()

    asyncio.run(run())


def test_deadlines_come_due_in_order_when_the_clock_is_turned() -> None:
    def check(timers: Timers, clock: ManualClock) -> None:
        due: list[str] = []
        timers.at(3000, lambda: due.append("late"))
        timers.at(2000, lambda: due.append("soon"))
        timers.at(9000, lambda: due.append("not yet"))

        clock.advance(seconds=5)
        timers.wake()

        assert ["soon", "late"] == due

    with_timers(check)


def test_a_cancelled_deadline_never_comes_due() -> None:
    def check(timers: Timers, clock: ManualClock) -> None:
        due: list[str] = []
        timers.at(2000, lambda: due.append("cancelled")).cancel()

        clock.advance(seconds=5)
        timers.wake()

        assert [] == due

    with_timers(check)


def test_a_repeated_task_runs_once_per_wake_however_far_the_clock_jumps() -> None:
    def check(timers: Timers, clock: ManualClock) -> None:
        ran: list[int] = []
        timers.every(1000, lambda: ran.append(clock.now_ms()))

        clock.advance(seconds=3600)
        timers.wake()
        clock.advance(seconds=1)
        timers.wake()

        assert [3_601_000, 3_602_000] == ran

    with_timers(check)


def test_the_loop_wakes_the_timers_without_being_asked() -> None:
    async def run() -> None:
        clock = ManualClock(now_ms=1000)
        timers = Timers(asyncio.get_running_loop(), clock)
        came = asyncio.Event()
        timers.at(1000, came.set)
        await asyncio.wait_for(came.wait(), 60)

    asyncio.run(run())


TWO_DAYS_MS = 2 * 86_400_000


@pytest.mark.parametrize("by_ms", [-TWO_DAYS_MS, TWO_DAYS_MS])
def test_a_clock_that_is_set_makes_no_deadline_come_sooner_or_later(by_ms: int) -> None:
    def check(timers: Timers, clock: ManualClock) -> None:
        due: list[str] = []
        timers.at(clock.now_ms() + 2000, lambda: due.append("once"))
        timers.every(2000, lambda: due.append("repeated"))

        clock.set_time(clock.now_ms() + by_ms)
        clock.advance(seconds=1.999)
        timers.wake()
        assert [] == due

        clock.advance(seconds=0.001)
        timers.wake()
        clock.advance(seconds=2)
        timers.wake()
        assert ["once", "repeated", "repeated"] == due

    with_timers(check)


def test_a_clock_that_is_set_back_while_timers_are_called_has_no_task_called_again_and_again() -> None:
    def check(timers: Timers, clock: ManualClock) -> None:
        ran: list[int] = []

        def set_back() -> None:
            clock.set_time(clock.now_ms() - TWO_DAYS_MS)

        def run() -> None:
            ran.append(clock.now_ms())
            assert len(ran) == 1, "the loop would be held for two days"

        timers.at(clock.now_ms() + 500, set_back)
        timers.every(1000, run)

        clock.advance(seconds=1)
        timers.wake()

        assert [2000 - TWO_DAYS_MS] == ran

    with_timers(check)
