"""Chunks of a segment file: the read loop of everything that goes through whole batches.

A chunk is large enough for many batches, and a batch that is larger than a chunk is read in one piece. The compiled
columns check every checksum of a chunk in one call.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from logmark.wire import batches, columns
from logmark.wire.columns import HEADER_BYTES

CHUNK_BYTES = 1024 * 1024
# No request is larger than 100 MiB by default; a length above this is a wrong length.
BATCH_BYTES_MAX = 256 * 1024 * 1024

Read = Callable[[int, int], bytes]
# Takes data, its position and the expected offset; returns the sound bytes, the offset behind them, what is wrong
# there, and where in the data the batches of producers with an id begin.
Check = Callable[[bytes, int, int], tuple[int, int, str | None, Sequence[int]]]


class Chunk(NamedTuple):
    """Bytes at a position: `sound` of them are whole sound batches, and then comes a problem, if there is one."""

    position: int
    data: bytes
    sound: int
    next_offset: int
    problem: str | None
    producer_batches: Sequence[int]


def read_chunks(
    read: Read, position: int, stop: int, *, expected: int, check: Check, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Yield chunks from a position up to `stop`; the one that has a problem is the last."""
    while position < stop:
        data = read(position, min(chunk_bytes, stop - position))
        sound, following, problem, positions = check(data, position, expected)
        if not sound and problem is None:
            left = stop - position
            size = batches.read_header(data).size if len(data) >= HEADER_BYTES else 0
            if not size:
                problem = f"{left} bytes are left, which is no batch"
            elif size > min(left, BATCH_BYTES_MAX):
                problem = f"the batch claims {size} bytes and {left} are left"
            else:
                data = read(position, size)
                sound, following, problem, positions = check(data, position, expected)
                if not sound and problem is None:
                    problem = "the batch is cut short"
        yield Chunk(position, data, sound, following, problem, positions)
        if problem is not None:
            return
        position, expected = position + sound, following


def check_dense(data: bytes, position: int, expected: int) -> tuple[int, int, str | None, Sequence[int]]:
    """Check batches each of which begins at the offset where the one before it ended."""
    sound, following, problem, _ = columns.index_batches(
        data,
        expected=expected,
        is_dense=True,
        position=position,
        base_offset=expected,
        interval=len(data) + 1,
        # The last entry lies behind everything, so no entry is made.
        state=array("q", (position + len(data), 0, 0, 0, 0)),
        offset_entries=bytearray(),
        time_entries=bytearray(),
    )
    return sound, following, batches.damage(problem), ()


def check_growing(data: bytes, position: int, expected: int) -> tuple[int, int, str | None, Sequence[int]]:
    """Check batches each of which begins at or above the offset where the one before it ended."""
    return *batches.sound_prefix(data, base=expected), ()
