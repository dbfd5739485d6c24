"""Many partitions: a clean start reads the ends of the logs and nothing else, with few descriptors."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bench import partitions
from logmark.broker import logs
from logmark.broker.server import Broker
from logmark.clock import ManualClock
from logmark.disk.descriptors import OpenFiles
from logmark.disk.file_system import File, RealFile, RealFileSystem
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import DataDirectory
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.prefetch import Prefetch
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, TOPIC_ID, batch, settings, values

PARTITIONS = 40
SEGMENTS = 3


class CountedFile:
    """An open file whose reads are counted."""

    def __init__(self, file: RealFile, system: "CountingFileSystem") -> None:
        self._file = file
        self._system = system
        self.path = file.path
        self.pwrite, self.truncate, self.size = file.pwrite, file.truncate, file.size
        self.sync, self.close, self.is_in_place = file.sync, file.close, file.is_in_place
        self.hold_open = file.hold_open

    def pread(self, size: int, at: int) -> bytes:
        data = self._file.pread(size, at)
        self._system.read_bytes += len(data)
        return data


class CountingFileSystem(RealFileSystem):
    """The real files, and how much was asked of them."""

    def __init__(self, open_files: OpenFiles | None = None) -> None:
        super().__init__(sync=False, open_files=open_files)
        self.forget()

    def forget(self) -> None:
        self.read_bytes = self.opened = self.listed = self.asked = self.written = 0

    def open(self, path: str, *, create: bool = False) -> File:  # type: ignore[override]
        self.opened += 1
        return CountedFile(super().open(path, create=create), self)

    def read(self, path: str) -> bytes:
        self.opened += 1
        data = super().read(path)
        self.read_bytes += len(data)
        return data

    def write(self, path: str, data: bytes | bytearray | memoryview, *, sync: bool = True) -> None:
        self.written += 1
        super().write(path, data, sync=sync)

    def listdir(self, path: str) -> Sequence[str]:
        self.listed += 1
        return super().listdir(path)

    def size(self, path: str) -> int:
        self.asked += 1
        return super().size(path)

    def exists(self, path: str) -> bool:
        self.asked += 1
        return super().exists(path)


class ManyPartitions:
    """A directory with many partitions of three segments each, opened and closed again and again."""

    def __init__(self, path: Path, files: CountingFileSystem) -> None:
        self.path = path
        self.files = files
        self.loop = asyncio.new_event_loop()
        self.settings = settings(segment_bytes=200_000, index_interval_bytes=4096)

    def open(self) -> tuple[DataDirectory, list[Partition]]:
        self._committer = GroupCommit(self.loop, durability="os")
        directory = DataDirectory.open(
            self.path, files=self.files, committer=self._committer, clock=ManualClock(NOW_MS)
        )  # fmt: skip
        if directory.read(CATALOG) is None:
            entries = Catalog(None)
            entries.adopt([Entry(name="many", id=TOPIC_ID, partitions=PARTITIONS)], entries.next_producer_id)
            directory.write(CATALOG, entries.encode())
        return directory, [
            directory.open_partition("many", index, TOPIC_ID, self.settings) for index in range(PARTITIONS)
        ]

    def fill(self) -> int:
        """Writes three segments into each partition and returns the size of everything."""
        directory, found = self.open()
        for partition in found:
            for number in range(SEGMENTS * 12):
                made = batch(b"." * 15_000, producer=(PRODUCER_ID, 0, number))
                partition.append(made, now_ms=NOW_MS)
        size = sum(partition.size_bytes for partition in found)
        assert {SEGMENTS} == {len(partition.segments) for partition in found}
        assert self.close(directory)
        return size

    def close(self, directory: DataDirectory, *, clean: bool = True) -> bool:
        is_clean = directory.close(clean=clean)
        self._committer.close()
        return is_clean


@pytest.fixture
def many(tmp_path: Path) -> ManyPartitions:
    return ManyPartitions(tmp_path / "data", CountingFileSystem())


def test_a_clean_start_reads_only_the_ends_of_the_logs(many: ManyPartitions) -> None:
    size = many.fill()
    many.files.forget()

    directory, found = many.open()

    files = many.files
    assert [SEGMENTS * 12] * PARTITIONS == [partition.log_end_offset for partition in found]
    # The last batch or two of each log and its small files: not a fourteenth of what lies there.
    assert files.read_bytes < size / 14, f"{files.read_bytes} of {size} bytes were read"
    assert files.opened <= 4 * PARTITIONS + 9, "more than the id, an index, the producers and the end of each log"
    assert files.listed <= 2 * PARTITIONS + 2, "more than once for additions and once for segments"
    assert files.asked <= (SEGMENTS + 2) * PARTITIONS + 6, "more than the length of each segment, and the last again"
    assert 0 == files.written
    many.close(directory)


def test_a_clean_start_and_stop_writes_nothing_but_the_checkpoints(many: ManyPartitions) -> None:
    many.fill()
    before = {path: path.stat().st_mtime_ns for path in many.path.rglob("*/*")}

    directory, _ = many.open()
    assert many.close(directory)

    assert before == {path: path.stat().st_mtime_ns for path in many.path.rglob("*/*")}


def test_after_a_kill_every_byte_behind_the_recovery_points_is_read(many: ManyPartitions) -> None:
    size = many.fill()
    directory, _ = many.open()
    many.close(directory, clean=False)
    for path in many.path.glob("*-checkpoint"):
        path.unlink()
    many.files.forget()

    directory, found = many.open()

    assert size <= many.files.read_bytes
    assert [SEGMENTS * 12] * PARTITIONS == [partition.log_end_offset for partition in found]
    many.close(directory)


def test_many_partitions_are_read_and_written_with_few_descriptors(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=lambda: 10)
    many = ManyPartitions(tmp_path / "data", CountingFileSystem(open_files))
    many.fill()

    directory, found = many.open()

    for turn in range(2):
        for number, partition in enumerate(found):
            assert SEGMENTS * 12 + turn == len(values(partition))
            partition.append(batch(b"%d" % number), now_ms=NOW_MS)
            assert len(open_files) <= 10
    assert many.close(directory)
    directory, found = many.open()
    for number, partition in enumerate(found):
        assert [b"%d" % number] * 2 == list(values(partition, SEGMENTS * 12).values())
    many.close(directory)


def test_what_a_producer_sends_again_after_a_clean_start_is_known_though_the_tail_was_not_read(
    many: ManyPartitions,
) -> None:
    many.fill()
    directory, found = many.open()

    for number in range(SEGMENTS * 12 - 5, SEGMENTS * 12):
        again = found[0].append(batch(b"." * 15_000, producer=(PRODUCER_ID, 0, number)), now_ms=NOW_MS)
        assert (number, True) == (again.base_offset, again.is_duplicate)
    many.close(directory)


def readers() -> list[threading.Thread]:
    """The threads that read ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "logmark-ahead"]


def test_the_files_of_a_slow_disk_are_read_ahead_of_their_opening(many: ManyPartitions) -> None:
    many.fill()
    directory, _ = many.open()
    many.close(directory)
    many.files.forget()
    folders = [str(many.path / f"many-{index}") for index in range(PARTITIONS)]

    ahead = Prefetch([*folders, str(many.path / "gone-0")], many.files)
    for thread in readers():
        thread.join()
    ahead.stop()

    # Every folder once: its id, the indexes, the producers and the end of the last segment.
    assert PARTITIONS + 1 == many.files.listed
    assert PARTITIONS <= many.files.opened
    assert many.files.read_bytes < PARTITIONS * 40_000


def test_reading_ahead_ends_when_it_is_told_to(many: ManyPartitions) -> None:
    many.fill()
    many.files.forget()

    def endless() -> Iterator[str]:
        while True:
            yield str(many.path / "many-0")

    ahead = Prefetch(endless(), many.files)
    ahead.stop()

    assert [] == readers()


def test_a_start_from_a_slow_disk_reads_ahead_and_opens_the_same(tmp_path: Path) -> None:
    class SlowFileSystem(RealFileSystem):
        """A disk on which listing a folder takes five milliseconds of the broker's clock."""

        def listdir(self, path: str) -> Sequence[str]:
            clock.advance(seconds=0.005)
            if threading.current_thread().name == "logmark-ahead":
                is_ahead.set()
            elif readers():
                # Whoever opens the folders may else be done before one of these threads had its turn.
                assert is_ahead.wait(60), "nothing was read ahead"
            return super().listdir(path)

    is_ahead = threading.Event()
    clock = ManualClock(NOW_MS)
    with_data = 2 * logs.FIRST_LOOK

    async def once(*, is_first: bool) -> list[int]:
        broker = Broker(data_dir=str(tmp_path), durability="os", clock=clock, files=SlowFileSystem(sync=False))
        await broker.start()
        if is_first:
            for partition in (await broker.logs.create_topic("many", with_data, {})).partitions:
                partition.append(batch(b"x"), now_ms=NOW_MS)
        topic = broker.logs.topic("many")
        assert topic is not None
        ends = [partition.log_end_offset for partition in topic.partitions]
        await broker.stop()
        return ends

    asyncio.run(once(is_first=True))
    assert [1] * with_data == asyncio.run(once(is_first=False))
    assert is_ahead.is_set(), "nothing was read ahead"


@pytest.mark.soak
def test_ten_thousand_partitions_open_in_five_seconds_with_1024_descriptors(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    many = partitions.measure(tmp_path / "data", 100)

    seen = many.opened
    record_property("first fetch s", round(seen.first_fetch_s, 2))
    record_property("all fetched s", round(seen.all_fetched_s, 2))
    record_property("clean stop of what was written s", round(many.close_s, 2))
    record_property("descriptors", seen.descriptors)
    record_property("memory MB", round(seen.memory_mb))
    assert seen.first_fetch_s < 5
    assert seen.descriptors < 1024
    assert many.close_s < 60
