"""Limits hold for every client together."""

from logmark.broker.limits import ByteBudget, ConnectionLimit


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
