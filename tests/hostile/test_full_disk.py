"""A disk that is really full: a file system of a few mebibytes in a mount namespace of its own, and real clients."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from logmark.disk.file_system import RealFile, RealFileSystem
from logmark.errors import ErrorCode
from logmark.testing import Broker
from tests.harness import wire
from tests.harness.brokers import QUIET
from tests.harness.node import wait_until

DISK_BYTES = 24 << 20
GROUP = "billing"
CONFIG = {"segment.bytes": "1048576"}


class SmallDisk:
    """A broker in a process of its own whose data directory is all of a small file system."""

    def __init__(self, folder: Path, kind: str, durability: str) -> None:
        self._mount = folder / "disk"
        self._mount.mkdir()
        source = f"-t tmpfs -o size={DISK_BYTES} tmpfs"
        if kind == "ext4":
            image = folder / "image"
            image.write_bytes(bytes(DISK_BYTES))
            subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
            source = f"-o loop {image}"
        data_dir = str(self._mount / "data")
        options = {"data_dir": data_dir, "config": {}, "durability": durability, "port": 0}
        mount = f'mount {source} {self._mount} && exec "$@"'
        namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        self._process = subprocess.Popen(
            [*namespace, "sh", "-c", mount, "sh", sys.executable, "-m", "logmark.testing.broker_process",
             json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.bootstrap_servers: str = json.loads(self._process.stdout.readline())["bootstrap_servers"]
        # Seen from out here: the mount is in the other process's namespace.
        self._ballast = Path(f"/proc/{self._process.pid}/root{self._mount}/ballast")

    def fill(self) -> None:
        """Leaves no byte free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Gives the space back."""
        self._ballast.unlink()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


SOAKED = [pytest.param(f"ext4 {durability}", marks=pytest.mark.soak) for durability in ("sync", "os")]


@pytest.fixture(params=["tmpfs sync", "tmpfs os", *SOAKED])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path, *request.param.split())
    yield made
    made.close()


def read_all(disk: SmallDisk, topic: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": disk.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True,
         "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "the end was not reached"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF"
                return found
            found.append(message.value())
    finally:
        consumer.close()


def committer(disk: SmallDisk) -> Consumer:
    return Consumer(
        {"bootstrap.servers": disk.bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False, **QUIET}
    )


def create(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config=CONFIG)])[topic].result(60)


def test_a_full_disk_refuses_writes_serves_reads_and_is_served_again_when_there_is_space(disk: SmallDisk) -> None:
    admin = AdminClient({"bootstrap.servers": disk.bootstrap_servers, **QUIET})
    create(admin, "clicks")
    acknowledged: list[bytes] = []
    partition = TopicPartition("clicks", 0)
    producer = Producer({"bootstrap.servers": disk.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0,
                         "retry.backoff.max.ms": 200, **QUIET})  # fmt: skip
    failures: list[str] = []

    def send(value: bytes) -> None:
        producer.produce(
            "clicks", value, partition=0,
            on_delivery=lambda error, _: failures.append(str(error)) if error else acknowledged.append(value),
        )  # fmt: skip

    for number in range(30):
        send(b"%02d" % number + bytes(100_000))
    assert 0 == producer.flush(60)
    group = committer(disk)
    group.commit(offsets=[TopicPartition("clicks", 0, 17)], asynchronous=False)

    disk.fill()

    # Refused with Kafka's code, again and again; what is there is read, the committed offsets too.
    for _ in range(3):
        code, *_ = wire.produce(disk.bootstrap_servers, "clicks", wire.batch([bytes(20_000)]))
        assert ErrorCode.KAFKA_STORAGE_ERROR == code
    assert acknowledged == read_all(disk, "clicks")
    with pytest.raises(KafkaException):
        for _ in range(3):
            # The first may fit into the last page that the file has already.
            group.commit(offsets=[TopicPartition("clicks", 0, 17, "x" * 4000)], asynchronous=False)
    assert 17 == group.committed([partition], timeout=60)[0].offset
    (described,) = admin.describe_consumer_groups([GROUP]).values()
    assert GROUP == described.result(60).group_id
    with pytest.raises(KafkaException):
        create(admin, "orders")
    # Clients that go on trying lose nothing.
    other = KafkaProducer(bootstrap_servers=disk.bootstrap_servers, linger_ms=0, request_timeout_ms=60_000)
    sent = [other.send("clicks", b"other-%d" % number + bytes(30_000), partition=0) for number in range(5)]
    for number in range(30, 50):
        send(b"%02d" % number + bytes(30_000))
    producer.poll(0.5)
    assert not [future for future in sent if future.is_done]
    assert 30 == len(acknowledged) and not failures

    disk.free()

    assert 0 == producer.flush(60)
    assert [] == failures
    offsets = [future.get(60).offset for future in sent]
    other.close()
    wait_until(lambda: committed(group, 18), "a commit is taken")
    create(admin, "orders")
    found = read_all(disk, "clicks")
    assert acknowledged == [value for value in found if not value.startswith(b"other")]
    assert [b"other-%d" % number for number in range(5)] == [found[offset][:7] for offset in offsets]
    assert 55 == len(found), "a record that was refused is there, or one twice"
    group.close()


def committed(group: Consumer, offset: int) -> bool:
    try:
        group.commit(offsets=[TopicPartition("clicks", 0, offset)], asynchronous=False)
    except KafkaException:
        return False
    return offset == group.committed([TopicPartition("clicks", 0)], timeout=60)[0].offset


class AlmostFullFileSystem(RealFileSystem):
    """Says that little space is left, and notes which files of the write-ahead log are made."""

    free = 20 << 20

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False) -> RealFile:
        if create and "logmark.wal" in path:
            self.opened.append(path)
        return super().open(path, create=create)

    def free_bytes(self, path: str) -> int:
        return self.free


def test_the_write_ahead_log_does_not_fill_a_disk_that_is_almost_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = AlmostFullFileSystem()
    with Broker(data_dir=str(tmp_path / "data"), durability="sync", files=files) as broker:
        broker.create_topic("clicks")

        def produce() -> int:
            return wire.produce(broker.bootstrap_servers, "clicks", wire.batch([bytes(300_000)])).error_code

        assert [0, 0, 0] == [produce() for _ in range(3)]
        assert 1 == len(files.opened), "a file in reserve took space that the partitions need"
        assert [0] * 5 == [produce() for _ in range(5)], "an entry that needs a file gets one while there is space"
        assert 2 == len(files.opened)
        files.free = 15 << 20
        codes = [produce() for _ in range(60)]
        assert {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR} >= set(codes)
        assert 2 == len(files.opened), "a file was begun for which there is no space"
    assert caplog.text.count("got no further file") <= 2, "each round said it again"
