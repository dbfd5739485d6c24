"""Files that somebody adds to a stopped data directory: no start serves them, and every command reports them."""

import shutil
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.clean_stop import CLEAN
from logmark.log.partition import Partition
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire import batches
from tests.cli.conftest import run
from tests.harness.crashed import tree
from tests.log.directory_driver import LogDriver
from tests.log.test_missing_segments import END, FOLDER, LOOKS, SMALL, fill, foreign_batch, leave, look

FORGED = b"forged"


def add_segment(data: Path, base_offset: int, suffix: str = "") -> Path:
    """Add a segment of three well-formed records with its indexes."""
    path = data / FOLDER / f"{base_offset:020d}.log{suffix}"
    path.write_bytes(foreign_batch(base_offset))
    for index in (".index", ".timeindex"):
        path.with_name(f"{base_offset:020d}{index}{suffix}").write_bytes(b"")
    return path


def read_all(partition: Partition) -> bytes:
    """Return every byte that readers of the log get."""
    content, offset = b"", partition.log_start_offset
    while offset < partition.log_end_offset:
        records = bytes(partition.read(offset, bytes_max=1_000_000))
        content += records
        at = 0
        while at < len(records):
            header = batches.read_header(records, at)
            at, offset = at + header.size, header.next_offset
    return content


def middle_of(data: Path) -> int:
    """Return an offset in the middle of a segment."""
    bases = sorted(int(path.stem) for path in (data / FOLDER).glob("*.log"))
    assert bases[3] - bases[2] > 1
    return bases[2] + 1


def enter_partitions(data: Path) -> None:
    """Let the catalogue have four partitions of the topic."""
    catalog = data / CATALOG
    catalog.write_text(catalog.read_text().replace('"partitions": 1', '"partitions": 4'))


@pytest.mark.parametrize("where", ["behind the last", "far behind the last", "in the middle"])
def test_a_segment_that_is_added_after_a_clean_stop_is_kept_and_never_served(driver: LogDriver, where: str) -> None:
    data = leave(driver, fill(driver), "stopped")
    base = {"behind the last": END, "far behind the last": 1_000_000, "in the middle": middle_of(data)}[where]
    added = add_segment(data, base)
    forged = added.read_bytes()

    partition = driver.reopen(config=SMALL)

    assert END == partition.log_end_offset
    assert FORGED not in read_all(partition)
    assert [] == partition.damage
    (kept,) = added.parent.glob("*.cut")
    assert (f"{added.name}.0.cut", forged) == (kept.name, kept.read_bytes())
    assert [] == list(added.parent.glob(f"{base:020d}.*index"))


def test_the_records_of_a_log_that_never_had_any_cannot_be_added(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    enter_partitions(data)
    other = data / "clicks-1"
    other.mkdir()
    shutil.copy(data / FOLDER / "partition.metadata", other)
    (other / f"{0:020d}.log").write_bytes(foreign_batch(0))

    partition = driver.reopen(index=1)

    assert 0 == partition.log_end_offset


def test_the_output_of_a_compaction_that_is_added_after_a_clean_stop_replaces_nothing(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    before = sorted(path.name for path in (data / FOLDER).glob("*.log"))
    add_segment(data, 0, ".swap")

    partition = driver.reopen(config=SMALL)

    assert before == sorted(path.name for path in (data / FOLDER).glob("*.log"))
    assert FORGED not in read_all(partition)
    assert [f"{0:020d}.log.swap.0.cut"] == [path.name for path in (data / FOLDER).glob("*.cut")]


def test_batches_that_are_added_to_a_log_after_a_clean_stop_are_cut_and_kept(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    path = sorted((data / FOLDER).glob("*.log"))[-1]
    sound = path.read_bytes()
    path.write_bytes(sound + foreign_batch(END))

    partition = driver.reopen(config=SMALL)

    assert END == partition.log_end_offset
    assert sound == path.read_bytes()
    (kept,) = path.parent.glob("*.cut")
    assert foreign_batch(END) == kept.read_bytes()


def test_a_start_that_is_killed_leaves_the_next_one_to_move_added_files_away(
    driver: LogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The mark of the clean stop, without which the list does not count, goes after the additions."""
    data = leave(driver, fill(driver), "stopped")
    add_segment(data, END)
    seen = []

    def remove(self: FaultyFileSystem, path: str) -> None:
        seen.append((Path(path).name, (data / FOLDER / f"{END:020d}.log").exists()))
        original(self, path)

    original = FaultyFileSystem.remove
    monkeypatch.setattr(FaultyFileSystem, "remove", remove)

    driver.reopen(config=SMALL)

    assert (CLEAN, False) in seen


def test_a_second_addition_of_the_same_name_does_not_replace_what_was_kept_of_the_first(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    for _ in range(3):
        add_segment(data, 1_000_000)
        driver.reopen(config=SMALL)
        driver.stop()

    assert 3 == len(list((data / FOLDER).glob("*.cut")))


@pytest.mark.parametrize("command", [*LOOKS, ("recover",)], ids=" ".join)
@pytest.mark.parametrize("suffix", ["", ".swap"], ids=["a segment", "the output of a compaction"])
def test_every_command_reports_an_addition_and_changes_nothing(
    driver: LogDriver, command: tuple[str, ...], suffix: str
) -> None:  # fmt: skip
    data = leave(driver, fill(driver), "stopped")
    added = add_segment(data, END, suffix)
    before = tree(data)

    done = look(data, command)

    assert 1 == done.exit_code, done.out + done.error
    assert f"{FOLDER}/{added.name}" in done.out + done.error
    assert before == tree(data)


def test_programs_get_additions_from_recover(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    added = add_segment(data, END)

    (addition,) = run("recover", str(data), "--dry-run", "--output", "json").json["additions"]

    assert addition.startswith(f"{FOLDER}/{added.name} from byte 0 on")


def test_a_repair_does_not_make_an_addition_a_part_of_the_log(driver: LogDriver) -> None:
    data = leave(driver, fill(driver), "stopped")
    add_segment(data, END)

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code

    assert 0 == run("verify", str(data)).exit_code
    partition = driver.reopen(config=SMALL)
    assert END == partition.log_end_offset
    assert FORGED not in read_all(partition)


def test_a_backup_leaves_an_addition_out_and_says_so(driver: LogDriver, tmp_path: Path) -> None:
    data = leave(driver, fill(driver), "stopped")
    added = add_segment(data, END)

    done = run("backup", str(data), str(tmp_path / "backup"))

    assert 1 == done.exit_code, done.out + done.error
    assert f"{FOLDER}/{added.name}" in done.out + done.error
    assert all(FORGED not in path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file())


# Exchanged folders


def write_two_logs(driver: LogDriver, *, more: int = 0) -> Path:
    """Leave two partitions of one topic with records of the same sizes, the second one with more of them."""
    for index in (0, 1):
        partition = driver.create(index=index)
        for number in range(5 + more * index):
            driver.append(partition, b"record %d of %d" % (number, index))
    driver.append(driver.create(index=2), b"another")
    data = leave(driver, driver.create(index=3), "stopped")
    enter_partitions(data)
    return data


def exchange(data: Path) -> None:
    """Exchange the folders of the two partitions."""
    (data / "clicks-0").rename(data / "aside")
    (data / "clicks-1").rename(data / "clicks-0")
    (data / "aside").rename(data / "clicks-1")


@pytest.mark.parametrize("more", [0, 3], ids=["same size", "other size"])
def test_a_start_refuses_exchanged_folders_and_changes_nothing(driver: LogDriver, more: int) -> None:
    data = write_two_logs(driver, more=more)
    exchange(data)
    before = tree(data)

    with pytest.raises(UserError, match=r"clicks-[01]/0{20}.log is not the segment that the last clean stop has left"):
        driver.reopen(index=0)

    if driver.directory is not None:
        driver.stop()
    contents = {path: content for path, (content, _) in before.items()}
    assert contents == {path: content for path, (content, _) in tree(data).items()}
    exchange(data)
    assert b"record 4 of 0" in read_all(driver.reopen(index=0))


@pytest.mark.parametrize("command", [("verify",), ("recover",), ("verify", "--repair", "--yes")], ids=" ".join)
def test_every_command_reports_exchanged_folders_and_changes_nothing(
    driver: LogDriver, command: tuple[str, ...],
) -> None:
    data = write_two_logs(driver)
    exchange(data)
    before = tree(data)

    done = run(command[0], str(data), *command[1:])

    assert 1 == done.exit_code, done.out + done.error
    assert "exchanged" in done.out + done.error
    assert before == tree(data)


def test_an_operator_can_keep_exchanged_folders_by_deleting_the_list(driver: LogDriver) -> None:
    data = write_two_logs(driver)
    exchange(data)
    (data / checkpoints.SEGMENTS).unlink()

    assert b"record 4 of 1" in read_all(driver.reopen(index=0))


def test_a_first_batch_that_is_damaged_is_damage_and_no_exchange(driver: LogDriver) -> None:
    data = write_two_logs(driver)
    path = data / "clicks-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)

    partition = driver.reopen(index=0)

    assert 5 == partition.log_end_offset


def test_a_list_that_lacks_a_partition_is_not_left_behind(driver: LogDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next start would take all segments of that partition for additions."""
    partition = fill(driver)
    monkeypatch.setattr(Partition, "_list_segments", lambda self: (_ for _ in ()).throw(OSError(5, "fails")))
    data = leave(driver, partition, "stopped")
    monkeypatch.undo()

    assert not (data / checkpoints.SEGMENTS).exists()
    assert END == driver.reopen(config=SMALL).log_end_offset
