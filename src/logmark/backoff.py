"""The pause between attempts at what has failed."""

from logmark.clock import Clock

BACKOFF_MS = 1_000
BACKOFF_MAX_MS = 60_000


class Backoff:
    """The time until the next attempt: it doubles with each one, up to a limit, until `reset`."""

    __slots__ = ("_begun_ms", "_clock", "_delay_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._delay_ms = 0
        self._begun_ms = 0

    @property
    def is_over(self) -> bool:
        """Whether the next attempt may begin."""
        return self._clock.monotonic_ms() - self._begun_ms >= self._delay_ms

    def begin_attempt(self) -> None:
        """Wait from now on, longer than before."""
        self._begun_ms = self._clock.monotonic_ms()
        self._delay_ms = min(BACKOFF_MAX_MS, self._delay_ms * 2 or BACKOFF_MS)

    def reset(self) -> None:
        """Let the next attempt begin at once."""
        self._delay_ms = 0
