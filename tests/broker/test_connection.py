"""Connections: answers in order, waits that hold up nobody, hostile bytes that cost one connection."""

import contextlib
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.testing import Broker
from logmark.wire import batches, fetch, frames, messages, produce
from logmark.wire.schema import api_versions, metadata


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"client.memory.max.bytes": "200000000"}) as broker:
        broker.create_topic("t")
        yield broker


@contextlib.contextmanager
def connected(broker: Broker) -> Iterator[socket.socket]:
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The next answer's correlation id and the rest of it."""
    size = struct.unpack(">i", exactly(connection, 4))[0]
    data = exactly(connection, size)
    return struct.unpack(">i", data[:4])[0], data[4:]


def exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker closed the connection"
        data += part
    return bytes(data)


def asks_metadata(correlation_id: int) -> bytes:
    body = messages.encode_request(metadata, 1, metadata.Request(topics=[]))
    return frames.request_frame(3, 1, correlation_id, "test", flexible=False, body=body)


def asks_fetch(correlation_id: int, *, offset: int, max_wait_ms: int) -> bytes:
    request = fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[("t", [fetch.FetchPartition(0, -1, offset, -1, -1, 1 << 20)])],
        forgotten=[],
        rack_id="",
    )
    return frames.request_frame(1, 11, correlation_id, "test", flexible=False, body=fetch.encode_request(11, request))


def asks_produce(correlation_id: int, value: bytes) -> bytes:
    batch = batches.build([(None, value)], timestamp_ms=1_700_000_000_000)
    request = produce.ProduceRequest(None, -1, 1000, [("t", [produce.PartitionData(0, memoryview(batch))])])
    body = produce.encode_request(7, request)
    return frames.request_frame(0, 7, correlation_id, "test", flexible=False, body=body)


def is_served(broker: Broker) -> bool:
    with connected(broker) as other:
        other.sendall(asks_metadata(1))
        return answer(other)[0] == 1


def test_answers_come_in_the_order_of_their_requests_though_a_later_one_is_ready_first(broker: Broker) -> None:
    with connected(broker) as connection, connected(broker) as producer:
        producer.sendall(asks_produce(1, b"first"))
        _, told = answer(producer)
        end = struct.unpack_from(">q", told, 4 + 2 + 1 + 4 + 4 + 2)[0] + 1
        # Nobody wakes the fetch: a record that overtook it would answer it at once and leave nothing to put in order.
        connection.sendall(asks_fetch(1, offset=end, max_wait_ms=200) + asks_metadata(2))

        assert [1, 2] == [answer(connection)[0], answer(connection)[0]]


def test_a_waiting_fetch_holds_up_no_other_connection(broker: Broker) -> None:
    with connected(broker) as waiting:
        waiting.sendall(asks_fetch(1, offset=0, max_wait_ms=0))
        visible_end = fetch.decode_response(11, memoryview(answer(waiting)[1])).topics[0][1][0].high_watermark
        waiting.sendall(asks_fetch(2, offset=visible_end, max_wait_ms=60_000))

        assert is_served(broker)


def test_many_requests_in_one_segment_are_all_answered(broker: Broker) -> None:
    with connected(broker) as connection:
        connection.sendall(b"".join(asks_metadata(number) for number in range(500)))

        assert list(range(500)) == [answer(connection)[0] for _ in range(500)]


def test_a_request_that_comes_byte_by_byte_is_answered(broker: Broker) -> None:
    with connected(broker) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in asks_metadata(7):
            connection.sendall(bytes([byte]))

        assert 7 == answer(connection)[0]


def test_a_large_request_is_received_whole(broker: Broker) -> None:
    with connected(broker) as connection:
        connection.sendall(asks_produce(1, b"x" * 1_000_000))

        _, told = answer(connection)
        assert 0 == struct.unpack_from(">h", told, 4 + 2 + 1 + 4 + 4)[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">i", 2**31 - 1) + b"two gigabytes will not follow",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">ihhih", 14, 999, 0, 1, -1) + bytes(4),
        struct.pack(">ihhih", 14, 3, 99, 1, -1) + bytes(4),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
        struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    ],
    ids=["http", "2 GiB", "negative", "empty", "unknown key", "unknown version", "huge array", "long name", "tls"],
)
def test_hostile_bytes_cost_one_connection_and_never_the_broker(broker: Broker, garbage: bytes) -> None:
    with connected(broker) as connection:
        connection.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            assert b"" == connection.recv(1), "the broker closes what it cannot read"

    assert is_served(broker)


def test_claims_of_large_requests_take_no_memory_and_hold_up_nobody_for_ever(broker: Broker) -> None:
    before = rss_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            connection = stack.enter_context(connected(broker))
            connection.sendall(struct.pack(">i", 100 << 20) + b"and then nothing")

        assert is_served(broker)
        assert rss_bytes() - before < 50 << 20, "memory is taken for what has come, not for what is claimed"


def rss_bytes() -> int:
    status = Path("/proc/self/statm")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.read_text().split()[1]) * resource.getpagesize()


def test_an_unknown_version_of_api_versions_is_answered_with_version_0_and_the_list(broker: Broker) -> None:
    with connected(broker) as connection:
        connection.sendall(frames.request_frame(18, 99, 5, "future", flexible=True, body=b""))

        correlation_id, body = answer(connection)

    told = messages.decode_response(api_versions, 0, body)
    assert (5, 35) == (correlation_id, told.error_code)
    assert 18 in [api.api_key for api in told.api_keys]


def test_a_client_that_names_no_sane_software_is_refused(broker: Broker) -> None:
    request = api_versions.Request(client_software_name="-bad-", client_software_version="1")
    with connected(broker) as connection:
        body = messages.encode_request(api_versions, 3, request)
        connection.sendall(frames.request_frame(18, 3, 5, "x", flexible=True, body=body))

        _, told = answer(connection)

    assert 42 == messages.decode_response(api_versions, 3, told).error_code


@pytest.mark.parametrize("version", [7, 9])  # the general way, and that of the usual request
def test_acks_0_is_not_answered_and_an_error_closes_the_connection(broker: Broker, version: int) -> None:
    batch = batches.build([(None, b"x")], timestamp_ms=1_700_000_000_000)

    def silent(topic: str) -> bytes:
        request = produce.ProduceRequest(None, 0, 1000, [(topic, [produce.PartitionData(0, memoryview(batch))])])
        body = produce.encode_request(version, request)
        return frames.request_frame(0, version, 9, "test", flexible=version >= 9, body=body)

    with connected(broker) as connection:
        connection.sendall(silent("t") + asks_metadata(10))
        assert 10 == answer(connection)[0]

        connection.sendall(silent("no-such-topic"))
        with contextlib.suppress(ConnectionResetError):
            assert b"" == connection.recv(1)


def test_what_was_answered_is_sent_before_a_broken_request_closes_the_connection(broker: Broker) -> None:
    with connected(broker) as connection:
        connection.sendall(asks_metadata(11) + struct.pack(">i", -1))

        assert 11 == answer(connection)[0]
        with contextlib.suppress(ConnectionResetError):
            assert b"" == connection.recv(1)


def test_connections_above_the_limit_are_closed_and_the_others_go_on() -> None:
    with Broker({"max.connections": "2"}) as broker, connected(broker) as first, connected(broker) as second:
        for connection in (first, second):
            connection.sendall(asks_metadata(1))
            assert 1 == answer(connection)[0]
        with connected(broker) as third, contextlib.suppress(ConnectionResetError):
            third.sendall(asks_metadata(1))
            assert b"" == third.recv(1)
        first.sendall(asks_metadata(2))
        assert 2 == answer(first)[0]


def test_a_client_that_does_not_read_its_answers_stops_being_read(broker: Broker) -> None:
    requests = asks_metadata(1) * 1000
    with connected(broker) as slow:
        slow.settimeout(0.2)
        sent = 0
        without_room = 0
        # The broker has had its turn when it has answered somebody else: a client that then finds no room is not read.
        while without_room < 3:
            try:
                sent += slow.send(requests[sent % len(requests) :])
                without_room = 0
            except TimeoutError:
                without_room += 1
            assert sent < 64 << 20, "two million requests were taken, and not one answer was read"
            assert is_served(broker)
