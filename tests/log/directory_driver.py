"""A data directory on a file system with faults, an event loop that stands still and a clock turned by hand."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from logmark.clock import ManualClock
from logmark.disk.file_system import RealFileSystem
from logmark.log import checkpoints, segment_cleaner, segment_swap
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import PARTITIONS_MAX, Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.disk_worker import Worker
from logmark.log.group_commit import ENTRY_BYTES_MAX, Durability, GroupCommit
from logmark.log.partition import Appended, Partition
from logmark.log.segment_cleaner import Done, Limits
from logmark.log.settings import TopicSettings
from logmark.log.wal import log as wal
from logmark.log.wal import recovery_points, replay
from logmark.log.wal.log import WalLimits
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire import batches
from tests.crash.crash_file_system import CrashFileSystem
from tests.log.stepped_workers import SteppedWorkers

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
PRODUCER_ID = 2**40 + 7
# A part of the paths of the files that hold the entries of the WAL, and of the file with the recovery points.
WAL_FILES = f"{wal.FOLDER}/0"
POINTS = f"{wal.FOLDER}/{recovery_points.FILE_NAME}"


def topic_id(topic: str) -> bytes:
    """The id of a topic: the WAL knows partitions by it, so no two topics may share one."""
    return TOPIC_ID if topic == "clicks" else hashlib.blake2b(topic.encode(), digest_size=16).digest()


def settings(**values: object) -> TopicSettings:
    """Settings by their names with underscores; below a topic's own limits too, as segments of a few bytes need."""
    return TopicSettings({}, {name.replace("_", "."): str(value) for name, value in values.items()})


def batch(
    *values: bytes | None,
    timestamp_ms: int | list[int] = NOW_MS,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> batches.ProducedBatch:
    """A batch ready to be appended; `producer` is id, epoch and first sequence."""
    producer_id, producer_epoch, base_sequence = producer
    return batches.own(
        batches.build(
            [(None, value) for value in values],
            timestamp_ms=timestamp_ms,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )


class LogDriver:
    """Opens, stops and kills the same data directory again and again."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "sync",
        page_bytes: int = 4096,
        worker: Callable[[str], Worker] | None = None,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        self.path = path / "data"
        self.loop = asyncio.new_event_loop()
        self.files = FaultyFileSystem(RealFileSystem(sync=False), page_bytes=page_bytes)
        self.clock = ManualClock(NOW_MS)
        self.durability: Durability = durability
        self._worker = worker
        self._entry_bytes_max = entry_bytes_max
        # How often each topic was deleted: one that is made again is another topic.
        self._deleted: Counter[str] = Counter()
        self._wal_limits: WalLimits | None = None
        self.directory: DataDirectory | None = None
        self.committer: GroupCommit | None = None

    def open(self) -> DataDirectory:
        self.committer = GroupCommit(
            self.loop, durability=self.durability, worker=self._worker, entry_bytes_max=self._entry_bytes_max
        )
        self.directory = DataDirectory.open(
            self.path, files=self.files, committer=self.committer, clock=self.clock, wal_limits=self._wal_limits
        )
        if self.directory.read(CATALOG) is None:
            self.enter("clicks")
        return self.directory

    def id_of(self, topic: str) -> bytes:
        """The id that a topic has now."""
        count = self._deleted[topic]
        return topic_id(f"{topic} {count}" if count else topic)

    def enter(self, topic: str) -> None:
        """Enter a topic into the catalogue, by which a recovery finds the folders of its partitions."""
        directory = self.directory
        assert directory is not None
        known = Catalog(directory.read(CATALOG))
        if known.get(topic) is None:
            entries = [*known.entries(), Entry(name=topic, id=self.id_of(topic), partitions=PARTITIONS_MAX)]
            known.adopt(entries, known.next_producer_id)
            directory.write(CATALOG, known.encode())

    def create(
        self, topic: str = "clicks", index: int = 0, *, first_offset: int = 0, config: TopicSettings | None = None
    ) -> Partition:
        directory = self.directory or self.open()
        self.enter(topic)
        return directory.create_partition(
            topic, index, self.id_of(topic), config or settings(), first_offset=first_offset
        )  # fmt: skip

    def delete(self, topic: str = "clicks", index: int = 0) -> None:
        """Delete a partition as the broker does: first its topic is out of the catalogue."""
        directory = self.directory
        assert directory is not None
        known = Catalog(directory.read(CATALOG))
        known.adopt([entry for entry in known.entries() if entry.name != topic], known.next_producer_id)
        directory.write(CATALOG, known.encode())
        directory.delete_partition(topic, index)
        self._deleted[topic] += 1

    def partition_folders(self) -> list[str]:
        """The names of all folders but that of the WAL."""
        return [path.name for path in self.path.iterdir() if path.is_dir() and path.name != wal.FOLDER]

    def stop(self, *, clean: bool = True) -> bool:
        assert self.directory is not None and self.committer is not None
        is_clean = self.directory.close(clean=clean)
        self.committer.close()
        self.directory = None
        return is_clean

    def reopen(
        self, topic: str = "clicks", index: int = 0, *, clean: bool = True, config: TopicSettings | None = None
    ) -> Partition:
        """The partition after a stop, or after a kill (the page cache survives one)."""
        if self.directory is not None:
            self.stop(clean=clean)
        return self.open().open_partition(topic, index, self.id_of(topic), config or settings())

    def append(
        self,
        partition: Partition,
        *values: bytes | None,
        timestamp_ms: int | list[int] = NOW_MS,
        codec: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> Appended:
        """Appends one batch and waits until it is durable."""
        appended = partition.append(
            batch(*values, timestamp_ms=timestamp_ms, codec=codec, producer=producer), now_ms=self.clock.now_ms()
        )
        self.settle(partition)
        return appended

    def append_keyed(
        self, partition: Partition, *records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOW_MS
    ) -> Appended:
        """Appends one batch of keys and values and waits until it is durable."""
        made = batches.own(batches.build(records, timestamp_ms=timestamp_ms))
        appended = partition.append(made, now_ms=self.clock.now_ms())
        self.settle(partition)
        return appended

    def compact(self, partition: Partition, limits: Limits | None = None) -> Done | None:
        """Compacts the partition as the broker's cleaner does, if there is anything to clean."""
        part = partition.dirty_part(self.clock.now_ms())
        if part is None or not part.must_run(partition.settings.dirty_ratio_min):
            return None
        assert self.directory is not None
        plan = partition.cleaning_plan(part, now_ms=self.clock.now_ms(), limits=limits or Limits())
        if partition.cleaned_to is None:
            self.directory.note_cleaned(partition, part.first_dirty_offset)()
        for found in segment_cleaner.clean(plan, self.files):
            if isinstance(found, Done):
                self.directory.note_cleaned(partition, found.cleaned_to)()
                return found
            incoming = segment_swap.load(partition.folder, found, self.files)
            self.loop.run_until_complete(partition.take_over(incoming, now_ms=self.clock.now_ms()))
        raise AssertionError("a cleaning ends with its figures")

    def settle(self, partition: Partition) -> None:
        """Runs the loop until everything that was appended is durable."""
        waiting = partition.durable(partition.log_end_offset)
        if waiting is not None:
            self.loop.run_until_complete(waiting)
        self.turn()

    def recover(self, partition: Partition) -> None:
        """Has a partition resume writes, as the broker asks every second: it refuses while its flush is under way."""
        assert self.committer is not None
        if self.committer.flusher.is_busy_with(partition):
            self.committer.flusher.finish()
        self.loop.run_until_complete(partition.recover())

    def finish(self, partition: Partition) -> None:
        """Commits and flushes everything, and makes the changes on disk that waited for that."""
        self.settle(partition)
        assert self.committer is not None
        self.committer.flusher.mark(partition)
        self.committer.flusher.settle()
        self.turn()

    def turn(self) -> None:
        """Runs what is ready on the loop, and the rounds that are not held."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def close(self) -> None:
        if self.directory is not None:
            self.stop(clean=False)
        self.loop.close()

    def read_wal(self) -> replay.WalContent:
        """What a recovery would find in the WAL now."""
        assert self.directory is not None
        return replay.read(str(self.path), checkpoints.id_bytes(self.directory.directory_id), self.files)

    def wal_end(self, partition: Partition) -> int:
        """The offset behind the last record of a partition that is in the WAL."""
        runs = self.read_wal().runs.get(partition.key, [])
        return runs[-1].end_offset if runs else 0

    def folder(self, topic: str = "clicks", index: int = 0) -> Path:
        return self.path / f"{topic}-{index}"


class MemoryLogDriver(LogDriver):
    """A driver on a disk in memory and without threads: many times faster, for searches of a million steps."""

    def __init__(
        self, *, page_bytes: int, wal_limits: WalLimits, entry_bytes_max: int, durability: Durability = "sync"
    ) -> None:  # fmt: skip
        self._workers = SteppedWorkers()
        super().__init__(
            Path("/driver"), durability=durability, page_bytes=page_bytes, worker=self._workers,
            entry_bytes_max=entry_bytes_max,
        )  # fmt: skip
        self.files = FaultyFileSystem(CrashFileSystem(), page_bytes=page_bytes)
        self._wal_limits = wal_limits

    def settle(self, partition: Partition) -> None:
        assert self.committer is not None
        self.committer.settle()
        self.turn()

    def step(self, count: int) -> None:
        """Do so many operations of the jobs that are under way."""
        for _ in range(count):
            self._workers.step()


def values(partition: Partition, start: int | None = None) -> dict[int, bytes | None]:
    """Every readable record from an offset on: its offset and value."""
    offset = partition.log_start_offset if start is None else start
    found: dict[int, bytes | None] = {}
    while data := partition.read(offset, bytes_max=4096):
        records = batches.unpack(data)
        found.update((record.offset, record.value) for record in records if record.offset >= offset)
        offset = records[-1].offset + 1
    return found
