"""Several readers of one log: its batches are read and checked once, and nobody is told what is no longer true."""

from collections.abc import Iterator

import pytest

from logmark.errors import ErrorCode, Refused
from logmark.log import recent_reads
from logmark.log.partition import Partition
from logmark.log.recent_reads import RecentReads
from logmark.log.segment import Segment
from logmark.wire import batches
from tests.log.lab import NOW_MS, Lab, batch, settings

VALUE = b"v" * 20_000
# Each read finds three batches.
READ_BYTES = 65_000
BATCHES = 12
STARTS = range(0, BATCHES, 3)


class Memory:
    """The memory that clients may cause."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.is_short = False

    def hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def has_room(self, size_bytes: int) -> bool:
        return not self.is_short


class FileReads:
    """Counts the reads of segment files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = Segment.read

        def count(segment: Segment, position: int, size: int) -> bytes:
            # The first bytes of a batch are looked at to find it, and to see that the next one follows.
            self.count += size >= READ_BYTES
            return read(segment, position, size)

        monkeypatch.setattr(Segment, "read", count)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def reads(memory: Memory) -> RecentReads:
    return RecentReads(1_000_000, hold=memory.hold, has_room=memory.has_room)


@pytest.fixture
def partition(lab: Lab, reads: RecentReads) -> Iterator[Partition]:
    lab.recent_reads = reads
    partition = lab.create(config=settings(segment_bytes=1_000_000))
    for _ in range(BATCHES):
        lab.append(partition, VALUE)
    yield partition


def read_all(partition: Partition) -> bytes:
    """The whole log, as one of its readers reads it."""
    return b"".join(bytes(partition.read(start, bytes_max=READ_BYTES)) for start in STARTS)


def test_what_several_readers_ask_for_is_read_from_the_file_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_all(partition)
    read_all(partition)  # by this one it is seen that there are several
    file_reads = FileReads(monkeypatch)

    assert [first] * 3 == [read_all(partition) for _ in range(3)]

    assert 0 == file_reads.count


def test_of_a_log_with_one_reader_nothing_is_kept(partition: Partition, reads: RecentReads, memory: Memory) -> None:
    read_all(partition)

    assert (0, 0) == (reads.size_bytes, memory.held_bytes)


def test_what_is_kept_counts_as_memory_and_is_dropped_where_that_is_short(
    partition: Partition, reads: RecentReads, memory: Memory
) -> None:
    for _ in range(2):
        read_all(partition)
    assert reads.size_bytes == memory.held_bytes > READ_BYTES

    memory.is_short = True
    partition.read(1, bytes_max=READ_BYTES)

    assert (0, 0) == (reads.size_bytes, memory.held_bytes)


def test_no_more_is_kept_than_the_limit(lab: Lab, memory: Memory) -> None:
    lab.recent_reads = RecentReads(100_000, hold=memory.hold)
    partition = lab.create()
    for _ in range(BATCHES):
        lab.append(partition, VALUE)

    for _ in range(3):
        read_all(partition)
        assert memory.held_bytes <= 100_000

    assert memory.held_bytes


def test_nothing_is_kept_any_more_when_only_one_reader_is_left(
    partition: Partition, reads: RecentReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_reads, "KEPT_AFTERWARDS", 2)
    for _ in range(2):
        partition.read(0, bytes_max=READ_BYTES)
    assert reads.size_bytes

    for start in (3, 6, 9):
        partition.read(start, bytes_max=READ_BYTES)

    assert not reads.size_bytes


def test_the_memory_is_free_when_nobody_reads_any_more(
    partition: Partition, reads: RecentReads, memory: Memory
) -> None:
    for _ in range(2):
        read_all(partition)

    reads.drop_idle()
    assert memory.held_bytes, "somebody has read since the last time"
    reads.drop_idle()

    assert (0, 0) == (reads.size_bytes, memory.held_bytes)


def test_a_log_that_has_grown_is_read_again(lab: Lab, partition: Partition) -> None:
    last = BATCHES - 2
    for _ in range(3):
        assert BATCHES == batches.sound_prefix(partition.read(last, bytes_max=READ_BYTES), base=last)[1]

    lab.append(partition, VALUE)

    assert BATCHES + 1 == batches.sound_prefix(partition.read(last, bytes_max=READ_BYTES), base=last)[1]


def test_readers_with_other_limits_get_what_they_ask_for(partition: Partition) -> None:
    for _ in range(3):
        partition.read(0, bytes_max=READ_BYTES)

    assert 2 == batches.sound_prefix(partition.read(0, bytes_max=45_000), base=0)[1]
    fetched = partition.fetch(0, bytes_max=READ_BYTES, at_least_one=True, is_committed=True)
    assert [] == fetched.aborted


def test_deleted_records_are_not_served(partition: Partition, memory: Memory) -> None:
    for _ in range(3):
        partition.read(0, bytes_max=READ_BYTES)

    partition.delete_records(1)

    with pytest.raises(Refused) as refused:
        partition.read(0, bytes_max=READ_BYTES)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == refused.value.code


def test_compacted_records_are_not_served(lab: Lab, reads: RecentReads) -> None:
    lab.recent_reads = reads
    config = settings(cleanup_policy="compact", segment_bytes=100_000, min_cleanable_dirty_ratio=0.01)
    partition = lab.create(config=config)
    for _ in range(BATCHES):
        lab.append_keyed(partition, (b"key", VALUE))
    for _ in range(3):
        partition.read(0, bytes_max=READ_BYTES)
    assert reads.size_bytes

    lab.compact(partition)

    assert not reads.size_bytes
    assert batches.read_header(partition.read(0, bytes_max=READ_BYTES)).base_offset > 0


def test_a_log_that_is_closed_holds_no_memory(lab: Lab, partition: Partition, memory: Memory) -> None:
    for _ in range(3):
        read_all(partition)

    lab.stop()

    assert 0 == memory.held_bytes


def test_of_two_segments_the_first_says_that_more_follows_also_when_it_was_the_last_one_before(
    lab: Lab, partition: Partition
) -> None:
    for _ in range(3):
        fetched = partition.fetch(0, bytes_max=READ_BYTES, at_least_one=True, is_committed=False)
        assert not fetched.is_followed

    while partition.append(batch(VALUE), now_ms=NOW_MS) and len(list(lab.folder().glob("*.log"))) == 1:
        lab.settle(partition)
    lab.settle(partition)

    assert partition.fetch(0, bytes_max=READ_BYTES, at_least_one=True, is_committed=False).is_followed
