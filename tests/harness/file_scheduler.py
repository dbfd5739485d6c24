"""How test files are spread over the workers of a run: a file stays whole, and Spark starts once.

A Spark that has done its first query has used twenty seconds of a processor. All files that use the one of the `spark`
fixture are therefore given out as if they were one file, and before all others, because nothing takes longer.
"""

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

REPOSITORY = Path(__file__).resolve().parents[2]
SPARK = "all that use the one Spark"
# Long files that the alphabet would give out late; a worker must not be left alone with one of them in the end.
LONG = (
    "tests/spark/kills/", "tests/oracle/", "tests/spark/pipelines/test_program.py",
    "tests/spark/pipelines/test_replay_", "tests/crash/", "tests/examples/test_demo.py", "tests/cli/test_pipelines.py",
    "tests/frame/test_wheel.py", "tests/compat/test_kafka_consumer_groups.py",
)  # fmt: skip
_USES_SPARK = re.compile(r"\bspark: \"?SparkSession\b")


class FileScheduler(LoadFileScheduling):
    """Gives a worker one file after the other, and one of them all that use Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))


@functools.cache
def unit_of(file: str) -> str:
    """What is given out as a whole: a test file, or all that use Spark."""
    text = (REPOSITORY / file).read_text()
    return SPARK if "SparkSession" in text and _USES_SPARK.search(text) else file


def rank_of(file: str) -> int:
    """Return when a file is given out: what uses the one Spark first, then what takes long, then the others."""
    if unit_of(file) == SPARK:
        return 0
    return 1 if file.startswith(LONG) else 2
