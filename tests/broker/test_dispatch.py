"""Every request, the usual Produce request included, enters by one function with the same checks before its handler."""

from pathlib import Path
from typing import Any

import pytest

from logmark.broker.api import fetch as fetch_api
from logmark.broker.api import produce as produce_api
from logmark.broker.connection_limit import HEALTH_KEYS
from logmark.broker.dispatch import Request
from logmark.broker.server import Broker
from logmark.errors import Malformed
from logmark.wire import frames, produce
from tests.broker.test_long_requests import Client, TurnCounter, serve
from tests.broker.test_waiting_fetches import fetch_frame
from tests.log.directory_driver import batch


def produce_frame(version: int = 9) -> bytes:
    request = produce.ProduceRequest(None, -1, 0, [("wide", [produce.PartitionData(0, memoryview(batch(b"v").data))])])
    body = produce.encode_request(version, request)
    return frames.request_frame(0, version, 7, "test", flexible=version >= 9, body=body)


def answer(broker: Broker, frame: bytes) -> Any:
    (connection,) = broker.connections
    return broker.dispatcher.answer(memoryview(bytearray(frame[4:])), connection)


def test_a_connection_above_the_limits_may_send_no_api_but_those_of_health(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.produce(("wide", [0]))
        (connection,) = broker.connections
        log = broker.logs.partition("wide", 0)
        assert log is not None
        connection.is_in_reserve = True
        for key in sorted(broker.dispatcher.apis.keys() - HEALTH_KEYS):
            frame = produce_frame() if key == produce.KEY else frames.request_frame(
                key, 0, 7, "test", flexible=False, body=bytes(9)
            )  # fmt: skip
            with pytest.raises(Malformed, match="too many"):
                answer(broker, frame)
        assert 1 == log.log_end_offset
        connection.is_in_reserve = False
        answer(broker, produce_frame())
        assert 2 == log.log_end_offset

    serve(tmp_path, check)


@pytest.mark.parametrize("version", [8, 9], ids=["by the general reader", "by the compiled reader"])
def test_a_handler_knows_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    seen: list[tuple[str, str | None, str, int]] = []

    def watch(handler: Any) -> None:
        handle = handler.handle_frame

        def handle_frame(frame: memoryview, body_at: int, request: Request, **more: Any) -> Any:
            seen.append((request.principal, request.client_id, request.api.name, request.version))
            return handle(frame, body_at, request, **more)

        monkeypatch.setattr(handler, "handle_frame", handle_frame)

    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.produce(("wide", [0]))
        watch(produce_api)
        watch(fetch_api)
        answer(broker, produce_frame(version))
        answer(broker, fetch_frame(0))

    serve(tmp_path, check)

    assert [("User:ANONYMOUS", "test", "Produce", version), ("User:ANONYMOUS", "test", "Fetch", 11)] == seen
