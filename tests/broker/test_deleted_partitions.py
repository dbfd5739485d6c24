"""Deleted partitions are freed by reference counting: none of them waits for a garbage collection of everything."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from logmark.broker.api import delete_topics
from logmark.broker.cleaner import BesideWorker
from logmark.broker.config import BrokerConfig
from logmark.broker.loops import new_event_loop
from logmark.broker.server import Broker
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.log.appender import Appender
from logmark.log.durability_waiters import DurabilityWaiters
from logmark.log.flush_state import FlushState
from logmark.log.flusher import Flusher
from logmark.log.folder import PartitionFolder
from logmark.log.high_watermark import HighWatermark
from logmark.log.log_state import LogState
from logmark.log.log_to_clean import LogToClean
from logmark.log.partition import Partition
from logmark.log.producers import Producers
from logmark.log.reader import Reader
from logmark.log.segment import Segment
from logmark.log.segment_deletion import SegmentDeleter
from logmark.log.segments import Segments
from logmark.log.write_recovery import WriteRecovery
from tests.broker.test_long_requests import Client, client_of, wait_for
from tests.harness.patches import in_this_thread
from tests.hostile.test_memory_of_clients import asks_fetch, connection_to
from tests.log.directory_driver import NOW_MS, PRODUCER_ID, batch

PARTS = {
    Partition, LogState, PartitionFolder, FlushState, HighWatermark, DurabilityWaiters, Reader, Appender,
    SegmentDeleter, LogToClean, WriteRecovery, Segments, Segment, Producers,
}  # fmt: skip
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}


def count_parts() -> Counter[str]:
    """Return how many partitions, and parts of partitions, are in memory."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in PARTS)


def run_broker(folder: Path, check: Callable[[Broker, Client], Awaitable[None]]) -> None:
    """Run a check beside a broker, and a client of it, without garbage collections."""

    async def run() -> None:
        config = BrokerConfig({"log.retention.ms": "-1", "log.cleaner.backoff.ms": "86400000"})
        broker = Broker(data_dir=str(folder), config=config)
        await broker.start()
        try:
            async with client_of(broker) as client:
                await check(broker, client)
        finally:
            await broker.stop()

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run())
    finally:
        gc.enable()


@asynccontextmanager
async def freed(client: Client) -> AsyncIterator[None]:
    """Delete the topic that is created inside, and expect that everything of it is freed."""
    before = count_parts()
    yield
    await delete(client)
    await wait_for(lambda: count_parts() == before, "the deleted partitions are held")


async def delete(client: Client) -> None:
    answer = await client.ask(delete_topics, 5, topic_names=["t"])
    assert [ErrorCode.NONE] == [topic.error_code for topic in answer.responses]


async def create(broker: Broker, partitions: int = 1, overrides: dict[str, str] | None = None) -> list[Partition]:
    return list((await broker.logs.create_topic("t", partitions, overrides or {})).partitions)


async def append(partition: Partition, *values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> None:
    """Append records, and wait until they are durable."""
    partition.append(batch(*values, producer=producer), now_ms=NOW_MS)
    durable = partition.durable(partition.log_end_offset)
    if durable is not None:
        await durable


async def create_with_records(broker: Broker) -> None:
    for partition in await create(broker, 10):
        await append(partition, b"v", producer=(PRODUCER_ID, 0, 0))


def test_partitions_without_records_are_freed(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client) -> None:
        async with freed(client):
            await create(broker, 100)

    run_broker(tmp_path, check)


def test_partitions_with_records_are_freed_when_their_flush_is_over(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client) -> None:
        async with freed(client):
            await create_with_records(broker)
            broker._committer.flusher.flush_all()

    run_broker(tmp_path, check)


def test_partitions_that_were_opened_at_a_start_are_freed(tmp_path: Path) -> None:
    async def prepare(broker: Broker, client: Client) -> None:
        await create_with_records(broker)

    async def check(broker: Broker, client: Client) -> None:
        await delete(client)
        await wait_for(lambda: count_parts() == before, "the deleted partitions are held")

    run_broker(tmp_path, prepare)
    gc.collect()
    # Other tests of the same process may hold some.
    before = count_parts()
    run_broker(tmp_path, check)


def test_a_partition_is_freed_whose_records_fetches_wait_for(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client) -> None:
        async with freed(client):
            await create(broker)
            async with connection_to(broker) as (_, writer):
                writer.write(b"".join(asks_fetch(number, max_wait_ms=600_000) for number in range(10)))
                await wait_for(lambda: _listeners(broker) == 10, "the fetches never waited")

    run_broker(tmp_path, check)


def _listeners(broker: Broker) -> int:
    partition = broker.logs.partition("t", 0)
    return 0 if partition is None else len(partition.change_listeners)


def test_a_partition_is_freed_though_a_client_has_not_taken_its_records(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client) -> None:
        before = count_parts()
        (partition,) = await create(broker)
        for _ in range(10):
            await append(partition, bytes(900_000))
        del partition
        async with connection_to(broker, receive_bytes=4096) as (_, writer):
            writer.write(asks_fetch(1))
            await wait_for(lambda: bool(broker.blocked), "the socket has taken all records")
            await delete(client)
            await wait_for(lambda: count_parts() == before, "the deleted partition is held")
            assert broker.blocked, "the client still reads"

    run_broker(tmp_path, check)


def test_a_partition_is_freed_that_the_disk_had_stopped(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client) -> None:
        async with freed(client):
            (partition,) = await create(broker)
            await append(partition, b"v")
            partition.commit_failed(OSError(5, "the disk is broken"))
            await partition.recover()
            del partition

    run_broker(tmp_path, check)


def is_swapping(partition: Partition) -> bool:
    return bool(partition._log_to_clean._swaps)


def test_a_partition_is_freed_that_is_being_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(broker: Broker, client: Client) -> None:
        broker.cleaner._worker = BesideWorker(RealFileSystem())
        async with freed(client):
            (partition,) = await create(broker, 1, COMPACTED)
            for _ in range(4):
                await append(partition, bytes(400_000))
            broker._committer.flusher.settle()
            # The cleaned segment is taken over, and its files wait for a flush that does not come.
            monkeypatch.setattr(Flusher, "_begin", in_this_thread(lambda flusher: None, Flusher._begin))
            running = asyncio.ensure_future(broker.cleaner.run())
            await wait_for(partial(is_swapping, partition), "nothing was cleaned")
            del partition
            monkeypatch.undo()
        await running

    run_broker(tmp_path, check)
