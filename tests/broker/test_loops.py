"""The broker runs on uvloop where it is installed and on asyncio's own loop where it is not."""

import asyncio
import sys

import pytest
from confluent_kafka.admin import AdminClient

from logmark.broker.loops import new_event_loop
from logmark.testing import Broker


def test_uvloop_is_taken_where_it_is_installed() -> None:
    loop = new_event_loop()
    try:
        assert "uvloop" == type(loop).__module__.partition(".")[0]
    finally:
        loop.close()


def test_without_uvloop_the_broker_serves_on_asyncios_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)

    with Broker() as broker:
        broker.create_topic("t")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert {"t"} == set(admin.list_topics(timeout=60).topics)
