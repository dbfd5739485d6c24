"""Answers of many megabytes: their memory is reserved before they are made, few are made at a time, all are served."""

import asyncio
import gc
import tracemalloc
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from logmark.broker.api import (
    create_topics,
    describe_groups,
    find_coordinator,
    join_group,
    metadata,
    offset_commit,
    offset_fetch,
    sync_group,
)
from logmark.broker.memory_budget import LARGE_BYTES, MemoryBudget
from logmark.broker.server import Broker
from logmark.broker.work_line import WorkLine
from tests.broker.test_long_requests import (
    PARTITIONS,
    Client,
    TurnCounter,
    client_of,
    commit_fields,
    commit_of,
    hold_line,
    serve,
    wait_for,
)

METADATA_BYTES = 3000
CLIENTS = 8
# The offsets of the group take 6.6 MB, and the answer 6 MB.
BUDGET = 24_000_000
EVERYTHING = {"groups": [offset_fetch.schema.RequestGroup(group_id="group", topics=None)]}


async def commit_much(client: Client, group: str = "group", *, character: str = "m") -> None:
    (topic,) = commit_of(range(PARTITIONS))
    for each in topic.partitions:
        each.committed_metadata = character * METADATA_BYTES
    await client.ask(offset_commit, 8, **commit_fields([topic], group))


def test_answers_that_nobody_reads_take_no_more_than_the_memory_of_clients(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await commit_much(client)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(CLIENTS)]
            gc.collect()
            tracemalloc.start()
            try:
                for each in clients:
                    each.writer.transport.pause_reading()  # type: ignore[attr-defined]
                    each.send(offset_fetch, 8, **EVERYTHING)
                await wait_for(lambda: broker.budget.has_waiting and not broker.dispatcher.work_line.short.under_way)
                # A heartbeat of a turn: what has begun is done.
                await wait_for(lambda: 2 <= len(broker.blocked))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < BUDGET, "the answers take more than the budget"
            # One is always made, if the others leave an eighth.
            assert broker.budget.used <= BUDGET + PARTITIONS * (METADATA_BYTES + 300)
            # Others are served meanwhile, and so is who reads after all.
            await client.ask(find_coordinator, 3, key="group", key_type=0)
            for each in clients:
                each.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for each in clients:
                (group,) = (await each.receive(offset_fetch, 8)).groups
                assert PARTITIONS == len(group.topics[0].partitions)
        gc.collect()

    serve(tmp_path, work, **{"client.memory.max.bytes": str(BUDGET)})


def test_one_large_answer_is_made_at_a_time_and_what_is_counted_is_given_back(tmp_path: Path) -> None:
    most = 0

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, broker.budget._works[next(reversed(broker.budget._works))])
                await asyncio.sleep(0)

        await commit_much(client)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(CLIENTS)]
            await wait_for(lambda: CLIENTS + 1 == len(broker.connections))
            used = broker.budget.used
            watching = asyncio.create_task(watch())
            for each in clients:
                each.send(offset_fetch, 8, **EVERYTHING)
            answers = {await each.receive_frame() for each in clients}
            watching.cancel()
            assert 1 == most
            assert 1 == len(answers) and PARTITIONS * METADATA_BYTES < len(answers.pop())
            await wait_for(lambda: used == broker.budget.used)

    serve(tmp_path, work)


def test_what_groups_take_is_reserved_before_they_are_described(tmp_path: Path) -> None:
    size = 1_000_000

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        names = [f"g{number}" for number in range(4)]
        for name in names:
            joined = await client.ask(
                join_group, 3, group_id=name, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id="",
                protocol_type="consumer",
                protocols=[join_group.schema.RequestProtocol(name="range", metadata=bytes(size))],
            )  # fmt: skip
            mine = sync_group.schema.RequestAssignment(member_id=joined.member_id, assignment=bytes(size))
            fields = {"group_id": name, "member_id": joined.member_id, "generation_id": 1}
            await client.ask(sync_group, 3, **fields, assignments=[mine])
        used = broker.budget.used
        reserved: list[int] = []
        begin = broker.budget.begin_work

        def noted(size_bytes: int, granted: Any) -> bool:
            reserved.append(size_bytes)
            return begin(size_bytes, granted)

        broker.budget.begin_work = noted  # type: ignore[method-assign]
        answer = await client.ask(describe_groups, 5, groups=names)
        assert [2 * size] * 4 == [
            len(group.members[0].member_metadata) + len(group.members[0].member_assignment) for group in answer.groups
        ]
        assert 8 * size <= reserved[0] <= 9 * size
        await wait_for(lambda: used == broker.budget.used)

    serve(tmp_path, work, **{"group.initial.rebalance.delay.ms": "0"})


def test_a_group_that_is_named_thousands_of_times_is_answered_once_with_all_that_was_asked_for(tmp_path: Path) -> None:
    schema = offset_fetch.schema

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.ask(offset_commit, 8, **commit_fields(commit_of(range(3))))

        def wants(*indexes: int) -> Any:
            topics = [schema.RequestGroupTopic(name="wide", partition_indexes=list(indexes))]
            return schema.RequestGroup(group_id="group", topics=topics)

        (group,) = (await client.ask(offset_fetch, 8, groups=[wants(0, 1), wants(1, 2)] * 1000)).groups
        assert [(0, 5), (1, 5), (2, 5)] == [
            (each.partition_index, each.committed_offset) for each in group.topics[0].partitions
        ]

    serve(tmp_path, work)


def test_metadata_that_is_not_ascii_counts_as_what_it_takes(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        (topic,) = commit_of(range(1))
        topic.partitions[0].committed_metadata = "\N{PILE OF POO}" * 1000
        before = broker.budget.groups
        await client.ask(offset_commit, 8, **commit_fields([topic]))
        assert 4000 < broker.budget.groups - before

    serve(tmp_path, work)


def test_a_change_of_one_topic_does_not_wait_behind_large_answers(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await commit_much(client)
        broker.dispatcher.work_line.heavy.at_once = 0
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(CLIENTS)]
            for each in clients:
                each.send(offset_fetch, 8, **EVERYTHING)
            await wait_for(lambda: CLIENTS == sum(each.is_busy for each in broker.connections))
            new = create_topics.schema.RequestTopic(
                name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            assert 0 == (await client.ask(create_topics, 5, topics=[new])).topics[0].error_code
            assert 3 == len((await client.ask(metadata, 1, topics=None)).topics)

    serve(tmp_path, work)


def test_work_that_never_began_is_closed_at_the_stop(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        hold_line(broker)
        client.send(offset_fetch, 8, **EVERYTHING)
        client.send(metadata, 1, topics=None)
        await wait_for(lambda: any(each.is_busy for each in broker.connections))
        async with client_of(broker) as another:
            another.send(metadata, 1, topics=None)
            await wait_for(lambda: 2 == sum(each.is_busy for each in broker.connections))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        serve(tmp_path, work)
        gc.collect()
    assert not [str(each.message) for each in seen if "never awaited" in str(each.message)]


# The line


class Owner:
    """A connection."""


class WorkQueue:
    """Work that waits in a line and notes when it begins."""

    def __init__(self, budget_bytes: int = 1 << 30) -> None:
        self.line = WorkLine(MemoryBudget(budget_bytes))
        self.begun: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.line.short.at_once = self.line.heavy.at_once = 0

    async def add(self, name: str, api: str, owner: object, memory_bytes: int = 2 * LARGE_BYTES) -> None:
        async def work() -> None:
            async with self.line.begin(api, owner, memory_bytes):
                self.begun.append(name)
                await asyncio.sleep(0)

        self._tasks.append(asyncio.create_task(work()))
        await asyncio.sleep(0)

    def release(self) -> None:
        for lane in (self.line.short, self.line.heavy):
            lane.at_once = 1
            lane.begin_next()

    async def end(self) -> list[str]:
        self.release()
        await asyncio.gather(*self._tasks)
        return self.begun


def test_apis_have_their_turn_one_after_another() -> None:
    async def run() -> list[str]:
        queue = WorkQueue()
        for number in range(5):
            await queue.add(f"fetch {number}", "OffsetFetch", Owner())
        await queue.add("metadata", "Metadata", Owner())
        return await queue.end()

    assert 1 == asyncio.run(run()).index("metadata")


@pytest.mark.parametrize("memory_bytes", [LARGE_BYTES, 2 * LARGE_BYTES])
def test_a_new_connection_is_next_though_others_have_waited_for_longer(memory_bytes: int) -> None:
    async def run() -> list[str]:
        queue = WorkQueue()
        busy = [Owner() for _ in range(10)]
        for number in range(5 * len(busy)):
            await queue.add(f"busy {number}", "OffsetFetch", busy[number % len(busy)], memory_bytes)
        await queue.add("new", "OffsetFetch", Owner(), memory_bytes)
        return await queue.end()

    # Behind the first of each, who have had as little as it.
    assert 10 == asyncio.run(run()).index("new")


def test_short_work_begins_while_large_work_waits_for_memory() -> None:
    async def run() -> list[str]:
        queue = WorkQueue(100 * LARGE_BYTES)
        queue.release()
        budget = queue.line._budget
        budget.hold(90 * LARGE_BYTES)
        await queue.add("large", "OffsetFetch", Owner(), 50 * LARGE_BYTES)
        await queue.add("short", "Metadata", Owner(), LARGE_BYTES)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ["short"] == queue.begun
        assert 0 < budget.excess
        budget.hold(-90 * LARGE_BYTES)
        return await queue.end()

    assert ["short", "large"] == asyncio.run(run())


def test_work_that_is_cancelled_in_the_line_leaves_its_turn_to_the_next() -> None:
    async def run() -> list[str]:
        queue = WorkQueue()
        for name in ("first", "waits", "last"):
            await queue.add(name, "OffsetFetch", Owner())
        queue._tasks.pop(1).cancel()
        return await queue.end()

    assert ["first", "last"] == asyncio.run(run())


def test_a_reservation_is_replaced_by_what_is_made_and_the_rest_is_given_back() -> None:
    async def run() -> None:
        budget = MemoryBudget(1 << 30)
        async with WorkLine(budget).reserve(1000) as reservation:
            assert 1000 == budget.used
            budget.hold(600)
            reservation.replace(600)
            assert 1000 == budget.used
            budget.hold(900)
            reservation.replace(900)
            assert 1500 == budget.used
        assert 1500 == budget.used

    asyncio.run(run())
