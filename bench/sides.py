"""The brokers that are compared: Logmark and Apache Kafka, each as its users start it."""

import base64
import contextlib
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import wire
from bench.load import connect, cpu_seconds, receive
from tests.harness import distribution
from tests.harness.node import free_ports
from tests.harness.tools import STORAGE, run_tool

TOPIC_OF_START = "first-record"
# Apache Kafka needs several seconds for a topic of 1,000 partitions.
TOPIC_TIMEOUT_S = 120

# What kafka-server-start.sh gives the JVM when nothing is set.
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)


class Running:
    """A broker's process, watched through /proc."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        folder: Path,
        address: str,
        is_ready: Callable[[str], bool] | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """Starts it and waits until it is ready: until its first record is acknowledged, if nothing else is said."""
        self.name = name
        self.address = address
        self._is_ready = is_ready or first_record_is_acknowledged
        self._output = (folder / "output").open("ab")
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, cwd=folder
        )
        self.pid = self._process.pid
        if watch is not None:
            watch(self.pid)
        try:
            self._wait(folder)
        except BaseException:
            self.stop()
            raise
        self.start_ms = 1000 * (time.perf_counter() - begin)

    def _wait(self, folder: Path) -> None:
        deadline = time.monotonic() + 120
        while not self._is_ready(self.address):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at its start:\n{(folder / 'output').read_text()[-3000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} answered nothing within two minutes")
            time.sleep(0.001)

    def stop(self) -> None:
        """Ends the process and waits for it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def cpu_seconds(self) -> float:
        """Processor time that the broker has used since its start."""
        return cpu_seconds(self.pid)

    def memory_mb(self) -> float:
        """The most memory that was ever resident."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def first_record_is_acknowledged(address: str) -> bool:
    """Whether the broker creates a topic when asked for it, and acknowledges a record in it."""
    try:
        connection = connect(address)
    except OSError:
        return False
    with connection:
        buffer = bytearray(4096)
        request = wire.produce_request(TOPIC_OF_START, 0, wire.batch(b"first", 1))
        try:
            connection.sendall(wire.metadata_request(TOPIC_OF_START))
            receive(connection, buffer)
            connection.sendall(request)
            return wire.produce_error(receive(connection, buffer), TOPIC_OF_START) == 0
        except (OSError, RuntimeError):
            return False


def logmark_at(folder: Path, *, durability: str, **watching: Any) -> Running:
    """`logmark serve` as it comes, on what lies in a folder."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("logmark")), "serve", "--data-dir", str(folder / "data")]
    command += ["--listen", address, "--durability", durability]
    return Running(f"logmark {durability}", command, folder=folder, address=address, **watching)


@contextlib.contextmanager
def logmark(folder: Path, *, durability: str) -> Iterator[Running]:
    """`logmark serve` on a fresh folder."""
    folder.mkdir(parents=True)
    side = logmark_at(folder, durability=durability)
    try:
        yield side
    finally:
        side.stop()
        shutil.rmtree(folder, ignore_errors=True)


def format_kafka(folder: Path) -> None:
    """Makes a folder one of Apache Kafka, with its own defaults for one node."""
    folder.mkdir(parents=True)
    broker_port, controller_port = free_ports(2)
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        # One node can hold one replica only.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    configure_kafka(folder, values)
    cluster_id = "A" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
    run_tool(STORAGE, "format", "-t", cluster_id, "-c", str(folder / "server.properties")).check()


def configure_kafka(folder: Path, settings: Mapping[str, str]) -> None:
    """Add settings to those with which Apache Kafka starts in a folder; of two lines with one name the last counts."""
    with (folder / "server.properties").open("a") as properties:
        properties.writelines(f"{name}={value}\n" for name, value in settings.items())


def kafka_at(folder: Path, **watching: Any) -> Running:
    """Apache Kafka on a formatted folder, with its own heap and its own collector."""
    properties = folder / "server.properties"
    listeners = next(line for line in properties.read_text().splitlines() if line.startswith("advertised.listeners="))
    command = [distribution.java(), *KAFKA_JVM, "-cp", distribution.class_path(), "kafka.Kafka", str(properties)]
    return Running("kafka", command, folder=folder, address=listeners.rpartition("//")[2], **watching)


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Running]:
    """One node of Apache Kafka on a fresh folder, formatted beforehand."""
    format_kafka(folder)
    side = kafka_at(folder)
    try:
        yield side
    finally:
        side.stop()
        shutil.rmtree(folder, ignore_errors=True)


def create_topic(address: str, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
    """Creates a topic and returns when its leader answers for every partition."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([new], request_timeout=TOPIC_TIMEOUT_S)[name].result(TOPIC_TIMEOUT_S)
    wanted = {TopicPartition(name, index): OffsetSpec.latest() for index in range(partitions)}
    deadline = time.monotonic() + TOPIC_TIMEOUT_S
    while True:
        try:
            for answer in admin.list_offsets(wanted).values():
                answer.result(30)
            return
        except KafkaException:
            # Apache Kafka names a new topic in its metadata a moment before it takes requests for it.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def delete_topic(address: str, name: str) -> None:
    """Deletes a topic, so that the next measurement finds room in the page cache."""
    from confluent_kafka.admin import AdminClient

    # The client has a name because its futures fail when it is collected.
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.delete_topics([name])[name].result(30)


def flush_commits(address: str, *, is_on: bool) -> None:
    """Make Apache Kafka wait for the disk before it acknowledges an OffsetCommit, or return to its default."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    operation = AlterConfigOpType.SET if is_on else AlterConfigOpType.DELETE
    entry = ConfigEntry("flush.messages", "1", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
