"""Whatever a crash leaves of what was not synced, everything that anybody was told is there afterwards.

A script is run on a disk in memory, and at any moment the power may be lost: then nothing unsynced is kept, or a part,
or everything but one write, or a write torn at a sector, zeros or garbage where data never came, or names without data.
"""

import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.crash.crash_file_system import CrashFileSystem
from tests.crash.scenarios import Crash, Recoveries, Script, ScriptRun, crashes, script_of, states_after
from tests.harness.searches import seed

STATES_PER_RUN = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every start after a crash warns of what it finds."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def explore(script: Script, number: int, count: int) -> Counter:
    """Runs a script and recovers from so many of its crashes; says how many there were of each kind."""
    run = ScriptRun(CrashFileSystem())
    run.run(script)
    kinds: Counter = Counter()
    recoveries = Recoveries()
    for crash in crashes(run.moments, random.Random(number), count):
        recover(crash, recoveries)
        kinds[crash.kind] += 1
    return kinds


def recover(crash: Crash, recoveries: Recoveries) -> None:
    try:
        recoveries.survive(crash)
    except Exception as error:
        error.add_note(str(crash))
        raise


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "states", [pytest.param(3_000, id="some"), pytest.param(50_000, id="many", marks=pytest.mark.soak)]
)
def test_whatever_a_crash_leaves_every_promise_is_kept(
    states: int, record_property: Callable[[str, object], None]
) -> None:
    choose, seen, scripts = random.Random(seed(7)), Counter[str](), 0
    while seen.total() < states:
        number = choose.randrange(2**32)
        try:
            seen.update(explore(script_of(number), number, STATES_PER_RUN))
        except Exception as error:
            error.add_note(f"of script_of({number}), with that seed")
            raise
        scripts += 1

    record_property("crash states, all different", seen.total())
    record_property("scripts", scripts)
    for kind, count in seen.most_common():
        record_property(kind, count)
    record_property("violations", 0)
    # Not one kind of crash is left out.
    assert len(seen) >= 9, seen


@pytest.mark.parametrize(
    "number",
    [
        11, 44, 59, 93, 130, 138, 470224160, 494350558, 853696712, 1938971277, 2169894686, 2494299229, 2711542209,
    ],
)  # fmt: skip
def test_crashes_that_broke_a_promise_once_break_none(number: int) -> None:
    explore(script_of(number), number, STATES_PER_RUN)


def test_a_recovery_depends_on_nothing_but_the_disk_and_the_promises() -> None:
    run = ScriptRun(CrashFileSystem())
    run.run(script_of(44))
    after: dict[int, int] = {}
    repeated = 0
    for crash in crashes(run.moments, random.Random(44), STATES_PER_RUN):
        for state, next_state in itertools.pairwise(states_after(crash)):
            repeated += state in after
            assert after.setdefault(state, next_state) == next_state
    assert repeated, "no two crashes have led to the same state"


# Each has been the shortest way to a promise that was broken once.
SHORT_SCRIPTS: dict[str, Script] = {
    "a kill between a name and its sync": [("create", 0, 1), ("append", 0, 0, 1, 0), ("kill",)],
    "all deleted, and acknowledged": [
        ("append", 0, 1, 1, 600), ("settle",), ("checkpoint",), ("retain", 6), ("delete records", 0, 1), ("kill",)
    ],
    "a roll right behind a clean stop": [
        ("append", 0, 0, 1, 900), ("append", 0, 0, 1, 300), ("settle",), ("restart",), ("append", 0, 0, 1, 1000),
        ("append", 0, 0, 1, 1000), ("settle",), ("checkpoint",),
    ],
    "an aborted transaction": [
        ("append", 0, 100, 1, 0), ("settle",), ("end transaction", 0, False), ("append", 0, 100, 1, 0), ("settle",)
    ],
    "a topic made again": [
        ("create", 0, 1), ("append", 0, 0, 2, 300), ("settle",), ("checkpoint",), ("delete", 0), ("create", 0, 1),
        ("append", 0, 0, 1, 0), ("settle",),
    ],
    "all deleted while the first record of a run creates the WAL": [
        ("append", 0, -1, 3, 300), ("flush",), ("kill",), ("retain", 6), ("sync", 0, 6), ("append", 0, 1, 1, 1000),
        ("flush",),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_SCRIPTS)
def test_every_single_crash_of_a_short_script_breaks_no_promise(name: str) -> None:
    run = ScriptRun(CrashFileSystem())
    run.run(SHORT_SCRIPTS[name])
    recoveries = Recoveries()
    for moment in run.moments:
        seen: set[int] = set()
        for loss in moment.disk.power_losses():
            state = hash(frozenset(moment.disk.after(loss).image().items()))
            if state not in seen:
                seen.add(state)
                recover(Crash(moment, loss), recoveries)
        for again in range(3):
            recover(Crash(moment, None, again), recoveries)
