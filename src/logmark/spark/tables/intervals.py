"""Ranges of offsets that lie apart from each other: what was read, and what of a range is new."""

from collections.abc import Iterable, Mapping

from logmark.names import TopicPartition

Span = tuple[int, int]
Spans = tuple[Span, ...]


def joined(spans: Iterable[Span]) -> Spans:
    """The same offsets in as few spans as possible, in order."""
    found: list[Span] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def common(span: Span, spans: Iterable[Span]) -> Spans:
    """The offsets of the span that lie in the spans too."""
    first, end = span
    return joined((max(first, low), min(end, high)) for low, high in spans)


def common_of(
    ranges: Mapping[TopicPartition, Span], read: Mapping[TopicPartition, Spans]
) -> dict[TopicPartition, Spans]:
    """What of the ranges was read before, without partitions of which nothing was."""
    shared = {place: common(span, read.get(place, ())) for place, span in ranges.items()}
    return {place: spans for place, spans in shared.items() if spans}


def layers(read: Mapping[TopicPartition, Spans]) -> list[dict[TopicPartition, Span]]:
    """The same spans as ranges of one span for each partition, as many as the partition with the most spans needs."""
    depth = max((len(spans) for spans in read.values()), default=0)
    return [{place: spans[index] for place, spans in read.items() if index < len(spans)} for index in range(depth)]
