# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The walk over the records of a batch: to check them, to turn them into columns, and to write them.

Compiled: Python in Cython's pure mode, which also runs uncompiled (slowly, with the same results).
No Python object is made per record. Every read is bounded by the end of the record it belongs to: a reader that
would cross it moves to one past the end and stays there, so that one comparison after the last field finds every
kind of broken record.
"""

import array
import ctypes
from enum import IntEnum

import cython
import google_crc32c

from logmark.errors import Malformed
from logmark.wire import codecs

if cython.compiled:
    from cython.cimports.cpython import array
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy, memset
    from cython.cimports.logmark.wire.batch_header import (
        ATTRIBUTES_AT,
        BASE_SEQUENCE_AT,
        BASE_TIMESTAMP_AT,
        CONTROL,
        COUNT_AT,
        CRC_AT,
        FLAGS_AT,
        LAST_DELTA_AT,
        LEADER_EPOCH_AT,
        LENGTH_AT,
        LOG_APPEND_TIME,
        MAGIC_AT,
        MAX_TIMESTAMP_AT,
        OVERHEAD,
        PRODUCER_EPOCH_AT,
        PRODUCER_ID_AT,
    )
else:
    from logmark.wire.batch_header import (
        ATTRIBUTES_AT,
        BASE_SEQUENCE_AT,
        BASE_TIMESTAMP_AT,
        CONTROL,
        COUNT_AT,
        CRC_AT,
        FLAGS_AT,
        LAST_DELTA_AT,
        LEADER_EPOCH_AT,
        LENGTH_AT,
        LOG_APPEND_TIME,
        MAGIC_AT,
        MAX_TIMESTAMP_AT,
        OVERHEAD,
        PRODUCER_EPOCH_AT,
        PRODUCER_ID_AT,
    )

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
    BAD_EPOCH = 19


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
_BAD_EPOCH = cython.declare(cython.int, Problem.BAD_EPOCH)


def _find_crc_function() -> int:
    """Return the address of libcrc32c's function, to which google_crc32c is linked; 0 if it is not found.

    The Python function takes only `bytes` (no memoryview, not even a read-only one), so every batch would be copied
    once to be checked. Called by address it takes any memory, without the GIL. Measured in CPU time: 1 MiB in 44 to
    52 µs instead of 82 to 92; a batch of 200 bytes in less than 27 ns (with its header checks) instead of 350.
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
def _memory(data: cython.const[cython.uchar][::1]) -> cython.p_const_uchar:
    """Return the bytes of a view, as a pointer if compiled; the caller holds the view while it reads them."""
    if cython.compiled:
        return cython.address(data[0]) if data.shape[0] > 0 else cython.NULL
    else:
        return memoryview(data)


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
    """Add as Java does: past the largest value comes the smallest."""
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
    """Read a varint of two bytes or more: at most five for an int, ten for a long; drop excess bits, as Java does."""
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
    """Move past `size` bytes; a negative size is a null and has none."""
    if size > 0:
        if size > end - at[0]:
            at[0] = end + 1
        else:
            at[0] += cython.cast(cython.Py_ssize_t, size)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _any_record(
    b: cython.p_const_uchar, at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, field: cython.p_longlong
) -> cython.bint:
    """Read a record of any shape, as `_record` says."""
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


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _short(b: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Return a varint of at most three bytes as stored, and above its two lowest bits; they are its length, or 0."""
    low: cython.longlong = b[at]
    middle: cython.longlong
    high: cython.longlong
    if low < 128:
        return (low << 2) | 1
    middle = b[at + 1]
    if middle < 128:
        return (((low & 127) | (middle << 7)) << 2) | 2
    high = b[at + 2]
    if high < 128:
        return (((low & 127) | ((middle & 127) << 7) | (high << 14)) << 2) | 3
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _signed(short: cython.longlong) -> cython.longlong:
    """Return the value of the varint of `_short`."""
    return (short >> 3) ^ -((short >> 2) & 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _record(
    b: cython.p_const_uchar, at: cython.p_Py_ssize_t, end: cython.Py_ssize_t, field: cython.p_longlong
) -> cython.bint:
    """Read the record at `at` and move past it; return False if it is not exactly a record.

    Fields: 0 timestamp delta, 1 offset delta, 2 and 3 where the key is and its size (negative for null), 4 and 5 the
    same of the value, 6 the number of headers, 7 where they begin.
    """
    q: cython.Py_ssize_t = at[0]
    stop: cython.Py_ssize_t
    size: cython.longlong
    time: cython.longlong
    offset: cython.longlong
    key: cython.longlong
    value: cython.longlong
    # Nearly every record is of one shape: short numbers and no headers. Whatever is not is read again from its start.
    if end - q < 16:
        return _any_record(b, at, end, field)
    size = _short(b, q)
    q += size & 3
    stop = q + cython.cast(cython.Py_ssize_t, size >> 3)
    time = _short(b, q + 1)
    q += 1 + (time & 3)
    offset = _short(b, q)
    q += offset & 3
    key = _short(b, q)
    q += key & 3
    if size == 0 or size & 4 or stop > end or time == 0 or offset == 0 or key == 0:
        return _any_record(b, at, end, field)
    key = _signed(key)
    field[2] = q
    if key > 0:
        if key > stop - q:
            return _any_record(b, at, end, field)
        q += cython.cast(cython.Py_ssize_t, key)
    if stop - q < 2 or end - q < 3:
        return _any_record(b, at, end, field)
    value = _short(b, q)
    q += value & 3
    if value == 0:
        return _any_record(b, at, end, field)
    value = _signed(value)
    field[4] = q
    if value > 0:
        if value >= stop - q:
            return _any_record(b, at, end, field)
        q += cython.cast(cython.Py_ssize_t, value)
    if q + 1 != stop or b[q] != 0:
        return _any_record(b, at, end, field)
    field[0] = _signed(time)
    field[1] = _signed(offset)
    field[3] = key
    field[5] = value
    field[6] = 0
    field[7] = at[0] = stop
    return True


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
    """Walk every record. `fixed_timestamp`: each record has the batch's time, whatever its delta says.

    Found: 0 the largest timestamp, 1 whether offset deltas are 0, 1, 2, ..., 2 the index of the broken record.
    """
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    i: cython.longlong
    timestamp: cython.longlong
    max_timestamp: cython.longlong = -1
    is_dense: cython.bint = True
    refused: cython.bint = False
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
            refused = True
    found[0] = max_timestamp
    found[1] = is_dense
    if at[0] != end:
        return _BYTES_LEFT
    return _RECORD_REFUSED if refused else _SOUND


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _check_frame(b: cython.p_const_uchar, at: cython.longlong, size: cython.longlong) -> cython.int:
    """Check that the `size` bytes at `at` begin with a whole batch, as Kafka's reader of batches sees it."""
    if size < 12:
        return _NO_BATCH
    if _int32(b, at + LENGTH_AT) < 14:
        return _BAD_LENGTH
    if size < 17:
        return _NO_BATCH
    if b[at + MAGIC_AT] > 2:
        return _BAD_MAGIC
    return _SOUND if OVERHEAD + _int32(b, at + LENGTH_AT) <= size else _NO_BATCH


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _check_claims(b: cython.p_const_uchar) -> cython.int:
    """Check that the header of a batch with a right CRC claims what a client may claim."""
    if _int32(b, LAST_DELTA_AT) < 0:
        return _OFFSET_RANGE
    if _int32(b, COUNT_AT) <= 0:
        return _BAD_COUNT
    if _int32(b, LAST_DELTA_AT) + 1 != _int32(b, COUNT_AT):
        return _COUNT_MISMATCH
    if b[FLAGS_AT] & CONTROL:
        return _CONTROL
    if _int64(b, PRODUCER_ID_AT) >= 0 and _int32(b, BASE_SEQUENCE_AT) < 0:
        return _SEQUENCE
    return _SOUND


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _check_header(
    b: cython.p_const_uchar, size: cython.longlong, bytes_max: cython.longlong, found: cython.p_longlong
) -> cython.int:
    """Check everything but the records, in the order of Kafka's leader; leave the batch's size in `found`."""
    batch_size: cython.longlong
    problem: cython.int = _check_frame(b, 0, size)
    found[0] = 0
    if problem != _SOUND:
        return problem
    batch_size = OVERHEAD + _int32(b, LENGTH_AT)
    found[0] = batch_size
    if b[MAGIC_AT] < 2:
        return _OLD_MAGIC
    if batch_size < _HEADER_BYTES or batch_size > size:
        return _BAD_LENGTH
    problem = _check_frame(b, batch_size, size - batch_size)
    if problem != _NO_BATCH:  # a piece of a second batch is cut off, as Kafka does; a whole one is one too many
        return _SECOND_BATCH if problem == _SOUND else problem
    if _int64(b, 0) != 0:
        return _BASE_OFFSET
    if batch_size > bytes_max:
        return _TOO_LARGE
    if _crc(b, ATTRIBUTES_AT, batch_size - ATTRIBUTES_AT) != _uint32(b, CRC_AT):
        return _BAD_CRC
    return _check_claims(b)


def check_records(
    records: cython.const[cython.uchar][::1],
    body: object,
    bytes_max: cython.longlong,
    keys_required: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
) -> tuple:
    """Return what is wrong with one produced batch, and what its header says.

    `body` is None, or the decompressed records of a batch for which this function answered COMPRESSED. Returns
    (problem, detail, size, attributes, last offset delta, base timestamp, max timestamp, producer id, producer
    epoch, base sequence, record count, largest timestamp of the records, whether offset deltas are 0, 1, 2, ...).
    """
    b: cython.p_const_uchar = _memory(records)
    c: cython.p_const_uchar = b
    view: cython.const[cython.uchar][::1]
    found = cython.declare(cython.longlong[3])
    problem: cython.int = _SOUND
    size: cython.longlong
    start: cython.Py_ssize_t = HEADER_BYTES
    end: cython.Py_ssize_t
    attributes: cython.int
    end = len(records)
    if body is None:
        with cython.nogil:
            problem = _check_header(b, end, bytes_max, found)
        size = found[0]
        if problem != _SOUND:
            return (problem, size, size, 0, 0, 0, 0, -1, -1, -1, 0, -1, False)
        end = cython.cast(cython.Py_ssize_t, size)
    else:
        if end < HEADER_BYTES:
            raise IndexError(f"{end} bytes are no header")
        size = OVERHEAD + _int32(b, LENGTH_AT)
        view = body
        c = _memory(view)
        start = 0
        end = len(body)
    attributes = b[FLAGS_AT]
    found[0] = -1
    found[1] = True
    found[2] = 0
    if body is None and attributes & 7 != 0:
        problem = _COMPRESSED
    else:
        with cython.nogil:
            problem = _check_body(
                c, start, end, _int32(b, COUNT_AT),
                _int64(b, MAX_TIMESTAMP_AT) if attributes & LOG_APPEND_TIME else _int64(b, BASE_TIMESTAMP_AT),
                attributes & LOG_APPEND_TIME != 0, keys_required, earliest, latest, found,
            )  # fmt: skip
    return (
        problem,
        found[2],
        size,
        attributes,
        _int32(b, LAST_DELTA_AT),
        _int64(b, BASE_TIMESTAMP_AT),
        _int64(b, MAX_TIMESTAMP_AT),
        _int64(b, PRODUCER_ID_AT),
        _int32(b, PRODUCER_EPOCH_AT) >> 16,
        _int32(b, BASE_SEQUENCE_AT),
        _int32(b, COUNT_AT),
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
    """Return (index, timestamp, whether its key is missing) of the sound records that break a rule."""
    b: cython.p_const_uchar = _memory(body)
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    i: cython.longlong
    timestamp: cython.longlong
    answers: list = []
    at[0] = max(start, 0)
    end = min(end, len(body))
    for i in range(count):
        if not _record(b, at, end, field):
            break
        timestamp = base_timestamp if fixed_timestamp else _sum(base_timestamp, field[0])
        if keys_required and field[3] < 0:
            answers.append((i, timestamp, True))
        elif timestamp != -1 and (timestamp < earliest or timestamp > latest):
            answers.append((i, timestamp, False))
    return answers


def sound_prefix(
    data: cython.const[cython.uchar][::1],
    base: cython.longlong,
    end: cython.longlong,
    leader_epoch: cython.longlong = -1,
) -> tuple:
    """Return the bytes of whole, sound batches, the offset after them, and what is wrong with the next byte.

    Offsets begin at `base` or above and only grow; a batch that reaches past `end` is left out. Every batch has the
    leader epoch, which no CRC covers; with -1 it may have any.
    """
    b: cython.p_const_uchar = _memory(data)
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = len(data)
    batch_size: cython.longlong
    next_offset: cython.longlong = base
    problem: cython.int = _SOUND
    with cython.nogil:
        while size - at >= _HEADER_BYTES:
            batch_size = OVERHEAD + _int32(b, at + LENGTH_AT)
            if batch_size < _HEADER_BYTES:
                problem = _BAD_LENGTH
                break
            if b[at + MAGIC_AT] != 2:
                problem = _BAD_MAGIC
                break
            if leader_epoch >= 0 and _int32(b, at + LEADER_EPOCH_AT) != leader_epoch:
                problem = _BAD_EPOCH
                break
            if _int64(b, at) < next_offset or _int32(b, at + LAST_DELTA_AT) < 0:
                problem = _OUT_OF_ORDER
                break
            if batch_size > size - at or _int64(b, at) > end - 1 - _int32(b, at + LAST_DELTA_AT):
                break
            if _crc(b, at + ATTRIBUTES_AT, batch_size - ATTRIBUTES_AT) != _uint32(b, at + CRC_AT):
                problem = _BAD_CRC
                break
            next_offset = _int64(b, at) + _int32(b, at + LAST_DELTA_AT) + 1
            at += cython.cast(cython.Py_ssize_t, batch_size)
    return (at, next_offset, problem)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _write_int32(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    out[at] = (value >> 24) & 255
    out[at + 1] = (value >> 16) & 255
    out[at + 2] = (value >> 8) & 255
    out[at + 3] = value & 255


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _check_stored(
    b: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    expected: cython.longlong,
    is_dense: cython.bint,
    base_offset: cython.longlong,
) -> cython.int:
    """Check that there is a sound batch at `at` of `size` bytes; NO_BATCH if it is cut short by their end."""
    batch_size: cython.longlong = OVERHEAD + _int32(b, at + LENGTH_AT)
    last_delta: cython.longlong = _int32(b, at + LAST_DELTA_AT)
    if batch_size < _HEADER_BYTES:
        return _BAD_LENGTH
    if b[at + MAGIC_AT] != 2:
        return _BAD_MAGIC
    if _int64(b, at) < expected or last_delta < 0 or (is_dense and _int64(b, at) != expected):
        return _OUT_OF_ORDER
    # An index entry has 32 bits, and no segment is longer.
    if _int64(b, at) - base_offset > _INT32_MAX - last_delta:
        return _OUT_OF_ORDER
    if batch_size > size - at:
        return _NO_BATCH
    return _SOUND if _crc(b, at + ATTRIBUTES_AT, batch_size - ATTRIBUTES_AT) == _uint32(b, at + CRC_AT) else _BAD_CRC


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _index_batches(
    b: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    is_dense: cython.bint,
    position: cython.longlong,
    base_offset: cython.longlong,
    interval: cython.longlong,
    state: cython.p_longlong,
    offsets: cython.p_uchar,
    times: cython.p_uchar,
    positions: cython.p_longlong,
    found: cython.p_longlong,
) -> cython.int:
    """Set `found`: 0 bytes of sound batches, 1 the offset after them, 2 and 3 bytes of index entries, 4 `positions`."""
    at: cython.Py_ssize_t = 0
    last_offset: cython.longlong
    problem: cython.int
    while size - at >= _HEADER_BYTES:
        problem = _check_stored(b, at, size, found[1], is_dense, base_offset)
        if problem != _SOUND:
            return _SOUND if problem == _NO_BATCH else problem
        last_offset = _int64(b, at) + _int32(b, at + LAST_DELTA_AT)
        if _int64(b, at + MAX_TIMESTAMP_AT) > state[1]:
            state[1] = _int64(b, at + MAX_TIMESTAMP_AT)
            state[2] = last_offset
        if position + at == 0:
            state[4] = _int64(b, at + MAX_TIMESTAMP_AT)
        elif position + at - state[0] > interval:
            state[0] = position + at
            _write_int32(offsets, found[2], last_offset - base_offset)
            _write_int32(offsets, found[2] + 4, position + at)
            found[2] += 8
            if state[1] > state[3]:
                state[3] = state[1]
                _write_int32(times, found[3], state[1] >> 32)
                _write_int32(times, found[3] + 4, state[1])
                _write_int32(times, found[3] + 8, state[2] - base_offset)
                found[3] += 12
        if _int64(b, at + PRODUCER_ID_AT) >= 0:
            positions[found[4]] = at
            found[4] += 1
        at += cython.cast(cython.Py_ssize_t, OVERHEAD + _int32(b, at + LENGTH_AT))
        found[0] = at
        found[1] = last_offset + 1
    return _SOUND


def index_batches(
    data: cython.const[cython.uchar][::1],
    *,
    expected: cython.longlong,
    is_dense: cython.bint,
    position: cython.longlong,
    base_offset: cython.longlong,
    interval: cython.longlong,
    state: cython.longlong[::1],
    offset_entries: bytearray,
    time_entries: bytearray,
) -> tuple:
    """Check batches as `sound_prefix` does, and add the index entries that appending them would have added.

    Returns (bytes of sound batches, the offset after them, what is wrong there or SOUND, where the batches of
    producers with an id begin). `data` lies at `position` of the segment of `base_offset`. `state` is what one call
    leaves for the next: where the last entry points, the largest timestamp and its offset, the timestamp of the last
    entry, and the largest timestamp of the segment's first batch. Dense batches begin where the one before them ended.
    """
    b: cython.p_const_uchar = _memory(data)
    found = cython.declare(cython.longlong[5])
    problem: cython.int
    size: cython.Py_ssize_t = len(data)
    positions: object = array.array("q")
    most: cython.Py_ssize_t = size // cython.cast(cython.Py_ssize_t, max(interval, HEADER_BYTES)) + 1
    offsets: cython.p_uchar
    times: cython.p_uchar
    noted: cython.p_longlong
    if len(state) != 5:
        raise IndexError(f"a state of {len(state)} integers")
    found[0] = 0
    found[1] = expected
    found[2] = len(offset_entries)
    found[3] = len(time_entries)
    found[4] = 0
    _ints(positions, size // HEADER_BYTES)
    offset_entries.extend(bytes(8 * most))
    time_entries.extend(bytes(12 * most))
    if cython.compiled:
        offsets = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(offset_entries))
        times = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(time_entries))
        noted = cython.cast(array.array, positions).data.as_longlongs
        with cython.nogil:
            problem = _index_batches(
                b, size, is_dense, position, base_offset, interval, cython.address(state[0]), offsets, times,
                noted, found,
            )  # fmt: skip
    else:
        problem = _index_batches(
            b, size, is_dense, position, base_offset, interval, state, offset_entries, time_entries, positions, found
        )
    del offset_entries[found[2] :]
    del time_entries[found[3] :]
    del positions[found[4] :]
    return (found[0], found[1], problem, positions)


def crc32c(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> int:
    """Return the CRC-32C of `size` bytes at `at`, without a copy and, if it takes long, without the GIL."""
    b: cython.p_const_uchar = _memory(data)
    crc: cython.uint
    if at < 0 or size < 0 or size > len(data) - at:
        raise IndexError(f"{size} bytes at {at} of {len(data)}")
    if size < 65536:
        return _crc(b, at, size) if size else 0
    with cython.nogil:
        crc = _crc(b, at, size)
    return crc


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _find_time(
    b: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    is_fixed: cython.bint,
    timestamp: cython.longlong,
    delta_min: cython.longlong,
    found: cython.p_longlong,
) -> cython.int:
    """Set `found`: 0 records passed, 1 bytes passed, 2 and 3 offset delta and timestamp of the record looked for."""
    cursor = cython.declare(cython.Py_ssize_t[1])
    size: cython.longlong
    time: cython.longlong
    delta: cython.longlong
    stop: cython.longlong
    head_end: cython.Py_ssize_t
    while found[0] < count and found[1] < end:
        cursor[0] = cython.cast(cython.Py_ssize_t, found[1])
        size = _varint(b, cursor, end, 5)
        if cursor[0] > end:
            # A length that is cut short continues in the next piece.
            return _SOUND if end - found[1] < 5 else _BROKEN_RECORD
        if size < 1:
            return _BROKEN_RECORD
        stop = cursor[0] + size
        head_end = end if stop > end else cython.cast(cython.Py_ssize_t, stop)
        cursor[0] += 1
        time = _varint(b, cursor, head_end, 10)
        delta = _varint(b, cursor, head_end, 5)
        if cursor[0] > head_end:
            return _SOUND if stop > end else _BROKEN_RECORD
        time = base_timestamp if is_fixed else _sum(base_timestamp, time)
        if time >= timestamp and delta >= delta_min:
            found[2] = delta
            found[3] = time
            return _RECORD_REFUSED
        found[0] += 1
        found[1] = stop
    return _SOUND


def find_time(
    data: cython.const[cython.uchar][::1],
    *,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    is_fixed: cython.bint,
    timestamp: cython.longlong,
    delta_min: cython.longlong,
) -> tuple:
    """Find in plain records the first at or after a timestamp whose offset delta is not below `delta_min`.

    Returns (records passed, their bytes, its offset delta and timestamp or None). The last record passed may end behind
    the data; one whose first bytes are cut short is not passed. With `is_fixed` all records have the base timestamp.
    """
    b: cython.p_const_uchar = _memory(data)
    found = cython.declare(cython.longlong[4])
    end: cython.Py_ssize_t = len(data)
    state: cython.int
    found[0] = found[1] = found[2] = found[3] = 0
    with cython.nogil:
        state = _find_time(b, end, count, base_timestamp, is_fixed, timestamp, delta_min, found)
    if state == _BROKEN_RECORD:
        raise Malformed(f"record {found[0]} of a batch is broken")
    return (found[0], found[1], (found[2], found[3]) if state == _RECORD_REFUSED else None)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _copy(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    b: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy bytes and return where they end."""
    if cython.compiled:
        memcpy(out + at, b + begin, size)
    else:
        out[at : at + size] = b[begin : begin + size]
    return at + size


@cython.cfunc
def _ints(column: object, size: cython.Py_ssize_t) -> cython.void:
    """Make room for `size` integers."""
    if size > len(column):
        size = max(size, len(column) + (len(column) >> 1))
        if cython.compiled:
            array.resize(column, size)
        else:
            column.extend([0] * (size - len(column)))


@cython.cfunc
def _room(column: bytearray, size: cython.Py_ssize_t, full: cython.bint) -> cython.void:
    """Make room for `size` bytes, with every bit of the new ones set if asked for."""
    old: cython.Py_ssize_t = len(column)
    if size > old:
        size = max(size, old + (old >> 1))
        if cython.compiled:
            PyByteArray_Resize(column, size)
            if full:
                memset(PyByteArray_AS_STRING(column) + old, 255, size - old)
        else:
            column.extend((b"\xff" if full else b"\0") * (size - old))


@cython.final
@cython.cclass
class Column:
    """Keys or values in Arrow's layout for binary: `offsets` (32 bits) into `data`, and a bitmap of what is not null.

    As a sequence it gives bytes, or None for a null: for small uses.
    """

    offsets = cython.declare(object, visibility="readonly")
    validity = cython.declare(object, visibility="readonly")
    data = cython.declare(object, visibility="readonly")
    count: cython.Py_ssize_t
    size: cython.Py_ssize_t
    nulls: cython.Py_ssize_t
    # The memory of the three while records are added, without the GIL.
    _offsets: cython.p_int
    _bits: cython.p_uchar
    _bytes: cython.p_uchar

    def __init__(self) -> None:
        self.offsets = array.array("i", [0])
        self.validity = bytearray()
        self.data = bytearray()
        self.count = self.size = self.nulls = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.count))]
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(index)
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]])

    @cython.cfunc
    def reserve(self, cells: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """Make room for so many more cells and bytes; a batch of that size cannot write past it, whatever it holds."""
        _ints(self.offsets, self.count + cells + 1)
        _room(self.validity, (self.count + cells + 7) >> 3, True)
        _room(self.data, self.size + size, False)
        if cython.compiled:
            self._offsets = cython.cast(array.array, self.offsets).data.as_ints
            self._bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.validity))
            self._bytes = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        else:
            self._offsets, self._bits, self._bytes = self.offsets, self.validity, self.data

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def add(self, b: cython.p_const_uchar, at: cython.longlong, size: cython.longlong) -> cython.void:
        if size >= 0:
            if cython.compiled:
                memcpy(self._bytes + self.size, b + at, size)
            else:
                self._bytes[self.size : self.size + size] = b[at : at + size]
            self.size += cython.cast(cython.Py_ssize_t, size)
        else:
            self.nulls += 1
            self._bits[self.count >> 3] &= 255 ^ (1 << (self.count & 7))
        self.count += 1
        self._offsets[self.count] = self.size

    @cython.cfunc
    def trim(self) -> tuple:
        """Free the room that was not needed; a column without nulls needs no bitmap."""
        del self.offsets[self.count + 1 :]
        del self.data[self.size :]
        if self.nulls == 0:
            self.validity = None
        else:
            del self.validity[(self.count + 7) >> 3 :]
            if self.count & 7:
                self.validity[self.count >> 3] &= (1 << (self.count & 7)) - 1
        return self.offsets, self.validity, self.data


@cython.final
@cython.cclass
class Columns:
    """The records of some batches, column by column, in buffers that Arrow takes as they are.

    `next_offset` is where to continue reading: past the last batch that was decoded, also where it held no record.
    The header columns are None unless they were asked for.
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
    _keys: Column
    _values: Column
    _header_keys: Column
    _header_values: Column
    _with_headers: cython.bint
    _offsets: cython.p_longlong
    _timestamps: cython.p_longlong
    _types: cython.p_int
    _list_offsets: cython.p_int

    def __init__(self, start: cython.longlong, with_headers: cython.bint) -> None:
        self.count = 0
        self.next_offset = start
        self.offsets = array.array("q")
        self.timestamps_ms = array.array("q")
        self.timestamp_types = array.array("i")
        self.header_list_offsets = array.array("i", [0])
        self._keys = Column()
        self._values = Column()
        self._header_keys = Column()
        self._header_values = Column()
        self._with_headers = with_headers

    def keys(self) -> Column:
        """Yield the keys one by one: for small uses."""
        return self._keys

    def values(self) -> Column:
        """Yield the values one by one: for small uses."""
        return self._values

    def headers(self) -> list:
        """Yield the headers of each record as (key, value) pairs: for small uses."""
        if not self._with_headers:
            return [[] for _ in range(self.count)]
        pairs = list(zip(self._header_keys, self._header_values, strict=True))
        ends = self.header_list_offsets
        return [pairs[ends[i] : ends[i + 1]] for i in range(self.count)]

    @cython.cfunc
    def _reserve(self, records: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """Make room for a batch of so many records and bytes."""
        _ints(self.offsets, self.count + records)
        _ints(self.timestamps_ms, self.count + records)
        _ints(self.timestamp_types, self.count + records)
        self._keys.reserve(records, size)
        self._values.reserve(records, size)
        if self._with_headers:
            _ints(self.header_list_offsets, self.count + records + 1)
            self._header_keys.reserve(size >> 1, size)  # a header has two bytes at least
            self._header_values.reserve(size >> 1, size)
        if cython.compiled:
            self._offsets = cython.cast(array.array, self.offsets).data.as_longlongs
            self._timestamps = cython.cast(array.array, self.timestamps_ms).data.as_longlongs
            self._types = cython.cast(array.array, self.timestamp_types).data.as_ints
            self._list_offsets = cython.cast(array.array, self.header_list_offsets).data.as_ints
        else:
            self._offsets, self._timestamps = self.offsets, self.timestamps_ms
            self._types, self._list_offsets = self.timestamp_types, self.header_list_offsets

    @cython.cfunc
    def _add_batch(
        self,
        head: cython.p_const_uchar,
        b: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        start: cython.longlong,
        stop: cython.longlong,
    ) -> cython.void:
        """Add the records of the batch with the header at `head`, which lie in `b` from `begin` to `end`."""
        broken: cython.longlong
        base_offset: cython.longlong = _int64(head, 0)
        count: cython.longlong = _int32(head, COUNT_AT)
        if count < 0 or count > (end - begin) // _RECORD_BYTES_MIN:
            raise Malformed(f"the batch of offset {base_offset} cannot hold {count} records")
        self._reserve(cython.cast(cython.Py_ssize_t, count), end - begin)
        with cython.nogil:
            broken = _add_records(
                self, self._keys, self._values, self._header_keys, self._header_values, head, b, begin, end, start, stop
            )
        if broken == count:
            raise Malformed(f"bytes are left after the last record of the batch of offset {base_offset}")
        if broken >= 0:
            raise Malformed(f"record {broken} of the batch of offset {base_offset} is broken")

    @cython.cfunc
    def _has_room(self, size: cython.Py_ssize_t) -> cython.bint:
        """Return False if a batch of that size could push a column past 32-bit offsets; a first batch always fits."""
        return (
            max(self._keys.size, self._values.size, self._header_keys.size, self._header_values.size) + size
            <= _INT32_MAX
        )

    @cython.cfunc
    def _trim(self) -> cython.void:
        del self.offsets[self.count :]
        del self.timestamps_ms[self.count :]
        del self.timestamp_types[self.count :]
        self.key_offsets, self.key_validity, self.key_bytes = self._keys.trim()
        self.value_offsets, self.value_validity, self.value_bytes = self._values.trim()
        if self._with_headers:
            del self.header_list_offsets[self.count + 1 :]
            self.header_key_offsets, _, self.header_key_bytes = self._header_keys.trim()
            self.header_value_offsets, self.header_value_validity, self.header_value_bytes = self._header_values.trim()
        else:
            self.header_list_offsets = None


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _add_records(
    columns: Columns,
    keys: Column,
    values: Column,
    header_keys: Column,
    header_values: Column,
    head: cython.p_const_uchar,
    b: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    start: cython.longlong,
    stop: cython.longlong,
) -> cython.longlong:
    """Return -1, or the index of the record that is broken, or the number of records if bytes are left after them."""
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    i: cython.longlong
    n: cython.Py_ssize_t = columns.count
    offset: cython.longlong
    base_offset: cython.longlong = _int64(head, 0)
    count: cython.longlong = _int32(head, COUNT_AT)
    is_log_append_time: cython.bint = head[FLAGS_AT] & LOG_APPEND_TIME != 0
    base_timestamp: cython.longlong = (
        _int64(head, MAX_TIMESTAMP_AT) if is_log_append_time else _int64(head, BASE_TIMESTAMP_AT)
    )
    # In locals, because a compiler must think that every byte written may have changed any member.
    offsets: cython.p_longlong = columns._offsets
    timestamps: cython.p_longlong = columns._timestamps
    types: cython.p_int = columns._types
    key_ends: cython.p_int = keys._offsets
    key_bits: cython.p_uchar = keys._bits
    key_bytes: cython.p_uchar = keys._bytes
    key_size: cython.Py_ssize_t = keys.size
    key_nulls: cython.Py_ssize_t = keys.nulls
    value_ends: cython.p_int = values._offsets
    value_bits: cython.p_uchar = values._bits
    value_bytes: cython.p_uchar = values._bytes
    value_size: cython.Py_ssize_t = values.size
    value_nulls: cython.Py_ssize_t = values.nulls
    at[0] = begin
    for i in range(count):
        if not _record(b, at, end, field):
            return i
        offset = _sum(base_offset, field[1])
        if offset < start or offset >= stop:
            continue
        offsets[n] = offset
        timestamps[n] = base_timestamp if is_log_append_time else _sum(base_timestamp, field[0])
        types[n] = is_log_append_time
        if field[3] >= 0:
            key_size = _copy(key_bytes, key_size, b, field[2], field[3])
        else:
            key_nulls += 1
            key_bits[n >> 3] &= 255 ^ (1 << (n & 7))
        if field[5] >= 0:
            value_size = _copy(value_bytes, value_size, b, field[4], field[5])
        else:
            value_nulls += 1
            value_bits[n >> 3] &= 255 ^ (1 << (n & 7))
        n += 1
        key_ends[n] = key_size
        value_ends[n] = value_size
        if columns._with_headers:
            _add_headers(columns, header_keys, header_values, b, at[0], field)
            columns._list_offsets[n] = header_keys.count
    columns.count = keys.count = values.count = n
    keys.size = key_size
    keys.nulls = key_nulls
    values.size = value_size
    values.nulls = value_nulls
    return -1 if at[0] == end else count


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _add_headers(
    columns: Columns,
    header_keys: Column,
    header_values: Column,
    b: cython.p_const_uchar,
    end: cython.Py_ssize_t,
    field: cython.p_longlong,
) -> cython.void:
    """Add the headers of the record of `_record`, which ends at `end`."""
    at = cython.declare(cython.Py_ssize_t[1])
    j: cython.longlong
    size: cython.longlong
    at[0] = cython.cast(cython.Py_ssize_t, field[7])
    for j in range(field[6]):  # noqa: B007
        size = _varint(b, at, end, 5)
        header_keys.add(b, at[0], size)
        _skip(at, end, size)
        size = _varint(b, at, end, 5)
        header_values.add(b, at[0], size)
        _skip(at, end, size)


def decode(
    data: cython.const[cython.uchar][::1],
    *,
    start: cython.longlong,
    stop: cython.longlong,
    with_headers: cython.bint = False,
    decompressed_bytes_max: cython.longlong,
) -> Columns:
    """Return the records with start <= offset < stop of concatenated batches; ignore a partial batch at the end.

    Control batches are passed over. Raises Malformed for a wrong CRC, a broken record, and a batch of more than
    `decompressed_bytes_max`. Where keys or values would no longer fit 32-bit offsets it stops early, and
    `next_offset` says where to continue.
    """
    b: cython.p_const_uchar = _memory(data)
    head: cython.p_const_uchar
    body: cython.const[cython.uchar][::1]
    columns: Columns = Columns(start, with_headers)
    at: cython.Py_ssize_t = 0
    batch_size: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(data)
    base_offset: cython.longlong
    next_offset: cython.longlong
    crc: cython.uint
    # Values that are not compressed fit in as many bytes, so they need not grow and move. Keys are left to grow: two
    # buffers of that size, freed together, make malloc give the pages back and fault them in again at every call.
    columns._values.reserve(0, min(size, 1 << 30))
    while size - at >= _HEADER_BYTES:
        head = b + at if cython.compiled else b[at:]
        batch_size = cython.cast(cython.Py_ssize_t, OVERHEAD + _int32(head, LENGTH_AT))
        base_offset = _int64(head, 0)
        next_offset = _sum(base_offset, _int32(head, LAST_DELTA_AT) + 1)
        if batch_size < _HEADER_BYTES or head[MAGIC_AT] != 2 or base_offset < 0 or next_offset <= base_offset:
            raise Malformed(f"no record batch at byte {at}")
        if batch_size > size - at or base_offset >= stop:
            break
        if next_offset > start:
            with cython.nogil:
                crc = _crc(head, ATTRIBUTES_AT, batch_size - ATTRIBUTES_AT)
            if crc != _uint32(head, CRC_AT):
                raise Malformed(f"wrong CRC in the batch of offset {base_offset} at byte {at}")
            if _int32(head, COUNT_AT) == 0 or head[FLAGS_AT] & CONTROL:
                pass
            elif head[FLAGS_AT] & 7:
                body = codecs.decompress(
                    head[FLAGS_AT] & 7, data[at + HEADER_BYTES : at + batch_size], bytes_max=decompressed_bytes_max
                )
                if not columns._has_room(len(body)):
                    break
                columns._add_batch(head, _memory(body), 0, len(body), start, stop)
            else:
                if not columns._has_room(batch_size):
                    break
                columns._add_batch(head, head, HEADER_BYTES, batch_size, start, stop)
            columns.next_offset = min(stop, next_offset)
        at += batch_size
    columns._trim()
    return columns


@cython.cfunc
@cython.inline
def _put(out: bytearray, value: cython.longlong) -> cython.void:
    """Append a zig-zag varint."""
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
    """Return the bytes of the records: (key, value) pairs, with their time deltas and headers or None for none."""
    out: bytearray = bytearray()
    body: bytearray = bytearray()
    index: cython.Py_ssize_t
    for index, (key, value) in enumerate(records):
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
    return out
