"""The search for a time in plain records, whole or in pieces, and decompression in pieces."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire import batches, codecs, columns
from logmark.wire.batches import HEADER_BYTES


def records(times: list[int], value: bytes = b"v" * 40) -> bytes:
    return bytes(batches.build([(None, value)] * len(times), timestamp_ms=times)[HEADER_BYTES:])


def search(data: bytes, count: int, timestamp: int, *, base: int, delta_min: int = 0, is_fixed: bool = False):
    return columns.find_time(
        data, count=count, base_timestamp=base, is_fixed=is_fixed, timestamp=timestamp, delta_min=delta_min
    )


def test_the_first_record_at_or_after_a_time_is_found_and_what_lies_before_it_is_counted() -> None:
    times = [100, 90, 120, 110, 120]
    data = records(times)
    one = len(data) // 5

    assert (0, 0, (0, 100)) == search(data, 5, 95, base=100)
    assert (2, 2 * one, (2, 120)) == search(data, 5, 101, base=100)
    assert (4, 4 * one, (4, 120)) == search(data, 5, 101, base=100, delta_min=4)
    assert (5, len(data), None) == search(data, 5, 121, base=100)
    assert (1, one, (1, 7)) == search(data, 5, 7, base=7, delta_min=1, is_fixed=True)


@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=30), wanted=st.integers(0, 51), cut=st.integers(1, 30))
def test_pieces_give_what_the_whole_gives(times: list[int], wanted: int, cut: int) -> None:
    data = records(times, b"v" * 9)
    expected = next(((at, time) for at, time in enumerate(times) if time >= wanted), None)

    left, rest, skipped, found = len(times), b"", 0, None
    for start in range(0, len(data), cut):
        piece = data[start : start + cut]
        if skipped >= len(piece):
            skipped -= len(piece)
            continue
        piece, skipped = rest + piece[skipped:], 0
        passed, size, found = search(piece, left, wanted, base=times[0])
        if found is not None:
            break
        left, skipped, rest = left - passed, max(0, size - len(piece)), piece[size:]

    assert expected == found


@pytest.mark.parametrize("broken", [b"\xff\xff\xff\xff\xff\x01", b"\x00\x00", b"\x01\x00", b"\x04\x00\x80"])
def test_a_record_that_cannot_be_is_malformed(broken: bytes) -> None:
    with pytest.raises(Malformed):
        search(broken + bytes(10), 2, 5, base=0)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [0, 10, 300_000, 5 << 20])
def test_the_pieces_are_the_whole(codec: int, size: int) -> None:
    data = random.Random(3).randbytes(777) * (size // 777) + b"end" * bool(size)
    compressed = codecs.compress(codec, data)

    pieces = list(codecs.pieces(codec, compressed, bytes_max=len(data)))

    assert data == b"".join(pieces)
    assert codec == codecs.NONE or max(map(len, pieces), default=0) <= 1 << 20


@pytest.mark.parametrize("codec", range(1, 5))
def test_pieces_stop_at_the_limit(codec: int) -> None:
    compressed = codecs.compress(codec, bytes(8 << 20))

    with pytest.raises(codecs.TooLarge):
        for _ in codecs.pieces(codec, compressed, bytes_max=3 << 20):
            pass


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_stream_that_is_cut_short_is_malformed(codec: int, cut: int) -> None:
    compressed = codecs.compress(codec, random.Random(4).randbytes(100_000) + bytes(200_000))

    with pytest.raises(Malformed):
        list(codecs.pieces(codec, compressed[:-cut], bytes_max=1 << 20))


def test_gzip_members_follow_each_other() -> None:
    compressed = codecs.compress(codecs.GZIP, b"a" * 100_000) + codecs.compress(codecs.GZIP, b"b" * 10) + b"no member"

    assert b"a" * 100_000 + b"b" * 10 == b"".join(codecs.pieces(codecs.GZIP, compressed, bytes_max=1 << 20))
