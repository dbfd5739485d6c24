"""A partition takes over what was cleaned: readers, restarts, crashes and retention find the same log, but smaller."""

import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode, LogFailed, Malformed, Refused
from logmark.log import checkpoints, segment_cleaner, segment_swap
from logmark.log.index import OffsetIndex, TimeIndex
from logmark.log.loader import Loader
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Cleaned, Limits
from logmark.wire import batches
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver, batch, settings, values

VALUES = {
    "segment_bytes": 400, "index_interval_bytes": 100, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01,
}  # fmt: skip
COMPACT = settings(**VALUES)
KEYS = 5


def fill(driver: LogDriver, rounds: int = 6, **config: object) -> Partition:
    """Every key again and again, one record per batch, in small segments."""
    partition = driver.create(config=settings(**{**VALUES, **config}))
    for at in range(rounds):
        for key in range(KEYS):
            driver.append_keyed(partition, (b"key-%d" % key, b"value %d" % at))
    return partition


def newest(partition: Partition) -> dict[bytes | None, bytes | None]:
    """What a reader of everything ends up with."""
    found: dict[bytes | None, bytes | None] = {}
    for record in records(partition):
        found[record.key] = record.value
    return found


def records(partition: Partition) -> Iterator[batches.Record]:
    offset = partition.log_start_offset
    while data := partition.read(offset, bytes_max=4096):
        yield from (record for record in batches.unpack(data) if record.offset >= offset)
        at = 0
        while at < len(data):
            header = batches.read_header(data, at)
            at, offset = at + header.size, header.next_offset


EXPECTED = {b"key-%d" % key: b"value 5" for key in range(KEYS)}


def test_every_key_keeps_its_newest_record_at_its_offset(driver: LogDriver) -> None:
    partition = fill(driver)
    before = {record.offset: (record.key, record.value) for record in records(partition)}
    end = partition.log_end_offset

    done = driver.compact(partition)

    after = {record.offset: (record.key, record.value) for record in records(partition)}
    assert EXPECTED == newest(partition)
    assert after.items() < before.items()
    assert (0, end, end) == (partition.log_start_offset, partition.high_watermark, partition.log_end_offset)
    assert done is not None and done.cleaned_to == partition.cleaned_to
    assert [] == partition.damage


def test_every_offset_can_still_be_asked_for(driver: LogDriver) -> None:
    partition = fill(driver)
    driver.compact(partition)
    kept = [record.offset for record in records(partition)]

    for offset in range(partition.log_end_offset):
        found = batches.unpack(partition.read(offset, bytes_max=1))
        wanted = next(each for each in kept if each >= offset)
        header = batches.read_header(partition.read(offset, bytes_max=1))
        assert header.last_offset >= offset
        assert not found or found[0].offset == wanted
    assert b"" == partition.read(partition.log_end_offset, bytes_max=1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_recovery_point_known", [True, False])
def test_a_restart_finds_the_same_log(driver: LogDriver, clean: bool, is_recovery_point_known: bool) -> None:
    partition = fill(driver)
    driver.compact(partition)
    expected = list(records(partition))
    if not is_recovery_point_known:
        driver.stop(clean=clean)
        (driver.path / checkpoints.RECOVERY_POINTS).unlink(missing_ok=True)

    partition = driver.reopen(clean=clean, config=COMPACT)

    assert expected == list(records(partition))
    assert ([], 30) == (partition.damage, partition.log_end_offset)
    assert 30 == driver.append_keyed(partition, (b"key-0", b"after")).base_offset


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_that_is_no_longer_compacted_keeps_its_holes(driver: LogDriver, clean: bool) -> None:
    partition = fill(driver)
    driver.compact(partition)
    expected = list(records(partition))
    partition.configure(settings(segment_bytes=400))
    assert expected == list(records(partition))
    driver.stop(clean=clean)
    (driver.path / checkpoints.RECOVERY_POINTS).unlink(missing_ok=True)

    partition = driver.reopen(clean=clean, config=settings(segment_bytes=400))

    assert expected == list(records(partition))
    assert [] == partition.damage


def test_a_compacted_topic_that_was_never_cleaned_has_no_holes_and_a_lost_batch_is_seen(driver: LogDriver) -> None:
    partition = fill(driver)
    driver.stop()
    # Else a start after a clean stop reads only the end.
    next(driver.folder().glob("*.index")).unlink()
    first = next(iter(sorted(driver.folder().glob("*.log"))))
    data = first.read_bytes()
    size = batches.read_header(data).size
    first.write_bytes(data[:size] + data[2 * size :])

    partition = driver.reopen(clean=False, config=COMPACT)

    assert partition.damage
    with pytest.raises(Refused) as refused:
        partition.read(1, bytes_max=1)
    assert ErrorCode.CORRUPT_MESSAGE == refused.value.code


def test_without_the_cleaners_checkpoint_any_log_may_have_holes(driver: LogDriver) -> None:
    partition = fill(driver)
    driver.compact(partition)
    expected = list(records(partition))
    driver.stop(clean=False)
    (driver.path / checkpoints.CLEANED).write_bytes(b"no checkpoint")
    (driver.path / checkpoints.RECOVERY_POINTS).unlink(missing_ok=True)

    partition = driver.reopen(clean=False, config=COMPACT)

    assert expected == list(records(partition))
    assert [] == partition.damage


def test_the_checkpoint_is_kafkas_and_is_entered_before_anything_is_swapped(driver: LogDriver) -> None:
    partition = fill(driver)
    seen = []
    take_over = partition.take_over

    def watched(*args, **options):
        seen.append((driver.path / checkpoints.CLEANED).read_bytes())
        return take_over(*args, **options)

    partition.take_over = watched  # type: ignore[method-assign]
    driver.compact(partition)

    assert b"0\n1\nclicks 0 0\n" == seen[0]
    assert (
        b"0\n1\nclicks 0 %d\n" % partition.segments[-1].base_offset
        == (driver.path / checkpoints.CLEANED).read_bytes()
    )


def test_the_checkpoint_of_a_deleted_topic_says_nothing_of_its_successor(driver: LogDriver) -> None:
    partition = fill(driver)
    driver.compact(partition)
    assert driver.directory is not None
    driver.directory.delete_partition("clicks", 0)

    partition = driver.create(config=COMPACT)

    assert partition.cleaned_to is None
    assert {} == checkpoints.read_offsets((driver.path / checkpoints.CLEANED).read_bytes())


def test_readers_go_on_while_the_disk_has_not_followed_yet(driver: LogDriver) -> None:
    partition = fill(driver)
    part = partition.dirty_part(NOW_MS)
    assert part is not None
    plan = partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())
    outputs = [each for each in segment_cleaner.clean(plan, driver.files) if isinstance(each, Cleaned)]
    driver.finish(partition)

    with driver.files.hold_syncs("clicks-0"):
        incoming = [segment_swap.load(partition.folder, each, driver.files) for each in outputs]
        swaps = [partition.take_over(each, now_ms=NOW_MS) for each in incoming]
        driver.turn()
        driver.files.wait_for_held_sync()
        before = list(records(partition))
        assert EXPECTED == newest(partition)
        assert not any(each.done() for each in swaps)
        appended = partition.append(batch(b"meanwhile"), now_ms=NOW_MS)
    for each in swaps:
        driver.loop.run_until_complete(each)
    driver.settle(partition)

    assert appended.last_offset + 1 == partition.high_watermark
    assert before == list(records(partition))[: len(before)]


def test_a_segment_may_be_replaced_while_a_flush_that_began_before_syncs_it(driver: LogDriver) -> None:
    partition = fill(driver)
    filled = partition.segments[-1]
    while partition.segments[-1] is filled:
        driver.append_keyed(partition, (b"key-0", b"value 5"))
    flushed = partition.segments[-1]
    # The next flush is the one that is asked for below, and it has something to sync.
    driver.finish(partition)
    assert driver.committer is not None
    with driver.files.hold_syncs(flushed.path):
        driver.append_keyed(partition, (b"key-0", b"value 5"))
        driver.committer.flusher.mark(partition)
        driver.turn()
        driver.files.wait_for_held_sync()
        while partition.segments[-1] is flushed:
            driver.append_keyed(partition, (b"key-0", b"value 5"))
        part = partition.dirty_part(NOW_MS)
        assert part is not None and part.end_offset > flushed.base_offset
        plan = partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())
        outputs = [each for each in segment_cleaner.clean(plan, driver.files) if isinstance(each, Cleaned)]
        incoming = [segment_swap.load(partition.folder, each, driver.files) for each in outputs]
        swaps = [partition.take_over(each, now_ms=NOW_MS) for each in incoming]
        driver.turn()
    for each in swaps:
        driver.loop.run_until_complete(each)

    assert partition.failure is None
    assert EXPECTED == newest(partition)


def test_many_segments_become_one_and_their_snapshots_go(driver: LogDriver) -> None:
    partition = fill(driver)
    for number in range(3):
        driver.append(partition, b"x", producer=(PRODUCER_ID, 0, number))
    partition.configure(settings(**{**VALUES, "segment_bytes": 100_000}))
    bases = [segment.base_offset for segment in partition.segments]

    driver.compact(partition)

    assert [0, bases[-1]] == [segment.base_offset for segment in partition.segments]
    left = {path.name for path in driver.folder().iterdir() if not path.name.endswith(".deleted")}
    assert {name for name in left if name.endswith(".snapshot")} == {f"{bases[-1]:020d}.snapshot"}
    deleted = [path for path in driver.folder().iterdir() if path.name.endswith(".deleted")]
    assert deleted
    driver.clock.advance(seconds=61)
    partition.remove_deleted(driver.clock.now_ms())
    assert not [path for path in driver.folder().iterdir() if path.name.endswith(".deleted")]


def test_a_producer_is_known_after_its_records_were_compacted_away(driver: LogDriver) -> None:
    partition = driver.create(config=COMPACT)
    for number in range(4):
        made = batches.build(
            [(b"key", b"%d" % number)], timestamp_ms=NOW_MS, producer_id=PRODUCER_ID, producer_epoch=0,
            base_sequence=number,
        )  # fmt: skip
        partition.append(batches.own(made), now_ms=NOW_MS)
    driver.settle(partition)
    for number in range(20):
        driver.append_keyed(partition, (b"key", b"later %d" % number))
    driver.compact(partition)
    driver.stop(clean=False)
    for path in driver.folder().glob("*.snapshot"):
        path.unlink()
    (driver.path / checkpoints.RECOVERY_POINTS).unlink(missing_ok=True)

    partition = driver.reopen(clean=False, config=COMPACT)

    known = partition.producers.get(PRODUCER_ID)
    assert known is not None and known.last is not None
    assert (3, 3) == (known.last.last_sequence, known.last.last_offset)
    assert 3 not in [record.offset for record in records(partition)]


def test_tombstones_go_after_their_horizon(driver: LogDriver) -> None:
    partition = fill(driver, delete_retention_ms=10_000)
    driver.append_keyed(partition, (b"key-1", None))
    for number in range(12):
        driver.append_keyed(partition, (b"filler", b"%d" % number))
    driver.compact(partition)
    assert (b"key-1", None) in [(record.key, record.value) for record in records(partition)]

    driver.clock.advance(seconds=9)
    for number in range(12):
        driver.append_keyed(partition, (b"filler", b"%d" % number))
    driver.compact(partition)
    assert (b"key-1", None) in [(record.key, record.value) for record in records(partition)]

    driver.clock.advance(seconds=2)
    for number in range(12):
        driver.append_keyed(partition, (b"filler", b"%d" % number))
    driver.compact(partition)
    assert b"key-1" not in [record.key for record in records(partition)]


def test_settings_take_effect_without_a_restart(driver: LogDriver) -> None:
    partition = fill(driver, min_cleanable_dirty_ratio=1.0)
    assert driver.compact(partition) is None

    partition.configure(settings(**{**VALUES, "min_compaction_lag_ms": 1000}))
    assert driver.compact(partition) is None
    driver.clock.advance(seconds=1.001)
    assert driver.compact(partition) is not None
    assert EXPECTED == newest(partition)


def test_a_record_waits_no_longer_than_the_largest_lag(driver: LogDriver) -> None:
    partition = fill(driver, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
    driver.compact(partition)
    assert 30 == len(list(records(partition)))

    driver.clock.advance(seconds=5.001)
    assert driver.compact(partition) is not None


def test_compacted_and_deleted_together(driver: LogDriver) -> None:
    partition = fill(driver, cleanup_policy="compact,delete", retention_ms=60_000)
    both = {**VALUES, "cleanup_policy": "compact,delete", "retention_ms": 60_000, "segment_bytes": 100_000}
    partition.configure(settings(**both))
    driver.compact(partition)
    assert 0 == partition.apply_retention(driver.clock.now_ms())

    driver.clock.advance(seconds=61)
    driver.append_keyed(partition, (b"key-0", b"young"), timestamp_ms=driver.clock.now_ms())
    assert partition.apply_retention(driver.clock.now_ms()) > 0

    assert partition.log_start_offset > 0
    assert {b"key-0": b"young"}.items() <= newest(partition).items()
    assert EXPECTED != newest(partition)


def test_retention_leaves_alone_what_is_being_cleaned(driver: LogDriver) -> None:
    partition = fill(driver, cleanup_policy="compact,delete", retention_ms=1)
    driver.clock.advance(seconds=60)
    partition.is_being_cleaned = True
    assert (0, None) == (partition.apply_retention(driver.clock.now_ms()), partition.dirty_part(driver.clock.now_ms()))


def test_a_damaged_log_is_not_cleaned_and_nothing_of_it_is_lost(driver: LogDriver) -> None:
    partition = fill(driver)
    path = driver.folder() / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)

    with pytest.raises(Malformed):
        driver.compact(partition)

    assert bytes(data) == path.read_bytes()


def test_a_full_disk_leaves_the_log_as_it_was(driver: LogDriver) -> None:
    partition = fill(driver)
    before = list(records(partition))
    driver.files.fail_writes(".cleaned")
    with pytest.raises(OSError, match="space"):
        driver.compact(partition)
    driver.files.heal()

    assert not list(driver.folder().glob("*.cleaned"))
    assert before == list(records(partition))
    assert driver.compact(partition) is not None
    assert EXPECTED == newest(partition)


def test_a_map_that_is_full_cleans_in_several_runs(driver: LogDriver) -> None:
    partition = fill(driver, rounds=8)
    small = Limits(map_bytes_max=8192 + 72)
    runs = 0
    while (done := driver.compact(partition, small)) is not None:
        runs += 1
        assert runs < 100, done
    assert runs > 1
    assert dict.fromkeys(EXPECTED, b"value 7") == newest(partition)


@pytest.mark.soak
def test_taking_over_holds_the_loop_for_less_than_five_milliseconds(fast_driver: LogDriver) -> None:
    """With indexes of the largest size, and many segments replaced; in processor time, the best of a few."""
    index = bytes(10_485_720)
    took_s = []
    for number in range(4):
        config = settings(**{**VALUES, "segment_bytes": 150})
        partition = fast_driver.create(f"topic-{number}", config=config)
        for at in range(80):
            fast_driver.append_keyed(partition, (b"key", b"%d" % at))
        partition.configure(settings(**{**VALUES, "segment_bytes": 100_000}))
        part = partition.dirty_part(NOW_MS)
        assert part is not None
        plan = partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())
        (output,) = (each for each in segment_cleaner.clean(plan, fast_driver.files) if isinstance(each, Cleaned))
        assert len(output.replaced) > 30
        loaded = segment_swap.load(partition.folder, output, fast_driver.files)
        incoming = replace(loaded, offsets=OffsetIndex(0, index), times=TimeIndex(0, index))
        began = time.thread_time()
        swapped = partition.take_over(incoming, now_ms=NOW_MS)
        took_s.append(time.thread_time() - began)
        fast_driver.loop.run_until_complete(swapped)
    assert min(took_s) < 0.005, f"{1000 * min(took_s):.1f} ms"


# Crashes


class RenameRecorder(RealFileSystem):
    """Renames for real, and writes down which names changed between two syncs of the folder."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.steps: list[list[tuple[str, str]]] = [[]]

    def replace(self, source: str, target: str) -> None:
        super().replace(source, target)
        self.steps[-1].append((os.path.basename(source), os.path.basename(target)))

    def sync_directory(self, path: str) -> None:
        self.steps.append([])


def load(folder: Path) -> tuple[list[batches.Record], list[str], dict[str, bytes]]:
    """What a start finds in a folder, and what it leaves there."""
    files = RealFileSystem(sync=False)
    loaded = Loader(
        folder=str(folder), files=files, is_clean=False, recovery_point=0, log_start_offset=0, index_interval=100,
        cleaned_to=0, now_ms=NOW_MS,
    ).load()  # fmt: skip
    found = [record for segment in loaded.segments for record in batches.unpack(segment.read(0, segment.size))]
    aborted = {
        segment.path.rpartition("/")[2]: segment.aborted.encode() for segment in loaded.segments if segment.has_aborted
    }
    for segment in loaded.segments:
        segment.release()
    assert not loaded.damage
    return found, sorted(path.name for path in folder.iterdir()), aborted


def test_a_crash_at_any_point_of_the_swap_loses_nothing(driver: LogDriver, tmp_path: Path) -> None:
    """Every state that the disk may be in: of the renames since the last sync of the folder, any may be missing."""
    partition = fill(driver, rounds=8)
    partition.append(
        batches.own(
            batches.build([(b"t", b"aborted")], timestamp_ms=NOW_MS, producer_id=9, producer_epoch=0, base_sequence=0,
                          attributes=batches.TRANSACTIONAL_BIT)
        ),
        now_ms=NOW_MS,
    )  # fmt: skip
    partition.append_marker(9, 0, commit=False, now_ms=NOW_MS)
    for number in range(8):
        driver.append_keyed(partition, (b"key-0", b"%d" % number))
    partition.configure(settings(**{**VALUES, "segment_bytes": 100_000}))
    part = partition.dirty_part(NOW_MS)
    assert part is not None
    plan = partition.cleaning_plan(part, now_ms=NOW_MS, limits=Limits())
    (output,) = (each for each in segment_cleaner.clean(plan, driver.files) if isinstance(each, Cleaned))
    assert output.has_aborted and len(output.replaced) > 3
    bases = [segment.base_offset for segment in partition.segments]
    old = list(records(partition))
    driver.stop(clean=False)
    start = tmp_path / "start"
    shutil.copytree(driver.folder(), start)
    recorder = RenameRecorder()
    done = tmp_path / "done"
    shutil.copytree(start, done)
    steps = segment_swap.Swap(str(done), output, recorder)
    steps.begin()
    for base in output.replaced:
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            path = f"{done}/{base:020d}{suffix}"
            if os.path.exists(path) and (suffix != ".snapshot" or base != output.base_offset):
                recorder.replace(path, path + ".deleted")
    recorder.sync_directory(str(done))
    steps.finish()
    cleaned, names, _ = load(done)
    assert len(cleaned) < len(old)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]

    states = 0
    for at, renames in enumerate(recorder.steps):
        for kept in subsets(len(renames)):
            folder = tmp_path / "state"
            shutil.copytree(start, folder)
            for source, target in [*itertools.chain(*recorder.steps[:at]), *(renames[each] for each in kept)]:
                os.replace(folder / source, folder / target)
            found, left, aborted = load(folder)
            assert found in (old, cleaned), (at, kept)
            # From the moment at which the output is safe the start finishes what was begun.
            assert found == cleaned or at == 0, (at, kept)
            assert not [name for name in left if name.endswith((".cleaned", ".swap", ".deleted"))]
            assert [f"{base:020d}.log" for base in bases] == [name for name in left if name.endswith(".log")] or (
                found == cleaned
            )
            again, _, aborted_again = load(folder)
            assert (found, aborted) == (again, aborted_again)
            shutil.rmtree(folder)
            states += 1
    assert states > 60


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Every subset of a few, and of many those that lack one, have one, or end early."""
    if count <= 4:
        for size in range(count + 1):
            yield from itertools.combinations(range(count), size)
        return
    everything = range(count)
    yield from ((*everything[:at], *everything[at + 1 :]) for at in everything)
    yield from ((at,) for at in everything)
    yield from (tuple(everything[:at]) for at in range(count + 1))


def test_what_was_cleaned_of_a_log_that_was_loaded_again_meanwhile_is_not_taken_over(driver: LogDriver) -> None:
    partition = fill(driver)
    part = partition.dirty_part(driver.clock.now_ms())
    assert part is not None
    plan = partition.cleaning_plan(part, now_ms=driver.clock.now_ms(), limits=Limits())
    cleaned = next(iter(segment_cleaner.clean(plan, driver.files)))
    incoming = segment_swap.load(partition.folder, cleaned, driver.files)
    # The disk fails the log, and it is written again.
    made = batches.own(batches.build([(b"key", b"newest")], timestamp_ms=NOW_MS))
    partition.append(made, now_ms=driver.clock.now_ms())
    # Without a turn of the loop, which could begin a flush before the disk fails.
    driver.committer.settle()
    driver.files.fail_syncs("clicks-0/", errno.EIO, times=1)
    driver.committer.flusher.mark(partition)
    driver.committer.flusher.settle()
    assert partition.failure is not None
    driver.recover(partition)
    assert partition.failure is None

    with pytest.raises(LogFailed, match="is not the log any more that was cleaned"):
        partition.take_over(incoming, now_ms=driver.clock.now_ms())

    assert b"newest" == values(partition)[partition.log_end_offset - 1]
