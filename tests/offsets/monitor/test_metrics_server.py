"""Metrics over HTTP, as Prometheus asks for them."""

import gzip
import http.client
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from logmark.errors import UserError
from logmark.offsets.monitor.metrics_server import MetricsServer, parse_listen
from tests.harness.node import wait_until


class FakeMetricsSource:
    """What is served in these tests."""

    pieces: Any = ("a 1\n", "b 2\n")
    health = (True, "ok")


@pytest.fixture
def source() -> FakeMetricsSource:
    return FakeMetricsSource()


@pytest.fixture
def server(source: FakeMetricsSource) -> Iterator[MetricsServer]:
    server = MetricsServer(
        "127.0.0.1", 0,
        metrics=lambda: source.pieces() if callable(source.pieces) else source.pieces,
        health=lambda: source.health,
    )  # fmt: skip
    yield server
    server.close()


def ask(server: MetricsServer, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), body


def test_metrics_are_served_as_text_of_version_0_0_4(server: MetricsServer) -> None:
    status, headers, body = ask(server, "/metrics")

    assert (200, b"a 1\nb 2\n") == (status, body)
    assert "text/plain; version=0.0.4; charset=utf-8" == headers["Content-Type"]


def test_who_can_unpack_gets_less_to_carry(server: MetricsServer, source: FakeMetricsSource) -> None:
    source.pieces = ["metric 1\n" * 10_000] * 20

    status, headers, body = ask(server, "/metrics", **{"Accept-Encoding": "gzip"})

    assert (200, "gzip") == (status, headers["Content-Encoding"])
    assert "".join(source.pieces).encode() == gzip.decompress(body)
    assert len(body) < 20_000


def test_an_old_client_gets_everything_until_the_end(server: MetricsServer) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        data = b""
        while part := connection.recv(4096):
            data += part

    assert data.endswith(b"\r\n\r\na 1\nb 2\n")


def test_a_head_has_no_body(server: MetricsServer) -> None:
    assert (200, b"") == ask(server, "/metrics", method="HEAD")[::2]


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/metrics?x=1", 200), ("/nothing", 404)])
def test_other_paths_say_what_there_is(server: MetricsServer, path: str, status: int) -> None:
    assert status == ask(server, path)[0]


def test_health_is_200_or_503(server: MetricsServer, source: FakeMetricsSource) -> None:
    assert (200, b"ok\n") == ask(server, "/healthz")[::2]
    source.health = (False, "stuck")
    assert (503, b"stuck\n") == ask(server, "/healthz")[::2]


def test_too_many_readers_at_once_are_sent_away(server: MetricsServer, source: FakeMetricsSource) -> None:
    held, started = threading.Event(), threading.Semaphore(0)

    def slow() -> Iterator[str]:
        started.release()
        held.wait(60)
        yield "a 1\n"

    source.pieces = slow
    readers = [threading.Thread(target=ask, args=(server, "/metrics")) for _ in range(8)]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert started.acquire(timeout=60)

    assert 503 == ask(server, "/metrics")[0]
    assert 200 == ask(server, "/healthz")[0]
    held.set()
    for reader in readers:
        reader.join(60)
    wait_until(lambda: 200 == ask(server, "/metrics")[0], "a reader that was answered has made room")


def test_an_address_that_is_taken_is_an_error(server: MetricsServer) -> None:
    with pytest.raises(UserError, match=rf"Nothing can listen on 127.0.0.1:{server.port}: Address already in use;"):
        MetricsServer("127.0.0.1", server.port, metrics=lambda: [], health=lambda: (True, ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9308", ("127.0.0.1", 9308)),
        (":9308", ("0.0.0.0", 9308)),
        ("[::1]:0", ("::1", 0)),
        ("none", None),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    assert expected == parse_listen(text)


@pytest.mark.parametrize("text", ["9308", "host:", "host:99999", "host:http", ""])
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="is no address to listen on"):
        parse_listen(text)
