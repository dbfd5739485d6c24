"""Topic settings take effect on a running broker: each is altered as clients alter it, and then seen."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from logmark.errors import ErrorCode
from logmark.testing import Broker
from logmark.wire import batches
from tests.harness import wire
from tests.harness.brokers import QUIET
from tests.harness.node import wait_until

TOPIC = "clicks"
DAY_MS = 86_400_000
# Retention is applied only when a test asks for it.
SETTINGS = {"log.initial.task.delay.ms": str(DAY_MS)}


class RunningBroker:
    """A broker with one topic."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Ages count from one moment: however slowly a test runs, its records have the same times between them.
        self._now_ms = wire.now_ms()
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        self._admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
        self.folder = Path(broker.data_dir, f"{TOPIC}-0")

    def alter(self, **settings: object) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
        (done,) = self._admin.incremental_alter_configs([resource]).values()
        done.result(60)

    def produce(self, size: int = 10, *, older_ms: int = 0, key: bytes | None = None) -> int:
        """The error code of one record of that size and age."""
        batch = bytes(batches.build([(key, bytes(size))], timestamp_ms=self._now_ms - older_ms))
        return wire.produce(self._broker.bootstrap_servers, TOPIC, batch)[0]

    def segments(self, ending: str = "") -> int:
        return len(list(self.folder.glob(f"*.log{ending}")))

    def retain(self) -> None:
        self._broker.apply_retention()

    def advance(self, seconds: float) -> None:
        self._broker.advance(seconds)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


@pytest.fixture
def running(broker: Broker) -> Iterator[RunningBroker]:
    made = RunningBroker(broker)
    yield made
    made._admin.delete_topics([TOPIC])[TOPIC].result(60)


def test_segment_bytes(running: RunningBroker) -> None:
    for _ in range(4):
        assert 0 == running.produce(600_000)
    assert 1 == running.segments()

    running.alter(segment_bytes=1_048_576)
    running.produce(600_000)

    assert 2 == running.segments()


def test_segment_ms_and_jitter(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for older_ms in (100_000, 90_000):
        running.produce(older_ms=older_ms)
    assert 1 == running.segments()
    running.alter(segment_ms=20_000)
    running.produce(older_ms=85_000)
    assert 1 == running.segments()
    monkeypatch.setattr(random, "randrange", lambda most: most - 1)

    running.alter(segment_jitter_ms=20_000)
    running.produce(older_ms=84_000)
    assert 2 == running.segments()
    running.alter(segment_jitter_ms=0, segment_ms=10_000)
    running.produce(older_ms=70_000)
    assert 3 == running.segments()


def test_segment_index_bytes_and_index_interval_bytes(running: RunningBroker) -> None:
    for _ in range(5):
        running.produce(100)
    assert 1 == running.segments()

    running.alter(index_interval_bytes=1, segment_index_bytes=64)
    for _ in range(12):
        running.produce(100)

    assert 2 <= running.segments() <= 4


def test_compression_type_and_compression_gzip_level(running: RunningBroker) -> None:
    sizes = [0]
    for settings in (
        {"compression_type": "gzip"}, {"compression_gzip_level": 1}, {"compression_gzip_level": 9},
        {"compression_type": "uncompressed"},
    ):  # fmt: skip
        running.alter(**settings)
        assert 0 == running.produce(100_000)
        sizes.append(sum(log.stat().st_size for log in running.folder.glob("*.log")))
    usual, fastest, smallest, plain = (later - before for before, later in itertools.pairwise(sizes))
    assert usual < fastest < 1000
    # A level above 6 counts as 6, which is the default.
    assert usual == smallest
    assert 100_000 < plain


def test_retention_ms(running: RunningBroker) -> None:
    running.produce(older_ms=2 * DAY_MS)
    running.alter(segment_ms=1000)
    running.produce(older_ms=DAY_MS)
    running.produce()
    running.retain()
    assert 3 == running.segments()

    running.alter(retention_ms=DAY_MS // 2)
    running.retain()

    wait_until(lambda: (1, 2) == (running.segments(), running.segments(".deleted")), "old segments are deleted")


def test_retention_bytes(running: RunningBroker) -> None:
    running.alter(segment_bytes=1_048_576)
    for _ in range(4):
        running.produce(1_000_000)
    running.retain()
    assert 4 == running.segments()

    running.alter(retention_bytes=2_100_000)
    running.retain()

    wait_until(lambda: 3 == running.segments(), "the largest part is deleted")


def test_cleanup_policy(running: RunningBroker) -> None:
    running.alter(segment_ms=1000, retention_ms=DAY_MS)
    for older_ms in (3 * DAY_MS, 2 * DAY_MS):
        running.produce(older_ms=older_ms, key=b"k")

    running.alter(cleanup_policy="compact")
    running.retain()

    assert 2 == running.segments()
    assert ErrorCode.INVALID_RECORD == running.produce()
    running.alter(cleanup_policy="delete")
    assert 0 == running.produce()
    running.retain()
    wait_until(lambda: 1 == running.segments(), "old segments are deleted")


def test_max_message_bytes(running: RunningBroker) -> None:
    assert 0 == running.produce(5000)
    running.alter(max_message_bytes=4000)
    assert ErrorCode.MESSAGE_TOO_LARGE == running.produce(5000)
    running.alter(max_message_bytes=6000)
    assert 0 == running.produce(5000)


def test_file_delete_delay_ms(running: RunningBroker) -> None:
    running.alter(segment_ms=1000, retention_ms=1000)
    running.produce(older_ms=3 * DAY_MS)
    running.produce(older_ms=2 * DAY_MS)
    running.retain()
    wait_until(lambda: 2 == running.segments(".deleted"), "old segments are deleted")
    running.advance(25)
    assert 2 == running.segments(".deleted")
    running.advance(40)
    wait_until(lambda: 0 == running.segments(".deleted"), "files are removed after a minute")

    running.alter(file_delete_delay_ms=30_000)
    running.produce(older_ms=2 * DAY_MS)
    running.retain()
    wait_until(lambda: 1 == running.segments(".deleted"), "the old segment is deleted")
    running.advance(35)

    wait_until(lambda: 0 == running.segments(".deleted"), "files are removed after half a minute")
