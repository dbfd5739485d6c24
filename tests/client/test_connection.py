import socket
import struct

import pytest

from logmark.client.client import Client
from logmark.client.connection import Address, Connection, as_addresses
from logmark.client.errors import BadProperties, BrokerUnreachable, RefusedByBroker
from logmark.client.properties import Security
from logmark.wire.schema import api_versions, describe_cluster, metadata
from tests.client.scripted_server import Reply, framed, scripted, versions
from tests.harness.node import unserved_address

METADATA = (metadata.KEY, 0, 1)


def connect(address: str, **options: float) -> Connection:
    host, port = address.split(":")
    return Connection(Address(host, int(port)), security=Security(), timeout_s=options.get("timeout_s", 60.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka:9093", [("kafka", 9093)]),
        ("kafka", [("kafka", 9092)]),
        ("a:1, b:2 ,", [("a", 1), ("b", 2)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_addresses_are_read_as_kafka_writes_them(text: str, expected: list[tuple[str, int]]) -> None:
    assert expected == as_addresses(text)


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:70000", "a:b", ":9092"])
def test_an_invalid_address_is_refused_with_an_error(text: str) -> None:
    with pytest.raises(BadProperties, match="write HOST:PORT"):
        as_addresses(text)


def test_the_highest_version_of_both_sides_is_spoken() -> None:
    with scripted([versions((metadata.KEY, 2, 7), (describe_cluster.KEY, 90, 99))]) as address:
        connection = connect(address)

        assert 7 == connection.version_of(metadata.KEY, metadata.VERSIONS)
        assert 5 == connection.version_of(metadata.KEY, metadata.VERSIONS, at_most=5)
        with pytest.raises(RefusedByBroker, match="does not offer API 60"):
            connection.version_of(describe_cluster.KEY, describe_cluster.VERSIONS)
        with pytest.raises(RefusedByBroker, match="does not offer API 9"):
            connection.version_of(9, range(1, 9))


def test_a_broker_that_does_not_know_our_apiversions_is_asked_again_in_its_own() -> None:
    asked: list[int] = []

    def unsupported(request: bytes) -> bytes | None:
        asked.append(struct.unpack_from(">h", request, 2)[0])
        return versions((api_versions.KEY, 0, 2), version=0, error=35)(request)

    def older(request: bytes) -> bytes | None:
        asked.append(struct.unpack_from(">h", request, 2)[0])
        return versions(METADATA, version=2)(request)

    with scripted([unsupported, older]) as address:
        connection = connect(address)

    assert [4, 2] == asked
    assert 1 == connection.version_of(metadata.KEY, metadata.VERSIONS)


def no_kafka(answer: bytes) -> Reply:
    return lambda _: answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS; set security.protocol"),
        (struct.pack(">i", 2**31 - 1), "announced an answer of 2147483647 bytes"),
        (struct.pack(">i", -5), "announced an answer of -5 bytes"),
        (struct.pack(">i", 0), "announced an answer of 0 bytes"),
        (struct.pack(">ii", 14, 1) + b"\x00\x00" + b"\x7f" * 8, "does not speak Kafka's protocol"),
        (struct.pack(">ii", 4, 77), "answered a request that was not asked"),
    ],
)
def test_what_is_no_broker_is_recognised_and_named(answer: bytes, message: str) -> None:
    with scripted([no_kafka(answer)]) as address, pytest.raises(BrokerUnreachable, match=message):
        connect(address)


def test_a_broker_that_closes_the_connection_is_named() -> None:
    with scripted([lambda _: None]) as address, pytest.raises(BrokerUnreachable, match=f"{address} closed the conn"):
        connect(address)


def test_a_broker_that_never_answers_costs_no_more_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(BrokerUnreachable, match="did not answer in time"):
            Connection(address, security=Security(), timeout_s=0.2)


def test_an_unreachable_broker_is_an_error_with_the_address() -> None:
    with (
        unserved_address() as address,
        pytest.raises(BrokerUnreachable, match=rf"{address} refused the connection .* check the address"),
    ):
        Client(address, patience_s=0).metadata()


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(BrokerUnreachable, match=r"broker\.invalid:9092 cannot be found"):
        Client("broker.invalid:9092", patience_s=0).metadata()


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with (
        unserved_address() as dead,
        scripted([versions(METADATA), lambda request: framed(request, _metadata())]) as address,
    ):
        found = Client(f"{dead},{address}", patience_s=0).metadata([])

    assert [7] == list(found.brokers)


def test_a_request_is_sent_again_when_the_connection_breaks() -> None:
    with scripted(
        [versions(METADATA), lambda _: None], [versions(METADATA), lambda request: framed(request, _metadata())]
    ) as address:
        found = Client(address).metadata([])

    assert [7] == list(found.brokers)


def test_a_request_that_may_have_been_done_is_not_sent_again() -> None:
    here = [versions((metadata.KEY, 0, 1), (19, 2, 4))]
    with scripted([*here, lambda request: framed(request, _metadata()), lambda _: None]) as address:
        client = Client(address, patience_s=0)
        client._brokers, client._controller = {}, -1
        with pytest.raises(BrokerUnreachable, match="Whether it did what was asked is not known"):
            client.create_topic("orders")


def test_an_address_that_brokers_give_and_nobody_answers_is_explained() -> None:
    with scripted([versions(METADATA, (16, 0, 2)), lambda request: framed(request, _metadata(port=1))]) as address:
        client = Client(address, patience_s=0)
        with pytest.raises(BrokerUnreachable, match=r"sends its clients to 127.0.0.1:1: .* advertised listeners"):
            client.list_groups()


def _metadata(port: int | None = None) -> bytes:
    """Version 1 of a Metadata answer: broker 7, nothing else."""
    host = b"127.0.0.1"
    broker = struct.pack(">ih", 7, len(host)) + host + struct.pack(">ih", port or 1, -1)
    return struct.pack(">i", 1) + broker + struct.pack(">i", 7 if port else -1) + struct.pack(">i", 0)
