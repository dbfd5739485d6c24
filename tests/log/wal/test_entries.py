"""The bytes of a WAL entry: what was added comes back, and nothing else is ever taken for an entry."""

import pytest

from logmark.errors import Malformed
from logmark.log.wal import entries
from logmark.log.wal.entries import BLOCK_BYTES, HEADER_BYTES, EntryBuilder, partition_key

SALT, OTHER_SALT = b"s" * 16, b"o" * 16
KEY, OTHER_KEY = partition_key(b"t" * 16, 3), partition_key(b"u" * 16, 0)


def build(*batches: tuple[bytes, int, int, int, bytes], number: int = 7, salt: bytes = SALT) -> bytes:
    """An entry of batches, each with its key, segment, position, first offset and bytes, of one record each."""
    builder = EntryBuilder(1024 * 1024)
    for key, base, position, offset, data in batches:
        builder.add(key, base, position, offset, offset + 1, data, len(data))
    return bytes(builder.seal(number, salt))


def read(entry: bytes, salt: bytes = SALT) -> list[tuple]:
    header = entries.read_header(entry, salt)
    assert header is not None and entries.is_intact(entry, header)
    return [(*run[:-1], bytes(run.data)) for run in entries.read_runs(entry, header)]


def test_what_was_added_comes_back_with_its_partition_and_position() -> None:
    entry = build((KEY, 100, 40, 107, b"abc"), (OTHER_KEY, 0, 0, 0, b"de"))

    assert [
        (b"t" * 16, 3, 100, 40, 107, 108, b"abc"),
        (b"u" * 16, 0, 0, 0, 0, 1, b"de"),
    ] == read(entry)
    header = entries.read_header(entry, SALT)
    assert header is not None and (7, 2, 5) == (header.number, header.run_count, header.data_bytes)


def test_batches_that_lie_next_to_each_other_are_one_run() -> None:
    entry = build((KEY, 0, 0, 0, b"abc"), (KEY, 0, 3, 1, b"de"), (KEY, 0, 5, 2, b"f"))

    assert [(b"t" * 16, 3, 0, 0, 0, 3, b"abcdef")] == read(entry)


@pytest.mark.parametrize(
    "second",
    [(KEY, 0, 4, 1, b"de"), (KEY, 1, 3, 1, b"de"), (OTHER_KEY, 0, 3, 1, b"de"), (KEY, 0, 0, 0, b"de")],
    ids=["a hole", "another segment", "another partition", "back to the start"],
)
def test_batches_that_do_not_continue_each_other_are_runs_of_their_own(second: tuple) -> None:
    runs = read(build((KEY, 0, 0, 0, b"abc"), second))

    assert [b"abc", b"de"] == [run[-1] for run in runs]


# What fits into one block together with its header and its run.
ONE_BLOCK = BLOCK_BYTES - HEADER_BYTES - 56


@pytest.mark.parametrize("size", [1, ONE_BLOCK, ONE_BLOCK + 1, BLOCK_BYTES, 99_999])
def test_an_entry_takes_whole_blocks_and_its_size_is_known_before(size: int) -> None:
    builder = EntryBuilder(EntryBuilder.capacity_for(size))
    assert builder.is_empty and builder.has_room_for(size)
    builder.add(KEY, 0, 0, 0, 1, b"x" * size, size)
    said = builder.size_bytes
    entry = builder.seal(1, SALT)

    assert 0 == len(entry) % BLOCK_BYTES and said == len(entry) <= builder.capacity
    header = entries.read_header(entry, SALT)
    assert header is not None and len(entry) == header.size_bytes


def test_a_builder_that_is_full_says_so_before_anything_is_added() -> None:
    builder = EntryBuilder(1)
    room = next(size for size in range(BLOCK_BYTES, 0, -1) if builder.has_room_for(size))
    builder.add(KEY, 0, 0, 0, 1, b"x" * room, room)

    assert not builder.has_room_for(1)
    assert BLOCK_BYTES == len(builder.seal(1, SALT))


def test_a_builder_without_memory_has_room_for_nothing() -> None:
    assert not EntryBuilder(0).has_room_for(1)


def test_an_entry_repeats_where_the_partitions_of_the_one_before_ended() -> None:
    first = EntryBuilder(8 * BLOCK_BYTES)
    for key, base, position, offset in [(KEY, 0, 0, 0), (OTHER_KEY, 0, 0, 0), (KEY, 0, 3, 1), (KEY, 2, 0, 2)]:
        first.add(key, base, position, offset, offset + 1, b"abc", 3)
    second = EntryBuilder(8 * BLOCK_BYTES, first.ends())
    assert second.is_empty, "ends alone are nothing to write"
    second.add(OTHER_KEY, 0, 3, 1, 2, b"de", 2)

    assert [
        (b"t" * 16, 3, 2, 3, 3, 3, b""),
        (b"u" * 16, 0, 0, 3, 1, 1, b""),
        (b"u" * 16, 0, 0, 3, 1, 2, b"de"),
    ] == read(bytes(second.seal(8, SALT)))
    assert [(OTHER_KEY, 0, 5, 2, 2, 0)] == second.ends(), "only the entry itself is repeated by the next one"


def test_ends_that_are_repeated_take_room_as_runs_do() -> None:
    first = EntryBuilder(64 * BLOCK_BYTES)
    for number in range(200):
        first.add(partition_key(b"t" * 16, number), 0, 0, 0, 1, b"x", 1)
    ends = first.ends()
    builder = EntryBuilder(EntryBuilder.capacity_for(5000, len(ends)), ends)
    assert builder.has_room_for(5000)
    builder.add(KEY, 0, 0, 0, 1, b"x" * 5000, 5000)

    assert builder.size_bytes == len(builder.seal(1, SALT)) <= builder.capacity


def test_memory_that_is_used_again_leaves_nothing_of_the_entry_before() -> None:
    builder = EntryBuilder(8 * BLOCK_BYTES)
    builder.add(KEY, 0, 0, 0, 1, b"\xff" * 20_000, 20_000)
    builder.seal(1, SALT)
    builder.clear()
    builder.add(OTHER_KEY, 0, 0, 0, 1, b"new", 3)
    entry = bytes(builder.seal(2, SALT))

    assert [(b"u" * 16, 0, 0, 0, 0, 1, b"new")] == read(entry)
    assert BLOCK_BYTES == len(entry) and b"\xff" not in entry[HEADER_BYTES + 3 + 56 :]


def test_an_entry_of_another_life_of_the_file_is_none() -> None:
    assert entries.read_header(build((KEY, 0, 0, 0, b"abc")), OTHER_SALT) is None


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_header_with_a_flipped_bit_is_none(at: int) -> None:
    entry = bytearray(build((KEY, 0, 0, 0, b"abc")))
    entry[at] ^= 1

    assert entries.read_header(entry, SALT) is None


@pytest.mark.parametrize("at", range(HEADER_BYTES, HEADER_BYTES + 3 + 56))
def test_an_entry_with_a_flipped_bit_in_its_data_or_runs_is_not_intact(at: int) -> None:
    entry = bytearray(build((KEY, 0, 0, 0, b"abc")))
    entry[at] ^= 0x80
    header = entries.read_header(entry, SALT)

    assert header is not None and not entries.is_intact(entry, header)


def test_an_entry_that_is_cut_short_is_not_intact() -> None:
    entry = build((KEY, 0, 0, 0, b"abc" * 3000))
    header = entries.read_header(entry, SALT)

    assert header is not None and not entries.is_intact(entry[:BLOCK_BYTES], header)


def test_zeros_and_too_few_bytes_are_no_header() -> None:
    assert entries.read_header(bytes(BLOCK_BYTES), SALT) is None
    assert entries.read_header(build((KEY, 0, 0, 0, b"abc"))[: HEADER_BYTES - 1], SALT) is None
    assert entries.read_header(b"", SALT) is None


@pytest.mark.parametrize("data_bytes", [2, 4])
def test_runs_that_do_not_add_up_are_refused(data_bytes: int) -> None:
    entry = build((KEY, 0, 0, 0, b"abc"))
    header = entries.read_header(entry, SALT)
    assert header is not None
    runs_at = HEADER_BYTES + 3
    moved = entry[: HEADER_BYTES + data_bytes].ljust(HEADER_BYTES + data_bytes) + entry[runs_at : runs_at + 56]

    with pytest.raises(Malformed, match="entry 7"):
        list(entries.read_runs(moved, header._replace(data_bytes=data_bytes)))
