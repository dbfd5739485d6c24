"""Lengths, strings and tagged fields in Kafka's two encodings: plain, and compact in flexible versions.

Every length and count is checked against the bytes that are left before anything is built.
Reading past the end shows as IndexError or struct.error, which callers turn into Malformed with `BROKEN`.
"""

import struct
from typing import NoReturn

from logmark.errors import Malformed

STRING_BYTES_MAX = 32767
BROKEN = (struct.error, IndexError, UnicodeDecodeError)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_read_int16 = _INT16.unpack_from
_read_int32 = _INT32.unpack_from

_ONE_BYTE = [bytes([value]) for value in range(128)]

Buffer = bytes | memoryview


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise Malformed("a varint is longer than five bytes")
    if value > 0x7FFFFFFF:
        raise Malformed(f"a length of {value} is more than 31 bits can say")
    return value, at


def write_varint(value: int) -> bytes:
    """Return the bytes of an unsigned varint."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_string_length(data: Buffer, at: int) -> tuple[int, int]:
    """Return the compact length of a string (one more than its bytes), and where it ends."""
    value, at = read_varint(data, at)
    if value > STRING_BYTES_MAX + 1:
        raise Malformed(f"a string of {value - 1} bytes is longer than {STRING_BYTES_MAX}")
    return value, at


def write_string_length(value: int) -> bytes:
    """Return the compact length of a string, given one more than its bytes."""
    if value > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {value - 1} bytes is longer than {STRING_BYTES_MAX}")
    return write_varint(value)


def read_tag_count(data: Buffer, at: int, budget: int) -> tuple[int, int, int]:
    """Return the number of tagged fields at `at`, where it ends, and the budget that they leave."""
    count, at = read_varint(data, at)
    if count * 2 > len(data) - at:
        raise Malformed(f"{count} tagged fields cannot fit in {len(data) - at} bytes")
    if count > budget:
        overspent()
    return count, at, budget - count


def skip_tags(data: Buffer, at: int, budget: int) -> tuple[int, int]:
    """Return where the tagged fields at `at` end, none of which is kept, and the budget that they leave."""
    count, at, budget = read_tag_count(data, at, budget)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        if size > len(data) - at:
            overrun(size, len(data) - at)
        at += size
    return at, budget


def overrun(wanted: int, left: int) -> NoReturn:
    """Raise Malformed: a length is negative or reaches past the end."""
    raise Malformed(f"{wanted} bytes wanted, {left} left")


def misfit(count: int, left: int) -> NoReturn:
    """Raise Malformed: an array claims more elements than the bytes left can hold."""
    raise Malformed(f"an array of {count} cannot fit in {left} bytes")


def overspent() -> NoReturn:
    """Raise Malformed: the object budget is used up."""
    raise Malformed("the message asks for too many objects")


def trailing(left: int) -> NoReturn:
    """Raise Malformed: something follows the message."""
    raise Malformed(f"{left} bytes follow the end of the message")


class Plain:
    """Lengths as integers of fixed size; no tagged fields."""

    @staticmethod
    def read_string(frame: memoryview, at: int) -> tuple[str | None, int]:
        """Return the string at `at` (None for null), and where it ends."""
        (size,) = _read_int16(frame, at)
        at += 2
        if size == -1:
            return None, at
        stop = at + size
        if not at <= stop <= len(frame):
            overrun(size, len(frame) - at)
        return frame[at:stop].tobytes().decode(), stop

    @staticmethod
    def read_bytes(frame: memoryview, at: int) -> tuple[memoryview | None, int]:
        """Return the bytes at `at` (None for null) without a copy, and where they end."""
        (size,) = _read_int32(frame, at)
        at += 4
        if size == -1:
            return None, at
        stop = at + size
        if not at <= stop <= len(frame):
            overrun(size, len(frame) - at)
        return frame[at:stop], stop

    @staticmethod
    def read_count(frame: memoryview, at: int, element_bytes_min: int, budget: int) -> tuple[int, int, int]:
        """Return the count of the array at `at` (-1 for null), where its elements begin, and the budget left."""
        (count,) = _read_int32(frame, at)
        at += 4
        if count == -1:
            return count, at, budget
        if count < 0 or count * element_bytes_min > len(frame) - at:
            misfit(count, len(frame) - at)
        if count > budget:
            overspent()
        return count, at, budget - count

    @staticmethod
    def skip_tags(frame: memoryview, at: int, budget: int) -> tuple[int, int]:
        """Return the position and the budget unchanged: there are no tags."""
        return at, budget

    @staticmethod
    def string(value: str | None) -> bytes:
        """Return the bytes of a string, or of null."""
        if value is None:
            return b"\xff\xff"
        raw = value.encode()
        if len(raw) > STRING_BYTES_MAX:
            raise ValueError(f"a string of {len(raw)} bytes is longer than {STRING_BYTES_MAX}")
        return _INT16.pack(len(raw)) + raw

    @staticmethod
    def length(size: int) -> bytes:
        """Return the length of bytes or of an array."""
        return _INT32.pack(size)

    NULL = b"\xff\xff\xff\xff"
    NO_TAGS = b""


class Compact:
    """Lengths as varints, one more than they say so that zero is null; every struct ends with tagged fields."""

    @staticmethod
    def read_string(frame: memoryview, at: int) -> tuple[str | None, int]:
        """Return the string at `at` (None for null), and where it ends."""
        size = frame[at]
        at += 1
        if size > 127:
            size, at = read_string_length(frame, at - 1)
        if size == 0:
            return None, at
        stop = at + size - 1
        if stop > len(frame):
            overrun(size - 1, len(frame) - at)
        return frame[at:stop].tobytes().decode(), stop

    @staticmethod
    def read_bytes(frame: memoryview, at: int) -> tuple[memoryview | None, int]:
        """Return the bytes at `at` (None for null) without a copy, and where they end."""
        size, at = read_varint(frame, at)
        if size == 0:
            return None, at
        stop = at + size - 1
        if stop > len(frame):
            overrun(size - 1, len(frame) - at)
        return frame[at:stop], stop

    @staticmethod
    def read_count(frame: memoryview, at: int, element_bytes_min: int, budget: int) -> tuple[int, int, int]:
        """Return the count of the array at `at` (-1 for null), where its elements begin, and the budget left."""
        count = frame[at]
        at += 1
        if count > 127:
            count, at = read_varint(frame, at - 1)
        count -= 1
        if count == -1:
            return count, at, budget
        if count * element_bytes_min > len(frame) - at:
            misfit(count, len(frame) - at)
        if count > budget:
            overspent()
        return count, at, budget - count

    @staticmethod
    def skip_tags(frame: memoryview, at: int, budget: int) -> tuple[int, int]:
        """Return where the tagged fields end, none of which is kept, and the budget that they leave."""
        if frame[at] == 0:
            return at + 1, budget
        return skip_tags(frame, at, budget)

    @staticmethod
    def string(value: str | None) -> bytes:
        """Return the bytes of a string, or of null."""
        if value is None:
            return b"\0"
        raw = value.encode()
        return write_string_length(len(raw) + 1) + raw

    @staticmethod
    def length(size: int) -> bytes:
        """Return the length of bytes or of an array."""
        return write_varint(size + 1)

    NULL = b"\0"
    NO_TAGS = b"\0"


Encoding = type[Plain] | type[Compact]


def required(value: str | None) -> str:
    """Return a string that may not be null."""
    if value is None:
        raise Malformed("a string is null where none may be")
    return value
