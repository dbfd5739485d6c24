"""Hundreds of fetches wait for one record: they are answered in turns, and nobody stands behind all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from logmark.broker.answers import Answer, LateAnswer
from logmark.broker.api import fetch as fetch_api
from logmark.broker.event_loop_turns import ReadTurns
from logmark.broker.server import Broker
from logmark.log.partition import Partition
from logmark.wire import fetch, frames
from tests.broker.test_long_requests import Client, TurnCounter, client_of, serve, wait_for
from tests.log.directory_driver import NOW_MS, batch

FETCHES = 300
# So many short reads have their half of one turn.
IN_A_TURN = ReadTurns.BYTES_IN_A_TURN // 2 // fetch_api.PARTITION_COST + 1


def fetch_frame(partition: int) -> bytes:
    """A request for the first record of a partition."""
    request = fetch.FetchRequest(
        replica_id=-1, max_wait_ms=600_000, min_bytes=1, max_bytes=50 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[("wide", [fetch.FetchPartition(partition, -1, 0, -1, -1, 1 << 20)])],
        forgotten=[], rack_id="",
    )  # fmt: skip
    return frames.request_frame(1, 11, 1, "test", flexible=False, body=fetch.encode_request(11, request))


def ask(broker: Broker, client: Client, partition: int) -> Answer:
    """Let a request be handled now, as if it had come over the connection of a client."""
    port = client.writer.get_extra_info("sockname")[1]
    (connection,) = (
        each
        for each in broker.connections
        if each._transport is not None and each._transport.get_extra_info("peername")[1] == port
    )
    return broker.dispatcher.answer(memoryview(bytearray(fetch_frame(partition)[4:])), connection)


async def receive_records(client: Client) -> tuple[int, bytes]:
    """The partition of an answer, and its records."""
    ((_, (partition,)),) = fetch.decode_response(11, memoryview((await client.receive_frame())[4:])).topics
    return partition.partition, bytes(partition.records)


def log_of(broker: Broker, index: int) -> Partition:
    partition = broker.logs.partition("wide", index)
    assert partition is not None
    return partition


@asynccontextmanager
async def clients_of(broker: Broker, count: int) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(client_of(broker)) for _ in range(count)]


async def let_wait(broker: Broker, clients: list[Client], partition: int) -> None:
    """Let every client wait for the first record of a partition."""
    for client in clients:
        client.writer.write(fetch_frame(partition))
    await wait_for(lambda: len(log_of(broker, partition).change_listeners) == len(clients), "the fetches never waited")


@pytest.mark.parametrize("value", [b"v", b"v" * 100_000], ids=["small", "as a range of its file"])
def test_a_record_is_read_once_in_a_turn_for_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with clients_of(broker, FETCHES) as clients:
            await let_wait(broker, clients, 0)
            reads, answers = TurnCounter(), TurnCounter()
            following = asyncio.create_task(follow(turns, reads, answers))
            reads.count(monkeypatch, fetch_api, "_read")
            answers.count(monkeypatch, fetch_api._DelayedFetch, "complete")
            await client.produce(("wide", [0]), value=value)
            received = [await receive_records(each) for each in clients]
            following.cancel()

            assert 1 == len(set(received)) and value in received[0][1]
            assert FETCHES == sum(answers.calls.values())
            assert answers.most <= IN_A_TURN < FETCHES, "all were answered in one turn"
            # The last one may get more than those behind whom others waited.
            assert reads.most <= 2

    serve(tmp_path, check)


async def follow(turns: TurnCounter, *others: TurnCounter) -> None:
    """Let others count in the same turns."""
    while True:
        for other in others:
            other._turn = turns._turn
        await asyncio.sleep(0)


def test_a_fetch_of_another_partition_does_not_stand_behind_those_who_wait_for_one_record(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.produce(("wide", [1]))
        async with clients_of(broker, FETCHES) as clients, client_of(broker) as other:
            other.writer.write(fetch_frame(1))
            assert 1 == (await receive_records(other))[0]
            await let_wait(broker, clients, 0)
            log_of(broker, 0).append(batch(b"v"), now_ms=NOW_MS)

            late = ask(broker, other, 1)
            assert isinstance(late, LateAnswer) and not late.done()
            while not late.done():
                await asyncio.sleep(0)
            assert (
                len(log_of(broker, 0).change_listeners) >= FETCHES - IN_A_TURN
            ), "it was not answered in the first turn"

    serve(tmp_path, check)


def test_fetches_that_come_at_once_are_decoded_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with clients_of(broker, FETCHES) as clients:
            turns.count(monkeypatch, fetch, "decode_request")
            asked = [ask(broker, each, 0) for each in clients]
            assert not any(isinstance(each, list) for each in asked)
            await wait_for(lambda: len(log_of(broker, 0).change_listeners) == FETCHES, "the fetches never waited")
            assert FETCHES == sum(turns.calls.values())
            assert turns.most <= ReadTurns.BYTES_IN_A_TURN // fetch_api.PARTITION_COST < FETCHES

    serve(tmp_path, check)


def test_a_long_read_of_another_partition_does_not_stand_behind_the_long_reads_of_one() -> None:
    async def check() -> list[str]:
        turns, order = ReadTurns(asyncio.get_running_loop()), list[str]()

        def read(name: str) -> None:
            order.append(name)
            turns.count(ReadTurns.BYTES_IN_A_TURN)

        for _ in range(10):
            turns.wait(partial(read, "far behind"), line="attacked", is_short=False)
        turns.wait(partial(read, "in time"), line="other", is_short=False)
        while len(order) < 11:
            await asyncio.sleep(0)
        return order

    assert "in time" == asyncio.run(check())[1]
