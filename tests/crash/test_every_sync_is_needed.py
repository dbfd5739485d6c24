"""Each sync in the code is taken out in turn: without any one of them some crash breaks a promise.

A sync that nothing needs would make the broker slow for nothing, and tests that do not miss one would be worth nothing.
"""

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from logmark.clock import ManualClock
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.cut_files import CUT
from logmark.log.directory import DataDirectory
from logmark.log.partition import Partition
from logmark.log.settings import TopicSettings
from logmark.log.wal.log import UNFINISHED
from logmark.wire import batches
from tests.crash.broker_logs import PATH, InlineCommit
from tests.crash.crash_file_system import CrashFileSystem
from tests.crash.mutants import SyncSite, sync_sites, without
from tests.crash.promises import NOW_MS
from tests.crash.scenarios import Crash, Recoveries, Script, ScriptRun, crashes, script_of

KILLED = "a kill before any sync"
MIDDLE = "deletion of segments below the middle of another"
DELETING = "deleting"
ROLLING = "rolling"
CLEAN_STOP = "a clean stop"
AN_ABORT = "an abort, then a roll"
ADDITIONS = "additions set aside"
RETENTION = "retention"
WAL_REMOVED = "a kill while a clean stop removes the WAL"
# Random scripts that have led to a promise which was broken without some sync.
FOUND = (44, 59, 93, 130, 138, 2711542209)
# Where the random scripts seldom come along: each leads to the syncs that it is named after.
PATHS: dict[str, Script] = {
    "the first records": [("create", 0, 1), ("append", 0, 0, 1, 0), ("settle",), ("kill",)],
    ROLLING: [
        *[("append", 0, 0, 1, 1000), ("append", 0, 1, 1, 1000), ("append", 0, 0, 1, 1000)], ("settle",),
        ("append", 0, 1, 1, 1000), ("settle",), ("checkpoint",), ("append", 0, 0, 1, 1000), ("settle",),
    ],
    # The recovery after the kill saves the producers, and then retention takes away what they were known from.
    "a kill, then retention": [
        ("append", 0, 100, 1, 1000), ("retain", 4), ("append", 0, 0, 1, 1000), ("kill",), ("retain", 3), ("settle",),
        ("checkpoint",),
    ],
    KILLED: [("append", 0, 0, 1, 1000), ("append", 0, 100, 1, 1000), ("append", 0, 1, 1, 1000), ("kill",)],
    CLEAN_STOP: [("append", 0, 0, 1, 900), ("append", 0, 0, 1, 100), ("append", 0, 0, 1, 0), ("restart",)],
    "an abort, then a clean stop": [
        ("append", 0, 100, 1, 0), ("settle",), ("end transaction", 0, False), ("settle",), ("restart",),
    ],
    AN_ABORT: [
        ("append", 0, 100, 1, 0), ("settle",), ("end transaction", 0, False), ("settle",), ("append", 0, 0, 1, 1000),
        ("append", 0, 0, 1, 1000), ("append", 0, 0, 1, 1000), ("flush",), ("checkpoint",), ("append", 0, 0, 1, 0),
        ("settle",),
    ],
    RETENTION: [
        ("append", 0, 0, 1, 1000), ("append", 0, 100, 1, 1000), ("append", 0, 0, 1, 1000), ("settle",), ("retain", 6),
        ("settle",), ("delete records", 0, 3), ("checkpoint",), ("append", 0, 0, 1, 0), ("settle",),
    ],
    MIDDLE: [
        ("append", 0, 0, 2, 1000), ("append", 0, 0, 2, 1000), ("append", 0, 0, 2, 1000), ("settle",),
        ("delete records", 0, 5), ("retain", 1), ("flush",), ("append", 0, 0, 1, 0), ("settle",),
    ],
    DELETING: [
        ("append", 0, 0, 1, 100), ("settle",), ("delete", 0), ("create", 0, 1), ("append", 0, 0, 1, 100), ("settle",),
    ],
}  # fmt: skip


def killed_in(path: str) -> str:
    return f"every kill in {path}"


def any_lost_in(path: str) -> str:
    return f"any loss in {path}"


def random_script(seed: int) -> str:
    return f"random script {seed}"


# What is tried first without a sync of a function, because it has missed one there; everything else is tried after it.
MISSED_BY: dict[str, tuple[str, ...]] = {
    "set_aside": (ADDITIONS,),
    "keep_tail": (ADDITIONS,),
    "Appender._append_abort": (AN_ABORT,),
    "Appender._begin_segment": (AN_ABORT,),
    "CheckpointFiles._write": (RETENTION,),
    "DataDirectory._begin": (killed_in(KILLED),),
    "write_mark": (CLEAN_STOP,),
    "FlushState.begin": (CLEAN_STOP,),
    "PartitionFolder.syncs": (CLEAN_STOP, random_script(20)),
    "PartitionFolder.epochs_writer": (MIDDLE,),
    "Partitions.finish_deletion": (any_lost_in(DELETING),),
    "Loader._make_durable": (ROLLING, RETENTION),
    "Segment.sync_log": (CLEAN_STOP,),
    "WalFile.create": (any_lost_in(DELETING),),
    "WriteAheadLog.write_points": (CLEAN_STOP,),
    "remove_unfinished": (WAL_REMOVED,),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What recovery warns of is what these tests are about, thousands of times."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def catalog_of(partitions: int) -> bytes:
    """Return a catalogue of one topic."""
    known = Catalog(None)
    known.adopt([Entry(name="clicks", id=bytes(16), partitions=partitions)], known.next_producer_id)
    return known.encode()


def make_at_once() -> None:
    """A partition that is made for a first offset is there when the call returns."""
    disk, clock = CrashFileSystem(), ManualClock(NOW_MS)

    def open_directory(files: CrashFileSystem) -> DataDirectory:
        return DataDirectory.open(PATH, files=files, committer=InlineCommit(), clock=clock)

    directory = open_directory(disk)
    directory.write(CATALOG, catalog_of(2))
    directory.create_partition("clicks", 0, bytes(16), TopicSettings({}), first_offset=7)
    directory.create_partition("clicks", 1, bytes(16), TopicSettings({}))
    for loss in disk.power_losses():
        left = disk.after(loss)
        assert left.exists(f"{PATH}/clicks-0/{7:020}.log")
        assert bytes(16) == checkpoints.read_partition_metadata(left.read(f"{PATH}/clicks-1/partition.metadata"))
        opened = open_directory(left).open_partition("clicks", 0, bytes(16), TopicSettings({}))
        assert (7, 7) == (opened.log_start_offset, opened.log_end_offset)


def set_additions_aside() -> None:
    """What was added after a clean stop is never served, wherever a start is interrupted, and is kept."""
    disk, clock = CrashFileSystem(), ManualClock(NOW_MS)
    added = bytes(batches.build([(None, b"forged")], timestamp_ms=NOW_MS, base_offset=1))

    def open_partition(files: CrashFileSystem) -> tuple[DataDirectory, Partition]:
        directory = DataDirectory.open(PATH, files=files, committer=InlineCommit(), clock=clock)
        return directory, directory.open_partition("clicks", 0, bytes(16), TopicSettings({}))

    def add(name: str, at: int) -> None:
        path = f"{PATH}/clicks-0/{name}"
        file = disk.open(path, create=not disk.exists(path))
        file.pwrite(added, at)
        file.sync()
        disk.sync_directory(f"{PATH}/clicks-0")

    directory = DataDirectory.open(PATH, files=disk, committer=InlineCommit(), clock=clock)
    directory.write(CATALOG, catalog_of(1))
    directory.create_partition("clicks", 0, bytes(16), TopicSettings({}))
    directory.close()
    directory, partition = open_partition(disk)
    record = batches.own(batches.build([(None, b"true")], timestamp_ms=NOW_MS))
    partition.append(record, now_ms=NOW_MS)
    assert directory.close()
    add(f"{0:020}.log", partition.size_bytes)
    add(f"{1:020}.log", 0)
    moments: list[CrashFileSystem] = []
    disk.before_change = lambda: moments.append(disk.killed())
    open_partition(disk)
    moments.append(disk.killed())
    for moment in moments:
        for loss in moment.power_losses():
            left = moment.after(loss)
            assert 1 == open_partition(left)[1].log_end_offset, loss.name
            kept = {left.read(f"{PATH}/clicks-0/{name}") for name in left.listdir(f"{PATH}/clicks-0")
                    if name.endswith(CUT)}  # fmt: skip
            assert {added} == kept, loss.name


def ways_to_miss_it(runs: int) -> dict[str, Callable[[], None]]:
    """What is tried without a sync, the cheapest first."""
    ways: dict[str, Callable[[], None]] = {"made at once": make_at_once, ADDITIONS: set_additions_aside}
    ways |= {name: partial(_try, script, 0) for name, script in PATHS.items()}
    ways[killed_in(KILLED)] = partial(_kill, PATHS[KILLED])
    ways[WAL_REMOVED] = _kill_while_the_wal_is_removed
    ways[any_lost_in(DELETING)] = partial(_lose_any, PATHS[DELETING])
    ways[any_lost_in(MIDDLE)] = partial(_lose_any, PATHS[MIDDLE])
    ways |= {random_script(seed): partial(_try, script_of(seed), seed) for seed in (*FOUND, *range(runs))}
    for name, script in PATHS.items():
        ways[killed_in(name)] = partial(_kill, script)
        ways[f"every crash of {name}"] = partial(_try, script, None)
    return ways


def _try(script: Script, seed: int | None) -> None:
    """Recovers from some crashes of a script, or from each."""
    run = ScriptRun(CrashFileSystem())
    run.run(script)
    if seed is not None:
        tried = crashes(run.moments, random.Random(seed), 60)
    else:
        # The last moments first: a recovery, whose syncs are the hardest to miss, ends such a script.
        tried = (Crash(moment, loss) for moment in reversed(run.moments) for loss in moment.disk.power_losses())
    recoveries = Recoveries()
    for crash in tried:
        recoveries.survive(crash)


def _kill(script: Script) -> None:
    """Recovers from a kill at every moment of a script, with the power lost at three moments of the recovery."""
    run = ScriptRun(CrashFileSystem())
    run.run(script)
    recoveries = Recoveries()
    for moment in reversed(run.moments):
        for again in range(3):
            recoveries.survive(Crash(moment, None, again))


def _kill_while_the_wal_is_removed() -> None:
    """Recovers from a kill in a clean stop whose new name of the WAL's folder may be in memory only."""
    run = ScriptRun(CrashFileSystem())
    run.run(PATHS[CLEAN_STOP])
    recoveries = Recoveries()
    for moment in run.moments:
        if moment.disk.exists(f"{PATH}/{UNFINISHED[1]}"):
            for again in range(100):
                recoveries.survive(Crash(moment, None, again))


def _lose_any(script: Script) -> None:
    """Recovers from states of a script in which each change that was not synced has a fate of its own."""
    run = ScriptRun(CrashFileSystem())
    run.run(script)
    recoveries = Recoveries()
    for moment in reversed(run.moments):
        for seed in range(12):
            recoveries.survive(Crash(moment, moment.disk.any_power_loss(random.Random(seed))))


def is_missed(site: SyncSite, runs: int) -> bool:
    """Whether a promise is broken without that sync."""
    ways = ways_to_miss_it(runs)
    with without(site):
        first = {name: ways[name] for name in MISSED_BY.get(site.function, ())}
        for attempt in (first | ways).values():
            try:
                attempt()
            except Exception:  # noqa: BLE001 - whatever it is, it is noticed
                return True
    return False


def test_with_all_of_its_syncs_the_code_keeps_every_promise() -> None:
    ways = ways_to_miss_it(40)
    for name in dict.fromkeys(["made at once", ADDITIONS, *PATHS, *itertools.chain(*MISSED_BY.values())]):
        ways[name]()


@pytest.mark.parametrize("site", sync_sites(), ids=str)
def test_without_one_sync_a_promise_is_broken(site: SyncSite) -> None:
    assert is_missed(site, 40), f"nothing needs it: line {site.line} of {site}"


def test_what_is_tried_first_belongs_to_a_sync_that_is_there() -> None:
    assert set(MISSED_BY) <= {site.function for site in sync_sites()}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_sync_is_missed(record_property: Callable[[str, object], None]) -> None:
    sites = sync_sites()
    caught = [site for site in sites if is_missed(site, 200)]

    record_property("syncs taken out and missed", f"{len(caught)} of {len(sites)}")
    assert [] == [str(site) for site in sites if site not in caught]
