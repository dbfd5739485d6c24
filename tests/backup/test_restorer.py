"""A restore makes a directory of a whole and sound backup, or none."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from logmark.backup.restorer import Restorer
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.testing import Broker
from logmark.wire import columns
from logmark.wire.batches import read_header
from tests.backup.backup_driver import QUICK, copy_directory, restored
from tests.harness.brokers import BrokerUnderTest
from tests.harness.restartable_broker import OUR_SETTINGS


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        broker.create_topic("orders", 1, {"segment.bytes": "1048576"})
        clients.produce("orders", [b"x" * 300_000] * 5, batch_num_messages=1)
        clients.close()
    copy_directory(tmp_path / "data", tmp_path / "backup")
    return tmp_path / "backup"


def stored(backup: Path) -> Path:
    return sorted((backup / "data" / "orders-0").iterdir())[0]


def flip(backup: Path) -> None:
    data = bytearray(stored(backup).read_bytes())
    data[100_000] ^= 1
    stored(backup).write_bytes(data)


def flip_and_seal(backup: Path) -> None:
    """Another record, with the checksum of the batch made right again."""
    data = bytearray(stored(backup).read_bytes())
    data[100_000] ^= 1
    size = 12 + struct.unpack_from(">i", data, 8)[0]
    struct.pack_into(">I", data, 17, columns.crc32c(data, 21, size - 21))
    stored(backup).write_bytes(data)


def change_epoch(backup: Path) -> None:
    """The leader epoch is outside of the batch's own checksum."""
    data = bytearray(stored(backup).read_bytes())
    data[15] += 1
    stored(backup).write_bytes(data)


def cut(backup: Path) -> None:
    data = stored(backup).read_bytes()
    stored(backup).write_bytes(data[:-10])


def remove(backup: Path) -> None:
    stored(backup).unlink()


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (flip, "at byte 0 the CRC of the batch is wrong"),
        (flip_and_seal, "its checksum is not the one that was stored"),
        (change_epoch, "its checksum is not the one that was stored"),
        (cut, "it is shorter than the"),
        (remove, "it is missing"),
    ],
)
def test_a_changed_file_is_refused_by_its_name_and_nothing_is_made(
    tmp_path: Path, backup: Path, tamper: Callable[[Path], None], problem: str
) -> None:
    path = stored(backup)
    tamper(backup)

    with pytest.raises(UserError) as refused:
        restored(backup, tmp_path / "again")

    assert f"The backup is damaged: {path}: {problem}" in str(refused.value)
    assert ["backup", "data"] == sorted(one.name for one in tmp_path.iterdir())


def rewrite(backup: Path, change: Callable[[dict], None], *, is_sealed: bool) -> None:
    head, body, tail = (backup / "logmark.backup").read_text().split("\n", 2)
    document = json.loads(body)
    change(document)
    body = json.dumps(document)
    if is_sealed:
        head = f'{{"version": 1, "crc": {zlib.crc32(body.encode())}, "backup":'
    (backup / "logmark.backup").write_text("\n".join([head, body, tail]))


def test_a_changed_manifest_is_refused(tmp_path: Path, backup: Path) -> None:
    rewrite(backup, lambda document: document.update(cluster_id="other"), is_sealed=False)

    with pytest.raises(UserError, match=r"logmark\.backup is damaged \(its checksum is wrong\)"):
        restored(backup, tmp_path / "again")


def test_a_manifest_that_claims_less_than_its_segments_hold_is_refused(tmp_path: Path, backup: Path) -> None:
    def forget(document: dict) -> None:
        document["partitions"][0]["segments"][0]["next_offset"] -= 1
        document["partitions"][0]["segments"] = document["partitions"][0]["segments"][:1]

    rewrite(backup, forget, is_sealed=True)

    with pytest.raises(UserError, match="its records end at offset 3, and the manifest says 2"):
        restored(backup, tmp_path / "again")
    assert ["backup", "data"] == sorted(one.name for one in tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 1, "crc": 1, "backup":\n{}\n}\n'])
def test_a_file_that_is_no_manifest_is_an_error(tmp_path: Path, backup: Path, content: str) -> None:
    (backup / "logmark.backup").write_text(content)

    with pytest.raises(UserError, match=r"logmark\.backup is damaged"):
        restored(backup, tmp_path / "again")


def test_a_manifest_of_another_version_is_an_error(tmp_path: Path, backup: Path) -> None:
    text = (backup / "logmark.backup").read_text()
    (backup / "logmark.backup").write_text(text.replace('"version": 1', '"version": 7', 1))

    with pytest.raises(UserError, match="is of version 7, and this Logmark reads version 1 only"):
        restored(backup, tmp_path / "again")


def test_what_an_interrupted_restore_left_is_in_nobodys_way(tmp_path: Path, backup: Path) -> None:
    left = tmp_path / "again.restoring"
    (left / "again" / "orders-0").mkdir(parents=True)
    (left / ".lock").touch()
    (left / "again" / "orders-0" / "half").write_bytes(b"x")

    restored(backup, tmp_path / "again")

    assert not left.exists()
    assert not (tmp_path / "again" / "orders-0" / "half").exists()


def test_all_of_the_work_is_told_of(tmp_path: Path, backup: Path) -> None:
    told: list[int] = []
    restorer = Restorer.open(
        str(backup), str(tmp_path / "again"), source=QUICK, files=QUICK, clock=SystemClock(), on_progress=told.append
    )
    restorer.restore()

    assert restorer.work_bytes == sum(told) > 3_000_000


def test_a_restored_directory_is_left_clean_with_indexes_and_snapshots(tmp_path: Path, backup: Path) -> None:
    data_dir = restored(backup, tmp_path / "again")

    names = {path.name for path in (data_dir / "orders-0").iterdir()}
    bases = sorted(name[:20] for name in names if name.endswith(".log"))
    assert len(bases) > 1
    assert {f"{base}.{kind}" for base in bases for kind in ("log", "index", "timeindex")} < names
    assert f"{5:020d}.snapshot" in names
    assert {"leader-epoch-checkpoint", "partition.metadata"} < names
    assert (data_dir / ".kafka_cleanshutdown").exists()
    assert QUICK.exists(str(data_dir / "meta.properties"))


@pytest.mark.parametrize("behind", [1, 200], ids=["one record", "many records"])
def test_what_lies_behind_damage_of_the_source_is_served_by_the_restored_directory(
    tmp_path: Path, behind: int
) -> None:
    with Broker(OUR_SETTINGS, data_dir=str(tmp_path / "data")) as broker:
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        broker.create_topic("orders", 1, {"index.interval.bytes": "100"})
        clients.produce("orders", [b"x" * 500] * (10 + behind), batch_num_messages=1)
        clients.close()
    log = tmp_path / "data" / "orders-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    size = read_header(data).size
    # The whole batch of offset 7, header included.
    data[7 * size : 8 * size] = bytes(size)
    log.write_bytes(data)
    copy_directory(tmp_path / "data", tmp_path / "backup")

    again = restored(tmp_path / "backup", tmp_path / "again")

    with Broker(OUR_SETTINGS, data_dir=str(again)) as broker:
        clients = BrokerUnderTest("logmark", broker.bootstrap_servers, broker)
        consumer = clients.consumer()
        consumer.assign([TopicPartition("orders", 0, 8)])
        read = consumer.consume(2 + behind, timeout=60)
        assert list(range(8, 10 + behind)) == [one.offset() for one in read]
        clients.close()
