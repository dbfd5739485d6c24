"""Backups and restores as tests take them, and what a cluster holds, to be compared."""

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from logmark.backup.broker_copier import BrokerCopier
from logmark.backup.directory_copier import DirectoryCopier
from logmark.backup.manifest import Manifest
from logmark.backup.restorer import Restorer
from logmark.backup.store import Store
from logmark.client.client import Client
from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.log.catalog import Catalog, Entry
from logmark.log.checkpoints import write_partition_metadata
from logmark.names import TopicPartition
from logmark.wire import batches

QUICK = RealFileSystem(sync=False)
TOPIC_ID = b"0123456789abcdef"


def nothing(size: int) -> None:
    pass


def copy_directory(source: Path, dest: Path, told: Callable[[int], None] = nothing) -> Manifest:
    """A backup of a data directory; `told` is called after each piece that was stored."""
    with Store.open(str(dest), files=QUICK, on_progress=told) as store:
        return DirectoryCopier(str(source), SystemClock()).copy(store, expect=nothing)


def copy_brokers(bootstrap_servers: str, dest: Path, told: Callable[[int], None] = nothing) -> Manifest:
    """A backup through brokers."""
    with Client(bootstrap_servers) as client, Store.open(str(dest), files=QUICK, on_progress=told) as store:
        return BrokerCopier(client, SystemClock()).copy(store, expect=nothing)


def restored(backup: Path, data_dir: Path, *, is_new_cluster: bool = False) -> Path:
    """The data directory that a restore makes."""
    restorer = Restorer.open(
        str(backup), str(data_dir), source=ReadOnlyFileSystem(), files=QUICK, clock=SystemClock(), on_progress=nothing
    )
    restorer.restore(is_new_cluster=is_new_cluster)
    return data_dir


def write_source(folder: Path, *, segments: dict[int, int]) -> None:
    """A data directory with so many records in each segment, as a stopped broker leaves it."""
    partition = folder / "orders-0"
    partition.mkdir(parents=True, exist_ok=True)
    (folder / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    catalog = Catalog(None)
    catalog.adopt([Entry(name="orders", id=TOPIC_ID, partitions=1)], 1 << 40)
    (folder / "logmark.catalog").write_bytes(catalog.encode())
    (partition / "partition.metadata").write_bytes(write_partition_metadata(TOPIC_ID))
    for base, count in segments.items():
        data = b"".join(
            batches.build([(None, b"x" * 700)], timestamp_ms=1000 + offset, base_offset=offset)
            for offset in range(base, base + count)
        )
        (partition / f"{base:020d}.log").write_bytes(data)


def log_bytes(folder: Path) -> dict[str, bytes]:
    """The segments in a partition's folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.log"))}


def batches_of(client: Client, key: TopicPartition, start: int, end: int) -> dict[int, bytes]:
    """Every batch of a partition between two offsets as a client sees it, by its first offset."""
    found: dict[int, bytes] = {}
    if start >= end:
        return found
    with client.fetcher(key) as fetcher:
        for answer in fetcher.read(start, end):
            data, at = bytes(answer.records), 0
            while len(data) - at >= 61:
                base, length = struct.unpack_from(">qi", data, at)
                if at + 12 + length > len(data):
                    break
                found[base] = data[at : at + 12 + length]
                at += 12 + length
    return {base: batch for base, batch in found.items() if base < end}


def keys_of(topic: str, partitions: int) -> list[TopicPartition]:
    """A topic's partitions."""
    return [TopicPartition(topic, index) for index in range(partitions)]


def ends_of(manifest: Manifest, keys: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Log start and end of what was copied."""
    return {key: (manifest.partitions[key].log_start_offset, manifest.partitions[key].log_end_offset) for key in keys}
