"""`logmark backup` and `logmark restore` at the terminal: what they print, and the error message for every mistake."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logmark.cli import clusters
from logmark.client.client import Client
from logmark.disk.file_system import RealFile
from logmark.testing import Broker
from tests.cli.conftest import CommandResult, as_printed, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import unserved_address
from tests.harness.restartable_broker import OUR_SETTINGS
from tests.harness.terminals import is_readable

COMMAND = [sys.executable, "-c", "from logmark.cli.main import run; run()"]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic("orders", 2, {"retention.ms": "-1"})
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        clients.produce("orders", ["ORD-1001", "ORD-1002", "ORD-1003"])
        clients.commit("billing", {("orders", 0): 2})
        clients.close()
        yield broker


def done(*arguments: str) -> CommandResult:
    ran = run(*arguments)
    assert 0 == ran.exit_code, ran.error
    return ran


@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_a_cluster_is_backed_up_restored_and_served_with_three_commands(
    tmp_path: Path, broker: Broker, way: str
) -> None:
    source = [str(tmp_path / "data")] if way == "directory" else ["--bootstrap-servers", broker.bootstrap_servers]
    backup, again = str(tmp_path / "backup"), str(tmp_path / "again")

    told = done("backup", *source, backup)
    assert told.lines[0].startswith("Backed up 2 topics, 52 partitions, ")
    assert f"Restore it: logmark restore {backup} DATA_DIR" == told.lines[1]
    told = done("restore", backup, again)
    assert told.lines[0].startswith("Restored 2 topics, 52 partitions, ")
    assert f"Serve it: logmark serve --data-dir {again}" == told.lines[1]

    with subprocess.Popen(
        [*COMMAND, "serve", "--data-dir", again, "--listen", "127.0.0.1:0",
         "--set", "group.initial.rebalance.delay.ms=0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as served:  # fmt: skip
        assert served.stdout is not None
        address = served.stdout.readline().split()[4].rstrip(",")
        assert ["ORD-1003"] == done("consume", "orders", "--group", "billing", "--bootstrap-servers", address).lines
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=120)


def test_json_says_what_was_copied_and_what_was_new(tmp_path: Path, broker: Broker) -> None:
    backup = str(tmp_path / "backup")

    first = done("backup", str(tmp_path / "data"), backup, "--output", "json").json
    second = done("backup", str(tmp_path / "data"), backup, "--output", "json").json
    again = done("restore", backup, str(tmp_path / "again"), "--output", "json").json

    assert (backup, str(tmp_path / "data")) == (first["backup"], first["source"])
    orders = next(row for row in first["partitions"] if row["topic"] == "orders")
    assert ("orders", 0, 0, 3) == tuple(orders[name] for name in ("topic", "partition", "start", "end"))
    assert first["bytes"] == first["new_bytes"] > 0 == second["new_bytes"]
    assert ([], []) == (first["notes"], first["damage"])
    for name in ("cluster_id", "topics", "partitions", "bytes"):
        assert first[name] == second[name] == again[name]
    with Client(broker.bootstrap_servers) as client:
        assert client.metadata().cluster_id == first["cluster_id"]


def test_programs_get_the_fields_of_a_backup_in_their_order(tmp_path: Path, broker: Broker) -> None:
    backup, again = str(tmp_path / "backup"), str(tmp_path / "again")

    copied = done("backup", str(tmp_path / "data"), backup, "--output", "json")
    restored = done("restore", backup, again, "--output", "json")

    found = copied.json
    contents = {
        "cluster_id": found["cluster_id"],
        "topics": 2,
        "partitions": [
            {name: row[name] for name in ("topic", "partition", "start", "end", "bytes")} for row in found["partitions"]
        ],
        "bytes": found["bytes"],
    }
    rest = {"new_bytes": found["new_bytes"], "notes": [], "damage": [], "copied_again": []}
    assert as_printed({"backup": backup, "source": str(tmp_path / "data"), **contents, **rest}) == copied.out
    assert as_printed({"data_dir": again, **contents, "damage": []}) == restored.out


def test_damage_at_the_source_is_told_and_ends_with_1(tmp_path: Path, broker: Broker) -> None:
    broker.stop()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    whole = file.read_bytes()
    file.write_bytes(whole[:70] + b"?" + whole[71:] + whole[: 8 - 1] + b"\x09" + whole[8:])

    told = run("backup", str(tmp_path / "data"), str(tmp_path / "backup"))

    assert 1 == told.exit_code
    assert told.lines[0].startswith("Backed up 2 topics")
    assert f"Damaged at the source, and copied as it is: orders-0/{file.name}, byte 0, " in told.error
    damage = run("backup", str(tmp_path / "data"), str(tmp_path / "other"), "-o", "json").json["damage"]
    ways = ("Damaged at the source: ", "Damaged at the source, and copied as it is: ")
    assert [way + one for way, one in zip(ways, damage, strict=True)] == told.error.splitlines()
    made = run("restore", str(tmp_path / "backup"), str(tmp_path / "again"))
    assert 1 == made.exit_code
    assert made.lines[0].startswith("Restored 2 topics")
    said = "Damaged before the backup was taken, and restored as it was: "
    assert [said + damage[1]] == made.error.splitlines()
    assert damage[1:] == run("restore", str(tmp_path / "backup"), str(tmp_path / "third"), "-o", "json").json["damage"]


# Mistakes


def refused(exit_code: int, message: str, *arguments: str) -> None:
    ran = run(*arguments)
    assert (exit_code, "") == (ran.exit_code, ran.out)
    assert ran.error.startswith("logmark: ")
    assert message in ran.error


@pytest.mark.parametrize(
    "arguments",
    [["DEST"], ["DATA", "DEST", "MORE"], ["--bootstrap-servers", "127.0.0.1:1", "DATA", "DEST"]],
    ids=["no source", "three folders", "two sources"],
)
def test_a_wrong_call_shows_the_two_right_ones(arguments: list[str]) -> None:
    refused(2, "Say what to back up and where to: logmark backup DATA_DIR DEST, or", "backup", *arguments)


def test_a_data_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    dest = str(tmp_path / "backup")
    refused(2, "absent does not exist. Nothing was copied.", "backup", str(tmp_path / "absent"), dest)
    (tmp_path / "file").touch()
    refused(2, "file is not a directory. Nothing was copied.", "backup", str(tmp_path / "file"), dest)
    (tmp_path / "other").mkdir()
    refused(2, "is no data directory of Logmark", "backup", str(tmp_path / "other"), dest)
    (tmp_path / "other" / "meta.properties").write_text("version=1\n")
    refused(2, "Back it up through its brokers: logmark backup -", "backup", str(tmp_path / "other"), dest)
    assert not (tmp_path / "backup").exists()


def test_a_backup_inside_of_its_source_is_an_error(tmp_path: Path, broker: Broker) -> None:
    data = str(tmp_path / "data")
    for dest in (data, f"{data}/backup", str(tmp_path)):
        refused(2, "are the same directory, or one lies in the other", "backup", data, dest)
    assert not (tmp_path / "data" / "backup").exists()


def test_a_folder_that_holds_something_else_is_an_error(tmp_path: Path, broker: Broker) -> None:
    data, dest = str(tmp_path / "data"), tmp_path / "photos"
    dest.mkdir()
    (dest / "holiday.jpg").touch()
    refused(1, "photos holds files and is no backup. Nothing was changed.", "backup", data, str(dest))
    refused(1, "holiday.jpg is not a directory", "backup", data, str(dest / "holiday.jpg"))
    assert ["holiday.jpg"] == os.listdir(dest)


def test_a_backup_of_another_cluster_or_another_way_is_an_error(tmp_path: Path, broker: Broker) -> None:
    data, dest = str(tmp_path / "data"), str(tmp_path / "backup")
    done("backup", data, dest)
    refused(1, "is a backup that was taken from its data directory", "backup", "-b", broker.bootstrap_servers, dest)
    with Broker(OUR_SETTINGS) as other:
        refused(1, "is a backup of cluster", "backup", other.data_dir, dest)
    done("restore", dest, str(tmp_path / "again"))


def test_no_broker_there_is_an_error_and_no_backup_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE_S", 0.0)
    with unserved_address() as address:
        refused(1, f"The broker at {address} refused", "backup", "-b", address, str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()


def test_a_full_disk_is_an_error(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RealFile, data: bytes, at: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    done("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
    monkeypatch.setattr(RealFile, "pwrite", full)
    refused(1, "other is full. What was complete before is as it was.", "backup",
            str(tmp_path / "data"), str(tmp_path / "other"))  # fmt: skip
    refused(1, "again is full.", "restore", str(tmp_path / "backup"), str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_what_cannot_be_restored_is_an_error(tmp_path: Path, broker: Broker) -> None:
    data, backup, again = str(tmp_path / "data"), str(tmp_path / "backup"), str(tmp_path / "again")
    refused(2, "There is no backup at", "restore", backup, again)
    refused(2, "data is not a backup: it has no logmark.backup", "restore", data, again)
    done("backup", data, backup)
    refused(1, "data is there and is not an empty directory", "restore", backup, data)
    refused(2, "or one lies in the other", "restore", backup, f"{backup}/again")
    (tmp_path / "backup" / "logmark.backup").rename(tmp_path / "backup" / "logmark.backup.progress")
    refused(1, "is incomplete: the run that made it was interrupted", "restore", backup, again)
    assert not (tmp_path / "again").exists()


def test_an_empty_directory_may_be_restored_to(tmp_path: Path, broker: Broker) -> None:
    done("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
    (tmp_path / "again").mkdir()
    done("restore", str(tmp_path / "backup"), str(tmp_path / "again"))
    assert (tmp_path / "again" / "orders-0").is_dir()


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_may_be_restored_to_and_stays_a_link(tmp_path: Path, broker: Broker, is_dangling: bool) -> None:
    done("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
    if not is_dangling:
        (tmp_path / "disk").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "disk")

    done("restore", str(tmp_path / "backup"), str(tmp_path / "again"))

    assert (tmp_path / "again").is_symlink()
    assert (tmp_path / "disk" / "orders-0").is_dir()


def test_the_current_directory_is_not_replaced_and_one_that_is_gone_is_an_error(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("backup", str(tmp_path / "data"), str(tmp_path / "backup"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    refused(2, "here is the current directory, which a restore would replace", "restore", "../backup", ".")
    (tmp_path / "here").rmdir()
    refused(1, "../again cannot be used: No such file or directory", "restore", "../backup", "../again")


def test_an_interrupt_ends_with_130_and_the_next_run_resumes_it(tmp_path: Path, broker: Broker) -> None:
    clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
    clients.produce("orders", [b"x" * 900_000] * 20)
    clients.close()
    code = (
        "import os, signal; from logmark.backup import store; from logmark.log import scanner\n"
        "scanner.CHUNK_BYTES = 1_000_000\n"
        "wrote, seen = store.Store.wrote, []\n"
        "def interrupted(self, size):\n"
        "    wrote(self, size); seen.append(size)\n"
        "    if len(seen) == 5: os.kill(os.getpid(), signal.SIGINT)\n"
        "store.Store.wrote = interrupted\n"
        "from logmark.cli.main import run; run()"
    )
    arguments = ["backup", str(tmp_path / "data"), str(tmp_path / "backup")]
    stopped = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert (130, "", "") == (stopped.returncode, stopped.stdout, stopped.stderr)

    told = run(*arguments, "--output", "json")

    assert "was interrupted; this one resumes it" in told.error
    assert told.json["bytes"] - 5_000_000 < told.json["new_bytes"] < told.json["bytes"] - 3_000_000


def test_a_terminal_shows_a_bar_of_the_bytes(tmp_path: Path, broker: Broker) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "backup", str(tmp_path / "data"), str(tmp_path / "backup"), "--output", "json"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
    ) as running:  # fmt: skip
        os.close(theirs)
        shown = _read_all(ours)
        assert running.stdout is not None
        assert 1 == len(json.loads(running.stdout.read())["partitions"]) - 1
    os.close(ours)

    assert b"Copying" in shown
    assert b"bytes" in shown


def _read_all(terminal: int) -> bytes:
    found, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if is_readable(terminal, wait_ms=100):
            try:
                found += os.read(terminal, 4096)
            except OSError:
                break
    return found
