"""When a partition's end passed an offset, by the rules of kafka-lag-exporter's in-memory table.

Other rules than ours on purpose: dashboards that were made for that exporter show the same numbers here.
"""

import math
from array import array
from bisect import bisect_right

POINTS_MAX = 60


class LookupTable:
    """The last points (end, time) of one partition.

    A point that is not later in time or lies before the last offset is dropped; a flat run keeps its first and last
    point; beyond the limit the oldest point goes.
    """

    __slots__ = ("_limit", "_offsets", "_times")

    def __init__(self, limit: int = POINTS_MAX) -> None:
        self._limit = limit
        self._offsets = array("q")
        self._times = array("q")

    def add(self, offset: int, time_ms: int) -> None:
        """Add a point, unless the table does not need it."""
        offsets, times = self._offsets, self._times
        if offsets and (times[-1] >= time_ms or offsets[-1] > offset):
            return
        if len(offsets) > 1 and offsets[-1] == offset == offsets[-2]:
            times[-1] = time_ms
            return
        if len(offsets) == self._limit:
            del offsets[0], times[0]
        offsets.append(offset)
        times.append(time_ms)

    def lag_seconds(self, committed: int, now_ms: int) -> float:
        """Seconds since the end passed the committed offset: 0 at the last point, NaN while there are too few points.

        Between two points it is interpolated; outside of them it is extrapolated from the first and the last one,
        which gives infinity where the end never moved.
        """
        offsets, times = self._offsets, self._times
        if offsets and committed == offsets[-1]:
            return 0.0
        if len(offsets) < 2:
            return math.nan
        right = bisect_right(offsets, committed)
        left = right - 1
        if not 0 < right < len(offsets):
            left, right = 0, len(offsets) - 1
        missing, span = offsets[right] - committed, offsets[right] - offsets[left]
        if span == 0:
            return math.copysign(math.inf, missing)
        return (now_ms - (times[right] - missing * (times[right] - times[left]) / span)) / 1000
