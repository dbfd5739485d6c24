"""A broker with few descriptors, or none left: it refuses connections and writes, and gives nothing up for good."""

import contextlib
import os
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from logmark.errors import ErrorCode
from tests.harness import wire
from tests.harness.brokers import QUIET
from tests.harness.node import wait_until

TOPIC, PARTITIONS, WRITES = "orders", 40, 200
METADATA = 3
BATCH = wire.batch([b"x" * 100])


class LimitedBroker:
    """`logmark serve` whose process may have so many descriptors, and what it has logged."""

    def __init__(self, folder: Path, limit: int, durability: str, *settings: str) -> None:
        self._said = (folder / "said").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "logmark", "serve", "--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0",
             "--durability", durability, *(f"--set={each}" for each in settings)],
            stdout=subprocess.PIPE, stderr=self._said, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )  # fmt: skip
        assert self.process.stdout is not None
        found = re.search(r"listening on (\S+:\d+)", self.process.stdout.readline())
        assert found, self.output()
        self.bootstrap_servers = found[1].rstrip(",")

    def output(self) -> str:
        return Path(self._said.name).read_text()

    def count_open(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)

    def allow(self, limit: int) -> None:
        """Changes what the running process may have."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (limit, hard))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@contextlib.contextmanager
def limited(folder: Path, limit: int, durability: str, *settings: str) -> Iterator[LimitedBroker]:
    broker = LimitedBroker(folder, limit, durability, *settings)
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.process.kill()
            broker.process.wait()


def write(connection: socket.socket, count: int = WRITES) -> int:
    """Writes to every partition in turn and returns how many batches were acknowledged."""
    answers = [wire.produce(connection, TOPIC, BATCH, partition=number % PARTITIONS) for number in range(count)]
    assert {0, ErrorCode.KAFKA_STORAGE_ERROR} >= {answer.error_code for answer in answers}
    return sum(answer.error_code == 0 for answer in answers)


def is_served(connection: socket.socket) -> bool:
    """Whether the broker answers on a connection; it closes those that it refuses."""
    try:
        wire.send_over(connection, METADATA, 4, struct.pack(">i?", 0, False))
    except (OSError, AssertionError, EOFError):
        return False
    return True


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("limit", [64, 256])
def test_however_many_connections_come_the_logs_keep_their_descriptors(
    tmp_path: Path, limit: int, durability: str
) -> None:
    with limited(tmp_path, limit, durability) as broker, contextlib.ExitStack() as opened:
        broker.create_topic()
        first = opened.enter_context(wire.connect(broker.bootstrap_servers))
        assert is_served(first)
        others = [opened.enter_context(wire.connect(broker.bootstrap_servers)) for _ in range(2 * limit)]
        served = sum(is_served(each) for each in others)

        assert 0 < served < limit // 2
        assert broker.count_open() < limit
        assert WRITES == write(first)
        assert broker.count_open() <= limit
        opened.close()
        # The slots of connections that were closed are free again.
        wait_until(lambda: is_served(wire.connect(broker.bootstrap_servers)), "a new connection is served")
        with wire.connect(broker.bootstrap_servers) as again:
            assert WRITES == write(again)
        assert 0 == broker.stop()
        said = broker.output()

    assert 1 == said.count("max.connections is 10000")
    assert f"{limit} file descriptors" in said
    assert [] == [line for line in said.splitlines() if "epair" in line or "restart" in line]
    assert "Traceback" not in said


def test_a_limit_that_can_be_had_is_not_spoken_of(tmp_path: Path) -> None:
    with limited(tmp_path, 256, "os", "max.connections=50") as broker:
        broker.stop()

        assert "max.connections" not in broker.output()


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_without_any_descriptor_writes_are_refused_and_logs_and_listener_come_back_by_themselves(
    tmp_path: Path, durability: str
) -> None:
    with limited(tmp_path, 1024, durability) as broker, contextlib.ExitStack() as opened:
        broker.create_topic()
        first = opened.enter_context(wire.connect(broker.bootstrap_servers))
        # Every second partition has a log; the others need a folder and files.
        for partition in range(0, PARTITIONS, 2):
            assert 0 == wire.produce(first, TOPIC, BATCH, partition=partition).error_code
        broker.allow(broker.count_open())

        acknowledged = write(first)
        refused = [opened.enter_context(wire.connect(broker.bootstrap_servers)) for _ in range(10)]
        # A thread may have given a few back since they were counted.
        assert len(refused) // 2 > sum(is_served(each) for each in refused)
        assert acknowledged < WRITES
        broker.allow(1024)

        wait_until(lambda: write(first, PARTITIONS) == PARTITIONS, "every log takes records again")
        with wire.connect(broker.bootstrap_servers) as again:
            assert WRITES == write(again)
        assert 0 == broker.stop()
        said = broker.output()

    assert "file descriptor" in said
    assert [] == [line for line in said.splitlines() if "epair" in line or "restart" in line]


def test_one_address_has_no_more_connections_than_it_may_have(tmp_path: Path) -> None:
    settings = "max.connections.per.ip=2", "max.connections.per.ip.overrides=127.0.0.1:5"
    with limited(tmp_path, 256, "os", *settings) as broker, contextlib.ExitStack() as opened:
        connections = [opened.enter_context(wire.connect(broker.bootstrap_servers)) for _ in range(9)]

        assert 5 == sum(is_served(each) for each in connections)


def test_one_address_has_no_more_connections_than_every_address_may_have(tmp_path: Path) -> None:
    with limited(tmp_path, 256, "os", "max.connections.per.ip=2") as broker, contextlib.ExitStack() as opened:
        connections = [opened.enter_context(wire.connect(broker.bootstrap_servers)) for _ in range(9)]

        assert 2 == sum(is_served(each) for each in connections)
