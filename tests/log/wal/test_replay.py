"""Recovery from a WAL: what is in it is in the segments afterwards, and what never was in it is cut."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from logmark.disk.file_system import RealFileSystem
from logmark.errors import UserError
from logmark.log.wal import inventory, replay
from logmark.log.wal.entries import BLOCK_BYTES, EntryBuilder, partition_key
from logmark.log.wal.files import ENTRIES_AT, WalFile
from logmark.log.wal.log import FOLDER
from logmark.log.wal.recovery_points import FILE_NAME, RecoveryPoint, RecoveryPoints
from logmark.log.wal.replay import Recovered
from logmark.testing.faulty_file_system import FaultyFileSystem
from logmark.wire.columns import crc32c

DIRECTORY_ID = b"d" * 16
WAL_ID = b"w" * 16
TOPIC = b"t" * 16
KEY, OTHER_KEY = partition_key(TOPIC, 0), partition_key(TOPIC, 1)


class Batch(NamedTuple):
    """A batch of one record, and where it belongs."""

    offset: int
    position: int
    data: bytes
    key: bytes = KEY
    base: int = 0


class WalWriter:
    """Writes the WAL and the segments of a directory as a broker that was killed has left them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = FaultyFileSystem(RealFileSystem(sync=False))
        (path / FOLDER).mkdir()
        self._sizes: dict[str, int] = {}
        self.write_points()
        self.write_inventory()

    def write_points(
        self, points: dict[bytes, RecoveryPoint] | None = None, *, first_entry: int = 1, wal_id: bytes = WAL_ID
    ) -> None:
        (self.path / FOLDER / FILE_NAME).write_bytes(RecoveryPoints(wal_id, first_entry, points or {}).encode())

    def write(
        self, name: str, sequence: int, entries: Sequence[tuple[int, Sequence[Batch]]], *, wal_id: bytes = WAL_ID
    ) -> list[int]:
        """Write a file with numbered entries, and return where each begins."""
        file = WalFile(f"{self.path}/{FOLDER}/{name}.wal", 64 * BLOCK_BYTES, self.files)
        file.create(wal_id, sequence)
        positions = []
        for number, batches in entries:
            builder = EntryBuilder(16 * BLOCK_BYTES)
            for each in batches:
                builder.add(each.key, each.base, each.position, each.offset, each.offset + 1, each.data, len(each.data))
            entry = builder.seal(number, file.header.salt)
            file.file.pwrite(entry, file.position)
            positions.append(file.position)
            file.position += len(entry)
        file.close()
        self._sizes[f"{name}.wal"] = file.capacity
        self.write_inventory()
        return positions

    def write_inventory(self, directory_id: bytes = DIRECTORY_ID) -> None:
        owner = inventory.WalOwner(directory_id, WAL_ID)
        (self.path / FOLDER / inventory.FILE_NAME).write_bytes(inventory.encode(owner, self._sizes))

    def write_older_inventory(self) -> None:
        content = "".join(f"{size} {name}\n" for name, size in self._sizes.items()).encode()
        checksum = crc32c(content, 0, len(content)).to_bytes(4, "big")
        (self.path / FOLDER / inventory.FILE_NAME).write_bytes(content + checksum)

    def damage(self, name: str, at: int) -> None:
        path = self.path / FOLDER / f"{name}.wal"
        data = bytearray(path.read_bytes())
        data[at] ^= 0xFF
        path.write_bytes(data)

    def segment(self, data: bytes, *, index: int = 0, base: int = 0) -> Path:
        """Write what a segment holds."""
        path = self.log(index, base)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def log(self, index: int = 0, base: int = 0) -> Path:
        return self.path / f"clicks-{index}" / f"{base:020d}.log"

    def read(self) -> replay.WalContent:
        return replay.read(str(self.path), DIRECTORY_ID, self.files)

    def recover(self, *, deleted: bool = False) -> dict[bytes, Recovered]:
        work = replay.Replay(
            self.read(),
            self.files,
            folder_of=lambda topic_id, index: None if deleted else f"{self.path}/clicks-{index}",
            make_folder=lambda folder, topic_id: Path(folder).mkdir(exist_ok=True),
        )
        work.check()
        return work.run()


@pytest.fixture
def writer(tmp_path: Path) -> WalWriter:
    return WalWriter(tmp_path)


ABC = [(1, [Batch(0, 0, b"aa")]), (2, [Batch(1, 2, b"bb")]), (3, [Batch(2, 4, b"cc")])]


def contents(writer: WalWriter) -> dict[str, bytes]:
    """Every file outside of the WAL."""
    return {
        str(path.relative_to(writer.path)): path.read_bytes()
        for path in writer.path.rglob("*")
        if path.is_file() and FOLDER not in path.parts
    }


def test_every_entry_is_in_its_segment_afterwards(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    writer.write("0002", 2, [(4, [Batch(0, 0, b"xx", OTHER_KEY), Batch(3, 0, b"dd", base=3)])])

    assert {KEY: Recovered(0, 4), OTHER_KEY: Recovered(0, 1)} == writer.recover()
    assert b"aabbcc" == writer.log().read_bytes()
    assert b"dd" == writer.log(base=3).read_bytes()
    assert b"xx" == writer.log(1).read_bytes()


def test_a_recovery_can_be_done_again(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    first = writer.recover()
    before = contents(writer)

    assert first == writer.recover()
    assert before == contents(writer)


def test_files_are_read_in_the_order_of_their_sequence_and_not_of_their_names(writer: WalWriter) -> None:
    writer.write("0002", 8, ABC[:2])
    writer.write("0001", 9, ABC[2:])

    assert {KEY: Recovered(0, 3)} == writer.recover()
    assert [] == writer.read().damaged


def test_entries_below_the_first_one_that_is_needed_are_left_alone(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(2, 0, 4)}, first_entry=3)
    writer.segment(b"AABB")
    writer.write("0001", 1, ABC)

    assert {KEY: Recovered(2, 3)} == writer.recover()
    assert b"AABBcc" == writer.log().read_bytes()


def test_runs_below_the_recovery_point_of_their_partition_are_left_alone(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(2, 0, 4)}, first_entry=1)
    writer.segment(b"AABB")
    writer.write("0001", 1, ABC)

    assert {KEY: Recovered(2, 3)} == writer.recover()
    assert b"AABBcc" == writer.log().read_bytes()


def test_what_lies_behind_the_last_run_was_never_acknowledged_and_is_cut(writer: WalWriter) -> None:
    writer.segment(b"aabbccdd")
    later = writer.segment(b"ee", base=4)
    for suffix in ("index", "timeindex", "txnindex"):
        later.with_suffix(f".{suffix}").write_bytes(b"?")
    writer.write("0001", 1, ABC)

    assert {KEY: Recovered(0, 3)} == writer.recover()
    assert {"clicks-0/00000000000000000000.log": b"aabbcc"} == contents(writer)


def test_what_lies_behind_the_recovery_point_of_a_partition_without_runs_is_cut(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(2, 0, 4)})
    writer.segment(b"aabbcc")
    writer.segment(b"dd", base=3)

    assert {KEY: Recovered(2, 2)} == writer.recover()
    assert {"clicks-0/00000000000000000000.log": b"aabb"} == contents(writer)


def test_segments_below_the_recovery_point_stay_as_they_are(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(7, 5, 4)})
    writer.segment(b"cleaned", base=0)
    writer.segment(b"??aa", base=5)
    writer.write("0001", 1, [(1, [Batch(7, 4, b"bb", base=5)])])

    assert {KEY: Recovered(7, 8)} == writer.recover()
    assert (b"cleaned", b"??aabb") == (writer.log().read_bytes(), writer.log(base=5).read_bytes())


def test_a_run_that_goes_back_replaces_what_was_there(writer: WalWriter) -> None:
    """The log was cut back while the broker ran, because the disk was full."""
    writer.write(
        "0001", 1,
        [*ABC, (4, [Batch(3, 0, b"dd", base=3)]), (5, [Batch(1, 2, b"BBB")]), (6, [Batch(2, 5, b"C")])],
    )  # fmt: skip

    assert {KEY: Recovered(0, 3)} == writer.recover()
    assert {"clicks-0/00000000000000000000.log": b"aaBBBC"} == contents(writer)


def test_of_two_entries_with_one_number_the_later_one_counts(writer: WalWriter) -> None:
    """The first was written, its sync failed, and the next one went to another file."""
    writer.write("0001", 1, [ABC[0], (2, [Batch(1, 2, b"failed")])])
    writer.write("0002", 2, [(2, [Batch(1, 2, b"bb")]), ABC[2]])

    assert {KEY: Recovered(0, 3)} == writer.recover()
    assert b"aabbcc" == writer.log().read_bytes()


@pytest.mark.parametrize("at", [0, 30, 48, 49])
def test_a_torn_last_entry_is_cut(writer: WalWriter, at: int) -> None:
    positions = writer.write("0001", 1, ABC)
    writer.damage("0001", positions[2] + at)
    writer.segment(b"aabbcc")

    assert {KEY: Recovered(0, 2)} == writer.recover()
    assert b"aabb" == writer.log().read_bytes()
    assert [] == writer.read().damaged


@pytest.mark.parametrize("at", [0, 30, 48, 49])
def test_a_damaged_entry_before_a_later_one_is_reported_and_the_others_are_recovered(
    writer: WalWriter, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    positions = writer.write("0001", 1, ABC)
    writer.damage("0001", positions[1] + at)
    writer.segment(b"aabb")
    with caplog.at_level(logging.ERROR):
        recovered = writer.recover()

    assert {KEY: Recovered(0, 3, is_whole=False)} == recovered
    assert b"aabbcc" == writer.log().read_bytes(), "what the segment has of a damaged entry is kept"
    assert [(2, 2)] == writer.read().damaged
    assert "entries 2 to 2" in caplog.text


def test_a_segment_that_only_a_damaged_entry_knows_is_kept(writer: WalWriter) -> None:
    entries = [ABC[0], (2, [Batch(1, 0, b"bb", base=1)]), (3, [Batch(0, 0, b"xx", OTHER_KEY)])]
    positions = writer.write("0001", 1, entries)
    writer.damage("0001", positions[1] + 48)
    writer.segment(b"aa")
    kept = writer.segment(b"bb", base=1)

    writer.recover()

    assert b"bb" == kept.read_bytes(), "an acknowledged record was removed because its entry is damaged"


def test_a_damaged_copy_of_a_header_costs_nothing(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    writer.damage("0001", 20)

    assert {KEY: Recovered(0, 3)} == writer.recover()


def refuse(writer: WalWriter) -> str:
    """Say why a recovery is refused, after it was seen that it has changed nothing."""
    before = contents(writer)
    with pytest.raises(UserError) as refused:
        writer.recover()
    assert before == contents(writer)
    assert "Nothing was changed" in str(refused.value)
    return str(refused.value)


def test_a_file_with_two_damaged_headers_is_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    for copy in (0, BLOCK_BYTES):
        writer.damage("0001", copy + 20)

    assert "0001.wal" in refuse(writer)


def test_a_file_that_a_crash_left_without_a_header_is_no_obstacle(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    (writer.path / FOLDER / "0002.wal.new").write_bytes(bytes(ENTRIES_AT))
    (writer.path / FOLDER / "0003.wal.new").write_bytes(b"")

    assert {KEY: Recovered(0, 3)} == writer.recover()


@pytest.mark.parametrize("content", [b"", bytes(ENTRIES_AT)], ids=["empty", "zeros"])
def test_a_file_that_has_its_name_and_no_header_is_refused(writer: WalWriter, content: bytes) -> None:
    """It gets its name after its header is durable, so it had one, and entries perhaps."""
    writer.write("0001", 1, ABC)
    (writer.path / FOLDER / "0002.wal").write_bytes(content)

    assert "0002.wal" in refuse(writer)


def test_a_wal_of_another_directory_is_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    writer.write_inventory(b"e" * 16)

    assert "another data directory" in refuse(writer)


def test_a_file_of_another_directory_is_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC, wal_id=DIRECTORY_ID)
    writer.write("0002", 2, [(4, [Batch(3, 6, b"dd")])], wal_id=b"e" * 16)
    writer.write_points(wal_id=DIRECTORY_ID)
    writer.write_older_inventory()

    assert "another data directory" in refuse(writer)


def test_a_wal_of_an_older_version_whose_files_name_only_their_directory_is_recovered(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC, wal_id=DIRECTORY_ID)
    writer.write_points(wal_id=DIRECTORY_ID)
    writer.write_older_inventory()

    assert {KEY: Recovered(0, 3)} == writer.recover()


def test_a_file_of_the_wal_of_an_earlier_run_is_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC, wal_id=b"e" * 16)

    assert "0001.wal is not of this write-ahead log" in refuse(writer)


def test_the_recovery_points_of_an_earlier_run_are_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    writer.write_points(wal_id=b"e" * 16)

    assert f"{FILE_NAME} is not of this write-ahead log" in refuse(writer)


@pytest.mark.parametrize("content", [None, b"", b"?"])
def test_a_wal_without_readable_points_is_refused(writer: WalWriter, content: bytes | None) -> None:
    writer.write("0001", 1, ABC)
    path = writer.path / FOLDER / FILE_NAME
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    assert FILE_NAME in refuse(writer)


def test_a_wal_that_does_not_fit_its_segments_is_refused(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(0, 0, 0)})
    writer.segment(b"a")
    writer.write("0001", 1, ABC[1:], wal_id=WAL_ID)
    writer.write_points({KEY: RecoveryPoint(1, 0, 2)}, first_entry=2)

    said = refuse(writer)
    assert str(writer.log()) in said and "byte 2" in said and "byte 1" in said


def test_no_partition_is_changed_when_another_one_does_not_fit(writer: WalWriter) -> None:
    writer.write("0001", 1, [(1, [Batch(0, 0, b"aa"), Batch(9, 99, b"xx", OTHER_KEY)])])
    writer.segment(b"longer than that")

    assert "clicks-1" in refuse(writer)


def test_a_deleted_topic_is_left_out(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)

    assert {} == writer.recover(deleted=True)
    assert {} == contents(writer)


def test_everything_that_was_changed_is_synced(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    writer.files.syncs_done.clear()
    writer.recover()

    assert [str(writer.log()), str(writer.log().parent)] == writer.files.syncs_done


def test_a_segment_that_was_cut_is_synced(writer: WalWriter) -> None:
    writer.write_points({KEY: RecoveryPoint(2, 0, 4)})
    writer.segment(b"aabbcc")
    writer.recover()

    assert str(writer.log()) in writer.files.syncs_done


def test_a_line_for_people_says_what_was_recovered(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)

    assert "3 entries with 3 records of 1 partitions" == replay.describe(writer.read(), writer.recover())


@pytest.mark.parametrize("size", [None, 0, 3 * BLOCK_BYTES], ids=["missing", "empty", "cut short"])
def test_a_wal_that_lacks_a_file_or_a_part_of_one_is_refused(writer: WalWriter, size: int | None) -> None:
    """What the file held would pass for records that nobody had acknowledged."""
    writer.write("0001", 1, ABC)
    writer.write("0002", 2, [])
    path = writer.path / FOLDER / "0002.wal"
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)

    with pytest.raises(UserError, match=r"0002\.wal"):
        writer.recover()


def test_a_wal_without_its_inventory_is_refused(writer: WalWriter) -> None:
    writer.write("0001", 1, ABC)
    (writer.path / FOLDER / inventory.FILE_NAME).unlink()

    with pytest.raises(UserError, match="not whole"):
        writer.recover()
