"""Whatever Logmark creates only its owner can read, whatever the umask; what is there already keeps its mode."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark import private_files
from logmark.disk.file_system import RealFileSystem
from logmark.offsets.bounded_replay.runs import RunStore
from logmark.offsets.journal import journal
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.lag.history import History
from logmark.offsets.monitor.cluster_sampler import _locked
from logmark.testing import Broker
from tests.harness import wire

UMASKS = [0, 0o022, 0o077, 0o277, 0o777]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_to_others(folder: Path) -> list[str]:
    """Everything below a folder that is not exactly 0600 or 0700."""
    found = []
    for path in sorted(folder.rglob("*")):
        # A broker that runs replaces files: one that is gone by now has no mode.
        with contextlib.suppress(FileNotFoundError):
            is_private = mode(path) == (0o700 if path.is_dir() else 0o600)
            if not is_private:
                found.append(f"{oct(mode(path))} {path.relative_to(folder)}")
    return found


def test_a_file_and_its_folders_are_private(tmp_path: Path, umask: int) -> None:
    private_files.make_folders(tmp_path / "a/b")
    with private_files.open_file(tmp_path / "a/b/file", "w") as file:
        file.write("x")
    private_files.create_file(tmp_path / "a/b/empty")

    assert [] == open_to_others(tmp_path)
    assert "x" == (tmp_path / "a/b/file").read_text()


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    folder, file = tmp_path / "shared", tmp_path / "shared/file"
    folder.mkdir()
    folder.chmod(0o755)
    file.write_text("old")
    file.chmod(0o644)

    private_files.make_folders(folder)
    with private_files.open_file(file, "w") as opened:
        opened.write("new")
    private_files.create_file(file)
    files = RealFileSystem(sync=False)
    files.open(str(file), create=True).close()
    files.write(str(file), b"newer")

    assert (0o755, 0o644, "newer") == (mode(folder), mode(file), file.read_text())


def test_a_file_where_a_folder_belongs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError):
        private_files.make_folders(tmp_path / "file/folder")
    with pytest.raises(FileExistsError):
        private_files.make_folders(tmp_path / "file")


def test_the_disk_makes_private_files_only(tmp_path: Path, umask: int) -> None:
    files = RealFileSystem(sync=False)
    files.mkdir(f"{tmp_path}/folder")
    files.open(f"{tmp_path}/folder/opened", create=True).close()
    files.write(f"{tmp_path}/folder/written", b"x")
    files.write_atomically(f"{tmp_path}/folder/replaced", b"x")
    lock = files.lock(f"{tmp_path}/folder/.lock")
    assert lock is not None
    lock.release()

    assert [] == open_to_others(tmp_path)


def test_histories_journals_and_runs_are_private(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with History(tmp_path / "lag/history.db", cluster_id="c") as history:
        assert history.path.exists()
        assert [] == open_to_others(tmp_path)
    _locked(tmp_path / "monitor/history.db").close()
    FileJournal(tmp_path / "journal/offsets.jsonl")._append({"version": 1})
    journal.save_journal_topic_name("c", "changes")
    with RunStore(tmp_path / "runs").lock("r1"):
        pass

    assert [] == open_to_others(tmp_path)
    assert {"lag", "monitor", "journal", "state", "runs"} == {path.name for path in tmp_path.iterdir()}


def test_homes_of_pipelines_are_private(tmp_path: Path, umask: int) -> None:
    home = pytest.importorskip("logmark.spark.pipelines.home")
    billing = home.Home(tmp_path / "pipelines", "billing")
    billing.change(lambda record: record)
    with billing.live():
        pass

    assert [] == open_to_others(tmp_path)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_broker_and_a_backup_write_private_files(tmp_path: Path, umask: int, durability: str) -> None:
    data = tmp_path / "var/data"
    with Broker(data_dir=str(data), durability=durability) as broker:
        broker.create_topic("orders", 2, {"segment.bytes": "1048576", "cleanup.policy": "compact"})
        assert 0 != wire.produce(broker.bootstrap_servers, "orders", wire.batch([b"no key"])).error_code
        broker.create_topic("clicks", 2)
        for partition in (0, 1):
            assert 0 == wire.produce(broker.bootstrap_servers, "clicks", wire.batch([b"x"]), partition=partition)[0]
        assert [] == open_to_others(tmp_path)
    assert [] == open_to_others(tmp_path)

    before = os.umask(0)
    done = subprocess.run(
        [sys.executable, "-m", "logmark", "backup", str(data), str(tmp_path / "backup")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    os.umask(before)

    assert 0 == done.returncode, done.stderr
    assert [] == open_to_others(tmp_path)


def test_a_data_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o750)

    with Broker(data_dir=str(data)):
        pass

    assert 0o750 == mode(data)
