"""Codecs give back what was compressed, never more than the limit, and nothing but Malformed for anything else."""

import contextlib
import random
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire import codecs
from tests.oracle import records as oracle

CODECS = [codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD]
SAMPLES = [b"", b"a", b"abc" * 50_000, bytes(200_000), random.Random(1).randbytes(100_000)]


def named(codec: int) -> str:
    return codecs.NAMES[codec]


@pytest.mark.parametrize("codec", [codecs.NONE, *CODECS], ids=named)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_what_was_compressed_comes_back_under_a_limit_of_exactly_its_size(codec: int, data: bytes) -> None:
    compressed = codecs.compress(codec, data)

    assert data == codecs.decompress(codec, compressed, bytes_max=len(data))


@pytest.mark.parametrize("codec", [codecs.NONE, *CODECS], ids=named)
@given(data=st.binary(max_size=300))
def test_another_implementation_reads_what_was_compressed_and_the_other_way_round(codec: int, data: bytes) -> None:
    assert data == oracle.decompress(codec, codecs.compress(codec, data))
    assert data == codecs.decompress(codec, oracle.compress(codec, data), bytes_max=300)


LEVELS = {codecs.GZIP: (1, 6, -1, 9), codecs.LZ4: (3, 12, 9, 17), codecs.ZSTD: (-5, 12, 3, 22)}


@pytest.mark.parametrize("codec", LEVELS, ids=named)
def test_a_level_of_kafka_takes_effect_up_to_the_highest_that_is_quick(codec: int) -> None:
    low, high, default, highest = LEVELS[codec]
    data = bytes(random.Random(1).choices(b"ab", k=50_000))
    packed = {level: codecs.compress(codec, data, level) for level in (low, high, default, highest)}

    assert len(packed[low]) > len(packed[high])
    assert packed[default] == codecs.compress(codec, data)
    assert packed[highest] == packed[high]
    assert {data} == {oracle.decompress(codec, each) for each in packed.values()}


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(codec: int, kind: type) -> None:
    data = b"some bytes" * 20

    assert data == codecs.decompress(codec, kind(codecs.compress(codec, kind(data))), bytes_max=1000)


@pytest.mark.parametrize("codec", [codecs.NONE, *CODECS], ids=named)
@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_one_byte_over_the_limit_is_too_large(codec: int, data: bytes) -> None:
    with pytest.raises(codecs.TooLarge):
        codecs.decompress(codec, codecs.compress(codec, data), bytes_max=len(data) - 1)


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_a_stream_cut_anywhere_is_malformed(codec: int) -> None:
    data = random.Random(2).randbytes(500) + bytes(500)
    whole = codecs.compress(codec, data)
    # A snappy stream that ends where a chunk ends is a shorter stream: nothing in it says how long it should be.
    whole_streams = {16} if codec == codecs.SNAPPY else set()

    for cut in set(range(len(whole))) - whole_streams:
        with pytest.raises(Malformed):
            codecs.decompress(codec, whole[:cut], bytes_max=len(data))


@pytest.mark.parametrize("codec", [*CODECS, 5, 6, 7, -1])
def test_random_and_flipped_bytes_raise_nothing_but_malformed(codec: int) -> None:
    chance = random.Random(codec)
    seeds = [codecs.compress(codec, b"abcdef" * 99) if 0 < codec < 5 else b"", b""]

    for _ in range(3000):
        hostile = bytearray(chance.choice(seeds) or chance.randbytes(chance.randrange(60)))
        for _ in range(chance.randrange(1, 4)):
            if hostile:
                hostile[chance.randrange(len(hostile))] = chance.randrange(256)
        with contextlib.suppress(Malformed):
            assert len(codecs.decompress(codec, hostile, bytes_max=1000)) <= 1000


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 1000])
def test_a_snappy_chunk_of_a_hostile_length_is_malformed(length: int) -> None:
    with pytest.raises(Malformed, match="chunk"):
        codecs.decompress(codecs.SNAPPY, oracle.XERIAL + struct.pack(">i", length) + b"abc", bytes_max=10**6)


def test_a_snappy_block_without_a_stream_around_it_is_read_as_java_reads_it() -> None:
    block = oracle.compress(codecs.SNAPPY, b"hello" * 9)[len(oracle.XERIAL) + 4 :]

    assert b"hello" * 9 == codecs.decompress(codecs.SNAPPY, block, bytes_max=100)


def test_a_snappy_block_that_declares_four_gibibytes_is_too_large() -> None:
    block = b"\xff\xff\xff\xff\x0f" + b"\x00a"

    for data in (block, oracle.XERIAL + struct.pack(">i", len(block)) + block):
        with pytest.raises(codecs.TooLarge):
            codecs.decompress(codecs.SNAPPY, data, bytes_max=10**6)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.ZSTD], ids=named)
def test_streams_one_after_the_other_are_one(codec: int) -> None:
    data = codecs.compress(codec, b"one") + codecs.compress(codec, b"two")

    assert b"onetwo" == codecs.decompress(codec, data, bytes_max=6)


EMPTY_PARTS = {
    "gzip members": (codecs.GZIP, b"", codecs.compress(codecs.GZIP, b"")),
    "snappy streams": (codecs.SNAPPY, b"", codecs.compress(codecs.SNAPPY, b"")),
    "snappy blocks": (codecs.SNAPPY, codecs.compress(codecs.SNAPPY, b""), b"\0\0\0\1\0"),
    "zstd frames": (codecs.ZSTD, b"", codecs.compress(codecs.ZSTD, b"")),
    "zstd frames to be skipped": (codecs.ZSTD, b"", b"\x50\x2a\x4d\x18\0\0\0\0"),
    "zstd blocks": (codecs.ZSTD, codecs.compress(codecs.ZSTD, b"")[:-3], b"\0\0\0"),
}


@pytest.mark.parametrize("how", ["whole", "in pieces"])
@pytest.mark.parametrize(("codec", "head", "part"), EMPTY_PARTS.values(), ids=EMPTY_PARTS)
def test_a_stream_of_more_empty_parts_than_any_client_writes_is_too_large(
    codec: int, head: bytes, part: bytes, how: str
) -> None:
    stream = head + 50_000 * part

    with pytest.raises(codecs.TooLarge, match=r"more than \d+ members, frames or blocks"):
        if how == "whole":
            codecs.decompress(codec, stream, bytes_max=1 << 20)
        else:
            list(codecs.pieces(codec, stream, bytes_max=1 << 20))


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.ZSTD])
def test_hundreds_of_streams_one_after_the_other_are_one(codec: int) -> None:
    # A snappy stream of one block has two parts, its head and the block; so has a zstd frame.
    parts = [b"part %d" % number for number in range(500)]

    assert b"".join(parts) == bytes(
        codecs.decompress(codec, b"".join(codecs.compress(codec, part) for part in parts), bytes_max=1 << 20)
    )


@pytest.mark.parametrize("members", [1, 7])
def test_gzip_members_of_any_size_are_read_whole(members: int) -> None:
    parts = [bytes([number % 251]) * (300_000 * number + 1) for number in range(members)]
    stream = b"".join(codecs.compress(codecs.GZIP, part) for part in parts)

    assert b"".join(parts) == bytes(codecs.decompress(codecs.GZIP, stream, bytes_max=1 << 24))


def test_lz4_blocks_stand_alone_because_java_reads_no_linked_ones() -> None:
    frame = codecs.compress(codecs.LZ4, bytes(300_000))

    assert frame[4] & 0x20
    with pytest.raises(Malformed, match="linked"):
        codecs.decompress(codecs.LZ4, lz4.frame.compress(bytes(300_000), block_linked=True), bytes_max=300_000)


def test_a_zstd_frame_without_a_declared_size_is_read_and_limited() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(bytes(5_000_000)) + stream.flush()

    assert bytes(5_000_000) == codecs.decompress(codecs.ZSTD, frame, bytes_max=5_000_000)
    with pytest.raises(codecs.TooLarge):
        codecs.decompress(codecs.ZSTD, frame, bytes_max=4_999_999)


def test_a_zstd_frame_that_is_to_be_skipped_is_skipped() -> None:
    frame = codecs.compress(codecs.ZSTD, b"abc")

    assert b"abc" == codecs.decompress(codecs.ZSTD, b"\x5f\x2a\x4d\x18\x02\0\0\0??" + frame, bytes_max=3)
    for hostile in (b"\x50\x2a\x4d\x18\x02\0\0\0?", b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + frame, b"\x50\x2a\x4d\x18"):
        with pytest.raises(Malformed):
            codecs.decompress(codecs.ZSTD, hostile, bytes_max=100)


BOMB_BYTES = 256 << 20


def bombs() -> dict[str, bytes]:
    """Streams of about a mebibyte that ask for 256."""
    mebibyte = bytes(1 << 20)
    gzip = zlib.compressobj(wbits=31)
    zstd = zstandard.ZstdCompressor().compressobj()
    lz4_frame = lz4.frame.LZ4FrameCompressor(block_linked=False)
    block = codecs.compress(codecs.SNAPPY, bytes(32 << 10))[16:]
    count = BOMB_BYTES >> 20
    return {
        "gzip": b"".join([gzip.compress(mebibyte) for _ in range(count)]) + gzip.flush(),
        "snappy": oracle.XERIAL + block * (BOMB_BYTES >> 15),
        "lz4": lz4_frame.begin() + b"".join([lz4_frame.compress(mebibyte) for _ in range(count)]) + lz4_frame.flush(),
        "zstd": b"".join([zstd.compress(mebibyte) for _ in range(count)]) + zstd.flush(),
    }


def test_bombs_cost_no_more_memory_than_the_limit(tmp_path: object) -> None:
    for name, bomb in bombs().items():
        with open(f"{tmp_path}/{name}", "wb") as file:
            file.write(bomb)
    limit = 16 << 20
    program = f"""
        import resource
        from logmark.wire import codecs
        for codec, name in enumerate(codecs.NAMES[1:], 1):
            bomb = open({str(tmp_path)!r} + "/" + name, "rb").read()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                codecs.decompress(codec, bomb, bytes_max={limit})
            except codecs.TooLarge:
                print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)

    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss
    grown = [int(line) * unit for line in done.stdout.split()]
    assert len(CODECS) == len(grown)
    assert [] == [size for size in grown if size > 2.5 * limit], grown


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_what_a_large_batch_decompresses_to_is_not_allocated_in_one_piece(codec: int) -> None:
    """The interpreter fills or copies such a piece in one call, in which no other thread can run."""
    size = 32 << 20
    compressed = codecs.compress(codec, bytes(size))
    tracemalloc.start()
    try:
        out = codecs.decompress(codec, compressed, bytes_max=size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == len(out)
    assert peak < 4 << 20
