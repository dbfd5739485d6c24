"""The pause between attempts is a time that passes, whatever the time of day says."""

import pytest

from logmark.backoff import BACKOFF_MS, Backoff
from logmark.clock import ManualClock


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_is_set_makes_the_next_attempt_neither_sooner_nor_later(days: int) -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    assert backoff.is_over
    backoff.begin_attempt()

    clock.set_time(clock.now_ms() + days * 86_400_000)

    clock.advance(seconds=(BACKOFF_MS - 1) / 1000)
    assert not backoff.is_over
    clock.advance(seconds=0.001)
    assert backoff.is_over
