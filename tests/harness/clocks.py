"""A clock of a test's own, for code that reads `time.monotonic` and sleeps."""

import threading
import time

import pytest


def turn_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that this thread sees from now on; they move when it sleeps, and when the test says so.

    Other threads of the process, such as those of a Spark that an earlier test started, keep the real clock.
    """
    now = [0.0]
    owner, monotonic, sleep = threading.get_ident(), time.monotonic, time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() == owner:
            now[0] += seconds
        else:
            sleep(seconds)

    monkeypatch.setattr("time.monotonic", lambda: now[0] if threading.get_ident() == owner else monotonic())
    monkeypatch.setattr("time.sleep", pause)
    return now
