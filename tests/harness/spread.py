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
_USES_SPARK = re.compile(r"\bspark: \"?SparkSession\b")


class Spread(LoadFileScheduling):
    """Gives a worker one file after the other, and one of them all that use Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))


@functools.cache
def unit_of(file: str) -> str:
    """What is given out as a whole: a test file, or all that use Spark."""
    return SPARK if _USES_SPARK.search((REPOSITORY / file).read_text()) else file
