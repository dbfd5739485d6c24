"""More files than descriptors: the limit holds, nothing is read from or written to a wrong file."""

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from logmark.disk.descriptors import OpenFiles
from logmark.disk.file_system import RealFile, RealFileSystem, no_sync


def opened(path: Path, among: OpenFiles, *, sync: object = no_sync) -> RealFile:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    return RealFile(str(path), descriptor, sync, among)  # type: ignore[arg-type]


def count_open(folder: Path) -> int:
    """How many descriptors of this process point into a folder."""
    return sum(name.startswith(str(folder)) for name in map(_target, os.listdir("/proc/self/fd")))


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def test_a_hundred_files_are_read_and_written_with_ten_descriptors(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 10)
    files = [opened(tmp_path / str(number), among) for number in range(100)]

    for turn in range(3):
        for number, file in enumerate(files):
            file.pwrite(b"%3d" % number, 3 * turn)
            assert count_open(tmp_path) <= 10
    assert [b"%3d" % number * 3 for number in range(100)] == [file.pread(9, 0) for file in files]
    assert [9] * 100 == [file.size() for file in files]
    assert 10 == len(among)


def test_a_file_with_unsynced_bytes_keeps_its_descriptor(tmp_path: Path) -> None:
    synced: list[int] = []
    among = OpenFiles(limit=lambda: 2)
    first = opened(tmp_path / "first", among, sync=synced.append)
    first.pwrite(b"x", 0)

    others = [opened(tmp_path / str(number), among, sync=synced.append) for number in range(5)]

    # The file that was written to is open until it was synced, whatever else is opened meanwhile.
    assert str(tmp_path / "first") in map(_target, os.listdir("/proc/self/fd"))
    first.sync()
    for file in others:
        file.pread(1, 0)
    assert str(tmp_path / "first") not in map(_target, os.listdir("/proc/self/fd"))


def test_bytes_written_during_a_sync_are_unsynced_still(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 100)
    file = opened(tmp_path / "file", among, sync=lambda _: file.pwrite(b"later", 5))
    file.pwrite(b"first", 0)

    file.sync()

    assert not file.release_descriptor()


def test_the_files_in_use_stay_open_while_others_come_and_go(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 4)
    busy = opened(tmp_path / "busy", among)

    for number in range(50):
        busy.pread(1, 0)
        opened(tmp_path / str(number % 7), among).close()
        others = [opened(tmp_path / str(each), among) for each in range(3)]
        assert str(tmp_path / "busy") in map(_target, os.listdir("/proc/self/fd")), number
        del others


def test_a_file_that_nobody_has_any_more_counts_no_longer(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 100)
    for number in range(20):
        opened(tmp_path / str(number), among)
    gc.collect()

    assert 0 == len(among) == count_open(tmp_path)


def test_a_closed_file_is_not_opened_again(tmp_path: Path) -> None:
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    file.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_a_read_in_a_thread_never_sees_another_files_bytes(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 3)
    files = [opened(tmp_path / str(number), among) for number in range(8)]
    for number, file in enumerate(files):
        file.pwrite(bytes([number]) * 4096, 0)
    wrong: list[int] = []

    def read_all() -> None:
        for _ in range(300):
            wrong.extend(number for number, file in enumerate(files) if file.pread(4096, 0) != bytes([number]) * 4096)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong
    assert len(among) <= 3


def test_files_that_all_wait_for_a_sync_are_synced_rather_than_left_without_a_descriptor(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 4)
    files = RealFileSystem(open_files=among)
    opened = [files.open(str(tmp_path / str(number)), create=True) for number in range(12)]

    for number, file in enumerate(opened):
        file.pwrite(b"%d" % number, 0)

    assert len(among) <= 5
    assert [b"%d" % number for number in range(12)] == [file.pread(10, 0) for file in opened]


def test_the_error_of_such_a_sync_is_told_by_the_next_one(tmp_path: Path) -> None:
    among = OpenFiles(limit=lambda: 1)
    failing = RealFileSystem(open_files=among)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    failing._sync = fail
    first = failing.open(str(tmp_path / "first"), create=True)
    first.pwrite(b"x", 0)
    failing.open(str(tmp_path / "second"), create=True).pwrite(b"y", 0)

    with pytest.raises(OSError, match="the disk is broken"):
        first.sync()
