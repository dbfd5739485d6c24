"""A stop gives the data directory away only when nothing of the broker writes to it any more."""

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from logmark.broker.server import Broker
from logmark.disk.file_system import RealFileSystem
from logmark.log.directory import DataDirectory
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.testing.faulty_file_system import FaultyFileSystem
from tests.log.directory_driver import batch

TURNS = 100


class HeldRewrite:
    """A rewrite of a partition that waits until the test lets it go on, and what happened in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()
        rewrite, close = GroupCommit.rewrite, DataDirectory.close

        def rewrite_held(committer: GroupCommit, *arguments: Any) -> None:
            self.begun.set()
            self.may_end.wait()
            rewrite(committer, *arguments)
            self.events.append("rewritten")

        def note_close(directory: DataDirectory, *, clean: bool = True) -> bool:
            self.events.append("closed")
            return close(directory, clean=clean)

        monkeypatch.setattr(GroupCommit, "rewrite", rewrite_held)
        monkeypatch.setattr(DataDirectory, "close", note_close)


async def fail_a_flush(broker: Broker, files: FaultyFileSystem) -> Partition:
    """Return a partition with an acknowledged record whose flush the disk failed once."""
    await broker.logs.create_topic("orders", 1, {})
    partition: Partition = broker.logs.partition("orders", 0)
    partition.append(batch(b"acknowledged"), now_ms=broker.clock.now_ms())
    waiting = partition.durable(1)
    if waiting is not None:
        await waiting
    files.fail_syncs("orders-0/", errno.EIO, times=1)
    flusher = broker._committer.flusher
    flusher.mark(partition)
    flusher.settle()
    assert partition in flusher.troubled
    return partition


def test_a_stop_waits_for_the_rewrite_of_a_partition_whose_flush_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRewrite(monkeypatch)

    async def run() -> bool:
        files = FaultyFileSystem(RealFileSystem(sync=False))
        broker = Broker(data_dir=str(tmp_path / "data"), durability="sync", files=files)
        await broker.start()
        partition = await fail_a_flush(broker, files)
        try:
            broker._recover_logs()
            await asyncio.get_running_loop().run_in_executor(None, held.begun.wait)
            stopping = asyncio.create_task(broker.stop())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert [] == held.events, "the directory was given away while a thread writes to it"
            assert not stopping.done()
        finally:
            held.may_end.set()
        is_clean = await stopping
        assert 1 == partition.log_end_offset
        return is_clean

    assert asyncio.run(run()), "what was rewritten is flushed, and the stop is clean"
    assert ["rewritten", "closed"] == held.events
