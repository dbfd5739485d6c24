"""The four compressions of record batches, every call with a limit on what may come out.

A compressed batch is a claim by a stranger: one mebibyte of zstd can ask for 32 GiB. Each decoder is therefore
asked for at most one byte more than the limit, and a declared size is believed only when it refuses.
"""

import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import zstandard

from logmark.errors import Malformed
from logmark.memory import anonymous_memory

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")

# The highest levels that take less than half a second for a mebibyte, whatever it holds.
GZIP_LEVEL_MAX, LZ4_LEVEL_MAX, ZSTD_LEVEL_MAX = 6, 9, 12
# Kafka's default level of lz4 means its fast compressor; with any other it takes the slow one.
_LZ4_LEVEL_DEFAULT = 9
_LZ4_SLOW_LEVEL_MIN = 3

Bytes = bytes | bytearray | memoryview


class TooLarge(Malformed):
    """A stream that would decompress to more than the limit."""


def decompress(codec: int, data: Bytes, *, bytes_max: int) -> Bytes:
    """Return the decompressed bytes, never more than `bytes_max`, in hardly more memory than that."""
    if not NONE <= codec <= ZSTD:
        raise Malformed(f"unknown compression codec {codec}")
    out = _DECOMPRESS[codec](data, bytes_max)
    if len(out) > bytes_max:
        raise TooLarge(f"{NAMES[codec]} stream of {len(data)} bytes decompresses to more than {bytes_max} bytes")
    return out


def pieces(codec: int, data: Bytes, *, bytes_max: int) -> Iterator[Bytes]:
    """Yield the decompressed bytes in pieces of a mebibyte or less, if the codec allows it: for an event loop.

    Between two pieces other threads run; to join them would hold these up. Who wants the beginning only may stop there.
    """
    if not NONE <= codec <= ZSTD:
        raise Malformed(f"unknown compression codec {codec}")
    size = 0
    for piece in _PIECES[codec](data, bytes_max):
        size += len(piece)
        if size > bytes_max:
            raise TooLarge(f"{NAMES[codec]} stream of {len(data)} bytes decompresses to more than {bytes_max} bytes")
        yield piece


def compress(codec: int, data: Bytes, level: int | None = None) -> bytes:
    """Return the bytes compressed and framed as Kafka's own readers expect them.

    `level` is one of Kafka's levels for the codec, None its default. A level above GZIP_LEVEL_MAX, LZ4_LEVEL_MAX or
    ZSTD_LEVEL_MAX counts as that: there are bytes of which a mebibyte takes seconds with it.
    """
    return _COMPRESS[codec](data, level)


# Each decoder below returns at most bytes_max + 1 bytes: the one too many is how the caller knows.


def _plain(data: Bytes, bytes_max: int) -> bytes:
    return bytes(data[: bytes_max + 1])


_GZIP_MAGIC = b"\x1f\x8b"


# A step is added to what is there and then given back: large steps would take as much again.
_STEP_BYTES_MAX = 1 << 20


class _Output:
    """What a decoder has said so far.

    More than one part goes into anonymous memory as large as the limit, of which the system gives only what is used. A
    bytearray would be copied as it grows, or filled with zeros, in one call that no other thread can interrupt.
    """

    __slots__ = ("_all", "_bytes_max", "_first", "size")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._first: Bytes = b""
        self._all: memoryview | None = None
        self.size = 0

    def add(self, part: Bytes) -> None:
        end = self.size + len(part)
        if not self.size:
            self._first = part  # nearly every batch has one part, which is not copied
        else:
            if self._all is None:
                self._all = anonymous_memory(self._bytes_max + 1)
                self._all[: self.size] = self._first
                self._first = b""
            self._all[self.size : end] = part
        self.size = end

    def take(self) -> Bytes:
        return self._first if self._all is None else self._all[: self.size]


# The members, frames or blocks that a stream of any size may have, and how large all above them must be on average.
_PARTS_MIN = 1024
_UNPACKED_BYTES_OF_PART = 16 * 1024
_PACKED_BYTES_OF_PART = 1024


class _Parts:
    """Counts the parts of a stream: each takes time, and one that is empty unpacks to nothing."""

    __slots__ = ("_left", "_limit")

    def __init__(self, data: Bytes, bytes_max: int) -> None:
        self._limit = _PARTS_MIN + bytes_max // _UNPACKED_BYTES_OF_PART + len(data) // _PACKED_BYTES_OF_PART
        self._left = self._limit

    def begin_next(self) -> None:
        """Count one more part; raises TooLarge if the stream has too many."""
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"the stream has more than {self._limit} members, frames or blocks")


def _gunzip(data: Bytes, bytes_max: int) -> Bytes:
    out = _Output(bytes_max)
    for piece in _gunzip_pieces(data, bytes_max):
        out.add(piece if len(piece) <= bytes_max - out.size else memoryview(piece)[: bytes_max + 1 - out.size])
        if out.size > bytes_max:
            break
    return out.take()


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = struct.Struct(">8sii")
_XERIAL_CHUNK_BYTES = 32 * 1024  # the chunk of snappy-java, so that its readers need no larger buffer
_XERIAL_VERSION = 1
_INT32 = struct.Struct(">i")


def _unsnappy(data: Bytes, bytes_max: int) -> Bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        # Clients of other languages send the bare block; Java's reader takes it, so it is legal in a log.
        return _snappy_block(view, bytes_max)
    out = _Output(bytes_max)
    for block in _snappy_chunks(view, _Parts(view, bytes_max)):
        out.add(_snappy_block(block, bytes_max - out.size))
    return out.take()


def _snappy_chunks(view: memoryview, parts: _Parts) -> Iterator[memoryview]:
    at = 0
    while at < len(view):
        parts.begin_next()
        if view[at : at + 8] == _XERIAL_MAGIC:  # streams may be concatenated, each with its header
            if len(view) - at < _XERIAL_HEAD.size:
                raise Malformed("snappy stream ends inside its header")
            _, _, compatible = _XERIAL_HEAD.unpack_from(view, at)
            if compatible < _XERIAL_VERSION:
                raise Malformed(f"snappy stream of unknown version {compatible}")
            at += _XERIAL_HEAD.size
            continue
        if len(view) - at < 4:
            raise Malformed("snappy stream ends inside a chunk length")
        (length,) = _INT32.unpack_from(view, at)
        at += 4
        if not 0 <= length <= len(view) - at:
            raise Malformed(f"snappy chunk of {length} bytes, {len(view) - at} left")
        yield view[at : at + length]
        at += length


def _snappy_block(block: memoryview, bytes_max: int) -> Bytes:
    # A snappy block begins with its decompressed size, and its decoder allocates that much.
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise TooLarge(f"snappy block declares {size} bytes where {bytes_max} are allowed")
        out: Bytes = bytearray(size) if size <= _STEP_BYTES_MAX else anonymous_memory(size)
        if cramjam.snappy.decompress_raw_into(block, out) != size:
            raise Malformed("snappy block ends in the middle")
    except cramjam.DecompressionError as error:
        raise Malformed(f"broken snappy block: {error}") from None
    return out


_FIRST_READ_BYTES = 64 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT_BLOCKS = 0x20


def _unlz4(data: Bytes, bytes_max: int) -> Bytes:
    view = memoryview(data)
    if view[:4] != _LZ4_MAGIC or len(view) < 7:
        raise Malformed("no lz4 frame")
    if not view[4] & _LZ4_INDEPENDENT_BLOCKS:
        # Java's reader refuses linked blocks: a batch that we let pass could never be consumed.
        raise Malformed("lz4 frame with linked blocks")
    stream = lz4.frame.LZ4FrameDecompressor()
    out = _Output(bytes_max)
    # The decoder allocates what it is asked for.
    step = min(max(_FIRST_READ_BYTES, 4 * len(view)), _STEP_BYTES_MAX)
    given: Bytes = view
    try:
        while not stream.eof and out.size <= bytes_max:
            part = stream.decompress(given, min(step, bytes_max + 1 - out.size))
            if not part and not stream.eof:
                raise Malformed("lz4 frame ends in the middle")
            given = b""
            out.add(part)
            step = _STEP_BYTES_MAX
    except (RuntimeError, EOFError) as error:
        raise Malformed(f"broken lz4 frame: {error}") from None
    return out.take()


_WINDOW_BYTES_MIN = 8 << 20  # what RFC 8878 asks every decoder to accept
_WINDOW_BYTES_MAX = 128 << 20  # what zstd itself accepts by default
_zstd = threading.local()  # a zstd context belongs to one thread at a time


def _zstd_decompressor(bytes_max: int) -> zstandard.ZstdDecompressor:
    window = _WINDOW_BYTES_MIN
    while window < bytes_max and window < _WINDOW_BYTES_MAX:
        window *= 2
    if getattr(_zstd, "window", 0) != window:
        _zstd.window = window
        _zstd.decompressor = zstandard.ZstdDecompressor(max_window_size=window)
    decompressor: zstandard.ZstdDecompressor = _zstd.decompressor
    return decompressor


def _unzstd(data: Bytes, bytes_max: int) -> bytes:
    view = memoryview(data)
    found: list[bytes] = []
    parts = _Parts(view, bytes_max)
    size = 0
    at = 0
    while at < len(view) and size <= bytes_max:
        parts.begin_next()
        if view[at + 1 : at + 4] == _ZSTD_SKIPPED_MAGIC and view[at] >> 4 == 5:
            at += 8 + int.from_bytes(view[at + 4 : at + 8], "little")
            continue
        end, blocks = _zstd_frame(view, at, parts)
        part = _zstd_one_frame(view[at:end], blocks * _ZSTD_BLOCK_BYTES_MAX, bytes_max - size)
        found.append(part)
        size += len(part)
        at = end
    if not found or at > len(view):
        raise Malformed("no zstd frame")
    return found[0] if len(found) == 1 else b"".join(found)


def _zstd_one_frame(frame: memoryview, content_bytes_max: int, bytes_max: int) -> bytes:
    decompressor = _zstd_decompressor(bytes_max)
    try:
        declared = zstandard.frame_content_size(frame)
        # The decoder ignores max_output_size and allocates what the frame declares, so that is checked here.
        if declared > bytes_max:
            raise TooLarge(f"zstd frame declares {declared} bytes where {bytes_max} are allowed")
        if declared == 0:
            return b""
        out: bytes = decompressor.decompress(frame, max_output_size=max(1, min(content_bytes_max, bytes_max)))
        return out
    except zstandard.ZstdError as error:
        # Too small a buffer and a broken block look the same to the decoder; only the first fills the limit.
        if content_bytes_max > bytes_max and _zstd_fills(decompressor, frame, bytes_max + 1):
            raise TooLarge(f"zstd frame decompresses to more than {bytes_max} bytes") from None
        raise Malformed(f"broken zstd frame: {error}") from None


def _zstd_fills(decompressor: zstandard.ZstdDecompressor, frame: memoryview, size: int) -> bool:
    try:
        return len(decompressor.stream_reader(frame).read(size)) == size
    except zstandard.ZstdError:
        return False


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED_MAGIC = b"\x2a\x4d\x18"  # after a byte of 0x50 to 0x5f: a frame that is for others, as pzstd writes
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_RLE_BLOCK, _ZSTD_RESERVED_BLOCK = 1, 3


def _zstd_frame(view: memoryview, start: int, parts: _Parts) -> tuple[int, int]:
    """Return where the frame that begins at `start` ends, and its number of blocks: a cut stream has too few."""
    if view[start : start + 4] != _ZSTD_MAGIC or len(view) - start < 6:
        raise Malformed("no zstd frame")
    descriptor = view[start + 4]
    is_single_segment = bool(descriptor & 0x20)
    at = start + 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    at += (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    blocks = 0
    is_last = False
    while not is_last:
        head = int.from_bytes(view[at : at + 3], "little")
        is_last = bool(head & 1)
        kind = head >> 1 & 3
        at += 3 + (1 if kind == _ZSTD_RLE_BLOCK else head >> 3)
        blocks += 1
        parts.begin_next()
        if at > len(view) or kind == _ZSTD_RESERVED_BLOCK:
            raise Malformed("zstd frame ends in the middle")
    at += 4 if descriptor & 4 else 0
    if at > len(view):
        raise Malformed("zstd frame ends inside its checksum")
    return at, blocks


def _uncompressed(data: Bytes, level: int | None) -> bytes:
    return bytes(data)


def _gzip(data: Bytes, level: int | None) -> bytes:
    stream = zlib.compressobj(-1 if level is None else min(level, GZIP_LEVEL_MAX), wbits=31)
    return stream.compress(data) + stream.flush()


def _snappy(data: Bytes, level: int | None) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEAD.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for at in range(0, len(view), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_CHUNK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: Bytes, level: int | None) -> bytes:
    is_fast = level is None or level == _LZ4_LEVEL_DEFAULT
    compressed: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False,
        compression_level=0 if is_fast else min(max(level or 0, _LZ4_SLOW_LEVEL_MIN), LZ4_LEVEL_MAX),
    )  # fmt: skip
    return compressed


def _zstandard(data: Bytes, level: int | None) -> bytes:
    compressor = zstandard.ZstdCompressor() if level is None else zstandard.ZstdCompressor(min(level, ZSTD_LEVEL_MAX))
    compressed: bytes = compressor.compress(data)
    return compressed


_PIECE_BYTES = 1 << 20
_GIVEN_BYTES = 64 * 1024
_GIVEN_BYTES_OF_MEMBER = 4 * 1024
_SNAPPY_PIECE_BYTES = 256 * 1024


def _plain_pieces(data: Bytes, bytes_max: int) -> Iterator[Bytes]:
    yield memoryview(data)[: bytes_max + 1]


def _gunzip_pieces(data: Bytes, bytes_max: int) -> Iterator[Bytes]:
    view = memoryview(data)
    parts = _Parts(view, bytes_max)
    stream = zlib.decompressobj(31)
    at, given_bytes = 0, _GIVEN_BYTES
    rest: Bytes = b""
    try:
        while True:
            if not rest:
                rest = view[at : at + given_bytes]
                at += len(rest)
            yield stream.decompress(rest, _PIECE_BYTES)
            if stream.eof:
                # Members may be concatenated; what is no member is ignored, as Java does.
                at -= len(stream.unused_data)
                if view[at : at + 2] != _GZIP_MAGIC:
                    return
                parts.begin_next()
                # The stream copies what is behind its end: little, because many small members may follow.
                stream, rest, given_bytes = zlib.decompressobj(31), b"", _GIVEN_BYTES_OF_MEMBER
            else:
                rest = stream.unconsumed_tail
                if not rest and at == len(view):
                    last = stream.decompress(b"", _PIECE_BYTES)
                    if not last:
                        raise Malformed("gzip stream ends in the middle")
                    yield last
    except zlib.error as error:
        raise Malformed(f"broken gzip stream: {error}") from None


def _unlz4_pieces(data: Bytes, bytes_max: int) -> Iterator[Bytes]:
    view = memoryview(data)
    if view[:4] != _LZ4_MAGIC or len(view) < 7:
        raise Malformed("no lz4 frame")
    stream = lz4.frame.LZ4FrameDecompressor()
    at = 0
    try:
        while not stream.eof:
            given: Bytes = b""
            if stream.needs_input:
                given = view[at : at + _GIVEN_BYTES]
                at += len(given)
                if not len(given):
                    raise Malformed("lz4 frame ends in the middle")
            yield stream.decompress(given, _PIECE_BYTES)
    except (RuntimeError, EOFError) as error:
        raise Malformed(f"broken lz4 frame: {error}") from None


def _unzstd_pieces(data: Bytes, bytes_max: int) -> Iterator[Bytes]:
    view = memoryview(data)
    parts = _Parts(view, bytes_max)
    at = 0
    while at < len(view):
        parts.begin_next()
        if view[at + 1 : at + 4] == _ZSTD_SKIPPED_MAGIC and view[at] >> 4 == 5:
            at += 8 + int.from_bytes(view[at + 4 : at + 8], "little")
            continue
        end, _ = _zstd_frame(view, at, parts)
        try:
            with _zstd_decompressor(bytes_max).stream_reader(view[at:end]) as reader:
                while piece := reader.read(_PIECE_BYTES):
                    yield piece
        except zstandard.ZstdError as error:
            raise Malformed(f"broken zstd frame: {error}") from None
        at = end


def _unsnappy_pieces(data: Bytes, bytes_max: int) -> Iterator[Bytes]:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        yield _snappy_block(view, bytes_max)
        return
    piece = bytearray()
    for block in _snappy_chunks(view, _Parts(view, bytes_max)):
        piece += _snappy_block(block, bytes_max)
        if len(piece) >= _SNAPPY_PIECE_BYTES:
            yield piece
            piece = bytearray()
    yield piece


_PIECES: tuple[Callable[[Bytes, int], Iterator[Bytes]], ...] = (
    _plain_pieces, _gunzip_pieces, _unsnappy_pieces, _unlz4_pieces, _unzstd_pieces,
)  # fmt: skip
_DECOMPRESS: tuple[Callable[[Bytes, int], Bytes], ...] = (_plain, _gunzip, _unsnappy, _unlz4, _unzstd)
_COMPRESS: tuple[Callable[[Bytes, int | None], bytes], ...] = (_uncompressed, _gzip, _snappy, _lz4, _zstandard)
