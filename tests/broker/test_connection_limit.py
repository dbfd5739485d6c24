"""The limit on connections holds for every client together."""

import resource

import pytest

from logmark.broker.connection_limit import HEALTH_KEYS, RESERVE_MAX, ConnectionLimit, HealthReserve, read_overrides
from logmark.broker.dispatch import table
from logmark.disk import descriptors


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
        assert abs(files - connections) <= 1 and files >= 12


def test_a_process_that_has_much_open_takes_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(descriptors, "_count_open", lambda: 300)

    assert 1024 - 300 - descriptors.GROWTH - descriptors.files_max() == descriptors.connections_max()


class FakeConnection:
    """A connection that notes whether it was closed."""

    is_closed = False

    def refuse(self, reason: str) -> None:
        self.is_closed = True


def test_a_connection_above_the_limits_closes_the_oldest_of_them_so_that_nobody_can_keep_them_all() -> None:
    reserve = HealthReserve()
    connections = [FakeConnection() for _ in range(RESERVE_MAX + 2)]
    for each in connections:
        reserve.enter(each)

    assert [True] * 2 + [False] * RESERVE_MAX == [each.is_closed for each in connections]

    reserve.leave(connections[-1])
    reserve.enter(FakeConnection())
    assert [True] * 2 + [False] * RESERVE_MAX == [each.is_closed for each in connections]


def test_a_connection_above_the_limits_may_ask_for_versions_and_log_directories_and_nothing_else() -> None:
    apis = table()

    assert {"ApiVersions", "DescribeLogDirs"} == {apis[key].name for key in HEALTH_KEYS}
