"""The scanner of one segment file: every sound batch, and every range where there is none.

It only reads, continues behind damage, and works on Apache Kafka's files as on ours. A checksum covers neither the
offset nor the length of a batch, nor its epoch: those are checked against the neighbours. Where only they are wrong,
the batch is all there, and the right bytes of its head are known. `damage` decides which batch is believed behind a bad
one, for the scanner as for the broker that serves.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from logmark.disk.file_system import File
from logmark.errors import Malformed
from logmark.log import chunks
from logmark.log.chunks import BATCH_BYTES_MAX, Chunk
from logmark.log.damage import Damage, DamageScan
from logmark.log.file_formats import BATCH_HEAD, BATCH_HEADER
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.wire import batches
from logmark.wire.batches import HEADER_BYTES, BatchHeader

CHUNK_BYTES = 4 * 1024 * 1024
HEAD_BYTES = BATCH_HEAD.size


def head_of(header: BatchHeader) -> bytes:
    """Return the bytes of a header that no checksum covers, and the checksum."""
    return BATCH_HEAD.pack(header.base_offset, header.size - 12, header.leader_epoch, batches.MAGIC, header.crc)


class Stretch(NamedTuple):
    """Sound batches back to back, which lie at a position of the file."""

    position: int
    data: memoryview
    headers: list[BatchHeader]

    @property
    def next_offset(self) -> int:
        return self.headers[-1].next_offset


class Scanner:
    """One segment file; `next_base` is the base offset of the segment behind it, if there is one.

    `end` is where the log ends, if that is known. Behind the last batch nothing else shows whether its offset is wrong
    or offsets are missing before it. Then it is believed where `is_guess` says that the log may have gaps after all.
    `entries` are those of the offset index; they tell where batches begin behind damage.
    """

    def __init__(
        self,
        file: File,
        size: int,
        *,
        base_offset: int,
        is_dense: bool,
        next_base: int | None = None,
        end: int | None = None,
        is_guess: bool = False,
        entries: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.base_offset = base_offset
        self._file = file
        self._entries = list(entries)
        self._entries_passed = 0
        self._size = size
        self._is_dense = is_dense
        self._next_base = next_base
        self._is_guess = is_guess
        self._end = next_base if next_base is not None else end
        self._offset_max = next_base - 1 if next_base is not None else base_offset + RELATIVE_OFFSET_MAX
        self._position = 0
        self._expected = base_offset

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the file."""
        return self._file.pread(size, position)

    def __iter__(self) -> Iterator[Stretch | Damage]:
        while self._position < self._size:
            damage = None
            for chunk in self._chunks():
                stretch, damage = self._in_order(chunk.data, chunk.sound)
                if stretch is not None:
                    yield stretch
                    self._position += len(stretch.data)
                    self._expected = stretch.next_offset
                if damage is None and chunk.problem is not None:
                    damage = self._damage(chunk.problem)
                if damage is not None:
                    break
            if damage is not None:
                yield damage
                self._pass(damage)

    def _chunks(self) -> Iterator[Chunk]:
        return chunks.read_chunks(
            self.read, self._position, self._size, expected=self._expected, check=chunks.check_growing,
            chunk_bytes=CHUNK_BYTES,
        )  # fmt: skip

    def _pass(self, damage: Damage) -> None:
        self._position = damage.position + damage.size_bytes
        if damage.next_offset is not None:
            self._expected = damage.next_offset

    def _in_order(self, data: bytes, sound: int) -> tuple[Stretch | None, Damage | None]:
        """Return the batches that are where they belong, and the first one that is not."""
        headers: list[BatchHeader] = []
        at, expected, before = 0, self._expected, self._expected
        is_dense, offset_max, unpack, add = self._is_dense, self._offset_max, BATCH_HEADER.unpack_from, headers.append
        while at < sound:
            # There may be five million batches in a gigabyte: nothing is called here that can be left out.
            fields = unpack(data, at)
            base_offset, size = fields[0], fields[1] + 12
            next_offset = base_offset + fields[6] + 1
            header: BatchHeader = tuple.__new__(BatchHeader, (base_offset, size, *fields[2:]))
            if base_offset != expected and is_dense:
                return self._stretch(data, at, headers), self._misplaced(self._position + at, header, expected)
            if next_offset - 1 > offset_max:
                problem = f"offset {next_offset - 1} in a segment that ends below {offset_max + 1}"
                return self._stretch(data, at, headers), self._one(self._position + at, header, expected, problem)
            add(header)
            before, expected, at = expected, next_offset, at + size
        if headers and not self._is_dense and self._is_contradicted(self._position + at, before, expected):
            last = headers.pop()
            at -= last.size
            problem = f"offset {last.base_offset} before a smaller one"
            return self._stretch(data, at, headers), self._one(self._position + at, last, before, problem)
        return self._stretch(data, at, headers), None

    def _stretch(self, data: bytes, size: int, headers: list[BatchHeader]) -> Stretch | None:
        return Stretch(self._position, memoryview(data)[:size], headers) if headers else None

    def _is_contradicted(self, position: int, before: int, expected: int) -> bool:
        """Return whether the batch at a position is sound and would follow, but for the one before it."""
        following = self._header_at(position)
        if following is None or not before <= following.base_offset < expected:
            return False
        return self._is_sound(position, following)

    def _misplaced(self, position: int, header: BatchHeader, expected: int) -> Damage:
        """Return what is wrong in a log without gaps: offsets are missing before this batch, or its offset is wrong.

        Its offset is only called wrong where the next batch, or the end, is at the offset that follows from the right
        one. A batch between two gaps keeps its offset: the log may have been cleaned, and nobody knows.
        """
        behind = position + header.size
        following = self._header_at(behind)
        if following is not None and not self._is_sound(behind, following):
            following = None
        right = header._replace(base_offset=expected)
        is_between_gaps = following is not None and right.next_offset < header.next_offset < following.base_offset
        if header.base_offset > expected and (is_between_gaps or self._is_confirmed(position, header, following)):
            problem = f"the offsets before {header.base_offset} are missing"
            return Damage(position, 0, expected, header.base_offset, problem)
        problem = f"offset {header.base_offset} where {expected} belongs"
        if following is not None and following.base_offset != right.next_offset:
            return Damage(position, header.size, expected, max(following.base_offset, expected), problem)
        is_right = following is not None or (behind == self._size and right.next_offset == self._end)
        head = head_of(right) if is_right else None
        return Damage(position, header.size, expected, right.next_offset, problem, head)

    def _is_confirmed(self, position: int, header: BatchHeader, following: BatchHeader | None) -> bool:
        """Return whether what lies behind a batch continues where the batch says that it ends."""
        if following is not None:
            return following.base_offset == header.next_offset
        if position + header.size == self._size:
            return header.next_offset == self._end if self._end is not None else self._is_guess
        found = self._next_sound(position + header.size, header.next_offset)
        return found is not None or header.next_offset == self._end

    def _one(self, position: int, header: BatchHeader, expected: int, problem: str) -> Damage:
        """Return a single batch whose bytes are sound and whose offsets cannot be."""
        if self._is_dense:
            return Damage(position, header.size, expected, header.next_offset, problem)
        following = self._header_at(position + header.size)
        next_offset = expected if following is None else following.base_offset
        return Damage(position, header.size, expected, max(next_offset, expected), problem)

    def _damage(self, problem: str) -> Damage:
        found = self._next_sound(self._position, self._expected)
        end = self._size if found is None else found[0]
        next_offset = self._next_base if found is None else found[1].base_offset
        damage = Damage(self._position, end - self._position, self._expected, next_offset, problem)
        return self._with_right_head(damage)

    def _with_right_head(self, damage: Damage) -> Damage:
        """Return the damage, and its right head if the checksum is right with the length up to the next batch."""
        if not HEADER_BYTES <= damage.size_bytes <= BATCH_BYTES_MAX:
            return damage
        data = bytearray(self._file.pread(damage.size_bytes, damage.position))
        base_offset, _, leader_epoch, _, crc = BATCH_HEAD.unpack_from(data)
        BATCH_HEAD.pack_into(data, 0, damage.first_offset, len(data) - 12, leader_epoch, batches.MAGIC, crc)
        header = batches.read_header(data)
        if self._is_dense:
            fits = damage.next_offset in (None, header.next_offset)
        else:
            # Where offsets may be missing anywhere, the offset itself must have been right.
            fits = base_offset >= damage.first_offset and (
                damage.next_offset is None or base_offset + header.last_offset_delta < damage.next_offset
            )
            struct.pack_into(">q", data, 0, base_offset)
            header = batches.read_header(data)
        if not fits or header.last_offset > self._offset_max or not batches.crc_is_right(data, 0, len(data)):
            return damage
        return damage._replace(right_head=bytes(data[:HEAD_BYTES]), next_offset=header.next_offset)

    def _header_at(self, position: int) -> BatchHeader | None:
        if position + HEADER_BYTES > self._size:
            return None
        try:
            header = batches.read_header(self._file.pread(HEADER_BYTES, position))
        except Malformed:
            return None
        is_possible = header.magic == batches.MAGIC and header.last_offset_delta >= 0
        fits = header.size <= min(self._size - position, BATCH_BYTES_MAX)
        return header if is_possible and fits and header.last_offset <= self._offset_max else None

    def _is_sound(self, position: int, header: BatchHeader) -> bool:
        return batches.crc_is_right(self._file.pread(header.size, position), 0, header.size)

    def _next_sound(self, position: int, expected: int) -> tuple[int, BatchHeader] | None:
        """Return the next batch that is believed behind the bad one at a position."""
        # The scanner moves forward only, so no entry is looked at again that lies before it.
        while self._entries_passed < len(self._entries) and self._entries[self._entries_passed][1] <= self._position:
            self._entries_passed += 1
        entries = islice(self._entries, self._entries_passed, None)
        scan = DamageScan(self, self._size, is_dense=self._is_dense, entries=entries, known_offset=self._end)
        return scan.next_batch(position, expected=expected)
