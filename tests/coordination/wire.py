"""A connection that speaks messages."""

import itertools
import socket
import struct
from types import ModuleType
from typing import Any

from logmark.testing import Broker
from logmark.wire import frames, messages
from tests.harness.terminals import is_readable


class Wire:
    """Requests out, answers back, in order."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._ids = itertools.count(1)

    def ask(self, api: ModuleType, version: int, **fields: Any) -> Any:
        self.send(api, version, **fields)
        return self.receive(api, version)

    def send(self, api: ModuleType, version: int, **fields: Any) -> None:
        body = messages.encode_request(api.schema, version, api.schema.Request(**fields))
        flexible = messages.is_flexible(api.schema, version)
        self._socket.sendall(
            frames.request_frame(api.KEY, version, next(self._ids), "wire", flexible=flexible, body=body)
        )

    def receive(self, api: ModuleType, version: int) -> Any:
        (size,) = struct.unpack(">i", self._take(4))
        frame = memoryview(self._take(size))
        _, at = frames.read_response_header(frame, flexible=messages.is_flexible(api.schema, version))
        return messages.decode_response(api.schema, version, frame[at:])

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data

    @property
    def has_answer(self) -> bool:
        """Something came back that was not taken yet."""
        return is_readable(self._socket.fileno())

    def close(self) -> None:
        self._socket.close()
