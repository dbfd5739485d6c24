"""No client makes the broker hold more memory than its budget, and none keeps the others from being served."""

import asyncio
import contextlib
import gc
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logmark.broker import server
from logmark.broker.answers import Answer, LateAnswer
from logmark.broker.api import fetch as fetch_api
from logmark.broker.api import find_coordinator, join_group
from logmark.broker.config import BrokerConfig
from logmark.broker.event_loop_turns import ReadTurns
from logmark.broker.server import Broker as RealBroker
from logmark.coordination.commands import Join
from logmark.errors import ErrorCode
from logmark.log.file_range import FileRange
from logmark.log.reader import Reader
from logmark.testing import Broker
from logmark.wire import batches, fetch, frames, messages
from logmark.wire.schema import metadata
from tests.broker.test_connection import answer, asks_produce, connected, is_served
from tests.broker.test_long_requests import wait_for
from tests.coordination.wire import Wire

VALUE_BYTES = 900_000
RECORDS = 20
FETCHES = 40
# What is held for each slow reader is far below this; the records that they ask for are far above it.
MEMORY_BYTES_MAX = 80 << 20


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in a process of its own whose log has 18 MB of records."""
    with Broker(subprocess=True) as broker:
        broker.create_topic("t")
        with connected(broker) as producer:
            for number in range(RECORDS):
                producer.sendall(asks_produce(number, value_of(number)))
                answer(producer)
        yield broker


def value_of(number: int) -> bytes:
    return bytes([number]) * VALUE_BYTES


def asks_fetch(correlation_id: int, *, offset: int = 0, min_bytes: int = 1, max_wait_ms: int = 0) -> bytes:
    request = fetch.FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=50 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[("t", [fetch.FetchPartition(0, -1, offset, -1, -1, 50 << 20)])],
        forgotten=[], rack_id="",
    )  # fmt: skip
    return frames.request_frame(1, 11, correlation_id, "test", flexible=False, body=fetch.encode_request(11, request))


def first_values(body: bytes) -> list[bytes]:
    """The values in the answer to a fetch of one partition, whose batches have one record each."""
    records = fetch.decode_response(11, memoryview(body)).topics[0][1][0].records
    found, at = [], 0
    while at < len(records):
        header = batches.read_header(records, at)
        assert batches.sound_prefix(records[at : at + header.size], base=header.base_offset)[2] is None
        found.append(bytes(records[at + header.size - 2 : at + header.size - 1]))
        at += header.size
    return found


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is measured where there is /proc")
def test_a_client_that_pipelines_fetches_and_reads_nothing_costs_no_memory(broker: Broker) -> None:
    assert broker.pid is not None
    before = resident_bytes(broker.pid)
    with connected(broker) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        slow.sendall(b"".join(asks_fetch(number) for number in range(FETCHES)))
        for _ in range(10):
            assert is_served(broker), "others are served"
            assert resident_bytes(broker.pid) - before < MEMORY_BYTES_MAX

        # When it reads after all, it gets every record that it asked for.
        for number in range(FETCHES):
            correlation_id, body = answer(slow)
            assert number == correlation_id
            values = first_values(body)
            assert [bytes([at]) for at in range(len(values))] == values
        assert resident_bytes(broker.pid) - before < MEMORY_BYTES_MAX


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is measured where there is /proc")
def test_slow_readers_cost_no_memory(broker: Broker) -> None:
    assert broker.pid is not None
    before = resident_bytes(broker.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            slow = stack.enter_context(connected(broker))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            slow.sendall(asks_fetch(1))
            # The broker has begun to answer.
            assert slow.recv(4)
        assert is_served(broker)
        assert resident_bytes(broker.pid) - before < MEMORY_BYTES_MAX


def test_idle_announcements_of_large_requests_stop_no_other_request(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            idle = stack.enter_context(connected(broker))
            idle.sendall(struct.pack(">i", 100 << 20) + b"four")
        for size in (100, 20_000, 900_000):
            with connected(broker) as producer:
                producer.sendall(asks_produce(1, b"x" * size))
                assert 1 == answer(producer)[0], f"a request of {size} bytes is answered"


def test_a_client_that_has_sent_its_last_request_still_gets_its_answers(broker: Broker) -> None:
    with connected(broker) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.sendall(asks_fetch(1))
        size = client.recv(4)
        client.shutdown(socket.SHUT_WR)
        left = struct.unpack(">i", size)[0]
        while left:
            part = client.recv(min(left, 1 << 20))
            assert part, f"{left} bytes of the answer are missing"
            left -= len(part)


# In the broker's own event loop

SETTINGS = {"log.segment.bytes": "16777216", "log.segment.delete.delay.ms": "0", "log.retention.ms": "-1"}


def run_broker(tmp_path: Path, test: Callable[[RealBroker], Awaitable[None]]) -> None:
    """Run a test beside a broker whose log has 18 MB of records in two segments."""

    async def run() -> None:
        broker = RealBroker(data_dir=str(tmp_path), config=BrokerConfig(SETTINGS), durability="os")
        await broker.start()
        try:
            async with connection_to(broker) as (reader, writer):
                writer.write(asks_metadata_of("t"))
                await read_answer(reader)
                for number in range(RECORDS):
                    writer.write(asks_produce(number, value_of(number)))
                    await read_answer(reader)
            await test(broker)
        finally:
            await broker.stop()

    asyncio.run(run())


def asks_metadata_of(topic: str) -> bytes:
    """Ask for a topic, which the broker then creates."""
    body = messages.encode_request(metadata, 1, metadata.Request(topics=[metadata.RequestTopic(name=topic)]))
    return frames.request_frame(3, 1, 1, "test", flexible=False, body=body)


@contextlib.asynccontextmanager
async def connection_to(
    broker: RealBroker, *, receive_bytes: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", broker.listeners[0].port))
    reader, writer = await asyncio.open_connection(sock=client, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 60))[0]
    return (await asyncio.wait_for(reader.readexactly(size), 60))[4:]


async def block(broker: RealBroker, writer: asyncio.StreamWriter) -> None:
    """Ask for more than the socket takes, and wait until the broker has noticed that nobody reads it."""
    writer.write(asks_fetch(1))
    deadline = broker.loop.time() + 60
    while not broker.blocked:
        assert broker.loop.time() < deadline, "the socket has taken 8 MiB that nobody reads"
        await asyncio.sleep(0.001)


def test_a_slow_reader_gets_its_records_though_their_segments_are_deleted_meanwhile(tmp_path: Path) -> None:
    async def check(broker: RealBroker) -> None:
        async with connection_to(broker, receive_bytes=4096) as (reader, writer):
            await block(broker, writer)
            partition = broker.logs.partition("t", 0)
            assert partition is not None
            partition.delete_records(RECORDS)
            broker.logs.look_after()
            while list(tmp_path.glob("t-0/*.log"))[1:] or list(tmp_path.glob("t-0/*.deleted")):
                broker.logs.remove_files()
                await asyncio.sleep(0.001)

            values = first_values(await read_answer(reader))

            assert len(values) > 1
            assert [bytes([at]) for at in range(len(values))] == values
            assert not broker.blocked

    run_broker(tmp_path, check)


@pytest.mark.parametrize("limit", ["DELETED_BYTES_MAX", "HELD_FILES_MAX"])
def test_the_slowest_reader_is_closed_when_too_much_is_kept_for_such_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def check(broker: RealBroker) -> None:
        async with connection_to(broker, receive_bytes=4096) as (reader, writer):
            await block(broker, writer)
            for file in tmp_path.glob("t-0/*.log"):
                file.unlink()
            broker.sweep(broker.loop.time())
            assert broker.connections, "within the limits it may be slow"

            monkeypatch.setattr(server, limit, 0)
            broker.sweep(broker.loop.time())

            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await read_answer(reader)
            while broker.connections:
                await asyncio.sleep(0.001)
            assert not broker.blocked
            assert 0 == broker.budget.used

    run_broker(tmp_path, check)


def test_records_that_can_no_longer_be_read_close_the_connection(tmp_path: Path) -> None:
    async def check(broker: RealBroker) -> None:
        async with connection_to(broker, receive_bytes=4096) as (reader, writer):
            await block(broker, writer)
            for file in tmp_path.glob("t-0/*.log"):
                os.truncate(file, 10)

            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await read_answer(reader)

    run_broker(tmp_path, check)


def test_a_slow_sender_is_closed_only_while_others_wait_for_memory(tmp_path: Path) -> None:
    async def check(broker: RealBroker) -> None:
        async with connection_to(broker) as (reader, writer), connection_to(broker) as (_, waiting):
            now = broker.loop.time()
            writer.write(struct.pack(">i", 100 << 20) + b"a beginning")
            while not any(connection.frame_began_at for connection in broker.connections):
                await asyncio.sleep(0.001)
            broker.sweep(now + 20)
            assert 2 == len(broker.connections)

            waiting.write(struct.pack(">i", 100 << 20) + b"a beginning")
            while not broker.budget.has_waiting:
                await asyncio.sleep(0.001)
            broker.sweep(now + 25)

            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await read_answer(reader)
            while broker.budget.has_waiting:
                await asyncio.sleep(0.001)

    run_broker(tmp_path, check)


def test_a_waiting_fetch_reads_the_log_again_only_when_there_may_be_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = Reader._read

    def counted(self: Reader, *args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(self, *args, **options)

    async def check(broker: RealBroker) -> None:
        monkeypatch.setattr(Reader, "_read", counted)
        async with connection_to(broker) as (reader, writer), connection_to(broker) as (answers, producer):
            writer.write(asks_fetch(1, offset=RECORDS - 1, min_bytes=3_000_000, max_wait_ms=600_000))
            while not reads:
                await asyncio.sleep(0.001)
            for number in range(200):
                producer.write(asks_produce(number, b"small"))
                await read_answer(answers)
            assert 1 == reads, "what was appended was counted, not read"

            for number in range(3):
                producer.write(asks_produce(number, value_of(number)))
                await read_answer(answers)
            fetched = await read_answer(reader)

            assert len(fetched) > 3_000_000
            assert reads <= 3

    run_broker(tmp_path, check)


def test_a_fetch_does_not_wait_where_memory_is_short(tmp_path: Path) -> None:
    async def check(broker: RealBroker) -> None:
        broker.budget.hold(1 << 40)
        async with connection_to(broker) as (reader, writer):
            writer.write(asks_fetch(1, offset=RECORDS, max_wait_ms=600_000))

            assert await read_answer(reader)
        broker.budget.hold(-(1 << 40))

    run_broker(tmp_path, check)


def test_of_many_fetches_that_come_at_once_some_are_read_in_each_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(broker: RealBroker) -> None:
        monkeypatch.setattr(fetch_api, "SHORT_RECORDS", 1)
        async with connection_to(broker) as (reader, writer):
            writer.write(asks_metadata_of("t"))
            await read_answer(reader)
            (connection,) = broker.connections
            partition = broker.logs.partition("t", 0)
            assert partition is not None

            def ask(**wanted: int) -> Answer:
                return broker.dispatcher.answer(memoryview(bytearray(asks_fetch(1, **wanted)[4:])), connection)

            # The first is answered with more bytes than may be read in one turn.
            first = ask()
            assert isinstance(first, list)
            # One of them wants more than it gets while others wait, and there is no further segment.
            asked = [
                ask(offset=RECORDS - 2, min_bytes=VALUE_BYTES * 3 // 2, max_wait_ms=60_000),
                *(ask() for _ in range(11)),
                ask(offset=RECORDS, max_wait_ms=60_000),
            ]
            late = [each for each in asked if isinstance(each, LateAnswer)]
            assert [False] * 13 == [each.done() for each in late]
            read_at = dict.fromkeys(range(12), 0)
            is_waiting_at = 0
            for turn in range(1, 50):
                await asyncio.sleep(0)
                read_at |= {number: turn for number, at in read_at.items() if not at and late[number].done()}
                is_waiting_at = is_waiting_at or turn * (len(partition.change_listeners) == 1)
            assert sorted(read_at.values()) == list(read_at.values()) and read_at[0] > 0
            in_turns = Counter(read_at.values())
            assert len(in_turns) >= 3, "all were read in one turn"
            # Others waited behind all but the last of them.
            sizes = [len(bytes_of(each.result())) for each in late[:12]]
            assert max(sizes[:11]) < fetch_api.CONTENDED_BYTES_MAX + 1000
            assert sizes[11] == len(bytes_of(first)) > ReadTurns.BYTES_IN_A_TURN
            assert 0 < is_waiting_at <= read_at[0] + 1, "the fetch at the end of the log waited for the others"

            # The last one has had its turn, and waits for records.
            assert not late[12].done()
            async with connection_to(broker) as (other, producer):
                producer.write(asks_produce(1, b"news"))
                await read_answer(other)
            await wait_for(late[12].done)

    run_broker(tmp_path, check)


def bytes_of(body: Any) -> bytes:
    """The bytes of a response."""
    pieces = (piece.take(len(piece)) if isinstance(piece, FileRange) else piece for piece in body)
    return b"".join(bytes(piece) for piece in pieces)


def test_a_refused_join_is_freed_without_the_garbage_collector() -> None:
    with Broker() as broker:
        wire = Wire(broker)
        wire.ask(find_coordinator, 2, key="refused")
        protocols = [join_group.schema.RequestProtocol(name="range", metadata=bytes(2_000_000))]
        join = {"group_id": "refused", "protocol_type": "consumer", "protocols": protocols}
        gc.collect()
        gc.disable()
        try:
            refused = wire.ask(join_group, 5, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, **join)

            assert ErrorCode.MESSAGE_TOO_LARGE == refused.error_code
            assert wire.ask(find_coordinator, 2, key="refused"), "the broker is done with the request"
            held = [type(each) for each in gc.get_objects() if isinstance(each, Join | join_group.schema.Request)]
            assert not held, "the refused request is still held"
        finally:
            gc.enable()
            wire.close()
