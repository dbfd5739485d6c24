"""A broker that can do nothing useful any more ends with a code of its own; everything less is no reason to end."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logmark.broker.liveness import CHECKS_BETWEEN_READS
from logmark.broker.server import Broker
from logmark.disk.file_system import RealFileSystem
from logmark.log.partition import Partition
from logmark.testing.faulty_file_system import FaultyFileSystem
from tests.broker.test_serve import ServeProcess
from tests.harness import wire
from tests.harness.node import wait_until
from tests.log.directory_driver import NOW_MS, batch

# The files of the write-ahead log that hold entries.
WAL = "logmark.wal/0"


class FaultyBroker:
    """A broker in this process on a disk that a test breaks."""

    def __init__(self, path: Path, durability: str) -> None:
        self.files = FaultyFileSystem(RealFileSystem(sync=False))
        self.broker = Broker(data_dir=str(path), durability=durability, files=self.files)  # type: ignore[arg-type]
        self.ended = 0

    def end(self) -> None:
        self.ended += 1

    async def write(self, partition: Partition) -> None:
        appended = partition.append(batch(b"value"), now_ms=NOW_MS)
        durable = partition.durable(appended.last_offset + 1)
        if durable is not None:
            await asyncio.gather(durable, return_exceptions=True)

    def check(self, times: int = 1) -> bool:
        for _ in range(times):
            self.broker._check_liveness()
        return not self.broker.liveness.is_over


def with_broker(
    path: Path, test: Callable[[FaultyBroker, Partition, Partition], object], durability: str = "sync"
) -> None:
    async def run() -> None:
        faulty = FaultyBroker(path, durability)
        await faulty.broker.start()
        faulty.broker.on_useless = faulty.end
        topic = await faulty.broker.logs.create_topic("orders", 2, {})
        try:
            done = test(faulty, *topic.partitions)
            if asyncio.iscoroutine(done):
                await done
        finally:
            faulty.files.heal()
            await faulty.broker.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_failed_write_ahead_log_is_no_reason_to_end_while_any_log_can_be_read(tmp_path: Path) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        await faulty.write(first)
        await faulty.write(second)
        faulty.files.fail_syncs(WAL, errno.EIO)
        await faulty.write(first)
        assert faulty.broker.write_failure is not None
        faulty.files.fail_opens("orders-0", errno.EIO)

        assert faulty.check(3)
        assert 0 == faulty.ended

    with_broker(tmp_path, test)


def test_a_broker_that_takes_no_records_and_can_read_no_log_ends_once_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        await faulty.write(first)
        await faulty.write(second)
        faulty.files.fail_syncs(WAL, errno.EIO)
        await faulty.write(first)
        faulty.files.fail_opens("orders-", errno.EIO)

        assert not faulty.check(3)
        assert 1 == faulty.ended

    with_broker(tmp_path, test)

    (event,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert f"no log in {tmp_path} can be read" in event
    assert "Repair the disk, then start the broker." in event


def test_a_log_that_could_be_read_is_not_read_again_at_once_but_later(tmp_path: Path) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        await faulty.write(first)
        faulty.files.fail_syncs(WAL, errno.EIO)
        await faulty.write(first)
        assert faulty.check()
        faulty.files.fail_opens("orders-", errno.EIO)

        assert faulty.check(CHECKS_BETWEEN_READS)
        assert not faulty.check()

    with_broker(tmp_path, test)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_full_disk_and_a_lack_of_descriptors_are_never_a_reason_to_end(
    tmp_path: Path, error: int, durability: str
) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        await faulty.write(first)
        faulty.files.fail_writes("", error)
        faulty.files.fail_syncs("", error)
        faulty.files.fail_opens("", error)
        for partition in (first, second):
            with pytest.raises(Exception, match="orders-"):
                partition.append(batch(b"value"), now_ms=NOW_MS)

        assert faulty.check(3)

    with_broker(tmp_path, test, durability)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_logs_that_cannot_be_read_for_lack_of_descriptors_or_memory_are_no_reason_to_end(
    tmp_path: Path, error: int
) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        await faulty.write(first)
        faulty.files.fail_syncs(WAL, errno.EIO)
        await faulty.write(first)
        assert faulty.broker.write_failure is not None
        faulty.files.fail_opens("orders-", error)

        assert faulty.check(3)

    with_broker(tmp_path, test)


def test_partitions_that_the_disk_failed_are_no_reason_to_end_while_they_are_written_again(tmp_path: Path) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        for partition in (first, second):
            await faulty.write(partition)
        faulty.files.fail_writes("orders-", errno.EIO)
        faulty.files.fail_opens("orders-", errno.EIO)
        for partition in (first, second):
            with pytest.raises(Exception, match="orders-"):
                partition.append(batch(b"value"), now_ms=NOW_MS)

        assert faulty.check(3)

    with_broker(tmp_path, test)


def test_without_a_write_ahead_log_a_broker_ends_when_every_log_has_failed_and_none_can_be_read(tmp_path: Path) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        for partition in (first, second):
            await faulty.write(partition)
        faulty.files.fail_writes("orders-", errno.EIO)
        faulty.files.fail_opens("orders-1", errno.EIO)
        with pytest.raises(Exception, match="orders-0"):
            first.append(batch(b"value"), now_ms=NOW_MS)
        assert faulty.check(3), "the other one takes records"
        with pytest.raises(Exception, match="orders-1"):
            second.append(batch(b"value"), now_ms=NOW_MS)
        assert faulty.check(3), "the first one can be read"
        faulty.files.fail_opens("orders-0", errno.EIO)

        assert not faulty.check(CHECKS_BETWEEN_READS + 1)

    with_broker(tmp_path, test, "os")


def test_without_a_write_ahead_log_logs_that_come_back_by_themselves_are_no_reason_to_end(tmp_path: Path) -> None:
    async def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        for partition in (first, second):
            await faulty.write(partition)
            partition.commit_failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            assert partition.failure is not None
        faulty.files.fail_opens("orders-", errno.EIO)

        assert faulty.check(3)

    with_broker(tmp_path, test, "os")


def test_a_directory_that_is_away_for_a_moment_or_that_nobody_can_look_at_is_no_reason_to_end(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        data.rename(tmp_path / "away")
        assert faulty.check()
        (tmp_path / "away").rename(data)
        assert faulty.check(3)

        def refuse(path: str) -> tuple[int, int]:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

        faulty.broker.liveness._identify = refuse
        assert faulty.check(3)

    with_broker(data, test)


# `logmark serve` itself


@pytest.fixture
def served(tmp_path: Path) -> ServeProcess:
    return ServeProcess("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--set", "max.connections=100")


def content(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_serve_ends_with_exit_code_3_when_its_data_directory_was_removed(served: ServeProcess, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "removed")
    shutil.rmtree(tmp_path / "removed")

    _, complaints = served.process.communicate(timeout=120)

    assert 3 == served.process.returncode
    assert "was removed or replaced while the broker ran" in complaints
    assert "Traceback" not in complaints
    assert not (tmp_path / "data").exists()


def test_serve_ends_with_exit_code_3_and_changes_nothing_in_a_directory_that_took_the_place_of_its_own(
    served: ServeProcess, tmp_path: Path
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    another = ServeProcess("--data-dir", str(other), "--listen", "127.0.0.1:0", "--set", "max.connections=100")
    assert 0 == another.stop()[0]
    data.rename(tmp_path / "renamed")
    before = content(other)
    other.rename(data)

    served.process.communicate(timeout=120)

    assert 3 == served.process.returncode
    assert before == content(data)


def test_a_stop_changes_nothing_in_a_directory_that_took_the_place_of_its_own(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"

    def test(faulty: FaultyBroker, first: Partition, second: Partition) -> None:
        data.rename(tmp_path / "renamed")
        other.mkdir()
        (other / "mine").write_text("untouched")
        other.rename(data)
        faulty.broker._checkpoint_now_and_then()
        assert faulty.broker._checkpointing is None

    with_broker(data, test)

    assert {"mine": b"untouched"} == content(data)


def test_serve_goes_on_while_its_data_directory_is_there(served: ServeProcess) -> None:
    address = f"127.0.0.1:{served.port()}"

    wait_until(lambda: wire.send(address, 18, 0, b"") != b"", "it answers")

    assert 0 == served.stop()[0]
