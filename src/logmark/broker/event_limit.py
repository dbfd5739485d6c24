"""The limit on log events that clients cause: a client that sends garbage must not fill the disk with lines."""

from collections.abc import Callable

EVENTS_IN_A_SECOND = 5


class EventLimit:
    """Counts events of one kind, and says which are logged."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take a clock in seconds."""
        self._now = now
        self._second = 0.0
        self._events = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many events were left out before this one; None if this one is left out, too."""
        now = self._now()
        if now - self._second >= 1:
            self._second, self._events = now, 0
        if self._events >= EVENTS_IN_A_SECOND:
            self._left_out += 1
            return None
        self._events += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
