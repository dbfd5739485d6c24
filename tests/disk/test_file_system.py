"""The file-system port: the strongest sync, atomic writes, the lock, and the faults that tests can switch on."""

import errno
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logmark.disk import file_system as disk
from logmark.disk.file_system import RealFileSystem, strongest_sync
from logmark.testing.faulty_file_system import FaultyFileSystem


def test_linux_syncs_with_fdatasync() -> None:
    assert os.fdatasync is strongest_sync("linux", full_sync=None)


def test_a_platform_we_do_not_know_syncs_with_fsync() -> None:
    assert os.fsync is strongest_sync("freebsd14", full_sync=None)
    assert os.fsync is strongest_sync("darwin", full_sync=None)


def test_macos_syncs_through_the_drives_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(disk.fcntl, "fcntl", lambda descriptor, command: calls.append((descriptor, command)))

    strongest_sync("darwin", full_sync=51)(7)

    assert [(7, 51)] == calls


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_macos_falls_back_where_a_file_system_does_not_know_the_command(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, command: int) -> None:
        raise OSError(number, "unknown here")

    synced: list[int] = []
    monkeypatch.setattr(disk.fcntl, "fcntl", refuse)
    monkeypatch.setattr(disk.os, "fsync", synced.append)

    strongest_sync("darwin", full_sync=51)(7)

    assert [7] == synced


def test_macos_never_hides_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, command: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(disk.fcntl, "fcntl", fail)

    with pytest.raises(OSError, match="broken"):
        strongest_sync("darwin", full_sync=51)(7)


def test_without_sync_nothing_waits_for_the_medium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[int] = []
    monkeypatch.setattr(disk.os, "fdatasync", calls.append)
    monkeypatch.setattr(disk.os, "fsync", calls.append)
    files = RealFileSystem(sync=False)

    files.write_atomically(str(tmp_path / "a"), b"x")
    files.sync_file(str(tmp_path / "a"))

    assert [] == calls


def test_an_atomic_write_is_synced_renamed_and_its_directory_synced(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem())
    path = str(tmp_path / "checkpoint")

    files.write_atomically(path, b"first")
    files.write_atomically(path, b"second")

    assert b"second" == files.read(path)
    assert ["checkpoint"] == os.listdir(tmp_path)
    assert [path + ".tmp", str(tmp_path)] * 2 == files.syncs_done


@pytest.mark.parametrize("system", [RealFileSystem(), FaultyFileSystem(RealFileSystem(sync=False))])
def test_a_file_is_read_and_written_by_position(tmp_path: Path, system: disk.FileSystem) -> None:
    file = system.open(str(tmp_path / "f"), create=True)
    file.pwrite(memoryview(b"hello world"), 0)
    file.pwrite(b"W", 6)

    assert b"World" == file.pread(100, 6)
    assert b"" == file.pread(100, 99)
    assert 11 == file.size() == system.size(str(tmp_path / "f"))
    file.truncate(5)
    file.sync()
    assert b"hello" == system.read(str(tmp_path / "f"))
    file.close()
    with pytest.raises(FileNotFoundError):
        system.open(str(tmp_path / "missing"))


def test_a_short_write_is_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = os.pwrite
    monkeypatch.setattr(disk.os, "pwrite", lambda fd, data, at: whole(fd, bytes(data)[:3], at))
    file = RealFileSystem().open(str(tmp_path / "f"), create=True)

    file.pwrite(b"0123456789", 0)

    assert b"0123456789" == (tmp_path / "f").read_bytes()
    file.close()


def test_a_write_that_makes_no_progress_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk.os, "pwrite", lambda fd, data, at: 0)
    file = RealFileSystem().open(str(tmp_path / "f"), create=True)

    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"x", 0)
    file.close()


def test_a_short_read_is_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    whole = os.pread
    file = RealFileSystem().open(str(tmp_path / "f"))
    monkeypatch.setattr(disk.os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))

    assert b"12345678" == file.pread(8, 1)
    assert b"89" == file.pread(8, 8)
    file.close()


def test_a_lock_keeps_this_process_and_others_out_until_it_is_released(tmp_path: Path) -> None:
    files = RealFileSystem()
    path = str(tmp_path / ".lock")
    attempt = (
        "import sys\nfrom logmark.disk.file_system import RealFileSystem\n"
        "sys.exit(7 if RealFileSystem().lock(sys.argv[1]) is None else 0)"
    )
    lock = files.lock(path)

    assert lock is not None
    assert files.lock(path) is None
    assert 7 == subprocess.run([sys.executable, "-c", attempt, path], check=False).returncode
    lock.release()
    assert 0 == subprocess.run([sys.executable, "-c", attempt, path], check=False).returncode
    again = files.lock(path)
    assert again is not None
    again.release()


def test_a_held_sync_waits_until_it_is_released(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))
    file = files.open(str(tmp_path / "a.log"), create=True)
    other = files.open(str(tmp_path / "b"), create=True)
    thread = threading.Thread(target=file.sync)
    with files.hold_syncs(".log"):
        thread.start()
        files.wait_for_held_sync()
        other.sync()

        assert [str(tmp_path / "b")] == files.syncs_done
    thread.join(60)
    assert str(tmp_path / "a.log") in files.syncs_done


def test_faults_hit_the_named_files_as_often_as_asked(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))
    bad, fine = str(tmp_path / "bad"), str(tmp_path / "fine")
    files.fail_writes("/bad", errno.ENOSPC, times=1)
    files.fail_syncs("/bad", errno.EIO)

    with pytest.raises(OSError, match="No space left"):
        files.write(bad, b"x", sync=False)
    files.write(bad, b"x", sync=False)
    files.write(fine, b"x")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            files.sync_file(bad)
    files.heal()
    files.sync_file(bad)


def test_a_loss_of_power_keeps_what_was_synced_and_tears_the_rest(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        files = FaultyFileSystem(RealFileSystem(sync=False), page_bytes=512)
        path = str(tmp_path / f"{seed}.log")
        file = files.open(path, create=True)
        files.sync_directory(str(tmp_path))
        file.pwrite(b"synced", 0)
        file.sync()
        file.pwrite(b"a" * 1000, 6)
        file.pwrite(b"b" * 1000, 1006)
        file.close()

        files.lose_power(random.Random(seed))

        data = files.read(path)
        assert data.startswith(b"synced")
        outcomes.add(len(data))
    assert {6, 2006} < outcomes


def test_a_loss_of_power_may_take_a_file_whose_directory_was_not_synced(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(20):
        files = FaultyFileSystem(RealFileSystem(sync=False))
        path = str(tmp_path / f"{seed}.log")
        files.write(path, b"synced")

        files.lose_power(random.Random(seed))

        outcomes.add(files.exists(path))
    assert {True, False} == outcomes


def test_a_power_loss_may_take_pages_that_were_written_over_others(tmp_path: Path) -> None:
    """Each page is the old one or the new one, and what a sync covered is never the old one."""
    seen: set[bytes] = set()
    path = str(tmp_path / "file")
    for seed in range(60):
        files = FaultyFileSystem(RealFileSystem(sync=False), page_bytes=4)
        files.write(path, b"old-old-old-old-")
        files.sync_directory(str(tmp_path))
        file = files.open(path)
        file.pwrite(b"kept", 4)
        file.sync()
        file.pwrite(b"newXnewX", 8)
        file.close()
        files.lose_power(random.Random(seed))
        seen.add(files.read(path))

    assert {b"old-kept" + first + second for first in (b"old-", b"newX") for second in (b"old-", b"newX")} == seen


def test_a_descriptor_that_another_thread_takes_away_meanwhile_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    class Released(disk.RealFile):
        """Loses its descriptor after it was found to have one."""

        @property
        def _identity(self) -> tuple[int, int] | None:  # type: ignore[override]
            self._descriptor = None
            return self.__dict__.get("identity")

        @_identity.setter
        def _identity(self, identity: tuple[int, int] | None) -> None:
            self.__dict__["identity"] = identity

    (tmp_path / "log").write_bytes(b"")
    file = Released(str(tmp_path / "log"), os.open(tmp_path / "log", os.O_RDWR), os.fsync)

    assert file.is_in_place()
