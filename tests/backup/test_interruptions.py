"""A backup that is killed leaves the last complete one as it was, or says that there is none, and can be continued."""

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.backup import store
from logmark.client.errors import BrokerUnreachable
from logmark.disk.file_system import RealFile
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.testing import Broker
from tests.backup.backup_driver import copy_brokers, copy_directory, log_bytes, restored
from tests.cli.conftest import run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import turn_clock
from tests.harness.restartable_broker import OUR_SETTINGS

ORDERS = TopicPartition("orders", 0)
SEGMENT = {"segment.bytes": "1048576"}
KILLED = """
import os, signal, sys
from pathlib import Path
from logmark.backup import store
from logmark.log import scanner
from tests.backup.backup_driver import copy_brokers, copy_directory
store.PROGRESS_S, scanner.CHUNK_BYTES = float(sys.argv[4]), 200_000
left = [int(sys.argv[3])]
def told(size):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
copy = copy_brokers if ":" in sys.argv[1] else copy_directory
copy(sys.argv[1] if ":" in sys.argv[1] else Path(sys.argv[1]), Path(sys.argv[2]), told)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic("orders", 1, SEGMENT)
        yield broker


def write(broker: Broker, count: int) -> None:
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    clients.produce("orders", [b"x" * 90_000] * count, batch_num_messages=1)
    clients.close()


def kill_after(pieces: int, source: str, dest: Path, *, progress_s: float = 0) -> None:
    """Runs a backup in a process that is killed when so many pieces have been stored."""
    done = subprocess.run([sys.executable, "-c", KILLED, source, str(dest), str(pieces), str(progress_s)], timeout=120)
    assert -signal.SIGKILL == done.returncode, "the backup was done before it could be killed"


@pytest.mark.parametrize("progress_s", [0, 60], ids=["progress written", "no progress written"])
@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_a_killed_backup_says_that_it_is_incomplete_and_goes_on(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, way: str, progress_s: float
) -> None:
    write(broker, 60)
    monkeypatch.setattr("logmark.backup.broker_copier.FETCH_BYTES", 200_000)
    source = str(tmp_path / "data") if way == "directory" else broker.bootstrap_servers
    backup = tmp_path / "backup"
    kill_after(4, source, backup, progress_s=progress_s)

    with pytest.raises(UserError, match="is incomplete: the run that made it was interrupted"):
        restored(backup, tmp_path / "again")
    assert not (tmp_path / "again").exists()

    copied: list[int] = []
    if way == "directory":
        manifest = copy_directory(tmp_path / "data", backup, copied.append)
    else:
        manifest = copy_brokers(source, backup, copied.append)
    if not progress_s:
        assert 0 < sum(copied) < manifest.size_bytes - 300_000, "nothing was taken up"
    broker.stop()
    restored(backup, tmp_path / "again")
    there, here = log_bytes(tmp_path / "data" / "orders-0"), log_bytes(tmp_path / "again" / "orders-0")
    assert b"".join(there.values()) == b"".join(here.values())


@pytest.mark.parametrize("pieces", [1, 3, 6])
def test_a_killed_second_run_leaves_the_first_backup_as_it_was(tmp_path: Path, broker: Broker, pieces: int) -> None:
    write(broker, 5)
    backup = tmp_path / "backup"
    first = copy_directory(tmp_path / "data", backup)
    write(broker, 40)
    kill_after(pieces, str(tmp_path / "data"), backup)

    restored(backup, tmp_path / "older")
    files = b"".join(log_bytes(tmp_path / "older" / "orders-0").values())
    assert first.partitions[ORDERS].size_bytes == len(files)

    copied: list[int] = []
    copy_directory(tmp_path / "data", backup, copied.append)
    # The first piece was written down by nobody; of more than that, something is taken up.
    assert sum(copied) <= 40 * 90_072 and (pieces == 1 or sum(copied) < 39 * 90_000)
    broker.stop()
    restored(backup, tmp_path / "newer")
    assert log_bytes(tmp_path / "data" / "orders-0") == log_bytes(tmp_path / "newer" / "orders-0")


def flip_a_bit(stored: Path) -> None:
    data = bytearray(stored.read_bytes())
    data[1000] ^= 1
    stored.write_bytes(data)


def cut(stored: Path) -> None:
    stored.write_bytes(stored.read_bytes()[:-1])


@pytest.mark.parametrize("has_grown", [False, True])
@pytest.mark.parametrize("way", ["directory", "brokers"])
@pytest.mark.parametrize("damage", [flip_a_bit, cut, Path.unlink])
def test_a_stored_file_that_is_damaged_or_missing_is_copied_again_and_named(
    tmp_path: Path, broker: Broker, damage: Callable[[Path], None], way: str, has_grown: bool
) -> None:
    write(broker, 3)
    backup, again = tmp_path / "backup", tmp_path / "again"
    source = [str(tmp_path / "data")] if way == "directory" else ["--bootstrap-servers", broker.bootstrap_servers]
    assert 0 == run("backup", *source, str(backup)).exit_code
    (stored,) = (backup / "data" / "orders-0").iterdir()
    damage(stored)
    if has_grown:
        write(broker, 1)

    told = run("backup", *source, str(backup))
    third = run("backup", *source, str(backup), "-o", "json")
    broker.stop()

    assert (0, 0) == (told.exit_code, third.exit_code)
    assert f"Note: {stored} was damaged or missing. What the source has of it was copied again" in told.error
    assert [] == third.json["copied_again"]
    restored(backup, again)
    whole = [b"".join(log_bytes(folder / "orders-0").values()) for folder in (tmp_path / "data", again)]
    assert whole[0] == whole[1]


def test_a_full_disk_keeps_the_first_backup_and_the_next_run_goes_on(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, 5)
    backup = tmp_path / "backup"
    copy_directory(tmp_path / "data", backup)
    write(broker, 20)
    room = [1_000_000]
    pwrite = RealFile.pwrite

    def full(self: RealFile, data: bytes, at: int) -> None:
        if "/backup/data/" in self.path:
            if room[0] < len(data):
                pwrite(self, memoryview(data)[: room[0]], at)
                raise OSError(errno.ENOSPC, "No space left on device", self.path)
            room[0] -= len(data)
        pwrite(self, data, at)

    monkeypatch.setattr(RealFile, "pwrite", full)
    monkeypatch.setattr("logmark.log.scanner.CHUNK_BYTES", 200_000)
    with pytest.raises(OSError, match="No space left"):
        copy_directory(tmp_path / "data", backup)
    monkeypatch.undo()

    assert (
        5 * 90_000 < sum(map(len, log_bytes(restored(backup, tmp_path / "older") / "orders-0").values())) < 6 * 90_000
    )
    copy_directory(tmp_path / "data", backup)
    broker.stop()
    restored(backup, tmp_path / "newer")
    assert log_bytes(tmp_path / "data" / "orders-0") == log_bytes(tmp_path / "newer" / "orders-0")


def test_a_broker_that_goes_away_is_an_error_and_the_next_run_resumes(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, 30)
    monkeypatch.setattr("logmark.backup.broker_copier.FETCH_BYTES", 200_000)
    turn_clock(monkeypatch)  # a broker that was there is looked for until the call's time is up
    copied: list[int] = []

    def on_progress(size: int) -> None:
        copied.append(size)
        if len(copied) == 3:
            broker.stop()

    with pytest.raises(BrokerUnreachable, match="What was copied is kept; run the same command again"):
        copy_brokers(broker.bootstrap_servers, tmp_path / "backup", on_progress)
    broker.start()
    first = sum(copied)

    manifest = copy_brokers(broker.bootstrap_servers, tmp_path / "backup", copied.append)

    assert sum(copied) == manifest.size_bytes > first > 0


def test_two_runs_do_not_write_to_one_backup(tmp_path: Path, broker: Broker) -> None:
    write(broker, 1)

    def second(_: int) -> None:
        with pytest.raises(UserError, match="Another run writes to the backup"):
            copy_directory(tmp_path / "data", tmp_path / "backup")

    copy_directory(tmp_path / "data", tmp_path / "backup", second)
    assert [store.LOCK, "data", store.MANIFEST] == sorted(path.name for path in (tmp_path / "backup").iterdir())
