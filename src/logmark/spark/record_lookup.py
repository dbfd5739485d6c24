"""Looks up records by their offsets: a few of one partition, wherever they lie."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from logmark.client.client import Client
from logmark.client.errors import OffsetOutOfRange
from logmark.names import TopicPartition
from logmark.offsets.records import Record, iterate_records
from logmark.wire import columns

FETCH_BYTES_MAX = 256 << 10
DECOMPRESSED_BYTES_MAX = 1 << 30
GAP_MAX = 100  # a gap of so many offsets is read along rather than fetched around


def group_offsets(offsets: Sequence[int], *, gap_max: int = GAP_MAX) -> list[tuple[int, int]]:
    """Return ascending offsets as few ranges [first, stop)."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset - ranges[-1][1] <= gap_max:
            ranges[-1] = ranges[-1][0], offset + 1
        else:
            ranges.append((offset, offset + 1))
    return ranges


def read_by_offset(
    client: Client, partition: TopicPartition, offsets: Sequence[int]
) -> Iterator[tuple[int, Record | None]]:
    """Yield each of these ascending offsets with its record, or None where the log does not hold it any more."""
    left = list(offsets)
    with client.fetcher(partition, bytes_max=FETCH_BYTES_MAX) as fetcher:
        while left:
            first, stop = group_offsets(left)[0]
            try:
                for answer in fetcher.read(first, stop):
                    for record in _records(answer.records, first, stop):
                        while left and left[0] < record.offset:
                            yield left.pop(0), None
                        if left and left[0] == record.offset:
                            yield left.pop(0), record
            except OffsetOutOfRange as error:
                stop = min(stop, error.log_start) if error.log_start > first else stop
            for offset in left[: bisect_left(left, stop)]:
                yield offset, None
            del left[: bisect_left(left, stop)]


def _records(data: memoryview, start: int, stop: int) -> Iterator[Record]:
    at = start
    while at < stop:
        part = columns.decode(
            data, start=at, stop=stop, with_headers=True, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        )
        yield from iterate_records(part)
        if part.next_offset <= at:
            return
        at = part.next_offset
