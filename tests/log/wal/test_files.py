"""One file of the WAL: only entries of its present life are found, whatever else lies in it."""

from pathlib import Path

import pytest

from logmark.disk.file_system import RealFileSystem
from logmark.log.wal.entries import BLOCK_BYTES, EntryBuilder, partition_key
from logmark.log.wal.files import ENTRIES_AT, FileHeader, FileReader, WalFile

FILES = RealFileSystem(sync=False)
DIRECTORY_ID = b"d" * 16
KEY = partition_key(b"t" * 16, 0)
CAPACITY = 32 * BLOCK_BYTES


@pytest.fixture
def file(tmp_path: Path) -> WalFile:
    made = WalFile(str(tmp_path / "0001.wal"), CAPACITY, FILES)
    made.create(DIRECTORY_ID, 1)
    yield made
    made.close()


def write(file: WalFile, number: int, data: bytes) -> bytes:
    """Write an entry with one run behind the last one, and return its bytes."""
    builder = EntryBuilder(EntryBuilder.capacity_for(len(data)))
    builder.add(KEY, 0, 0, number, number + 1, data, len(data))
    entry = builder.seal(number, file.header.salt)
    assert file.has_room_for(len(entry))
    file.file.pwrite(entry, file.position)
    file.position += len(entry)
    return bytes(entry)


def scan(path: str) -> list[tuple[int, list[bytes] | None]]:
    """The numbers of the entries that a recovery finds, and the data of those that are intact."""
    reader = FileReader(path, FILES)
    found = [(each.header.number, each.runs and [bytes(run.data) for run in each.runs]) for each in reader.scan()]
    reader.close()
    return found


def flip(path: str, at: int, mask: int = 0xFF) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= mask
    Path(path).write_bytes(data)


def test_a_new_file_is_as_large_as_it_will_ever_be_and_holds_no_entry(file: WalFile) -> None:
    assert CAPACITY == Path(file.path).stat().st_size
    assert [] == scan(file.path)


def test_entries_are_found_in_their_order(file: WalFile) -> None:
    for number, data in enumerate([b"a", b"b" * 10_000, b"c"]):
        write(file, number, data)

    assert [(0, [b"a"]), (1, [b"b" * 10_000]), (2, [b"c"])] == scan(file.path)


def test_a_file_has_room_up_to_its_end_and_not_beyond(file: WalFile) -> None:
    assert file.has_room_for(CAPACITY - ENTRIES_AT)
    assert not file.has_room_for(CAPACITY - ENTRIES_AT + 1)
    write(file, 1, b"x" * (CAPACITY - ENTRIES_AT - 200))
    assert not file.has_room_for(1)
    assert [1] == [number for number, _ in scan(file.path)]


def test_an_entry_of_the_files_former_life_is_not_found(file: WalFile) -> None:
    for number in range(5):
        write(file, number, b"old")
    salt = file.header.salt
    file.begin(DIRECTORY_ID, 2)

    assert salt != file.header.salt and (2, ENTRIES_AT) == (file.header.sequence, file.position)
    assert [] == scan(file.path)
    write(file, 9, b"new")
    assert [(9, [b"new"])] == scan(file.path)


def test_a_value_that_is_an_entry_a_header_or_zeros_is_never_taken_for_one(file: WalFile) -> None:
    old = write(file, 1, b"old")
    header = file.header.encode()
    file.begin(DIRECTORY_ID, 2)
    own = write(file, 5, b"first")
    # Wherever the bytes lie, one copy of each begins at the start of a block.
    inner = b"".join((old, own, header, bytes(BLOCK_BYTES), own[:48]))
    data = b"".join(b"\0" * (BLOCK_BYTES - 48) + part for part in (inner, old, own))
    write(file, 6, data)
    write(file, 7, b"last")

    assert [(5, [b"first"]), (6, [data]), (7, [b"last"])] == scan(file.path)


def test_entries_of_the_former_life_inside_a_damaged_entry_are_not_found(file: WalFile) -> None:
    old = write(file, 1, b"old")
    file.begin(DIRECTORY_ID, 2)
    write(file, 5, b"\0" * (BLOCK_BYTES - 48) + old * 3)
    write(file, 6, b"last")
    flip(file.path, ENTRIES_AT)

    assert [(6, [b"last"])] == scan(file.path)


@pytest.mark.parametrize("copy", [0, BLOCK_BYTES])
@pytest.mark.parametrize("at", [0, 8, 15, 20, 40, 52, 55])
def test_a_damaged_copy_of_the_header_costs_nothing(file: WalFile, copy: int, at: int) -> None:
    write(file, 1, b"kept")
    flip(file.path, copy + at)

    assert [(1, [b"kept"])] == scan(file.path)
    reader = FileReader(file.path, FILES)
    assert file.header == reader.header
    reader.close()


def test_a_file_without_a_header_has_no_entries(file: WalFile) -> None:
    write(file, 1, b"x")
    for copy in (0, BLOCK_BYTES):
        flip(file.path, copy)
    reader = FileReader(file.path, FILES)

    assert (None, []) == (reader.header, list(reader.scan()))
    reader.close()


def test_a_file_has_its_name_only_when_its_header_is_durable(tmp_path: Path) -> None:
    names = []

    class Watching(RealFileSystem):
        def replace(self, source: str, target: str) -> None:
            names.append((Path(source).name, FileReader(source, FILES).header is not None))
            super().replace(source, target)

    WalFile(str(tmp_path / "0002.wal"), CAPACITY, Watching()).create(DIRECTORY_ID, 1)

    assert [("0002.wal.new", True)] == names


def test_the_newer_of_two_headers_counts_and_a_crash_between_them_costs_nothing(file: WalFile) -> None:
    """A crash came after the first copy of the next life was durable, or while it was written."""
    second = FileHeader(DIRECTORY_ID, 2, b"s" * 16)
    path = Path(file.path)
    blocks = path.read_bytes()

    path.write_bytes(second.encode() + blocks[BLOCK_BYTES:])
    assert second == FileReader(file.path, FILES).header
    path.write_bytes(second.encode()[:512].ljust(BLOCK_BYTES, b"?")[::-1] + blocks[BLOCK_BYTES:])
    assert file.header == FileReader(file.path, FILES).header


def test_an_entry_whose_data_is_damaged_is_named_and_the_others_are_found(file: WalFile) -> None:
    for number in range(3):
        write(file, number, b"x" * 5000)
    flip(file.path, ENTRIES_AT + 2 * BLOCK_BYTES + 1000)

    assert [(0, [b"x" * 5000]), (1, None), (2, [b"x" * 5000])] == scan(file.path)


def test_an_entry_whose_header_is_damaged_is_missed_and_the_others_are_found(file: WalFile) -> None:
    for number in range(3):
        write(file, number, b"x" * 5000)
    flip(file.path, ENTRIES_AT + 2 * BLOCK_BYTES + 20)

    assert [0, 2] == [number for number, _ in scan(file.path)]


def test_an_entry_that_the_file_is_too_short_for_is_not_found(file: WalFile) -> None:
    write(file, 0, b"kept")
    write(file, 1, b"x" * 5000)
    data = Path(file.path).read_bytes()
    Path(file.path).write_bytes(data[: ENTRIES_AT + 2 * BLOCK_BYTES])

    assert [0] == [number for number, _ in scan(file.path)]


def test_the_newer_intact_copy_of_a_header_counts() -> None:
    old, new = FileHeader(DIRECTORY_ID, 6, b"o" * 16), FileHeader(DIRECTORY_ID, 7, b"s" * 16)
    torn = new.encode()[:30].ljust(BLOCK_BYTES, b"?")
    assert ENTRIES_AT == 2 * len(new.encode())

    assert new == FileHeader.decode(new.encode() * 2)
    assert new == FileHeader.decode(new.encode() + old.encode()), "the second copy was not written before the crash"
    assert old == FileHeader.decode(torn + old.encode()), "the first copy was torn by the crash"
    assert new == FileHeader.decode(new.encode() + torn), "the second copy was torn by the crash"
    assert FileHeader.decode(torn * 2) is None
    assert FileHeader.decode(b"") is None
