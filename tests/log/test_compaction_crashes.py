"""A crash at any moment of a compaction, or of the recovery after it, loses no newest record and invents none."""

import ast
import contextlib
import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from logmark.clock import ManualClock
from logmark.errors import LogmarkError
from logmark.log import log_to_clean, segment_cleaner, segment_swap
from logmark.log.disk_worker import Job
from logmark.log.flusher import _Cycle
from logmark.log.partition import Partition
from logmark.log.segment import Segment
from logmark.log.segment_cleaner import Done, Limits
from logmark.wire import batches
from tests.crash import mutants
from tests.crash.broker_logs import BrokerLogsDriver
from tests.crash.crash_file_system import CrashFileSystem, Fate
from tests.crash.mutants import SyncSite, without

NOW_MS = 1_700_000_000_000
TOPIC = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "file.delete.delay.ms": "0"}
PRODUCER = 77


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every start after a crash warns of what it finds."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Crashed(BaseException):
    """The broker is gone."""


@dataclass
class CompactionRun:
    """A compaction on one disk: every moment of it, and what must be true of each."""

    moments: list[CrashFileSystem]
    written: set[tuple[int, bytes | None, bytes | None]]
    newest: dict[bytes | None, bytes | None]
    end: int


def append(
    driver: BrokerLogsDriver, partition: Partition, records: list[tuple[bytes, bytes | None]], **options: int,
) -> None:
    made = batches.own(batches.build(records, timestamp_ms=NOW_MS, **options))
    partition.append(made, now_ms=NOW_MS)
    driver.settle()


def compact(driver: BrokerLogsDriver, partition: Partition, files: CrashFileSystem) -> None:
    """What the broker's cleaner does, step by step."""
    part = partition.dirty_part(NOW_MS)
    if part is None or not part.must_run(0.0):
        return
    plan = partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())
    if partition.cleaned_to is None:
        driver.directory.note_cleaned(partition, part.first_dirty_offset)()
    for found in segment_cleaner.clean(plan, files):
        if isinstance(found, Done):
            driver.directory.note_cleaned(partition, found.cleaned_to)()
        else:
            swapped = partition.take_over(segment_swap.load(partition.folder, found, files), now_ms=NOW_MS)
            driver.flush()
            assert swapped.done(), "the cleaner waits for the disk before it cleans more"


def read(partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    """What a reader of committed records sees."""
    found, offset = [], partition.log_start_offset
    while True:
        data, aborted = partition.fetch(offset, bytes_max=1 << 20, at_least_one=True, is_committed=True)[:2]
        if not len(data):
            return found
        ends = dict(aborted)
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            is_aborted = header.is_transactional and ends.get(header.producer_id, 2**62) <= header.last_offset
            if not header.is_control and not is_aborted:
                found += [record[0:1] + record[2:4] for record in batches.unpack(bytes(data[at : at + header.size]))]
            at, offset = at + header.size, header.next_offset


# What happens before the compaction that is crashed.
Steps = tuple[tuple[str] | tuple[str, int], ...]
SEVERAL_INTO_ONE: Steps = (
    *[("fill", 8), ("abort",), ("fill", 5), ("compact",), ("fill", 5), ("flush",)],
    # In the WAL only.
    ("fill", 3),
)  # fmt: skip
# The recovery point is in the middle of the first segment that is replaced: a swap before the points of its flush are
# durable would leave a WAL that continues a segment which is gone.
ABOVE_THE_RECOVERY_POINT: Steps = (("fill", 2), ("flush",), ("fill", 6))


def run_compaction(steps: Steps = SEVERAL_INTO_ONE) -> CompactionRun:
    """Keys over many small segments, perhaps an aborted transaction among them, compacted at the end."""
    disk = CrashFileSystem()
    driver = BrokerLogsDriver(disk, ManualClock(NOW_MS))
    driver.create_topic("profiles", 1, TOPIC)
    partition = driver.logs.partition("profiles", 0)
    assert partition is not None
    run = CompactionRun([], set(), {}, 0)
    value = itertools.count()

    def fill(rounds: int) -> None:
        """Keys that come again and again, and every time one that never does."""
        for _ in range(rounds):
            number = next(value)
            append(driver, partition, [(b"a", b"%d" % number * 20)])
            append(driver, partition, [(b"only %d" % number, b"here"), (b"b", b"%d" % number * 20)])
        run.written |= set(read(partition))

    def abort() -> None:
        append(driver, partition, [(b"a", b"aborted"), (b"t", b"aborted")], producer_id=PRODUCER, producer_epoch=0,
               base_sequence=0, attributes=batches.TRANSACTIONAL_BIT)  # fmt: skip
        partition.append_marker(PRODUCER, 0, commit=False, now_ms=NOW_MS)
        driver.settle()
        append(driver, partition, [(b"only 1", None)])

    does = {"fill": fill, "abort": abort, "flush": driver.flush, "compact": lambda: compact(driver, partition, disk)}
    for name, *arguments in steps:
        does[name](*arguments)
    bases = [segment.base_offset for segment in partition.segments]
    run.newest = {key: content for _, key, content in sorted(run.written)}
    run.end = partition.log_end_offset
    disk.before_change = lambda: run.moments.append(disk.killed())
    compact(driver, partition, disk)
    disk.before_change = lambda: None
    run.moments.append(disk.killed())
    assert len(read(partition)) < len(run.written)
    if steps is SEVERAL_INTO_ONE:
        assert 1 < len(partition.segments) < len(bases), "several have become one"
    return run


def check(disk: CrashFileSystem, run: CompactionRun) -> int:
    """Checks what a start on the disk finds, and returns how many changes and syncs it makes."""
    changes = 0

    def count() -> None:
        nonlocal changes
        changes += 1

    disk.before_change = count
    driver = BrokerLogsDriver(disk, ManualClock(NOW_MS))
    disk.before_change = lambda: None
    partition = driver.logs.partition("profiles", 0)
    assert partition is not None
    found = read(partition)
    assert set(found) <= run.written
    assert sorted(set(found)) == found
    newest = {key: value for _, key, value in found}
    assert {key: value for key, value in run.newest.items() if value is not None}.items() <= newest.items()
    ends = [end_of(segment) for segment in partition.segments]
    bases = [segment.base_offset for segment in partition.segments]
    assert all(end <= base for end, base in zip(ends, bases[1:], strict=False)), "a segment is there twice"
    assert ([], run.end) == (partition.damage, partition.log_end_offset)
    names = [name for name in disk.listdir(partition.folder) if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert [] == names
    return changes


def end_of(segment: Segment) -> int:
    ends = [header.next_offset for _, header in segment.lookup.batches(0, segment.size)]
    return max(ends, default=segment.base_offset)


class RecoveryChecks:
    """Starts after a crash, of one version of the code: a start on a disk that was seen before ends in the same way."""

    def __init__(self, run: CompactionRun) -> None:
        self._run = run
        self._changes: dict[int, int] = {}

    def check(self, disk: CrashFileSystem) -> None:
        """A start on the disk finds every newest record, none that was not written, and nothing damaged."""
        image = image_of(disk)
        if image not in self._changes:
            self._changes[image] = check(disk, self._run)

    def changes(self, disk: CrashFileSystem) -> int:
        """How many changes and syncs a start makes on a disk that was checked."""
        return self._changes[image_of(disk)]


def image_of(disk: CrashFileSystem) -> int:
    assert not disk.unsynced(), "what the disk may still lose belongs to its state"
    return hash(frozenset(disk.image().items()))


def states(run: CompactionRun, choose: random.Random, starts: RecoveryChecks) -> Iterator[CrashFileSystem]:
    """Every moment with every plain power loss; some of them crash again while they recover."""
    for moment in run.moments:
        for loss in moment.power_losses():
            if any(fate in (Fate.GARBAGE, Fate.ZEROS, Fate.TORN) for fate in loss.fates.values()):
                continue
            disk = moment.after(loss)
            yield disk.killed()
            yield from crash_again(disk, choose, starts)


def crash_again(disk: CrashFileSystem, choose: random.Random, starts: RecoveryChecks) -> Iterator[CrashFileSystem]:
    """The disk after a power loss in the middle of a start, unless the start has ended before."""
    left = choose.randrange(25)
    if left >= starts.changes(disk):
        return
    again = disk.killed()

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crashed

    again.before_change = count_down
    with pytest.raises(Crashed):
        BrokerLogsDriver(again, ManualClock(NOW_MS))
    again.before_change = lambda: None
    yield again.after(choose.choice(list(again.power_losses())))


def survived(run: CompactionRun, seed: int = 7) -> int:
    """How many states a start survives; raises at the first that it does not."""
    count, starts = 0, RecoveryChecks(run)
    for disk in states(run, random.Random(seed), starts):
        starts.check(disk)
        count += 1
    return count


@pytest.mark.parametrize("steps", [SEVERAL_INTO_ONE, ABOVE_THE_RECOVERY_POINT], ids=["several", "above"])
def test_a_crash_while_a_log_is_compacted_loses_nothing(steps: Steps) -> None:
    count = survived(run_compaction(steps))
    assert count > 300, count


def swap_first(cycle: _Cycle) -> Job:
    """Flush as the flusher does, but with the changes before the recovery points."""
    changes = [change for flush in cycle.flushes for change in flush.changes]
    for flush in cycle.flushes:
        flush.syncs, flush.changes = [*flush.syncs, *flush.changes], ()
    yield from FLUSH(cycle)
    for flush in cycle.flushes:
        flush.changes = changes


FLUSH = _Cycle.run


def test_a_swap_before_the_recovery_points_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Cycle, "run", swap_first)
    with pytest.raises((AssertionError, LogmarkError)):
        survived(run_compaction(ABOVE_THE_RECOVERY_POINT))


def sync_sites() -> Iterator[SyncSite]:
    """Every sync that a cleaning and its swap ask for, by themselves."""
    for module in (segment_cleaner, segment_swap, log_to_clean):
        path = Path(str(module.__file__))
        for function, node in mutants._attributes(ast.parse(path.read_text()), ""):
            if node.attr in ("sync", "sync_file", "sync_directory"):
                yield SyncSite(path.stem, function, node.lineno, node.col_offset, ast.unparse(node))


@pytest.mark.parametrize("driver", list(sync_sites()), ids=str)
def test_every_sync_of_a_compaction_is_needed(driver: SyncSite) -> None:
    with without(driver), contextlib.ExitStack() as noticed:
        noticed.enter_context(pytest.raises((AssertionError, LogmarkError, OSError)))
        for seed in range(6):
            survived(run_compaction(), seed)
