# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The usual Produce request, read in one step, and its answer, written in one step.

Most requests of a busy broker are small ones for one partition of one topic, without a transaction and without tagged
fields. For these the general way, function by function, cost more than all the rest of a request. Whatever is not of
exactly that shape is left to the general way, which alone knows what is wrong with it.
"""

import cython

_VERSION_MIN = cython.declare(cython.int, 9)
_VERSION_MAX = cython.declare(cython.int, 12)
# From the header's first byte to the records, with an empty client id and a topic name of one character.
_BYTES_MIN = cython.declare(cython.Py_ssize_t, 32)


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
def _acks_at(b: bytearray, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the acks are, after a header without tagged fields and no transaction; -1 for other requests."""
    if end < _BYTES_MIN or b[0] != 0 or b[1] != 0 or b[2] != 0 or b[3] < _VERSION_MIN or b[3] > _VERSION_MAX:
        return -1
    client_size: cython.Py_ssize_t = b[8] << 8 | b[9]
    at: cython.Py_ssize_t = 10
    if client_size != 0xFFFF:
        at += client_size
        # Behind it come at least a topic's name of one character and the records' length.
        if at + _BYTES_MIN - 10 > end or not _is_ascii(b, 10, at):
            return -1
    return at + 2 if b[at] == 0 and b[at + 1] == 0 else -1


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


def read_produce(frame: object) -> tuple | None:
    """Return the usual Produce request in a frame, or None for any other.

    Returns (version, correlation id, acks, where the topic's name begins, its size, partition, where the records begin,
    their size).
    """
    if not isinstance(frame, bytearray):
        return None
    b: bytearray = frame
    end: cython.Py_ssize_t = len(b)
    at: cython.Py_ssize_t = _acks_at(b, end)
    if at < 0:
        return None
    acks: cython.int = b[at] << 8 | b[at + 1]
    if acks == 0xFFFF:
        acks = -1
    # Behind the timeout: one topic, its name, one partition.
    name_at: cython.Py_ssize_t = at + 8
    name_size: cython.Py_ssize_t = b[at + 7] - 1
    if acks > 1 or b[at + 6] != 2 or name_size < 1 or name_size > 126:
        return None
    at = name_at + name_size
    if at + 6 > end or b[at] != 2 or not _is_ascii(b, name_at, at):
        return None
    records_at: cython.Py_ssize_t = _records_at(b, at + 5, end)
    if records_at < 0:
        return None
    return b[3], _int32(b, 4), acks, name_at, name_size, _int32(b, at + 1), records_at, end - 3 - records_at


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
