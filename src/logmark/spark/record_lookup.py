"""Records fetched again by their offsets: a few of a partition, wherever they lie."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.names import TopicPartition
from logmark.wire import columns
from logmark.wire.batches import Record

FETCH_BYTES_MAX = 256 << 10
DECOMPRESSED_BYTES_MAX = 1 << 30
GAP_MAX = 100  # offsets that are read along rather than asked for apart


def spans_of(offsets: Sequence[int], *, gap_max: int = GAP_MAX) -> list[tuple[int, int]]:
    """Ascending offsets as few ranges, each up to but not including its second number."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] <= gap_max:
            spans[-1] = spans[-1][0], offset + 1
        else:
            spans.append((offset, offset + 1))
    return spans


def read_originals(
    client: Client, place: TopicPartition, offsets: Sequence[int]
) -> Iterator[tuple[int, Record | None]]:
    """Each of these ascending offsets once, with its record, or None where the log does not hold it any more."""
    left = list(offsets)
    with client.fetcher(place, bytes_max=FETCH_BYTES_MAX) as fetcher:
        while left:
            first, stop = spans_of(left)[0]
            try:
                for answer in fetcher.read(first, stop):
                    for record in _records(answer.records, first, stop):
                        while left and left[0] < record.offset:
                            yield left.pop(0), None
                        if left and left[0] == record.offset:
                            yield left.pop(0), record
            except OffsetOutOfRange as error:
                stop = min(stop, error.log_start) if error.log_start > first else stop
            for gone in left[: bisect_left(left, stop)]:
                yield gone, None
            del left[: bisect_left(left, stop)]


def _records(data: memoryview, start: int, stop: int) -> Iterator[Record]:
    at = start
    while at < stop:
        part = columns.decode(
            data, start=at, stop=stop, with_headers=True, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        )
        fields = zip(part.offsets, part.timestamps_ms, part.keys(), part.values(), part.headers(), strict=True)
        for one in fields:
            yield Record(*one)
        if part.next_offset <= at:
            return
        at = part.next_offset
