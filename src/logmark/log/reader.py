"""Reading batches from a partition's segments, and refusing whatever is not sound.

A checksum covers neither the base offset nor the length of a batch. So in a segment without gaps (every one that
was never cleaned) each batch must begin where the one before it ended; that finds what the checksum cannot.
"""

from collections.abc import Iterable

from logmark.errors import ErrorCode, Refused
from logmark.log.damage import BadBatch, Damage
from logmark.log.segment import Segment
from logmark.log.segments import Segments
from logmark.wire import batches
from logmark.wire.batches import LEADER_EPOCH
from logmark.wire.columns import HEADER_BYTES

PLACES_MAX = 64
Records = bytes | memoryview


class Reader:
    """Reads from where an offset lies; remembers where it stopped, because the next read begins there."""

    __slots__ = ("_leader_epoch", "_name", "_places", "_segments", "_stopped")

    def __init__(self, name: str, segments: Segments, *, leader_epoch: int = LEADER_EPOCH) -> None:
        self._leader_epoch = leader_epoch
        self._name = name
        self._segments = segments
        self._places: dict[int, tuple[Segment, int]] = {}
        self._stopped: tuple[Segment, int, int] | None = None

    def read(self, offset: int, *, bytes_max: int, at_least_one: bool, end: int, is_stable: bool = False) -> Records:
        """Whole batches from the one that holds an offset on, all below the offset `end`.

        What the segments show ends at `end`, unless that is a last stable offset.
        """
        place = self._places.get(offset)
        if place is None or place[1] >= place[0].visible_bytes:
            located = self._locate(offset)
            if located is None:
                return b""
            segment, position, base = located
        else:
            segment, position = place
            base = offset
        left = segment.visible_bytes - position
        data: Records = segment.read(position, min(left, max(bytes_max, HEADER_BYTES)))
        if is_stable and int.from_bytes(data[:8], "big") >= end:
            # Compaction has left nothing between the offset and the end.
            return b""
        sound, next_offset, problem = batches.sound_prefix(
            data, base=base, end=end if is_stable else None, leader_epoch=self._leader_epoch
        )
        if not sound and problem is None:
            data, sound, next_offset, problem = self._read_one(segment, position, base)
        if sound > bytes_max and not at_least_one:
            return b""
        if is_stable:
            self._stopped = segment, position + (sound if next_offset == end else len(data)), next_offset
        if problem is not None or not self._follows(segment, position, data, sound, next_offset, end):
            sound, next_offset = self._served(segment, position, data, base, sound, problem)
        places = self._places
        places[next_offset] = segment, position + sound
        if len(places) > PLACES_MAX:
            del places[next(iter(places))]
        return data if sound == len(data) else memoryview(data)[:sound]

    def bound(self, log_end_offset: int) -> int:
        """An offset behind the last stable read, found in the index as Kafka finds it: further than need be."""
        assert self._stopped is not None
        segment, position, next_offset = self._stopped
        entry = segment.offset_index.at_or_behind(position)
        if entry is not None:
            return max(entry[0], next_offset)
        following = self._segments.after(segment)
        return log_end_offset if following is None else following.base_offset

    def forget(self) -> None:
        """Forgets where readers stand: segments have gone."""
        self._places.clear()
        self._stopped = None

    def _read_one(self, segment: Segment, position: int, base: int) -> tuple[bytes, int, int, str | None]:
        """A batch that is larger than the read."""
        head = segment.read(position, HEADER_BYTES)
        size = batches.read_header(head).size if len(head) == HEADER_BYTES else 0
        if not 0 < size <= segment.visible_bytes - position:
            return b"", 0, base, "the batch is cut short"
        data = segment.read(position, size)
        sound, next_offset, problem = batches.sound_prefix(data, base=base, end=None, leader_epoch=self._leader_epoch)
        return data, sound, next_offset, problem or (None if sound else "the file is cut short")

    def _follows(
        self, segment: Segment, position: int, data: Records, sound: int, next_offset: int, end: int
    ) -> bool:  # fmt: skip
        """Whether the offset behind the first `sound` bytes of a read is one that can be there."""
        behind = self._base_behind(segment, position, data, sound)
        if not segment.is_dense:
            return behind is None or behind >= next_offset or position + sound in segment.skips
        return next_offset in (behind, end) if position + sound == segment.visible_bytes else next_offset == behind

    def _base_behind(self, segment: Segment, position: int, data: Records, at: int) -> int | None:
        """The offset of what lies behind so many bytes of a read, if there is anything."""
        if len(data) - at >= 8:
            return int.from_bytes(data[at : at + 8], "big")
        if position + at < segment.visible_bytes:
            return int.from_bytes(segment.read(position + at, 8), "big")
        following = self._segments.after(segment)
        return None if following is None else following.base_offset

    def _served(
        self, segment: Segment, position: int, data: Records, base: int, sound: int, problem: str | None
    ) -> tuple[int, int]:
        """How much may be served of a read that is not sound; refuses when that is nothing."""
        served, expected, last_bad = 0, base, position
        while served < sound:
            header = batches.read_header(data, served)
            if segment.is_dense and header.base_offset != expected:
                problem = f"offset {header.base_offset} where {expected} belongs"
                break
            at = served + header.size
            if not segment.is_dense and not self._follows(segment, position, data, at, header.next_offset, end=-1):
                # With holes around them nothing says which of the two was changed.
                problem = f"a lower offset behind a batch that ends before {header.next_offset}"
                last_bad = position + at if position + at < segment.visible_bytes else position
                break
            served, expected = at, header.next_offset
        if not served:
            if position not in segment.skips:
                floor = segment.lookup.floor(position, expected)
                bad = BadBatch(position, floor, problem or "the batch is not sound", behind=last_bad)
                segment.lookup.note_damage(bad, segment.visible_bytes)
            raise self._corrupt(expected)
        return served, expected

    def _locate(self, offset: int) -> tuple[Segment, int, int] | None:
        """The segment, position and base offset of the batch that holds an offset or comes next, if any does."""
        for segment in self._segments.from_offset(offset):
            self._segments.use(segment)
            found = segment.lookup.find(offset, segment.visible_bytes)
            if found is not None:
                position, header = found
                wanted = max(offset, segment.base_offset)
                if header.base_offset > wanted and (segment.is_dense or _hides(segment.damage, offset, position)):
                    break
                return segment, position, header.base_offset
            if (segment.is_dense and offset >= segment.base_offset) or _hides(segment.damage, offset, segment.size):
                break
        else:
            return None
        raise self._corrupt(offset)

    def _corrupt(self, offset: int) -> Refused:
        return Refused(
            ErrorCode.CORRUPT_MESSAGE,
            f"The log of {self._name} is damaged at offset {offset}; later offsets may be readable.",
        )


def _hides(damage: Iterable[Damage], offset: int, before: int) -> bool:
    """Whether damage before a position may hold the offset, or the next one that there is."""
    return any(
        found.position < before and (found.next_offset is None or offset < found.next_offset) for found in damage
    )
