"""Clients that send garbage do not fill the log with lines about it."""

import logging

import pytest

from logmark.broker import server
from logmark.broker.event_limit import EVENTS_IN_A_SECOND, EventLimit
from logmark.testing import Broker
from tests.broker.test_connection import connected, is_served


def test_events_above_the_limit_are_counted_and_told_with_the_next_one() -> None:
    now = [100.0]
    limit = EventLimit(lambda: now[0])

    assert [0] * EVENTS_IN_A_SECOND == [limit.take() for _ in range(EVENTS_IN_A_SECOND)]
    assert [None, None, None] == [limit.take() for _ in range(3)]
    now[0] = 100.999
    assert limit.take() is None
    now[0] = 101.0
    assert [4, 0] == [limit.take(), limit.take()]


def test_connections_that_send_garbage_are_logged_a_few_times_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this test it stays the same second.
    monkeypatch.setattr(server, "EventLimit", lambda now: EventLimit(lambda: 0.5))
    with Broker() as broker, caplog.at_level(logging.WARNING, "logmark"):
        for _ in range(3 * EVENTS_IN_A_SECOND):
            with connected(broker) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert b"" == connection.recv(100)
        assert is_served(broker)

    closed = [record for record in caplog.records if record.getMessage().startswith("connection closed")]
    assert EVENTS_IN_A_SECOND == len(closed)
