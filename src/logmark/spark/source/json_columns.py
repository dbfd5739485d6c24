# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The walk over JSON texts that turns the fields of a schema into columns, in one pass and without a tree.

Compiled: Python in Cython's pure mode, which also runs uncompiled (slowly, with the same results).
No Python object is made per record; only a text that is refused costs one, for the sentence that says why. All of a
text is checked, also what no column wants. A text is taken whole or not at all: where it is refused, what its fields
have added is taken back.
"""

import array
import base64
import decimal
import re
from enum import IntEnum

import cython

if cython.compiled:
    from cython.cimports.cpython import array
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcmp, memcpy, memset

DEPTH_MAX = 1000
FLOAT_TOO_LARGE = 3.4028235677973366e38  # what is not below it would become infinite


class Kind(IntEnum):
    """What a column holds."""

    STRING = 0
    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    DECIMAL = 7
    BOOLEAN = 8
    TIMESTAMP = 9
    DATE = 10
    BINARY = 11
    STRUCT = 12
    ARRAY = 13
    MAP = 14


# The same as C integers.
_STRING = cython.declare(cython.int, Kind.STRING)
_BYTE = cython.declare(cython.int, Kind.BYTE)
_SHORT = cython.declare(cython.int, Kind.SHORT)
_INT = cython.declare(cython.int, Kind.INT)
_LONG = cython.declare(cython.int, Kind.LONG)
_FLOAT = cython.declare(cython.int, Kind.FLOAT)
_DOUBLE = cython.declare(cython.int, Kind.DOUBLE)
_DECIMAL = cython.declare(cython.int, Kind.DECIMAL)
_BOOLEAN = cython.declare(cython.int, Kind.BOOLEAN)
_TIMESTAMP = cython.declare(cython.int, Kind.TIMESTAMP)
_DATE = cython.declare(cython.int, Kind.DATE)
_BINARY = cython.declare(cython.int, Kind.BINARY)
_STRUCT = cython.declare(cython.int, Kind.STRUCT)
_ARRAY = cython.declare(cython.int, Kind.ARRAY)
_MAP = cython.declare(cython.int, Kind.MAP)
_DEPTH_MAX = cython.declare(cython.int, DEPTH_MAX)
# As large as these, a literal would be a Python object.
_ONES = cython.declare(cython.ulonglong, 0x0101010101010101)
_SPACES = cython.declare(cython.ulonglong, 0x2020202020202020)
_QUOTES = cython.declare(cython.ulonglong, 0x2222222222222222)
_BACKSLASHES = cython.declare(cython.ulonglong, 0x5C5C5C5C5C5C5C5C)
_TOP_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_DAY_MICROS = cython.declare(cython.longlong, 86_400_000_000)
_HOUR_MICROS = cython.declare(cython.longlong, 3_600_000_000)
_SECONDS_MIN = cython.declare(cython.longlong, -62_135_596_800)
_SECONDS_MAX = cython.declare(cython.longlong, 253_402_300_799)
_LONG_MAX = cython.declare(cython.longlong, 2**63 - 1)
_EXACT_MAX = cython.declare(cython.ulonglong, 1 << 53)
_FLOAT_TOO_LARGE = cython.declare(cython.double, FLOAT_TOO_LARGE)

_TYPECODES = {
    Kind.BYTE: "b", Kind.SHORT: "h", Kind.INT: "i", Kind.LONG: "q", Kind.FLOAT: "f", Kind.DOUBLE: "d",
    Kind.DECIMAL: "q", Kind.TIMESTAMP: "q", Kind.DATE: "i",
}  # fmt: skip
_MOST = {Kind.BYTE: 2**7 - 1, Kind.SHORT: 2**15 - 1, Kind.INT: 2**31 - 1, Kind.LONG: 2**63 - 1}
_NOT_FINITE = {
    b"NaN": float("nan"), b"Infinity": float("inf"), b"+Infinity": float("inf"), b"-Infinity": float("-inf"),
    b"INF": float("inf"), b"+INF": float("inf"), b"-INF": float("-inf"),
}  # fmt: skip
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
_ESCAPED = {b'"': 34, b"\\": 92, b"/": 47, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9}

_tens = cython.declare(cython.double[23])
_powers = cython.declare(cython.longlong[19])
_escaped = cython.declare(cython.int[256])  # what a letter after a backslash stands for; 0 if nothing
_month_days = cython.declare(cython.int[13])


def _fill_tables() -> None:
    i: cython.int
    for i in range(23):
        _tens[i] = float(f"1e{i}")
    for i in range(19):
        _powers[i] = int(f"1{'0' * i}")
    for i in range(256):
        _escaped[i] = _ESCAPED.get(bytes([i]), 0)
    for i in range(13):
        _month_days[i] = 31 if i in (1, 3, 5, 7, 8, 10, 12) else 30


_fill_tables()


class Refused(Exception):
    """Why a text is refused, and at which byte of all texts."""


@cython.final
@cython.cclass
class Node:
    """One column, and below it those of its fields, its elements, or its keys and values; in Arrow's layout.

    `offsets` (32 bits) are there for texts, bytes, arrays and maps, `data` for all but structs, arrays and maps; a
    decimal is two numbers of 64 bits; booleans are bits. `validity` is None if nothing is null.
    """

    kind = cython.declare(cython.int, visibility="readonly")
    name = cython.declare(bytes, visibility="readonly")
    wanted = cython.declare(object, visibility="readonly")
    children = cython.declare(list, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    nulls = cython.declare(cython.Py_ssize_t, visibility="readonly")
    validity = cython.declare(object, visibility="readonly")
    offsets = cython.declare(object, visibility="readonly")
    data = cython.declare(object, visibility="readonly")
    precision: cython.int
    scale: cython.int
    most: cython.longlong
    size: cython.Py_ssize_t
    cells: cython.Py_ssize_t
    room: cython.Py_ssize_t
    current: cython.Py_ssize_t  # the child that is being read, for the path in a sentence
    guesses: object  # which child came at each index of the last object
    _guesses: cython.p_int
    _name: cython.p_const_uchar
    _name_size: cython.Py_ssize_t
    _bits: cython.p_uchar
    _ends: cython.p_int
    _bytes: cython.p_uchar
    _data_b: cython.p_schar
    _data_h: cython.p_short
    _data_i: cython.p_int
    _data_q: cython.p_longlong
    _data_f: cython.p_float
    _data_d: cython.p_double

    def __init__(self, kind, *, name=b"", wanted="", children=(), precision=0, scale=0) -> None:
        self.kind = kind
        self.name = name
        self.wanted = wanted
        self.children = list(children)
        self.precision = precision
        self.scale = scale
        self.most = _MOST.get(kind, 0)
        if self.kind == _DECIMAL:
            self.most = 10**precision - 1 if precision <= 18 else 2**63 - 1
        self.guesses = array.array("i", range(max(1, len(self.children))))
        if cython.compiled:
            self._name = self.name
            self._guesses = cython.cast(array.array, self.guesses).data.as_ints
        else:
            self._name, self._guesses = memoryview(self.name), self.guesses
        self._name_size = len(name)
        self.count = self.size = 0
        self.begin(0)

    @cython.cfunc
    def begin(self, cells: cython.Py_ssize_t) -> cython.void:
        """Empty, in new memory, with as much room as was needed last: the old memory may belong to somebody now."""
        kind: cython.int = self.kind
        size: cython.Py_ssize_t = self.size + (self.size >> 3) + 64
        cells = max(cells, self.count + (self.count >> 3)) + 8
        self.count = self.nulls = self.size = self.cells = self.room = 0
        self.current = -1
        self.validity = bytearray()
        self.offsets = array.array("i", [0]) if kind in (_STRING, _BINARY, _ARRAY, _MAP) else None
        if kind in (_STRING, _BINARY, _BOOLEAN):
            self.data = bytearray()
        else:
            self.data = array.array(_TYPECODES[kind]) if kind < _STRUCT else None
        self.grow(cells)
        if kind in (_STRING, _BINARY):
            self.widen(size)

    @cython.cfunc
    def grow(self, cells: cython.Py_ssize_t) -> cython.void:
        """Room for so many cells."""
        old: cython.Py_ssize_t = len(self.validity)
        new: cython.Py_ssize_t = (cells + 7) >> 3
        self.cells = new << 3
        _resize(self.validity, new)
        if cython.compiled:
            self._bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.validity))
            memset(self._bits + old, 255, new - old)
        else:
            self.validity[old:] = b"\xff" * (new - old)
            self._bits = self.validity
        if self.offsets is not None:
            _lengthen(self.offsets, self.cells + 1)
            self._ends = cython.cast(array.array, self.offsets).data.as_ints if cython.compiled else self.offsets
        if self.kind == _BOOLEAN:
            _resize(self.data, new)
            self._bytes = (
                cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data)) if cython.compiled else self.data
            )
        elif self.data is not None and self.offsets is None:
            _lengthen(self.data, self.cells << 1 if self.kind == _DECIMAL else self.cells)
            self.point()

    @cython.cfunc
    def point(self) -> cython.void:
        """Points to the numbers where they are now."""
        if cython.compiled:
            self._data_b = cython.cast(array.array, self.data).data.as_schars
            self._data_h = cython.cast(array.array, self.data).data.as_shorts
            self._data_i = cython.cast(array.array, self.data).data.as_ints
            self._data_q = cython.cast(array.array, self.data).data.as_longlongs
            self._data_f = cython.cast(array.array, self.data).data.as_floats
            self._data_d = cython.cast(array.array, self.data).data.as_doubles
        else:
            self._data_b = self._data_h = self._data_i = self._data_q = self._data_f = self._data_d = self.data

    @cython.cfunc
    def widen(self, size: cython.Py_ssize_t) -> cython.void:
        """Room for so many bytes of text."""
        self.room = max(size, self.room + (self.room >> 1))
        _resize(self.data, self.room)
        self._bytes = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data)) if cython.compiled else self.data

    @cython.cfunc
    @cython.inline
    def add(self) -> cython.void:
        """Allocate one more cell, which the caller fills."""
        if self.count >= self.cells:
            self.grow(self.cells << 1)

    @cython.cfunc
    @cython.inline
    def add_bytes(self, b: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """One more cell of these bytes."""
        self.add()
        if self.size + size > self.room:
            self.widen(self.size + size)
        if cython.compiled:
            memcpy(self._bytes + self.size, b + at, size)
        else:
            self._bytes[self.size : self.size + size] = b[at : at + size]
        self.size += size
        self.count += 1
        self._ends[self.count] = cython.cast(cython.int, self.size)

    @cython.cfunc
    def add_null(self) -> cython.void:
        """One more cell that is null, and below a struct one in each field."""
        n: cython.Py_ssize_t = self.count
        child: Node
        self.add()
        self._bits[n >> 3] &= 255 ^ (1 << (n & 7))
        self.nulls += 1
        self.count += 1
        if self.kind == _STRUCT:
            for item in self.children:
                child = cython.cast(Node, item)
                child.add_null()
        elif self.offsets is not None:
            self._ends[n + 1] = self._ends[n]
        else:
            self.clear(n)

    @cython.cfunc
    def clear(self, n: cython.Py_ssize_t) -> cython.void:
        """Set a null number to zero, so that old memory never shows."""
        kind: cython.int = self.kind
        if kind == _BOOLEAN:
            self._bytes[n >> 3] &= 255 ^ (1 << (n & 7))
        elif kind == _DECIMAL:
            self._data_q[2 * n] = self._data_q[2 * n + 1] = 0
        elif kind in (_LONG, _TIMESTAMP):
            self._data_q[n] = 0
        elif kind in (_INT, _DATE):
            self._data_i[n] = 0
        elif kind == _SHORT:
            self._data_h[n] = 0
        elif kind == _BYTE:
            self._data_b[n] = 0
        elif kind == _FLOAT:
            self._data_f[n] = 0
        else:
            self._data_d[n] = 0

    @cython.cfunc
    def cut(self, n: cython.Py_ssize_t) -> cython.void:
        """Remove all cells from `n` on, also those below an unfinished one."""
        i: cython.Py_ssize_t
        child: Node
        self.current = -1
        for i in range(n, self.count):
            if not self._bits[i >> 3] >> (i & 7) & 1:
                self._bits[i >> 3] |= 1 << (i & 7)
                self.nulls -= 1
        self.count = min(self.count, n)
        if self.kind == _STRING or self.kind == _BINARY:
            self.size = self._ends[n]
        for item in self.children:
            child = cython.cast(Node, item)
            child.cut(n if self.kind == _STRUCT else self._ends[n])

    @cython.cfunc
    def end(self) -> cython.void:
        """Free the memory that was not needed."""
        child: Node
        bits: cython.Py_ssize_t = (self.count + 7) >> 3
        if self.nulls == 0:
            self.validity = None
        else:
            del self.validity[bits:]
        if self.offsets is not None:
            del self.offsets[self.count + 1 :]
        if self.kind == _STRING or self.kind == _BINARY:
            del self.data[self.size :]
        elif self.kind == _BOOLEAN:
            del self.data[bits:]
        elif self.data is not None:
            del self.data[self.count << 1 if self.kind == _DECIMAL else self.count :]
        for item in self.children:
            child = cython.cast(Node, item)
            child.end()

    @cython.cfunc
    def find(
        self,
        b: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        member: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Return which child has this name, -1 if none; objects of a topic mostly have their names in one order."""
        size: cython.Py_ssize_t = stop - at
        i: cython.Py_ssize_t
        child: Node
        if member < len(self.children):
            i = self._guesses[member]
            child = cython.cast(Node, self.children[i])
            if child._name_size == size and _is_same(child._name, 0, b, at, size):
                return i
        for i in range(len(self.children)):
            child = cython.cast(Node, self.children[i])
            if child._name_size == size and _is_same(child._name, 0, b, at, size):
                if member < len(self.children):
                    self._guesses[member] = cython.cast(cython.int, i)
                return i
        return -1

    def path(self) -> str:
        """Where the walk is: the names of the fields from here down."""
        child: Node
        if self.current < 0:
            return ""
        child = cython.cast(Node, self.children[self.current])
        here = f"[{child.count - self._ends[self.count]}]" if self.kind == _ARRAY else child.name.decode()
        below = child.path()
        return f"{here}{'.' if here and below and not below.startswith('[') else ''}{below}"

    def decode(self, data: cython.const[cython.uchar][::1], offsets: cython.int[::1], validity) -> list:
        """Read every text into the columns of this struct; return (index, reason) of each refused text.

        A null, and a text that is `null`, is a null without a reason.
        """
        b: cython.p_const_uchar = _memory(data)
        i: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        count: cython.Py_ssize_t = len(offsets) - 1
        refused: list = []
        if count < 0 or offsets[count] > len(data):
            raise IndexError(f"{count} texts do not lie in {len(data)} bytes")
        _begin(self, count)
        for i in range(count):
            begin = offsets[i]
            end = offsets[i + 1]
            if validity is not None and not validity[i >> 3] >> (i & 7) & 1:
                self.add_null()
                continue
            try:
                _whole(self, b, begin, end)
            except Refused as error:
                path = self.path()
                what, at = error.args
                refused.append((i, f"{path}{': ' if path else ''}{what}, at byte {at - begin}"))
                self.cut(i)
                self.add_null()
        self.end()
        return refused


@cython.cfunc
def _begin(node: Node, cells: cython.Py_ssize_t) -> cython.void:
    child: Node
    node.begin(cells)
    for item in node.children:
        child = cython.cast(Node, item)
        _begin(child, cells if node.kind == _STRUCT else 0)


@cython.cfunc
@cython.inline
def _memory(data: cython.const[cython.uchar][::1]) -> cython.p_const_uchar:
    """Return the bytes of a view, as a pointer if compiled; the caller holds the view while it reads them."""
    if cython.compiled:
        return cython.address(data[0]) if data.shape[0] > 0 else cython.NULL
    else:
        return memoryview(data)


@cython.cfunc
def _resize(column: bytearray, size: cython.Py_ssize_t) -> cython.void:
    if cython.compiled:
        PyByteArray_Resize(column, size)
    else:
        column.extend(bytes(max(0, size - len(column))))


@cython.cfunc
def _lengthen(column: object, size: cython.Py_ssize_t) -> cython.void:
    if cython.compiled:
        array.resize(column, size)
    else:
        column.extend([0] * max(0, size - len(column)))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_same(
    a: cython.p_const_uchar,
    i: cython.Py_ssize_t,
    b: cython.p_const_uchar,
    j: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    if cython.compiled:
        return memcmp(a + i, b + j, size) == 0
    else:
        return a[i : i + size] == b[j : j + size]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_digit(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    return at < end and b[at] >= ord("0") and b[at] <= ord("9")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _space(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where something else than white space begins."""
    while at < end and (b[at] == ord(" ") or b[at] == ord("\n") or b[at] == ord("\r") or b[at] == ord("\t")):
        at += 1
    return at


@cython.cfunc
@cython.exceptval(-1)
def _wide_character(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the end of a character of more than one byte."""
    c: cython.int = b[at]
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t = 2 if c < 0xE0 else 3 if c < 0xF0 else 4
    second: cython.int
    if c < 0xC2 or c > 0xF4 or size > end - at:
        raise Refused("bytes that are not UTF-8", at)
    for i in range(1, size):
        if b[at + i] & 0xC0 != 0x80:
            raise Refused("bytes that are not UTF-8", at)
    second = b[at + 1]
    if (
        (c == 0xE0 and second < 0xA0)
        or (c == 0xED and second > 0x9F)
        or (c == 0xF0 and second < 0x90)
        or (c == 0xF4 and second > 0x8F)
    ):
        raise Refused("bytes that are not UTF-8", at)
    return at + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hex(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Return the number of four hexadecimal digits, -1 if they are none."""
    i: cython.Py_ssize_t
    c: cython.int
    value: cython.int = 0
    if end - at < 4:
        return -1
    for i in range(at, at + 4):
        c = b[i]
        if c >= ord("0") and c <= ord("9"):
            c -= ord("0")
        elif c >= ord("a") and c <= ord("f"):
            c -= ord("a") - 10
        elif c >= ord("A") and c <= ord("F"):
            c -= ord("A") - 10
        else:
            return -1
        value = (value << 4) | c
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _plain(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Skip plain characters eight at a time; stop before eight that may contain another one."""
    x: cython.ulonglong = 0
    if cython.compiled:
        while end - at >= 8:
            memcpy(cython.address(x), b + at, 8)
            # In some byte the highest bit is set: it is not ASCII, below 32, a quote, or a backslash.
            if (x | (x - _SPACES) | ((x ^ _QUOTES) - _ONES) | ((x ^ _BACKSLASHES) - _ONES)) & _TOP_BITS:
                break
            at += 8
    return at


@cython.cfunc
@cython.exceptval(-1)
def _string(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return twice the index of the quote that ends the string at `at`, plus 1 if it has escapes."""
    c: cython.int
    escaped: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t = at
    at = _plain(b, at, end)
    while at < end:
        c = b[at]
        if c == ord('"'):
            return (at << 1) | escaped
        if c >= 128:
            at = _wide_character(b, at, end)
        elif c == ord("\\"):
            escaped = 1
            if at + 1 < end and b[at + 1] == ord("u"):
                if _hex(b, at + 2, end) < 0:
                    raise Refused("an escape that is none", at)
                at += 6
            elif at + 1 < end and _escaped[b[at + 1]]:
                at += 2
            else:
                raise Refused("an escape that is none", at)
        elif c < 32:
            raise Refused("a control character in a string", at)
        else:
            at += 1
    raise Refused("a string without an end", begin - 1)


@cython.cfunc
@cython.exceptval(check=False)
def _unescape(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t, out: cython.p_uchar, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a string that `_string` has checked, with its escapes decoded; it is never longer than its source.

    Half of a surrogate pair is no character: it becomes the replacement character.
    """
    c: cython.int
    low: cython.int
    while at < stop:
        c = b[at]
        if c != ord("\\"):
            out[n] = c
            n += 1
            at += 1
            continue
        if b[at + 1] != ord("u"):
            out[n] = _escaped[b[at + 1]]
            n += 1
            at += 2
            continue
        c = _hex(b, at + 2, stop)
        at += 6
        if c >= 0xD800 and c <= 0xDFFF:
            low = _hex(b, at + 2, stop) if stop - at >= 6 and b[at] == ord("\\") and b[at + 1] == ord("u") else -1
            if c <= 0xDBFF and low >= 0xDC00 and low <= 0xDFFF:
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                at += 6
            else:
                c = 0xFFFD
        n = _write_character(c, out, n)
    return n


@cython.cfunc
@cython.exceptval(check=False)
def _write_character(c: cython.int, out: cython.p_uchar, n: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Write a character as UTF-8 and return its end."""
    if c < 0x80:
        out[n] = c
        return n + 1
    if c < 0x800:
        out[n] = 0xC0 | (c >> 6)
        out[n + 1] = 0x80 | (c & 63)
        return n + 2
    if c < 0x10000:
        out[n] = 0xE0 | (c >> 12)
        out[n + 1] = 0x80 | ((c >> 6) & 63)
        out[n + 2] = 0x80 | (c & 63)
        return n + 3
    out[n] = 0xF0 | (c >> 18)
    out[n + 1] = 0x80 | ((c >> 12) & 63)
    out[n + 2] = 0x80 | ((c >> 6) & 63)
    out[n + 3] = 0x80 | (c & 63)
    return n + 4


@cython.cfunc
def _content(b: cython.p_const_uchar, at: cython.Py_ssize_t, found: cython.Py_ssize_t) -> bytes:
    """Return the bytes of a string that `_string` has found, with escapes decoded; slow, for rare uses."""
    stop: cython.Py_ssize_t = found >> 1
    out: bytearray
    n: cython.Py_ssize_t
    if not found & 1:
        return b[at:stop] if cython.compiled else bytes(b[at:stop])
    out = bytearray(stop - at)
    if cython.compiled:
        n = _unescape(b, at, stop, cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)), 0)
    else:
        n = _unescape(b, at, stop, out, 0)
    return bytes(out[:n])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _digits_end(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    while _is_digit(b, at, end):
        at += 1
    return at


@cython.cfunc
@cython.exceptval(-1)
def _number(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return twice the end of the number at `at`, plus 1 if it has a fraction or an exponent."""
    begin: cython.Py_ssize_t = at
    marked: cython.Py_ssize_t = 0
    if at < end and b[at] == ord("-"):
        at += 1
    if not _is_digit(b, at, end):
        raise Refused("a number without digits", begin)
    at = at + 1 if b[at] == ord("0") else _digits_end(b, at, end)
    if at < end and b[at] == ord("."):
        marked = 1
        at += 1
        if not _is_digit(b, at, end):
            raise Refused("a number without digits after its point", begin)
        at = _digits_end(b, at, end)
    if at < end and (b[at] == ord("e") or b[at] == ord("E")):
        marked = 1
        at += 1
        if at < end and (b[at] == ord("+") or b[at] == ord("-")):
            at += 1
        if not _is_digit(b, at, end):
            raise Refused("a number without digits in its exponent", begin)
        at = _digits_end(b, at, end)
    return (at << 1) | marked


@cython.cfunc
@cython.exceptval(-1)
def _word(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, word: bytes) -> cython.Py_ssize_t:
    """Return the end of the word that must be at `at`."""
    size: cython.Py_ssize_t = len(word)
    if size > end - at or not _is_same(b, at, word, 0, size):
        raise Refused("no JSON value", at)
    return at + size


@cython.cfunc
@cython.exceptval(-1)
def _other(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the end of a value that is no string, object or array."""
    c: cython.int = b[at]
    if c == ord("t"):
        return _word(b, at, end, b"true")
    if c == ord("f"):
        return _word(b, at, end, b"false")
    if c == ord("n"):
        return _word(b, at, end, b"null")
    if _is_digit(b, at, end) or (c == ord("-") and _is_digit(b, at + 1, end)):
        return _number(b, at, end) >> 1
    return _infinite(b, at, end)


@cython.cfunc
@cython.exceptval(-1)
def _infinite(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the end of NaN, Infinity or -Infinity: not JSON, but many programs write them, Python among them."""
    c: cython.int = b[at]
    if c == ord("N"):
        return _word(b, at, end, b"NaN")
    if c == ord("-"):
        return _word(b, at, end, b"-Infinity")
    return _word(b, at, end, b"Infinity")


@cython.cfunc
@cython.exceptval(-1)
def _colon(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the value begins, after the colon that must come."""
    at = _space(b, at, end)
    if at >= end or b[at] != ord(":"):
        raise Refused("no colon after a name", at)
    return _space(b, at + 1, end)


@cython.cfunc
@cython.exceptval(-1)
def _name(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return what `_string` returns for the name that must be at `at`."""
    if at >= end or b[at] != ord('"'):
        raise Refused("no name where one must be", at)
    return _string(b, at + 1, end)


@cython.cfunc
@cython.exceptval(-1)
def _next(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, close: cython.int
) -> cython.Py_ssize_t:
    """Return twice the start of the next member; after the last one, twice the end plus 1."""
    at = _space(b, at, end)
    if at < end and b[at] == ord(","):
        return _space(b, at + 1, end) << 1
    if at < end and b[at] == close:
        return ((at + 1) << 1) | 1
    raise Refused("the text ends too early" if at >= end else "neither a comma nor the end of the list of members", at)


@cython.cfunc
@cython.exceptval(-1)
def _opened(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Return what `_next` returns, for the first member of the object or array that opens at `at`."""
    if depth > _DEPTH_MAX:
        raise Refused(f"more than {DEPTH_MAX} values inside of each other", at)
    close: cython.int = b[at] + 2  # as in ASCII
    at = _space(b, at + 1, end)
    if at < end and b[at] == close:
        return ((at + 1) << 1) | 1
    return at << 1


@cython.cfunc
@cython.exceptval(-1)
def _passed(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Return the end of the value at `at`, which no column wants."""
    c: cython.int
    packed: cython.Py_ssize_t
    if at >= end:
        raise Refused("the text ends too early", at)
    c = b[at]
    if c == ord('"'):
        return (_string(b, at + 1, end) >> 1) + 1
    if c != ord("{") and c != ord("["):
        return _other(b, at, end)
    packed = _opened(b, at, end, depth)
    while not packed & 1:
        at = packed >> 1
        if c == ord("{"):
            at = _colon(b, (_name(b, at, end) >> 1) + 1, end)
        at = _passed(b, at, end, depth + 1)
        packed = _next(b, at, end, c + 2)
    return packed >> 1


@cython.cfunc
def _what(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> str:
    c: cython.int = b[at]
    if c == ord('"'):
        return "a string"
    if c == ord("{"):
        return "an object"
    if c == ord("["):
        return "an array"
    if c == ord("t") or c == ord("f"):
        return "a boolean"
    if c == ord("-") or _is_digit(b, at, end):
        return "a number"
    return "no JSON value"


@cython.cfunc
@cython.exceptval(-1)
def _unfit(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    raise Refused(f"{_what(b, at, end)} where {node.wanted} is wanted", at)


@cython.cfunc
@cython.exceptval(-1)
def _whole(root: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Read one text, which must be one value and nothing else."""
    at = _space(b, at, end)
    if at >= end:
        raise Refused("no JSON value", at)
    at = _space(b, _value(root, b, at, end, 1), end)
    if at < end:
        raise Refused("more after the end of the value", at)
    return at


@cython.cfunc
@cython.exceptval(-1)
def _value(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Read the value at `at` into the column and return its end."""
    kind: cython.int = node.kind
    if at >= end:
        raise Refused("the text ends too early", at)
    if b[at] == ord("n"):
        at = _word(b, at, end, b"null")
        node.add_null()
        return at
    if kind == _STRING:
        return _text(node, b, at, end, depth)
    if kind <= _LONG:
        return _integer(node, b, at, end)
    if kind <= _DOUBLE:
        return _real(node, b, at, end)
    if kind <= _BOOLEAN:
        return _decimal(node, b, at, end) if kind == _DECIMAL else _boolean(node, b, at, end)
    if kind < _STRUCT:
        return _bytes(node, b, at, end) if kind == _BINARY else _time(node, b, at, end)
    if kind == _STRUCT:
        return _struct(node, b, at, end, depth)
    return _array(node, b, at, end, depth) if kind == _ARRAY else _map(node, b, at, end, depth)


@cython.cfunc
@cython.exceptval(-1)
def _text(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Read a string; any other value is read as its JSON text."""
    found: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if b[at] != ord('"'):
        stop = _passed(b, at, end, depth)
        node.add_bytes(b, at, stop - at)
        return stop
    at += 1
    found = _string(b, at, end)
    stop = found >> 1
    if not found & 1:
        node.add_bytes(b, at, stop - at)
        return stop + 1
    node.add()
    if node.size + stop - at > node.room:
        node.widen(node.size + stop - at)
    node.size = _unescape(b, at, stop, node._bytes, node.size)
    node.count += 1
    node._ends[node.count] = cython.cast(cython.int, node.size)
    return stop + 1


@cython.cfunc
@cython.exceptval(-1, check=True)
def _whole_number(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t, most: cython.longlong, wanted: object
) -> cython.longlong:
    """Return the number at `at`, which `_number` has found to have neither fraction nor exponent."""
    begin: cython.Py_ssize_t = at
    is_negative: cython.bint = b[at] == ord("-")
    value: cython.ulonglong = 0
    if is_negative:
        at += 1
    if stop - at > 19:
        raise Refused(f"a number beyond the range of {wanted}", begin)
    while at < stop:
        value = value * 10 + (b[at] - 48)
        at += 1
    if value > cython.cast(cython.ulonglong, most) + is_negative:
        raise Refused(f"a number beyond the range of {wanted}", begin)
    return cython.cast(cython.longlong, 0 - value) if is_negative else cython.cast(cython.longlong, value)


@cython.cfunc
@cython.exceptval(-1)
def _integer(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    found: cython.Py_ssize_t
    value: cython.longlong
    n: cython.Py_ssize_t = node.count
    kind: cython.int = node.kind
    if b[at] != ord("-") and not _is_digit(b, at, end):
        return _unfit(node, b, at, end)
    found = _number(b, at, end)
    if found & 1:
        raise Refused(f"a number with a fraction or an exponent where {node.wanted} is wanted", at)
    value = _whole_number(b, at, found >> 1, node.most, node.wanted)
    node.add()
    if kind == _LONG:
        node._data_q[n] = value
    elif kind == _INT:
        node._data_i[n] = value
    elif kind == _SHORT:
        node._data_h[n] = value
    else:
        node._data_b[n] = value
    node.count += 1
    return found >> 1


@cython.cfunc
@cython.exceptval(-1, check=True)
def _double(b: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.double:
    """Return the nearest double."""
    begin: cython.Py_ssize_t = at
    is_negative: cython.bint = b[at] == ord("-")
    mantissa: cython.ulonglong = 0
    exponent: cython.int = 0
    is_fraction: cython.bint = False
    value: cython.double
    if is_negative:
        at += 1
    # Numbers of up to 53 bits and powers of ten up to 22 are exact, so one operation rounds once, rightly.
    if stop - at <= 19:
        while at < stop and (b[at] | 32) != ord("e"):
            if b[at] == ord("."):
                is_fraction = True
            else:
                mantissa = mantissa * 10 + (b[at] - 48)
                exponent -= is_fraction
            at += 1
        if at == stop and mantissa <= _EXACT_MAX:
            value = cython.cast(cython.double, mantissa)
            value = value / _tens[-exponent] if exponent else value
            return -value if is_negative else value
    return float(b[begin:stop]) if cython.compiled else float(bytes(b[begin:stop]))


@cython.cfunc
@cython.exceptval(-1)
def _real(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    c: cython.int = b[at]
    stop: cython.Py_ssize_t
    found: cython.Py_ssize_t
    value: cython.double
    if _is_digit(b, at, end) or (c == ord("-") and _is_digit(b, at + 1, end)):
        stop = _number(b, at, end) >> 1
        value = _double(b, at, stop)
        if abs(value) >= (_FLOAT_TOO_LARGE if node.kind == _FLOAT else float("inf")):
            raise Refused(f"a number beyond the range of {node.wanted}", at)
    elif c == ord('"'):
        found = _string(b, at + 1, end)
        stop = (found >> 1) + 1
        content = _content(b, at + 1, found)
        if content not in _NOT_FINITE:
            return _unfit(node, b, at, end)
        value = _NOT_FINITE[content]
    elif c == ord("N") or c == ord("I") or c == ord("-"):
        stop = _infinite(b, at, end)
        value = _NOT_FINITE[b[at:stop] if cython.compiled else bytes(b[at:stop])]
    else:
        return _unfit(node, b, at, end)
    node.add()
    if node.kind == _FLOAT:
        node._data_f[node.count] = value
    else:
        node._data_d[node.count] = value
    node.count += 1
    return stop


@cython.cfunc
@cython.exceptval(check=False)
def _scaled(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t, scale: cython.int, most: cython.longlong
) -> cython.longlong:
    """Return a number in units of its scale, rounded half away from zero, -1 if only `_exactly` can tell."""
    value: cython.longlong = 0
    digits: cython.int = 0
    fraction: cython.int = 0
    is_fraction: cython.bint = False
    rest: cython.longlong
    while at < stop:
        if b[at] == ord("."):
            is_fraction = True
        elif (b[at] | 32) == ord("e") or digits == 18:
            return -1
        else:
            value = value * 10 + (b[at] - 48)
            digits += 1
            fraction += is_fraction
        at += 1
    if fraction <= scale:
        if scale - fraction > 18 or value > most // _powers[scale - fraction]:
            return -1
        return value * _powers[scale - fraction]
    rest = value % _powers[fraction - scale]
    value = value // _powers[fraction - scale]
    if 2 * rest >= _powers[fraction - scale]:
        value += 1
    return value if value <= most else -1


def _exactly(text: bytes, precision: int, scale: int) -> int:
    """Return the number in units of its scale; raises ValueError if it is none, OverflowError if it does not fit."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    try:
        number = decimal.Decimal(text.decode())
    except decimal.InvalidOperation:  # an exponent of so many digits that no mantissa makes up for it
        mantissa, _, exponent = text.lower().partition(b"e")
        if mantissa.strip(b"+-.0") and not exponent.startswith(b"-"):
            raise OverflowError from None
        return 0
    if number.adjusted() > precision and number:
        raise OverflowError
    units = int(number.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT).scaleb(scale, _EXACT))
    if abs(units) >= 10**precision:
        raise OverflowError
    return units


@cython.cfunc
@cython.exceptval(-1)
def _decimal(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Read a number, also one that is written as a string."""
    c: cython.int = b[at]
    is_string: cython.bint = c == ord('"')
    is_negative: cython.bint = c == ord("-")
    found: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    value: cython.longlong = -1
    n: cython.Py_ssize_t = node.count << 1
    if not is_string and not is_negative and not _is_digit(b, at, end):
        return _unfit(node, b, at, end)
    found = _string(b, at + 1, end) if is_string else _number(b, at, end)
    stop = found >> 1
    if not is_string:
        value = _scaled(b, at + is_negative, stop, node.scale, node.most)
    node.add()
    if value >= 0:
        value = -value if is_negative else value
        node._data_q[n] = value
        node._data_q[n + 1] = -1 if value < 0 else 0
    else:
        content = _content(b, at + is_string, found if is_string else stop << 1)
        try:
            units = _exactly(content, node.precision, node.scale)
        except ValueError:
            return _unfit(node, b, at, end)
        except OverflowError:
            raise Refused(f"a number beyond the range of {node.wanted}", at) from None
        node._data_q[n] = (units + 2**63) % 2**64 - 2**63
        node._data_q[n + 1] = units >> 64
    node.count += 1
    return stop + is_string


@cython.cfunc
@cython.exceptval(-1)
def _boolean(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    n: cython.Py_ssize_t = node.count
    is_true: cython.bint = b[at] == ord("t")
    if not is_true and b[at] != ord("f"):
        return _unfit(node, b, at, end)
    at = _other(b, at, end)
    node.add()
    if is_true:
        node._bytes[n >> 3] |= 1 << (n & 7)
    else:
        node._bytes[n >> 3] &= 255 ^ (1 << (n & 7))
    node.count += 1
    return at


@cython.cfunc
@cython.exceptval(-1)
def _bytes(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Read a string that is base64."""
    found: cython.Py_ssize_t
    if b[at] != ord('"'):
        return _unfit(node, b, at, end)
    found = _string(b, at + 1, end)
    try:
        content = base64.b64decode(_content(b, at + 1, found), validate=True)
    except ValueError:
        raise Refused(f"a string that is not base64 where {node.wanted} is wanted", at) from None
    node.add_bytes(content if cython.compiled else memoryview(content), 0, len(content))
    return (found >> 1) + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _digits(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.int) -> cython.int:
    """Up to so many digits: sixteen times their number, plus how many there are."""
    value: cython.int = 0
    count: cython.int = 0
    while count < most and _is_digit(b, at, end):
        value = value * 10 + (b[at] - 48)
        at += 1
        count += 1
    return (value << 4) | count


@cython.cfunc
@cython.exceptval(check=False)
def _days(year: cython.longlong, month: cython.longlong, day: cython.longlong) -> cython.longlong:
    """Days since 1970, counting years from March so that the odd day comes last."""
    if month <= 2:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


@cython.cfunc
@cython.exceptval(check=False)
def _date(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, days: cython.p_longlong
) -> cython.Py_ssize_t:
    """Where the date at `at` ends: a year of four digits, a month, a day, the last two not always; -1 if it is none."""
    found: cython.int = _digits(b, at, end, 4)
    year: cython.int = found >> 4
    month: cython.int = 1
    day: cython.int = 1
    last: cython.int
    if found & 15 != 4 or year == 0:
        return -1
    at += 4
    if at < end and b[at] == ord("-"):
        found = _digits(b, at + 1, end, 2)
        month = found >> 4
        at += 1 + (found & 15)
        if at < end and b[at] == ord("-"):
            found = _digits(b, at + 1, end, 2)
            day = found >> 4
            at += 1 + (found & 15)
    if month < 1 or month > 12:
        return -1
    last = _month_days[month]
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if day < 1 or day > last:
        return -1
    days[0] = _days(year, month, day)
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _clock(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, micros: cython.p_longlong
) -> cython.Py_ssize_t:
    """Where a time of day ends: hours, perhaps minutes, perhaps seconds with a fraction; -1 if it is none."""
    found: cython.int = _digits(b, at, end, 2)
    hour: cython.int = found >> 4
    minute: cython.int
    second: cython.int = 0
    unit: cython.longlong = 100_000
    if not found & 15 or hour > 23:
        return -1
    at += found & 15
    micros[0] = hour * _HOUR_MICROS
    if at == end or b[at] != ord(":"):
        return at
    at += 1
    found = _digits(b, at, end, 2)
    minute = found >> 4
    if not found & 15:
        return -1
    at += found & 15
    if at < end and b[at] == ord(":"):
        found = _digits(b, at + 1, end, 2)
        second = found >> 4
        if not found & 15:
            return -1
        at += (found & 15) + 1
        if at < end and b[at] == ord("."):
            at += 1
            while _is_digit(b, at, end):
                micros[0] += (b[at] - 48) * unit
                unit = unit // 10
                at += 1
    if minute > 59 or second > 59:
        return -1
    micros[0] += (minute * 60 + second) * cython.cast(cython.longlong, 1_000_000)
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _zone(b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Seconds east of Greenwich, and 0 where nothing is said; a whole day if it is no offset."""
    found: cython.int
    hours: cython.int
    minutes: cython.int = 0
    sign: cython.int
    if at < end and b[at] == ord(" "):
        at += 1
    if at == end or (at + 1 == end and b[at] == ord("Z")):
        return 0
    if at + 3 == end and (_is_same(b, at, b"UTC", 0, 3) or _is_same(b, at, b"GMT", 0, 3)):
        return 0
    if b[at] != ord("+") and b[at] != ord("-"):
        return 86400
    sign = -1 if b[at] == ord("-") else 1
    found = _digits(b, at + 1, end, 2)
    hours = found >> 4
    at += 1 + (found & 15)
    if not found & 15:
        return 86400
    if at < end:
        at += b[at] == ord(":")
        found = _digits(b, at, end, 2)
        minutes = found >> 4
        at += found & 15
        if found & 15 != 2:
            return 86400
    if at != end or hours * 60 + minutes > 18 * 60 or minutes > 59:
        return 86400
    return sign * (hours * 3600 + minutes * 60)


@cython.cfunc
@cython.exceptval(check=False)
def _moment(
    b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, is_date: cython.bint, out: cython.p_longlong
) -> cython.bint:
    """Read a whole string as a date (up to a T or a space), or as microseconds since 1970."""
    part = cython.declare(cython.longlong[1])
    seconds: cython.int
    while at < end and b[at] <= 32:
        at += 1
    while at < end and b[end - 1] <= 32:
        end -= 1
    at = _date(b, at, end, out)
    if at < 0 or (at < end and b[at] != ord("T") and b[at] != ord(" ")):
        return False
    if is_date:
        return True
    out[0] *= _DAY_MICROS
    if at == end:
        return True
    at = _clock(b, at + 1, end, part)
    if at < 0:
        return False
    seconds = _zone(b, at, end)
    out[0] += part[0] - seconds * cython.cast(cython.longlong, 1_000_000)
    return seconds != 86400


@cython.cfunc
@cython.exceptval(-1)
def _time(node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Read a date or a timestamp; a timestamp may also be a whole number of seconds since 1970."""
    found: cython.Py_ssize_t
    out = cython.declare(cython.longlong[1])
    is_date: cython.bint = node.kind == _DATE
    is_sound: cython.bint
    content: cython.p_const_uchar
    if b[at] == ord('"'):
        found = _string(b, at + 1, end)
        if found & 1:
            held = _content(b, at + 1, found)
            content = held if cython.compiled else memoryview(held)
            is_sound = _moment(content, 0, len(held), is_date, out)
        else:
            is_sound = _moment(b, at + 1, found >> 1, is_date, out)
        if not is_sound:
            raise Refused(f"a string that is no {node.wanted}", at)
        found = (found >> 1) + 1
    else:
        if is_date or (b[at] != ord("-") and not _is_digit(b, at, end)):
            return _unfit(node, b, at, end)
        found = _number(b, at, end)
        if found & 1:
            raise Refused(f"a number with a fraction or an exponent where {node.wanted} is wanted", at)
        found >>= 1
        out[0] = _whole_number(b, at, found, _LONG_MAX, node.wanted)
        if out[0] > _SECONDS_MAX or out[0] < _SECONDS_MIN:
            raise Refused("a number of seconds beyond the years 1 to 9999 (milliseconds fit BIGINT)", at)
        out[0] *= 1_000_000
    node.add()
    if is_date:
        node._data_i[node.count] = out[0]
    else:
        node._data_q[node.count] = out[0]
    node.count += 1
    return found


@cython.cfunc
@cython.exceptval(-1)
def _struct(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    """Read the wanted members of an object; if a name comes twice, the last value counts."""
    n: cython.Py_ssize_t = node.count
    packed: cython.Py_ssize_t
    found: cython.Py_ssize_t
    index: cython.Py_ssize_t
    member: cython.Py_ssize_t = 0
    child: Node
    if b[at] != ord("{"):
        return _unfit(node, b, at, end)
    packed = _opened(b, at, end, depth)
    while not packed & 1:
        at = packed >> 1
        found = _name(b, at, end)
        index = _found(node, b, at + 1, found, member)
        member += 1
        at = _colon(b, (found >> 1) + 1, end)
        if index < 0:
            at = _passed(b, at, end, depth + 1)
        else:
            child = cython.cast(Node, node.children[index])
            if child.count > n:
                child.cut(n)
            node.current = index
            at = _value(child, b, at, end, depth + 1)
            node.current = -1
        packed = _next(b, at, end, ord("}"))
    for item in node.children:
        child = cython.cast(Node, item)
        if child.count == n:
            child.add_null()
    node.add()
    node.count += 1
    return packed >> 1


@cython.cfunc
def _found(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, found: cython.Py_ssize_t, member: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the child of the name that `_string` has found, -1 if no column wants it."""
    content: cython.p_const_uchar
    if not found & 1:
        return node.find(b, at, found >> 1, member)
    held = _content(b, at, found)
    content = held if cython.compiled else memoryview(held)
    return node.find(content, 0, len(held), member)


@cython.cfunc
@cython.exceptval(-1)
def _array(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    packed: cython.Py_ssize_t
    child: Node = cython.cast(Node, node.children[0])
    if b[at] != ord("["):
        return _unfit(node, b, at, end)
    packed = _opened(b, at, end, depth)
    while not packed & 1:
        node.current = 0
        at = _value(child, b, packed >> 1, end, depth + 1)
        node.current = -1
        packed = _next(b, at, end, ord("]"))
    node.add()
    node.count += 1
    node._ends[node.count] = cython.cast(cython.int, child.count)
    return packed >> 1


@cython.cfunc
@cython.exceptval(-1)
def _map(
    node: Node, b: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int
) -> cython.Py_ssize_t:
    begin: cython.Py_ssize_t = at
    packed: cython.Py_ssize_t
    keys: Node = cython.cast(Node, node.children[0])
    values: Node = cython.cast(Node, node.children[1])
    first: cython.Py_ssize_t = keys.count
    if b[at] != ord("{"):
        return _unfit(node, b, at, end)
    packed = _opened(b, at, end, depth)
    while not packed & 1:
        at = packed >> 1
        if at >= end or b[at] != ord('"'):
            raise Refused("no name where one must be", at)
        at = _colon(b, _text(keys, b, at, end, depth), end)
        node.current = 1
        at = _value(values, b, at, end, depth + 1)
        node.current = -1
        packed = _next(b, at, end, ord("}"))
    if _has_twins(keys, first):
        raise Refused("a key twice", begin)
    node.add()
    node.count += 1
    node._ends[node.count] = cython.cast(cython.int, keys.count)
    return packed >> 1


@cython.cfunc
def _has_twins(keys: Node, first: cython.Py_ssize_t) -> cython.bint:
    """Whether two texts from `first` on are the same."""
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t
    if keys.count - first > 16:
        held = {bytes(keys.data[keys.offsets[i] : keys.offsets[i + 1]]) for i in range(first, keys.count)}
        return len(held) < keys.count - first
    for i in range(first, keys.count):
        size = keys._ends[i + 1] - keys._ends[i]
        for j in range(first, i):
            if keys._ends[j + 1] - keys._ends[j] == size and _is_same(
                keys._bytes, keys._ends[i], keys._bytes, keys._ends[j], size
            ):
                return True
    return False
