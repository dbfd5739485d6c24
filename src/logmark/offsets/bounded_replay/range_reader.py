"""Reads the ranges of a replay: the committed records, those that are selected, and how many there are."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.names import TopicPartition
from logmark.offsets.bounded_replay.copy_buffer import RecordRouter, SkipCounts
from logmark.offsets.bounded_replay.ranges import OffsetRange
from logmark.offsets.bounded_replay.runs import ReplayRequest
from logmark.offsets.records import Batch, Record, first_record, iterate_records, read_batches

# Times of more ranges would hold up the question; the counts are shown anyway.
_TIMES_SHOWN_MAX = 50


@dataclass(slots=True)
class RangeCount(SkipCounts):
    """What a range holds of the wanted records, and what is passed over."""

    records: int = 0
    size_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    topics: Counter[str] = field(default_factory=Counter)  # where dead letters would go


def read_committed_batches(
    client: Client, partition: TopicPartition, start: int, stop: int, *, expired: Callable[[int], None]
) -> Iterator[tuple[Iterator[Batch], int]]:
    """Yield the committed records of [start, stop) a fetch at a time; `expired` gets the offsets deleted meanwhile."""
    at = start
    while at < stop:
        try:
            for batches, after in read_batches(client, partition, at, stop, read_committed=True):
                yield batches, after
                at = after
            return
        except OffsetOutOfRange as error:
            if error.log_start <= at:
                raise
            after = min(error.log_start, stop)
            expired(after - at)
            at = after


def read_selected(
    client: Client,
    request: ReplayRequest,
    spans: Sequence[OffsetRange],
    *,
    counts: Mapping[int, RangeCount],
    step: Callable[[int], None],
) -> Iterator[tuple[int, Record]]:
    """Yield the selected records with their partitions, one partition after the other, and count those skipped.

    For a copy, dead letters are counted by the topic that they go to; to be shown, every record is wanted as it is.
    """
    selection = request.selection
    left = request.limit
    for span in spans:
        count = counts[span.partition]
        sorter = RecordRouter(request, span.partition, count) if request.is_copy else None
        partition = TopicPartition(request.topic, span.partition)
        at = span.start
        for batches, after in read_committed_batches(client, partition, span.start, span.stop, expired=step):
            for _, found in batches:
                for record in iterate_records(found):
                    if sorter is not None:
                        way = sorter.sort(*record)
                        if way is None:
                            continue
                        if request.to_original:
                            count.topics[way.topic] += 1
                    elif not selection.takes(record.key, record.value, record.headers):
                        count.not_selected += 1
                        continue
                    yield span.partition, record
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            step(after - at)
            at = after


def count_selected(
    client: Client, request: ReplayRequest, spans: Sequence[OffsetRange], *, step: Callable[[int], None]
) -> dict[int, RangeCount]:
    """Read the ranges and count what a run would copy; write nothing."""
    counts = {span.partition: RangeCount() for span in spans}
    for partition, record in read_selected(client, request, spans, counts=counts, step=step):
        count = counts[partition]
        count.records += 1
        count.size_bytes += len(record.key or b"") + len(record.value or b"")
        count.size_bytes += sum(len(name) + len(content or b"") for name, content in record.headers)
        time = record.timestamp_ms
        count.first_ms = time if count.first_ms is None else min(count.first_ms, time)
        count.last_ms = time if count.last_ms is None else max(count.last_ms, time)
    return counts


def range_times(client: Client, topic: str, spans: Sequence[OffsetRange]) -> dict[int, tuple[int | None, int | None]]:
    """Return the times of the first and the last record of each range, if there are few ranges."""
    found: dict[int, tuple[int | None, int | None]] = {}
    wanted = [span for span in spans if span.offsets]
    for span in wanted if len(wanted) <= _TIMES_SHOWN_MAX else ():
        partition = TopicPartition(topic, span.partition)
        ends: list[int | None] = []
        for offset in (span.start, span.stop - 1):
            with contextlib.suppress(OffsetOutOfRange):
                record = first_record(client, partition, offset, stop=span.stop, read_committed=True)
                ends.append(record.timestamp_ms if record else None)
        found[span.partition] = (ends[0], ends[-1]) if ends else (None, None)
    return found
