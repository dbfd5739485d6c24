"""Ages of unread records that are asked for once: a group that stands still is not looked up at every sample."""

from dataclasses import replace
from typing import NamedTuple

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.lag.ages import UNKNOWN, Age, Ages, Method, Unread, compute_ages, find_unread, is_precise
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import GroupSample, Sample

# What nobody could tell is asked again after this time.
_AGAIN_MS = 300_000
RECORDS_MAX = 50
SEARCHED_MAX = 1000


class _Known(NamedTuple):
    """When a record was written, or that nobody could tell at `asked_ms`."""

    timestamp_ms: int | None
    asked_ms: int
    age: Age


class AgeCache:
    """The ages of one sample after the other, from stored samples first; the log is asked only for what is new."""

    def __init__(self, *, records_max: int = RECORDS_MAX, searched_max: int = SEARCHED_MAX) -> None:
        self._known: dict[Unread, _Known] = {}
        self._records_max = records_max
        self._searched_max = searched_max

    def of(self, sample: Sample, history: History | None, client: Client | None) -> Ages:
        """Return the age of every lag in a sample."""
        stored = compute_ages(sample, history=history)
        behind = find_unread(sample)
        wanted = {one for one in behind if not is_precise(stored.found.get(one, UNKNOWN))}
        known = {one: entry for one, entry in self._known.items() if one in wanted and _is_fresh(entry, sample.at_ms)}
        # What lies deepest comes first; the others have their turn at the next samples.
        missing = set(sorted(wanted - known.keys(), key=lambda one: behind[one])[-self._searched_max :])
        requests = records = 0
        if missing and client is not None:
            asked = compute_ages(
                _only(sample, missing), client=client, records_max=self._records_max, searched_max=self._searched_max
            )
            requests, records = asked.requests, asked.records_read
            for one in missing:
                age = asked.found.get(one, UNKNOWN)
                written = None if age.ms is None else sample.at_ms - age.ms
                known[one] = _Known(written, sample.at_ms, age)
        self._known = known
        found = {one: _aged(entry, sample.at_ms) for one, entry in known.items() if entry.timestamp_ms is not None}
        return replace(stored, found={**stored.found, **found}, requests=requests, records_read=records)


def _is_fresh(entry: _Known, now_ms: int) -> bool:
    return entry.timestamp_ms is not None or now_ms - entry.asked_ms < _AGAIN_MS


def _aged(entry: _Known, now_ms: int) -> Age:
    assert entry.timestamp_ms is not None
    if entry.age.method is Method.RECORD and entry.age.note:
        # Nothing to read, or a time in the future: that is not older now.
        return entry.age
    return entry.age._replace(ms=max(now_ms - entry.timestamp_ms, 0))


def _only(sample: Sample, wanted: set[Unread]) -> Sample:
    """Return the sample as if only these offsets were committed, each by a group of its own number."""
    groups: dict[str, dict[TopicPartition, Committed]] = {}
    count: dict[TopicPartition, int] = {}
    for partition, offset in sorted(wanted):
        number = count[partition] = count.get(partition, 0) + 1
        groups.setdefault(str(number), {})[partition] = Committed(offset=offset)
    only = {name: GroupSample(group=name, state="Empty", committed=committed) for name, committed in groups.items()}
    return replace(sample, groups=only)
