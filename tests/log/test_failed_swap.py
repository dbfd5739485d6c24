"""A swap that the disk fails at any of its operations costs no record, neither then nor after more compactions."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from logmark.errors import LogFailed
from logmark.log import segment_cleaner, segment_swap
from logmark.log.group_commit import Durability
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Cleaned, Done, Limits
from logmark.log.verification import Verification
from logmark.log.wal.log import WalLimits
from logmark.testing.faulty_file_system import FaultyFile, FaultyFileSystem
from logmark.wire import batches
from tests.crash.crash_file_system import CrashFileSystem
from tests.log.directory_driver import MemoryLogDriver, settings

FOLDER = "/clicks-0"
COMPACTED = settings(
    segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
)
# All inactive segments become one.
MERGED = settings(cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, index_interval_bytes=100)
# Small, because the disk is in memory; large enough for all records of a run, so that none waits for a flush.
SMALL_WAL = WalLimits(bytes_max=1024 * 1024, file_bytes=64 * 1024, first_file_bytes=64 * 1024)
PRODUCER = 77


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every failure and every recovery is reported."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class RefusingFileSystem(FaultyFileSystem):
    """Counts the operations that change or sync a partition's folder, and refuses some of them."""

    def __init__(self) -> None:
        self.disk = CrashFileSystem()
        super().__init__(self.disk)
        self.count = 0
        self.is_refusing = False
        self._is_refused: Callable[[int], bool] = lambda number: False
        self._refusal = errno.EIO

    def refuse(self, is_refused: Callable[[int], bool], refusal: int = errno.EIO) -> None:
        """Refuse the operations, counted from now on, of which `is_refused` says so."""
        self.count, self.is_refusing = 0, True
        self._is_refused, self._refusal = is_refused, refusal

    def heal(self) -> None:
        super().heal()
        self.is_refusing = False

    def _count(self, path: str) -> None:
        if FOLDER in path:
            self.count += 1
            if self.is_refusing and self._is_refused(self.count - 1):
                raise OSError(self._refusal, os.strerror(self._refusal), path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if create and not self.exists(path):
            self._count(path)
        return super().open(path, create=create)

    def replace(self, source: str, target: str) -> None:
        if self.exists(source):
            self._count(source)
        super().replace(source, target)

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._count(path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._count(path)
        super().sync_directory(path)

    def _sync(self, path: str, sync: Callable[[], None]) -> None:
        if not path.endswith(FOLDER):
            self._count(path)
        super()._sync(path, sync)


class SwapDriver(MemoryLogDriver):
    """A compacted log, everything that was ever produced to it, and the newest record of each key."""

    def __init__(self, durability: Durability = "sync") -> None:
        super().__init__(page_bytes=4096, wal_limits=SMALL_WAL, entry_bytes_max=8 * 1024, durability=durability)
        self.files: RefusingFileSystem = RefusingFileSystem()
        self.partition = self.create(config=COMPACTED)
        self.produced: dict[int, tuple[bytes | None, bytes | None]] = {}
        self._number = 0

    @property
    def newest(self) -> dict[bytes | None, bytes | None]:
        return {key: value for _, (key, value) in sorted(self.produced.items())}

    def produce(self, rounds: int) -> None:
        """Keys that come again and again, and in each round one that never does."""
        for _ in range(rounds):
            self._number += 1
            keys = [b"a", b"b", b"only %d" % self._number]
            for key in keys:
                self._append([(key, b"%d " % self._number * 10)])

    def abort(self) -> None:
        """A transaction that leaves an entry in a transaction index."""
        made = batches.build(
            [(b"a", b"aborted")], timestamp_ms=self.clock.now_ms(), producer_id=PRODUCER, producer_epoch=0,
            base_sequence=0, attributes=batches.TRANSACTIONAL_BIT,
        )  # fmt: skip
        self.partition.append(batches.own(made), now_ms=self.clock.now_ms())
        self.partition.append_marker(PRODUCER, 0, commit=False, now_ms=self.clock.now_ms())
        self.settle(self.partition)

    def _append(self, records: list[tuple[bytes | None, bytes | None]]) -> None:
        made = batches.own(batches.build(records, timestamp_ms=self.clock.now_ms()))
        appended = self.partition.append(made, now_ms=self.clock.now_ms())
        # Without a turn of the loop, which would begin a flush when a segment was rolled.
        self.committer.settle()
        self.produced |= {appended.base_offset + at: record for at, record in enumerate(records)}

    def flush(self) -> None:
        self.finish(self.partition)

    def clean(self) -> bool:
        """Compact the log as the broker's cleaner does; return False if the disk refused that."""
        partition, now_ms = self.partition, self.clock.now_ms()
        part = partition.dirty_part(now_ms)
        assert part is not None and part.must_run(0.01)
        assert self.directory is not None and self.committer is not None
        plan = partition.cleaning_plan(part, now_ms=now_ms, limits=Limits())
        if partition.cleaned_to is None:
            self.directory.note_cleaned(partition, part.first_dirty_offset)()
        for found in segment_cleaner.clean(plan, self.files):
            if isinstance(found, Done):
                self.directory.note_cleaned(partition, found.cleaned_to)()
                return True
            swapped = partition.take_over(segment_swap.load(partition.folder, found, self.files), now_ms=now_ms)
            self.committer.flusher.settle()
            self.turn()
            if not swapped.done() or swapped.exception() is not None:
                assert self.files.is_refusing
                return False
        raise AssertionError("a cleaning ends with its figures")

    def heal(self) -> None:
        """Have the disk take everything again, and the broker try to."""
        self.files.heal()
        self.clock.advance(seconds=61)
        self.recover(self.partition)
        self.flush()
        assert self.partition.failure is None

    def restart(self, *, clean: bool) -> None:
        self.partition = self.reopen(clean=clean, config=COMPACTED)

    def check(self) -> None:
        """Readers find the newest record of each key, and none that was not produced at its offset."""
        partition = self.partition
        found = read(partition)
        assert all(self.produced[offset] == record for offset, record in found.items())
        assert self.newest == dict(found.values())
        assert [] == partition.damage
        assert max(self.produced) < partition.log_end_offset == partition.high_watermark
        bases = [segment.base_offset for segment in partition.segments]
        for segment, end in zip(partition.segments, [*bases[1:], partition.log_end_offset], strict=True):
            offsets = [
                (header.base_offset, header.next_offset) for _, header in segment.lookup.batches(0, segment.size)
            ]
            assert all(segment.base_offset <= first and following <= end for first, following in offsets)

    def verify(self) -> None:
        """Close the directory, and find nothing wrong with it."""
        self.stop()
        assert [] == Verification(str(self.path), self.files).run().findings


def read(partition: Partition) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What a reader of committed records sees, and that it sees it in the order of offsets."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = partition.log_start_offset
    while True:
        data, aborted = partition.fetch(offset, bytes_max=4096, at_least_one=True, is_committed=True)[:2]
        if not len(data):
            return found
        ends = dict(aborted)
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            is_aborted = header.is_transactional and ends.get(header.producer_id, 2**62) <= header.last_offset
            assert header.next_offset > offset
            if not header.is_control and not is_aborted:
                for record in batches.unpack(bytes(data[at : at + header.size])):
                    found[record.offset] = record.key, record.value
            at, offset = at + header.size, header.next_offset


def new_driver(*, is_merged: bool, durability: Durability = "sync") -> SwapDriver:
    """A log whose recovery point lies in the middle of what its next compaction replaces."""
    driver = SwapDriver(durability)
    driver.produce(3)
    driver.abort()
    driver.flush()
    driver.produce(2)
    driver.flush()
    assert driver.clean()
    driver.produce(4)
    driver.partition.configure(MERGED if is_merged else COMPACTED)
    assert driver.partition.recovery_point < driver.partition.segments[-2].base_offset
    return driver


def count_operations(*, is_merged: bool) -> int:
    """How many operations on the partition's folder the compaction of such a log takes."""
    driver = new_driver(is_merged=is_merged)
    segments = len(driver.partition.segments)
    driver.files.refuse(lambda number: False)
    assert driver.clean()
    assert len(driver.partition.segments) < segments or not is_merged
    driver.close()
    return driver.files.count


def interrupt(driver: SwapDriver, refusal: int, number: int) -> None:
    """Have a compaction refused at one operation; a folder that was made immutable also refuses all that follow."""
    is_lasting = refusal == errno.EPERM
    driver.files.refuse(lambda count: count == number or (is_lasting and count > number), refusal)
    with suppress(OSError):
        driver.clean()
    driver.files.is_refusing = is_lasting
    driver.partition.configure(COMPACTED)


def check_more(driver: SwapDriver) -> None:
    """Produce and compact more, and check the log after each step."""
    driver.check()
    driver.produce(3)
    driver.check()
    assert driver.clean()
    driver.check()


EVERY_REFUSAL = pytest.mark.parametrize(
    ("refusal", "is_merged"),
    [(errno.EPERM, True), (errno.EIO, True), (errno.ENOSPC, True), (errno.EMFILE, True), (errno.EPERM, False)],
)


@EVERY_REFUSAL
def test_a_swap_that_the_disk_refuses_half_way_costs_no_record_when_the_disk_takes_it_again(
    refusal: int, is_merged: bool
) -> None:
    for number in range(count_operations(is_merged=is_merged)):
        driver = new_driver(is_merged=is_merged)
        interrupt(driver, refusal, number)
        driver.heal()
        check_more(driver)
        driver.restart(clean=bool(number % 2))
        check_more(driver)
        driver.verify()
        driver.close()


@EVERY_REFUSAL
def test_a_swap_that_the_disk_refuses_half_way_costs_no_record_after_a_restart(refusal: int, is_merged: bool) -> None:
    for number in range(count_operations(is_merged=is_merged)):
        driver = new_driver(is_merged=is_merged)
        interrupt(driver, refusal, number)
        # A stop that the disk refuses is not a clean one.
        driver.stop(clean=bool(number % 2))
        driver.files.heal()
        driver.restart(clean=True)
        check_more(driver)
        driver.verify()
        driver.close()


def test_a_log_that_fails_while_a_flush_swaps_its_segments_is_not_written_again_from_before_the_swap() -> None:
    driver = new_driver(is_merged=True)
    partition = driver.partition
    part = partition.dirty_part(driver.clock.now_ms())
    assert part is not None
    plan = partition.cleaning_plan(part, now_ms=driver.clock.now_ms(), limits=Limits())
    output = next(iter(segment_cleaner.clean(plan, driver.files)))
    assert isinstance(output, Cleaned)
    incoming = segment_swap.load(partition.folder, output, driver.files)
    swapped = partition.take_over(incoming, now_ms=driver.clock.now_ms())
    driver.turn()
    assert driver.committer is not None and driver.committer.flusher.is_busy_with(partition)
    partition.commit_failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    driver.committer.flusher.finish()
    assert isinstance(swapped.exception(), LogFailed)

    driver.heal()

    partition.configure(COMPACTED)
    check_more(driver)
    driver.verify()
    driver.close()
