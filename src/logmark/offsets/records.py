"""Records as the tools look at them: one at an offset, or a range one after the other."""

from collections.abc import Iterator

from logmark.client.aborted_transactions import Aborted
from logmark.client.client import Client
from logmark.client.fetcher import next_offset
from logmark.names import TopicPartition
from logmark.wire import batches, columns
from logmark.wire.batches import Record

__all__ = ["Batch", "Record", "first_record", "iterate_batches", "iterate_records", "read_batches", "read_records"]

Batch = tuple[batches.BatchHeader, columns.Columns]

DECOMPRESSED_BYTES_MAX = 128 << 20
_LOOK_BYTES_MAX = 64 << 10
_READ_BYTES_MAX = 4 << 20
_LOOK_WAIT_MS = 100
# A look passes over what holds no record (markers, emptied batches) this many times before it gives up.
_LOOKS_MAX = 20


def first_record(
    client: Client, partition: TopicPartition, offset: int, *, stop: int | None = None, read_committed: bool = False
) -> Record | None:
    """Return the first record at or after an offset and below `stop` (the visible end unless given), None if none is.

    It is bounded: a few fetches of one batch each, none of which waits for a record to come. Raises OffsetOutOfRange
    for an offset that the log does not hold.
    """
    at = offset
    with client.fetcher(
        partition, bytes_max=_LOOK_BYTES_MAX, max_wait_ms=_LOOK_WAIT_MS, min_bytes=0, read_committed=read_committed
    ) as fetcher:
        for _ in range(_LOOKS_MAX):
            if stop is not None and at >= stop:
                return None
            fetcher.send(at)
            answer = fetcher.receive()
            after = next_offset(answer.records, at)
            aborted = Aborted(answer.aborted_transactions) if read_committed else None
            for _, held in _batches(answer.records, at, stop if stop is not None else after, aborted):
                for record in iterate_records(held):
                    return record
            if after <= at:
                return None
            at = after
    return None


def read_records(
    client: Client, partition: TopicPartition, start: int, stop: int, *, read_committed: bool = False
) -> Iterator[Record]:
    """Every record of [start, stop) in order; with `read_committed` without those of aborted transactions."""
    for found, _ in read_batches(client, partition, start, stop, read_committed=read_committed):
        for _, held in found:
            yield from iterate_records(held)


def read_batches(
    client: Client, partition: TopicPartition, start: int, stop: int, *, read_committed: bool = False
) -> Iterator[tuple[Iterator[Batch], int]]:
    """Yield the batches of each fetch of [start, stop), valid until the next one, and the offset after them."""
    at = start
    with client.fetcher(partition, bytes_max=_READ_BYTES_MAX, read_committed=read_committed) as fetcher:
        for answer in fetcher.read(start, stop):
            aborted = Aborted(answer.aborted_transactions) if read_committed else None
            after = next_offset(answer.records, at)
            yield _batches(answer.records, at, stop, aborted), min(after, stop)
            at = after


def iterate_records(found: columns.Columns) -> Iterator[Record]:
    """Yield the records of one batch."""
    for fields in zip(
        found.offsets, found.timestamps_ms, found.keys(), found.values(), found.headers(), strict=True
    ):  # fmt: skip
        yield Record(*fields)


def iterate_batches(data: memoryview, stop: int) -> Iterator[tuple[batches.BatchHeader, memoryview]]:
    """Yield the whole batches of a response that start below `stop`, each with its header."""
    at = 0
    while len(data) - at >= columns.HEADER_BYTES:
        header = batches.read_header(data, at)
        end = at + header.size
        if end > len(data) or header.base_offset >= stop:
            return
        yield header, data[at:end]
        at = end


def _batches(data: memoryview, start: int, stop: int, aborted: Aborted | None) -> Iterator[Batch]:
    for header, batch in iterate_batches(data, stop):
        # The marker of an abort must be seen also where the batch before it is not wanted.
        is_hidden = header.is_control
        if aborted is not None:
            is_hidden = aborted.hides(
                last_offset=header.last_offset,
                producer_id=header.producer_id,
                is_control=header.is_control,
                is_transactional=header.is_transactional,
            )
        if not is_hidden and header.last_offset >= start:
            yield (
                header,
                columns.decode(
                    batch,
                    start=start,
                    stop=stop,
                    with_headers=True,
                    decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                ),
            )
