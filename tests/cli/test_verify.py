"""`logmark verify`: what is wrong is found and told, and a repair loses nothing else."""

import json
import os
import pty
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logmark.disk.file_system import Bytes, RealFileSystem
from logmark.errors import ErrorCode, Refused, UserError
from logmark.log import catalog
from logmark.log.repair import Repair
from logmark.log.settings import TopicSettings
from logmark.log.verification import Verification
from logmark.testing import Broker
from logmark.wire import batches
from tests.cli.conftest import as_printed, run
from tests.cli.test_main import COMMAND
from tests.harness import crashed, wire
from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read
from tests.harness.terminals import read_until
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, LogDriver, settings

TOPIC = "orders"
BATCHES = 40
RECORDS_PER_BATCH = 5
END = BATCHES * RECORDS_PER_BATCH
VALUE = b"ORD-1001 " * 40
LOG, INDEX, TIME_INDEX = "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one topic in one segment, closed cleanly."""
    path = tmp_path_factory.mktemp("verify") / "data"
    with Broker({"log.index.interval.bytes": "1024"}, data_dir=str(path)) as broker:
        broker.create_topic(TOPIC)
        for _ in range(BATCHES):
            answer = wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([VALUE] * RECORDS_PER_BATCH))
            assert 0 == answer.error_code
    return path


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def folder(data: Path) -> Path:
    return data / f"{TOPIC}-0"


def batch_positions(log: Path) -> list[int]:
    """Where each batch begins, and the end of the file."""
    content, found = log.read_bytes(), [0]
    while found[-1] < len(content):
        found.append(found[-1] + batches.read_header(content, found[-1]).size)
    return found


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def findings(data: Path) -> list[dict[str, Any]]:
    done = run("verify", str(data), "--output", "json")
    assert done.exit_code == (1 if done.json["findings"] else 0), done.error
    return list(done.json["findings"])


def served(data: Path) -> dict[int, bytes]:
    """Every record that a reader gets who goes on at the next offset whenever one is refused."""
    found: dict[int, bytes] = {}
    refused = set()
    driver = LogDriver(data.parent)
    driver.path = data
    driver.open()
    assert driver.directory is not None
    entry = catalog.Catalog(driver.directory.read(catalog.FILE_NAME)).get(TOPIC)
    assert entry is not None
    partition = driver.directory.open_partition(TOPIC, 0, entry.id, TopicSettings(entry.overrides))
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        try:
            content = partition.read(offset, bytes_max=1 << 20)
        except Refused as error:
            assert ErrorCode.CORRUPT_MESSAGE == error.code, error
            refused.add(offset)
            offset += 1
            continue
        found.update((one.offset, one.value or b"") for one in batches.unpack(content) if one.offset >= offset)
        at = 0
        while at < len(content):
            header = batches.read_header(content, at)
            offset, at = header.next_offset, at + header.size
    driver.close()
    assert END == offset, "the log's end stays where it was"
    assert not refused & found.keys()
    return found


def everything() -> dict[int, bytes]:
    return dict.fromkeys(range(END), VALUE)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# Clean, and not to be verified


def test_a_directory_without_fault_is_said_to_be_so_and_stays_as_it_is(data: Path) -> None:
    before = tree(data)

    done = run("verify", str(data))

    assert (0, "") == (done.exit_code, done.out)
    assert f"1 partition of Logmark, 1 segment, {END} records" in done.error
    assert "nothing is wrong" in done.error
    assert before == tree(data)


def test_a_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path / "data")) as broker:
        for extra in ([], ["--repair", "--yes"]):
            refused = run("verify", broker.data_dir, *extra)

            assert 1 == refused.exit_code
            assert "is in use by a running broker" in refused.error
            assert "Stop the broker" in refused.error


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_what_is_no_data_directory_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()

    refused = run("verify", str(tmp_path / name))

    assert 2 == refused.exit_code
    assert "director" in refused.error


def test_a_torn_tail_after_a_kill_is_normal_and_a_note(data: Path) -> None:
    log = folder(data) / LOG
    log.write_bytes(log.read_bytes()[:-7])
    assert "records" == findings(data)[0]["kind"], "a clean stop leaves no torn tail"

    (data / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data / name).unlink()
    for snapshot in folder(data).glob("*.snapshot"):
        snapshot.unlink()
    done = run("verify", str(data))

    assert 0 == done.exit_code, done.out
    assert "the next start cuts such a tail" in done.out


def test_a_torn_tail_is_repaired_with_the_rest_and_what_a_checkpoint_promises_of_it_becomes_a_gap(data: Path) -> None:
    log = folder(data) / LOG
    log.write_bytes(log.read_bytes()[:-7])
    in_batch(3, 100)(data)
    (data / ".kafka_cleanshutdown").unlink()

    found = [one for one in findings(data) if one["kind"] == "records"]
    assert [(15, 20), (END - RECORDS_PER_BATCH, END)] == [(one["first_offset"], one["next_offset"]) for one in found]

    repaired = run("verify", str(data), "--repair", "--yes")
    assert 0 == repaired.exit_code, repaired.out + repaired.error
    lost = {*range(15, 20), *range(END - RECORDS_PER_BATCH, END)}
    assert {offset: value for offset, value in everything().items() if offset not in lost} == served(data)


def test_a_directory_of_a_broker_that_was_killed_is_normal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=str(data), subprocess=True, durability="sync") as broker:
        broker.create_topic(TOPIC, config={"segment.bytes": "1048576"})
        for _ in range(5):
            wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"x" * 400_000]))
        broker.kill()
        done = run("verify", str(data), "--output", "json")

        assert (0, [], False) == (done.exit_code, done.json["findings"], done.json["closed_cleanly"]), done.out
        assert (3, 5) == (done.json["segments"], done.json["records"])


def test_programs_get_the_fields_of_a_verification_in_their_order(data: Path) -> None:
    flip(folder(data) / LOG, batch_positions(folder(data) / LOG)[3] + 70)

    done = run("verify", str(data), "--output", "json")

    (finding,) = done.json["findings"]
    expected = {
        "data_dir": str(data),
        "written_by": "logmark",
        "closed_cleanly": True,
        "has_wal": False,
        "partitions": 1,
        "segments": 1,
        "records": END - RECORDS_PER_BATCH,
        "size_bytes": (folder(data) / LOG).stat().st_size,
        "findings": [
            {
                "kind": "records",
                "path": f"{TOPIC}-0/{LOG}",
                "problem": finding["problem"],
                "meaning": finding["meaning"],
                "position": batch_positions(folder(data) / LOG)[3],
                "size_bytes": finding["size_bytes"],
                "first_offset": 3 * RECORDS_PER_BATCH,
                "next_offset": 4 * RECORDS_PER_BATCH,
                "records_lost_max": RECORDS_PER_BATCH,
            }
        ],
        "notes": [],
    }
    assert as_printed(expected) == done.out


# What is wrong is found


def in_batch(number: int, at: int) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        log = folder(data) / LOG
        flip(log, batch_positions(log)[number] + at)

    return damage


HEAD_FIELDS = {"base offset": 7, "length": 10, "leader epoch": 13, "magic": 16}
BODY_FIELDS = {"checksum": 18, "attributes": 22, "last offset delta": 26, "producer": 47, "record": 90}


@pytest.mark.parametrize("number", [0, 7, BATCHES - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("field", [*HEAD_FIELDS, *BODY_FIELDS])
def test_a_flipped_byte_of_a_batch_is_found_where_it_is_and_repaired(data: Path, field: str, number: int) -> None:
    at = {**HEAD_FIELDS, **BODY_FIELDS}[field]
    in_batch(number, at)(data)
    log = folder(data) / LOG
    position = batch_positions(folder(data) / LOG)[number] if field not in ("length",) else None

    found = [one for one in findings(data) if one["kind"] in ("records", "head")]

    assert 1 == len(found), found
    first = number * RECORDS_PER_BATCH
    assert (f"{TOPIC}-0/{LOG}", first) == (found[0]["path"], found[0]["first_offset"])
    assert found[0]["next_offset"] in (first + RECORDS_PER_BATCH, None)
    assert position in (None, found[0]["position"])
    is_head = field in HEAD_FIELDS
    assert is_head == (found[0]["kind"] == "head")

    repaired = run("verify", str(data), "--repair", "--yes")
    assert 0 == repaired.exit_code, repaired.out + repaired.error
    assert ("A repair loses no record." in repaired.error) == is_head
    lost = set() if is_head else set(range(first, first + RECORDS_PER_BATCH))
    assert {offset: value for offset, value in everything().items() if offset not in lost} == served(data)
    assert is_head == (not list(folder(data).glob("*.damaged-*")))
    assert log.exists()


def test_two_damaged_ranges_are_two_lines_and_what_lies_between_them_is_kept(data: Path) -> None:
    in_batch(3, 100)(data)
    in_batch(20, 100)(data)

    done = run("verify", str(data))
    assert 1 == done.exit_code
    assert 2 == len(done.lines)
    assert "offsets 15 to 19: the CRC of the batch is wrong. These records are not served" in done.lines[0]
    assert "2 findings" in done.error

    asked = run("verify", str(data), "--repair")
    assert 1 == asked.exit_code
    assert "Nothing was changed: there is no terminal to ask in. Add --yes to repair." in asked.error
    words = [line.split() for line in asked.lines if line.endswith("up to 5")]
    assert [["15", "20"], ["100", "105"]] == [line[3:5] for line in words]

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
    lost = {*range(15, 20), *range(100, 105)}
    assert {offset: value for offset, value in everything().items() if offset not in lost} == served(data)


@pytest.mark.parametrize(("answer", "exit_code"), [(b"y\n", 0), (b"\n", 1)])
def test_a_repair_asks_in_a_terminal_after_saying_what_is_lost(data: Path, answer: bytes, exit_code: int) -> None:
    in_batch(3, 100)(data)
    before = tree(data)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "verify", str(data), "--repair"], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "COLUMNS": "200"},
    ) as asked:  # fmt: skip
        os.close(theirs)
        shown = read_until(ours, b"Repair this? [y/N]:")
        assert before == tree(data), "nothing is changed before the answer"
        os.write(ours, answer)
        assert exit_code == asked.wait(60)
    os.close(ours)

    assert b"up to 5" in shown
    assert b"This would be lost for good to readers" in shown
    assert (before == tree(data)) == (exit_code == 1)


def test_the_bytes_that_were_cut_out_are_kept(data: Path) -> None:
    log = folder(data) / LOG
    begin, end = batch_positions(log)[3:5]
    in_batch(3, 100)(data)
    damaged = log.read_bytes()[begin:end]

    run("verify", str(data), "--repair", "--yes")

    (kept,) = folder(data).glob("*.damaged-*")
    assert damaged == kept.read_bytes()


def test_a_reader_at_an_offset_that_was_cut_out_gets_the_next_one(data: Path) -> None:
    in_batch(3, 100)(data)
    run("verify", str(data), "--repair", "--yes")

    with Broker(data_dir=str(data)) as broker:
        under_test = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        consumer = under_test.consumer()
        consumer.assign(at((TOPIC, 0, 17)))
        assert [20, 21] == offsets_of(read(consumer, 2))
        under_test.close()


def test_a_missing_segment_is_found_and_made_a_gap(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=str(data)) as broker:
        broker.create_topic(TOPIC, config={"segment.bytes": "1048576"})
        for _ in range(5):
            wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"x" * 600_000]))
    for file in folder(data).glob("00000000000000000002.*"):
        if file.suffix != ".snapshot":
            file.unlink()

    (found,) = findings(data)
    assert ("records", 2, 3) == (found["kind"], found["first_offset"], found["next_offset"])

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
    with Broker(data_dir=str(data)) as broker:
        under_test = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        consumer = under_test.consumer()
        consumer.assign(at((TOPIC, 0, 0)))
        assert [0, 1, 3, 4] == offsets_of(read(consumer, 4))
        under_test.close()


def test_records_that_a_checkpoint_promises_and_the_log_lacks_are_found(data: Path) -> None:
    log = folder(data) / LOG
    log.write_bytes(log.read_bytes()[: batch_positions(log)[-2]])
    for file in (INDEX, TIME_INDEX):
        (folder(data) / file).unlink()

    found = [one for one in findings(data) if one["kind"] == "records"]
    assert [(END - RECORDS_PER_BATCH, END)] == [(one["first_offset"], one["next_offset"]) for one in found]

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
    assert END - RECORDS_PER_BATCH == len(served(data))


# Files that are made from the log


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda data: (folder(data) / name).write_bytes((folder(data) / name).read_bytes()[:size])


DERIVED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "an index entry": (lambda data: flip(folder(data) / INDEX, 7), INDEX, "and the log does not"),
    "an offset in an index": (lambda data: flip(folder(data) / INDEX, 3), INDEX, "and the log does not"),
    "a timestamp": (lambda data: flip(folder(data) / TIME_INDEX, 6), TIME_INDEX, "timestamp"),
    "the last timestamp missing": (cut(TIME_INDEX, 12), TIME_INDEX, "largest timestamp"),
    "half an entry": (cut(INDEX, 11), INDEX, "not whole entries"),
    "no index": (lambda data: (folder(data) / INDEX).unlink(), INDEX, "it is missing"),
    "zeros": (lambda data: (folder(data) / INDEX).open("ab").write(bytes(80)) and None, INDEX, "zeros"),
}


@pytest.mark.parametrize("what", DERIVED)
def test_a_wrong_index_is_found_and_made_again_without_loss(data: Path, what: str) -> None:
    damage, name, problem = DERIVED[what]
    damage(data)

    (found,) = findings(data)
    assert ("index", f"{TOPIC}-0/{name}") == (found["kind"], found["path"])
    assert problem in found["problem"]

    repaired = run("verify", str(data), "--repair", "--yes")
    assert 0 == repaired.exit_code, repaired.error
    assert "A repair loses no record." in repaired.error
    assert everything() == served(data)


STATE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a snapshot": (
        lambda data: flip(folder(data) / f"{END:020}.snapshot", 5), f"{TOPIC}-0/{END:020}.snapshot", "checksum",
    ),
    "the epochs": (
        lambda data: (folder(data) / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n"),
        f"{TOPIC}-0/leader-epoch-checkpoint", "count",
    ),
    "another epoch": (
        lambda data: (folder(data) / "leader-epoch-checkpoint").write_text("0\n1\n7 0\n"),
        f"{TOPIC}-0/leader-epoch-checkpoint", "epoch 7",
    ),
    "the id": (
        lambda data: (folder(data) / "partition.metadata").write_text("version: 0\n"),
        f"{TOPIC}-0/partition.metadata", "topic id",
    ),
    "a checkpoint": (
        lambda data: (data / "recovery-point-offset-checkpoint").write_text("9\n"),
        "recovery-point-offset-checkpoint", "version",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STATE)
def test_the_state_files_of_a_directory_are_checked_and_rebuilt(data: Path, what: str) -> None:
    damage, path, problem = STATE[what]
    damage(data)

    (found,) = findings(data)
    assert ("state", path) == (found["kind"], found["path"])
    assert problem in found["problem"]

    assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
    assert everything() == served(data)


def edit_catalogue(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(data: Path) -> None:
        document = json.loads((data / "logmark.catalog").read_text()) | {"version": 1}
        change(document)
        (data / "logmark.catalog").write_text(json.dumps(document))

    return edit


def make_foreign(data: Path) -> None:
    (data / "notes").mkdir()


CATALOGUE: dict[str, tuple[Callable[[Path], None], str]] = {
    "an unknown setting": (
        edit_catalogue(lambda one: one["topics"][0]["overrides"].update({"retention.weeks": "2"})),
        "Unknown topic config name: retention.weeks",
    ),
    "a wrong value": (
        edit_catalogue(lambda one: one["topics"][0]["overrides"].update({"retention.ms": "soon"})),
        "Invalid value soon",
    ),
    "a missing topic": (edit_catalogue(lambda one: one["topics"].clear()), "does not have this partition"),
    "another id": (
        edit_catalogue(lambda one: one["topics"][0].update({"id": "A" * 22})), "the catalogue's is " + "A" * 22,
    ),
    "no catalogue that can be read": (lambda data: (data / "logmark.catalog").write_text("{"), "cannot be read"),
    "no cluster": (lambda data: (data / "meta.properties").unlink(), "it is missing"),
    "a foreign folder": (make_foreign, "not the folder of a partition"),
}  # fmt: skip


@pytest.mark.parametrize("what", CATALOGUE)
def test_ids_and_settings_are_complete_or_a_person_is_told(data: Path, what: str) -> None:
    damage, problem = CATALOGUE[what]
    damage(data)

    found = [one for one in findings(data) if one["kind"] == "catalogue"]
    assert any(problem in one["problem"] for one in found), found

    before = tree(data)
    refused = run("verify", str(data), "--repair", "--yes")
    assert 1 == refused.exit_code
    assert "Nothing of this can be repaired here, and nothing was changed." in refused.error
    assert before == tree(data)


def test_a_record_that_is_broken_under_a_right_checksum_is_found(data: Path) -> None:
    log = folder(data) / LOG
    content, begin = bytearray(log.read_bytes()), batch_positions(log)[2]
    end = batch_positions(log)[3]
    content[begin + 61] ^= 0x02  # the length of the first record
    checksum = batches.columns.crc32c(content, begin + 21, end - begin - 21)
    struct.pack_into(">I", content, begin + 17, checksum)
    log.write_bytes(content)

    (found,) = findings(data)
    assert "record 0 of 5 is broken" == found["problem"]
    assert "A repair leaves it as it is." in found["meaning"]


# Transactions


@pytest.fixture
def paid(tmp_path: Path) -> Path:
    """A directory whose topic has an aborted transaction in each of its segments."""
    data = tmp_path / "data"
    with Broker(data_dir=str(data)) as broker:
        broker.create_topic(TOPIC)
        wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"first"]))
    driver = LogDriver(data.parent)
    driver.path = data
    driver.open()
    assert driver.directory is not None
    entry = catalog.Catalog(driver.directory.read(catalog.FILE_NAME)).get(TOPIC)
    assert entry is not None
    partition = driver.directory.open_partition(TOPIC, 0, entry.id, settings(segment_bytes=1000))
    for turn in range(4):
        built = batches.build(
            [(b"user", b"payment " * 60)], timestamp_ms=NOW_MS, producer_id=PRODUCER_ID, producer_epoch=0,
            base_sequence=turn, attributes=batches.TRANSACTIONAL_BIT,
        )  # fmt: skip
        partition.append(batches.own(built), now_ms=NOW_MS)
        partition.append_marker(PRODUCER_ID, 0, commit=False, now_ms=NOW_MS)
    driver.finish(partition)
    driver.stop()
    driver.loop.close()
    document = json.loads((data / "logmark.catalog").read_text()) | {"version": 1}
    document["next_producer_id"] = PRODUCER_ID + 1
    (data / "logmark.catalog").write_text(json.dumps(document))
    return data


def aborted(data: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder(data).glob("*.txnindex"))}


def test_a_wrong_transaction_index_is_found_and_made_again(paid: Path) -> None:
    assert [] == findings(paid)
    right = aborted(paid)
    assert len(right) > 2
    first, *_, last = (folder(paid) / name for name in right)
    flip(first, 17)  # where the first transaction began
    last.unlink()

    found = findings(paid)
    assert [("state", f"{TOPIC}-0/{first.name}"), ("state", f"{TOPIC}-0/{last.name}")] == [
        (one["kind"], one["path"]) for one in found
    ]
    assert all("may be shown aborted ones" in one["meaning"] for one in found)

    assert 0 == run("verify", str(paid), "--repair", "--yes").exit_code
    assert right == aborted(paid)
    with Broker(data_dir=str(paid)):
        pass
    assert right == aborted(paid)


def test_a_repair_keeps_the_transaction_index_of_a_segment(paid: Path) -> None:
    right = aborted(paid)
    log = sorted(folder(paid).glob("*.log"))[0]
    flip(log, 40)  # the first batch, which belongs to no transaction

    assert 0 == run("verify", str(paid), "--repair", "--yes").exit_code
    assert right == aborted(paid)


# Interrupted


class Interrupted(Exception):
    """The process ends here."""


class EndsAt(RealFileSystem):
    """The process ends at the n-th change."""

    def __init__(self, number: int) -> None:
        super().__init__(sync=False)
        self._left = number

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Interrupted

    def open(self, path: str, *, create: bool = False) -> Any:
        if create:
            self._count()
        return super().open(path, create=create)

    def write(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        self._count()
        super().write(path, data, sync=sync)

    def replace(self, source: str, target: str) -> None:
        self._count()
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._count()


def interrupted(written: Path, folder_: Path) -> Iterator[Path]:
    number = 0
    while True:
        data = Path(shutil.copytree(written, folder_ / str(number)))
        in_batch(3, 100)(data)
        flip(folder(data) / f"{END:020}.snapshot", 5)
        files = EndsAt(number)
        try:
            Repair(Verification(str(data), files).run(), files).apply()
        except Interrupted:
            yield data
            number += 1
            continue
        return


def test_a_repair_that_is_cut_short_anywhere_leaves_every_sound_record(written: Path, tmp_path: Path) -> None:
    kept = {offset: value for offset, value in everything().items() if not 15 <= offset < 20}
    count = 0
    for data in interrupted(written, tmp_path):
        assert kept == served(data), f"after {count} changes"
        assert 0 == run("verify", str(data), "--repair", "--yes").exit_code
        assert kept == served(data)
        count += 1
    assert count >= 10, "the repair makes more changes than that"


# After a crash


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a killed broker, with bytes behind its last acknowledged record."""
    data = crashed.write_crashed(tmp_path / "crashed")
    with (data / f"{crashed.TOPIC}-0" / LOG).open("ab") as file:
        file.write(b"never acknowledged")
    return data


def test_a_crashed_directory_is_sound_and_notes_say_what_a_recovery_will_write_and_cut(killed: Path) -> None:
    before = tree(killed)
    size = (killed / f"{crashed.TOPIC}-0" / LOG).stat().st_size

    done = run("verify", str(killed))

    assert 0 == done.exit_code, done.out
    assert "logmark.wal: the last stop was a crash; it holds " in done.out
    assert f"{crashed.TOPIC}-0: a recovery writes offsets " in done.out
    assert f"{LOG}: a recovery cuts 18 bytes from byte {size - 18} on. They were never acknowledged." in done.out
    assert all(line.startswith("note: ") for line in done.lines)
    assert before == tree(killed)


def test_after_a_power_loss_the_records_of_the_write_ahead_log_are_counted_with_those_of_the_segments(
    killed: Path,
) -> None:
    crashed.lose_power(killed)

    found = run("verify", str(killed), "--output", "json").json

    assert (True, False, []) == (found["has_wal"], found["closed_cleanly"], found["findings"])
    assert len(crashed.VALUES) + 1 == found["records"], "all records, and the committed offset"


def test_a_repair_does_not_go_before_the_recovery(killed: Path) -> None:
    before = tree(killed)

    refused = run("verify", str(killed), "--repair", "--yes")

    assert 1 == refused.exit_code
    assert f"Run `logmark recover {killed}` first." in refused.error
    assert before == tree(killed)
    assert 0 == run("recover", str(killed)).exit_code
    assert 0 == run("verify", str(killed), "--repair", "--yes").exit_code


@pytest.mark.parametrize("name", ["recovery-points", "0001.wal"])
def test_a_write_ahead_log_that_rots_is_a_finding(killed: Path, name: str) -> None:
    file = killed / "logmark.wal" / name
    content = bytearray(file.read_bytes())
    content[content.index(b"ORD-30") if name.endswith(".wal") else 30] ^= 1
    file.write_bytes(content)

    done = run("verify", str(killed))

    assert 1 == done.exit_code
    (finding,) = (line for line in done.lines if not line.startswith("note: "))
    assert finding.startswith("logmark.wal: ")
    assert ("cannot be used" if name == "recovery-points" else "cannot be read") in finding


def test_a_write_ahead_log_next_to_the_mark_of_a_clean_stop_is_a_finding(killed: Path) -> None:
    """A start refuses such a directory: files of two moments were mixed."""
    (killed / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    before = tree(killed)

    done = run("verify", str(killed))

    assert 1 == done.exit_code
    (finding,) = (line for line in done.lines if "logmark.wal" in line)
    assert "does not belong to the last clean stop" in finding
    assert "move logmark.wal away" in finding
    assert "No broker starts on the directory." in finding
    assert before == tree(killed)
    with pytest.raises(UserError, match="does not belong to the last clean stop"):
        Broker(data_dir=str(killed), durability="sync").start()
