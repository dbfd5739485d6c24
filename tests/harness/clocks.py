"""A clock of a test's own, for code that reads `time.monotonic` and sleeps."""

import threading
import time
from collections.abc import Callable

import pytest


def read_clock(monkeypatch: pytest.MonkeyPatch, read: Callable[[], float]) -> None:
    """Let this thread alone read the time from `read`; a broker in this process has timers."""
    owner, monotonic = threading.get_ident(), time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: read() if threading.get_ident() == owner else monotonic())


def turn_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that this thread sees from now on; they move when it sleeps, and when the test says so.

    Other threads of the process, such as those of a Spark that an earlier test started, keep the real clock.
    """
    now = [0.0]
    read_clock(monkeypatch, lambda: now[0])
    owner, sleep = threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() == owner:
            now[0] += seconds
        else:
            sleep(seconds)

    monkeypatch.setattr("time.sleep", pause)
    return now


def start_on_first_pause(monkeypatch: pytest.MonkeyPatch, start: Callable[[], None]) -> None:
    """Make a call when this thread pauses for the first time; every other pause is a real one.

    A broker that is started again may itself have to wait, for a lock that a process of the one before still holds.
    """
    owner, sleep = threading.get_ident(), time.sleep
    is_started = False

    def pause(seconds: float) -> None:
        nonlocal is_started
        if threading.get_ident() != owner or is_started:
            sleep(seconds)
            return
        is_started = True
        start()

    monkeypatch.setattr("time.sleep", pause)
