"""Walks a segment in stretches: whole sound batches, and what lies between them and is none.

Which batch is believed behind a bad one, `logmark.log.damage` decides, for a backup as for the broker that serves.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from logmark.backup.draft import SegmentDraft
from logmark.log import chunks
from logmark.log.chunks import Read
from logmark.log.damage import BatchFile, DamageScan
from logmark.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT

CHUNK_BYTES = 4 << 20
# Base offset, length, attributes, last offset delta and producer id.
_HEAD = struct.Struct(">qi9xhi16xq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some bytes of a segment: sound batches, or, with a problem, none; the tail has nothing sound behind it."""

    position: int
    size_bytes: int
    data: memoryview
    next_offset: int
    problem: str | None = None
    is_tail: bool = False


def walk(
    file: BatchFile,
    position: int,
    stop: int,
    *,
    expected: int,
    is_dense: bool,
    entries: Iterable[tuple[int, int]] = (),
    known_offset: int | None = None,
) -> Iterator[Stretch]:
    """Yield every stretch from a position on; behind damage the walk goes on with the next batch that is believed.

    `expected` is the lowest next offset; the other arguments are those of `DamageScan`, which decides.
    """
    while position < stop:
        for stretch in walk_sound(file.read, position, stop, expected=expected):
            position, expected = stretch.position, stretch.next_offset
            if stretch.problem is None:
                yield stretch
                position += stretch.size_bytes
                continue
            known = known_offset if known_offset is not None and known_offset > expected else None
            scan = DamageScan(file, stop, is_dense=is_dense, entries=entries, known_offset=known)
            found = scan.next_batch(position, expected=expected)
            size = (stop if found is None else found[0]) - position
            yield replace(stretch, size_bytes=size, is_tail=found is None)
            position += size


def walk_sound(read: Read, position: int, stop: int, *, expected: int) -> Iterator[Stretch]:
    """Yield sound stretches up to `stop`; what is no sound batch is the last stretch, and nobody looks behind it."""
    for chunk in chunks.read_chunks(
        read, position, stop, expected=expected, check=chunks.check_growing, chunk_bytes=CHUNK_BYTES
    ):
        end = chunk.position + chunk.sound
        if chunk.sound:
            view = memoryview(chunk.data)[: chunk.sound]
            yield Stretch(position=chunk.position, size_bytes=chunk.sound, data=view, next_offset=chunk.next_offset)
        if chunk.problem is not None:
            yield Stretch(
                position=end, size_bytes=stop - end, data=memoryview(b""), next_offset=chunk.next_offset,
                problem=chunk.problem,
            )  # fmt: skip


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
