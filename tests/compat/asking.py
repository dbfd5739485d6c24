"""One connection on which a test asks any API in any version and gets the answer as plain values."""

import re
import socket
import struct
from types import ModuleType
from typing import Any

from logmark.wire import fetch, frames, messages
from logmark.wire.messages import Message
from logmark.wire.schema import api_versions
from tests.harness.brokers import BrokerUnderTest

# What may differ between two brokers that mean the same: how long to wait, who they are, and their words.
_OWN = {"throttle_time_ms", "error_message", "topic_id", "cluster_id", "port", "producer_id"}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Connection:
    """Sends requests through our own codec, which tests/oracle checks against another."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0

    def ask(self, schema: ModuleType, version: int, request: Message) -> Any:
        """The decoded answer to one request."""
        flexible = messages.is_flexible(schema, version)
        body = messages.encode_request(schema, version, request)
        return messages.decode_response(schema, version, self._exchange(schema.KEY, version, body, flexible=flexible))

    def fetch(self, version: int, request: fetch.FetchRequest) -> fetch.FetchResponse:
        """The answer to one fetch."""
        flexible = version >= fetch.FLEXIBLE_FROM
        body = fetch.encode_request(version, request)
        return fetch.decode_response(version, self._exchange(fetch.KEY, version, body, flexible=flexible))

    def _exchange(self, key: int, version: int, body: bytes, *, flexible: bool) -> memoryview:
        self._correlation_id += 1
        self._socket.sendall(
            frames.request_frame(key, version, self._correlation_id, "asking", flexible=flexible, body=body)
        )
        (size,) = struct.unpack(">i", self._stream.read(4))
        frame = memoryview(self._stream.read(size))
        correlation_id, at = frames.read_response_header(frame, flexible=flexible and key != api_versions.KEY)
        assert self._correlation_id == correlation_id
        return frame[at:]

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def plain(value: Any) -> Any:
    """An answer without what is each broker's own; lists have no order that a client could rely on."""
    if isinstance(value, Message):
        return {field.name: plain(getattr(value, field.name)) for field in value.FIELDS if field.name not in _OWN}
    if isinstance(value, list):
        return sorted((plain(each) for each in value), key=repr)
    return _UUID.sub("UUID", value) if isinstance(value, str) else value
