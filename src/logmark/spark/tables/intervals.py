"""Ranges of offsets that lie apart from each other: what was read, and what of a range is new."""

from collections.abc import Iterable, Mapping

from logmark.names import TopicPartition

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]


def merge_intervals(spans: Iterable[Interval]) -> Intervals:
    """Return the same offsets in as few intervals as possible, in order."""
    found: list[Interval] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def intersect(span: Interval, spans: Iterable[Interval]) -> Intervals:
    """Return the offsets of the interval that are in the intervals too."""
    first, end = span
    return merge_intervals((max(first, low), min(end, high)) for low, high in spans)


def intersect_by_partition(
    ranges: Mapping[TopicPartition, Interval], read: Mapping[TopicPartition, Intervals]
) -> dict[TopicPartition, Intervals]:
    """Return the parts of the ranges that were read before, by partition."""
    shared = {partition: intersect(span, read.get(partition, ())) for partition, span in ranges.items()}
    return {partition: spans for partition, spans in shared.items() if spans}


def split_layers(read: Mapping[TopicPartition, Intervals]) -> list[dict[TopicPartition, Interval]]:
    """Return the intervals as mappings with one interval for each partition, as many as are needed."""
    depth = max((len(spans) for spans in read.values()), default=0)
    return [
        {partition: spans[index] for partition, spans in read.items() if index < len(spans)} for index in range(depth)
    ]
