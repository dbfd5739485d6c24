"""Looking records up by their timestamps.

A search is a generator of steps, because it may have to walk far and to decompress much: it yields None where others
may run, and calls that decode one batch, which need not run on the event loop. The batch is decompressed piece by piece
and never held as a whole.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log.damage import BadBatch
from logmark.log.segment import Segment
from logmark.wire import batches, codecs, columns
from logmark.wire.batches import BatchHeader
from logmark.wire.columns import HEADER_BYTES

# Only a snappy block cannot be taken piece by piece; no client makes one that unpacks to more.
DECOMPRESSED_BYTES_MAX = 2**27
HEADERS_BETWEEN_PAUSES = 256

Found = tuple[int, int]
Step = Callable[[], Found | None] | None
Search = Generator[Step, Found | None, Found | None]


def first_at_or_after(segments: Sequence[Segment], timestamp: int, *, log_start_offset: int) -> Search:
    """Return the offset and timestamp of the first readable record that is not older than a timestamp."""
    for segment in segments:
        try:
            segment.load_timestamps()
            if segment.visible_timestamp < timestamp:
                _refuse_damage(segment, 0, segment.visible_bytes, log_start_offset)
                continue
            position = segment.lookup.nearest_time(timestamp, segment.visible_bytes)
            _refuse_damage(segment, 0, position, log_start_offset)
            found = yield from _first_in(segment, position, timestamp, log_start_offset)
        except FileNotFoundError:
            # Retention has let it go while the search paused.
            continue
        if found is not None:
            return found
        yield None
    return None


def largest(segments: Sequence[Segment], *, log_start_offset: int) -> Search:
    """Return the offset and timestamp of the first record that has the largest timestamp of all."""
    for segment in segments:
        try:
            segment.load_timestamps()
        except FileNotFoundError:
            continue
        _refuse_damage(segment, 0, segment.visible_bytes, log_start_offset)
        yield None
    timestamp = max((segment.visible_timestamp for segment in segments), default=-1)
    if timestamp < 0:
        return None
    return (yield from first_at_or_after(segments, timestamp, log_start_offset=log_start_offset))


def run(search: Search) -> Found | None:
    """Return what a search finds, step after step."""
    found = None
    try:
        while True:
            step = search.send(found)
            found = None if step is None else step()
    except StopIteration as stop:
        answer: Found | None = stop.value
        return answer


async def run_beside(search: Search) -> Found | None:
    """Search with pauses for other work on the event loop, and decode batches in a thread."""
    loop = asyncio.get_running_loop()
    found = None
    try:
        while True:
            step = search.send(found)
            if step is None:
                await asyncio.sleep(0)
                found = None
            else:
                found = await loop.run_in_executor(None, step)
    except StopIteration as stop:
        answer: Found | None = stop.value
        return answer


def _first_in(segment: Segment, position: int, timestamp: int, log_start_offset: int) -> Search:
    passed = 0
    for at, header in _candidates(segment, position):
        passed += 1
        if not passed % HEADERS_BETWEEN_PAUSES:
            yield None
        # What cannot be read may be what was looked for: a search that continued behind it would miss it in silence.
        _refuse_damage(segment, position, at, log_start_offset)
        if header.last_offset < log_start_offset:
            continue
        data = segment.read(at, header.size)
        if header.max_timestamp < timestamp or not header.record_count:
            if not batches.crc_is_right(data, 0, header.size):
                raise _damaged(f"byte {at} of {segment.path}", "its CRC is wrong")
            continue
        found = yield partial(_first_of, data, header, timestamp, log_start_offset, f"byte {at} of {segment.path}")
        if found is not None:
            return found
    _refuse_damage(segment, position, segment.visible_bytes, log_start_offset)
    return None


def _refuse_damage(segment: Segment, begin: int, end: int, log_start_offset: int) -> None:
    """Refuse a search that would pass over damage between two positions."""
    for damage in segment.damage:
        if begin <= damage.position < end and (damage.next_offset is None or damage.next_offset > log_start_offset):
            raise _damaged(f"byte {damage.position} of {segment.path}", damage.problem)


def _damaged(position: str, problem: object) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"The batch at {position} is damaged: {problem}.")


def _first_of(data: bytes, header: BatchHeader, timestamp: int, log_start_offset: int, position: str) -> Found | None:
    """Return the first record of a batch that was looked for; markers count, as in Kafka."""
    try:
        if len(data) != header.size or not batches.crc_is_right(data, 0, header.size):
            raise Malformed("its CRC is wrong")
        return _search_records(memoryview(data)[HEADER_BYTES:], header, timestamp, log_start_offset)
    except Malformed as error:
        raise _damaged(position, error) from None


def _search_records(body: memoryview, header: BatchHeader, timestamp: int, log_start_offset: int) -> Found | None:
    is_fixed = header.is_log_append_time
    left = header.record_count
    rest, skipped = b"", 0
    for piece in codecs.pieces(header.codec, body, bytes_max=DECOMPRESSED_BYTES_MAX):
        # Not every codec lets other threads run: they must not wait until Python makes them take turns, 5 ms later.
        time.sleep(0)
        if skipped >= len(piece):
            skipped -= len(piece)
            continue
        # Only the head of a record is ever carried over to the next piece.
        data = memoryview(rest + bytes(piece)) if rest else memoryview(piece)[skipped:]
        passed, size, found = columns.find_time(
            data,
            count=left,
            base_timestamp=header.max_timestamp if is_fixed else header.base_timestamp,
            is_fixed=is_fixed,
            timestamp=timestamp,
            delta_min=log_start_offset - header.base_offset,
        )
        if found is not None:
            return header.base_offset + found[0], found[1]
        left -= passed
        if not left:
            return None
        skipped = max(0, size - len(data))
        rest = bytes(data[size:])
    raise Malformed(f"{left} of {header.record_count} records are missing")


def _candidates(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    while True:
        try:
            yield from segment.lookup.batches(position, segment.visible_bytes)
            return
        except BadBatch as bad:
            position = segment.lookup.note_damage(bad, segment.visible_bytes)
