"""The sparse indexes of a segment, kept in memory exactly as they lie on disk.

An entry is never trusted by itself: its reader checks it against the batch that it points to, so a damaged
index costs a rebuild and never a wrong answer.
"""

from collections.abc import Iterator

from logmark.log.file_formats import OFFSET_ENTRY, TIME_ENTRY

# An entry holds an offset as the distance to its base offset, in four bytes.
RELATIVE_OFFSET_MAX = 2**31 - 1


class OffsetIndex:
    """Maps the last offset of some batches to where those batches start in the file."""

    __slots__ = ("base_offset", "bytes_on_disk", "data")
    ENTRY_BYTES = OFFSET_ENTRY.size

    def __init__(self, base_offset: int, data: bytes | None = None) -> None:
        """Take the bytes of the index file; without them, the index was never written."""
        self.base_offset = base_offset
        self.data = bytearray(data or b"")
        self.bytes_on_disk = -1 if data is None else len(data)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY.size

    def __getitem__(self, at: int) -> tuple[int, int]:
        relative, position = OFFSET_ENTRY.unpack_from(self.data, at * OFFSET_ENTRY.size)
        return self.base_offset + relative, position

    def append(self, last_offset: int, position: int) -> None:
        """Add the entry of a batch behind all others."""
        self.data += OFFSET_ENTRY.pack(last_offset - self.base_offset, position)

    def at_or_before(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry whose offset is not above the given one."""
        relative = offset - self.base_offset
        data, unpack, low, high = self.data, OFFSET_ENTRY.unpack_from, 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * 8)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        return self[low - 1] if low else None

    def at_or_behind(self, position: int) -> tuple[int, int] | None:
        """Return the first entry whose position is not before the given one."""
        return next(self.from_position(position), None)

    def from_position(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield the entries whose positions are not before the given one."""
        return map(self.__getitem__, range(self._first_behind(position), len(self)))

    def before(self, position: int) -> tuple[int, int] | None:
        """Return the last entry whose position is before the given one."""
        at = self._first_behind(position)
        return self[at - 1] if at else None

    def below(self, position: int) -> "OffsetIndex":
        """Return an index with the entries whose positions are before the given one."""
        return OffsetIndex(self.base_offset, bytes(self.data[: self._first_behind(position) * OFFSET_ENTRY.size]))

    def _first_behind(self, position: int) -> int:
        data, unpack, low, high = self.data, OFFSET_ENTRY.unpack_from, 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * 8)[1] < position:
                low = middle + 1
            else:
                high = middle
        return low


class TimeIndex:
    """Maps the largest timestamp so far to the last offset of the batch that holds it."""

    __slots__ = ("base_offset", "bytes_on_disk", "data", "last_timestamp")
    ENTRY_BYTES = TIME_ENTRY.size

    def __init__(self, base_offset: int, data: bytes | None = None) -> None:
        """Take the bytes of the index file; without them, the index was never written."""
        self.base_offset = base_offset
        self.data = bytearray(data or b"")
        self.bytes_on_disk = -1 if data is None else len(data)
        self.last_timestamp = self[len(self) - 1][0] if len(self) else -1

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY.size

    def __getitem__(self, at: int) -> tuple[int, int]:
        timestamp, relative = TIME_ENTRY.unpack_from(self.data, at * TIME_ENTRY.size)
        return timestamp, self.base_offset + relative

    def append_if_later(self, timestamp: int, last_offset: int) -> None:
        """Add an entry if it says more than the last one."""
        if timestamp > self.last_timestamp:
            self.data += TIME_ENTRY.pack(timestamp, last_offset - self.base_offset)
            self.last_timestamp = timestamp

    def at_or_before(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry whose timestamp is not above the given one."""
        count = self.count_up_to(timestamp)
        return self[count - 1] if count else None

    def count_up_to(self, timestamp: int) -> int:
        """Return how many entries have a timestamp that is not above the given one."""
        data, unpack, low, high = self.data, TIME_ENTRY.unpack_from, 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * 12)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        return low
