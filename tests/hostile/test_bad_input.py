"""Wrong input gets a message with cause and remedy and an exit code that is not 0, and does no harm."""

import contextlib
import os
import random
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from logmark.client.client import Client
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.testing import Broker
from tests.crash.pending_requests import PendingProduce
from tests.harness import wire
from tests.harness.gateway import call_tool
from tests.harness.tools import STORAGE

REPOSITORY = Path(__file__).resolve().parents[2]
LOGMARK = [str(Path(sys.executable).with_name("logmark"))]
TOPIC, FIRST = "orders", TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker in a process of its own, with three records in one partition; no test here may hurt it."""
    # Its checkpoints are written every minute, and one may come between two looks at its files.
    with Broker({"log.flush.offset.checkpoint.interval.ms": "86400000"}, subprocess=True) as broker:
        broker.create_topic(TOPIC)
        with PendingProduce(broker.bootstrap_servers, TOPIC, 0, wire.batch([b"one", b"two", b"three"])) as asked:
            assert (ErrorCode.NONE, 0) == asked.answer()
        yield broker


def refused(*arguments: str, command: Sequence[str] = LOGMARK, env: dict[str, str] | None = None) -> str:
    """What the command says on standard error; it must end by itself, with a code that is not 0."""
    done = subprocess.run(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )
    assert 0 != done.returncode, done
    assert "Traceback" not in done.stderr
    assert "" == done.stdout
    assert done.stderr.strip()
    return done.stderr


def on(broker: Broker, *arguments: str) -> tuple[str, ...]:
    return (*arguments, "--bootstrap-servers", broker.bootstrap_servers)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its bytes, but for the empty lock that whoever looks has to take first."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def end_offset(broker: Broker) -> int:
    with Client(broker.bootstrap_servers) as client:
        return client.latest([FIRST])[FIRST]


# What a person types


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (["serve", "--durable"], "--durable", "--help"),
        (["frobnicate"], "frobnicate", "--help"),
        (["serve", "--set", "num.partitionz=3"], "num.partitionz", "correct the name"),
        (["serve", "--set", "num.partitions=many"], "num.partitions", "many"),
        (["serve", "--config", "missing.properties"], "missing.properties", "cannot be read"),
    ],
)
def test_an_unknown_option_or_setting_is_refused_before_anything_is_made(
    tmp_path: Path, arguments: list[str], cause: str, remedy: str
) -> None:
    where = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"] if arguments[0] == "serve" else []

    message = refused(*arguments, *where)

    assert cause in message and remedy in message
    assert not (tmp_path / "data").exists()


def test_a_topic_setting_that_does_not_exist_creates_no_topic(broker: Broker) -> None:
    message = refused(*on(broker, "topics", "create", "payments", "--config", "retention.minutes=5"))

    assert "retention.minutes" in message
    with Client(broker.bootstrap_servers) as client:
        assert "payments" not in client.metadata().topics


def test_a_port_in_use_is_named_with_the_option_that_changes_it(broker: Broker, tmp_path: Path) -> None:
    message = refused("serve", "--data-dir", str(tmp_path / "data"), "--listen", broker.bootstrap_servers)

    assert broker.bootstrap_servers in message and "--listen" in message
    assert not (tmp_path / "data").exists()


def test_a_directory_in_use_is_named_and_left_alone(broker: Broker) -> None:
    before = snapshot(Path(broker.data_dir))

    message = refused("serve", "--data-dir", broker.data_dir, "--listen", "127.0.0.1:0")

    assert broker.data_dir in message and "in use" in message and "--data-dir" in message
    assert before == snapshot(Path(broker.data_dir))


@pytest.mark.kafka
def test_a_directory_that_apache_kafka_wrote_is_refused_and_left_alone(tmp_path: Path) -> None:
    data, properties = tmp_path / "data", tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={data}\n"
    )
    call_tool(STORAGE, "format", "-t", "AbCdEfGhIjKlMnOpQrStUv", "-c", str(properties)).check()
    before = snapshot(data)
    assert before

    message = refused("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0")

    assert "Apache Kafka" in message and "--data-dir" in message
    assert before == snapshot(data)


def on_a_disk(folder: Path, options: str, command: str) -> list[str]:
    """A command that sees a small disk of its own at `folder`: a private mount, so that even root cannot overrun it."""
    folder.mkdir()
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o {options} tmpfs {shlex.quote(str(folder))}"
    return [*namespace, "sh", "-c", f"{mount} && exec {command}"]


@pytest.mark.parametrize(("options", "cause"), [("ro", "cannot be written"), ("size=4k", "full")])
def test_a_read_only_or_full_disk_is_named_at_the_start(tmp_path: Path, options: str, cause: str) -> None:
    serve = shlex.join([*LOGMARK, "serve", "--data-dir", str(tmp_path / "disk" / "data"), "--listen", "127.0.0.1:0"])

    message = refused(command=on_a_disk(tmp_path / "disk", options, serve))

    assert cause in message.lower() and "--data-dir" in message


def test_a_disk_that_fills_up_refuses_writes_keeps_what_was_acknowledged_and_still_serves(tmp_path: Path) -> None:
    serve = shlex.join([*LOGMARK, "serve", "--data-dir", str(tmp_path / "disk" / "data"), "--listen", "127.0.0.1:0"])
    process = subprocess.Popen(
        on_a_disk(tmp_path / "disk", "size=4m", serve), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = re.search(r"listening on (\S+?),", process.stdout.readline())
        assert address is not None
        acknowledged: list[int] = []
        with Client(address[1]) as client:
            client.create_topic(TOPIC)
            answer = ErrorCode.NONE
            while answer == ErrorCode.NONE:
                batch = wire.batch([b"%d" % len(acknowledged) + b"." * 300_000])
                with PendingProduce(address[1], TOPIC, 0, batch) as asked:
                    code, offset = asked.answer()
                answer = ErrorCode(code)
                if answer == ErrorCode.NONE:
                    acknowledged.append(offset)
                assert len(acknowledged) < 20, "a disk of 4 MiB cannot hold this"

            assert ErrorCode.KAFKA_STORAGE_ERROR == answer
            assert list(range(len(acknowledged))) == acknowledged
            assert len(acknowledged) == client.latest([FIRST])[FIRST]
            fetched = client.fetch(FIRST, 0, bytes_max=8 << 20)
            assert len(acknowledged) * 300_000 < len(fetched.records)
    finally:
        process.terminate()
        complaints = process.communicate(timeout=120)[1]
    assert f"{TOPIC}-0" in complaints and "No space left" in complaints


@pytest.mark.parametrize("name", ["a/b", "..", "ä", "x" * 250, ""])
def test_an_illegal_topic_name_is_refused(broker: Broker, name: str) -> None:
    message = refused(*on(broker, "topics", "create"), "--", name)

    assert "topic name" in message and "letters, digits" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", TOPIC, "--from", "999"],
        ["offsets", "reset", "billing", "--topic", TOPIC, "--to-offset", "999", "--create-group", "--yes"],
    ],
)
def test_an_offset_out_of_range_is_told_with_the_range(broker: Broker, arguments: list[str]) -> None:
    message = refused(*on(broker, *arguments))

    assert "999" in message and "0 to 3" in message
    with Client(broker.bootstrap_servers) as client:
        assert [] == client.list_groups()


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["consume", TOPIC],
        ["produce", TOPIC],
        ["groups", "list"],
        ["lag"],
        ["offsets", "reset", "billing", "--topic", TOPIC, "--to-earliest", "--yes"],
    ],
)
def test_no_broker_there_is_said(arguments: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can listen there meanwhile
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        message = refused(*arguments, "--bootstrap-servers", address)

    assert address in message


# What Spark's users lack


def test_without_java_there_is_an_error_message(tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "examples.clicks.demo"]

    message = refused(command=demo, env={"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": str(REPOSITORY)})

    assert "needs Java" in message and "Install a Java runtime" in message


def test_an_old_spark_is_named_with_the_version_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    from logmark.spark.sessions import check_spark

    monkeypatch.setattr(pyspark, "__version__", "3.5.8")
    with pytest.raises(UserError, match=r"PySpark 3\.5\.8 is too old.*4\.2"):
        check_spark()


# What arrives in bytes


def test_a_corrupt_batch_is_refused_and_leaves_nothing(broker: Broker) -> None:
    before = end_offset(broker)
    damaged = bytearray(wire.batch([b"value"]))
    damaged[-2] ^= 1

    answer = wire.produce(broker.bootstrap_servers, TOPIC, bytes(damaged))

    assert ErrorCode.CORRUPT_MESSAGE == answer.error_code
    assert before == end_offset(broker)


def test_a_batch_damaged_on_disk_is_an_error_to_readers_and_never_data() -> None:
    with Broker(subprocess=True) as broker:
        broker.create_topic(TOPIC)
        with PendingProduce(broker.bootstrap_servers, TOPIC, 0, wire.batch([b"intact"])) as asked:
            assert (ErrorCode.NONE, 0) == asked.answer()
        segment = Path(broker.data_dir, "orders-0", "00000000000000000000.log")
        data = bytearray(segment.read_bytes())
        data[data.index(b"intact")] ^= 1
        segment.write_bytes(data)

        message = refused(*on(broker, "consume", TOPIC))

    assert "orders" in message and re.search("damaged|corrupt", message, re.IGNORECASE)


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def garbage() -> Iterator[bytes]:
    choose = random.Random(7)
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the start of a TLS handshake
    yield bytes(4)
    yield (-1).to_bytes(4, "big", signed=True)
    yield b"\x00\x00\x00\x02\x00\x00"
    for _ in range(20):
        body = choose.randbytes(choose.randint(8, 200))
        yield len(body).to_bytes(4, "big") + body


def send_and_wait_for_the_end(address: str, data: bytes) -> None:
    """Returns when the broker has closed the connection on which these bytes came."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def test_a_request_of_two_gib_costs_one_connection_and_no_memory(broker: Broker) -> None:
    assert broker.pid is not None
    before = resident_mb(broker.pid)

    send_and_wait_for_the_end(
        broker.bootstrap_servers, (2**31 - 1).to_bytes(4, "big") + b"\x00\x00\x00\x07" + bytes(1 << 16)
    )

    assert resident_mb(broker.pid) - before < 50
    assert 3 == end_offset(broker)


def test_garbage_instead_of_a_request_costs_one_connection(broker: Broker) -> None:
    for data in garbage():
        send_and_wait_for_the_end(broker.bootstrap_servers, data)
    assert 3 == end_offset(broker)


def test_a_client_that_sends_too_much_is_told_so(broker: Broker) -> None:
    answers: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 10_000_000})
    producer.produce(TOPIC, bytes(2_000_000), on_delivery=lambda error, _: answers.append(error))
    producer.flush(60)

    assert [KafkaError.MSG_SIZE_TOO_LARGE] == [error.code() for error in answers if error is not None]
    with pytest.raises(KafkaException):
        producer.produce(TOPIC, bytes(20_000_000))
