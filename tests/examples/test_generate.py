"""The command that writes clicks: at once, at a rate, and what it says when it cannot."""

import time
from collections.abc import Iterator

import pytest

from examples.clicks import generate, topic
from examples.clicks.generator import DAY_MS, Click, endless
from examples.clicks.world import TOPIC
from logmark.testing import Broker


def test_a_month_of_clicks_is_written_at_once(logmark_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    servers = logmark_broker.bootstrap_servers

    assert 0 == generate.main(["--clicks", "300", "--seed", "3", "--bootstrap-servers", servers])
    assert 0 == generate.main(["--clicks", "200", "--seed", "4", "--days", "1", "--bootstrap-servers", servers])

    found = list(topic.read(servers, TOPIC))
    now_ms = time.time_ns() // 1_000_000
    assert 500 == len(found)
    assert 20 * DAY_MS < now_ms - min(record.timestamp_ms for record in found) < 31 * DAY_MS
    assert f"300 clicks are in the topic clicks at {servers}." in capsys.readouterr().err


def test_at_a_rate_no_click_is_written_before_its_time(logmark_broker: Broker) -> None:
    servers = logmark_broker.bootstrap_servers
    began_ms = time.time_ns() // 1_000_000

    assert 0 == generate.main(["--clicks", "100", "--rate", "400", "--bootstrap-servers", servers])

    ended_ms = time.time_ns() // 1_000_000
    times_ms = [record.timestamp_ms for record in topic.read(servers, TOPIC)]
    assert 100 == len(times_ms)
    assert began_ms <= min(times_ms) and max(times_ms) <= ended_ms
    assert ended_ms - began_ms >= 240


def test_a_stream_that_is_stopped_loses_nothing_that_was_made(logmark_broker: Broker) -> None:
    servers = logmark_broker.bootstrap_servers
    topic.create(servers)

    def stopped() -> Iterator[Click]:
        for number, click in enumerate(endless(1000.0, seed=1, start_ms=0)):
            if number == 50:
                raise KeyboardInterrupt
            yield click

    assert 50 == topic.publish(servers, generate._until_stopped(stopped()))
    assert 50 == len(list(topic.read(servers, TOPIC)))


def test_a_broker_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == generate.main(["--clicks", "5", "--bootstrap-servers", "127.0.0.1:1"])
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--clicks", "0"], ["--rate", "many"]])
def test_a_number_that_is_none_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generate.main(words)
    assert "is not a whole number from 1 on" in capsys.readouterr().err
