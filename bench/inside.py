"""The log measured inside this process, without sockets: append, read, decode, recovery and compaction."""

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import best, seconds
from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.group_commit import Durability, GroupCommit
from logmark.log.partition import Partition, batch_rules
from logmark.log.segment_cleaner import Done, Plan, clean
from logmark.log.settings import TopicSettings
from logmark.wire import batches, codecs, columns

TOPIC, TOPIC_ID = "bench", bytes(range(16))
NOW_MS = 1_700_000_000_000
RECORD_BYTES = 100
# A value of 92 bytes makes a record of 100: its size, attributes, both deltas, the missing key and the headers' count.
VALUE_BYTES = 92
EVERYTHING = 2**63 - 1
COMPACTIONS = 3


class Opened:
    """A data directory with one partition, on the real disk."""

    def __init__(self, path: Path, *, durability: Durability, is_new: bool = True, **settings: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._committer = GroupCommit(self.loop, durability=durability)
        files = RealFileSystem(sync=durability == "sync")
        self.directory = DataDirectory.open(path, files=files, committer=self._committer, clock=SystemClock())
        self.settings = TopicSettings({}, settings)
        if is_new:
            known = Catalog(None)
            known.adopt([Entry(name=TOPIC, id=TOPIC_ID, partitions=1)], known.next_producer_id)
            self.directory.write(CATALOG, known.encode())
            self.partition = self.directory.create_partition(TOPIC, 0, TOPIC_ID, self.settings)
        else:
            self.partition = self.directory.open_partition(TOPIC, 0, TOPIC_ID, self.settings)

    def close(self, *, clean: bool = True) -> None:
        """Closes the directory."""
        self.directory.close(clean=clean)
        self._committer.close()
        self.loop.close()


@contextmanager
def opened(path: Path, *, durability: Durability) -> Iterator[Opened]:
    """A fresh directory that is removed at the end."""
    made = Opened(path, durability=durability)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(path)


def batch_of(size: int, *, codec: int = codecs.NONE) -> bytearray:
    """A batch of about that many bytes before it is compressed, of records of 100 bytes that resemble each other."""
    count = max(1, (size - batches.HEADER_BYTES) // (RECORD_BYTES + 2))
    chance = random.Random(size)
    texts = [b"%020d" % chance.randrange(10**20) for _ in range(500)]
    records = [(None, (texts[number % 500] * 5)[:VALUE_BYTES]) for number in range(count)]
    return batches.build(records, timestamp_ms=NOW_MS, codec=codec)


def append(path: Path, batch: bytearray, count: int, *, durability: Durability) -> float:
    """Seconds for that many appends one after the other, each durable before the next if that is asked for."""
    with opened(path, durability=durability) as at:
        partition, produced = at.partition, batches.own(batch)
        if durability == "os":
            return seconds(lambda: [partition.append(produced, now_ms=NOW_MS) for _ in range(count)])

        async def one_by_one() -> None:
            for _ in range(count):
                appended = partition.append(produced, now_ms=NOW_MS)
                waiting = partition.durable(appended.last_offset + 1)
                if waiting is not None:
                    await waiting

        return seconds(lambda: at.loop.run_until_complete(one_by_one()))


def check_and_append(path: Path, batch: bytearray, count: int) -> float:
    """Seconds for that many appends of batches that a client sent: their checksum and every record are checked."""
    with opened(path, durability="os") as at:
        rules = batch_rules(TopicSettings({}, {"max.message.bytes": str(1 << 24)}), decompressed_bytes_max=1 << 30)

        def work() -> None:
            for _ in range(count):
                batch[0:8] = bytes(8)
                checked = batches.check_produced(memoryview(batch), rules, now_ms=NOW_MS, produce_version=9)
                at.partition.append(checked, now_ms=NOW_MS)

        return seconds(work)


def fill(partition: Partition, batch: bytearray, count: int) -> None:
    """Appends the same batch again and again."""
    produced = batches.own(batch)
    for _ in range(count):
        partition.append(produced, now_ms=NOW_MS)


def read(partition: Partition, bytes_max: int) -> float:
    """Seconds to read a partition from end to end, every checksum checked."""

    def work() -> None:
        offset = 0
        while data := partition.read(offset, bytes_max=bytes_max):
            offset = _end(data)

    return seconds(work)


def _end(data: bytes | memoryview) -> int:
    """The offset behind the batches of a read: they are of one size here."""
    size = batches.read_header(data).size
    return batches.read_header(data, len(data) - size).next_offset


def decode(data: bytes, times: int) -> tuple[int, float]:
    """The number of records, and the least seconds to turn them into columns."""
    count = columns.decode(data, start=0, stop=EVERYTHING, decompressed_bytes_max=1 << 30).count
    return count, best(
        lambda: columns.decode(data, start=0, stop=EVERYTHING, decompressed_bytes_max=1 << 30), times
    )  # fmt: skip


def decompress(data: bytes, codec: int, times: int) -> float:
    """The least seconds for the codec alone."""
    return best(lambda: codecs.decompress(codec, data[batches.HEADER_BYTES :], bytes_max=1 << 30), times)


def recover(path: Path) -> tuple[int, float]:
    """The bytes that were checked, and the seconds to open a partition that was not closed."""
    begin = time.perf_counter()
    at = Opened(path, durability="os", is_new=False)
    took_s = time.perf_counter() - begin
    size = at.partition.size_bytes
    at.close(clean=False)
    return size, took_s


def _clean(plan: Plan) -> Done:
    done = list(clean(plan, RealFileSystem(sync=False)))[-1]
    assert isinstance(done, Done)
    for path in Path(plan.folder).glob("*.cleaned"):
        path.unlink()
    return done


def compact(path: Path, records: int, keys: int) -> Done:
    """Cleans a log in which every key was written several times, some times over; what the quickest cleaning saw."""
    made = Opened(path, durability="os", **{"cleanup.policy": "compact", "segment.bytes": str(1 << 28)})
    try:
        chance, per_batch = random.Random(keys), 1000
        value = b"." * (VALUE_BYTES - 10)
        for _ in range(records // per_batch):
            chosen = [(b"%010d" % chance.randrange(keys), value) for _ in range(per_batch)]
            made.partition.append(batches.own(batches.build(chosen, timestamp_ms=NOW_MS)), now_ms=NOW_MS)
        segments = made.partition.segments
        plan = Plan(
            folder=made.partition.folder,
            bases=[segment.base_offset for segment in segments],
            sizes=[segment.size for segment in segments],
            first_dirty_offset=0,
            end_offset=made.partition.log_end_offset,
            now_ms=NOW_MS,
            delete_retention_ms=86_400_000,
        )
        return min((_clean(plan) for _ in range(COMPACTIONS)), key=lambda done: done.seconds)
    finally:
        made.close(clean=False)
        shutil.rmtree(path)
