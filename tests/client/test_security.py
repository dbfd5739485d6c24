"""TLS and SASL as Apache Kafka speaks them; and a plain proxy with TLS before our own broker."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.client.client import Client
from logmark.client.errors import AuthenticationFailed, BrokerUnreachable
from logmark.client.properties import Security
from logmark.names import TopicPartition
from tests.harness import node
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import turn_clock
from tests.harness.gateway import call_tool
from tests.harness.tools import SERVER, STORAGE, java_command

# One worker has them all: they share a node of their own.
pytestmark = pytest.mark.xdist_group("secure")

CERTIFICATES = Path(__file__).with_name("certificates")
AUTHORITY = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(CERTIFICATES / "broker.pem")}
SCRAM_PASSWORD = "hush"


class SecureNode:
    """Apache Kafka with a listener for each way to be secure."""

    def __init__(self, plain: str, sasl: str, tls: str) -> None:
        self.bootstrap_servers = plain
        self.sasl = sasl
        self.tls = tls


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    folder = tmp_path_factory.mktemp("secure")
    with node.held_ports(4) as held:
        yield from _serve_securely(folder, held)


def _serve_securely(folder: Path, held: list[socket.socket]) -> Iterator[SecureNode]:
    plain, controller, sasl, tls = node.ports_of(held)
    listeners = {"PLAINTEXT": plain, "SASL_PLAINTEXT": sasl, "SSL": tls}
    _write_settings(folder, listeners, controller)
    properties = str(folder / "server.properties")
    users = [f"--add-scram=SCRAM-SHA-{size}=[name=bob,password={SCRAM_PASSWORD}]" for size in (256, 512)]
    call_tool(STORAGE, "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", properties, *users).check()
    # The guard ends the node when this process ends, however it ends.
    command = [sys.executable, str(Path(node.__file__).with_name("guard.py")), str(os.getpid())]
    started = subprocess.Popen(
        [*command, *java_command(SERVER, [properties], jvm=node.JVM)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        found = SecureNode(f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}")
        with Client(found.bootstrap_servers, timeout_s=120, patience_s=120) as client:
            client.metadata()
        yield found
    finally:
        started.terminate()
        started.wait(60)


def _write_settings(folder: Path, listeners: dict[str, int], controller: int) -> None:
    addresses = [f"{name}://127.0.0.1:{port}" for name, port in listeners.items()]
    store = folder / "broker.pem"
    store.write_text((CERTIFICATES / "key.pem").read_text() + (CERTIFICATES / "broker.pem").read_text())
    login = "org.apache.kafka.common.security"
    settings = {
        **node.SETTINGS,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(addresses),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT," + ",".join(f"{name}:{name}" for name in listeners),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{login}.plain.PlainLoginModule required user_alice="s3";'
        ),
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def sasl(mechanism: str, username: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": username,
        "sasl.password": password,
    }


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("mechanism", "username", "password"),
    [
        ("PLAIN", "alice", "s3"),
        ("SCRAM-SHA-256", "bob", SCRAM_PASSWORD),
        ("SCRAM-SHA-512", "bob", SCRAM_PASSWORD),
    ],
)
def test_a_login_is_accepted(secure: SecureNode, mechanism: str, username: str, password: str) -> None:
    with Client(secure.sasl, config=sasl(mechanism, username, password)) as client:
        assert {1: secure.sasl} == {number: str(at) for number, at in client.metadata().brokers.items()}


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_with_the_name(secure: SecureNode, mechanism: str) -> None:
    with (
        pytest.raises(AuthenticationFailed, match="refused the login of bob"),
        Client(secure.sasl, config=sasl(mechanism, "bob", "wrong")) as client,
    ):
        client.metadata()


@pytest.mark.kafka
def test_a_listener_that_wants_a_login_is_recognised(secure: SecureNode, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_clock(monkeypatch)  # it asks again until the call's time is up
    with (
        pytest.raises(BrokerUnreachable, match="may want TLS or a login"),
        Client(secure.sasl, patience_s=0) as client,
    ):
        client.metadata()


@pytest.mark.kafka
def test_tls_is_spoken_with_a_trusted_certificate(secure: SecureNode) -> None:
    with Client(secure.tls, config={"security.protocol": "SSL", **AUTHORITY}) as client:
        assert {1: secure.tls} == {node: str(address) for node, address in client.metadata([]).brokers.items()}


@pytest.mark.kafka
def test_a_pkcs12_truststore_is_trusted_by_the_source_of_spark(secure: SecureNode, tmp_path: Path) -> None:
    from logmark.spark.source.options import parse_source_options
    from logmark.spark.source.range_reader import read_range
    from logmark.spark.source.ranges import Range
    from tests.client.test_key_stores import PASSWORD, by_keytool

    broker = BrokerUnderTest("kafka", secure.bootstrap_servers)
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["a", "b"])
    java = {"ssl.truststore.location": str(by_keytool(tmp_path)), "ssl.truststore.password": PASSWORD}
    librdkafka = {"ssl.ca.location": str(CERTIFICATES / "broker.pem")}
    for server, given in (
        (secure.tls, {"security.protocol": "SSL", "ssl.truststore.type": "PKCS12", **java}),
        (secure.tls, {"security.protocol": "ssl", **librdkafka}),
        (secure.sasl, sasl("SCRAM-SHA-512", "bob", SCRAM_PASSWORD)),
        (secure.sasl, sasl("PLAIN", "alice", "s3")),
    ):
        named = {f"kafka.{name}": value for name, value in ({"bootstrap.servers": server} | given).items()}
        options = parse_source_options({"subscribe": topic, **named}, is_stream=False)
        read = list(read_range(options, Range(TopicPartition(topic, 0), 0, 2)))
        assert [b"a", b"b"] == [value for batch in read for value in batch.column("value").to_pylist()]
    broker.close()


@pytest.mark.kafka
def test_plain_text_on_a_tls_listener_is_recognised(secure: SecureNode) -> None:
    with pytest.raises(BrokerUnreachable, match=r"TLS"), Client(secure.tls, patience_s=0) as client:
        client.metadata()


@pytest.fixture
def proxy(our_broker: BrokerUnderTest) -> Iterator[str]:
    """TLS before our broker: what comes in is decrypted and handed on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "broker.pem", CERTIFICATES / "key.pem")
    host, port = our_broker.bootstrap_servers.split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, context, (host, int(port))), daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_hand_on, args=(plain, context, behind), daemon=True).start()


def _hand_on(plain: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    try:
        with context.wrap_socket(plain, server_side=True) as client, socket.create_connection(behind) as broker:
            while request := _frame(client):
                broker.sendall(request)
                client.sendall(_frame(broker))
    except OSError:
        return


def _frame(connection: socket.socket) -> bytes:
    with connection.makefile("rb", buffering=0) as stream:
        head = stream.read(4) or b""
        size = int.from_bytes(head, "big")
        body = b""
        while len(body) < size:
            body += stream.read(size - len(body)) or b""
        return head + body


def test_tls_before_our_broker_works_with_any_of_the_names_for_an_authority(proxy: str) -> None:
    text = (CERTIFICATES / "broker.pem").read_text()
    for trust in (AUTHORITY, {"ssl.ca.location": AUTHORITY["ssl.truststore.location"]}, {"ssl.ca.pem": text}):
        with Client(proxy, config={"security.protocol": "SSL", **trust}) as client:
            assert client.metadata().cluster_id


def test_a_certificate_that_nobody_vouches_for_is_refused(proxy: str) -> None:
    with (
        pytest.raises(AuthenticationFailed, match=r"is not trusted: self.signed certificate.*ssl.ca.location"),
        Client(proxy, config={"security.protocol": "SSL"}) as client,
    ):
        client.metadata()


def test_the_name_in_the_certificate_must_be_the_hosts() -> None:
    context = Security(protocol="SSL", tls=AUTHORITY).tls_context()
    unchecked = Security(protocol="SSL", tls={**AUTHORITY, "ssl.endpoint.identification.algorithm": ""}).tls_context()

    assert (True, False) == (context.check_hostname, unchecked.check_hostname)
    assert ssl.CERT_REQUIRED == context.verify_mode == unchecked.verify_mode


def test_verification_can_be_switched_off_for_tests(proxy: str) -> None:
    with Client(proxy, config={"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}) as client:
        assert client.metadata().cluster_id


def test_tls_to_a_plain_listener_is_recognised(our_broker: BrokerUnderTest) -> None:
    with (
        pytest.raises(BrokerUnreachable, match="does not speak TLS here"),
        Client(our_broker.bootstrap_servers, config={"security.protocol": "SSL"}, patience_s=0) as client,
    ):
        client.metadata()
