"""A kill in the middle of a compaction is no damage: `logmark verify` sees the segments that the next start makes."""

import logging
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from logmark.broker.recovery import recover
from logmark.clock import ManualClock
from logmark.disk.overlay import OverlayFileSystem
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.findings import FindingKind
from logmark.log.group_commit import Durability
from logmark.log.repair import Repair
from logmark.log.segment_swap import SWAP, find_interrupted, finish_interrupted
from logmark.log.verification import Verification, Verified
from tests.crash.crash_file_system import CrashFileSystem
from tests.log.directory_driver import NOW_MS, TOPIC_ID
from tests.log.test_failed_swap import SwapDriver, new_driver

DATA = "/driver/data"
FOLDER = f"{DATA}/clicks-0"
FIRST = f"{0:020d}.log"
EVERY_DURABILITY = pytest.mark.parametrize("durability", ["sync", "os"])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every start after a crash warns of what it finds."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def new_log(durability: Durability = "sync", *, is_merged: bool = True) -> SwapDriver:
    """A log that was compacted once; its topic has one partition only, for a start that takes little time."""
    driver = new_driver(is_merged=is_merged, durability=durability)
    assert driver.directory is not None
    known = Catalog(driver.directory.read(CATALOG))
    known.adopt([Entry(name="clicks", id=TOPIC_ID, partitions=1)], known.next_producer_id)
    driver.directory.write(CATALOG, known.encode())
    return driver


@cache
def moments(durability: Durability) -> list[CrashFileSystem]:
    """The disk as a kill leaves it before each change, while records are appended and the log is compacted."""
    driver = new_log(durability)

    def compact(disk: CrashFileSystem) -> None:
        driver.produce(2)
        driver.flush()
        assert driver.clean()

    found = killed_before_each_change(driver.files.disk, compact)
    driver.close()
    return found


def killed_before_each_change(
    disk: CrashFileSystem, change: Callable[[CrashFileSystem], None]
) -> list[CrashFileSystem]:  # fmt: skip
    found: list[CrashFileSystem] = []
    disk.before_change = lambda: found.append(disk.killed())
    change(disk)
    disk.before_change = lambda: None
    return found


def finish_swaps(disk: CrashFileSystem) -> None:
    finish_interrupted(FOLDER, disk.listdir(FOLDER), disk)


def names(disk: CrashFileSystem) -> set[str]:
    return set(disk.listdir(FOLDER))


def in_mid_swap(durability: Durability = "sync") -> CrashFileSystem:
    """A disk without the old segments under their names, on which the new one has not got its name yet."""
    left = [one for one in moments(durability) if FIRST + SWAP in names(one) and FIRST not in names(one)]
    return left[-1].killed()


def verified(disk: CrashFileSystem) -> Verified:
    before = disk.image()
    found = Verification(DATA, disk).run()
    assert before == disk.image(), "a verification changes nothing"
    return found


def recover_dry(disk: CrashFileSystem) -> list[str]:
    """What a dry run says is damaged."""
    with OverlayFileSystem(disk) as overlay:
        return list(recover(DATA, files=overlay, clock=ManualClock(NOW_MS)).damage)


def shape(found: Verified) -> tuple[int, list[tuple[int, int]]]:
    """How many records there are, and in which segments."""
    (partition,) = found.partitions
    return found.records, [(segment.base_offset, segment.size_bytes) for segment in partition.segments if
                           segment.size_bytes]  # fmt: skip


def problems(found: Verified) -> list[str]:
    return [str(one) for one in found.findings]


@EVERY_DURABILITY
def test_a_kill_at_any_moment_of_a_compaction_is_no_damage(durability: Durability) -> None:
    in_swap = 0
    for moment in moments(durability):
        disk = moment.killed()
        in_swap += FIRST + SWAP in names(disk)
        found = verified(disk)
        assert [] == problems(found)
        assert [] == recover_dry(disk)
        recover(DATA, files=disk, clock=ManualClock(NOW_MS))
        assert shape(verified(disk)) == shape(found), "what was verified is what a start serves"
    assert in_swap > 5


def test_what_the_next_start_does_with_a_swap_is_said_once_and_not_as_done(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)

    found = verified(in_mid_swap())

    assert [] == problems(found)
    assert [] == caplog.messages
    (note,) = [str(one) for one in found.notes if SWAP in one.path]
    assert "The next start finishes or removes such files" in note


def test_a_start_logs_that_it_has_finished_a_swap(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)

    recover(DATA, files=in_mid_swap(), clock=ManualClock(NOW_MS))

    assert [f"{FOLDER}/{FIRST}.swap was left by a crash: it has its final name now"] == [
        message for message in caplog.messages if SWAP in message
    ]


def test_a_first_segment_that_is_missing_is_found_beside_the_swap_of_another_range() -> None:
    disk = in_mid_swap()
    other = min(name for name in names(disk) if name.endswith(".log"))
    for name in find_interrupted(disk.listdir(FOLDER)):
        disk.remove(f"{FOLDER}/{name}")
    disk.write(f"{FOLDER}/{other}{SWAP}", disk.read(f"{FOLDER}/{other}"))

    (finding,) = verified(disk).findings

    assert (FindingKind.RECORDS, 0, int(other[:20])) == (finding.kind, finding.first_offset, finding.next_offset)
    assert f"its first segment begins at {int(other[:20])}" in str(finding)
    assert 1 == len(recover_dry(disk))


@EVERY_DURABILITY
def test_a_swap_that_is_damaged_is_found_when_nothing_else_has_its_records(durability: Durability) -> None:
    disk = in_mid_swap(durability)
    path = f"{FOLDER}/{FIRST}{SWAP}"
    content = disk.read(path)
    disk.write(path, content[:70] + bytes([content[70] ^ 1]) + content[71:])

    found = verified(disk)

    assert [0] == [one.first_offset for one in found.findings if one.kind is FindingKind.RECORDS], problems(found)


def test_a_swap_that_somebody_adds_after_a_clean_stop_does_not_pass_for_the_first_segment() -> None:
    driver = new_log()
    driver.stop()
    disk = driver.files.disk.killed()
    driver.close()
    disk.replace(f"{FOLDER}/{FIRST}", f"{FOLDER}/{FIRST}{SWAP}")

    found = verified(disk)

    assert f"clicks-0/{FIRST}{SWAP}" in [one.path for one in found.findings if one.kind is FindingKind.STATE]
    assert [0] == [one.first_offset for one in found.findings if one.kind is FindingKind.RECORDS]


def test_a_repair_finishes_a_swap_before_it_cuts_out_what_is_damaged_in_it() -> None:
    disk = in_mid_swap("os")
    path = f"{FOLDER}/{FIRST}{SWAP}"
    content = disk.read(path)
    disk.write(path, content[:70] + bytes([content[70] ^ 1]) + content[71:])

    repair = Repair(verified(disk), disk)
    repair.apply()

    assert "finish the compaction of clicks-0" in str(repair.steps[0])
    after = verified(disk)
    assert ([], []) == (problems(after), [str(one) for one in after.notes])
    assert [] == recover_dry(disk)


@EVERY_DURABILITY
def test_a_finish_that_is_killed_anywhere_leaves_the_next_one_to_do_the_rest(durability: Durability) -> None:
    for disk in moments(durability):
        if FIRST + SWAP not in names(disk):
            continue
        running = disk.killed()
        killed = killed_before_each_change(running, finish_swaps)
        for again in killed:
            finish_swaps(again)
            assert again.image() == running.image()


# Indexes after a crash without a write-ahead log


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_only_an_index_that_the_next_start_keeps_can_be_wrong(suffix: str) -> None:
    driver = new_log("os", is_merged=False)
    driver.restart(clean=True)
    driver.produce(4)
    segments = driver.partition.segments
    driver.stop(clean=False)
    disk = driver.files.disk
    point = max(checkpoints.read_offsets(disk.read(f"{DATA}/{checkpoints.RECOVERY_POINTS}")).values())
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        spoilt = disk.killed()
        path = f"{FOLDER}/{segment.base_offset:020d}.{suffix}"
        spoilt.write(path, b"\x01" * (8 if suffix == "index" else 12))
        is_kept = following is not None and following.base_offset < point

        assert is_kept == bool(verified(spoilt).findings), path
        recover(DATA, files=spoilt, clock=ManualClock(NOW_MS))
        assert is_kept == bool(verified(spoilt).findings), "a start makes the others again"
    driver.close()
