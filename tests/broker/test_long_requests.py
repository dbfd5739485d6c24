"""Requests with thousands of names: their work is done in turns, in order, and no client's turn is longer for it."""

import asyncio
import itertools
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from logmark.broker import answers, connection, dispatch, work_line
from logmark.broker.api import (
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from logmark.broker.api import produce as produce_api
from logmark.broker.config import BrokerConfig
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN
from logmark.broker.group_runtime import DELETED_AT_ONCE
from logmark.broker.internal_partition import PartitionLog
from logmark.broker.loops import new_event_loop
from logmark.broker.server import Broker
from logmark.coordination import runtime
from logmark.coordination.facts import GroupOutcome
from logmark.coordination.group import GroupListing
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.coordination.internal_log import LogBatch
from logmark.errors import ErrorCode
from logmark.log.partition import Partition
from logmark.log.segment import Segment
from logmark.wire import batches, codecs, columns, frames, message_compiler, messages, produce
from tests.harness.patches import in_this_thread
from tests.oracle import records as oracle

PARTITIONS = 2000
TIMESTAMP_MS = 1_700_000_000_000


class Client:
    """A connection to a broker in the same event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, api: ModuleType, version: int, **fields: Any) -> Any:
        self.send(api, version, **fields)
        return await self.receive(api, version)

    def send(self, api: ModuleType, version: int, **fields: Any) -> None:
        self.writer.write(frame_of(api, version, **fields))

    async def receive(self, api: ModuleType, version: int) -> Any:
        frame = memoryview(await self.receive_frame())
        _, at = frames.read_response_header(frame, flexible=messages.is_flexible(api.schema, version))
        return messages.decode_response(api.schema, version, frame[at:])

    async def receive_frame(self) -> bytes:
        size = struct.unpack(">i", await asyncio.wait_for(self._reader.readexactly(4), 60))[0]
        return await asyncio.wait_for(self._reader.readexactly(size), 60)

    async def produce(self, *topics: tuple[str, list[int]], value: bytes = b"v", codec: int = codecs.NONE) -> Any:
        self.send_produce(*topics, value=value, codec=codec)
        return await self.receive_produced()

    def send_produce(self, *topics: tuple[str, list[int]], value: bytes = b"v", codec: int = codecs.NONE) -> None:
        batch = memoryview(batches.build([(None, value)], timestamp_ms=TIMESTAMP_MS, codec=codec))
        wanted = [(name, [produce.PartitionData(index, batch) for index in indexes]) for name, indexes in topics]
        body = produce.encode_request(7, produce.ProduceRequest(None, -1, 1000, wanted))
        self.writer.write(frames.request_frame(0, 7, 1, "test", flexible=False, body=body))

    async def receive_produced(self) -> Any:
        return produce.decode_response(7, (await self.receive_frame())[4:]).topics


def frame_of(api: ModuleType, version: int, **fields: Any) -> bytes:
    body = messages.encode_request(api.schema, version, api.schema.Request(**fields))
    return frames.request_frame(
        api.KEY, version, 1, "test", flexible=messages.is_flexible(api.schema, version), body=body
    )


@asynccontextmanager
async def client_of(broker: Broker) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[0].port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


class TurnCounter:
    """Counts calls in each turn of the event loop of this thread."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self._turn = 0

    async def run(self) -> None:
        for self._turn in itertools.count():
            await asyncio.sleep(0)

    def count(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        called = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[self._turn] += 1
            return called(*arguments, **options)

        monkeypatch.setattr(owner, name, in_this_thread(counted, called))

    @property
    def most(self) -> int:
        return max(self.calls.values())


Work = Callable[[Broker, Client, TurnCounter], Awaitable[None]]


def serve(folder: Path, work: Work, **settings: str) -> None:
    """Run something beside a broker with a wide topic, in one event loop, and a client of it."""

    async def run() -> None:
        # The records have old timestamps, and must not be deleted if this takes long.
        config = BrokerConfig({"log.retention.ms": "-1", **settings})
        broker = Broker(data_dir=str(folder), durability="os", config=config)
        await broker.start()
        turns = TurnCounter()
        turning = asyncio.create_task(turns.run())
        try:
            await broker.logs.create_topic("wide", PARTITIONS, {})
            async with client_of(broker) as client:
                await client.ask(find_coordinator, 3, key="group", key_type=0)
                await work(broker, client, turns)
        finally:
            turning.cancel()
            await broker.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


def commit_of(indexes: Iterator[int] | range | list[int], offset: int = 5, topic: str = "wide") -> list[Any]:
    schema = offset_commit.schema
    partitions = [
        schema.RequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in indexes
    ]
    return [schema.RequestTopic(name=topic, partitions=partitions)]


def commit_fields(topics: list[Any], group: str = "group") -> dict[str, Any]:
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def wanted(api: ModuleType, name: str = "name", **more: Any) -> list[Any]:
    field = "partition" if api is offset_for_leader_epoch else "partition_index"
    partitions = [api.schema.RequestPartition(**{field: index}, **more) for index in range(PARTITIONS)]
    return [api.schema.RequestTopic(**{name: "wide"}, partitions=partitions)]


LONG = {
    "ListOffsets": (list_offsets, 7, list_offsets, "_answer", lambda: {"topics": wanted(list_offsets, timestamp=-1)}),
    "OffsetForLeaderEpoch": (
        offset_for_leader_epoch, 4, offset_for_leader_epoch, "_answer",
        lambda: {"topics": wanted(offset_for_leader_epoch, "topic")},
    ),
    "DeleteRecords": (
        delete_records, 2, delete_records, "_find", lambda: {"topics": wanted(delete_records, offset=0)}
    ),
    "Metadata": (metadata, 9, metadata, "_described", lambda: {"topics": [metadata.schema.RequestTopic(name="wide")]}),
    "FindCoordinator": (
        find_coordinator, 4, find_coordinator, "_coordinator",
        lambda: {"key_type": 0, "coordinator_keys": [f"group-{number}" for number in range(PARTITIONS)]},
    ),
    "DescribeGroups": (
        describe_groups, 5, describe_groups, "_group",
        lambda: {"groups": [f"group-{number}" for number in range(PARTITIONS)]},
    ),
    "DeleteGroups": (
        delete_groups, 2, delete_groups, "_deleted",
        lambda: {"groups_names": [f"group-{number}" for number in range(PARTITIONS)]},
    ),
    "OffsetFetch of partitions": (
        offset_fetch, 5, offset_fetch.schema, "ResponsePartition",
        lambda: {
            "group_id": "group",
            "topics": [offset_fetch.schema.RequestTopic(name="wide", partition_indexes=list(range(PARTITIONS)))],
        },
    ),
    "OffsetFetch of all": (
        offset_fetch, 8, offset_fetch.schema, "ResponseGroupPartition",
        lambda: {"groups": [offset_fetch.schema.RequestGroup(group_id="group", topics=None)]},
    ),
    "OffsetCommit": (
        offset_commit, 8, offset_commit.schema, "ResponsePartition",
        lambda: commit_fields(commit_of(range(PARTITIONS))),
    ),
    "OffsetDelete": (
        offset_delete, 0, offset_delete.schema, "ResponsePartition",
        lambda: {"group_id": "group", "topics": wanted(offset_delete)},
    ),
    "LeaveGroup": (
        leave_group, 4, leave_group.schema, "ResponseMember",
        lambda: {
            "group_id": "group",
            "members": [
                leave_group.schema.RequestMember(member_id=f"m{number}", group_instance_id=None)
                for number in range(PARTITIONS)
            ],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_the_loop_turns_while_a_request_of_thousands_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    api, version, owner, step, fields = LONG[name]

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.ask(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS))))
        request = fields()
        # The client decodes the answer with the same classes.
        turns.count(monkeypatch, owner, step)
        client.send(api, version, **request)
        await client.receive_frame()
        monkeypatch.undo()
        assert PARTITIONS <= sum(turns.calls.values())
        assert turns.most <= STEPS_IN_A_TURN

    serve(tmp_path, work)


def test_the_loop_turns_while_thousands_of_groups_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20 * STEPS_IN_A_TURN

    def list_many(coordinator: GroupCoordinator) -> list[GroupListing]:
        return [GroupListing(id=f"g{number}", protocol_type="", state="Empty") for number in range(count // 50)]  # type: ignore[arg-type]

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(GroupCoordinator, "list_groups", list_many)
        turns.count(monkeypatch, list_groups.schema, "ResponseGroup")
        client.send(list_groups, 4, states_filter=[])
        await client.receive_frame()
        monkeypatch.undo()
        assert count == sum(turns.calls.values())
        assert turns.most <= STEPS_IN_A_TURN

    serve(tmp_path, work)


def test_many_long_requests_make_no_turn_longer_than_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async def ask() -> None:
            async with client_of(broker) as another:
                another.send(list_offsets, 7, topics=wanted(list_offsets, timestamp=-1))
                await another.receive_frame()

        turns.count(monkeypatch, list_offsets, "_answer")
        await asyncio.gather(*(ask() for _ in range(10)))
        assert 10 * PARTITIONS == sum(turns.calls.values())
        assert turns.most <= STEPS_IN_A_TURN

    serve(tmp_path, work)


def test_a_large_request_is_decoded_and_its_answer_encoded_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        request = frame_of(list_offsets, 7, topics=wanted(list_offsets, timestamp=-1))
        assert len(request) > dispatch.LARGE_REQUEST_BYTES
        for owner, name, portion in [
            (messages, "decode_request_in_portions", message_compiler.DECODED_AT_ONCE),
            # An element has at least one part.
            (answers, "encode_in_portions", message_compiler.ENCODED_AT_ONCE),
        ]:
            count_portions(monkeypatch, turns, owner, name)
            client.writer.write(request)
            await client.receive_frame()
            monkeypatch.undo()
            assert PARTITIONS // portion <= sum(turns.calls.values())
            assert 1 == turns.most
            turns.calls.clear()

    serve(tmp_path, work)


def count_portions(monkeypatch: pytest.MonkeyPatch, turns: TurnCounter, owner: Any, name: str) -> None:
    """Count in each turn how many portions a generator has made."""
    called = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        portions = called(*arguments, **options)
        while True:
            try:
                portion = next(portions)
            except StopIteration as stop:
                return stop.value
            turns.calls[turns._turn] += 1
            yield portion

    monkeypatch.setattr(owner, name, in_this_thread(counted, called))


def test_a_large_request_that_cannot_be_read_costs_its_connection(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        used = broker.budget.used
        body = b"\xff" * 100_000
        client.writer.write(frames.request_frame(list_offsets.KEY, 7, 1, "test", flexible=True, body=body))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.receive_frame()
        while broker.connections:
            await asyncio.sleep(0)
        assert used > broker.budget.used, "nothing is held for it any more"
        async with client_of(broker) as another:
            await another.ask(api_versions, 0)

    serve(tmp_path, work)


def test_work_that_is_cancelled_gives_its_memory_back(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        used = broker.budget.used

        async def hold() -> None:
            async with broker.dispatcher.working(1 << 40):
                await asyncio.Event().wait()

        first, waiting, granted, never = (asyncio.create_task(hold()) for _ in range(4))
        while not broker.budget.has_waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        first.cancel()
        await asyncio.wait([first])
        # It was granted the memory, and does not know it yet.
        granted.cancel()
        never.cancel()
        await asyncio.wait([granted, never])
        assert used == broker.budget.used
        assert not broker.budget.has_waiting
        async with broker.dispatcher.working(1 << 40):
            pass

    serve(tmp_path, work)


def test_a_large_request_that_is_refused_is_answered_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    refuse = delete_records.refuse

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return refuse(*arguments)

    async def fail() -> None:
        raise OSError("the disk failed")

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(delete_records, "refuse", noted)
        monkeypatch.setattr(broker, "checkpoint", fail)
        (topic,) = (await client.ask(delete_records, 2, topics=wanted(delete_records, offset=0))).topics
        assert {ErrorCode.KAFKA_STORAGE_ERROR} == {each.error_code for each in topic.partitions}
        assert len(threads) == 1 and threading.get_ident() not in threads

    serve(tmp_path, work)


# In order


def test_requests_behind_a_large_one_take_effect_after_it(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        client.send(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS), offset=5)))
        client.send(offset_commit, 8, **commit_fields(commit_of([PARTITIONS - 1], offset=9)))
        client.send(offset_fetch, 8, groups=[offset_fetch.schema.RequestGroup(group_id="group", topics=None)])
        client.send(offset_delete, 0, group_id="group", topics=wanted(offset_delete))
        client.send(offset_commit, 8, **commit_fields(commit_of([1], offset=11)))
        client.send(offset_fetch, 5, group_id="group", topics=None)
        for _ in range(2):
            answer = await client.receive(offset_commit, 8)
            assert {ErrorCode.NONE} == {each.error_code for topic in answer.topics for each in topic.partitions}
        (group,) = (await client.receive(offset_fetch, 8)).groups
        assert [5] * (PARTITIONS - 1) + [9] == [each.committed_offset for each in group.topics[0].partitions]
        await client.receive(offset_delete, 0)
        await client.receive(offset_commit, 8)
        (topic,) = (await client.receive(offset_fetch, 5)).topics
        assert [(1, 11)] == [(each.partition_index, each.committed_offset) for each in topic.partitions]

    serve(tmp_path, work)


def hold_decoding(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let no large request be decoded; return an event that is set when one is to be, and one that lets them."""
    asked, is_allowed = asyncio.Event(), asyncio.Event()
    decode = broker.dispatcher._decode_in_turns

    async def held(*arguments: Any) -> Any:
        asked.set()
        await is_allowed.wait()
        return await decode(*arguments)

    monkeypatch.setattr(broker.dispatcher, "_decode_in_turns", held)
    return asked, is_allowed


def hold_line(broker: Broker) -> None:
    """Let no long work begin."""
    for lane in (broker.dispatcher.work_line.short, broker.dispatcher.work_line.heavy):
        assert not lane.under_way
        lane.at_once = 0


def release_line(broker: Broker) -> None:
    line = broker.dispatcher.work_line
    for lane, at_once in ((line.short, work_line.SHORT_AT_ONCE), (line.heavy, work_line.HEAVY_AT_ONCE)):
        lane.at_once = at_once
        lane.begin_next()


async def committed(client: Client, group: str = "group") -> dict[int, int]:
    topics = (await client.ask(offset_fetch, 5, group_id=group, topics=None)).topics
    return {each.partition_index: each.committed_offset for topic in topics for each in topic.partitions}


def test_a_commit_takes_effect_after_a_larger_one_that_came_before_it_from_a_client_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        asked, is_allowed = hold_decoding(broker, monkeypatch)
        async with client_of(broker) as going:
            going.send(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS), offset=5)))
            await asked.wait()
        async with client_of(broker) as later, client_of(broker) as last:
            later.send(offset_commit, 8, **commit_fields(commit_of([0, 1], offset=9)))
            # Others do not wait, nor does a heartbeat of the same group.
            await client.ask(offset_commit, 8, **commit_fields(commit_of([0], offset=7), group="other"))
            await client.ask(heartbeat, 3, group_id="group", generation_id=1, member_id="nobody")
            last.send(offset_commit, 8, **commit_fields(commit_of([1], offset=11)))
            await client.ask(api_versions, 0)
            is_allowed.set()
            await later.receive(offset_commit, 8)
            await last.receive(offset_commit, 8)
        await wait_for(lambda: not broker.dispatcher._tasks)
        assert {0: 9, 1: 11, **dict.fromkeys(range(2, PARTITIONS), 5)} == await committed(client)
        assert {0: 7} == await committed(client, "other")

    serve(tmp_path, work)


BEFORE_A_COMMIT = {
    "OffsetCommit": (offset_commit, 8, lambda: commit_fields(commit_of(range(200)))),
    "OffsetDelete": (offset_delete, 0, lambda: {"group_id": "group", "topics": wanted(offset_delete)}),
    "DeleteGroups": (delete_groups, 2, lambda: {"groups_names": ["another", "group"]}),
}


@pytest.mark.parametrize("name", BEFORE_A_COMMIT)
def test_a_commit_takes_effect_after_a_change_of_its_group_that_waits_in_line(tmp_path: Path, name: str) -> None:
    api, version, fields = BEFORE_A_COMMIT[name]

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.ask(offset_commit, 8, **commit_fields(commit_of([0], offset=1)))
        hold_line(broker)
        async with client_of(broker) as first, client_of(broker) as later:
            first.send(api, version, **fields())
            await wait_for(lambda: any(each.is_busy for each in broker.connections))
            later.send(offset_commit, 8, **commit_fields(commit_of([0], offset=9)))
            await client.ask(api_versions, 0)
            release_line(broker)
            await first.receive(api, version)
            await later.receive(offset_commit, 8)
        assert 9 == (await committed(client))[0]

    serve(tmp_path, work)


def test_requests_of_a_member_are_decided_in_order(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        joined = await client.ask(
            join_group, 3, group_id="group", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id="",
            protocol_type="consumer", protocols=[join_group.schema.RequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        member = {"group_id": "group", "member_id": joined.member_id}
        client.send(sync_group, 3, **member, generation_id=1, assignments=[])
        client.send(heartbeat, 3, **member, generation_id=1)
        client.send(leave_group, 2, **member)
        client.send(offset_commit, 7, **member, generation_id_or_member_epoch=1, topics=commit_of([0]))
        assert ErrorCode.NONE == (await client.receive(sync_group, 3)).error_code
        assert ErrorCode.NONE == (await client.receive(heartbeat, 3)).error_code
        assert ErrorCode.NONE == (await client.receive(leave_group, 2)).error_code
        (topic,) = (await client.receive(offset_commit, 7)).topics
        assert ErrorCode.UNKNOWN_MEMBER_ID == topic.partitions[0].error_code

    serve(tmp_path, work, **{"group.initial.rebalance.delay.ms": "0"})


def test_large_requests_in_line_count_against_the_memory_of_clients(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        hold_line(broker)
        request = frame_of(list_offsets, 7, topics=wanted(list_offsets, timestamp=-1))
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(20)]
            await wait_for(lambda: len(broker.connections) == 21)
            used = broker.budget.used
            for each in clients:
                each.writer.write(request)
            await wait_for(lambda: 20 == sum(each.is_busy for each in broker.connections))
            held = 20 * (len(request) - 4)
            assert used + held == broker.budget.used
            for lost in [each for each in broker.connections if each.is_busy][:10]:
                lost.abort()
            await wait_for(lambda: len(broker.connections) == 11)
            used -= 10 * connection.CONNECTION_BYTES
            assert used + held == broker.budget.used, "their requests are in line"
            release_line(broker)
            await wait_for(lambda: used == broker.budget.used)

    serve(tmp_path, work)


def test_a_record_behind_a_request_for_many_partitions_is_appended_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        turns.count(monkeypatch, Partition, "durable")
        client.send_produce(("wide", list(range(300))))
        client.send_produce(("wide", [299]))
        ((_, many),) = await client.receive_produced()
        ((_, (one,)),) = await client.receive_produced()
        assert [0] * 300 == [answer.base_offset for answer in many]
        assert 1 == one.base_offset
        # Each of them made a folder and files, which takes a turn.
        assert 1 == turns.most
        turns.calls.clear()
        await client.produce(("wide", list(range(300))))
        assert 300 == sum(turns.calls.values())
        assert turns.most <= STEPS_IN_A_TURN

    serve(tmp_path, work)


ROLLING = {"segment.ms": "1"}


def produce_frame(*indexes: int, topic: str = "rolling", later_ms: int = 0, version: int = 7) -> bytes:
    """A Produce request with one record for each partition; version 9 is what most clients send."""
    batch = memoryview(batches.build([(None, b"v")], timestamp_ms=TIMESTAMP_MS + later_ms))
    wanted = [(topic, [produce.PartitionData(index, batch) for index in indexes])]
    body = produce.encode_request(version, produce.ProduceRequest(None, -1, 1000, wanted))
    return frames.request_frame(0, version, 1, "test", flexible=version >= 9, body=body)


async def base_offsets(client: Client, version: int = 7) -> list[int]:
    """The base offsets in the next answer to a Produce request."""
    frame = (await client.receive_frame())[4 + (version >= 9) :]
    ((_, found),) = produce.decode_response(version, frame).topics
    assert {ErrorCode.NONE} == {answer.error_code for answer in found}
    return [answer.base_offset for answer in found]


def test_a_request_of_which_each_batch_begins_a_segment_begins_one_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await broker.logs.create_topic("rolling", 20, ROLLING)
        turns.count(monkeypatch, Segment, "create")
        for number in range(3):
            client.writer.write(produce_frame(*range(20), later_ms=10 * number))
        for number in range(3):
            assert [number] * 20 == await base_offsets(client)
        assert 3 * 20 == sum(turns.calls.values())
        assert 1 == turns.most

    serve(tmp_path, work)


@pytest.mark.parametrize("version", [7, 9])
def test_of_many_connections_one_begins_a_segment_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await broker.logs.create_topic("rolling", 20, ROLLING)
        turns.count(monkeypatch, Segment, "create")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(20)]
            for index, each in enumerate(clients):
                for number in range(3):
                    each.writer.write(produce_frame(index, later_ms=10 * number, version=version))
            for each in clients:
                assert [[0], [1], [2]] == [await base_offsets(each, version) for _ in range(3)]
        assert 3 * 20 == sum(turns.calls.values())
        assert 1 == turns.most

    serve(tmp_path, work)


def test_a_batch_that_gets_its_time_from_the_broker_is_stamped_once_though_it_begins_a_segment(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await broker.logs.create_topic("rolling", 1, {"message.timestamp.type": "LogAppendTime"})
        for version in (7, 9):
            client.writer.write(produce_frame(0, version=version))
        assert [[0], [1]] == [await base_offsets(client, version) for version in (7, 9)]

    serve(tmp_path, work)


def test_of_what_is_produced_twice_to_a_partition_the_last_counts(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        answers = await client.produce(*[("wide", [0])] * 3000, ("wide", [0, 0, 1]))
        assert [("wide", [0, 1])] == [(name, [each.partition for each in found]) for name, found in answers]
        assert [0, 0] == [each.base_offset for _, found in answers for each in found]

    serve(tmp_path, work)


def test_a_batch_that_unpacks_to_much_is_unpacked_beside_the_loop_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = batches.check_produced
    checked: list[tuple[bool, int]] = []

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        loop_thread, used = threading.get_ident(), broker.budget.used

        def noted(*arguments: Any, **options: Any) -> Any:
            batch = check(*arguments, **options)
            checked.append((threading.get_ident() == loop_thread, broker.budget.used - used))
            return batch

        monkeypatch.setattr(batches, "check_produced", noted)
        large = bytes(2 * produce_api.DECOMPRESSED_BYTES_ON_LOOP_MAX)
        client.send_produce(("wide", [0]), value=large, codec=codecs.ZSTD)
        client.send_produce(("wide", [0]), value=b"small", codec=codecs.ZSTD)
        for offset in (0, 1):
            ((_, (answer,)),) = await client.receive_produced()
            assert (ErrorCode.NONE, offset) == (answer.error_code, answer.base_offset)
        limit = broker.config.int("max.decompressed.message.bytes")
        assert [(False, limit), (True, 0)] == checked
        assert used == broker.budget.used

    serve(tmp_path, work)


def test_batches_of_another_codec_are_compressed_in_a_few_threads_and_in_order_while_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress = codecs.compress
    begun: list[int] = []
    # The broker runs in the thread of the test.
    loop_thread = threading.get_ident()
    may_compress = threading.Event()

    def held(codec: int, data: Any, level: int | None = None) -> bytes:
        begun.append(threading.get_ident())
        assert loop_thread != threading.get_ident()
        assert may_compress.wait(60)
        return compress(codec, data, level)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        used = broker.budget.used
        await broker.logs.create_topic("packed", 10, {"compression.type": "gzip"})
        monkeypatch.setattr(codecs, "compress", held)
        try:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(client_of(broker)) for _ in range(10)]
                for index, each in enumerate(clients):
                    each.writer.write(produce_frame(index, topic="packed"))
                    each.writer.write(produce_frame(index, topic="packed", version=9))
                    each.writer.write(produce_frame(index, topic="wide"))
                await wait_for(lambda: len(begun) >= dispatch.RECOMPRESSIONS_AT_ONCE)
                await client.produce(("wide", [20]))
                await client.ask(heartbeat, 3, group_id="group", generation_id=1, member_id="nobody")
                assert dispatch.RECOMPRESSIONS_AT_ONCE == len(begun)
                wide = broker.logs.topic("wide")
                assert wide is not None
                assert [0] * 10 == [wide.partitions[index].log_end_offset for index in range(10)], "they came later"
                may_compress.set()
                for each in clients:
                    assert [[0], [1]] == [await base_offsets(each, version) for version in (7, 9)]
                    assert [0] == await base_offsets(each)
        finally:
            may_compress.set()
        assert 20 == len(begun)
        await wait_for(lambda: len(broker.connections) == 1)
        assert used == broker.budget.used

    serve(tmp_path, work)


def test_records_with_wrong_offset_deltas_are_numbered_again_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    encode = columns.encode_records

    def noted(*arguments: Any) -> bytearray:
        threads.append(threading.get_ident())
        return encode(*arguments)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        records = [oracle.Record(value=b"v", offset_delta=0) for _ in range(2)]
        batch = memoryview(oracle.encode_batch(oracle.Batch(records=records, base_timestamp=TIMESTAMP_MS)))
        wanted = [("wide", [produce.PartitionData(0, batch)])]
        monkeypatch.setattr(columns, "encode_records", noted)
        for version in (7, 9):
            body = produce.encode_request(version, produce.ProduceRequest(None, -1, 1000, wanted))
            client.writer.write(frames.request_frame(0, version, 1, "test", flexible=version >= 9, body=body))
        assert [[0], [2]] == [await base_offsets(client, version) for version in (7, 9)]
        assert 2 == len(threads)
        assert threading.get_ident() not in threads

    serve(tmp_path, work)


def test_small_batches_that_unpack_to_much_are_unpacked_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        value = bytes(produce_api.DECOMPRESSED_BYTES_ON_LOOP_MAX - 1000)
        await client.produce(("wide", list(range(20))))
        turns.count(monkeypatch, codecs, "decompress")
        ((_, answers),) = await client.produce(("wide", list(range(20))), value=value, codec=codecs.ZSTD)
        assert [1] * 20 == [answer.base_offset for answer in answers]
        assert 20 == sum(turns.calls.values())
        assert turns.most <= 1 + STEPS_IN_A_TURN * produce_api.STEP_BYTES // len(value)

    serve(tmp_path, work)


def test_batches_of_many_connections_are_unpacked_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        value = bytes(produce_api.DECOMPRESSED_BYTES_ON_LOOP_MAX - 1000)
        await client.produce(("wide", list(range(20))))
        turns.count(monkeypatch, codecs, "decompress")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(20)]
            for index, each in enumerate(clients):
                for _ in range(2):
                    each.send_produce(("wide", [index]), value=value, codec=codecs.ZSTD)
            for each in clients:
                assert [[1], [2]] == [await base_offsets(each) for _ in range(2)]
        assert 40 == sum(turns.calls.values())
        # Those that came in this turn, and the one whose turn it is.
        most = produce_api.DECOMPRESSED_BYTES_IN_A_TURN // produce_api.DECOMPRESSED_BYTES_ON_LOOP_MAX
        assert turns.most <= most + 1 + 1

    serve(tmp_path, work)


# One connection


@pytest.mark.parametrize("padding", [0, 60])
def test_a_deep_pipeline_has_its_share_of_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    requests = 5000

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        turns.count(monkeypatch, dispatch.Dispatcher, "answer")
        client.writer.write(frames.request_frame(18, 0, 1, "c" * padding, flexible=False, body=b"") * requests)
        for _ in range(requests):
            await client.receive_frame()
        assert requests == sum(turns.calls.values())
        assert turns.most <= connection.TURN_COST_MAX // connection.REQUEST_COST

    serve(tmp_path, work)


def commit_frames(count: int, name: str = "") -> bytes:
    """Small commits, each of a group of its own."""
    topics = commit_of(range(1))
    return b"".join(frame_of(offset_commit, 7, **commit_fields(topics, f"{name}{number}")) for number in range(count))


def test_commits_of_new_groups_give_way_sooner_than_requests_that_are_answered_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = 300

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        turns.count(monkeypatch, GroupCoordinator, "commit_offsets")
        client.writer.write(commit_frames(commits))
        for _ in range(commits):
            await client.receive_frame()
        assert commits == sum(turns.calls.values())
        others = connection.TURN_COST_MAX // connection.REQUEST_COST
        assert turns.most <= others // dispatch.GROUP_CHANGE_COST

    serve(tmp_path, work)


def test_many_connections_that_commit_have_one_commit_each_in_a_turn_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, commits = 20, 30

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        turns.count(monkeypatch, GroupCoordinator, "commit_offsets")
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(client_of(broker)) for _ in range(clients)]
            for number, other in enumerate(others):
                other.writer.write(commit_frames(commits, f"{number}-"))
            for other in others:
                for _ in range(commits):
                    await other.receive_frame()
        assert clients * commits == sum(turns.calls.values())
        assert turns.most <= dispatch.GROUP_CHANGES_IN_A_TURN + clients

    serve(tmp_path, work)


def test_a_client_that_pipelines_requests_for_all_topics_has_one_under_way(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        hold_line(broker)
        for _ in range(20):
            client.send(metadata, 1, topics=None)
        await wait_for(lambda: any(each.is_busy for each in broker.connections))
        async with client_of(broker) as another:
            await another.ask(api_versions, 0)
        # It, and the work that others may share.
        assert 2 == len(broker.dispatcher._tasks)
        release_line(broker)
        for _ in range(20):
            assert 2 == len((await client.receive(metadata, 1)).topics)

    serve(tmp_path, work)


def test_clients_that_share_a_response_get_it_in_turns_and_it_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[answers.SharedBody] = []

    def counted(body: answers.SharedBody) -> answers.SharedBytes:
        bodies.append(body)
        return answers.SharedBytes(body)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(metadata, "SharedBytes", counted)
        turns.count(monkeypatch, metadata, "SharedBytes")
        hold_line(broker)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(20)]
            await wait_for(lambda: len(broker.connections) == 21)
            used = broker.budget.used
            for each in clients:
                each.send(metadata, 1, topics=None)
            await wait_for(lambda: 20 == sum(each.is_busy for each in broker.connections))
            release_line(broker)
            size = {len(await each.receive_frame()) for each in clients}.pop() - 4
            assert 20 == sum(turns.calls.values())
            assert 1 == turns.most
            assert 1 == len(set(bodies))
            assert used + size == broker.budget.used
            bodies.clear()
            await wait_for(lambda: used == broker.budget.used)

    serve(tmp_path, work)


def test_large_requests_for_all_topics_leave_their_turn_to_the_work_that_they_wait_for(tmp_path: Path) -> None:
    body = messages.encode_request(metadata.schema, 1, metadata.schema.Request(topics=None))
    client_id = "x" * dispatch.LARGE_REQUEST_BYTES
    request = frames.request_frame(metadata.KEY, 1, 1, client_id, flexible=False, body=body)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with AsyncExitStack() as stack:
            count = work_line.SHORT_AT_ONCE
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(count)]
            for each in clients:
                each.writer.write(request)
            for each in clients:
                assert 2 == len((await each.receive(metadata, 1)).topics)

    serve(tmp_path, work)


def test_what_a_client_has_asked_to_change_is_changed_though_it_goes(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        async with client_of(broker) as going:
            going.send_produce(("wide", list(range(100))))
            partition = broker.logs.partition("wide", 99)
            first = broker.logs.partition("wide", 0)
            assert partition is not None and first is not None
            while not first.log_end_offset:
                await asyncio.sleep(0)
            assert not partition.log_end_offset
        while not partition.log_end_offset:
            await asyncio.sleep(0)

    serve(tmp_path, work)


# What is named several times


@pytest.mark.parametrize("count", [2, 5000])
def test_what_a_request_repeats_is_answered_once(tmp_path: Path, count: int) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        schema = list_offsets.schema
        asked = schema.RequestTopic(name="wide", partitions=[schema.RequestPartition(partition_index=0, timestamp=-1)])
        (topic,) = (await client.ask(list_offsets, 7, topics=[asked] * count)).topics
        assert [ErrorCode.INVALID_REQUEST] == [each.error_code for each in topic.partitions]

        answer = await client.ask(offset_commit, 8, **commit_fields(commit_of([0] * count)))
        assert [1] == [len(topic.partitions) for topic in answer.topics]

        fetched = offset_fetch.schema.RequestTopic(name="wide", partition_indexes=[0] * count)
        (topic,) = (await client.ask(offset_fetch, 5, group_id="group", topics=[fetched] * 2)).topics
        assert [5] == [each.committed_offset for each in topic.partitions]
        everything = offset_fetch.schema.RequestGroup(group_id="group", topics=None)
        assert 1 == len((await client.ask(offset_fetch, 8, groups=[everything] * count)).groups)

        assert 1 == len((await client.ask(describe_groups, 5, groups=["group"] * count)).groups)
        answer = await client.ask(find_coordinator, 4, key_type=0, coordinator_keys=["group"] * count)
        assert ["group"] == [each.key for each in answer.coordinators]

        forgotten = offset_delete.schema.RequestTopic(
            name="wide", partitions=[offset_delete.schema.RequestPartition(partition_index=0)] * count
        )
        (topic,) = (await client.ask(offset_delete, 0, group_id="group", topics=[forgotten])).topics
        assert [ErrorCode.NONE] == [each.error_code for each in topic.partitions]

    serve(tmp_path, work)


def test_the_last_of_repeated_offsets_is_committed(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.ask(offset_commit, 8, **commit_fields(commit_of([0], offset=1) + commit_of([0], offset=2)))
        (topic,) = (await client.ask(offset_fetch, 5, group_id="group", topics=None)).topics
        assert [2] == [each.committed_offset for each in topic.partitions]

    serve(tmp_path, work)


# Groups


def test_a_large_commit_is_one_batch_unless_it_has_much_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions: list[int] = []
    append = PartitionLog.append

    def noted(internal_log: PartitionLog, batch: LogBatch, *, now_ms: int) -> int:
        portions.append(len(batch.records))
        return append(internal_log, batch, now_ms=now_ms)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(PartitionLog, "append", in_this_thread(noted, append))
        await client.ask(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS))))
        assert [PARTITIONS] == portions, "half of a commit can be seen, or lost"
        portions.clear()
        monkeypatch.setattr(offset_commit, "METADATA_CHARS_AT_ONCE", 128 * 1024)
        (topic,) = commit_of(range(PARTITIONS))
        for each in topic.partitions:
            each.committed_metadata = "x" * 1024
        await client.ask(offset_commit, 8, **commit_fields([topic]))
        assert [offset_commit.METADATA_CHARS_AT_ONCE // 1024] == sorted(set(portions))[-1:]

    serve(tmp_path, work)


def test_offsets_of_thousands_of_partitions_expire_and_are_forgotten_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        applied, expire = TurnCounter(), GroupCoordinator.expire_offsets
        turning = asyncio.create_task(applied.run())

        def expire_all(at: GroupCoordinator, *, now_ms: int, **options: Any) -> GroupOutcome:
            return expire(at, now_ms=now_ms + 10**12, **options)

        for how in ("expire", "delete"):
            await client.ask(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS))))
            applied.count(monkeypatch, GroupCoordinator, "apply")
            if how == "expire":
                monkeypatch.setattr(GroupCoordinator, "expire_offsets", in_this_thread(expire_all, expire))
                broker.groups._expire_offsets()
            else:
                await broker.logs.delete_topics([lambda: broker.logs.find("wide")])
            while sum(applied.calls.values()) < PARTITIONS:
                await asyncio.sleep(0)
            monkeypatch.undo()
            assert applied.most == DELETED_AT_ONCE
            applied.calls.clear()
            answer = await client.ask(offset_fetch, 5, group_id="group", topics=None)
            assert not answer.topics
        turning.cancel()

    serve(tmp_path, work)


def test_a_load_applies_some_records_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        await client.ask(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS))))
        (loaded,) = (each for each in broker.groups._runtimes if each.size_bytes)
        loaded._stop()
        monkeypatch.setattr(runtime, "LOAD_FACTS", 300)
        turns.count(monkeypatch, GroupCoordinator, "apply")
        await loaded.load()
        assert PARTITIONS <= sum(turns.calls.values())
        assert 300 == turns.most

    serve(tmp_path, work)


# Memory


def test_groups_take_no_more_than_half_of_the_memory_of_clients(tmp_path: Path) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        used = broker.budget.used
        answer = await client.ask(offset_commit, 8, **commit_fields(commit_of(range(PARTITIONS))))
        codes = [each.error_code for topic in answer.topics for each in topic.partitions]
        taken = codes.count(ErrorCode.NONE)
        assert 0 < taken < PARTITIONS
        assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] * (PARTITIONS - taken) == codes[taken:]
        # And what the group itself takes, which this commit makes.
        assert 200_000 - 500 < broker.budget.groups <= 200_000 + 2_000
        assert 200_000 == broker.budget.used - used

        # What a group has it keeps, and moves.
        answer = await client.ask(offset_commit, 8, **commit_fields(commit_of(range(taken), offset=6)))
        assert {ErrorCode.NONE} == {each.error_code for topic in answer.topics for each in topic.partitions}
        answer = await client.ask(offset_commit, 8, **commit_fields(commit_of([0]), group="another"))
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == answer.topics[0].partitions[0].error_code

        await client.ask(delete_groups, 2, groups_names=["group"])
        assert 0 == broker.budget.groups
        assert used == broker.budget.used
        answer = await client.ask(offset_commit, 8, **commit_fields(commit_of([0]), group="another"))
        assert ErrorCode.NONE == answer.topics[0].partitions[0].error_code

    serve(tmp_path, work, **{"client.memory.max.bytes": "400000"})


def test_the_reader_that_is_blocked_for_longest_is_closed_when_large_requests_wait_for_its_memory(
    tmp_path: Path,
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        broker.budget.hold(1 << 40)
        client.send(list_offsets, 7, topics=wanted(list_offsets, timestamp=-1))
        while not broker.budget.has_waiting:
            await asyncio.sleep(0)
        async with client_of(broker) as slow:
            await slow.ask(api_versions, 0)
            (blocked,) = (each for each in broker.connections if not each.is_busy)
            blocked.pause_writing()
            assert blocked._outbox is not None
            # The transport has them, so they cannot be read again.
            blocked.held_bytes = blocked._outbox._handed_over = 1 << 40
            broker.sweep(broker.loop.time())
            assert blocked in broker.connections, "it has taken something just now"
            broker.sweep(broker.loop.time() + 2)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await slow.receive_frame()
        while len(broker.connections) > 1:
            await asyncio.sleep(0)
        # Its memory was given back: the waiting request begins.
        await client.receive_frame()

    serve(tmp_path, work)


def test_a_large_join_that_waits_for_its_group_holds_neither_memory_of_work_nor_its_connection(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        before = broker.budget.used
        protocols = [join_group.schema.RequestProtocol(name="range", metadata=bytes(200_000))]
        async with client_of(broker) as joining:
            joining.send(
                join_group, 1, group_id="group", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id="",
                protocol_type="consumer", protocols=protocols,
            )  # fmt: skip
            group = 200_000
            await wait_for(lambda: broker.budget.used >= before + group)
            # The member's metadata, and what its group and its connection take; the request took three times as much.
            await wait_for(lambda: broker.budget.used < before + 1.5 * group)
        await wait_for(lambda: len(broker.connections) == 1, "nobody noticed that the client has gone")

    serve(tmp_path, check, **{"group.initial.rebalance.delay.ms": "600000"})


async def wait_for(is_true: Callable[[], bool], what: str = "it never came true") -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not is_true():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0)


def test_requests_behind_a_change_of_topics_take_effect_after_it(tmp_path: Path) -> None:
    async def check(broker: Broker, client: Client, turns: TurnCounter) -> None:
        new = create_topics.schema.RequestTopic(
            name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )  # fmt: skip
        grown = create_partitions.schema.RequestTopic(name="new", count=2, assignments=None)
        for _ in range(3):
            # All at once, and the answers afterwards.
            client.send(create_topics, 5, topics=[new])
            client.send_produce(("new", [0]))
            client.send(create_partitions, 1, topics=[grown], timeout_ms=60_000)
            client.send_produce(("new", [1]))
            client.send(delete_topics, 3, topic_names=["new"])
            client.send_produce(("new", [0]))
            assert 0 == (await client.receive(create_topics, 5)).topics[0].error_code
            assert (0, 0) == produced(await client.receive_produced())
            assert 0 == (await client.receive(create_partitions, 1)).results[0].error_code
            assert (0, 0) == produced(await client.receive_produced())
            assert 0 == (await client.receive(delete_topics, 3)).responses[0].error_code
            assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == produced(await client.receive_produced())[0]

    serve(tmp_path, check)


def produced(topics: Any) -> tuple[int, int]:
    """The error code and the base offset of the one batch that was sent."""
    ((_, (answer,)),) = topics
    return answer.error_code, answer.base_offset


def large_join(size: int) -> dict[str, Any]:
    protocols = [join_group.schema.RequestProtocol(name="range", metadata=bytes(size))]
    return {
        "group_id": "group", "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "member_id": "",
        "protocol_type": "consumer", "protocols": protocols,
    }  # fmt: skip


def test_a_join_that_is_too_large_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        asked, _ = hold_decoding(broker, monkeypatch)

        refused = await client.ask(join_group, 3, **large_join(2_000_000))

        assert ErrorCode.MESSAGE_TOO_LARGE == refused.error_code
        assert not asked.is_set()

    serve(tmp_path, work)


def test_a_request_of_many_megabytes_is_received_in_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = 0
    end_turn = connection.Connection._end_turn

    def count(self: connection.Connection) -> None:
        nonlocal ends
        ends += 1
        end_turn(self)

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(connection.Connection, "_end_turn", in_this_thread(count, end_turn))

        await client.ask(join_group, 3, **large_join(8 << 20))

        assert ends >= 4, "a turn takes less than two mebibytes"

    serve(tmp_path, work)


def test_of_many_look_ups_by_time_few_are_under_way_and_a_connection_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = 0
    look_up = Partition.look_up

    async def counted(self: Partition, timestamp: int | None) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        found = await look_up(self, timestamp)
        running -= 1
        return found

    async def work(broker: Broker, client: Client, turns: TurnCounter) -> None:
        monkeypatch.setattr(Partition, "look_up", in_this_thread(counted, look_up))
        topics = [
            list_offsets.schema.RequestTopic(
                name="wide",
                partitions=[
                    list_offsets.schema.RequestPartition(partition_index=index, timestamp=1) for index in range(3)
                ],
            )
        ]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(broker)) for _ in range(10)]
            for each in clients:
                for _ in range(5):
                    each.send(list_offsets, 7, topics=topics)
            for each in clients:
                for _ in range(5):
                    await each.receive(list_offsets, 7)
        assert 0 < most <= dispatch.LOOK_UPS_AT_ONCE

    serve(tmp_path, work)
