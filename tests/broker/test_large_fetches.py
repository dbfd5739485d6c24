"""Fetches of thousands of partitions: looked at in turns, and nothing that changes meanwhile is missed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from logmark.broker.api import fetch as fetch_api
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN
from logmark.broker.server import Broker
from logmark.wire import fetch, frames
from tests.broker.test_long_requests import PARTITIONS, Client, TurnCounter, client_of, serve


def send_fetch(client: Client, *, max_wait_ms: int, min_bytes: int = 1) -> None:
    """Ask for every partition of the wide topic."""
    wanted = [fetch.FetchPartition(index, -1, 0, -1, -1, 1 << 20) for index in range(PARTITIONS)]
    request = fetch.FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=50 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[("wide", wanted)], forgotten=[], rack_id="",
    )  # fmt: skip
    body = fetch.encode_request(11, request)
    client.writer.write(frames.request_frame(1, 11, 1, "test", flexible=False, body=body))


async def receive_records(client: Client) -> dict[int, int]:
    """The partitions that have records in the answer, with their sizes."""
    answer = fetch.decode_response(11, memoryview((await client.receive_frame())[4:]))
    ((_, partitions),) = answer.topics
    assert PARTITIONS == len(partitions)
    return {each.partition: len(each.records) for each in partitions if len(each.records)}


def watchers_of(broker: Broker) -> int:
    partition = broker.logs.partition("wide", 0)
    assert partition is not None
    return len(partition.change_listeners)


async def wait_for(is_true: Any) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0)


def test_the_partitions_of_a_large_fetch_are_looked_at_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        turns.count(monkeypatch, fetch_api, "_read")
        send_fetch(client, max_wait_ms=0)
        assert {} == await receive_records(client)
        assert PARTITIONS == sum(turns.calls.values())
        assert turns.most <= STEPS_IN_A_TURN

    serve(tmp_path, check)


def test_records_that_come_while_a_large_fetch_looks_at_its_partitions_end_its_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with client_of(broker) as producer:
            await producer.produce(("wide", [0]))
            partition = broker.logs.partition("wide", 0)
            assert partition is not None
            size = partition.size_bytes
            turns.count(monkeypatch, fetch_api, "_read")
            # One record more than there is: the next one, in a partition that was looked at already, is enough.
            send_fetch(client, max_wait_ms=600_000, min_bytes=size + 1)
            await wait_for(lambda: sum(turns.calls.values()) >= 1)
            assert sum(turns.calls.values()) < PARTITIONS, "others have no turn"
            await producer.produce(("wide", [0]))
            assert {0: 2 * size} == await receive_records(client)

    serve(tmp_path, check)


def test_a_large_fetch_that_waits_is_answered_when_there_is_enough_and_not_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with client_of(broker) as producer:
            await producer.produce(("wide", [1]))
            partition = broker.logs.partition("wide", 1)
            assert partition is not None
            size = partition.size_bytes
            turns.count(monkeypatch, fetch_api, "_read")
            send_fetch(client, max_wait_ms=600_000, min_bytes=4 * size)
            await wait_for(lambda: sum(turns.calls.values()) == PARTITIONS)
            for index in (2, 3):
                await producer.produce(("wide", [index]))
            assert PARTITIONS == sum(turns.calls.values()), "it was read though there cannot be enough"
            await producer.produce(("wide", [4]))
            assert dict.fromkeys((1, 2, 3, 4), size) == await receive_records(client)

    serve(tmp_path, check)


def test_the_time_of_a_large_fetch_ends(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        send_fetch(client, max_wait_ms=1)
        assert {} == await receive_records(client)
        assert 0 == watchers_of(broker)

    serve(tmp_path, check)


def test_a_lost_connection_takes_its_large_fetch_with_it(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        held = broker.budget.used
        async with client_of(broker) as lost:
            send_fetch(lost, max_wait_ms=600_000)
            await wait_for(lambda: watchers_of(broker) == 1)
        await wait_for(lambda: watchers_of(broker) == 0)
        await wait_for(lambda: broker.budget.used == held)

    serve(tmp_path, check)
