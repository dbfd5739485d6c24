"""Damage in a segment: what it is called, and where the next sound batch starts behind a bad one."""

from dataclasses import dataclass
from typing import Protocol

from logmark.errors import Malformed
from logmark.log.index import RELATIVE_OFFSET_MAX
from logmark.wire import batches
from logmark.wire.batches import BatchHeader
from logmark.wire.columns import HEADER_BYTES

SEARCH_BYTES = 1024 * 1024
# Leader epoch 0 and magic 2, which stand in every batch that was written here.
_MARK = b"\x00\x00\x00\x00\x02"
_MARK_AT = 12


class BatchFile(Protocol):
    """A file of batches, whose offsets begin at or above a base offset."""

    @property
    def base_offset(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes at a position; fewer at the end of the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stretch of a segment that is kept and never served."""

    path: str
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int | None
    problem: str

    def __str__(self) -> str:
        until = "" if self.next_offset is None else f" up to, excluding, {self.next_offset}"
        return (
            f"{self.path} is damaged at byte {self.position} ({self.size_bytes} bytes, offsets from "
            f"{self.first_offset}{until}): {self.problem}. The bytes are kept and not served; what follows them is."
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


def next_sound(file: BatchFile, position: int, stop: int, *, at_least: int) -> tuple[int, BatchHeader] | None:
    """Return the first batch behind a bad one whose checksum is right and whose offset is possible."""
    bad = read_header_at(file, position, stop)
    # The length is usually right; a batch inside a record's value must not be taken for one of ours.
    if bad is not None and (header := sound_header_at(file, position + bad.size, stop, at_least=at_least)) is not None:
        return position + bad.size, header
    start = position + 1
    while start + HEADER_BYTES <= stop:
        buffer = file.read(start, min(SEARCH_BYTES, stop - start))
        found = buffer.find(_MARK, _MARK_AT)
        while found >= 0:
            candidate = start + found - _MARK_AT
            header = sound_header_at(file, candidate, stop, at_least=at_least)
            if header is not None:
                return candidate, header
            found = buffer.find(_MARK, found + 1)
        if len(buffer) < SEARCH_BYTES:
            return None
        start += len(buffer) - HEADER_BYTES
    return None
