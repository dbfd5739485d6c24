"""The status of a partition's log is a state machine with one table of transitions."""

import errno
import itertools
from collections.abc import Callable

import pytest

from logmark.errors import LogFailed
from logmark.log.log_state import TRANSITIONS, LogState, LogStatus
from tests.log.directory_driver import TOPIC_ID, settings

OPEN, STOPPED, SUSPECT, CLOSED = LogStatus.OPEN, LogStatus.STOPPED, LogStatus.SUSPECT, LogStatus.CLOSED
BROKEN, FULL = OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full")
WAYS: dict[LogStatus, list[Callable[[LogState], object]]] = {
    OPEN: [],
    STOPPED: [lambda state: state.fail(BROKEN)],
    SUSPECT: [lambda state: state.fail(BROKEN), LogState.mark_suspect],
    CLOSED: [LogState.close],
}
EVENTS: dict[str, Callable[[LogState], object]] = {
    "fail": lambda state: state.fail(FULL),
    "mark_suspect": LogState.mark_suspect,
    "resume": LogState.resume,
    "close": LogState.close,
}
# What follows each event; a failure of a log that has stopped already, and a second close, change nothing.
FOLLOWING = {
    (OPEN, "fail"): STOPPED, (STOPPED, "fail"): STOPPED, (SUSPECT, "fail"): SUSPECT, (CLOSED, "fail"): CLOSED,
    (OPEN, "mark_suspect"): OPEN, (STOPPED, "mark_suspect"): SUSPECT, (SUSPECT, "mark_suspect"): SUSPECT,
    (CLOSED, "mark_suspect"): CLOSED,
    (STOPPED, "resume"): OPEN, (SUSPECT, "resume"): OPEN,
    (OPEN, "close"): CLOSED, (STOPPED, "close"): CLOSED, (SUSPECT, "close"): CLOSED, (CLOSED, "close"): CLOSED,
}  # fmt: skip
IMPOSSIBLE = [(OPEN, "resume"), (CLOSED, "resume")]


def state_in(status: LogStatus) -> tuple[LogState, list[tuple[LogFailed, BaseException | None]]]:
    """Return the state of a log with a status, and the list of what its listener hears from now on."""
    heard: list[tuple[LogFailed, BaseException | None]] = []
    state = LogState(
        "/data/clicks-0", "clicks", 0, TOPIC_ID, settings(), on_stop=lambda *stopped: heard.append(stopped)
    )  # fmt: skip
    for step in WAYS[status]:
        step(state)
    assert status is state.status
    heard.clear()
    return state, heard


def test_every_status_and_event_is_decided() -> None:
    assert set(itertools.product(LogStatus, EVENTS)) == {*FOLLOWING, *IMPOSSIBLE}
    changes = {(before, after) for (before, _), after in FOLLOWING.items() if before is not after}
    assert changes == {(before, after) for before, possible in TRANSITIONS.items() for after in possible}


@pytest.mark.parametrize(("before", "event"), FOLLOWING, ids=lambda value: getattr(value, "value", value))
def test_an_event_leads_to_one_status(before: LogStatus, event: str) -> None:
    state, heard = state_in(before)
    failure = state.failure

    EVENTS[event](state)

    after = FOLLOWING[before, event]
    assert after is state.status
    assert (state.failure is None) == (after is OPEN)
    # Those who wait hear of it once, when the log stops, and the first failure is kept.
    assert [error for _, error in heard] == ([FULL if event == "fail" else None] if OPEN is before is not after else [])
    if before is not OPEN and after is not OPEN:
        assert failure is state.failure


@pytest.mark.parametrize(("before", "event"), IMPOSSIBLE, ids=lambda value: getattr(value, "value", value))
def test_a_log_that_has_not_stopped_or_is_closed_cannot_be_resumed(before: LogStatus, event: str) -> None:
    state, _ = state_in(before)

    with pytest.raises(AssertionError, match=f"clicks-0 is {before.value}"):
        EVENTS[event](state)

    assert before is state.status
