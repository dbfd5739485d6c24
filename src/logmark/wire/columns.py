# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The walk over the records of a batch: to check them, to turn them into columns, and to write them.

The one compiled module: Python in Cython's pure mode, which also runs uncompiled (slowly, with the same results).
No Python object is made per record. Every read is bounded by the end of the record it belongs to: a reader that
would cross it moves to one past the end and stays there, so that one comparison after the last field finds every
kind of broken record.
"""

import array
import ctypes
from collections.abc import Sequence
from enum import IntEnum

import cython
import google_crc32c

from logmark.errors import Malformed
from logmark.wire import codecs

if cython.compiled:
    from cython.cimports.cpython import array
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy, memset

HEADER_BYTES = 61


class Problem(IntEnum):
    """What was found first; the order is the order in which Kafka's leader looks."""

    SOUND = 0
    COMPRESSED = 1
    NO_BATCH = 2
    BAD_LENGTH = 3
    BAD_MAGIC = 4
    OLD_MAGIC = 5
    SECOND_BATCH = 6
    BASE_OFFSET = 7
    TOO_LARGE = 8
    BAD_CRC = 9
    OFFSET_RANGE = 10
    BAD_COUNT = 11
    COUNT_MISMATCH = 12
    CONTROL = 13
    SEQUENCE = 14
    BROKEN_RECORD = 15
    BYTES_LEFT = 16
    RECORD_REFUSED = 17
    OUT_OF_ORDER = 18


# The same as C integers, which code without the GIL can use.
_HEADER_BYTES = cython.declare(cython.longlong, HEADER_BYTES)
_RECORD_BYTES_MIN = cython.declare(cython.longlong, 7)  # seven fields of one byte each
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)
_SOUND = cython.declare(cython.int, Problem.SOUND)
_COMPRESSED = cython.declare(cython.int, Problem.COMPRESSED)
_NO_BATCH = cython.declare(cython.int, Problem.NO_BATCH)
_BAD_LENGTH = cython.declare(cython.int, Problem.BAD_LENGTH)
_BAD_MAGIC = cython.declare(cython.int, Problem.BAD_MAGIC)
_OLD_MAGIC = cython.declare(cython.int, Problem.OLD_MAGIC)
_SECOND_BATCH = cython.declare(cython.int, Problem.SECOND_BATCH)
_BASE_OFFSET = cython.declare(cython.int, Problem.BASE_OFFSET)
_TOO_LARGE = cython.declare(cython.int, Problem.TOO_LARGE)
_BAD_CRC = cython.declare(cython.int, Problem.BAD_CRC)
_OFFSET_RANGE = cython.declare(cython.int, Problem.OFFSET_RANGE)
_BAD_COUNT = cython.declare(cython.int, Problem.BAD_COUNT)
_COUNT_MISMATCH = cython.declare(cython.int, Problem.COUNT_MISMATCH)
_CONTROL = cython.declare(cython.int, Problem.CONTROL)
_SEQUENCE = cython.declare(cython.int, Problem.SEQUENCE)
_BROKEN_RECORD = cython.declare(cython.int, Problem.BROKEN_RECORD)
_BYTES_LEFT = cython.declare(cython.int, Problem.BYTES_LEFT)
_RECORD_REFUSED = cython.declare(cython.int, Problem.RECORD_REFUSED)
_OUT_OF_ORDER = cython.declare(cython.int, Problem.OUT_OF_ORDER)


def _find_crc_function() -> int:
    """The address of libcrc32c's function, which google_crc32c's extension is linked to; 0 where it is not found.

    The Python function takes only `bytes`: every batch would be copied once to be checked. Called by address it
    takes any memory, without the GIL: 1 MiB in 43 µs instead of about 100, a 200-byte batch in 15 ns instead of 300.
    """
    try:
        from google_crc32c import _crc32c

        library = ctypes.CDLL(_crc32c.__file__)
        return ctypes.cast(library.crc32c_extend, ctypes.c_void_p).value or 0
    except (ImportError, OSError, AttributeError):
        return 0


if cython.compiled:
    _crc_extend = cython.cast(crc_function, cython.cast(cython.size_t, _find_crc_function()))  # noqa: F821


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _crc(b: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.uint:
    if cython.compiled:
        if _crc_extend != cython.NULL:
            return _crc_extend(0, b + at, size)
        with cython.gil:
            return google_crc32c.value(b[at : at + size])
    else:
        return google_crc32c.value(bytes(b[at : at + size]))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _uint32(b: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.uint:
    high: cython.uint = b[at]
    return (high << 24) | (b[at + 1] << 16) | (b[at + 2] << 8) | b[at + 3]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _int32(b: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = _uint32(b, at)
    return value - ((value >> 31) << 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _int64(b: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    return (_int32(b, at) << 32) | _uint32(b, at + 4)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _sum(left: cython.longlong, right: cython.longlong) -> cython.longlong:
    """Adds as Java does: past the largest value comes the smallest."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, left) + cython.cast(cython.ulonglong, right))
    else:
        return (left + right + 2**63) % 2**64 - 2**63


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _long_varint(
    b: cython.p_const_uchar, at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, bytes_max: cython.int
) -> cython.longlong:
    """A varint of more than one byte: at most five for an int, ten for a long; bits too many fall off, as in Java."""
    q: cython.Py_ssize_t = at[0]
    bits: cython.ulonglong = 0
    shift: cython.int = 0
    c: cython.ulonglong = 128
    while c >= 128:
        if q >= end or shift >= 7 * bytes_max:
            at[0] = end + 1
            return 0
        c = b[q]
        q += 1
        bits |= (c & 127) << shift
        shift += 7
    at[0] = q
    if bytes_max == 5:
        bits = cython.cast(cython.uint, bits) if cython.compiled else bits & 0xFFFFFFFF
    elif not cython.compiled:
        bits &= 0xFFFFFFFFFFFFFFFF
    return cython.cast(cython.longlong, bits >> 1) ^ -cython.cast(cython.longlong, bits & 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _varint(
    b: cython.p_const_uchar, at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, bytes_max: cython.int
) -> cython.longlong:
    q: cython.Py_ssize_t = at[0]
    c: cython.longlong
    if q >= end:
        at[0] = end + 1
        return 0
    c = b[q]
    if c < 128:
        at[0] = q + 1
        return (c >> 1) ^ -(c & 1)
    return _long_varint(b, at, end, bytes_max)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _skip(at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, size: cython.longlong) -> cython.void:
    """Moves past `size` bytes; a negative size is a null and has none."""
    if size > 0:
        if size > end - at[0]:
            at[0] = end + 1
        else:
            at[0] += cython.cast(cython.Py_ssize_t, size)


# Where `_record` leaves the fields of a record.
_TIMESTAMP_DELTA, _OFFSET_DELTA, _KEY_AT, _KEY_SIZE, _VALUE_AT, _VALUE_SIZE, _HEADERS, _HEADERS_AT = range(8)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _record(
    b: cython.p_const_uchar, at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, field: cython.p_longlong
) -> cython.bint:
    """Reads the record at `at` and moves past it; False when it is not exactly a record."""
    size: cython.longlong = _varint(b, at, end, 5)
    i: cython.longlong
    stop: cython.Py_ssize_t
    if size < 1 or size > end - at[0]:
        return False
    stop = at[0] + cython.cast(cython.Py_ssize_t, size)
    at[0] += 1  # attributes: unused, and not looked at by Kafka
    field[0] = _varint(b, at, stop, 10)
    field[1] = _varint(b, at, stop, 5)
    field[3] = _varint(b, at, stop, 5)
    field[2] = at[0]
    _skip(at, stop, field[3])
    field[5] = _varint(b, at, stop, 5)
    field[4] = at[0]
    _skip(at, stop, field[5])
    field[6] = _varint(b, at, stop, 5)
    field[7] = at[0]
    if field[6] != 0:
        if field[6] < 0 or field[6] > stop - at[0]:
            return False
        for i in range(field[6]):  # noqa: B007
            size = _varint(b, at, stop, 5)
            if size < 0 or at[0] > stop:
                return False
            _skip(at, stop, size)
            _skip(at, stop, _varint(b, at, stop, 5))
    return at[0] == stop


# What `_check_body` tells beside its verdict.
_MAX_TIMESTAMP, _IS_DENSE, _INDEX, _REFUSED = range(4)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _check_body(
    b: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    fixed_timestamp: cython.bint,
    keys_required: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
    found: cython.p_longlong,
) -> cython.int:
    """Walks every record. `fixed_timestamp`: each record has the batch's time, whatever its delta says."""
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    i: cython.longlong
    timestamp: cython.longlong
    max_timestamp: cython.longlong = -1
    is_dense: cython.bint = True
    refused: cython.longlong = 0
    at[0] = start
    for i in range(count):
        if not _record(b, at, end, field):
            found[2] = i
            return _BROKEN_RECORD
        timestamp = base_timestamp if fixed_timestamp else _sum(base_timestamp, field[0])
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if field[1] != i:
            is_dense = False
        if (keys_required and field[3] < 0) or (timestamp != -1 and (timestamp < earliest or timestamp > latest)):
            refused += 1
    found[0] = max_timestamp
    found[1] = is_dense
    found[2] = end - at[0]
    found[3] = refused
    if at[0] != end:
        return _BYTES_LEFT
    return _RECORD_REFUSED if refused else _SOUND


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _check_header(
    b: cython.p_const_uchar, size: cython.Py_ssize_t, bytes_max: cython.longlong, found: cython.p_longlong
) -> cython.int:
    """Looks at everything but the records, in the order of Kafka's leader; leaves the batch's size in `found`."""
    batch_size: cython.longlong
    rest: cython.longlong
    count: cython.longlong
    last_delta: cython.longlong
    found[0] = 0
    if size < 12:
        return _NO_BATCH
    batch_size = 12 + _int32(b, 8)
    found[0] = batch_size
    if batch_size < 12 + 14:
        return _BAD_LENGTH
    if size < 17:
        return _NO_BATCH
    if b[16] > 2:
        return _BAD_MAGIC
    if size < batch_size:
        return _NO_BATCH
    if b[16] < 2:
        return _OLD_MAGIC
    if batch_size < _HEADER_BYTES:
        return _BAD_LENGTH
    rest = size - batch_size
    if rest >= 12:
        # A second batch is one too many; a piece of one is cut off, as Kafka does.
        if _int32(b, batch_size + 8) < 14:
            return _BAD_LENGTH
        if rest >= 17 and b[batch_size + 16] > 2:
            return _BAD_MAGIC
        if 12 + _int32(b, batch_size + 8) <= rest:
            return _SECOND_BATCH
    if _int64(b, 0) != 0:
        return _BASE_OFFSET
    if batch_size > bytes_max:
        return _TOO_LARGE
    if _crc(b, 21, batch_size - 21) != _uint32(b, 17):
        return _BAD_CRC
    last_delta = _int32(b, 23)
    count = _int32(b, 57)
    if last_delta < 0:
        return _OFFSET_RANGE
    if count <= 0:
        return _BAD_COUNT
    if last_delta + 1 != count:
        return _COUNT_MISMATCH
    if b[22] & 0x20:
        return _CONTROL
    if _int64(b, 43) >= 0 and _int32(b, 53) < 0:
        return _SEQUENCE
    return _SOUND


def check_records(
    records: cython.const[cython.uchar][::1],
    body: object,
    bytes_max: cython.longlong,
    keys_required: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
) -> tuple:
    """What is wrong with one produced batch, and what its header says.

    `body` is None, or the decompressed records of a batch for which this function answered COMPRESSED. Returns
    (problem, detail, size, attributes, last offset delta, base timestamp, max timestamp, producer id, producer
    epoch, base sequence, record count, largest timestamp of the records, whether offset deltas are 0, 1, 2, ...).
    """
    b: cython.p_const_uchar
    c: cython.p_const_uchar
    view: cython.const[cython.uchar][::1]
    found = cython.declare(cython.longlong[4])
    problem: cython.int
    size: cython.longlong
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    attributes: cython.int
    if not cython.compiled:
        records = memoryview(records)
    if records.shape[0] == 0:
        return (_NO_BATCH, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0, -1, False)
    if cython.compiled:
        b = cython.address(records[0])
    else:
        b = records
    problem = _SOUND
    if body is None:
        with cython.nogil:
            problem = _check_header(b, records.shape[0], bytes_max, found)
        size = found[0]
    else:
        size = 12 + _int32(b, 8)
    if problem != _SOUND:
        return (problem, size, size, 0, 0, 0, 0, -1, -1, -1, 0, -1, False)
    attributes = b[22]
    found[0] = -1
    found[1] = True
    found[2] = 0
    if body is None and attributes & 7 != 0:
        problem = _COMPRESSED
    else:
        start = 0
        if body is None:
            c = b
            start = _HEADER_BYTES
            end = cython.cast(cython.Py_ssize_t, size)
        else:
            end = len(body)
            view = body
            if cython.compiled:
                c = cython.address(view[0]) if end > 0 else b
            else:
                c = memoryview(view)
        with cython.nogil:
            problem = _check_body(
                c, start, end, _int32(b, 57), _int64(b, 35) if attributes & 8 else _int64(b, 27),
                attributes & 8 != 0, keys_required, earliest, latest, found,
            )  # fmt: skip
    return (
        problem,
        found[2],
        size,
        attributes,
        _int32(b, 23),
        _int64(b, 27),
        _int64(b, 35),
        _int64(b, 43),
        _int32(b, 51) >> 16,
        _int32(b, 53),
        _int32(b, 57),
        found[0],
        bool(found[1]),
    )


def refused_records(
    body: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    fixed_timestamp: cython.bint,
    keys_required: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
) -> list:
    """(index, offset delta, timestamp, whether its key is missing) of the sound records that break a rule."""
    b: cython.p_const_uchar
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    i: cython.longlong
    timestamp: cython.longlong
    answers: list = []
    if cython.compiled:
        b = cython.address(body[0])
    else:
        b = memoryview(body)
    at[0] = start
    for i in range(count):
        if not _record(b, at, end, field):
            break
        timestamp = base_timestamp if fixed_timestamp else _sum(base_timestamp, field[0])
        if keys_required and field[3] < 0:
            answers.append((i, field[1], timestamp, True))
        elif timestamp != -1 and (timestamp < earliest or timestamp > latest):
            answers.append((i, field[1], timestamp, False))
    return answers


def sound_prefix(data: cython.const[cython.uchar][::1], base: cython.longlong, end: cython.longlong) -> tuple:
    """(bytes of whole, sound batches, the offset after them, what is wrong with the next byte or SOUND).

    Offsets begin at `base` or above and only grow; a batch that reaches past `end` is left out.
    """
    b: cython.p_const_uchar
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    batch_size: cython.longlong
    next_offset: cython.longlong = base
    problem: cython.int = _SOUND
    if not cython.compiled:
        data = memoryview(data)
    size = data.shape[0]
    if size < _HEADER_BYTES:
        return (0, base, _SOUND)
    if cython.compiled:
        b = cython.address(data[0])
    else:
        b = data
    with cython.nogil:
        while size - at >= _HEADER_BYTES:
            batch_size = 12 + _int32(b, at + 8)
            if batch_size < _HEADER_BYTES:
                problem = _BAD_LENGTH
                break
            if b[at + 16] != 2:
                problem = _BAD_MAGIC
                break
            if _int64(b, at) < next_offset or _int32(b, at + 23) < 0:
                problem = _OUT_OF_ORDER
                break
            if batch_size > size - at or _int64(b, at) > end - 1 - _int32(b, at + 23):
                break
            if _crc(b, at + 21, batch_size - 21) != _uint32(b, at + 17):
                problem = _BAD_CRC
                break
            next_offset = _int64(b, at) + _int32(b, at + 23) + 1
            at += cython.cast(cython.Py_ssize_t, batch_size)
    return (at, next_offset, problem)


def crc32c(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> int:
    """The CRC-32C of `size` bytes at `at`, without a copy."""
    if not cython.compiled:
        data = memoryview(data)
    if at < 0 or size < 0 or size > data.shape[0] - at:
        raise IndexError(f"{size} bytes at {at} of {data.shape[0]}")
    if size == 0:
        return 0
    if cython.compiled:
        return _crc(cython.address(data[0]), at, size)
    else:
        return _crc(data, at, size)


class Cells(Sequence):
    """One column read cell by cell: bytes, or None for a null."""

    __slots__ = ("_bytes", "_offsets", "_validity")

    def __init__(self, offsets, validity, data) -> None:
        self._offsets = offsets
        self._validity = validity
        self._bytes = data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._validity is not None and not self._validity[index >> 3] >> (index & 7) & 1:
            return None
        return bytes(self._bytes[self._offsets[index] : self._offsets[index + 1]])


@cython.cfunc
def _ints(column: object, size: cython.Py_ssize_t) -> object:
    """Makes room for `size` integers."""
    if size > len(column):
        size = max(size, len(column) + (len(column) >> 1))
        if cython.compiled:
            array.resize(column, size)
        else:
            column.extend([0] * (size - len(column)))
    return column


@cython.cfunc
def _room(column: bytearray, size: cython.Py_ssize_t) -> bytearray:
    """Makes room for `size` bytes."""
    if size > len(column):
        size = max(size, len(column) + (len(column) >> 1))
        if cython.compiled:
            PyByteArray_Resize(column, size)
        else:
            column.extend(bytes(size - len(column)))
    return column


@cython.cfunc
def _bits(column: bytearray, size: cython.Py_ssize_t) -> bytearray:
    """Makes room for `size` bits, the new ones 0."""
    old: cython.Py_ssize_t = len(column)
    size = (size + 7) >> 3
    if size > old:
        _room(column, size)
        if cython.compiled:
            memset(PyByteArray_AS_STRING(column) + old, 0, len(column) - old)
    return column


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _copy(
    to: cython.p_uchar, to_at: cython.Py_ssize_t, b: cython.p_const_uchar, at: cython.longlong, size: cython.longlong
) -> cython.void:
    if cython.compiled:
        memcpy(to + to_at, b + at, size)
    else:
        to[to_at : to_at + size] = b[at : at + size]


@cython.cclass
class Columns:
    """The records of some batches, column by column, in Arrow's layout: plain buffers that Arrow takes as they are.

    `next_offset` is where to go on reading: past the last batch that was decoded, also where it held no record.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    next_offset = cython.declare(cython.longlong, visibility="readonly")
    offsets = cython.declare(object, visibility="readonly")
    timestamps_ms = cython.declare(object, visibility="readonly")
    timestamp_types = cython.declare(object, visibility="readonly")
    key_offsets = cython.declare(object, visibility="readonly")
    key_validity = cython.declare(object, visibility="readonly")
    key_bytes = cython.declare(object, visibility="readonly")
    value_offsets = cython.declare(object, visibility="readonly")
    value_validity = cython.declare(object, visibility="readonly")
    value_bytes = cython.declare(object, visibility="readonly")
    header_list_offsets = cython.declare(object, visibility="readonly")
    header_key_offsets = cython.declare(object, visibility="readonly")
    header_key_bytes = cython.declare(object, visibility="readonly")
    header_value_offsets = cython.declare(object, visibility="readonly")
    header_value_validity = cython.declare(object, visibility="readonly")
    header_value_bytes = cython.declare(object, visibility="readonly")
    with_headers = cython.declare(cython.bint, visibility="readonly")

    _headers: cython.Py_ssize_t
    _key_size: cython.Py_ssize_t
    _value_size: cython.Py_ssize_t
    _header_key_size: cython.Py_ssize_t
    _header_value_size: cython.Py_ssize_t
    _null_keys: cython.Py_ssize_t
    _null_values: cython.Py_ssize_t
    _null_header_values: cython.Py_ssize_t
    # The memory of the columns above while a batch is written to them, without the GIL.
    _p_offsets: cython.p_longlong
    _p_timestamps: cython.p_longlong
    _p_types: cython.p_int
    _p_key_offsets: cython.p_int
    _p_key_bits: cython.p_uchar
    _p_keys: cython.p_uchar
    _p_value_offsets: cython.p_int
    _p_value_bits: cython.p_uchar
    _p_values: cython.p_uchar
    _p_list_offsets: cython.p_int
    _p_header_key_offsets: cython.p_int
    _p_header_keys: cython.p_uchar
    _p_header_value_offsets: cython.p_int
    _p_header_value_bits: cython.p_uchar
    _p_header_values: cython.p_uchar

    def __init__(self, start: cython.longlong, with_headers: cython.bint, bytes_expected: cython.Py_ssize_t) -> None:
        self.count = 0
        self.next_offset = start
        self.with_headers = with_headers
        self.offsets = array.array("q")
        self.timestamps_ms = array.array("q")
        self.timestamp_types = array.array("i")
        self.key_offsets = array.array("i", [0])
        self.value_offsets = array.array("i", [0])
        self.key_validity = bytearray()
        self.value_validity = bytearray()
        self.key_bytes = bytearray()
        self.value_bytes = bytearray()
        _room(self.key_bytes, bytes_expected)
        _room(self.value_bytes, bytes_expected)
        self.header_list_offsets = array.array("i", [0])
        self.header_key_offsets = array.array("i", [0])
        self.header_value_offsets = array.array("i", [0])
        self.header_key_bytes = bytearray()
        self.header_value_bytes = bytearray()
        self.header_value_validity = bytearray()
        self._headers = 0
        self._key_size = self._value_size = self._header_key_size = self._header_value_size = 0
        self._null_keys = self._null_values = self._null_header_values = 0

    def keys(self) -> Cells:
        """The keys, cell by cell: for small uses."""
        return Cells(self.key_offsets, self.key_validity, self.key_bytes)

    def values(self) -> Cells:
        """The values, cell by cell: for small uses."""
        return Cells(self.value_offsets, self.value_validity, self.value_bytes)

    def headers(self) -> list:
        """The headers of each record as (key, value) pairs: for small uses."""
        keys = Cells(self.header_key_offsets, None, self.header_key_bytes)
        values = Cells(self.header_value_offsets, self.header_value_validity, self.header_value_bytes)
        pairs = list(zip(keys, values, strict=True))
        offsets = self.header_list_offsets
        return [pairs[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]

    @cython.cfunc
    def _has_room(self, size: cython.Py_ssize_t) -> cython.bint:
        """False when a batch of that size could push a column past 32-bit offsets; the first always fits."""
        return (
            max(self._key_size, self._value_size, self._header_key_size, self._header_value_size) + size <= _INT32_MAX
        )

    @cython.cfunc
    def _make_room(self, records: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """Room for a batch of so many records and bytes: whatever it holds, nothing is written past it."""
        headers: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.count + records
        _ints(self.offsets, count)
        _ints(self.timestamps_ms, count)
        _ints(self.timestamp_types, count)
        _ints(self.key_offsets, count + 1)
        _ints(self.value_offsets, count + 1)
        _bits(self.key_validity, count)
        _bits(self.value_validity, count)
        _room(self.key_bytes, self._key_size + size)
        _room(self.value_bytes, self._value_size + size)
        if self.with_headers:
            headers = self._headers + (size >> 1)  # a header has two bytes at least
            _ints(self.header_list_offsets, count + 1)
            _ints(self.header_key_offsets, headers + 1)
            _ints(self.header_value_offsets, headers + 1)
            _bits(self.header_value_validity, headers)
            _room(self.header_key_bytes, self._header_key_size + size)
            _room(self.header_value_bytes, self._header_value_size + size)
        self._take_memory()

    @cython.cfunc
    def _take_memory(self) -> cython.void:
        if cython.compiled:
            self._p_offsets = cython.cast(array.array, self.offsets).data.as_longlongs
            self._p_timestamps = cython.cast(array.array, self.timestamps_ms).data.as_longlongs
            self._p_types = cython.cast(array.array, self.timestamp_types).data.as_ints
            self._p_key_offsets = cython.cast(array.array, self.key_offsets).data.as_ints
            self._p_value_offsets = cython.cast(array.array, self.value_offsets).data.as_ints
            self._p_list_offsets = cython.cast(array.array, self.header_list_offsets).data.as_ints
            self._p_header_key_offsets = cython.cast(array.array, self.header_key_offsets).data.as_ints
            self._p_header_value_offsets = cython.cast(array.array, self.header_value_offsets).data.as_ints
            self._p_key_bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.key_validity))
            self._p_value_bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.value_validity))
            self._p_header_value_bits = cython.cast(
                cython.p_uchar, PyByteArray_AS_STRING(self.header_value_validity)
            )
            self._p_keys = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.key_bytes))
            self._p_values = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.value_bytes))
            self._p_header_keys = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.header_key_bytes))
            self._p_header_values = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.header_value_bytes))
        else:
            self._p_offsets = self.offsets
            self._p_timestamps = self.timestamps_ms
            self._p_types = self.timestamp_types
            self._p_key_offsets = self.key_offsets
            self._p_value_offsets = self.value_offsets
            self._p_list_offsets = self.header_list_offsets
            self._p_header_key_offsets = self.header_key_offsets
            self._p_header_value_offsets = self.header_value_offsets
            self._p_key_bits = self.key_validity
            self._p_value_bits = self.value_validity
            self._p_header_value_bits = self.header_value_validity
            self._p_keys = self.key_bytes
            self._p_values = self.value_bytes
            self._p_header_keys = self.header_key_bytes
            self._p_header_values = self.header_value_bytes

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.nogil
    def _add_batch(
        self,
        head: cython.p_const_uchar,
        head_at: cython.Py_ssize_t,
        b: cython.p_const_uchar,
        at_: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        start: cython.longlong,
        stop: cython.longlong,
    ) -> cython.longlong:
        """Adds the records of one batch; answers the index of the broken one, its count if bytes are left, or -1."""
        at = cython.declare(cython.Py_ssize_t[1])
        field = cython.declare(cython.longlong[8])
        i: cython.longlong
        n: cython.Py_ssize_t = self.count
        key_size: cython.Py_ssize_t = self._key_size
        value_size: cython.Py_ssize_t = self._value_size
        offset: cython.longlong
        base_offset: cython.longlong = _int64(head, head_at)
        base_timestamp: cython.longlong = _int64(head, head_at + 27)
        count: cython.longlong = _int32(head, head_at + 57)
        is_log_append_time: cython.bint = head[head_at + 22] & 8 != 0
        if is_log_append_time:
            base_timestamp = _int64(head, head_at + 35)
        at[0] = at_
        for i in range(count):
            if not _record(b, at, end, field):
                return i
            offset = _sum(base_offset, field[1])
            if offset < start or offset >= stop:
                continue
            self._p_offsets[n] = offset
            self._p_timestamps[n] = base_timestamp if is_log_append_time else _sum(base_timestamp, field[0])
            self._p_types[n] = is_log_append_time
            if field[3] >= 0:
                _copy(self._p_keys, key_size, b, field[2], field[3])
                key_size += cython.cast(cython.Py_ssize_t, field[3])
                self._p_key_bits[n >> 3] |= 1 << (n & 7)
            else:
                self._null_keys += 1
            if field[5] >= 0:
                _copy(self._p_values, value_size, b, field[4], field[5])
                value_size += cython.cast(cython.Py_ssize_t, field[5])
                self._p_value_bits[n >> 3] |= 1 << (n & 7)
            else:
                self._null_values += 1
            n += 1
            self._p_key_offsets[n] = key_size
            self._p_value_offsets[n] = value_size
            if self.with_headers:
                self._add_headers(b, cython.cast(cython.Py_ssize_t, field[7]), end, field[6])
                self._p_list_offsets[n] = self._headers
        self.count = n
        self._key_size = key_size
        self._value_size = value_size
        return -1 if at[0] == end else count

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.nogil
    def _add_headers(
        self, b: cython.p_const_uchar, at_: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong
    ) -> cython.void:
        """Adds the headers of a record that `_record` has found sound."""
        at = cython.declare(cython.Py_ssize_t[1])
        i: cython.longlong
        size: cython.longlong
        n: cython.Py_ssize_t = self._headers
        at[0] = at_
        for i in range(count):  # noqa: B007
            size = _varint(b, at, end, 5)
            _copy(self._p_header_keys, self._header_key_size, b, at[0], size)
            self._header_key_size += cython.cast(cython.Py_ssize_t, size)
            at[0] += cython.cast(cython.Py_ssize_t, size)
            size = _varint(b, at, end, 5)
            if size >= 0:
                _copy(self._p_header_values, self._header_value_size, b, at[0], size)
                self._header_value_size += cython.cast(cython.Py_ssize_t, size)
                at[0] += cython.cast(cython.Py_ssize_t, size)
                self._p_header_value_bits[n >> 3] |= 1 << (n & 7)
            else:
                self._null_header_values += 1
            n += 1
            self._p_header_key_offsets[n] = self._header_key_size
            self._p_header_value_offsets[n] = self._header_value_size
        self._headers = n

    @cython.cfunc
    def _trim(self) -> cython.void:
        """Gives back the room that was not needed; a column without nulls needs no bitmap."""
        del self.offsets[self.count :]
        del self.timestamps_ms[self.count :]
        del self.timestamp_types[self.count :]
        del self.key_offsets[self.count + 1 :]
        del self.value_offsets[self.count + 1 :]
        del self.key_bytes[self._key_size :]
        del self.value_bytes[self._value_size :]
        if self._null_keys == 0:
            self.key_validity = None
        else:
            del self.key_validity[(self.count + 7) >> 3 :]
        if self._null_values == 0:
            self.value_validity = None
        else:
            del self.value_validity[(self.count + 7) >> 3 :]
        if not self.with_headers:
            self.header_list_offsets = self.header_key_offsets = self.header_key_bytes = None
            self.header_value_offsets = self.header_value_validity = self.header_value_bytes = None
            return
        del self.header_list_offsets[self.count + 1 :]
        del self.header_key_offsets[self._headers + 1 :]
        del self.header_value_offsets[self._headers + 1 :]
        del self.header_key_bytes[self._header_key_size :]
        del self.header_value_bytes[self._header_value_size :]
        if self._null_header_values == 0:
            self.header_value_validity = None
        else:
            del self.header_value_validity[(self._headers + 7) >> 3 :]


def decode(
    data: cython.const[cython.uchar][::1],
    *,
    start: cython.longlong,
    stop: cython.longlong,
    with_headers: cython.bint = False,
    decompressed_bytes_max: cython.longlong,
) -> Columns:
    """The records with start <= offset < stop of concatenated batches; a partial batch at the end is ignored.

    Control batches are passed over. Raises Malformed for a wrong CRC or a broken record. Where the keys or values
    would no longer fit 32-bit offsets it stops early, and `next_offset` says where to go on.
    """
    b: cython.p_const_uchar
    c: cython.p_const_uchar
    body: cython.const[cython.uchar][::1]
    columns: Columns
    at: cython.Py_ssize_t = 0
    from_: cython.Py_ssize_t
    to: cython.Py_ssize_t
    size: cython.Py_ssize_t
    batch_size: cython.longlong
    base_offset: cython.longlong
    count: cython.longlong
    broken: cython.longlong
    crc: cython.uint
    if not cython.compiled:
        data = memoryview(data)
    size = data.shape[0]
    columns = Columns(start, with_headers, size if size < 1 << 30 else 1 << 30)
    if size >= _HEADER_BYTES:
        if cython.compiled:
            b = cython.address(data[0])
        else:
            b = data
    while size - at >= _HEADER_BYTES:
        batch_size = 12 + _int32(b, at + 8)
        base_offset = _int64(b, at)
        if batch_size < _HEADER_BYTES or b[at + 16] != 2 or base_offset < 0 or _int32(b, at + 23) < 0:
            raise Malformed(f"no record batch at byte {at}")
        if batch_size > size - at or base_offset >= stop:
            break
        if _sum(base_offset, _int32(b, at + 23)) >= start:
            with cython.nogil:
                crc = _crc(b, at + 21, batch_size - 21)
            if crc != _uint32(b, at + 17):
                raise Malformed(f"wrong CRC in the batch of offset {base_offset} at byte {at}")
            count = _int32(b, at + 57)
            if count != 0 and not b[at + 22] & 0x20:
                if b[at + 22] & 7:
                    body = codecs.decompress(
                        b[at + 22] & 7, data[at + _HEADER_BYTES : at + batch_size], bytes_max=decompressed_bytes_max
                    )
                    from_ = 0
                    to = len(body)
                    if cython.compiled:
                        c = cython.address(body[0]) if to > 0 else b
                    else:
                        c = memoryview(body)
                else:
                    c = b
                    from_ = at + _HEADER_BYTES
                    to = at + cython.cast(cython.Py_ssize_t, batch_size)
                if count < 0 or count > (to - from_) // _RECORD_BYTES_MIN:
                    raise Malformed(f"the batch of offset {base_offset} cannot hold {count} records")
                if not columns._has_room(to - from_):
                    break
                columns._make_room(cython.cast(cython.Py_ssize_t, count), to - from_)
                with cython.nogil:
                    broken = columns._add_batch(b, at, c, from_, to, start, stop)
                if broken == count:
                    raise Malformed(f"bytes are left after the last record of the batch of offset {base_offset}")
                if broken >= 0:
                    raise Malformed(f"record {broken} of the batch of offset {base_offset} is broken")
        columns.next_offset = max(start, min(stop, _sum(base_offset, _int32(b, at + 23) + 1)))
        at += cython.cast(cython.Py_ssize_t, batch_size)
    columns._trim()
    return columns


@cython.cfunc
@cython.inline
def _put(out: bytearray, value: cython.longlong) -> cython.void:
    """Appends a zig-zag varint."""
    bits: cython.ulonglong
    if cython.compiled:
        bits = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    else:
        bits = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while bits >= 128:
        out.append(bits & 127 | 128)
        bits >>= 7
    out.append(bits)


@cython.cfunc
def _put_bytes(out: bytearray, data: object) -> cython.void:
    if data is None:
        out.append(1)
    else:
        _put(out, len(data))
        out += data


def encode_records(records, timestamp_deltas, headers) -> bytearray:
    """The bytes of the records: (key, value) pairs, with their time deltas and headers or None for none."""
    out: bytearray = bytearray()
    body: bytearray = bytearray()
    index: cython.longlong = 0
    for key, value in records:
        body.clear()
        body.append(0)
        _put(body, 0 if timestamp_deltas is None else timestamp_deltas[index])
        _put(body, index)
        _put_bytes(body, key)
        _put_bytes(body, value)
        if headers is None:
            body.append(0)
        else:
            _put(body, len(headers[index]))
            for name, content in headers[index]:
                _put_bytes(body, name.encode() if isinstance(name, str) else name)
                _put_bytes(body, content)
        _put(out, len(body))
        out += body
        index += 1
    return out


def renumbered(data: cython.const[cython.uchar][::1], count: cython.longlong) -> bytearray:
    """The same sound records with offset deltas 0, 1, 2, ..."""
    b: cython.p_const_uchar
    at = cython.declare(cython.Py_ssize_t[1])
    begin: cython.Py_ssize_t
    size: cython.longlong
    i: cython.longlong
    out: bytearray = bytearray()
    body: bytearray = bytearray()
    view = memoryview(data)
    if cython.compiled:
        b = cython.address(data[0])
    else:
        b = view
    at[0] = 0
    for i in range(count):
        size = _varint(b, at, len(view), 5)
        begin = at[0]
        if size < 1 or size > len(view) - begin:
            raise Malformed(f"record {i} is broken")
        at[0] += 1
        _varint(b, at, len(view), 10)
        body.clear()
        body += view[begin : at[0]]
        _varint(b, at, len(view), 5)
        _put(body, i)
        body += view[at[0] : begin + size]
        _put(out, len(body))
        out += body
        at[0] = begin + cython.cast(cython.Py_ssize_t, size)
    return out
