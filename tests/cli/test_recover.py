"""`logmark recover`: a crashed directory becomes clean with every acknowledged record, and it says what it did."""

import json
import os
import shutil
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.testing import Broker
from tests.cli.conftest import as_printed, run
from tests.harness.crashed import COMMITTED, LOG, TOPIC, VALUES, lose_power, served, tree, write_crashed

SUMMARY = "of the write-ahead log"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a killed broker."""
    return write_crashed(tmp_path_factory.mktemp("crashed") / "data")


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(killed, tmp_path / "data"))


def log_of(data: Path) -> Path:
    return data / f"{TOPIC}-0" / LOG


def test_after_a_power_loss_every_acknowledged_record_and_offset_is_back(data: Path) -> None:
    lose_power(data)

    done = run("recover", str(data))

    assert 0 == done.exit_code, done.error
    assert f"{data} is clean." in done.error
    assert not (data / "logmark.wal").exists()
    assert (data / ".kafka_cleanshutdown").exists(), "what Apache Kafka takes for a clean stop"
    assert 0 == run("verify", str(data)).exit_code
    assert (VALUES, COMMITTED) == served(data)


def test_it_says_what_was_recovered_and_what_was_cut(data: Path) -> None:
    size = log_of(data).stat().st_size
    with log_of(data).open("ab") as file:
        file.write(b"never acknowledged")

    done = run("recover", str(data))

    assert ["PARTITION", "ENTRIES", "RECORDS", "FIRST", "OFFSET", "END", "OFFSET"] == done.words[0]
    rows = {words[0]: words[1:] for words in done.words[1:]}
    entries, records, first, end = map(int, rows[f"{TOPIC}-0"])
    assert entries > 0
    assert (len(VALUES) - first, len(VALUES)) == (records, end)
    assert f"Cut {TOPIC}-0/{LOG}: 18 bytes from byte {size} on; never acknowledged" in done.error
    assert SUMMARY in done.error
    assert all(len(line) <= 80 for line in done.lines)
    assert size == log_of(data).stat().st_size


def test_programs_get_the_same_as_json(data: Path) -> None:
    with log_of(data).open("ab") as file:
        file.write(b"never acknowledged")

    done = run("recover", str(data), "--output", "json").json

    assert (str(data), False) == (done["data_dir"], done["dry_run"])
    assert (False, True) == (done["was_clean"], done["had_wal"])
    (orders,) = (row for row in done["partitions"] if row["topic"] == TOPIC)
    assert len(VALUES) == orders["end_offset"] == orders["first_offset"] + orders["records"]
    assert [(f"{TOPIC}-0/{LOG}", 18, None)] == [(cut["path"], cut["size_bytes"], cut["kept"]) for cut in done["cuts"]]
    assert done["records"] == sum(row["records"] for row in done["partitions"])
    assert ([], []) == (done["damage"], done["damaged_entries"])


def test_programs_get_the_fields_of_a_recovery_in_their_order(data: Path) -> None:
    size = log_of(data).stat().st_size
    with log_of(data).open("ab") as file:
        file.write(b"never acknowledged")

    done = run("recover", str(data), "--output", "json")

    found = done.json
    expected = {
        "data_dir": str(data),
        "dry_run": False,
        "was_clean": False,
        "had_wal": True,
        "entries": found["entries"],
        "records": found["records"],
        "partitions": [
            {
                name: row[name]
                for name in ("topic", "partition", "entries", "records", "first_offset", "end_offset", "bytes")
            }
            for row in found["partitions"]
        ],
        "cuts": [{"path": f"{TOPIC}-0/{LOG}", "position": size, "size_bytes": 18, "kept": None}],
        "damaged_entries": [],
        "damage": [],
        "additions": [],
    }
    assert as_printed(expected) == done.out


@pytest.mark.parametrize("state", ["killed", "after a power loss"])
def test_a_dry_run_says_the_same_as_the_recovery_and_changes_nothing(data: Path, state: str) -> None:
    if state == "after a power loss":
        lose_power(data)
    else:
        log_of(data).write_bytes(log_of(data).read_bytes() + b"never acknowledged")
    before = tree(data)

    tried = run("recover", str(data), "--dry-run", "--output", "json")
    told = run("recover", str(data), "--dry-run")

    assert (0, 0) == (tried.exit_code, told.exit_code)
    assert "Dry run: a recovery would write" in told.error
    assert "Nothing was changed." in told.error
    assert before == tree(data)
    done = run("recover", str(data), "--output", "json").json
    assert {**tried.json, "dry_run": False} == done


def test_a_clean_directory_is_said_to_be_so_and_stays_as_it_is(data: Path) -> None:
    assert 0 == run("recover", str(data)).exit_code
    before = tree(data)

    again = run("recover", str(data))

    assert (0, "") == (again.exit_code, again.out)
    assert "is clean: there is nothing to recover, and nothing was changed" in again.error
    assert before == tree(data)
    assert run("recover", str(data), "--output", "json").json["was_clean"]


def test_a_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path / "data"), durability="sync") as broker:
        for extra in ([], ["--dry-run"]):
            refused = run("recover", broker.data_dir, *extra)

            assert 1 == refused.exit_code
            assert "is in use by a running broker" in refused.error


@pytest.mark.parametrize("name", ["absent", "empty", "file", "kafka"])
def test_what_is_no_data_directory_of_logmark_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "kafka" / "orders-0").mkdir(parents=True)
    (tmp_path / "kafka" / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    before = sorted(tmp_path.rglob("*"))

    refused = run("recover", str(tmp_path / name))

    assert 2 == refused.exit_code
    assert "director" in refused.error
    assert before == sorted(tmp_path.rglob("*"))


def test_without_a_write_ahead_log_the_end_is_checked_and_what_is_cut_is_kept(data: Path) -> None:
    run("recover", str(data))
    (data / ".kafka_cleanshutdown").unlink()
    size = log_of(data).stat().st_size
    with log_of(data).open("ab") as file:
        file.write(b"half a batch")

    tried = run("recover", str(data), "--dry-run")
    assert f"Would cut {TOPIC}-0/{LOG}: 12 bytes from byte {size} on, kept in {TOPIC}-0/{LOG}.{size}.cut" in tried.error
    assert not list(log_of(data).parent.glob("*.cut"))
    done = run("recover", str(data))

    assert (0, "") == (done.exit_code, done.out)
    assert f"Cut {TOPIC}-0/{LOG}: 12 bytes from byte {size} on, kept in {TOPIC}-0/{LOG}.{size}.cut" in done.error
    assert b"half a batch" == (log_of(data).parent / f"{LOG}.{size}.cut").read_bytes()
    assert (VALUES, COMMITTED) == served(data)


def test_damage_is_told_with_exit_code_1_and_the_directory_becomes_clean_all_the_same(data: Path) -> None:
    lose_power(data)
    (file,) = (one for one in (data / "logmark.wal").glob("*.wal") if b"ORD-59" in one.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(b"ORD-30")] ^= 1
    file.write_bytes(content)

    done = run("recover", str(data), "--output", "json")

    assert 1 == done.exit_code
    assert done.json["damaged_entries"], "the entry that was hit"
    assert done.json["damage"], "what it held is missing in the segment"
    again = run("recover", str(data))
    assert 1 == again.exit_code, "what is missing stays so"
    assert "was stopped cleanly: there is nothing to recover" in again.error


def test_a_write_ahead_log_of_another_directory_is_refused_and_stays(data: Path, tmp_path: Path) -> None:
    other = write_crashed(tmp_path / "other")
    shutil.rmtree(data / "logmark.wal")
    shutil.copytree(other / "logmark.wal", data / "logmark.wal")
    before = tree(data)

    refused = run("recover", str(data))

    assert 1 == refused.exit_code
    assert "belongs to another data directory" in refused.error
    assert before == tree(data)


# A broker that does not sync


def test_a_broker_that_does_not_sync_recovers_with_syncs_before_it_serves(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_power(data)
    synced: set[int] = set()

    def sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr("logmark.disk.file_system.strongest_sync", lambda platform, full_sync: sync)

    with Broker(data_dir=str(data), durability="os"):
        assert not (data / "logmark.wal").exists()
        assert log_of(data).stat().st_ino in synced, "the records are on the medium before the write-ahead log goes"

    assert (VALUES, COMMITTED) == served(data)


def test_a_broker_that_does_not_sync_does_not_touch_the_write_ahead_log_of_one_that_runs(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Broker(data_dir=data, durability="sync", subprocess=True) as broker:
        broker.create_topic(TOPIC)
        assert 0 == run("produce", TOPIC, "--bootstrap-servers", broker.bootstrap_servers, stdin="ORD-1\n").exit_code
        (tmp_path / "data" / "logmark.wal" / "recovery-points").write_bytes(b"")

        with pytest.raises(UserError, match="is in use by another broker"):
            Broker(data_dir=data, durability="os").start()


def test_a_broker_that_does_not_sync_leaves_alone_what_it_cannot_recover(data: Path) -> None:
    (data / "logmark.wal" / "recovery-points").write_bytes(b"")
    before = tree(data)

    with pytest.raises(UserError, match="recovery points have a wrong checksum"):
        Broker(data_dir=str(data), durability="os").start()

    assert before == tree(data)


def test_the_table_of_a_long_name_stays_within_80_columns(tmp_path: Path) -> None:
    topic = "a" * 240
    with Broker(data_dir=str(tmp_path / "data"), durability="sync", subprocess=True) as broker:
        broker.create_topic(topic)
        assert 0 == run("produce", topic, "--bootstrap-servers", broker.bootstrap_servers, stdin="ORD-1\n").exit_code
        broker.kill()

    done = run("recover", str(tmp_path / "data"), "--dry-run")

    assert len(done.lines) > 1
    assert all(len(line) <= 80 for line in done.lines), done.out
    full = json.loads(run("recover", str(tmp_path / "data"), "--dry-run", "--output", "json").out)
    assert topic in [row["topic"] for row in full["partitions"]]
