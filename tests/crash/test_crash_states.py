"""Whatever a crash leaves of what was not synced, everything that anybody was told is there afterwards.

A script is run on a disk in memory, and at any moment the power may be lost: then nothing unsynced is kept, or a part,
or everything but one write, or a write torn at a sector, zeros or garbage where data never came, or names without data.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from logmark.testing.crashes import CrashFileSystem
from tests.crash.scenarios import Crash, Run, Script, crashes, script_of, survive

STATES_PER_RUN = 60
_SEEDS = st.integers(0, 2**32)


def explore(script: Script, seed: int, count: int) -> Counter:
    """Runs a script and recovers from so many of its crashes; says how many there were of each kind."""
    run = Run(CrashFileSystem())
    run.run(script)
    kinds: Counter = Counter()
    for crash in crashes(run.moments, random.Random(seed), count):
        recover(crash)
        kinds[crash.kind] += 1
    return kinds


def recover(crash: Crash) -> None:
    try:
        survive(crash)
    except Exception as error:
        error.add_note(str(crash))
        raise


def explorer(runs: int) -> Callable[[], Counter]:
    """A search through so many scripts, which Hypothesis picks with the moments at which they crash."""
    seen: Counter = Counter()

    # Shrinking runs for minutes and cannot shorten a script of which only the number is drawn.
    @settings(
        max_examples=runs,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(script=_SEEDS.map(script_of), seed=_SEEDS)
    def search(script: Script, seed: int) -> None:
        seen.update(explore(script, seed, STATES_PER_RUN))

    def run() -> Counter:
        search()
        return seen

    return run


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("runs", [pytest.param(50, id="some"), pytest.param(840, id="many", marks=pytest.mark.soak)])
def test_whatever_a_crash_leaves_every_promise_is_kept(
    runs: int, record_property: Callable[[str, object], None]
) -> None:
    seen = explorer(runs)()

    record_property("crash states", seen.total())
    for kind, count in seen.most_common():
        record_property(kind, count)
    assert seen.total() >= runs * STATES_PER_RUN
    # Not one kind of crash is left out.
    assert len(seen) >= 9, seen


@pytest.mark.parametrize("seed", [11, 44, 59, 93, 130, 138])
def test_crashes_that_broke_a_promise_once_break_none(seed: int) -> None:
    explore(script_of(seed), seed, STATES_PER_RUN)


# Each has been the shortest way to a promise that was broken once.
SHORT_SCRIPTS: dict[str, Script] = {
    "a kill between a name and its sync": [("create", 0, 1), ("append", 0, 0, 1, 0), ("kill",)],
    "all let go, and told so": [
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
    "all let go while the first record of a run makes the WAL": [
        ("append", 0, -1, 3, 300), ("flush",), ("kill",), ("retain", 6), ("sync", 0, 6), ("append", 0, 1, 1, 1000),
        ("flush",),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_SCRIPTS)
def test_every_single_crash_of_a_short_script_breaks_no_promise(name: str) -> None:
    run = Run(CrashFileSystem())
    run.run(SHORT_SCRIPTS[name])
    for moment in run.moments:
        seen: set[int] = set()
        for loss in moment.disk.power_losses():
            state = hash(frozenset(moment.disk.after(loss).image().items()))
            if state not in seen:
                seen.add(state)
                recover(Crash(moment, loss))
        for again in range(3):
            recover(Crash(moment, None, again))
