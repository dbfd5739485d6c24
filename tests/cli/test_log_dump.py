"""`logmark log dump`: what lies in the files, for people and for programs."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from logmark.testing import Broker
from logmark.wire import batches
from tests.cli.conftest import run
from tests.harness import crashed, wire
from tests.harness.brokers import BrokerUnderTest
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver

LOG = "00000000000000000000.log"
TIME = "2023-11-14 22:13:20.000Z"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with records, a transaction of each kind, and a group."""
    path = tmp_path_factory.mktemp("dump") / "data"
    with Broker(data_dir=str(path)) as broker:
        under_test = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        broker.create_topic("orders")
        for codec, records in (
            (0, [(b"user-1", b"ORD-1001"), (None, None)]),
            (4, [(b"\xff\xfe", b"\x00\xff"), (b"user-2", "Bestellung \u00fc\n2".encode())]),
        ):
            headers = [[("trace", b"7"), ("none", None)], []]
            batch = batches.build(records, timestamp_ms=NOW_MS, codec=codec, headers=headers)
            assert 0 == wire.produce(broker.bootstrap_servers, "orders", bytes(batch)).error_code
        under_test.commit("billing", {("orders", 0): 3})
        under_test.close()
    return path


def items(*args: str) -> list[dict[str, Any]]:
    done = run("log", "dump", *args, "--output", "json")
    assert 0 == done.exit_code, done.error
    return [json.loads(line) for line in done.lines]


def test_people_see_batches_and_records_on_one_line_each(data: Path) -> None:
    shown = run("log", "dump", str(data / "orders-0"), "--records")

    assert 0 == shown.exit_code
    assert [
        f"{data / 'orders-0' / LOG}: {(data / 'orders-0' / LOG).stat().st_size} bytes",
        f"  0 to 1: 2 records, 103 bytes at 0, none, CreateTime {TIME}",
        f"    0  {TIME}  user-1: ORD-1001  trace=7  none=null",
        f"    1  {TIME}  null: tombstone",
    ] == shown.lines[:4]
    assert shown.lines[4].startswith("  2 to 3: 2 records, ")
    assert f"    2  {TIME}  base64://4=: base64:AP8=  trace=7  none=null" == shown.lines[5]
    assert f"    3  {TIME}  user-2: Bestellung \u00fc\\n2" == shown.lines[6]


def test_programs_get_one_object_a_line_with_text_or_base64(data: Path) -> None:
    records = [item for item in items(str(data / "orders-0"), "--records") if item["kind"] == "record"]

    assert [0, 1, 2, 3] == [record["offset"] for record in records]
    assert ("user-1", "ORD-1001") == (records[0]["key"], records[0]["value"])
    assert [{"key": "trace", "value": "7"}, {"key": "none", "value": None}] == records[0]["headers"]
    assert (None, None) == (records[1]["key"], records[1]["value"])
    assert b"\xff\xfe" == base64.b64decode(records[2]["key_base64"])
    assert b"\x00\xff" == base64.b64decode(records[2]["value_base64"])
    assert {("orders", 0)} == {(record["topic"], record["partition"]) for record in records}


def test_the_records_of_the_offsets_topic_are_decoded(data: Path) -> None:
    (folder,) = data.glob("__consumer_offsets-*")

    (record,) = (item for item in items(str(folder), "--records") if item["kind"] == "record")
    said = record["says"]
    assert ("OffsetCommitted", "billing", "orders", 0, 3) == (
        said["type"], said["group"], said["topic"], said["partition"], said["offset"],
    )  # fmt: skip
    line = run("log", "dump", str(folder), "--records").lines[-1]
    assert "OffsetCommitted group=billing topic=orders partition=0 offset=3" in line


def test_a_whole_directory_is_dumped_partition_by_partition_with_its_checkpoints(data: Path) -> None:
    found = items(str(data), "--indexes")

    folders = [Path(item["path"]).parent.name for item in found if item["kind"] == "batch"]
    assert sorted(folders) == folders
    assert "orders-0" in folders
    kinds = {item["kind"] for item in found}
    assert {"file", "batch", "time_index_entry", "leader_epoch", "partition_metadata", "offset"} <= kinds
    assert [4] == [
        item["offset"]
        for item in found
        if item["kind"] == "offset" and "recovery-point" in item["path"] and item["topic"] == "orders"
    ]


def test_from_offset_and_limit_choose_a_part(data: Path) -> None:
    folder = str(data / "orders-0")

    assert [1, 2] == [
        item["offset"]
        for item in items(folder, "--records", "--from-offset", "1", "--limit", "2")
        if item["kind"] == "record"
    ]
    assert [2] == [item["base_offset"] for item in items(folder, "--from-offset", "2") if item["kind"] == "batch"]
    assert [0] == [item["base_offset"] for item in items(folder, "--limit", "1") if item["kind"] == "batch"]


def test_markers_aborts_and_producers_are_shown(tmp_path: Path) -> None:
    driver = LogDriver(tmp_path)
    partition = driver.create()
    for sequence, commit in ((0, False), (1, True)):
        batch = batches.own(
            batches.build(
                [(b"user-1", b"payment")],
                timestamp_ms=NOW_MS,
                producer_id=PRODUCER_ID,
                producer_epoch=3,
                base_sequence=sequence,
                attributes=batches.TRANSACTIONAL_BIT,
            )
        )
        partition.append(batch, now_ms=NOW_MS)
        partition.append_marker(PRODUCER_ID, 3, commit=commit, now_ms=NOW_MS)
        driver.settle(partition)
    driver.stop()
    driver.loop.close()

    found = items(str(driver.folder()), "--indexes")

    assert [(1, "ABORT", 0), (3, "COMMIT", 0)] == [
        (item["offset"], item["type"], item["coordinator_epoch"]) for item in found if item["kind"] == "marker"
    ]
    assert [(PRODUCER_ID, 0, 1, 2)] == [
        (item["producer_id"], item["first_offset"], item["last_offset"], item["last_stable_offset"])
        for item in found
        if item["kind"] == "aborted_transaction"
    ]
    producers = [item for item in found if item["kind"] == "producer"]
    assert [(PRODUCER_ID, 3, 1, 2)] == [
        (item["producer_id"], item["producer_epoch"], item["last_sequence"], item["last_offset"]) for item in producers
    ]
    text = run("log", "dump", str(driver.folder())).out
    assert f"    1  ABORT of producer {PRODUCER_ID} epoch 3, coordinator epoch 0" in text
    assert f"producer {PRODUCER_ID} epoch 3 sequences 0, transactional" in text


def test_damage_is_told_and_the_dump_goes_on_behind_it(data: Path, tmp_path: Path) -> None:
    content = bytearray((data / "orders-0" / LOG).read_bytes())
    content[70] ^= 1
    damaged = tmp_path / LOG
    damaged.write_bytes(content)

    found = items(str(damaged), "--records")

    assert ["file", "damage", "batch", "record", "record"] == [item["kind"] for item in found]
    assert (0, 103, 0, 2) == tuple(found[1][name] for name in ("position", "size_bytes", "first_offset", "next_offset"))
    line = run("log", "dump", str(damaged)).lines[1]
    assert "  damaged at 0 (103 bytes, offsets 0 to 1): the CRC of the batch is wrong" == line


def test_a_directory_of_a_running_broker_can_be_dumped(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        broker.create_topic("orders")
        wire.produce(broker.bootstrap_servers, "orders", wire.batch([b"now"]))

        assert ["now"] == [one["value"] for one in items(str(tmp_path), "--records") if one["kind"] == "record"]


@pytest.mark.parametrize("name", ["absent", "notes.txt", "empty"])
def test_what_is_no_file_of_a_log_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()

    refused = run("log", "dump", str(tmp_path / name))

    assert (2, "") == (refused.exit_code, refused.out)
    assert name in refused.error


# The write-ahead log


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a killed broker."""
    return crashed.write_crashed(tmp_path_factory.mktemp("dump") / "crashed")


def test_each_entry_of_the_write_ahead_log_says_where_its_batches_belong(killed: Path) -> None:
    found = items(str(killed / "logmark.wal"))

    entries = [item for item in found if item["kind"] == "wal_entry"]
    assert list(range(1, len(entries) + 1)) == [item["number"] for item in entries]
    runs = [item for item in found if item["kind"] == "wal_run"]
    assert sum(item["run_count"] for item in entries) == len(runs), "a run is counted that holds nothing"
    assert all(run_["size_bytes"] for run_ in runs)
    runs = [run_ for run_ in runs if run_["topic"] == crashed.TOPIC]
    assert (20, len(crashed.VALUES) - 1) == (runs[0]["first_offset"], runs[-1]["last_offset"])
    content = (killed / f"{crashed.TOPIC}-0" / LOG).read_bytes()
    for run_ in runs:
        assert LOG == run_["segment"]
        header = batches.read_header(content, run_["position"])
        assert run_["first_offset"] == header.base_offset, "the batches lie in the segment where the entry says"
    assert runs[-1]["position"] + runs[-1]["size_bytes"] == len(content)
    (point,) = (item for item in found if item["kind"] == "recovery_point" and item["topic"] == crashed.TOPIC)
    assert (20, LOG, runs[0]["position"]) == (point["offset"], point["segment"], point["position"])
    assert runs[0]["topic_id"] == point["topic_id"]


def test_people_see_the_entries_with_their_runs_and_records(killed: Path) -> None:
    shown = run("log", "dump", str(killed / "logmark.wal" / "0001.wal"), "--records")

    assert 0 == shown.exit_code
    assert shown.lines[1].startswith("  file 1 of the write-ahead log ")
    assert shown.lines[2].startswith("  entry 1: 1 run, ")
    assert shown.lines[3].startswith(f"    {crashed.TOPIC}-0 20 to ")
    assert shown.lines[3].endswith(f" of {LOG}")
    assert shown.lines[5].endswith("  null: ORD-20")
    points = run("log", "dump", str(killed / "logmark.wal" / "recovery-points")).lines
    assert "  a recovery begins at entry 1" == points[1]
    assert any(line.startswith(f"  {crashed.TOPIC}-0: flushed up to offset 20, byte ") for line in points)


def test_a_topic_that_is_not_in_the_catalogue_is_shown_by_its_id(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed / "logmark.wal", tmp_path / "logmark.wal")

    shown = run("log", "dump", str(tmp_path / "logmark.wal"))

    assert 0 == shown.exit_code
    topic_id = next(item["topic_id"] for item in items(str(killed / "logmark.wal")) if item["kind"] == "wal_run")
    assert any(line.startswith(f"    topic id {topic_id}-0 20 to ") for line in shown.lines)


def test_a_whole_directory_shows_its_write_ahead_log_with_the_other_files_next_to_the_logs(killed: Path) -> None:
    assert not [item for item in items(str(killed)) if item["kind"] == "wal_entry"]
    assert [item for item in items(str(killed), "--indexes") if item["kind"] == "wal_entry"]


def test_damaged_entries_are_told_and_passed(killed: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(killed, tmp_path / "data"))
    file = data / "logmark.wal" / "0001.wal"
    content = bytearray(file.read_bytes())
    content[content.index(b"ORD-20")] ^= 1
    file.write_bytes(content)

    found = items(str(file))

    assert ["entry 1 has a wrong checksum"] == [item["problem"] for item in found if item["kind"] == "damage"]
    assert 1 < len([item for item in found if item["kind"] == "wal_entry"])
    second = content.index(b"WALE", content.index(b"WALE") + 1)
    content[second] ^= 1
    file.write_bytes(content)
    assert "no entry from 2 to 2" in [item["problem"] for item in items(str(file)) if item["kind"] == "damage"]
    (data / "logmark.wal" / "recovery-points").write_bytes(b"short")
    assert any("recovery points" in item.get("problem", "") for item in items(str(data / "logmark.wal")))
    content[:8192] = bytes(8192)
    file.write_bytes(content)
    assert any("no header" in item.get("problem", "") for item in items(str(file)))
