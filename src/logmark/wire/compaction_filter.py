# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Which records compaction keeps: the newest one of every key, and what producers and readers rely on.

Compiled like `columns`, whose walk over records it uses; it also runs uncompiled, slowly and with the same results.
"""

import array
import os

import cython

from logmark.errors import Malformed
from logmark.wire import codecs
from logmark.wire.columns import HEADER_BYTES, crc32c

if cython.compiled:
    from cython.cimports.cpython import array
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.logmark.wire.batch_header import (
        ATTRIBUTES_AT,
        BASE_TIMESTAMP_AT,
        CONTROL,
        COUNT_AT,
        CRC_AT,
        DELETE_HORIZON,
        FLAGS_AT,
        LAST_DELTA_AT,
        LENGTH_AT,
        LOG_APPEND_TIME,
        MAGIC_AT,
        MAX_TIMESTAMP_AT,
        OVERHEAD,
        PRODUCER_EPOCH_AT,
        PRODUCER_ID_AT,
        TRANSACTIONAL,
    )
    from cython.cimports.logmark.wire.columns import (
        _copy,
        _crc,
        _int32,
        _int64,
        _memory,
        _record,
        _room,
        _sum,
        _uint32,
        _varint,
        _write_int32,
    )
else:
    from logmark.wire.batch_header import (
        ATTRIBUTES_AT,
        BASE_TIMESTAMP_AT,
        CONTROL,
        COUNT_AT,
        CRC_AT,
        DELETE_HORIZON,
        FLAGS_AT,
        LAST_DELTA_AT,
        LENGTH_AT,
        LOG_APPEND_TIME,
        MAGIC_AT,
        MAX_TIMESTAMP_AT,
        OVERHEAD,
        PRODUCER_EPOCH_AT,
        PRODUCER_ID_AT,
        TRANSACTIONAL,
    )
    from logmark.wire.columns import (
        _copy,
        _crc,
        _int32,
        _int64,
        _memory,
        _record,
        _room,
        _sum,
        _uint32,
        _varint,
        _write_int32,
    )

_HEADER_BYTES = cython.declare(cython.longlong, HEADER_BYTES)
_RECORD_BYTES_MIN = cython.declare(cython.longlong, 7)  # seven fields of one byte each
_LONG_MAX = cython.declare(cython.longlong, 2**63 - 1)
# The constants of SipHash, as C integers.
_SIP_0 = cython.declare(cython.ulonglong, 0x736F6D6570736575)
_SIP_1 = cython.declare(cython.ulonglong, 0x646F72616E646F6D)
_SIP_2 = cython.declare(cython.ulonglong, 0x6C7967656E657261)
_SIP_3 = cython.declare(cython.ulonglong, 0x7465646279746573)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _sip_round(v: cython.p_ulonglong) -> cython.void:
    v[0] += v[1]
    v[1] = ((v[1] << 13) | (v[1] >> 51)) ^ v[0]
    v[0] = (v[0] << 32) | (v[0] >> 32)
    v[2] += v[3]
    v[3] = ((v[3] << 16) | (v[3] >> 48)) ^ v[2]
    v[0] += v[3]
    v[3] = ((v[3] << 21) | (v[3] >> 43)) ^ v[0]
    v[2] += v[1]
    v[1] = ((v[1] << 17) | (v[1] >> 47)) ^ v[2]
    v[2] = (v[2] << 32) | (v[2] >> 32)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _sip_hash(
    b: cython.p_const_uchar, size: cython.Py_ssize_t, low: cython.ulonglong, high: cython.ulonglong
) -> cython.uint:
    """Hash by SipHash-1-3 under a secret key: nobody can choose record keys that all fall into one slot."""
    v = cython.declare(cython.ulonglong[4])
    word: cython.ulonglong = 0
    last: cython.ulonglong
    i: cython.Py_ssize_t
    whole: cython.Py_ssize_t = size & ~7
    v[0] = low ^ _SIP_0
    v[1] = high ^ _SIP_1
    v[2] = low ^ _SIP_2
    v[3] = high ^ _SIP_3
    for i in range(0, whole, 8):
        memcpy(cython.address(word), b + i, 8)
        v[3] ^= word
        _sip_round(v)
        v[0] ^= word
    last = cython.cast(cython.ulonglong, size) << 56
    for i in range(whole, size):
        word = b[i]
        last |= word << (8 * (i - whole))
    v[3] ^= last
    _sip_round(v)
    v[0] ^= last
    v[2] ^= 0xFF
    _sip_round(v)
    _sip_round(v)
    _sip_round(v)
    return cython.cast(cython.uint, v[0] ^ v[1] ^ v[2] ^ v[3])


@cython.final
@cython.cclass
class KeyMap:
    """The newest offset of every key.

    Kafka's map keeps MD5 sums instead of keys. This one keeps the keys themselves in about as little memory (32 to 48
    bytes and the key, without a Python object), so that no two keys can ever be taken for one and a record be lost.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _bytes_max: cython.longlong
    _mask: cython.Py_ssize_t
    _low: cython.ulonglong
    _high: cython.ulonglong
    # Entries lie one behind the other, aligned to 8 bytes: the offset (8 bytes), the size of the key (8), the key.
    _entries: bytearray
    _size: cython.Py_ssize_t
    # A slot is 0, or the hash of a key and, in its lower half, one more than an eighth of the entry's position.
    _slots: object
    # The same without compiler: a dictionary.
    _known: dict
    _e: cython.p_uchar
    _s: cython.p_ulonglong

    def __init__(self, bytes_max: cython.longlong) -> None:
        secret = os.urandom(16)
        self._low = int.from_bytes(secret[:8], "little")
        self._high = int.from_bytes(secret[8:], "little")
        self._bytes_max = bytes_max
        self._known = {}
        self.count = self._size = 0
        self._entries = bytearray()
        self._slots = array.array("Q", bytes(8 * 1024))
        self._mask = 1023

    def __len__(self) -> int:
        return self.count

    @property
    def size_bytes(self) -> int:
        """The memory that the keys take."""
        return 8 * (self._mask + 1) + self._size

    @property
    def is_full(self) -> bool:
        """True when the keys take all the memory that they may take; one batch of keys fits always."""
        return self.count > 0 and 8 * (self._mask + 1) + self._size >= self._bytes_max

    def get(self, key: bytes) -> int:
        """Return the newest offset of a key, or -1: for small uses."""
        view: cython.const[cython.uchar][::1] = key
        if not cython.compiled:
            return self._known.get(key, -1)
        self._point()
        return self._newest(_memory(view), 0, len(key), self._hash(_memory(view), 0, len(key)))

    @cython.cfunc
    def reserve(self, keys: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """Make room for so many more keys and bytes."""
        wanted: cython.Py_ssize_t = self._mask + 1
        old: cython.Py_ssize_t = wanted
        before: cython.p_ulonglong
        if cython.compiled:
            _room(self._entries, self._size + size + 24 * keys, False)
            while wanted < 2 * (self.count + keys):
                wanted *= 2
            if wanted > old:
                slots = self._slots
                before = cython.cast(array.array, slots).data.as_ulonglongs
                self._slots = array.clone(slots, wanted, True)
                self._mask = wanted - 1
                self._point()
                with cython.nogil:
                    self._take_slots(before, old)
            self._point()

    @cython.cfunc
    def _point(self) -> cython.void:
        self._e = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._entries))
        self._s = cython.cast(array.array, self._slots).data.as_ulonglongs

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.nogil
    def _take_slots(self, before: cython.p_ulonglong, count: cython.Py_ssize_t) -> cython.void:
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        for i in range(count):
            if before[i] != 0:
                slot = (before[i] >> 32) & self._mask
                while self._s[slot] != 0:
                    slot = (slot + 1) & self._mask
                self._s[slot] = before[i]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _slot(self, b: cython.p_const_uchar, size: cython.Py_ssize_t, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot of a key, or the empty one where it belongs."""
        slot: cython.Py_ssize_t = hashed & self._mask
        entry: cython.p_longlong
        while self._s[slot] != 0:
            if self._s[slot] >> 32 == hashed:
                entry = self._entry(slot)
                if entry[1] == size and memcmp(entry + 2, b, size) == 0:
                    return slot
            slot = (slot + 1) & self._mask
        return slot

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _entry(self, slot: cython.Py_ssize_t) -> cython.p_longlong:
        eighth: cython.Py_ssize_t = cython.cast(cython.uint, self._s[slot])
        return cython.cast(cython.p_longlong, self._e + 8 * (eighth - 1))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _hash(self, b: cython.p_const_uchar, at: cython.longlong, size: cython.longlong) -> cython.ulonglong:
        """Return the hash of a key that is looked up soon; its slot is on the way from memory meanwhile."""
        hashed: cython.ulonglong = 0
        if cython.compiled:
            hashed = _sip_hash(b + at, size, self._low, self._high)
            prefetch(self._s + (hashed & self._mask))  # noqa: F821
        return hashed

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _fetch_entry(self, hashed: cython.ulonglong) -> cython.void:
        """Prefetch the entry that most likely belongs to a hash."""
        if cython.compiled and self._s[hashed & self._mask] != 0:
            prefetch(self._entry(hashed & self._mask))  # noqa: F821

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _put(
        self,
        b: cython.p_const_uchar,
        at: cython.longlong,
        size: cython.longlong,
        hashed: cython.ulonglong,
        offset: cython.longlong,
    ) -> cython.void:
        slot: cython.Py_ssize_t
        entry: cython.p_longlong
        if cython.compiled:
            slot = self._slot(b + at, size, hashed)
            if self._s[slot] == 0:
                self._s[slot] = (hashed << 32) | ((self._size >> 3) + 1)
                entry = self._entry(slot)
                entry[1] = size
                memcpy(entry + 2, b + at, size)
                self._size += (16 + cython.cast(cython.Py_ssize_t, size) + 7) & ~7
                self.count += 1
            self._entry(slot)[0] = offset
        else:
            self._known[bytes(b[at : at + size])] = offset
            self.count = len(self._known)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.nogil
    def _newest(
        self, b: cython.p_const_uchar, at: cython.longlong, size: cython.longlong, hashed: cython.ulonglong
    ) -> cython.longlong:
        slot: cython.Py_ssize_t
        if cython.compiled:
            slot = self._slot(b + at, size, hashed)
            return self._entry(slot)[0] if self._s[slot] != 0 else -1
        else:
            return self._known.get(bytes(b[at : at + size]), -1)

    def add(
        self,
        data: cython.const[cython.uchar][::1],
        at: cython.Py_ssize_t,
        *,
        start: cython.longlong,
        is_judged: cython.bint,
        decompressed_bytes_max: cython.longlong,
    ) -> tuple:
        """Take the keys of the batches from byte `at` on; return where it stopped, and the last offset or -1.

        It stops where a batch is cut short, when the map is full, and before a batch of a transaction or a control
        batch, unless that is the first one and the caller has judged that it counts. Records below `start` do not.
        """
        b: cython.p_const_uchar = _memory(data)
        head: cython.p_const_uchar
        body: cython.const[cython.uchar][::1]
        size: cython.Py_ssize_t = len(data)
        batch_size: cython.Py_ssize_t
        last_offset: cython.longlong = -1
        while size - at >= _HEADER_BYTES:
            head = b + at if cython.compiled else b[at:]
            batch_size = _checked_size(head, size - at, at)
            if batch_size == 0 or (head[FLAGS_AT] & (TRANSACTIONAL | CONTROL) and not is_judged):
                break
            is_judged = False
            last_offset = _int64(head, 0) + _int32(head, LAST_DELTA_AT)
            if last_offset >= start and _int32(head, COUNT_AT) > 0:
                if head[FLAGS_AT] & 7:
                    body = codecs.decompress(
                        head[FLAGS_AT] & 7, data[at + HEADER_BYTES : at + batch_size], bytes_max=decompressed_bytes_max
                    )
                    self._add_body(head, _memory(body), 0, len(body), start)
                else:
                    self._add_body(head, head, HEADER_BYTES, batch_size, start)
            at += batch_size
            if self.is_full:
                break
        return at, last_offset

    @cython.cfunc
    def _add_body(
        self,
        head: cython.p_const_uchar,
        b: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        start: cython.longlong,
    ) -> cython.void:
        broken: cython.longlong
        count: cython.longlong = _checked_count(head, end - begin)
        self.reserve(cython.cast(cython.Py_ssize_t, count), end - begin)
        with cython.nogil:
            broken = _map_records(self, b, begin, end, _int64(head, 0), count, start)
        if broken >= 0:
            raise Malformed(f"record {broken} of the batch of offset {_int64(head, 0)} is broken")


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _map_records(
    keys: KeyMap,
    b: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_offset: cython.longlong,
    count: cython.longlong,
    start: cython.longlong,
) -> cython.longlong:
    """Return -1, or the index of the record that is broken, or the number of records if bytes are left after them."""
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    block = cython.declare(cython.longlong[4 * 32])
    i: cython.longlong
    n: cython.Py_ssize_t = 0
    at[0] = begin
    for i in range(count):
        if not _record(b, at, end, field):
            return i
        if field[3] >= 0 and base_offset + field[1] >= start:
            block[n] = field[2]
            block[n + 1] = field[3]
            block[n + 2] = cython.cast(cython.longlong, keys._hash(b, field[2], field[3]))
            block[n + 3] = base_offset + field[1]
            n += 4
            if n == 4 * 32:
                _map_block(keys, b, block, n)
                n = 0
    _map_block(keys, b, block, n)
    return -1 if at[0] == end else count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _map_block(keys: KeyMap, b: cython.p_const_uchar, block: cython.p_longlong, size: cython.Py_ssize_t) -> cython.void:
    """Put some keys at once: while one is compared, memory brings the next ones."""
    n: cython.Py_ssize_t
    for n in range(0, size, 4):
        keys._fetch_entry(cython.cast(cython.ulonglong, block[n + 2]))
    for n in range(0, size, 4):
        keys._put(b, block[n], block[n + 1], cython.cast(cython.ulonglong, block[n + 2]), block[n + 3])


@cython.cfunc
def _checked_size(head: cython.p_const_uchar, left: cython.Py_ssize_t, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the size of the batch at `head`, or 0 if it is cut short; raise Malformed if it is not sound."""
    size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, OVERHEAD + _int32(head, LENGTH_AT))
    crc: cython.uint
    if size < _HEADER_BYTES or head[MAGIC_AT] != 2 or _int64(head, 0) < 0 or _int32(head, LAST_DELTA_AT) < 0:
        raise Malformed(f"no record batch at byte {at}")
    if size > left:
        return 0
    with cython.nogil:
        crc = _crc(head, ATTRIBUTES_AT, size - ATTRIBUTES_AT)
    if crc != _uint32(head, CRC_AT):
        raise Malformed(f"wrong CRC in the batch of offset {_int64(head, 0)} at byte {at}")
    return size


@cython.cfunc
def _checked_count(head: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.longlong:
    count: cython.longlong = _int32(head, COUNT_AT)
    if count < 0 or count > size // _RECORD_BYTES_MIN:
        raise Malformed(f"the batch of offset {_int64(head, 0)} cannot hold {count} records")
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _write_varint(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a zig-zag varint and return where it ends."""
    bits: cython.ulonglong
    if cython.compiled:
        bits = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    else:
        bits = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while bits >= 128:
        out[at] = bits & 127 | 128
        bits >>= 7
        at += 1
    out[at] = bits & 127
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _write_int64(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    _write_int32(out, at, value >> 32)
    _write_int32(out, at + 4, value)


@cython.final
@cython.cclass
class CompactionFilter:
    """Lets through what compaction keeps: the newest record of every key, and tombstones until their horizon.

    `keys` holds every key up to `mapped_to`; later records stay. `producers` maps the id of every producer that is
    still known to its last data offset (or -1) and its epoch: the batch that says so stays, emptied if need be, as does
    the one that ends at `end`. What stays is added to `out`.
    """

    out = cython.declare(bytearray, visibility="readonly")
    read = cython.declare(cython.longlong, visibility="readonly")
    kept = cython.declare(cython.longlong, visibility="readonly")
    _keys: KeyMap
    _mapped_to: cython.longlong
    _end: cython.longlong
    _producers: dict
    _now_ms: cython.longlong
    _horizon_ms: cython.longlong
    _decompressed_bytes_max: cython.longlong
    _choice: bytearray

    def __init__(
        self,
        keys: KeyMap,
        *,
        mapped_to: cython.longlong,
        end: cython.longlong,
        producers: dict,
        now_ms: cython.longlong,
        horizon_ms: cython.longlong,
        decompressed_bytes_max: cython.longlong,
    ) -> None:
        self.out = bytearray()
        self.read = self.kept = 0
        self._keys = keys
        self._mapped_to = mapped_to
        self._end = end
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._decompressed_bytes_max = decompressed_bytes_max
        self._choice = bytearray()

    def run(self, data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> int:
        """Filter the batches from byte `at` on and return where it stopped.

        It stops where a batch is cut short, and before a batch of a transaction or a control batch: whether those count
        only the caller knows.
        """
        b: cython.p_const_uchar = _memory(data)
        head: cython.p_const_uchar
        size: cython.Py_ssize_t = len(data)
        batch_size: cython.Py_ssize_t
        if cython.compiled:
            self._keys._point()
        while size - at >= _HEADER_BYTES:
            head = b + at if cython.compiled else b[at:]
            batch_size = _checked_size(head, size - at, at)
            if batch_size == 0 or head[FLAGS_AT] & (TRANSACTIONAL | CONTROL):
                break
            self._filter(data, head, at, batch_size, False, False)
            at += batch_size
        return at

    def filter_batch(
        self,
        data: cython.const[cython.uchar][::1],
        at: cython.Py_ssize_t,
        *,
        is_aborted: cython.bint,
        is_idle_marker: cython.bint,
    ) -> int:
        """Filter one batch of a transaction or control batch; return where it ends, or `at` if it is cut short.

        An idle marker ends a transaction of which nothing is left.
        """
        b: cython.p_const_uchar = _memory(data)
        head: cython.p_const_uchar
        batch_size: cython.Py_ssize_t
        has_expired: cython.bint
        if len(data) - at < HEADER_BYTES:
            return at
        if cython.compiled:
            self._keys._point()
        head = b + at if cython.compiled else b[at:]
        batch_size = _checked_size(head, len(data) - at, at)
        if batch_size > 0:
            has_expired = head[FLAGS_AT] & DELETE_HORIZON != 0 and _int64(head, BASE_TIMESTAMP_AT) <= self._now_ms
            self._filter(data, head, at, batch_size, is_aborted or (is_idle_marker and has_expired), is_idle_marker)
        return at + batch_size

    @cython.cfunc
    def _must_stay(self, head: cython.p_const_uchar) -> cython.bint:
        """Return True for a batch that stays even if nothing is left in it."""
        producer_id: cython.longlong = _int64(head, PRODUCER_ID_AT)
        last_offset: cython.longlong = _int64(head, 0) + _int32(head, LAST_DELTA_AT)
        if last_offset + 1 == self._end:
            return True
        if producer_id < 0:
            return False
        known = self._producers.get(producer_id)
        if known is None:
            return False
        if known[0] >= 0:
            return known[0] == last_offset
        return head[FLAGS_AT] & CONTROL != 0 and known[1] == _int32(head, PRODUCER_EPOCH_AT) >> 16

    @cython.cfunc
    def _filter(
        self,
        data: cython.const[cython.uchar][::1],
        head: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        batch_size: cython.Py_ssize_t,
        is_discarded: cython.bint,
        is_idle_marker: cython.bint,
    ) -> cython.void:
        body: cython.const[cython.uchar][::1]
        plain: cython.p_const_uchar = head
        begin: cython.Py_ssize_t = HEADER_BYTES
        end: cython.Py_ssize_t = batch_size
        found = cython.declare(cython.longlong[5])
        choice: cython.p_uchar
        count: cython.longlong = _int32(head, COUNT_AT)
        stays: cython.bint = self._must_stay(head)
        self.read += count
        if is_discarded or count == 0:
            if stays:
                self._write_empty(head)
            return
        if head[FLAGS_AT] & 7:
            body = codecs.decompress(
                head[FLAGS_AT] & 7, data[at + HEADER_BYTES : at + batch_size], bytes_max=self._decompressed_bytes_max
            )
            plain = _memory(body)
            begin = 0
            end = len(body)
        _checked_count(head, end - begin)
        _room(self._choice, cython.cast(cython.Py_ssize_t, count), False)
        choice = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._choice)) if cython.compiled else self._choice
        with cython.nogil:
            _choose(self._keys, self._mapped_to, self._now_ms, head, plain, begin, end, choice, found)
        if found[0] >= 0:
            raise Malformed(f"record {found[0]} of the batch of offset {_int64(head, 0)} is broken")
        self.kept += found[1]
        if found[1] == 0:
            if stays:
                self._write_empty(head)
        elif found[1] == count and (head[FLAGS_AT] & DELETE_HORIZON or not (found[2] or is_idle_marker)):
            self.out += data[at : at + batch_size]
        else:
            self._write(head, plain, begin, end, choice, found, found[2] != 0 or is_idle_marker)

    @cython.cfunc
    def _write_empty(self, head: cython.p_const_uchar) -> cython.void:
        """Write a header without records, as Kafka leaves it: no codec, no horizon, no base timestamp."""
        batch: bytearray = bytearray(HEADER_BYTES)
        out: cython.p_uchar
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(batch)) if cython.compiled else batch
        _copy(out, 0, head, 0, HEADER_BYTES)
        _write_int32(out, LENGTH_AT, HEADER_BYTES - 12)
        out[FLAGS_AT] = head[FLAGS_AT] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
        _write_int64(out, BASE_TIMESTAMP_AT, -1)
        _write_int32(out, COUNT_AT, 0)
        _write_int32(out, CRC_AT, crc32c(batch, 21, HEADER_BYTES - 21))
        self.out += batch

    @cython.cfunc
    def _write(
        self,
        head: cython.p_const_uchar,
        plain: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        choice: cython.p_uchar,
        found: cython.p_longlong,
        has_deletes: cython.bint,
    ) -> cython.void:
        """Write the batch with the records that were chosen; keep what its producer or a reader relies on."""
        batch: bytearray = bytearray(HEADER_BYTES)
        out: cython.p_uchar
        size: cython.Py_ssize_t
        has_horizon: cython.bint = has_deletes or head[FLAGS_AT] & DELETE_HORIZON != 0
        base_timestamp: cython.longlong = found[3]
        if has_horizon:
            base_timestamp = _int64(head, BASE_TIMESTAMP_AT) if head[FLAGS_AT] & DELETE_HORIZON else self._horizon_ms
        # A record's size and timestamp may each take more bytes than before.
        _room(batch, HEADER_BYTES + (end - begin) + 16 * cython.cast(cython.Py_ssize_t, found[1]), False)
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(batch)) if cython.compiled else batch
        with cython.nogil:
            size = _write_chosen(head, plain, begin, end, choice, base_timestamp, out)
        del batch[size:]
        if head[FLAGS_AT] & 7:
            batch[HEADER_BYTES:] = codecs.compress(head[FLAGS_AT] & 7, memoryview(batch)[HEADER_BYTES:].toreadonly())
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(batch)) if cython.compiled else batch
        _copy(out, 0, head, 0, HEADER_BYTES)
        _write_int32(out, LENGTH_AT, len(batch) - 12)
        if has_horizon:
            out[FLAGS_AT] = head[FLAGS_AT] | DELETE_HORIZON
        _write_int64(out, BASE_TIMESTAMP_AT, base_timestamp)
        if not head[FLAGS_AT] & LOG_APPEND_TIME:
            _write_int64(out, MAX_TIMESTAMP_AT, found[4])
        _write_int32(out, COUNT_AT, found[1])
        _write_int32(out, CRC_AT, crc32c(batch, 21, len(batch) - 21))
        self.out += batch


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _choose(
    keys: KeyMap,
    mapped_to: cython.longlong,
    now_ms: cython.longlong,
    head: cython.p_const_uchar,
    b: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    choice: cython.p_uchar,
    found: cython.p_longlong,
) -> cython.void:
    """Mark the records that stay.

    Found: 0 the broken record or -1, 1 how many stay, 2 how many of them have no value, 3 the timestamp of the first of
    them, 4 their largest.
    """
    at = cython.declare(cython.Py_ssize_t[1])
    field = cython.declare(cython.longlong[8])
    block = cython.declare(cython.longlong[7 * 32])
    i: cython.longlong
    n: cython.Py_ssize_t = 0
    offset: cython.longlong
    count: cython.longlong = _int32(head, COUNT_AT)
    is_control: cython.bint = head[FLAGS_AT] & CONTROL != 0
    is_log_append_time: cython.bint = head[FLAGS_AT] & LOG_APPEND_TIME != 0
    keeps_tombstones: cython.bint = head[FLAGS_AT] & DELETE_HORIZON == 0 or now_ms < _int64(head, BASE_TIMESTAMP_AT)
    at[0] = begin
    found[0] = -1
    found[1] = 0
    found[2] = 0
    found[3] = -1
    found[4] = -1
    for i in range(count):
        if not _record(b, at, end, field):
            found[0] = i
            return
        offset = _int64(head, 0) + field[1]
        block[n] = field[2]
        block[n + 1] = field[3]
        # What is known without a look at the map; else the offset that the map must not exceed.
        if is_control or offset > mapped_to:
            block[n + 3] = _LONG_MAX
        elif field[3] < 0 or (field[5] < 0 and not keeps_tombstones):
            block[n + 3] = -2
        else:
            block[n + 3] = offset
            block[n + 2] = cython.cast(cython.longlong, keys._hash(b, field[2], field[3]))
        block[n + 4] = (
            _int64(head, MAX_TIMESTAMP_AT) if is_log_append_time else _sum(_int64(head, BASE_TIMESTAMP_AT), field[0])
        )
        block[n + 5] = field[5]
        block[n + 6] = i
        n += 7
        if n == 7 * 32:
            _choose_block(keys, b, block, n, choice, found)
            n = 0
    _choose_block(keys, b, block, n, choice, found)
    if at[0] != end:
        found[0] = count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _choose_block(
    keys: KeyMap,
    b: cython.p_const_uchar,
    block: cython.p_longlong,
    size: cython.Py_ssize_t,
    choice: cython.p_uchar,
    found: cython.p_longlong,
) -> cython.void:
    n: cython.Py_ssize_t
    limit: cython.longlong
    stays: cython.bint
    for n in range(0, size, 7):
        if 0 <= block[n + 3] < _LONG_MAX:
            keys._fetch_entry(cython.cast(cython.ulonglong, block[n + 2]))
    for n in range(0, size, 7):
        limit = block[n + 3]
        stays = limit >= 0
        if stays and limit < _LONG_MAX:
            stays = keys._newest(b, block[n], block[n + 1], cython.cast(cython.ulonglong, block[n + 2])) <= limit
        choice[block[n + 6]] = stays
        if stays:
            if found[1] == 0:
                found[3] = block[n + 4]
            if block[n + 4] > found[4]:
                found[4] = block[n + 4]
            found[1] += 1
            if block[n + 5] < 0:
                found[2] += 1


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _write_chosen(
    head: cython.p_const_uchar,
    b: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    choice: cython.p_uchar,
    base_timestamp: cython.longlong,
    out: cython.p_uchar,
) -> cython.Py_ssize_t:
    """Write the chosen records behind a header, with times counted from another base; return where they end."""
    at = cython.declare(cython.Py_ssize_t[1])
    delta = cython.declare(cython.uchar[10])
    i: cython.longlong
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    difference: cython.longlong
    to: cython.Py_ssize_t = _HEADER_BYTES
    is_log_append_time: cython.bint = head[FLAGS_AT] & LOG_APPEND_TIME != 0
    at[0] = begin
    for i in range(_int32(head, COUNT_AT)):
        stop = cython.cast(cython.Py_ssize_t, _varint(b, at, end, 5))
        stop += at[0]
        if choice[i]:
            at[0] += 1
            difference = _sum(_int64(head, BASE_TIMESTAMP_AT), _varint(b, at, stop, 10))
            if is_log_append_time:
                difference = _int64(head, MAX_TIMESTAMP_AT)
            difference = _sum(difference, -base_timestamp)
            size = _write_varint(delta, 0, difference)
            to = _write_varint(out, to, 1 + size + stop - at[0])
            out[to] = 0
            to = _copy(out, to + 1, delta, 0, size)
            to = _copy(out, to, b, at[0], stop - at[0])
        at[0] = stop
    return to
