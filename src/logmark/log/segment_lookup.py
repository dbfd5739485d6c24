"""Look-up in a segment: the batch of an offset, the nearest index entry, the position of a timestamp.

Nothing here believes an index: every entry is compared with the batch that it names. Damage that a look-up meets is
noted at the segment, and the look-up continues behind it.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from logmark.log import chunks
from logmark.log.damage import BadBatch, Damage, DamageScan, parse_header, read_header_at, sound_header_at
from logmark.wire.batches import BatchHeader
from logmark.wire.columns import HEADER_BYTES

if TYPE_CHECKING:
    from logmark.log.segment import Segment

CHUNK_BYTES_MIN = 8 * 1024
CHUNK_BYTES_MAX = 256 * 1024

logger = logging.getLogger(__name__)


class Lookup:
    """Finds batches in one segment; it keeps nothing itself."""

    __slots__ = ("_segment",)

    def __init__(self, segment: "Segment") -> None:
        self._segment = segment

    # Walking

    def batches(self, position: int, stop: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of every batch from a position on, without known damage.

        Raises BadBatch where no batch can be. Checksums are not computed.
        """
        segment = self._segment
        # A look-up reads little more than an index interval; a walk through the segment soon reads more at once.
        buffer, start, chunk = b"", position, CHUNK_BYTES_MIN
        expected: int | None = None if position else segment.base_offset
        before: tuple[int, int] | None = None
        while position < stop:
            if position in segment.skips:
                position, expected, before = segment.skips[position], None, None
                continue
            if position - start + HEADER_BYTES > len(buffer):
                start, buffer = position, segment.read(position, min(chunk, stop - position))
                chunk = min(chunk * 2, CHUNK_BYTES_MAX)
            known = segment.base_offset if expected is None else expected
            header = parse_header(buffer, position - start, position, stop, known)
            if expected is not None and header.base_offset != expected and (
                segment.is_dense or header.base_offset < expected
            ):  # fmt: skip
                problem = f"offset {header.base_offset} where {expected} belongs"
                if before is not None and self.sound_at(before[0], stop) is None:
                    raise BadBatch(before[0], self.floor(before[0], before[1]), "the CRC of the batch is wrong")
                if before is not None and not segment.is_dense:
                    # One of the two was changed, and with holes around them nothing says which.
                    raise BadBatch(before[0], self.floor(*before), problem, behind=position)
                raise BadBatch(position, known, problem)
            yield position, header
            before = position, header.base_offset
            position += header.size
            expected = header.next_offset

    def walk(self, position: int, stop: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the same, but note damage on the way and continue behind it."""
        while True:
            try:
                yield from self.batches(position, stop)
                return
            except BadBatch as bad:
                position = self.note_damage(bad, stop)

    def walk_sound(self, stop: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of every batch of the segment whose checksum is right; note damage on the way."""
        position = 0
        while position < stop:
            try:
                for at, header in self.batches(position, stop):
                    self._require_sound(at, header, stop)
                    yield at, header
                return
            except BadBatch as bad:
                position = self.note_damage(bad, stop)

    def header_at(self, position: int, stop: int) -> BatchHeader | None:
        """Return the header at a position, or None where no batch can be; its checksum is not looked at."""
        return read_header_at(self._segment, position, stop)

    def sound_at(self, position: int, stop: int) -> BatchHeader | None:
        """Return the header of the batch at a position, if its checksum is right."""
        return sound_header_at(self._segment, position, stop, at_least=self._segment.base_offset)

    def sound_header(self, position: int) -> BatchHeader | None:
        """Return the header of the visible batch at a position, if its checksum is right."""
        return self.sound_at(position, self._segment.visible_bytes)

    def sound_end(self, position: int) -> int | None:
        """Return the offset behind the last batch, or None if one from a position on is not sound; read all of them."""
        segment = self._segment
        end = int.from_bytes(segment.read(position, 8), "big", signed=True) if position else segment.base_offset
        check = chunks.check_dense if segment.is_dense else chunks.check_growing
        for chunk in chunks.read_chunks(segment.read, position, segment.size, expected=end, check=check):
            if chunk.problem is not None:
                return None
            end = chunk.next_offset
        return end

    # Offsets

    def find(self, offset: int, stop: int) -> tuple[int, BatchHeader] | None:
        """Return the first batch whose last offset is not below the given one; note damage on the way."""
        position = self.nearest(offset, stop)
        while True:
            try:
                for at, header in self.batches(position, stop):
                    if header.last_offset >= offset:
                        # The walk goes by lengths and offsets; only a right checksum makes them true.
                        self._require_sound(at, header, stop)
                        return at, header
                return None
            except BadBatch as bad:
                self.note_damage(bad, stop)
                position = bad.position

    def nearest(self, offset: int, stop: int) -> int:
        """Return where to begin looking for an offset: the position of an index entry that the log confirms, or 0."""
        segment = self._segment
        for _ in range(2):
            entry = segment.offset_index.at_or_before(offset)
            if entry is None:
                return 0
            header = read_header_at(segment, entry[1], stop)
            if header is not None and header.last_offset == entry[0]:
                return entry[1]
            logger.warning("the offset index contradicts the log: the indexes of %s are rebuilt", segment.path)
            segment.rebuild()
        return 0

    def floor(self, position: int, base_offset: int) -> int:
        """Return the first offset that a bad batch may have held.

        It is its own one. In a log with holes it may be any offset behind the batches before it.
        """
        segment = self._segment
        if segment.is_dense:
            return base_offset
        entry = segment.offset_index.before(position)
        known = None if entry is None else read_header_at(segment, entry[1], position)
        is_true = entry is not None and known is not None and known.last_offset == entry[0]
        end = segment.base_offset
        with suppress(BadBatch):
            for _, header in self.batches(entry[1] if entry is not None and is_true else 0, position):
                end = header.next_offset
        return end

    def _require_sound(self, position: int, header: BatchHeader, stop: int) -> None:
        if self.sound_at(position, stop) is None:
            raise BadBatch(position, self.floor(position, header.base_offset), "the CRC of the batch is wrong")

    # Timestamps

    def nearest_time(self, timestamp: int, stop: int) -> int:
        """Return a position before which every record is older than a timestamp."""
        segment = self._segment
        for _ in range(2):
            count = segment.time_index.count_up_to(timestamp)
            if not count:
                return 0
            _, last_offset = segment.time_index[count - 1]
            if stop < segment.size and last_offset >= segment.base_offset and self.find(last_offset, stop) is None:
                return stop
            position = self._position_of_time(count - 1, stop)
            if position is not None:
                return position
            logger.warning("the time index contradicts the log: the indexes of %s are rebuilt", segment.path)
            segment.rebuild()
        return 0

    def is_largest_time(self, timestamp: int) -> bool:
        """Return whether the last time entry is true and nothing later lies behind its batch.

        The index may have been cut between two entries.
        """
        segment = self._segment
        position = self._position_of_time(len(segment.time_index) - 1, segment.size)
        if position is None:
            return False
        return all(header.max_timestamp <= timestamp for _, header in self.walk(position, segment.size))

    def _position_of_time(self, at: int, stop: int) -> int | None:
        """Return where the batch of a time entry begins.

        None if it is not the first batch that late since the entry before. Another batch may have the same timestamp,
        so it is not enough that the batch has it.
        """
        segment = self._segment
        timestamp, last_offset = segment.time_index[at]
        begin = 0
        if at:
            before_timestamp, before_offset = segment.time_index[at - 1]
            found = self.find(before_offset, stop)
            if found is None or before_timestamp >= timestamp or before_offset >= last_offset:
                return None
            begin = found[0]
        for position, header in self.walk(begin, stop):
            if header.last_offset >= last_offset:
                is_it = header.last_offset == last_offset and header.max_timestamp == timestamp
                return position if is_it and self.sound_at(position, stop) is not None else None
            if header.max_timestamp >= timestamp:
                return None
        return None

    # Damage

    def find_damage(self, known_offset: int | None) -> int:
        """Read the whole segment, note what is damaged, and return the offset behind its last sound batch.

        `known_offset` is the base offset of the next segment, if there is one.
        """
        segment = self._segment
        check = chunks.check_dense if segment.is_dense else chunks.check_growing
        position, expected = 0, segment.base_offset
        while position < segment.size:
            problem = None
            for chunk in chunks.read_chunks(segment.read, position, segment.size, expected=expected, check=check):
                position, expected, problem = chunk.position + chunk.sound, chunk.next_offset, chunk.problem
            if problem is not None:
                bad = BadBatch(position, expected, problem)
                position = self.note_damage(bad, segment.size, known_offset=known_offset)
                expected = segment.damage[-1].next_offset or expected
        if known_offset is not None and expected > known_offset:
            found = self.find(known_offset, segment.size)
            if found is not None:
                self.note_damage(
                    BadBatch(found[0], known_offset, "the next segment holds the offsets from there on"), segment.size
                )
            return known_offset
        return expected

    def next_sound(
        self, position: int, stop: int, *, expected: int, known_offset: int | None = None
    ) -> tuple[int, BatchHeader] | None:
        """Return position and header of the next batch that is believed behind the bad one at a position.

        `known_offset` is an offset at which a batch is known to begin, or the segment to end: a recovery point, or the
        base offset of the next segment.
        """
        segment = self._segment
        scan = DamageScan(
            segment, stop, is_dense=segment.is_dense, entries=segment.entries_behind(position),
            known_offset=known_offset,
        )  # fmt: skip
        return scan.next_batch(position, expected=expected)

    def note_damage(self, bad: BadBatch, stop: int, *, known_offset: int | None = None) -> int:
        """Note at the segment that there is no batch at a position; return where the next one starts that is believed.

        The end of what is searched, `stop`, is returned if there is none.
        """
        segment = self._segment
        found = self.next_sound(bad.behind, stop, expected=bad.expected, known_offset=known_offset)
        end = stop if found is None else found[0]
        segment.skips[bad.position] = end
        noted = Damage(
            path=segment.path,
            position=bad.position,
            size_bytes=end - bad.position,
            first_offset=bad.expected,
            next_offset=None if found is None else found[1].base_offset,
            problem=bad.problem,
        )
        segment.damage.append(noted)
        logger.warning("%s", noted)
        return end
