"""A data directory that somebody takes away under a running broker: nothing is acknowledged that nobody would find."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logmark.disk import file_system
from logmark.disk.file_system import Bytes, RealFileSystem
from logmark.errors import ErrorCode, UserError
from logmark.testing import Broker
from tests.harness import wire
from tests.harness.crashed import tree
from tests.harness.node import wait_until

TOPIC = "orders"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker in a process of its own that has acknowledged one record; killed at the end."""
    with Broker(subprocess=True, durability="sync", data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC, 2)
        assert ErrorCode.NONE == produce(broker)
        yield broker
        broker.kill()


def produce(broker: Broker, partition: int = 0) -> int:
    return wire.produce(broker.bootstrap_servers, TOPIC, wire.batch([b"value"]), partition=partition).error_code


def remove(data: Path) -> None:
    # By a rename first: the broker may make a file while the others are removed.
    data.rename(data.with_name("removed"))
    shutil.rmtree(data.with_name("removed"))


def rename(data: Path) -> None:
    data.rename(data.with_name("renamed"))


def replace_by_nothing(data: Path) -> None:
    rename(data)
    data.mkdir()


def replace_by_copy(data: Path) -> None:
    rename(data)
    # After the rename the broker finds none of these names, so it changes none while they are copied.
    unfinished = shutil.ignore_patterns("*.new", "*.tmp")
    shutil.copytree(data.with_name("renamed"), data.with_name("copy"), ignore=unfinished)
    data.with_name("copy").rename(data)


@pytest.mark.parametrize("change", [remove, rename, replace_by_nothing, replace_by_copy])
def test_no_record_is_acknowledged_after_the_data_directory_was_taken_away(
    broker: Broker, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(tmp_path / "data")

    for partition in (0, 1, 0):
        assert ErrorCode.KAFKA_STORAGE_ERROR == produce(broker, partition), "what was acknowledged would not be found"


@pytest.mark.parametrize("is_crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("is_written", [False, True], ids=["before its first record", "after a record of another log"])
def test_a_directory_that_takes_the_place_of_the_brokers_own_is_not_changed(
    tmp_path: Path, is_written: bool, is_crashed: bool
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for path, records in ((other, 3), (data, 2)):
        with Broker(subprocess=True, durability="sync", data_dir=str(path)) as broker:
            broker.create_topic(TOPIC, 2)
            for _ in range(records):
                assert ErrorCode.NONE == produce(broker)
            if is_crashed and path is other:
                broker.kill()
    before = tree(other)
    with Broker(subprocess=True, durability="sync", data_dir=str(data)) as broker:
        if is_written:
            assert ErrorCode.NONE == produce(broker, 1)
            # The next file of the write-ahead log is made in the background, and may be half made.
            inventory = data / "logmark.wal" / "inventory"
            wait_until(lambda: b"0002.wal" in inventory.read_bytes(), "the next file of the write-ahead log is there")
        rename(data)
        other.rename(data)

        assert ErrorCode.KAFKA_STORAGE_ERROR == produce(broker)
        assert ErrorCode.KAFKA_STORAGE_ERROR == produce(broker, 1)
        with pytest.raises(ValueError, match="removed or replaced"):
            broker.create_topic("new")
        # Whatever is tried again after a while is not tried there.
        broker.advance(61)
        assert ErrorCode.KAFKA_STORAGE_ERROR == produce(broker)
        broker.kill()

    assert before == tree(data)


def test_a_second_broker_is_refused_also_when_the_lock_file_was_deleted(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "CHILD_WAIT_S", 0)
    (tmp_path / "data" / ".lock").unlink()

    with pytest.raises(UserError, match="in use by another broker"), Broker(data_dir=str(tmp_path / "data")):
        pass

    assert ErrorCode.NONE == produce(broker)


class CountingFileSystem(RealFileSystem):
    """Counts how often a file of the top level is replaced."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.replaced: list[str] = []

    def write_atomically(self, path: str, data: Bytes) -> None:
        self.replaced.append(Path(path).name)
        super().write_atomically(path, data)


def test_a_start_with_ten_thousand_partitions_never_written_to_writes_each_checkpoint_at_most_twice(
    tmp_path: Path,
) -> None:
    with Broker(data_dir=str(tmp_path / "data")) as broker:
        broker.create_topic(TOPIC, 10_000)
    files = CountingFileSystem()

    with Broker(data_dir=str(tmp_path / "data"), files=files) as broker:
        assert all(files.replaced.count(name) <= 2 for name in set(files.replaced)), files.replaced[:20]
        assert ErrorCode.NONE == produce(broker, 9_999)
