"""Columns hold what the batches hold, and no bytes can make the walk read or write where it must not."""

import contextlib
import ctypes
import importlib.util
import mmap
import random
import struct
import subprocess
import sys
import textwrap
from array import array
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.errors import Malformed
from logmark.wire import columns
from logmark.wire.compaction_filter import CompactionFilter, KeyMap
from tests.harness.searches import examples
from tests.oracle import records as oracle
from tests.oracle.records import Batch, Record

# Several tests share two cores: how long an example takes says nothing.
some = settings(max_examples=examples(60, soak=3000))

EVERYTHING = {"start": 0, "stop": 2**63 - 1, "decompressed_bytes_max": 1 << 20}

contents = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), contents), max_size=3)
times = st.integers(-(2**40), 2**40) | st.sampled_from([0, 63, 64, -64, -65, 2**31, -(2**31)])


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 10))
    deltas = sorted(draw(st.sets(st.integers(0, 10_000), min_size=count, max_size=count)))
    return Batch(
        records=[
            Record(
                key=draw(contents),
                value=draw(contents),
                headers=draw(headers),
                offset_delta=delta,
                timestamp_delta=draw(times),
                attributes=draw(st.integers(0, 255)),
            )
            for delta in deltas
        ],
        codec=draw(st.integers(0, 4)),
        attributes=draw(st.sampled_from([0, 0x08, 0x10, 0x20, 0x40])),
        last_offset_delta=deltas[-1] + draw(st.integers(0, 5)),
        base_timestamp=draw(st.integers(-1, 2**42)),
    )


def concatenated(found: list[Batch], base_offset: int) -> tuple[bytes, int]:
    """The batches one after the other, and the offset after the last."""
    data = b""
    for batch in found:
        encoded = oracle.encode_batch(batch)
        struct.pack_into(">q", encoded, 0, base_offset)
        data += encoded
        base_offset += (batch.last_offset_delta or 0) + 1
    return data, base_offset


def rows(found: columns.Columns) -> list[tuple[object, ...]]:
    return list(
        zip(
            found.offsets,
            found.timestamps_ms,
            found.timestamp_types,
            found.keys(),
            found.values(),
            found.headers(),
            strict=True,
        )
    )


@some
@given(st.lists(batches(), max_size=4), st.sampled_from([0, 17, 259_000_000_000]), st.integers(0, 200))
def test_columns_hold_what_a_plain_decoder_finds(found: list[Batch], base_offset: int, cut: int) -> None:
    data, next_offset = concatenated(found, base_offset)
    partial = bytes(oracle.encode_batch(Batch(base_offset=next_offset)))[:-1][:cut]

    decoded = columns.decode(data + partial, with_headers=True, **EVERYTHING)

    assert oracle.decode(data) == rows(decoded)
    assert (next_offset if found else 0) == decoded.next_offset


@some
@given(st.lists(batches(), min_size=1, max_size=3), st.integers(0, 30_000), st.integers(0, 30_000))
def test_records_outside_of_the_range_are_left_out(found: list[Batch], start: int, stop: int) -> None:
    data, next_offset = concatenated(found, 0)

    decoded = columns.decode(data, start=start, stop=stop, with_headers=True, decompressed_bytes_max=1 << 20)

    assert [row for row in oracle.decode(data) if start <= row[0] < stop] == rows(decoded)
    if start < stop:
        assert (max(start, min(stop, next_offset)) if next_offset > start else start) == decoded.next_offset


@some
@given(st.lists(batches(), min_size=1, max_size=3))
def test_the_module_says_the_same_when_it_is_not_compiled(found: list[Batch]) -> None:
    data, _ = concatenated(found, 5)
    first = data[: struct.unpack_from(">i", data, 8)[0] + 12]

    for name, call in {
        "decode": lambda module: rows(module.decode(data, with_headers=True, **EVERYTHING)),
        "sound_prefix": lambda module: module.sound_prefix(data, 0, 2**62),
        "check_records": lambda module: module.check_records(b"\0" * 8 + first[8:], None, 1 << 20, True, 0, 2**41),
        "crc32c": lambda module: module.crc32c(data, 3, 20),
        "index_batches": lambda module: indexed(module, data, interval=300),
    }.items():
        assert call(plain_module()) == call(columns), name


def indexed(module: ModuleType, data: bytes, *, interval: int, is_dense: bool = True) -> tuple[object, ...]:
    state, offsets, times = array("q", [0, -1, 5, -1, -1]), bytearray(), bytearray()
    found = module.index_batches(
        data, expected=5, is_dense=is_dense, position=0, base_offset=5, interval=interval, state=state,
        offset_entries=offsets, time_entries=times,
    )  # fmt: skip
    sound, next_offset, problem, positions = found
    assert all(struct.unpack_from(">q", data, at + 43)[0] >= 0 for at in positions)
    return (sound, next_offset, problem), list(state), bytes(offsets), bytes(times), list(positions)


def plain_module() -> ModuleType:
    if "columns_as_plain_python" not in sys.modules:
        source = str(columns.__file__).partition("columns.")[0] + "columns.py"
        spec = importlib.util.spec_from_file_location("columns_as_plain_python", source)
        assert spec is not None and spec.loader is not None
        sys.modules["columns_as_plain_python"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["columns_as_plain_python"])
    return sys.modules["columns_as_plain_python"]


@some
@given(st.lists(batches(), min_size=1, max_size=12), st.sampled_from([0, 100, 1000]), st.integers(0, 3000))
def test_batches_are_indexed_as_appending_them_would_have_done(found: list[Batch], interval: int, cut: int) -> None:
    data, next_offset = concatenated(found, 5)
    at, last_entry, largest, largest_offset, offsets, times, told = 0, 0, -1, 5, b"", b"", -1
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        last = base + struct.unpack_from(">i", data, at + 23)[0]
        (timestamp,) = struct.unpack_from(">q", data, at + 35)
        if timestamp > largest:
            largest, largest_offset = timestamp, last
        if at and at - last_entry > interval:
            last_entry, offsets = at, offsets + struct.pack(">ii", last - 5, at)
            if largest > told:
                told, times = largest, times + struct.pack(">qi", largest, largest_offset - 5)
        at += 12 + length
    (first,) = struct.unpack_from(">q", data, 35)

    whole = indexed(columns, data, interval=interval)

    told_of = [last_entry, largest, largest_offset, told, first]
    assert ((len(data), next_offset, 0), told_of, offsets, times) == whole[:4]
    assert indexed(columns, data + data[:60], interval=interval) == whole
    # The same in two calls, as a reader of pieces makes them.
    state, entries = array("q", [0, -1, 5, -1, -1]), (bytearray(), bytearray())
    position, expected = 0, 5
    for piece in (min(cut, len(data)), len(data)):
        sound, expected, problem, _ = columns.index_batches(
            data[position:piece], expected=expected, is_dense=True, position=position, base_offset=5,
            interval=interval, state=state, offset_entries=entries[0], time_entries=entries[1],
        )  # fmt: skip
        position += sound
        assert 0 == problem
    assert (len(data), next_offset, whole[1:4]) == (
        position, expected, (list(state), bytes(entries[0]), bytes(entries[1]))
    )  # fmt: skip


def test_the_batches_of_producers_with_an_id_are_pointed_at() -> None:
    without, with_id = oracle.encode_batch(Batch(base_offset=5)), oracle.encode_batch(Batch(base_offset=6))
    struct.pack_into(">q", with_id, 43, 2**40)
    struct.pack_into(">I", with_id, 17, columns.crc32c(with_id, 21, len(with_id) - 21))

    assert [len(without)] == indexed(columns, bytes(without + with_id), interval=0)[4]


def test_an_offset_out_of_order_ends_the_index() -> None:
    first, second = oracle.encode_batch(Batch(base_offset=5)), oracle.encode_batch(Batch(base_offset=9))

    assert (len(first), 6, columns.Problem.OUT_OF_ORDER) == indexed(columns, bytes(first + second), interval=0)[0]
    sparse = indexed(columns, bytes(first + second), interval=0, is_dense=False)[0]
    assert (len(first) + len(second), 10, columns.Problem.SOUND) == sparse
    # An entry of an index has 32 bits.
    far = oracle.encode_batch(Batch(base_offset=5 + 2**31))
    assert (0, 5, columns.Problem.OUT_OF_ORDER) == indexed(columns, bytes(far), interval=0, is_dense=False)[0]


def test_the_module_in_use_is_the_compiled_one() -> None:
    assert not str(columns.__file__).endswith(".py")


def test_buffers_have_the_layout_of_arrow() -> None:
    records = [
        Record(key=b"a", value=None),
        Record(key=None, value=b"xyz", headers=[(b"h", b"1"), (b"i", None)]),
        Record(key=b"", value=b"", headers=[(b"", b"")]),
    ]

    found = columns.decode(oracle.encode_batch(Batch(records=records)), with_headers=True, **EVERYTHING)

    assert (3, [0, 1, 1, 1], b"a", b"\x05") == (
        found.count, list(found.key_offsets), found.key_bytes, found.key_validity,
    )  # fmt: skip
    assert ([0, 0, 3, 3], b"xyz", b"\x06") == (list(found.value_offsets), found.value_bytes, found.value_validity)
    assert ([0, 0, 2, 3], [0, 1, 2, 2], b"hi") == (
        list(found.header_list_offsets), list(found.header_key_offsets), found.header_key_bytes,
    )  # fmt: skip
    assert ([0, 1, 1, 1], b"1", b"\x05") == (
        list(found.header_value_offsets), found.header_value_bytes, found.header_value_validity,
    )  # fmt: skip
    assert [4, 4, 4, 8, 8] == [
        column.itemsize
        for column in (
            found.key_offsets, found.value_offsets, found.timestamp_types, found.offsets, found.timestamps_ms,
        )
    ]  # fmt: skip


def test_a_column_without_nulls_has_no_bitmap_and_headers_are_there_only_when_asked_for() -> None:
    found = columns.decode(oracle.encode_batch(Batch(records=[Record(key=b"k", value=b"v")])), **EVERYTHING)

    assert (None, None) == (found.key_validity, found.value_validity)
    assert (None, None, None) == (found.header_list_offsets, found.header_key_bytes, found.header_value_validity)
    assert [[]] == found.headers()


def test_cells_are_a_sequence() -> None:
    records = [Record(value=value) for value in (b"a", None, b"c")]

    values = columns.decode(oracle.encode_batch(Batch(records=records)), **EVERYTHING).values()

    assert [b"a", None, b"c"] == list(values) == values[:]
    assert (3, b"c", [None, b"c"]) == (len(values), values[-1], values[1:])
    with pytest.raises(IndexError):
        values[3]


def test_control_batches_are_skipped_but_their_offsets_are_passed() -> None:
    marker = oracle.encode_batch(Batch(base_offset=7, attributes=0x30, records=[Record(key=b"\0\0\0\1", value=b"x")]))

    found = columns.decode(marker, **EVERYTHING)

    assert (0, 8) == (found.count, found.next_offset)


def test_an_emptied_batch_moves_the_offset() -> None:
    emptied = oracle.encode_batch(Batch(base_offset=3, records=[], record_count=0, last_offset_delta=9))

    assert (0, 13) == (lambda found: (found.count, found.next_offset))(columns.decode(emptied, **EVERYTHING))


@pytest.mark.parametrize("at", [0, 1, 30, 70])
def test_a_wrong_crc_is_malformed(at: int) -> None:
    batch = oracle.encode_batch(Batch())
    batch[21 + at % (len(batch) - 21)] ^= 1

    with pytest.raises(Malformed):
        columns.decode(batch, **EVERYTHING)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_that_decompresses_to_more_than_the_limit_is_malformed(codec: int) -> None:
    batch = oracle.encode_batch(Batch(codec=codec, records=[Record(value=bytes(10_000))]))

    with pytest.raises(Malformed):
        columns.decode(batch, start=0, stop=10, decompressed_bytes_max=10_000)


def test_negative_lengths_are_nulls_as_kafka_reads_them() -> None:
    body = b"\x00\x00\x00" + oracle.varint(-5) + oracle.varint(-7) + b"\x00"
    batch = oracle.encode_batch(Batch(), body=oracle.varint(len(body)) + body)

    found = columns.decode(batch, **EVERYTHING)

    assert ([None], [None]) == (list(found.keys()), list(found.values()))


class GuardedMemory:
    """Memory whose last byte is followed by a page that must not be touched: one byte too far kills the process."""

    def __init__(self, size: int) -> None:
        self._size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert 0 == libc.mprotect(ctypes.c_void_p(start + self._size), ctypes.c_size_t(mmap.PAGESIZE), 0)

    def hold(self, data: bytes | bytearray) -> memoryview:
        view = memoryview(self._memory)[self._size - len(data) : self._size]
        view[:] = data
        return view


def mutated(chance: random.Random, seeds: list[bytes]) -> bytearray:
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 5))):
        match chance.randrange(5):
            case 0:
                data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 129, 254, 255))
            case 1:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 2:
                del data[chance.randrange(61, len(data) + 1) :]
            case 3:
                data += chance.randbytes(chance.randrange(1, 12))
            case 4:
                at = chance.randrange(61, len(data) + 1)
                data[at:at] = chance.choice((b"\xff" * 5, b"\x80" * 9, b"\xfe\xff\xff\xff\x0f", b"\x01"))
    return data


def sifted_once(data: memoryview, is_past_horizon: int) -> bytearray:
    """What compaction keeps of a first batch: the newest of every key in it."""
    keys = KeyMap(1 << 20)
    keys.add(data, 0, start=0, is_judged=True, decompressed_bytes_max=1 << 20)
    compaction = CompactionFilter(
        keys, mapped_to=2**62, end=0, producers={}, now_ms=2**62 * is_past_horizon, horizon_ms=-(2**40),
        decompressed_bytes_max=1 << 20,
    )  # fmt: skip
    compaction.filter_batch(data, 0, is_aborted=False, is_idle_marker=False)
    return compaction.out


def test_two_hundred_thousand_hostile_buffers_harm_nothing() -> None:
    chance = random.Random(20)
    record = Record(key=b"key", value=b"v" * 70, headers=[(b"h", b"1"), (b"i", None)])
    seeds = [bytes(oracle.encode_batch(Batch(records=[record] * n))) for n in (1, 2, 30)]
    memory = GuardedMemory(1 << 14)
    seen: set[int] = set()

    for _ in range(200_000):
        hostile = mutated(chance, seeds)
        struct.pack_into(">i", hostile, 8, len(hostile) - 12)
        struct.pack_into(">I", hostile, 17, columns.crc32c(hostile, 21, len(hostile) - 21))
        data = memory.hold(hostile)
        seen.add(columns.check_records(data, None, 1 << 20, True, 0, 2**62)[0])
        seen.add(columns.check_records(seeds[0], data[61:], 1 << 20, True, 0, 2**62)[0])
        assert 0 <= columns.sound_prefix(data, 0, 2**62)[0] <= len(data)
        seen.add(indexed(columns, data, interval=0, is_dense=False)[0][2])
        try:
            found = columns.decode(data, with_headers=True, **EVERYTHING)
            assert len(data) >= found.key_offsets[-1] + found.value_offsets[-1]
        except Malformed:
            seen.add(-1)
        with contextlib.suppress(Malformed):
            out = sifted_once(data, hostile[22] & 1)
            assert len(out) == columns.sound_prefix(out, 0, 2**63 - 1)[0]

    assert {-1, columns.Problem.SOUND, columns.Problem.BROKEN_RECORD, columns.Problem.BYTES_LEFT} <= seen


def test_random_bytes_of_every_size_harm_nothing() -> None:
    chance = random.Random(21)
    memory = GuardedMemory(1 << 14)

    for size in [*range(130), *[chance.randrange(300) for _ in range(20_000)]]:
        data = memory.hold(chance.randbytes(size))
        columns.check_records(data, None, 1 << 20, False, 0, 2**62)
        columns.sound_prefix(data, 0, 2**62)
        indexed(columns, data, interval=0)
        with contextlib.suppress(Malformed):
            assert 0 == columns.decode(data, **EVERYTHING).count
        with contextlib.suppress(Malformed):
            assert not sifted_once(data, 0)


def test_a_crc_outside_of_the_buffer_is_an_index_error() -> None:
    for at, size in ((0, 5), (5, 0), (-1, 1), (0, -1), (2**62, 2**62)):
        with pytest.raises(IndexError):
            columns.crc32c(b"abcd", at, size)


@some
@given(st.binary(max_size=200))
def test_the_crc_is_the_one_of_kafka(data: bytes) -> None:
    assert oracle.crc32c(data) == columns.crc32c(data, 0, len(data))


def test_the_crc_is_right_where_the_function_of_the_library_cannot_be_found() -> None:
    program = """
        import ctypes
        def refuse(*names): raise OSError
        ctypes.CDLL = refuse
        from logmark.wire import columns
        print(columns._find_crc_function(), columns.crc32c(memoryview(bytearray(b"-123456789"))[1:], 0, 9))
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)

    assert f"0 {0xE3069283}\n" == done.stdout
    assert 0 != columns._find_crc_function()  # type: ignore[attr-defined]
