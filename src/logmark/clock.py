"""The only clock: the time of day and the time that has passed, in milliseconds; a parameter everywhere.

The time of day is for timestamps, and for what is compared with them. Somebody may set it at any moment, forward or
back. Timers, back-offs and deadlines use the monotonic time, which nobody can set.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time of day in milliseconds since 1970, and a time that only ever moves forward."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    """The machine's clock, moved by what a test asked for and by nothing else."""

    def __init__(self) -> None:
        self._moved_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._moved_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._moved_ms

    def advance(self, *, seconds: float) -> None:
        """Move this clock forward; real time continues from there."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._moved_ms += round(seconds * 1000)


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, *, seconds: float) -> None:
        """Move this clock forward."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now_ms += round(seconds * 1000)
        self._monotonic_ms += round(seconds * 1000)

    def set_time(self, now_ms: int) -> None:
        """Set the time of day, as an administrator or NTP does: no time passes."""
        self._now_ms = now_ms
