"""One budget holds for what all clients together make the broker hold, and no client can use it up for the others."""

from pathlib import Path

import pytest

from logmark.broker.memory_budget import DEFAULT_BYTES_MAX, MemoryBudget, default_bytes_max

KIB, MIB = 1024, 1024 * 1024
SMALL, MEDIUM, LARGE = 20 * KIB, 500 * KIB, 100 * MIB


class RequestQueue:
    """Requests that ask a budget for memory, and those that got it, in order."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = MemoryBudget(bytes_max)
        self.granted: list[str] = []
        self._callbacks: dict[str, object] = {}

    def ask(self, name: str, size: int) -> None:
        def granted() -> None:
            self.granted.append(name)

        self._callbacks[name] = granted
        if self.budget.reserve(size, granted):
            self.granted.append(name)

    def withdraw(self, name: str) -> None:
        self.budget.withdraw(self._callbacks[name])  # type: ignore[arg-type]


def test_a_request_that_does_not_fit_waits_until_bytes_are_released() -> None:
    line = RequestQueue(2 * MEDIUM)
    for name in ("first", "second"):
        line.ask(name, MEDIUM)

    assert ["first"] == line.granted
    line.budget.release(MEDIUM)

    assert ["first", "second"] == line.granted
    assert MEDIUM == line.budget.used


def test_requests_of_one_class_are_granted_in_the_order_in_which_they_came() -> None:
    line = RequestQueue(200 * MIB)
    for name, size in [("first", LARGE), ("second", LARGE), ("third", 2 * MIB)]:
        line.ask(name, size)

    assert ["first"] == line.granted
    line.budget.release(LARGE)
    assert ["first", "second"] == line.granted
    line.budget.release(LARGE)
    assert ["first", "second", "third"] == line.granted


def test_large_announcements_stop_neither_small_nor_medium_requests() -> None:
    line = RequestQueue(256 * MIB)
    for number in range(6):
        line.ask(f"large {number}", LARGE)
    line.ask("small", SMALL)
    line.ask("medium", MEDIUM)

    assert ["large 0", "small", "medium"] == line.granted


def test_the_last_eighth_is_for_small_requests() -> None:
    line = RequestQueue(8 * MIB)
    for number in range(20):
        line.ask(f"medium {number}", MEDIUM)
    granted = len(line.granted)
    line.ask("heartbeat", SMALL)

    assert granted < 20
    assert "heartbeat" == line.granted[-1]


def test_a_request_larger_than_the_whole_budget_is_granted_alone() -> None:
    line = RequestQueue(10 * MIB)
    line.ask("huge", LARGE)
    line.ask("another", LARGE)

    assert ["huge"] == line.granted


def test_one_large_request_is_granted_whatever_else_is_held() -> None:
    line = RequestQueue(10 * MIB)
    line.budget.hold(50 * MIB)
    line.ask("large", 5 * MIB)
    line.ask("small", SMALL)

    assert ["large"] == line.granted
    line.budget.hold(-50 * MIB)
    assert ["large", "small"] == line.granted


def test_a_waiting_connection_that_closes_lets_the_next_one_in() -> None:
    line = RequestQueue(10 * MIB)
    line.budget.reserve(3 * MIB, lambda: None)
    line.ask("does not fit", 4 * MIB)
    line.ask("would fit", 2 * MIB)

    line.withdraw("does not fit")

    assert ["would fit"] == line.granted
    assert not line.budget.has_waiting


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("67108864\n", 16 * MIB), ("max\n", DEFAULT_BYTES_MAX), ("17179869184\n", DEFAULT_BYTES_MAX)],
)
def test_a_container_with_little_memory_has_a_smaller_budget(tmp_path: Path, limit: str, expected: int) -> None:
    (tmp_path / "memory.max").write_text(limit)

    assert expected == default_bytes_max((str(tmp_path / "missing"), str(tmp_path / "memory.max")))


# Work


def test_work_begins_when_there_is_room_for_it_and_one_alone_always_begins() -> None:
    budget = MemoryBudget(100 * MIB)
    begun: list[str] = []
    assert budget.begin_work(500 * MIB, lambda: begun.append("never called"))
    assert not budget.begin_work(MIB, lambda: begun.append("first"))
    assert not budget.begin_work(MIB, lambda: begun.append("second"))
    assert budget.has_waiting

    budget.end_work(500 * MIB)

    assert ["first", "second"] == begun
    assert 2 * MIB == budget.used
    assert not budget.has_waiting


def test_work_that_leaves_the_line_does_not_begin() -> None:
    budget = MemoryBudget(100 * MIB)
    begun: list[str] = []

    def leave() -> None:
        begun.append("left")

    budget.begin_work(500 * MIB, leave)
    budget.begin_work(MIB, leave)
    budget.begin_work(MIB, lambda: begun.append("stayed"))
    budget.withdraw_work(leave)
    budget.end_work(500 * MIB)

    assert ["stayed"] == begun


def test_not_even_one_alone_begins_when_the_budget_is_used_up() -> None:
    budget = MemoryBudget(100 * MIB)
    budget.hold(100 * MIB)
    begun: list[str] = []

    assert not budget.begin_work(MIB, lambda: begun.append("begun"))
    assert 1 == budget.excess
    budget.hold(-1)

    assert ["begun"] == begun
    assert 0 == budget.excess


# Groups


def test_work_alone_begins_though_the_requests_that_wait_for_theirs_use_up_the_budget() -> None:
    line = RequestQueue(10 * SMALL)
    for number in range(10):
        line.ask(f"small {number}", SMALL)

    assert line.budget.begin_work(MIB, lambda: line.granted.append("first"))
    assert not line.budget.begin_work(MIB, lambda: line.granted.append("second"))
    assert not line.budget.excess
    line.budget.end_work(MIB)
    assert "second" == line.granted[-1]


def test_groups_have_a_half_and_what_a_start_finds_above_it_takes_nothing_from_the_others() -> None:
    budget = MemoryBudget(100 * MIB)
    assert budget.has_room_for_groups(50 * MIB)
    assert not budget.has_room_for_groups(50 * MIB + 1)

    budget.hold_groups(300 * MIB)
    assert (300 * MIB, 50 * MIB) == (budget.groups, budget.used)
    assert budget.reserve(20 * MIB, lambda: None)

    budget.hold_groups(-260 * MIB)
    assert (40 * MIB, 60 * MIB) == (budget.groups, budget.used)
    assert budget.has_room_for_groups(10 * MIB)
