"""Deadlines on the broker's clock: they come due when that clock says so, also when a test turns it.

A deadline is a time of day when it is given, and from then on a time to wait: if somebody sets the machine's clock, it
comes due neither sooner nor later.
"""

import asyncio
import functools
import heapq
import itertools
from collections.abc import Callable

from logmark.clock import Clock


class Timer:
    """One deadline that can be called off."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call at the deadline."""
        self.callback = None


class Timers:
    """Calls back once the clock reaches a deadline; one loop timer serves them all."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        run: Callable[[Callable[[], None]], None] = lambda callback: callback(),
    ) -> None:
        """Take the loop and the clock; `run` makes each call, and may measure it."""
        self._loop = loop
        self._clock = clock
        self._run = run
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self._armed: asyncio.TimerHandle | None = None

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back when the time that is left until the deadline has passed."""
        return self._after(deadline_ms - self._clock.now_ms(), callback)

    def _after(self, wait_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._heap, (self._clock.monotonic_ms() + wait_ms, next(self._order), timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def every(self, interval_ms: int, callback: Callable[[], None], *, first_ms: int | None = None) -> None:
        """Call back at every interval until the timers are closed."""

        def tick() -> None:
            self._after(interval_ms, tick)
            callback()

        functools.update_wrapper(tick, callback)
        self._after(interval_ms if first_ms is None else first_ms, tick)

    def wake(self) -> None:
        """Call back whatever has come due; to be called when the clock was moved."""
        now_ms = self._clock.monotonic_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self._run(callback)
        self._arm()

    def close(self) -> None:
        """Cancel every deadline."""
        self._heap.clear()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        if self._heap:
            wait_ms = max(self._heap[0][0] - self._clock.monotonic_ms(), 0)
            # A loop refuses waits of years; an early wake-up only arms again.
            self._armed = self._loop.call_later(min(wait_ms, 86_400_000) / 1000, self.wake)
