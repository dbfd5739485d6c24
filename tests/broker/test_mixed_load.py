"""A broker under mixed load for an hour loses nothing, refuses nothing, and uses no more at the end than before."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker import mixed_load
from tests.harness.searches import seed

# To try it out: MIXED_LOAD_SECONDS=30.
SECONDS = float(os.environ.get("MIXED_LOAD_SECONDS", "3600"))


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is measured where there is /proc")
def test_under_mixed_load_every_record_is_read_once_and_nothing_grows(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen = mixed_load.run(tmp_path, seconds=SECONDS, seed=seed(7), say=print)

    record_property("seconds of load", round(seen.seconds))
    for what, count in seen.counts.items():
        record_property(what, count)
    for figure in mixed_load.TOLERANCES:
        record_property(f"{figure} (medians of the thirds)", " / ".join(f"{each:,.0f}" for each in seen.thirds(figure)))
    assert [] == seen.problems, f"seed {seen.seed}"
