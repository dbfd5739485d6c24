# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The header of a request and the body of the usual Produce request, read in one step each, and its whole response.

Most requests of a busy broker are small Produce requests for one partition of one topic, without a transaction and
without tagged fields. For these the general readers and writers, function by function, cost more than all the rest of a
request. What is not of exactly that shape is left to them: they alone know what is wrong with it.
"""

import cython

# A header with a client id that is null, and one byte behind it.
_HEADER_BYTES_MIN = cython.declare(cython.Py_ssize_t, 11)
# From the transactional id to the records' length, with a topic name of one character, and the tagged fields behind it.
_BYTES_MIN = cython.declare(cython.Py_ssize_t, 20)


@cython.cfunc
@cython.inline
def _int32(b: bytearray, at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = b[at]
    value = value << 24 | b[at + 1] << 16 | b[at + 2] << 8 | b[at + 3]
    return value if value < 0x80000000 else value - 0x100000000


@cython.cfunc
@cython.inline
def _is_ascii(b: bytearray, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.bint:
    while at < stop:
        if b[at] >= 128:
            return False
        at += 1
    return True


@cython.cfunc
def _records_at(b: bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the records begin whose length is here, if only three empty sets of tagged fields follow."""
    length: cython.longlong = 0
    shift: cython.int = 0
    while at < end and shift <= 28:
        length |= cython.cast(cython.longlong, b[at] & 0x7F) << shift
        shift += 7
        at += 1
        if b[at - 1] < 128:
            is_last: cython.bint = length - 1 + 3 == end - at and b[end - 1] == 0 and b[end - 2] == 0
            return at if length > 0 and is_last and b[end - 3] == 0 else -1
    return -1


def read_header(frame: object, flexible_from: dict) -> tuple | None:
    """Return (API key, version, correlation id, client id, where the body begins); None for any other than a usual one.

    `flexible_from` has the version of each API from which on its headers have tagged fields, or None.
    """
    if not isinstance(frame, bytearray):
        return None
    b: bytearray = frame
    end: cython.Py_ssize_t = len(b)
    # With the highest bit a key or a version is negative.
    if end < _HEADER_BYTES_MIN or b[0] >= 128 or b[2] >= 128:
        return None
    key: cython.int = b[0] << 8 | b[1]
    version: cython.int = b[2] << 8 | b[3]
    at: cython.Py_ssize_t = 10
    client_id: object = None
    size: cython.Py_ssize_t = b[8] << 8 | b[9]
    if size != 0xFFFF:
        if size >= end - at or not _is_ascii(b, at, at + size):
            return None
        client_id = b[at : at + size].decode("ascii")
        at += size
    flexible: object = flexible_from.get(key)
    if flexible is not None and version >= cython.cast(cython.int, flexible):
        if b[at] != 0:
            return None
        at += 1
    return key, version, _int32(b, 4), client_id, at


def read_produce(frame: object, at: cython.Py_ssize_t) -> tuple | None:
    """Return the usual Produce request whose body begins at `at`, in a flexible version; None for any other.

    Returns (acks, where the topic's name begins, its size, partition, where the records begin, their size).
    """
    if not isinstance(frame, bytearray):
        return None
    b: bytearray = frame
    end: cython.Py_ssize_t = len(b)
    if at < 0 or end - at < _BYTES_MIN or b[at] != 0:
        return None
    # Behind a transactional id that is null: acks, and the timeout, which has no meaning here.
    acks: cython.int = b[at + 1] << 8 | b[at + 2]
    if acks == 0xFFFF:
        acks = -1
    # One topic, its name, one partition.
    name_at: cython.Py_ssize_t = at + 9
    name_size: cython.Py_ssize_t = b[at + 8] - 1
    if acks > 1 or b[at + 7] != 2 or name_size < 1 or name_size > 126:
        return None
    at = name_at + name_size
    if at + 6 > end or b[at] != 2 or not _is_ascii(b, name_at, at):
        return None
    records_at: cython.Py_ssize_t = _records_at(b, at + 5, end)
    if records_at < 0:
        return None
    return acks, name_at, name_size, _int32(b, at + 1), records_at, end - 3 - records_at


@cython.cfunc
@cython.inline
def _put_int32(b: bytearray, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    b[at] = value >> 24 & 0xFF
    b[at + 1] = value >> 16 & 0xFF
    b[at + 2] = value >> 8 & 0xFF
    b[at + 3] = value & 0xFF


@cython.cfunc
@cython.inline
def _put_int64(b: bytearray, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    _put_int32(b, at, value >> 32)
    _put_int32(b, at + 4, value)


def produced(
    frame: bytearray,
    name_at: cython.Py_ssize_t,
    name_size: cython.Py_ssize_t,
    correlation_id: cython.longlong,
    partition: cython.longlong,
    base_offset: cython.longlong,
    log_append_time_ms: cython.longlong,
    log_start_offset: cython.longlong,
) -> bytes:
    """Return the whole response, with its length, to a usual Produce request that was written."""
    size: cython.Py_ssize_t = 4 + 5 + 2 + name_size + 1 + 33 + 6
    if name_at < 1 or name_at + name_size > len(frame):
        raise IndexError("the name lies outside of the request")
    b: bytearray = bytearray(size)
    _put_int32(b, 0, size - 4)
    _put_int32(b, 4, correlation_id)
    # One topic with the name as it came, length included; one partition.
    b[9] = 2
    i: cython.Py_ssize_t
    for i in range(name_size + 1):
        b[10 + i] = frame[name_at - 1 + i]
    at: cython.Py_ssize_t = 11 + name_size
    b[at] = 2
    _put_int32(b, at + 1, partition)
    _put_int64(b, at + 7, base_offset)
    _put_int64(b, at + 15, log_append_time_ms)
    _put_int64(b, at + 23, log_start_offset)
    # No record errors; what follows stays 0: no message, no tagged fields, no throttling.
    b[at + 31] = 1
    return bytes(b)
