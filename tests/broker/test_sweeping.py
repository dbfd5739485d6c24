"""Connections that idle, and requests that begin and do not go on, are closed in time."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from logmark.broker.config import BrokerConfig
from logmark.broker.server import KEPT_SECONDS_MAX, Broker
from logmark.disk.file_system import RealFileSystem
from logmark.log.file_range import FileRange


def with_broker(tmp_path: Path, test: Callable[[Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        config = BrokerConfig({"connections.max.idle.ms": "600000"})
        broker = Broker(data_dir=str(tmp_path), config=config, durability="os")
        await broker.start()
        try:
            await test(broker)
        finally:
            await broker.stop()

    asyncio.run(run())


async def connect(broker: Broker, *first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[0].port)
    for data in first:
        writer.write(data)
        await writer.drain()
    while not broker.connections or (first and not any(each.frame_began_at for each in broker.connections)):
        await asyncio.sleep(0.001)
    return reader, writer


def test_half_a_request_is_given_up_after_a_while_and_not_before(tmp_path: Path) -> None:
    async def check(broker: Broker) -> None:
        reader, writer = await connect(broker, struct.pack(">i", 1_000_000) + b"a beginning")
        (connection,) = broker.connections
        assert connection.frame_began_at is not None

        broker.sweep(connection.frame_began_at + 29)
        await asyncio.sleep(0)
        assert connection in broker.connections
        broker.sweep(connection.frame_began_at + 60)

        assert b"" == await asyncio.wait_for(reader.read(), 60)
        assert 0 == broker.budget.used
        assert connection not in broker.connections
        writer.close()

    with_broker(tmp_path, check)


def test_a_large_request_gets_more_time_than_a_small_one(tmp_path: Path) -> None:
    async def check(broker: Broker) -> None:
        _, writer = await connect(broker, struct.pack(">i", 100_000_000) + b"a beginning")

        broker.sweep(broker.loop.time() + 60)

        assert 1 == len(broker.connections)
        writer.close()

    with_broker(tmp_path, check)


def test_records_that_a_client_does_not_take_are_dropped_from_memory_and_read_again(tmp_path: Path) -> None:
    async def check(broker: Broker) -> None:
        reader, writer = await connect(broker)
        (connection,) = broker.connections
        path = tmp_path / "records"
        records = bytes(range(256)) * 4096
        path.write_bytes(records * 16)
        file = RealFileSystem().open(str(path))
        connection._send([FileRange(file.hold_open(), at * len(records), records) for at in range(16)])
        connection.send()
        while not connection.blocked_at:
            await asyncio.sleep(0)
        kept = connection.held_bytes

        broker.sweep(connection.active_at + KEPT_SECONDS_MAX)
        assert kept == connection.held_bytes > len(records)
        broker.sweep(connection.active_at + KEPT_SECONDS_MAX + 1)

        assert connection.held_bytes <= len(records), "the transport has them"
        assert broker.memory_max // 8 - connection.held_bytes == broker.room_for_responses
        assert records * 16 == await asyncio.wait_for(reader.readexactly(16 * len(records)), 60)
        writer.close()

    with_broker(tmp_path, check)


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async def check(broker: Broker) -> None:
        reader, writer = await connect(broker)

        broker.sweep(broker.loop.time() + 300)
        assert 1 == len(broker.connections)
        broker.sweep(broker.loop.time() + 601)

        assert b"" == await asyncio.wait_for(reader.read(), 60)
        writer.close()

    with_broker(tmp_path, check)
