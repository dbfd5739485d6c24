"""Lag in seconds: the age of the oldest unread record, each with the way it was found and its bound.

The ways, in their order:

    samples   when the visible end passed the offset, between two stored samples: by our clock, without a request
    record    the timestamp of the record itself, read from the log; a few per look
    times     ListOffsets by timestamp, halving the time that is left, all partitions of a step together
    samples   once more, where the bound was too wide at first and nothing better was found

A record's timestamp is its producer's (or the broker's, with LogAppendTime), and that clock may disagree with ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError, OffsetOutOfRange, RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import Sample
from logmark.offsets.lag.sample_search import find_end_times
from logmark.offsets.lag.timestamp_search import search_times
from logmark.offsets.records import first_record
from logmark.offsets.times import format_duration

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
    """The ages of a sample, found once for each partition and offset, however many groups have committed it."""

    sample: Sample
    found: Mapping[Unread, Age] = field(default_factory=dict)
    records_read: int = 0
    requests: int = 0

    def of(self, group: str, partition: TopicPartition) -> Age:
        """Return the age of a group's lag in a partition."""
        lag = self.sample.lag(group, partition)
        if lag is None:
            return UNKNOWN
        unread = self.sample.unread(group, partition)
        return CAUGHT_UP if unread is None else self.found.get((partition, unread), UNKNOWN)

    def oldest(self, group: str, topic: str | None = None) -> Age:
        """Return the oldest age of a group's partitions; unknown if it is unknown for all that are behind."""
        partitions = self.sample.groups[group].committed
        ages = [self.of(group, one) for one in partitions if topic is None or one.topic == topic]
        known = [age for age in ages if age.ms is not None]
        if not known:
            return UNKNOWN
        worst = max(known, key=lambda age: age.ms or 0)
        if worst.method is Method.CAUGHT_UP and len(known) < len(ages):
            return UNKNOWN
        return worst


def compute_ages(
    sample: Sample,
    *,
    history: History | None = None,
    client: Client | None = None,
    records_max: int = RECORDS_MAX,
    searched_max: int = SEARCHED_MAX,
    steps_max: int = STEPS_MAX,
) -> Ages:
    """Return the age of every lag in a sample; without a client from stored samples alone."""
    behind = find_unread(sample)
    wanted = sorted(behind, key=lambda one: behind[one], reverse=True)
    found: dict[Unread, Age] = {}
    rough: dict[Unread, Age] = {}
    if history is not None:
        for one, age in _from_samples(sample, history, behind).items():
            (found if is_precise(age) else rough)[one] = age
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


def find_unread(sample: Sample) -> dict[Unread, int]:
    """Return the oldest unread offset of every group and partition that is behind, and by how many records."""
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


def is_precise(age: Age) -> bool:
    """Return whether an age is known, and well enough that no look into the log is worth while."""
    return age.ms is not None and age.bound_ms <= max(_BOUND_MAX_MS, _BOUND_PART * age.ms)


def _from_samples(sample: Sample, history: History, wanted: Iterable[Unread]) -> dict[Unread, Age]:
    passed = find_end_times(history, wanted, now_ms=sample.at_ms, ends=sample.ends)
    return {
        one: Age(max(sample.at_ms - at_ms, 0), bound_ms, Method.SAMPLES) for one, (at_ms, bound_ms) in passed.items()
    }


def _from_records(client: Client, sample: Sample, wanted: Sequence[Unread]) -> dict[Unread, Age]:
    """Read the records themselves, at most up to the visible end, so that no fetch waits."""
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
            found[partition, offset] = age_at(sample.at_ms, record.timestamp_ms, 0, Method.RECORD)
        elif record is None and end - offset <= _SEEN_WHOLE:
            note = "nothing to read: only transaction markers, aborted or compacted records"
            found[partition, offset] = Age(0, 0, Method.RECORD, note)
        else:
            found[partition, offset] = UNKNOWN
    return found


def _from_times(client: Client, sample: Sample, wanted: Sequence[Unread], steps_max: int) -> dict[Unread, Age]:
    return {
        one: age_at(sample.at_ms, found.timestamp_ms, found.bound_ms, Method.TIMES)
        for one, found in search_times(client, wanted, now_ms=sample.at_ms, steps_max=steps_max).items()
    }


def age_at(now_ms: int, timestamp_ms: int, bound_ms: int, method: Method) -> Age:
    """Return the age of a timestamp; one in the future has age 0 and a note."""
    if timestamp_ms > now_ms + bound_ms:
        ahead = format_duration(timestamp_ms - now_ms)
        return Age(0, bound_ms, method, f"its time lies {ahead} in the future: the clocks disagree")
    return Age(max(now_ms - timestamp_ms, 0), bound_ms, method)
