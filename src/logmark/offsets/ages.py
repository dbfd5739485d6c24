"""Lag in seconds: the age of the oldest unread record, each with the way it was found and its bound.

The ways, in their order:

    samples   when the visible end passed the offset, between two stored samples: by our clock, without a request
    record    the timestamp of the record itself, read from the log; a few per look
    times     ListOffsets by timestamp, halving the time that is left, all partitions of a step together
    samples   once more, where the bound was too wide at first and nothing better was found

A record's timestamp is its producer's (or the broker's, with LogAppendTime), and that clock may disagree with ours.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError, OffsetOutOfRange, RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.history import History
from logmark.offsets.packing import Ends
from logmark.offsets.records import first_record
from logmark.offsets.sampling import Sample
from logmark.offsets.searching import search_times
from logmark.offsets.times import show_duration

RECORDS_MAX = 100
SEARCHED_MAX = 1_000
STEPS_MAX = 14
# A bound from samples is good enough below this, or below this part of the age.
_BOUND_MAX_MS = 60_000
_BOUND_PART = 0.25
# A look passes over more markers than this; nothing found in fewer offsets means that there is nothing to read.
_SEEN_WHOLE = 500


class Method(StrEnum):
    """How an age was found."""

    CAUGHT_UP = "caught up"
    SAMPLES = "samples"
    RECORD = "record"
    TIMES = "times"
    UNKNOWN = "unknown"


class Age(NamedTuple):
    """The age of the oldest unread record, give or take `bound_ms`; None where it is not known."""

    ms: int | None
    bound_ms: int = 0
    method: Method = Method.UNKNOWN
    note: str = ""


CAUGHT_UP = Age(0, 0, Method.CAUGHT_UP)
UNKNOWN = Age(None)
Unread = tuple[TopicPartition, int]  # a partition and the oldest unread offset in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The ages of a sample, found once for each partition and offset, however many groups stand there."""

    sample: Sample
    found: Mapping[Unread, Age] = field(default_factory=dict)
    records_read: int = 0
    requests: int = 0

    def of(self, group: str, partition: TopicPartition) -> Age:
        """The age of a group's lag in a partition."""
        lag = self.sample.lag(group, partition)
        if lag is None:
            return UNKNOWN
        unread = self.sample.unread(group, partition)
        return CAUGHT_UP if unread is None else self.found.get((partition, unread), UNKNOWN)

    def oldest(self, group: str, topic: str | None = None) -> Age:
        """The oldest of a group's partitions; unknown if none of those that are behind is known."""
        partitions = self.sample.groups[group].committed
        ages = [self.of(group, one) for one in partitions if topic is None or one.topic == topic]
        known = [age for age in ages if age.ms is not None]
        if not known:
            return UNKNOWN
        worst = max(known, key=lambda age: age.ms or 0)
        if worst.method is Method.CAUGHT_UP and len(known) < len(ages):
            return UNKNOWN
        return worst


def ages_of(
    sample: Sample,
    *,
    history: History | None = None,
    client: Client | None = None,
    records_max: int = RECORDS_MAX,
    searched_max: int = SEARCHED_MAX,
    steps_max: int = STEPS_MAX,
) -> Ages:
    """The age of every lag in a sample; without a client from stored samples alone."""
    behind = _behind(sample)
    wanted = sorted(behind, key=lambda one: behind[one], reverse=True)
    found: dict[Unread, Age] = {}
    rough: dict[Unread, Age] = {}
    if history is not None:
        for one, age in _from_samples(sample, history, behind).items():
            (found if _is_good(age) else rough)[one] = age
    requests = records = 0
    if client is not None:
        before = client.requests_sent
        left = [one for one in wanted if one not in found]
        read = _from_records(client, sample, left[:records_max])
        records = len(read)
        found |= {one: age for one, age in read.items() if age.ms is not None}
        left = [one for one in wanted if one not in found][:searched_max]
        found |= _from_times(client, sample, left, steps_max)
        requests = client.requests_sent - before
    return Ages(sample=sample, found=rough | found, records_read=records, requests=requests)


def _behind(sample: Sample) -> dict[Unread, int]:
    """Every place with something unread, and how much that is."""
    found: dict[Unread, int] = {}
    starts, ends = sample.starts, sample.ends
    for group in sample.groups.values():
        for partition, committed in group.committed.items():
            end = ends.get(partition)
            if end is None:
                continue
            first = max(committed.offset, starts[partition])
            if first < end:
                found[partition, first] = end - first
    return found


def _is_good(age: Age) -> bool:
    return age.bound_ms <= max(_BOUND_MAX_MS, _BOUND_PART * (age.ms or 0))


def _from_samples(sample: Sample, history: History, wanted: Iterable[Unread]) -> dict[Unread, Age]:
    times = [at_ms for at_ms in history.times() if at_ms < sample.at_ms]
    if not times:
        return {}
    breaks = history.breaks()
    loaded: dict[int, Ends] = {}
    offsets: dict[TopicPartition, list[int]] = {}
    for partition, offset in wanted:
        offsets.setdefault(partition, []).append(offset)
    found: dict[Unread, Age] = {}
    for partition, unread in offsets.items():
        topic, number = history.topic_id(partition.topic), partition.partition
        if topic is None:
            continue

        def end_at(index: int, topic: int = topic, number: int = number) -> int:
            ends = loaded.get(index)
            if ends is None:
                ends = loaded[index] = history.ends_at(times[index])
            return ends.end(topic, number)

        newest = (sample.at_ms, sample.ends[partition])
        first = _first_known(end_at, bisect_left(times, breaks.get(partition, 0)), len(times))
        for offset in unread:
            passed = when_passed(offset, times, end_at, newest=newest, first=first)
            if passed is not None:
                age = max(sample.at_ms - passed.at_ms, 0)
                found[partition, offset] = Age(age, passed.bound_ms, Method.SAMPLES)
    return found


def _first_known(end_at: Callable[[int], int], low: int, high: int) -> int:
    """The first sample that has a partition, which later ones have too."""
    if low < high and end_at(low) >= 0:
        return low
    while low < high:
        middle = (low + high) // 2
        if end_at(middle) >= 0:
            high = middle
        else:
            low = middle + 1
    return high


class Passed(NamedTuple):
    """When an end passed an offset, give or take the bound."""

    at_ms: int
    bound_ms: int


def when_passed(
    offset: int, times: Sequence[int], end_at: Callable[[int], int], *, newest: tuple[int, int], first: int = 0
) -> Passed | None:
    """When the end passed an offset, between the two samples around that moment.

    `end_at` tells the end at each of `times`, -1 where it is not known; from `first` on ends never fall. None when the
    offset was there before the first sample, or is not there yet.
    """
    above, low, high = newest, first, len(times)
    if newest[1] <= offset:
        return None
    below: tuple[int, int] | None = None
    step = 1
    # Most groups are not far behind, so the search begins at the newest sample and doubles its steps.
    while low < high:
        index = max(high - step, low) if below is None else (low + high) // 2
        step *= 2
        known, end = index, end_at(index)
        while end < 0 and known + 1 < high:
            known += 1
            end = end_at(known)
        if end < 0:
            high = index
        elif end > offset:
            above, high = (times[known], end), index
        else:
            below, low = (times[known], end), known + 1
    if below is None:
        return None
    # The offset is one of those that came between the two samples: at an even pace, it came then.
    part = (offset - below[1] + 1) / (above[1] - below[1])
    at_ms = round(below[0] + (above[0] - below[0]) * part)
    return Passed(at_ms, max(at_ms - below[0], above[0] - at_ms))


def _from_records(client: Client, sample: Sample, wanted: Sequence[Unread]) -> dict[Unread, Age]:
    """Reads the records themselves, at most to the visible end, so that nothing is waited for."""
    found: dict[Unread, Age] = {}
    closed: set[str] = set()
    for partition, offset in wanted:
        if partition.topic in closed:
            continue
        end = sample.ends[partition]
        try:
            record = first_record(client, partition, offset, stop=end, read_committed=sample.read_committed)
        except OffsetOutOfRange:
            continue  # It has expired since the sample was taken.
        except RefusedByBroker as refused:
            if refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                closed.add(partition.topic)
            continue
        except BrokerUnreachable:
            break
        except ClientError:
            continue
        if record is not None and record.timestamp_ms >= 0:
            found[partition, offset] = aged(sample.at_ms, record.timestamp_ms, 0, Method.RECORD)
        elif record is None and end - offset <= _SEEN_WHOLE:
            note = "nothing to read: only transaction markers, aborted or compacted records"
            found[partition, offset] = Age(0, 0, Method.RECORD, note)
        else:
            found[partition, offset] = UNKNOWN
    return found


def _from_times(client: Client, sample: Sample, wanted: Sequence[Unread], steps_max: int) -> dict[Unread, Age]:
    return {
        one: aged(sample.at_ms, found.timestamp_ms, found.bound_ms, Method.TIMES)
        for one, found in search_times(client, wanted, now_ms=sample.at_ms, steps_max=steps_max).items()
    }


def aged(now_ms: int, timestamp_ms: int, bound_ms: int, method: Method) -> Age:
    """The age of a timestamp; a clock that is ahead of ours makes no negative age, and is said."""
    if timestamp_ms > now_ms + bound_ms:
        ahead = show_duration(timestamp_ms - now_ms)
        return Age(0, bound_ms, method, f"its time lies {ahead} in the future: the clocks disagree")
    return Age(max(now_ms - timestamp_ms, 0), bound_ms, method)
