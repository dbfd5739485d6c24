"""Walks a segment in stretches: whole sound batches, and what lies between them and is none."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from logmark.backup.draft import SegmentDraft
from logmark.wire import batches
from logmark.wire.batches import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT

CHUNK_BYTES = 4 << 20
# Leader epoch 0 and magic 2, which stand in every batch that is stored.
_MARK = b"\x00\x00\x00\x00\x02"
_MARK_AT = 12
# Base offset, length, attributes, last offset delta and producer id.
_HEAD = struct.Struct(">qi9xhi16xq")

Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some bytes of a segment: sound batches, or, with a problem, none; the tail has nothing sound behind it."""

    position: int
    size_bytes: int
    data: memoryview
    next_offset: int
    problem: str | None = None
    is_tail: bool = False


def walk(read: Read, position: int, stop: int, *, expected: int) -> Iterator[Stretch]:
    """Yield every stretch from a position on; behind damage the walk goes on with the next sound batch.

    `read` takes a position and a size, `expected` is the lowest next offset.
    """
    while position < stop:
        for stretch in walk_sound(read, position, stop, expected=expected):
            position, expected = stretch.position, stretch.next_offset
            if stretch.problem is None:
                yield stretch
                position += stretch.size_bytes
                continue
            found = _next_sound(read, position, stop, expected)
            size = (stop if found is None else found) - position
            yield replace(stretch, size_bytes=size, is_tail=found is None)
            position += size


def walk_sound(read: Read, position: int, stop: int, *, expected: int) -> Iterator[Stretch]:
    """Yield sound stretches up to `stop`; what is no sound batch is the last stretch, and nobody looks behind it."""
    while position < stop:
        data = read(position, min(CHUNK_BYTES, stop - position))
        sound, next_offset, problem = batches.sound_prefix(data, base=expected)
        if not sound and problem is None:
            size = batches.read_header(data).size if len(data) >= HEADER_BYTES else 0
            if len(data) < size <= stop - position:
                data = read(position, size)
                sound, next_offset, problem = batches.sound_prefix(data, base=expected)
            if not sound and problem is None:
                problem = "the last batch is not whole"
        if sound:
            view = memoryview(data)[:sound]
            yield Stretch(position=position, size_bytes=sound, data=view, next_offset=next_offset)
            position, expected = position + sound, next_offset
        if problem is not None:
            yield Stretch(
                position=position, size_bytes=stop - position, data=memoryview(b""), next_offset=expected,
                problem=problem,
            )  # fmt: skip
            return


def _next_sound(read: Read, position: int, stop: int, expected: int) -> int | None:
    """Where the first sound batch behind a bad one begins."""
    bad = read(position, HEADER_BYTES)
    if len(bad) == HEADER_BYTES:
        # The length is usually right; a batch inside a record's value must not be taken for one of the log's.
        behind = position + 12 + int.from_bytes(bad[8:12], "big", signed=True)
        if behind > position and _is_sound(read, behind, stop, expected):
            return behind
    start = position + 1
    while start + HEADER_BYTES <= stop:
        data = read(start, min(CHUNK_BYTES, stop - start))
        found = data.find(_MARK, _MARK_AT)
        while found >= 0:
            if _is_sound(read, start + found - _MARK_AT, stop, expected):
                return start + found - _MARK_AT
            found = data.find(_MARK, found + 1)
        if len(data) < CHUNK_BYTES:
            return None
        start += len(data) - HEADER_BYTES
    return None


def _is_sound(read: Read, position: int, stop: int, expected: int) -> bool:
    head = read(position, HEADER_BYTES) if position + HEADER_BYTES <= stop else b""
    if len(head) < HEADER_BYTES:
        return False
    size = 12 + int.from_bytes(head[8:12], "big", signed=True)
    if not HEADER_BYTES <= size <= stop - position:
        return False
    return batches.sound_prefix(read(position, size), base=expected)[0] > 0


def note_batches(segment: SegmentDraft, data: memoryview) -> int:
    """Remembers the producers and transactions of whole batches, and says where the last batch begins."""
    at, last = 0, 0
    head, size = _HEAD.unpack_from, len(data)
    while at < size:
        base_offset, length, attributes, _, producer_id = head(data, at)
        if producer_id >= 0:
            if producer_id > segment.producer_id_max:
                segment.producer_id_max = producer_id
            if attributes & CONTROL_BIT:
                segment.begun.pop(producer_id, None)
                segment.ended[producer_id] = None
            elif attributes & TRANSACTIONAL_BIT:
                segment.begun.setdefault(producer_id, base_offset)
        last = at
        at += 12 + length
    return last


def batch_sizes(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Each whole batch: where it begins, its size, its first offset and the offset behind it."""
    at = 0
    while at < len(data):
        base_offset, length, _, last_offset_delta, _ = _HEAD.unpack_from(data, at)
        yield at, 12 + length, base_offset, base_offset + last_offset_delta + 1
        at += 12 + length
