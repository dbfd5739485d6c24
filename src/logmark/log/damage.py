"""Damage in a segment: what it is called, and which batch behind a bad one is believed.

The scan is for damage at rest: a batch was durable, and its bytes have changed since. It must not take a record's value
for a batch of the log. A client can put well-formed batches into them, with right checksums and
with any offsets, so a right checksum alone proves nothing. These are the facts that a value cannot make up:

- The bad batch begins where the batches before it end, and in a dense log its offset is where their offsets end.
- The offset index names positions where batches begin, and their last offsets. A flipped bit in the index does not
  fool the scan: the batch at the position must have that last offset and a right checksum.
- The header of the bad batch says twice where the next batch is: its length says at which byte, and its last offset
  delta says at which offset. Its checksum covers the delta and everything behind it, but not the length.

The *goal* is the first index entry behind the damage that the log confirms, or else the end of the segment. The batch
at the goal is true. Between the bad batch and the goal the scan believes a batch only if all of this holds:

1. It is named by the header of the bad batch in one of three ways. Length and delta both lead to it: then the damage is
   in another field or in the records. Or only the delta leads to it, and the checksum of the bad batch is right if the
   bad batch ends there: then only the length was damaged. Or only the length leads to it, and the checksum is right
   with the delta that leads to it too: then only the delta was damaged.
2. From it a chain of sound batches, each at the exact offset where the one before it ended, reaches the goal exactly.
3. No second batch passes the tests 1 and 2.

Why no forged batch passes: Damage to one field, to the records, or to a stretch of bytes that spares the length or the
delta leaves one of the three ways right, so the true next batch passes test 1. It also passes test 2 if nothing else is
damaged before the goal. Then a forged batch can only be a second one, and test 3 believes neither. If something else is
damaged before the goal, a forged chain has to cover those bytes too, and its checksums are then as wrong as the true
ones: a forged chain leaves the value only by ending exactly at a true batch, and its own offsets must fit there, or by
claiming the true bytes that follow, damage included. A header that is destroyed as a whole names no batch by chance: a
random length, delta and checksum would have to agree. What remains is damage that changes length and delta at once, so
that both lead to the same forged batch: two changes that fit each other and the value.

What is lost: If the scan believes no batch, it sets aside everything up to the goal. Batches of more than the index
interval have an entry each, so this is little more than an index interval where the index is whole. Without any entry
behind the damage it is the rest of the segment. The bytes stay in the file in every case.

What is not decidable: In a log with holes (a compacted one) the next offset is only known to be larger. There the delta
names nothing: a batch is believed if the length leads to it and the header of the bad batch is plausible, or if the
checksum of the bad batch is right up to it, and the chain has growing offsets only. If a changed offset stays inside
a hole, nothing can tell. The first three facts above and test 3 still hold.

What no reader can see: A batch whose checksum is right for two lengths, because its writer has solved for that, and
one bit of whose length flips so that the other length holds. It looks sound, so no scan begins.

The work is linear: The scan computes checksums over at most `CHECKS_MAX` times the bytes between the bad batch and the
goal, and over the batch at the goal. Two scans of a segment do not cover the same bytes, because a batch is believed
only if all is sound up to the goal.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

import google_crc32c

from logmark.errors import Malformed
from logmark.log import chunks
from logmark.log.file_formats import BATCH_HEADER
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.wire import batches
from logmark.wire.batches import BatchHeader
from logmark.wire.columns import HEADER_BYTES

# The entries of the index up to the goal, the chain behind the length, the checksum with another delta, the checksum
# with another length, and the chain behind that one.
CHECKS_MAX = 5
SEARCH_BYTES = 1024 * 1024
_DELTA = struct.Struct(">i")
_CRC_BEGIN = 21
_DELTA_AT = 23
_MAGIC_AT = 16
# So many bytes of a header the search looks at: those up to the magic.
_SEEN_BYTES = _MAGIC_AT + 1


class BatchFile(Protocol):
    """A file of batches, whose offsets begin at or above a base offset."""

    @property
    def base_offset(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes at a position; fewer at the end of the file."""
        ...


class Damage(NamedTuple):
    """A part of a segment that is kept and not served: bytes that are no batch, or no bytes where offsets are missing.

    The name of the file is empty where the reader of the damage knows it.
    """

    position: int
    size_bytes: int
    first_offset: int
    next_offset: int | None
    problem: str
    # The first 21 bytes as they must be, where nothing else is wrong: then nothing is lost.
    right_head: bytes | None = None
    path: str = ""

    @property
    def records_lost_max(self) -> int | None:
        """How many records the damaged part can have held; None if that is not known."""
        if self.right_head is not None:
            return 0
        return None if self.next_offset is None else self.next_offset - self.first_offset

    @property
    def is_gap(self) -> bool:
        """Whether offsets are missing here."""
        return not self.size_bytes and self.next_offset is not None

    def __str__(self) -> str:
        if not self.size_bytes and self.next_offset is not None:
            return f"{self.path}: offsets {self.first_offset} to {self.next_offset - 1} are missing: {self.problem}."
        if self.next_offset is None:
            until, rest = "", ", up to the end of the segment."
        else:
            until, rest = f" up to, excluding, {self.next_offset}", "; what follows them is."
        return (
            f"{self.path} is damaged at byte {self.position} ({self.size_bytes} bytes, offsets from "
            f"{self.first_offset}{until}): {self.problem}. The bytes are kept and not served{rest}"
        )


class BadBatch(Malformed):
    """There is no whole batch at a position that should have one; `behind` is the last one that is not believed."""

    def __init__(self, position: int, expected: int, problem: str, *, behind: int | None = None) -> None:
        super().__init__(problem)
        self.position = position
        self.expected = expected
        self.problem = problem
        self.behind = position if behind is None else behind


def parse_header(buffer: bytes, at: int, position: int, stop: int, expected: int) -> BatchHeader:
    """Return the header at `at` of a buffer, which lies at a position of the file; raise BadBatch if none can be."""
    try:
        header = batches.read_header(buffer, at)
    except Malformed as error:
        raise BadBatch(position, expected, str(error)) from None
    if header.magic != batches.MAGIC:
        raise BadBatch(position, expected, f"batch with magic {header.magic}")
    if header.size > stop - position:
        raise BadBatch(position, expected, f"batch of {header.size} bytes where {stop - position} are left")
    return header


def read_header_at(file: BatchFile, position: int, stop: int) -> BatchHeader | None:
    """Return the header at a position, or None where no batch can be; its checksum is not looked at."""
    if position < 0 or position + HEADER_BYTES > stop:
        return None
    try:
        return parse_header(file.read(position, HEADER_BYTES), 0, position, stop, file.base_offset)
    except BadBatch:
        return None


def sound_header_at(file: BatchFile, position: int, stop: int, *, at_least: int) -> BatchHeader | None:
    """Return the header at a position, if the checksum of the batch is right and its offset is possible."""
    header = read_header_at(file, position, stop)
    if header is None or not at_least <= header.base_offset <= file.base_offset + RELATIVE_OFFSET_MAX:
        return None
    data = file.read(position, header.size)
    return header if len(data) == header.size and batches.crc_is_right(data, 0, header.size) else None


class DamageScan:
    """Finds the next batch that is believed behind a bad one; the module's docstring has the rule and its reasons.

    `entries` are those of the offset index, as (last offset, position) in order: which of them are true is found out
    here. `known_offset` is an offset at which a batch of the file begins, or the file ends, if one is known: a
    recovery point, or the base offset of the next segment.
    """

    def __init__(
        self,
        file: BatchFile,
        stop: int,
        *,
        is_dense: bool,
        entries: Iterable[tuple[int, int]] = (),
        known_offset: int | None = None,
    ) -> None:
        self._file = file
        self._stop = stop
        self._is_dense = is_dense
        self._entries = entries
        self._known_offset = known_offset

    def next_batch(self, position: int, *, expected: int) -> tuple[int, BatchHeader] | None:
        """Return position and header of the next batch behind the bad one at a position, or None.

        `expected` is the offset of the bad batch; in a log with holes it is the smallest one that it can have.
        """
        goal = self._find_goal(position, expected)
        end = self._stop if goal is None else goal[0]
        data = self._file.read(position, min(HEADER_BYTES, end - position))
        if len(data) < HEADER_BYTES:
            return goal
        bad = _BadHeader(self._file, position, data, end, expected=expected, is_dense=self._is_dense)
        by_checksum = bad.named_by_checksum()
        if len(by_checksum) > 1:
            # Two right checksums are no chance but an attempt, and each would cost a chain.
            return goal
        named = by_checksum | bad.named_by_length()
        believed = {at for at in named if at == end or self._reaches(at, end, goal, expected)}
        if len(believed) != 1 or end in believed:
            return goal
        (at,) = believed
        header = read_header_at(self._file, at, end)
        assert header is not None
        return at, header

    def _find_goal(self, position: int, expected: int) -> tuple[int, BatchHeader] | None:
        """Return the first index entry behind a position that the log confirms."""
        before = position + 1
        behind = (entry for entry in self._entries if entry[1] > position)
        for (last_offset, at), (_, limit) in pairwise(chain(behind, [(0, self._stop)])):
            # The batch of an entry ends before that of the next entry begins, so no byte is checked twice.
            if before <= at < limit <= self._stop:
                header = sound_header_at(self._file, at, limit, at_least=expected + 1)
                if header is not None and header.last_offset == last_offset:
                    return at, header
                before = limit
        return None

    def _reaches(self, position: int, end: int, goal: tuple[int, BatchHeader] | None, expected: int) -> bool:
        """Return whether a chain of sound batches leads from a position exactly to the goal."""
        first = read_header_at(self._file, position, end)
        if first is None or not expected < first.base_offset <= self._file.base_offset + RELATIVE_OFFSET_MAX:
            return False
        goal_offset = self._known_offset if goal is None else goal[1].base_offset
        check = chunks.check_dense if self._is_dense else chunks.check_growing
        reached = first.base_offset
        for chunk in chunks.read_chunks(self._file.read, position, end, expected=reached, check=check):
            reached = chunk.next_offset
            if goal is None and goal_offset is not None and chunk.sound and reached >= goal_offset:
                return not self._is_dense or goal_offset in _offsets_between(chunk)
            if chunk.problem is not None:
                return False
        return goal_offset is None or (reached == goal_offset if self._is_dense else reached <= goal_offset)


class _BadHeader:
    """The header of a bad batch, and the positions that it names by its length and by its checksum."""

    def __init__(
        self, file: BatchFile, position: int, header: bytes, end: int, *, expected: int, is_dense: bool
    ) -> None:
        self._file = file
        self._position = position
        self._header = header
        self._end = end
        self._expected = expected
        self._is_dense = is_dense
        base_offset, length, _, magic, self._crc, _, delta, *_ = BATCH_HEADER.unpack(header)
        self._by_length = position + 12 + length
        # In a log with holes the base offset is the batch's own, in a dense one it is known.
        self._next_offset = (expected if is_dense else base_offset) + delta + 1
        self._is_plausible = magic == batches.MAGIC and base_offset >= expected and delta >= 0

    def named_by_length(self) -> set[int]:
        """Return the position that the length names, if delta or checksum agree with it."""
        return {self._by_length} if self._is_length_right() else set()

    def _is_length_right(self) -> bool:
        if not self._position + HEADER_BYTES <= self._by_length <= self._end:
            return False
        if self._by_length == self._end:
            return True
        header = read_header_at(self._file, self._by_length, self._end)
        if header is None:
            return False
        if not self._is_dense:
            return bool(self._is_plausible and header.base_offset >= self._next_offset)
        return bool(header.base_offset == self._next_offset) or self._is_delta_wrong(header.base_offset)

    def _is_delta_wrong(self, next_offset: int) -> bool:
        """Return whether the checksum is right up to where the length says, if the delta leads to an offset."""
        delta = next_offset - self._expected - 1
        if not 0 <= delta <= RELATIVE_OFFSET_MAX:
            return False
        header = bytearray(self._header)
        _DELTA.pack_into(header, _DELTA_AT, delta)
        crc = google_crc32c.value(bytes(header[_CRC_BEGIN:]))
        for at in range(self._position + HEADER_BYTES, self._by_length, SEARCH_BYTES):
            crc = google_crc32c.extend(crc, self._file.read(at, min(SEARCH_BYTES, self._by_length - at)))
        return bool(crc == self._crc)

    def named_by_checksum(self) -> set[int]:
        """Return the positions where a batch could begin and up to which the checksum is right."""
        found: set[int] = set()
        crc, begin = 0, self._position + _CRC_BEGIN
        first, end = self._position + HEADER_BYTES, min(self._end, self._position + chunks.BATCH_BYTES_MAX)
        while begin < end:
            data = self._file.read(begin, min(SEARCH_BYTES, end - begin))
            done = 0
            for at in self._possible(data):
                if begin + at >= first:
                    crc, done = google_crc32c.extend(crc, data[done:at]), at
                    if crc == self._crc:
                        found.add(begin + at)
            # A header may begin in this read and end in the next one.
            is_last = begin + len(data) >= end or len(data) <= _SEEN_BYTES
            whole = len(data) if is_last else max(done, len(data) - _SEEN_BYTES)
            crc = google_crc32c.extend(crc, data[done:whole])
            begin += whole
            if is_last:
                break
        return found | {self._end} if crc == self._crc and begin == self._end else found

    def _possible(self, data: bytes) -> Iterator[int]:
        """Yield where in some bytes a batch could begin, by its offset and its magic."""
        if self._is_dense:
            if not 0 <= self._next_offset < 2**63:
                return
            wanted = self._next_offset.to_bytes(8, "big")
            at = data.find(wanted)
            while 0 <= at <= len(data) - _SEEN_BYTES:
                if data[at + _MAGIC_AT] == batches.MAGIC:
                    yield at
                at = data.find(wanted, at + 1)
            return
        found = data.find(batches.MAGIC, _MAGIC_AT)
        while found >= 0:
            # Leader epochs below 65,536.
            if not data[found - 4] and not data[found - 3]:
                yield found - _MAGIC_AT
            found = data.find(batches.MAGIC, found + 1)


def _offsets_between(chunk: chunks.Chunk) -> set[int]:
    """Return the offsets where the sound batches of a chunk begin and end."""
    ends, at = {batches.read_header(chunk.data).base_offset}, 0
    while at < chunk.sound:
        header = batches.read_header(chunk.data, at)
        ends.add(header.next_offset)
        at += header.size
    return ends
