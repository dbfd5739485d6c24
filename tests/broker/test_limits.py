"""The limit on connections holds for every client together."""

from logmark.broker.limits import ConnectionLimit


def test_connections_are_limited_in_total_and_by_address() -> None:
    limit = ConnectionLimit(total_max=3, per_address_max=2)

    assert [True, True, False, True, False] == [limit.enter(host) for host in "aaabb"]
    limit.leave("a")
    assert limit.enter("b")
