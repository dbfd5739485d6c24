"""A server that answers each request as a test says, right or wrong."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from logmark.wire.messages import encode_response
from logmark.wire.schema import api_versions

Reply = Callable[[bytes], bytes | None]


def versions(*keys: tuple[int, int, int], version: int = 4, error: int = 0) -> Reply:
    """Answers ApiVersions with these keys and version ranges."""
    response = api_versions.Response(
        error_code=error,
        api_keys=[api_versions.ResponseApiVersion(api_key=k, min_version=low, max_version=top) for k, low, top in keys],
    )
    return lambda request: framed(request, encode_response(api_versions, version, response))


def framed(request: bytes, body: bytes, *, correlation_id: int | None = None) -> bytes:
    """A response with the request's correlation id, or another."""
    (asked,) = struct.unpack_from(">i", request, 4)
    return struct.pack(">ii", len(body) + 4, asked if correlation_id is None else correlation_id) + body


@contextmanager
def scripted(*connections: Sequence[Reply]) -> Iterator[str]:
    """Serves each connection by its replies in turn, one for each request; None closes it. Yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def serve() -> None:
        for replies in connections:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            opened.append(connection)
            _answer(connection, replies)
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for connection in (listener, *opened):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _answer(connection: socket.socket, replies: Sequence[Reply]) -> None:
    stream = connection.makefile("rb")
    with stream, suppress(ConnectionError):
        _answer_all(connection, stream, replies)


def _answer_all(connection: socket.socket, stream: BinaryIO, replies: Sequence[Reply]) -> None:
    for reply in replies:
        head = stream.read(4)
        if len(head) < 4:
            return
        answer = reply(stream.read(struct.unpack(">i", head)[0]))
        if answer is None:
            return
        connection.sendall(answer)
    stream.read(1)  # Until the client is gone.
