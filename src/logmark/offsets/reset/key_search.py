"""Finds the first record with a key."""

from collections.abc import Callable, Sequence

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.partitions import LogBounds
from logmark.offsets.records import read_batches
from logmark.offsets.reset.targets import FoundRecord, ToKey, format_key
from logmark.offsets.times import format_time


def find_key(
    client: Client,
    partitions: Sequence[TopicPartition],
    key: bytes,
    *,
    is_after: bool = False,
    since_ms: int | None = None,
    until_ms: int | None = None,
    expect: Callable[[int], None] = lambda _: None,
    advance: Callable[[int], None] = lambda _: None,
) -> ToKey:
    """Return the offset of the first record with this key in each partition, as a target; refuse a key that none has.

    Every record from `since_ms` to `until_ms` (or of the whole log) is read until one is found: `expect` is told how
    many offsets that can be, `advance` how many more have been seen.
    """
    ranges = _ranges(client, partitions, since_ms, until_ms)
    expect(sum(stop - start for start, stop in ranges.values()))
    found = {}
    for partition, (start, stop) in ranges.items():
        record = _first(client, partition, key, start, stop, advance)
        if record is not None:
            found[partition] = record
    if not found:
        since = f" at or after {format_time(since_ms)}" if since_ms is not None else ""
        until = f" before {format_time(until_ms)}" if until_ms is not None else ""
        raise UserError(
            f"No record with key {format_key(key)} was found{since}{until} in {len(partitions)} "
            f"{'partition' if len(partitions) == 1 else 'partitions'}. Nothing was changed."
        )
    return ToKey(key=key, is_after=is_after, found=found)


def _ranges(
    client: Client, partitions: Sequence[TopicPartition], since_ms: int | None, until_ms: int | None
) -> dict[TopicPartition, tuple[int, int]]:
    bounds = LogBounds.fetch(client, partitions).check(" Nothing was changed.")
    starts, stops = dict(bounds.starts), dict(bounds.ends)
    for into, timestamp_ms in ((starts, since_ms), (stops, until_ms)):
        if timestamp_ms is not None:
            for partition, answer in client.list_offsets(dict.fromkeys(partitions, timestamp_ms)).items():
                into[partition] = answer.offset if answer.offset >= 0 else bounds.ends[partition]
    return {one: (starts[one], max(starts[one], stops[one])) for one in partitions}


def _first(
    client: Client, partition: TopicPartition, key: bytes, start: int, stop: int, advance: Callable[[int], None]
) -> FoundRecord | None:
    seen = start
    for found, after in read_batches(client, partition, start, stop):
        for _, held in found:
            for number, one in enumerate(held.keys()):
                if one == key:
                    advance(stop - seen)
                    return FoundRecord(offset=held.offsets[number], timestamp_ms=held.timestamps_ms[number])
        advance(after - seen)
        seen = after
    return None
