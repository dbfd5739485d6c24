"""The files of a WAL: they grow in number up to a limit, wait for a flush, and are used again."""

import errno
from pathlib import Path

import pytest

from logmark.disk.file_system import RealFileSystem
from logmark.log.wal import inventory
from logmark.log.wal import log as wal
from logmark.log.wal.entries import BLOCK_BYTES, partition_key
from logmark.log.wal.files import ENTRIES_AT, FileReader, WalFile
from logmark.log.wal.log import WalLimits, WriteAheadLog
from logmark.log.wal.recovery_points import FILE_NAME, RecoveryPoint, RecoveryPoints
from logmark.testing.faulty_file_system import FaultyFileSystem

DIRECTORY_ID = b"d" * 16
POINTS = {partition_key(b"t" * 16, 0): RecoveryPoint(1, 0, 60)}
FILE_BYTES = ENTRIES_AT + 2 * BLOCK_BYTES


@pytest.fixture
def files() -> FaultyFileSystem:
    return FaultyFileSystem(RealFileSystem(sync=False))


@pytest.fixture
def new_wal(tmp_path: Path, files: FaultyFileSystem) -> WriteAheadLog:
    """A WAL of at most four files, each with room for two blocks of entries."""
    log = WriteAheadLog(
        str(tmp_path), DIRECTORY_ID, files, WalLimits(4 * FILE_BYTES, FILE_BYTES, FILE_BYTES)
    )
    log.create(POINTS)
    yield log
    log.close()


def reserve(log: WriteAheadLog, size: int = 0) -> WalFile | None:
    """Make the next file ready, if one may be had."""
    reserved = log.reserve(size)
    if reserved is None:
        return None
    file, make_ready = reserved
    make_ready()
    log.add_ready(file)
    return file


def enter(log: WriteAheadLog, size: int = BLOCK_BYTES) -> WalFile | None:
    """Take the place of an entry, as group commit does."""
    file = log.file_for(size)
    if file is not None:
        file.position += size
        file.last_number = log.next_number
        log.next_number += 1
    return file


def fill(log: WriteAheadLog) -> list[WalFile]:
    """Take entries until there is no file left."""
    used: list[WalFile] = []
    while True:
        file = enter(log)
        if file is None and reserve(log) is None:
            return used
        if file is not None and file not in used:
            used.append(file)


def test_a_new_wal_is_complete_when_it_has_its_name(new_wal: WriteAheadLog, tmp_path: Path) -> None:
    assert [wal.FOLDER] == [path.name for path in tmp_path.iterdir()]
    assert {"0001.wal", FILE_NAME, inventory.FILE_NAME} == {path.name for path in (tmp_path / wal.FOLDER).iterdir()}
    content = (tmp_path / wal.FOLDER / FILE_NAME).read_bytes()
    assert RecoveryPoints(new_wal.id, 1, POINTS) == RecoveryPoints.decode(content)
    assert new_wal.is_open and new_wal.file_for(BLOCK_BYTES).is_in_place()
    assert f"{tmp_path}/{wal.FOLDER}/0001.wal" == new_wal.file_for(BLOCK_BYTES).path


def test_the_folder_gets_its_name_after_its_content_is_durable(tmp_path: Path, files: FaultyFileSystem) -> None:
    log = WriteAheadLog(str(tmp_path), DIRECTORY_ID, files, WalLimits(first_file_bytes=FILE_BYTES))
    seen: list[list[str]] = []
    replace = files.replace

    def note(source: str, target: str) -> None:
        seen.append([path.rpartition("/")[2] for path in files.syncs_done])
        replace(source, target)

    files.replace = note  # type: ignore[method-assign]
    log.create(POINTS)

    # Its zeros and both copies of its header, and only then the name.
    first = ["0001.wal.new"] * 3
    assert [first, [*first, wal.UNFINISHED[0], FILE_NAME, inventory.FILE_NAME, wal.UNFINISHED[0]]] == seen
    assert str(tmp_path) == files.syncs_done[-1]
    log.close()


@pytest.mark.parametrize("part", ["0001.wal", FILE_NAME, wal.UNFINISHED[0]])
def test_a_wal_that_could_not_be_made_is_made_later(tmp_path: Path, files: FaultyFileSystem, part: str) -> None:
    log = WriteAheadLog(str(tmp_path), DIRECTORY_ID, files, WalLimits(first_file_bytes=FILE_BYTES))
    files.fail_syncs(part, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.create(POINTS)
    assert not log.is_open and not (tmp_path / wal.FOLDER).exists()
    files.heal()
    log.create(POINTS)

    assert log.file_for(BLOCK_BYTES).is_in_place()
    log.close()


def test_a_wal_whose_name_could_not_be_synced_is_made_later(tmp_path: Path, files: FaultyFileSystem) -> None:
    log = WriteAheadLog(str(tmp_path), DIRECTORY_ID, files, WalLimits(first_file_bytes=FILE_BYTES))
    sync = files.sync_directory

    def fail_for_the_directory(path: str) -> None:
        if path == str(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    files.sync_directory = fail_for_the_directory  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space"):
        log.create(POINTS)
    files.sync_directory = sync  # type: ignore[method-assign]
    log.create(POINTS)

    assert log.file_for(BLOCK_BYTES).is_in_place()
    log.close()


@pytest.mark.parametrize("failures", [1, 2])
def test_a_file_whose_name_could_not_be_synced_leaves_a_wal_that_is_whole(
    new_wal: WriteAheadLog, files: FaultyFileSystem, failures: int
) -> None:
    while enter(new_wal):
        pass
    sync, left = files.sync_directory, failures

    def fail_behind_the_inventory(path: str) -> None:
        nonlocal left
        if left and len(inventory.decode(files.read(f"{new_wal.folder}/{inventory.FILE_NAME}")).sizes) > 1:
            left -= 1
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    files.sync_directory = fail_behind_the_inventory  # type: ignore[method-assign]
    reserved = new_wal.reserve()
    assert reserved is not None
    file, make_ready = reserved
    with pytest.raises(OSError, match="Input/output"):
        make_ready()
    new_wal.forget_reserved(file)

    inventory.check(new_wal.folder, files)


def test_entries_go_to_the_current_file_until_it_is_full_and_then_to_the_one_in_reserve(new_wal: WriteAheadLog) -> None:
    first = enter(new_wal)
    assert first is enter(new_wal)
    assert enter(new_wal) is None, "no file has room"
    second = reserve(new_wal)

    assert second is enter(new_wal) and second is not first
    assert (1, 2) == (first.header.sequence, second.header.sequence)


def test_one_file_is_kept_in_reserve(new_wal: WriteAheadLog) -> None:
    assert reserve(new_wal) is not None
    assert reserve(new_wal) is None


def test_the_files_take_no_more_than_their_limit_until_a_flush_frees_them(new_wal: WriteAheadLog) -> None:
    used = fill(new_wal)

    assert 4 == len(used) and new_wal.is_pressed
    assert new_wal.reserve() is None
    assert [] == new_wal.release(new_wal.next_number - 2), "nothing is removed: the files are used again"
    for _ in range(3):
        assert reserve(new_wal) in used
        enter(new_wal)
        enter(new_wal)
    assert new_wal.reserve() is None
    assert 4 == len(list(Path(new_wal.folder).glob("*.wal")))


def test_a_flush_of_a_part_frees_only_the_files_below_it(new_wal: WriteAheadLog) -> None:
    used = fill(new_wal)
    new_wal.release(4)

    assert used[0] is reserve(new_wal)
    assert enter(new_wal) is used[0] is enter(new_wal)
    assert new_wal.reserve() is None, "the file with entry 4 is still needed"


def test_the_current_file_is_never_freed(new_wal: WriteAheadLog) -> None:
    current = enter(new_wal)
    new_wal.release(new_wal.next_number)

    assert current is enter(new_wal)


def test_a_file_that_is_used_again_has_a_higher_sequence_and_none_of_its_entries(new_wal: WriteAheadLog) -> None:
    used = fill(new_wal)
    salts = {file.header.salt for file in used}
    new_wal.release(new_wal.next_number - 2)
    again = reserve(new_wal)

    assert 5 == again.header.sequence and again.header.salt not in salts
    reader = FileReader(again.path, RealFileSystem(sync=False))
    assert (again.header, []) == (reader.header, list(reader.scan()))
    reader.close()


def test_the_wal_is_pressed_when_a_quarter_of_its_bytes_waits_for_a_flush(new_wal: WriteAheadLog) -> None:
    enter(new_wal)
    enter(new_wal)
    assert not new_wal.is_pressed
    reserve(new_wal)
    enter(new_wal)
    assert new_wal.is_pressed
    new_wal.release(new_wal.next_number)
    assert not new_wal.is_pressed


def test_an_entry_larger_than_a_file_gets_a_file_of_its_own_which_goes_when_it_is_flushed(
    new_wal: WriteAheadLog,
) -> None:
    reserve(new_wal)
    enter(new_wal)
    size = 5 * FILE_BYTES
    assert new_wal.file_for(size) is None
    large = reserve(new_wal, size)
    assert large is enter(new_wal, size) and size <= large.capacity - ENTRIES_AT
    following = reserve(new_wal)
    assert following is enter(new_wal), "the file in reserve was kept for the next entry"

    dropped = new_wal.release(new_wal.next_number - 1)
    assert [large] == dropped
    new_wal.discard(dropped)
    assert not Path(large.path).exists()


def test_entries_larger_than_a_file_keep_to_the_limit_too(new_wal: WriteAheadLog) -> None:
    size = 2 * FILE_BYTES
    count = 0
    while count < 20 and reserve(new_wal, size) is not None:
        assert enter(new_wal, size) is not None
        count += 1

    assert 1 <= count <= 4
    dropped = new_wal.release(new_wal.next_number)
    new_wal.discard(dropped)
    assert reserve(new_wal, size) is not None


def test_a_file_that_cannot_be_filled_holds_no_space_and_counts_for_nothing(
    new_wal: WriteAheadLog, files: FaultyFileSystem
) -> None:
    files.fail_writes("0002.wal", errno.ENOSPC)
    file, make_ready = new_wal.reserve()
    with pytest.raises(OSError, match="No space"):
        make_ready()
    new_wal.forget_reserved(file)

    assert not Path(file.path).exists()
    files.heal()
    assert 4 == len(fill(new_wal)), "the limit is reached with as many files as before"


def test_a_file_in_reserve_has_its_name_and_header_durable(new_wal: WriteAheadLog, files: FaultyFileSystem) -> None:
    files.syncs_done.clear()
    file = reserve(new_wal)

    unnamed = f"{file.path}.new"
    in_inventory = [f"{new_wal.folder}/{inventory.FILE_NAME}.tmp", new_wal.folder]
    assert [unnamed, unnamed, unnamed, new_wal.folder, *in_inventory] == files.syncs_done


def test_a_file_is_out_of_the_inventory_before_it_is_removed(new_wal: WriteAheadLog, files: FaultyFileSystem) -> None:
    file = new_wal.file_for(BLOCK_BYTES)
    name = file.path.rpartition("/")[2]
    seen: list[bool] = []
    remove = files.remove

    def note(path: str) -> None:
        seen.append(name in inventory.decode(files.read(f"{new_wal.folder}/{inventory.FILE_NAME}")).sizes)
        remove(path)

    files.remove = note  # type: ignore[method-assign]
    new_wal.discard([file])

    assert [False] == seen


def test_the_points_replace_those_before_them(new_wal: WriteAheadLog, files: FaultyFileSystem) -> None:
    files.syncs_done.clear()
    new_wal.write_points(7, {})

    assert RecoveryPoints(new_wal.id, 7, {}) == RecoveryPoints.decode(files.read(f"{new_wal.folder}/{FILE_NAME}"))
    assert [f"{new_wal.folder}/{FILE_NAME}.tmp", new_wal.folder] == files.syncs_done


def test_a_wal_that_is_removed_loses_its_name_first_and_then_all(
    new_wal: WriteAheadLog, tmp_path: Path, files: FaultyFileSystem
) -> None:
    files.syncs_done.clear()
    removed: list[str] = []
    remove = files.remove
    files.remove = lambda path: (removed.append(path), remove(path))  # type: ignore[method-assign]
    new_wal.remove()

    assert [] == list(tmp_path.iterdir())
    assert [str(tmp_path)] == files.syncs_done
    assert removed and all(wal.UNFINISHED[1] in path for path in removed)
    assert not new_wal.is_open


@pytest.mark.parametrize("name", wal.UNFINISHED)
def test_what_a_crash_left_on_the_way_to_or_from_the_name_is_removed(
    tmp_path: Path, files: FaultyFileSystem, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "0001.wal").write_bytes(b"?")
    wal.remove_unfinished(str(tmp_path), files)

    assert [] == list(tmp_path.iterdir())


def test_a_wal_that_was_moved_away_is_noticed(new_wal: WriteAheadLog, tmp_path: Path) -> None:
    (tmp_path / wal.FOLDER).rename(tmp_path / "elsewhere")

    assert not new_wal.file_for(BLOCK_BYTES).is_in_place()


def test_the_inventory_of_a_directory_that_took_the_place_of_its_own_is_not_changed(
    new_wal: WriteAheadLog, tmp_path: Path, files: FaultyFileSystem
) -> None:
    """It may take it after the file was made and before it is in the inventory."""
    (tmp_path / "other").mkdir()
    other = WriteAheadLog(str(tmp_path / "other"), DIRECTORY_ID, files)
    other.create(POINTS)
    Path(new_wal.folder).rename(tmp_path / "renamed")
    Path(other.folder).rename(new_wal.folder)
    before = (Path(new_wal.folder) / inventory.FILE_NAME).read_bytes()

    with pytest.raises(OSError, match="belongs to another write-ahead log"):
        new_wal._inventory.add(new_wal.folder, "0002.wal", 1)

    assert before == (Path(new_wal.folder) / inventory.FILE_NAME).read_bytes()
    other.close()
