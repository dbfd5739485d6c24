"""A data directory as a killed broker leaves it: acknowledged records, a committed offset and the write-ahead log."""

import os
import shutil
from pathlib import Path

from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.log import checkpoints
from logmark.log.folder import METADATA
from logmark.log.folders import folders_by_id
from logmark.log.recovery_preview import read_wal
from logmark.log.wal.entries import partition_key, split_key
from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest, at, read
from tests.harness.restartable_broker import OUR_SETTINGS

TOPIC = "orders"
GROUP = "billing"
VALUES = [b"ORD-%d" % number for number in range(60)]
COMMITTED = 7
LOG = f"{0:020d}.log"


def write_crashed(path: Path) -> Path:
    """Write records with one broker, whose files all get flushed, more with a second one, and kill that."""
    with Broker(OUR_SETTINGS, data_dir=str(path), durability="sync", subprocess=True) as broker:
        broker.create_topic(TOPIC)
        _produce(broker, VALUES[:20])
        broker.restart()
        _produce(broker, VALUES[20:40])
        _produce(broker, VALUES[40:])
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        clients.commit(GROUP, {(TOPIC, 0): COMMITTED})
        clients.close()
        broker.kill()
    return path


def lose_power(path: Path) -> Path:
    """Take away what no sync had put on the medium: everything behind the recovery points."""
    content = read_wal(str(path), ReadOnlyFileSystem())
    folder_of = folders_by_id(str(path), ReadOnlyFileSystem())
    for key in content.runs:
        folder = folder_of(*split_key(key))
        assert folder is not None
        point = content.points.points.get(key)
        if point is None:
            shutil.rmtree(folder)
        else:
            os.truncate(f"{folder}/{point.segment_base:020d}.log", point.position)
    assert len(VALUES) > (content.points.points[partition_key(topic_id(path), 0)].offset), "nothing would be lost"
    return path


def topic_id(path: Path) -> bytes:
    """The id of the topic."""
    return checkpoints.read_partition_metadata((path / f"{TOPIC}-0" / METADATA).read_bytes())


def _produce(broker: Broker, values: list[bytes]) -> None:
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    clients.produce(TOPIC, values, batch_num_messages=5)
    clients.close()


def served(path: Path) -> tuple[list[bytes | None], int | None]:
    """The records and the committed offset that a broker serves from a directory."""
    with Broker(OUR_SETTINGS, data_dir=str(path)) as broker:
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        try:
            consumer = clients.consumer()
            consumer.assign(at((TOPIC, 0, 0)))
            found = read(consumer, clients.end_offset(TOPIC))
            return [message.value() for message in found], clients.committed(GROUP).get((TOPIC, 0))
        finally:
            clients.close()


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time of its last change."""
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file()
    }
