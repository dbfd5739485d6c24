"""Limits hold for every client together."""

import resource

import pytest

from logmark.broker.limits import ByteBudget, ConnectionLimit, read_overrides
from logmark.disk import descriptors


def test_a_request_that_does_not_fit_waits_until_bytes_are_given_back() -> None:
    budget = ByteBudget(100)
    let_in: list[str] = []
    assert budget.take(80, lambda: let_in.append("first"))

    assert not budget.take(30, lambda: let_in.append("second"))
    assert [] == let_in
    budget.give_back(80)

    assert ["second"] == let_in
    assert 30 == budget.used


def test_who_came_first_is_let_in_first_even_if_a_later_one_would_fit() -> None:
    budget = ByteBudget(100)
    let_in: list[str] = []
    budget.take(80, lambda: None)
    budget.take(90, lambda: let_in.append("large"))
    budget.take(10, lambda: let_in.append("small"))

    budget.give_back(80)

    assert ["large", "small"] == let_in


def test_a_request_larger_than_the_whole_budget_is_let_in_alone() -> None:
    assert ByteBudget(100).take(500, lambda: None)


def test_a_lost_connection_leaves_the_line() -> None:
    budget = ByteBudget(100)
    let_in: list[str] = []

    def lost() -> None:
        let_in.append("lost")

    budget.take(100, lambda: None)
    budget.take(50, lost)
    budget.leave_line(lost)
    budget.give_back(100)

    assert [] == let_in
    assert 0 == budget.used


def test_connections_are_limited_in_total_and_by_address() -> None:
    limit = ConnectionLimit(total_max=3, per_address_max=2)

    assert [True, True, False, True, False] == [limit.enter(host) for host in "aaabb"]
    limit.leave("a")
    assert limit.enter("b")


def test_single_addresses_may_have_limits_of_their_own() -> None:
    limit = ConnectionLimit(total_max=9, per_address_max=1, overrides=read_overrides("10.0.0.7:2, [::1]:0"))

    assert [True, True, False] == [limit.enter("10.0.0.7") for _ in range(3)]
    assert [True, False] == [limit.enter("10.0.0.8") for _ in range(2)]
    assert not limit.enter("::1")


def test_a_host_by_name_is_limited_by_its_addresses() -> None:
    assert 3 == read_overrides("localhost:3")["127.0.0.1"]


@pytest.mark.parametrize("limit", [48, 64, 100, 256, 1024, 4096, 20_000, 1 << 20, resource.RLIM_INFINITY])
def test_logs_and_connections_share_what_the_process_does_not_need(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(descriptors, "_count_open", lambda: 16)

    files, connections = descriptors.files_max(), descriptors.connections_max()

    assert files >= 8 and connections >= 4
    total = descriptors.UNLIMITED if limit == resource.RLIM_INFINITY else limit
    assert files + connections + 16 <= total
    if total >= 64:
        assert files + connections + descriptors.OWN <= total
        assert abs(files - connections) <= 1 and files >= 14


def test_a_process_that_has_much_open_takes_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(descriptors, "_count_open", lambda: 300)

    assert 1024 - 300 - descriptors.GROWTH - descriptors.files_max() == descriptors.connections_max()
