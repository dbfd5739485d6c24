"""When the end of a log passed an offset, as far as stored samples tell: by our own clock, and without a request."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from logmark.names import TopicPartition
from logmark.offsets.lag.history import History

# Samples are looked at so many together, the newest first: most groups are not far behind. Further back more at once.
_BLOCK = 64
_BLOCK_MAX = 256

Point = tuple[int, int]  # a time in milliseconds, and the end of the log then


class EndTime(NamedTuple):
    """When an end passed an offset, give or take the bound."""

    at_ms: int
    bound_ms: int


def interpolate_end_time(offset: int, below: Point, above: Point) -> EndTime:
    """Return the time of an offset between two sampled ends, at an even pace."""
    part = (offset - below[1] + 1) / (above[1] - below[1])
    at_ms = round(below[0] + (above[0] - below[0]) * part)
    return EndTime(at_ms, max(at_ms - below[0], above[0] - at_ms))


def find_end_times(
    history: History, wanted: Iterable[tuple[TopicPartition, int]], *, now_ms: int, ends: Mapping[TopicPartition, int]
) -> dict[tuple[TopicPartition, int], EndTime]:
    """When these offsets were passed by ends that are now at `ends`; without those that no two samples enclose."""
    times = [at_ms for at_ms in history.times() if at_ms < now_ms]
    search = _Search(history, now_ms, ends)
    for partition, offset in wanted:
        search.want(partition, offset)
    high, size = len(times), _BLOCK
    while high > 0 and search.is_open:
        low = max(0, high - size)
        search.look(times[low:high])
        high, size = low, min(2 * size, _BLOCK_MAX)
    return search.found


class _Search:
    """Offsets that are looked for, by topic and partition, and the lowest point that is known above each."""

    def __init__(self, history: History, now_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        self.found: dict[tuple[TopicPartition, int], EndTime] = {}
        self._history = history
        self._now_ms = now_ms
        self._ends = ends
        self._breaks = history.breaks()
        self._open: dict[str, dict[TopicPartition, list[int]]] = {}
        self._above: dict[TopicPartition, Point] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def want(self, partition: TopicPartition, offset: int) -> None:
        """Add an offset to search; one that no end has passed yet is ignored."""
        if offset < self._ends[partition] and self._history.topic_id(partition.topic) is not None:
            self._open.setdefault(partition.topic, {}).setdefault(partition, []).append(offset)
            self._above[partition] = (self._now_ms, self._ends[partition])

    def look(self, times: Sequence[int]) -> None:
        """Search these samples, which are all older than those of earlier calls."""
        samples = [self._history.ends_at(at_ms) for at_ms in times]
        for topic, partitions in list(self._open.items()):
            number = self._history.topic_id(topic)
            assert number is not None
            count = max(one.partition for one in partitions) + 1
            # One series for each partition, made by one call: there may be ten thousand of them.
            columns = list(zip(*(sample.ends(number, count) for sample in samples), strict=True))
            for one in list(partitions):
                left = self._through(one, partitions[one], times, columns[one.partition])
                if left:
                    partitions[one] = left
                else:
                    del partitions[one]
            if not partitions:
                del self._open[topic]

    def _through(
        self, partition: TopicPartition, offsets: list[int], times: Sequence[int], series: Sequence[int]
    ) -> list[int]:
        """Search one partition's series; return the offsets that are older still."""
        broke_ms = self._breaks.get(partition, 0)
        is_broken = broke_ms > times[0]
        if is_broken:
            # Before that time the name belonged to another log.
            since = bisect_left(times, broke_ms)
            times, series = times[since:], series[since:]
        if series and min(series) < 0:
            known = [(at_ms, end) for at_ms, end in zip(times, series, strict=True) if end >= 0]
            times, series = [at_ms for at_ms, _ in known], [end for _, end in known]
        if not series:
            return [] if is_broken else offsets
        left = []
        for offset in offsets:
            index = bisect_right(series, offset)
            if index == 0:
                left.append(offset)
                continue
            above = self._above[partition] if index == len(series) else (times[index], series[index])
            self.found[partition, offset] = interpolate_end_time(offset, (times[index - 1], series[index - 1]), above)
        self._above[partition] = (times[0], series[0])
        return left
