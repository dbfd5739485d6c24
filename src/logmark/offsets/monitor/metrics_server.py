"""Metrics over HTTP: what was learned last is served, and nobody who asks makes us ask the cluster."""

import gzip
import io
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from logmark.errors import UserError
from logmark.offsets.errors import AddressUnusable
from logmark.offsets.monitor.prometheus_text import CONTENT_TYPE

# More readers at once are asked to come again, so that their number bounds our memory.
_READERS_MAX = 8
_READER_TIMEOUT_S = 30
_PAGE = b"logmark monitor\n\n/metrics   for Prometheus\n/healthz   whether the monitor works\n"


class MetricsServer:
    """Serves /metrics and /healthz on an address, each request in a thread of its own."""

    def __init__(
        self, host: str, port: int, *, metrics: Callable[[], Iterable[str]], health: Callable[[], tuple[bool, str]]
    ) -> None:
        """Start to listen; `metrics` returns pieces of text, `health` whether all is well and a line about it."""
        try:
            self._server = _Server((host, port), metrics, health)
        except OSError as error:
            raise AddressUnusable(
                f"Nothing can listen on {host}:{port}: {error.strerror or error}", "choose another address"
            ) from None
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "logmark"
    sys_version = ""
    timeout = _READER_TIMEOUT_S
    server: "_Server"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            is_well, line = self.server.health()
            self._answer(200 if is_well else 503, line.encode() + b"\n")
        elif path == "/":
            self._answer(200, _PAGE)
        else:
            self._answer(404, b"There is /metrics and /healthz.\n")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        if not self.server.readers.acquire(blocking=False):
            self._answer(503, b"Too many readers at once; come again.\n")
            return
        try:
            self._stream(self.server.metrics())
        finally:
            self.server.readers.release()

    def _stream(self, pieces: Iterable[str]) -> None:
        is_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
        is_chunked = self.request_version != "HTTP/1.0"
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        if is_gzip:
            self.send_header("Content-Encoding", "gzip")
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        data = (piece.encode() for piece in pieces)
        for piece in _zipped(data) if is_gzip else data:
            if not piece:
                continue  # An empty chunk would end the answer.
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes come every few seconds."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Callable[[], Iterable[str]],
        health: Callable[[], tuple[bool, str]],
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.metrics = metrics
        self.health = health
        self.readers = threading.BoundedSemaphore(_READERS_MAX)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a reader that disconnected; print any other error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _zipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        for piece in pieces:
            file.write(piece)
            if out.tell() > 1 << 16:
                yield out.getvalue()
                out.seek(0)
                out.truncate()
    yield out.getvalue()


def parse_listen(text: str) -> tuple[str, int] | None:
    """HOST:PORT, :PORT for all addresses, [HOST]:PORT for IPv6; `none` for nobody."""
    if text.lower() == "none":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(
            f"{text!r} is no address to listen on: write HOST:PORT such as 127.0.0.1:9308, or none.", exit_code=2
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - whoever writes :PORT asks for all addresses
