"""What responses take in memory that a client does not take."""

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from pathlib import Path
from typing import cast

import pytest

from logmark.broker.answers import Buffer, SharedBody, SharedBytes
from logmark.broker.memory_budget import MemoryBudget
from logmark.broker.outbox import CHUNK_BYTES, FEW_CONNECTIONS, UNSENT_BYTES_MAX, UNSENT_BYTES_OF_FEW, Outbox
from logmark.broker.server import Broker
from logmark.disk.file_system import RealFileSystem
from logmark.log.file_range import FileRange

RESPONSE = bytes(range(256)) * 1000


class BlockedTransport:
    """A transport whose socket takes nothing."""

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        self.written = b""

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, chunks: list[bytes]) -> None:
        assert self.outbox is not None
        self.written += b"".join(chunks)
        self.outbox.is_blocked = True


def blocked_outbox() -> tuple[Outbox, BlockedTransport]:
    transport = BlockedTransport()
    transport.outbox = Outbox(cast(asyncio.Transport, transport))
    return transport.outbox, transport


@pytest.mark.parametrize("pieces", [[RESPONSE], [b"header", RESPONSE]])
def test_a_response_counts_with_its_size_though_a_chunk_is_larger(pieces: list[Buffer]) -> None:
    outbox, _ = blocked_outbox()
    assert len(RESPONSE) < CHUNK_BYTES
    size = sum(map(len, pieces))

    outbox.send(pieces)

    assert size == outbox.memory_bytes


def file_range(path: Path, at: int, size: int) -> FileRange:
    """A range whose bytes were read."""
    file = RealFileSystem().open(str(path))
    return FileRange(file.hold_open(), at, file.pread(size, at))


@pytest.mark.parametrize(("keep_bytes", "kept"), [(0, 0), (250, 200), (1 << 20, 300)])
def test_as_many_records_stay_in_memory_for_a_client_that_takes_them_later_as_there_is_room_for(
    tmp_path: Path, keep_bytes: int, kept: int
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(RESPONSE[:400])
    outbox, transport = blocked_outbox()
    outbox.chunk_bytes = 100
    outbox.send([file_range(path, at, 100) for at in (0, 100, 200, 300)], keep_bytes)

    assert 100 + kept == outbox.memory_bytes, "the first hundred are the transport's"
    while outbox:
        outbox.is_blocked = False
        outbox.send([], keep_bytes)
    assert RESPONSE[:400] == transport.written


def test_records_that_nobody_takes_do_not_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(RESPONSE[:200])
    outbox, transport = blocked_outbox()
    outbox.chunk_bytes = 100
    outbox.send([file_range(path, at, 100) for at in (0, 100)], 1 << 20)

    outbox.drop_bytes()

    assert 100 == outbox.memory_bytes
    outbox.is_blocked = False
    outbox.send([])
    assert RESPONSE[:200] == transport.written


def test_a_shared_response_is_sent_in_chunks_and_counts_once_until_all_have_sent_it() -> None:
    budget = MemoryBudget(1 << 30)
    body = SharedBody(RESPONSE, budget)
    outboxes = [blocked_outbox() for _ in range(3)]
    for outbox, _ in outboxes:
        outbox.chunk_bytes = 100_000
        outbox.send([SharedBytes(body)])
    del body

    assert [100_000] * 3 == [outbox.memory_bytes for outbox, _ in outboxes]
    for outbox, transport in outboxes:
        assert len(RESPONSE) == budget.used
        while outbox:
            outbox.is_blocked = False
            outbox.send([])
        assert RESPONSE == transport.written
    assert not budget.used


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux how much it holds")
@pytest.mark.parametrize(
    ("others", "unsent_bytes_max"), [(0, UNSENT_BYTES_OF_FEW), (FEW_CONNECTIONS, UNSENT_BYTES_MAX)]
)
def test_the_kernel_holds_little_for_a_client_that_does_not_read(
    tmp_path: Path, others: int, unsent_bytes_max: int
) -> None:
    async def check() -> None:
        broker = Broker(data_dir=str(tmp_path), durability="os")
        await broker.start()
        with contextlib.ExitStack() as stack:
            address = "127.0.0.1", broker.listeners[0].port
            for count in range(others):
                stack.enter_context(socket.create_connection(address))
                while len(broker.connections) <= count:
                    await asyncio.sleep(0)
            before = set(broker.connections)
            client = stack.enter_context(socket.create_connection(address))
            while len(broker.connections) == len(before):
                await asyncio.sleep(0)
            (connection,) = broker.connections - before
            assert connection._transport is not None
            accepted = connection._transport.get_extra_info("socket").fileno()
            connection._send([bytes(64 << 20)])
            connection.send()
            while not connection.blocked_at:
                await asyncio.sleep(0)
            held = struct.unpack("i", fcntl.ioctl(accepted, termios.TIOCOUTQ, bytes(4)))[0]
            # What has been sent waits for the client, who has received all of it and not read it.
            assert 0 < held <= 2 * unsent_bytes_max
            assert client.fileno() > 0
        await broker.stop()

    asyncio.run(check())
