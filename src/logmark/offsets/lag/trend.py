"""Where lag is going: the rates at which records come and are read, and when a group will have caught up."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from logmark.names import TopicPartition
from logmark.offsets.lag.history import PartitionSample
from logmark.offsets.times import format_duration


class Direction(StrEnum):
    """What the lag does."""

    GROWING = "growing"
    SHRINKING = "shrinking"
    STEADY = "steady"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Records per second that come in and that are read, and the time until nothing is left at these rates.

    `catch_up_ms` is 0 when there is no lag, infinity when the lag does not shrink, and None when nothing is known.
    """

    direction: Direction
    in_per_s: float | None = None
    out_per_s: float | None = None
    catch_up_ms: float | None = None

    @property
    def catch_up(self) -> str:
        """The time to catch up in words."""
        if self.catch_up_ms is None:
            return "unknown"
        if math.isinf(self.catch_up_ms):
            return "never at this rate"
        return "now" if self.catch_up_ms == 0 else format_duration(self.catch_up_ms)


SPAN_MIN_MS = 5_000  # what happens within one commit interval of a usual consumer is no trend
_NO_TREND = Trend(direction=Direction.UNKNOWN)


def compute_trend(series: Mapping[TopicPartition, Sequence[PartitionSample]]) -> Trend:
    """Return the trend of a group, or of some of its partitions together.

    Only what was seen at the same times counts, so that a partition that turned up late is no sudden lag. A step back
    (a reset, a topic created again) is no rate of reading: the series is looked at from there on.
    """
    since = max((_last_step_back(moments) for moments in series.values() if moments), default=0)
    parts = [[moment for moment in moments if moment.at_ms >= since] for moments in series.values() if moments]
    times = set.intersection(*({moment.at_ms for moment in part} for part in parts)) if parts else set()
    if not times or max(times) - min(times) < SPAN_MIN_MS:
        return _NO_TREND
    lags: dict[int, int] = dict.fromkeys(sorted(times), 0)
    came = read = 0
    for part in parts:
        shared = [moment for moment in part if moment.at_ms in times]
        came += shared[-1].end - shared[0].end
        read += shared[-1].committed - shared[0].committed
        for moment in shared:
            lags[moment.at_ms] += moment.lag
    return _trend(list(lags.items()), came, read)


def _trend(lags: Sequence[tuple[int, int]], came: int, read: int) -> Trend:
    seconds = (lags[-1][0] - lags[0][0]) / 1000
    lag = lags[-1][1]
    slope, noise = _line(lags)
    change = slope * seconds
    is_steady = abs(change) < 1 or abs(change) <= 2 * noise
    direction = Direction.STEADY if is_steady else Direction.GROWING if change > 0 else Direction.SHRINKING
    shrinks = -(lags[-1][1] - lags[0][1]) / seconds
    if lag == 0:
        catch_up = 0.0
    else:
        catch_up = lag / shrinks * 1000 if shrinks > 0 and direction is Direction.SHRINKING else math.inf
    return Trend(
        direction=direction, in_per_s=max(came, 0) / seconds, out_per_s=max(read, 0) / seconds, catch_up_ms=catch_up
    )


def _line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the slope per second of the fitted line, and the mean distance of the points from it."""
    origin = points[0][0]
    xs = [(at_ms - origin) / 1000 for at_ms, _ in points]
    ys = [float(value) for _, value in points]
    slope, intercept = statistics.linear_regression(xs, ys)
    return slope, math.sqrt(statistics.fmean((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)))


def _last_step_back(moments: Sequence[PartitionSample]) -> int:
    """When the position or the end was last seen lower than before."""
    at_ms = moments[0].at_ms
    for before, after in pairwise(moments):
        if after.committed < before.committed or after.end < before.end:
            at_ms = after.at_ms
    return at_ms
