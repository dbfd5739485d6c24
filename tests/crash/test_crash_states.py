"""Whatever a crash leaves of what was not synced, everything that anybody was told is there afterwards."""

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from logmark.testing.crashes import CrashFileSystem
from tests.crash.scenarios import Run, Script, crashes, scripts, survive

STATES_PER_RUN = 60


def explore(script: Script, seed: int, count: int) -> int:
    """Runs a script and recovers from so many of its crashes."""
    run = Run(CrashFileSystem())
    run.run(script)
    done = 0
    for crash in crashes(run.moments, random.Random(seed), count):
        try:
            survive(crash)
        except Exception as error:
            error.add_note(str(crash))
            raise
        done += 1
    return done


@given(script=scripts, seed=st.integers(0, 2**32))
@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
def test_whatever_a_crash_leaves_every_promise_is_kept(script: Script, seed: int) -> None:
    explore(script, seed, STATES_PER_RUN)
