"""Walks a segment in stretches: whole sound batches, and what lies between them and is none.

What is damage, and which batch is believed behind it, `logmark.log.scanner` decides, for a backup as for `logmark
verify`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Protocol, cast

from logmark.backup.manifest_draft import SegmentDraft
from logmark.disk.file_system import File
from logmark.log import chunks
from logmark.log.chunks import Read
from logmark.log.damage import Damage
from logmark.log.scanner import Scanner
from logmark.log.scanner import Stretch as SoundBatches
from logmark.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT

CHUNK_BYTES = 4 << 20
# Base offset, length, attributes, last offset delta and producer id.
_HEAD = struct.Struct(">qi9xhi16xq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some bytes of a segment: sound batches, or, with a problem, damage.

    Damage of no bytes says that offsets are missing there. The tail has nothing sound in it or behind it.
    """

    position: int
    size_bytes: int
    data: memoryview
    next_offset: int
    problem: str | None = None
    is_tail: bool = False


class Segment(Protocol):
    """The bytes of one segment at the source, read by position and size."""

    @property
    def base_offset(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class _Rest:
    """A segment from a position on, as a scanner reads a file."""

    def __init__(self, segment: Segment, position: int) -> None:
        self._segment = segment
        self._position = position

    def pread(self, size: int, at: int) -> bytes:
        return self._segment.read(self._position + at, size)


def walk(
    segment: Segment,
    position: int,
    stop: int,
    *,
    expected: int,
    is_dense: bool,
    entries: Sequence[tuple[int, int]] = (),
    following: int | None = None,
    known_end: int | None = None,
) -> Iterator[Stretch]:
    """Yield every stretch from a position on, as `logmark verify` finds them.

    `expected` is the next offset there. `following` is the base offset of the next segment. `known_end` is an offset at
    which the log ends, or ended once; damage behind it is judged without it.
    """
    scanner = Scanner(
        cast(File, _Rest(segment, position)),
        stop - position,
        base_offset=expected,
        is_dense=is_dense,
        next_base=following,
        end=known_end,
        entries=[(offset, at - position) for offset, at in entries if at >= position],
    )
    for part in scanner:
        begin = position + part.position
        if isinstance(part, Damage):
            if known_end is not None and part.first_offset >= known_end:
                yield from walk(
                    segment, begin, stop, expected=part.first_offset, is_dense=is_dense, entries=entries,
                    following=following,
                )  # fmt: skip
                return
            yield Stretch(
                position=begin, size_bytes=part.size_bytes, data=memoryview(b""), next_offset=part.first_offset,
                problem=part.problem, is_tail=part.next_offset is None and part.right_head is None,
            )  # fmt: skip
        else:
            yield from _split_by_epoch(begin, part)


def _split_by_epoch(position: int, part: SoundBatches) -> Iterator[Stretch]:
    """Yield sound batches, and as damage those with another leader epoch than 0: a log of Logmark has no other."""
    at = 0
    for leader_epoch, group in groupby(part.headers, attrgetter("leader_epoch")):
        headers = list(group)
        size = sum(header.size for header in headers)
        if leader_epoch:
            yield Stretch(
                position=position + at, size_bytes=size, data=memoryview(b""), next_offset=headers[-1].next_offset,
                problem=f"leader epoch {leader_epoch} where 0 belongs",
            )  # fmt: skip
        else:
            yield Stretch(
                position=position + at, size_bytes=size, data=part.data[at : at + size],
                next_offset=headers[-1].next_offset,
            )  # fmt: skip
        at += size


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
    """Remember the producers and transactions of whole batches, and return where the last batch begins."""
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
    """Yield each whole batch: where it begins, its size, its first offset and the offset behind it."""
    at = 0
    while at < len(data):
        base_offset, length, _, last_offset_delta, _ = _HEAD.unpack_from(data, at)
        yield at, 12 + length, base_offset, base_offset + last_offset_delta + 1
        at += 12 + length
