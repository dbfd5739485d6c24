"""Reading a partition's log: batches by offset, aborted transactions, and offsets by time. Damaged batches are refused.

A checksum covers neither the base offset nor the length of a batch. So in a segment without gaps (every one that
was never cleaned) each batch must begin where the one before it ended; that finds what the checksum cannot.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log import timestamp_lookup
from logmark.log.damage import BadBatch, Damage
from logmark.log.file_range import FileRange
from logmark.log.log_state import LogState
from logmark.log.segment import Segment
from logmark.wire import batches
from logmark.wire.batches import LEADER_EPOCH
from logmark.wire.columns import HEADER_BYTES

POSITIONS_MAX = 64
Records = bytes | memoryview

logger = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """Batches that a read has found, the aborted transactions that their reader must skip, and where they lie."""

    records: Records
    # None if the reader did not ask for committed records only.
    aborted: list[tuple[int, int]] | None
    segment: Segment | None = None
    position: int = 0
    # Whether another segment follows the one that was read.
    is_followed: bool = False


NOTHING = Fetched(b"", None)
NOTHING_COMMITTED = Fetched(b"", [])


class Reader:
    """Reads one partition's log; remembers where each read stopped, because the next one begins there."""

    __slots__ = ("_failures", "_gaps", "_leader_epoch", "_positions", "_segments", "_state", "_stopped")

    def __init__(self, state: LogState, *, leader_epoch: int = LEADER_EPOCH) -> None:
        """Take the epoch that every batch must have; -1 is for a log of Apache Kafka, which may have several."""
        self._leader_epoch = leader_epoch
        self._state = state
        self._segments = state.segments
        # The segment and the byte position of offsets at which reads have stopped.
        self._positions: dict[int, tuple[Segment, int]] = {}
        self._stopped: tuple[Segment, int, int] | None = None
        # Where offsets are missing, because segments were removed.
        self._gaps: list[Damage] = []
        # How often the disk has failed a read, by the number of the error.
        self._failures: Counter[int | None] = Counter()

    def load(self, damage: list[Damage]) -> None:
        """Start with a log that was loaded, and with the damage that the load found in it."""
        found = [one for one in damage if one.is_gap]
        known = {gap.next_offset for gap in found}
        # A load after a failed flush does not look for all of them.
        self._gaps = found + [gap for gap in self._gaps if gap.next_offset not in known]
        self.forget()

    @property
    def damage(self) -> list[Damage]:
        """The ranges that are never served, as far as they have been found."""
        return [damage for segment in self._segments for damage in segment.damage] + self.gaps

    @property
    def gaps(self) -> list[Damage]:
        """The ranges whose segments are missing, above the log start."""
        start = self._state.log_start_offset
        return [
            gap._replace(first_offset=max(gap.first_offset, start))
            for gap in self._gaps
            if gap.next_offset is not None and gap.next_offset > start
        ]

    def note_gap(self, offset: int, next_offset: int) -> None:
        """Note as damage that no segment has the offsets from one up to the start of the next segment."""
        known = next((gap for gap in self._gaps if gap.next_offset == next_offset), None)
        if known is None:
            problem = f"no segment holds them, and the next one begins at {next_offset}"
            known = Damage(0, 0, offset, next_offset, problem, path=self._state.folder)
            logger.warning("%s", known)
        else:
            self._gaps.remove(known)
        self._gaps.append(known._replace(first_offset=min(known.first_offset, offset)))

    # Reading

    def read(self, offset: int, *, bytes_max: int, at_least_one: bool = True) -> Records:
        """Return whole batches below the high watermark, from the one that holds an offset on; none at the end.

        Raises Refused if the offset is out of range, or if the log is damaged there or cannot be read.
        """
        return self.fetch(offset, bytes_max=bytes_max, at_least_one=at_least_one, is_committed=False).records

    def fetch(self, offset: int, *, bytes_max: int, at_least_one: bool, is_committed: bool) -> Fetched:
        """Return what `read` returns, or the batches below the last stable offset; and where they lie.

        Raises what `read` raises.
        """
        state = self._state
        end = state.last_stable_offset if is_committed else state.high_watermark
        if not state.log_start_offset <= offset < end:
            self._check_range(offset)
            return NOTHING_COMMITTED if is_committed else NOTHING
        try:
            fetched = self._read(offset, bytes_max, end, at_least_one=at_least_one, is_committed=is_committed)
            if is_committed and state.has_aborted and len(fetched.records):
                return fetched._replace(aborted=self.aborted_transactions(offset, self._bound()))
            return fetched
        except OSError as error:
            raise self._unreadable(error) from error

    def hold_open(self, fetched: Fetched) -> FileRange:
        """Return fetched records as a range of their file, which is open as long as the range is there.

        Raises Refused if the file cannot be opened.
        """
        assert fetched.segment is not None
        try:
            return FileRange(fetched.segment.file.hold_open(), fetched.position, fetched.records)
        except OSError as error:
            raise self._unreadable(error) from error

    def _check_range(self, offset: int) -> None:
        state = self._state
        if state.log_start_offset <= offset <= state.high_watermark:
            return
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is not between {state.log_start_offset} and {state.high_watermark}.",
        )

    def aborted_transactions(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of the aborted transactions with records between two offsets."""
        found: list[tuple[int, int]] = []
        for segment in self._segments.from_offset(offset):
            if not segment.has_aborted:
                continue
            self._segments.use(segment)
            try:
                overlapping = segment.aborted.overlapping(offset, end)
            except Malformed as error:
                raise Refused(
                    ErrorCode.CORRUPT_MESSAGE, f"The transaction index of {segment.path} is damaged: {error}."
                ) from None
            # A marker that is not visible yet may still be lost.
            found += [entry[:2] for entry in overlapping if entry.last_offset < self._state.high_watermark]
        return found

    def _unreadable(self, error: OSError) -> Refused:
        """Return the refusal of a read that the disk failed.

        The failures 1, 2, 4, 8 and so on are logged: a client that reads again and again must not fill the log.
        """
        name = self._state.name
        self._failures[error.errno] += 1
        count = self._failures[error.errno]
        if count & (count - 1) == 0:
            logger.error("%s cannot be read: %s", name, error, extra={"failures": count})
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"The log of {name} cannot be read: {error}.")

    # Offsets by time

    def offset_for_timestamp(self, timestamp: int) -> timestamp_lookup.Found | None:
        """Return the offset and timestamp of the first readable record that is not older than a timestamp."""
        try:
            return timestamp_lookup.run(self._search(timestamp))
        except OSError as error:
            raise self._unreadable(error) from error

    def max_timestamp(self) -> timestamp_lookup.Found | None:
        """Return the offset and timestamp of the first record that has the largest timestamp."""
        try:
            return timestamp_lookup.run(self._search(None))
        except OSError as error:
            raise self._unreadable(error) from error

    async def look_up(self, timestamp: int | None) -> timestamp_lookup.Found | None:
        """Return the same as `offset_for_timestamp`, or `max_timestamp` for None, without blocking the event loop."""
        try:
            return await timestamp_lookup.run_beside(self._search(timestamp))
        except OSError as error:
            raise self._unreadable(error) from error

    def _search(self, timestamp: int | None) -> timestamp_lookup.Search:
        segments, start = list(self._segments), self._state.log_start_offset
        if timestamp is None:
            return timestamp_lookup.largest(segments, log_start_offset=start)
        return timestamp_lookup.first_at_or_after(segments, timestamp, log_start_offset=start)

    # Batches

    def _read(self, offset: int, bytes_max: int, end: int, *, at_least_one: bool, is_committed: bool) -> Fetched:
        """Return whole batches from the one that holds an offset on, all below the offset `end`.

        The visible bytes of the segments end at `end`, unless that is a last stable offset.
        """
        nothing = NOTHING_COMMITTED if is_committed else NOTHING
        known = self._positions.get(offset)
        if known is None or known[1] >= known[0].visible_bytes or self._begins_behind(known[0], offset):
            located = self._locate(offset)
            if located is None:
                return nothing
            segment, position, base = located
        else:
            segment, position = known
            base = offset
        left = segment.visible_bytes - position
        data: Records = segment.read(position, min(left, max(bytes_max, HEADER_BYTES)))
        if is_committed and int.from_bytes(data[:8], "big") >= end:
            # Compaction has left nothing between the offset and the end.
            return nothing
        stop = end if is_committed else None
        following = None if segment is self._segments.active else self._segments.after(segment)
        if following is not None:
            # Offsets from there on are in the next segment: what has them here is damage.
            stop = following.base_offset if stop is None else min(stop, following.base_offset)
        sound, next_offset, problem = batches.sound_prefix(data, base=base, end=stop, leader_epoch=self._leader_epoch)
        if not sound and problem is None:
            data, sound, next_offset, problem = self._read_one(segment, position, base, stop)
        if sound > bytes_max and not at_least_one:
            return nothing
        if is_committed:
            self._stopped = segment, position + (sound if next_offset == end else len(data)), next_offset
        if problem is not None or not self._follows(segment, position, data, sound, next_offset, end):
            sound, next_offset = self._served(segment, position, data, base, sound, problem)
        if following is not None and next_offset == following.base_offset:
            self._note_end(segment, position + sound, next_offset)
        positions = self._positions
        positions[next_offset] = segment, position + sound
        if len(positions) > POSITIONS_MAX:
            del positions[next(iter(positions))]
        records = data if sound == len(data) else memoryview(data)[:sound]
        return Fetched(records, nothing.aborted, segment, position, segment is not self._segments.active)

    def _begins_behind(self, segment: Segment, offset: int) -> bool:
        """Return whether another segment begins at an offset: what follows in this one is damage."""
        if segment is self._segments.active:
            return False
        following = self._segments.after(segment)
        return following is not None and following.base_offset <= offset

    def _bound(self) -> int:
        """Return an offset behind the last stable read, found in the index as Kafka finds it: further than need be."""
        assert self._stopped is not None
        segment, position, next_offset = self._stopped
        entry = segment.offset_index.at_or_behind(position)
        if entry is not None:
            return max(entry[0], next_offset)
        following = self._segments.after(segment)
        return self._state.log_end_offset if following is None else following.base_offset

    def forget(self) -> None:
        """Forget where reads have stopped: segments were deleted or replaced."""
        self._positions.clear()
        self._stopped = None

    def _note_end(self, segment: Segment, position: int, next_offset: int) -> None:
        """Note as damage what lies in a segment behind its last offset."""
        if position < segment.visible_bytes and position not in segment.skips:
            bad = BadBatch(position, next_offset, "the next segment holds the offsets from there on")
            segment.lookup.note_damage(bad, segment.visible_bytes)

    def _read_one(
        self, segment: Segment, position: int, base: int, stop: int | None
    ) -> tuple[bytes, int, int, str | None]:
        """Return a batch that is larger than the read; it must end before the offset `stop`."""
        head = segment.read(position, HEADER_BYTES)
        size = batches.read_header(head).size if len(head) == HEADER_BYTES else 0
        if not 0 < size <= segment.visible_bytes - position:
            return b"", 0, base, "the batch is cut short"
        data = segment.read(position, size)
        sound, next_offset, problem = batches.sound_prefix(data, base=base, end=stop, leader_epoch=self._leader_epoch)
        return data, sound, next_offset, problem or (None if sound else "the file is cut short")

    def _follows(
        self, segment: Segment, position: int, data: Records, sound: int, next_offset: int, end: int
    ) -> bool:  # fmt: skip
        """Return whether the offset behind the first `sound` bytes of a read is one that can be there."""
        behind = self._base_behind(segment, position, data, sound)
        if not segment.is_dense:
            return behind is None or behind >= next_offset or position + sound in segment.skips
        return next_offset in (behind, end) if position + sound == segment.visible_bytes else next_offset == behind

    def _base_behind(self, segment: Segment, position: int, data: Records, at: int) -> int | None:
        """Return the offset of what lies behind so many bytes of a read, if there is anything."""
        if len(data) - at >= 8:
            return int.from_bytes(data[at : at + 8], "big")
        if position + at < segment.visible_bytes:
            return int.from_bytes(segment.read(position + at, 8), "big")
        following = self._segments.after(segment)
        return None if following is None else following.base_offset

    def _served(
        self, segment: Segment, position: int, data: Records, base: int, sound: int, problem: str | None
    ) -> tuple[int, int]:
        """Return how much of a read that is not sound may be served; raises Refused if nothing may."""
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
        """Return segment, position and base offset of the batch that holds an offset or comes next, if there is one."""
        for segment in self._segments.from_offset(offset):
            self._segments.use(segment)
            found = segment.lookup.find(offset, segment.visible_bytes)
            following = self._segments.after(segment)
            if found is not None and following is not None and found[1].base_offset >= following.base_offset:
                self._note_end(segment, found[0], following.base_offset)
                found = None
            if found is not None:
                position, header = found
                wanted = max(offset, segment.base_offset)
                if header.base_offset > wanted and (segment.is_dense or _hides(segment.damage, offset, position)):
                    break
                if self._gaps and self._misses(offset, header.base_offset):
                    break
                return segment, position, header.base_offset
            if _hides(segment.damage, offset, segment.size):
                break
            if segment.is_dense and offset >= segment.base_offset:
                if following is not None:
                    self.note_gap(offset, following.base_offset)
                break
        else:
            if not self._misses(offset, self._state.log_end_offset):
                return None
        raise self._corrupt(offset)

    def _misses(self, offset: int, base: int) -> bool:
        """Return whether a segment is missing between an offset and the batch that was found for it."""
        return any(gap.first_offset < base and offset < (gap.next_offset or 0) for gap in self._gaps)

    def _corrupt(self, offset: int) -> Refused:
        return Refused(
            ErrorCode.CORRUPT_MESSAGE,
            f"The log of {self._state.name} is damaged at offset {offset}; later offsets may be readable.",
        )


def _hides(damage: Iterable[Damage], offset: int, before: int) -> bool:
    """Return whether damage before a position may hold the offset, or the next one that there is."""
    return any(
        found.position < before and (found.next_offset is None or offset < found.next_offset) for found in damage
    )
