"""Many topics in one request: one write of the catalogue, made in a thread, while everybody else is served."""

import asyncio
import errno
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logmark.broker import server
from logmark.broker.api import (
    create_partitions,
    create_topics,
    delete_topics,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    metadata,
    offset_commit,
    offset_fetch,
)
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN
from logmark.broker.group_runtime import DELETED_AT_ONCE
from logmark.broker.logs import NewTopic, Topic
from logmark.coordination.group_coordinator import GroupCoordinator
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode, Refused
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import PARTITIONS_MAX
from logmark.log.partition import Partition
from logmark.log.settings import OVERRIDES_LENGTH_MAX
from logmark.testing import Broker, FaultyFileSystem
from logmark.wire.schema import create_partitions as partitions_schema
from logmark.wire.schema import create_topics as create_schema
from logmark.wire.schema import incremental_alter_configs as configs_schema
from logmark.wire.schema import metadata as metadata_schema
from logmark.wire.schema import offset_commit as commit_schema
from tests.coordination.wire import Wire
from tests.harness import wire as by_hand
from tests.harness.node import wait_until
from tests.log.directory_driver import batch

COUNT = 1000
NAMES = [f"topic-{number}" for number in range(COUNT)]
NO_ID = bytes(16)


class HeldDiskBroker:
    """A broker whose disk a test can hold up, and a connection to it."""

    def __init__(self, files: FaultyFileSystem, broker: Broker, wire: Wire) -> None:
        self.files = files
        self.broker = broker
        self.wire = wire

    def count_writes(self, call: Callable[[], Any], file: str = CATALOG) -> int:
        """Return how often a call writes a file, which is synced each time."""
        before = len(self.files.syncs_done)
        call()
        return sum(path.endswith(f"/{file}.tmp") for path in self.files.syncs_done[before:])

    def create(self, names: Sequence[str], **more: Any) -> list[ErrorCode]:
        answer = self.wire.ask(create_topics, 7, topics=[new_topic(name, **more) for name in names])
        return [ErrorCode(topic.error_code) for topic in answer.topics]

    def delete(self, names: Sequence[str]) -> list[ErrorCode]:
        answer = self.wire.ask(delete_topics, 5, topic_names=list(names))
        return [ErrorCode(topic.error_code) for topic in answer.responses]

    def produce(self, topic: str) -> ErrorCode:
        """Produce one record on a connection of its own."""
        return ErrorCode(by_hand.produce(self.broker.bootstrap_servers, topic, by_hand.batch([b"v"])).error_code)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of every topic, as another client sees it."""
        with closing(Wire(self.broker)) as other:
            answer = other.ask(metadata, 9, topics=None)
            return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.is_internal}

    @contextmanager
    def write_held(self, file: str = CATALOG) -> Iterator[None]:
        """Hold up the writes of a file during the block, which sends a request and calls `wait_for_write`."""
        with self.files.hold_syncs(file):
            yield

    def wait_for_write(self) -> None:
        self.files.wait_for_held_sync(timeout_s=60)


def new_topic(name: str, partitions: int = 1) -> create_schema.RequestTopic:
    return create_schema.RequestTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )


@pytest.fixture
def served() -> Iterator[HeldDiskBroker]:
    files = FaultyFileSystem(RealFileSystem(sync=False))
    with Broker(files=files, durability="sync") as broker, closing(Wire(broker)) as wire:
        yield HeldDiskBroker(files, broker, wire)


# One write


def test_creating_a_thousand_topics_is_one_write_of_the_catalogue(served: HeldDiskBroker) -> None:
    assert 1 == served.count_writes(lambda: served.create(NAMES))
    assert dict.fromkeys(NAMES, 1) == served.topics()
    served.broker.restart()
    assert dict.fromkeys(NAMES, 1) == served.topics()


def test_deleting_a_thousand_topics_is_one_write_before_their_folders_go_and_one_after(served: HeldDiskBroker) -> None:
    served.create(NAMES)
    assert ErrorCode.NONE is served.produce(NAMES[0])

    assert 2 == served.count_writes(lambda: served.delete(NAMES))
    assert {} == served.topics()
    assert [] == json.loads((Path(served.broker.data_dir) / CATALOG).read_bytes())["topics"]
    assert not (Path(served.broker.data_dir) / f"{NAMES[0]}-0").exists()


def test_growing_a_thousand_topics_is_one_write(served: HeldDiskBroker) -> None:
    served.create(NAMES)
    wanted = [partitions_schema.RequestTopic(name=name, count=2, assignments=None) for name in NAMES]

    assert 1 == served.count_writes(lambda: served.wire.ask(create_partitions, 2, topics=wanted))
    assert dict.fromkeys(NAMES, 2) == served.topics()


def test_changing_the_settings_of_a_thousand_topics_is_one_write(served: HeldDiskBroker) -> None:
    served.create(NAMES)
    change = [configs_schema.RequestConfig(name="retention.ms", config_operation=0, value="1234")]
    wanted = [configs_schema.RequestResource(resource_type=2, resource_name=name, configs=change) for name in NAMES]

    assert 1 == served.count_writes(lambda: served.wire.ask(incremental_alter_configs, 1, resources=wanted))
    topics = json.loads((Path(served.broker.data_dir) / CATALOG).read_bytes())["topics"]
    assert [{"retention.ms": "1234"}] * COUNT == [topic["overrides"] for topic in topics]


LONG = "leader.replication.throttled.replicas"


def overrides_of(served: HeldDiskBroker, topic: str) -> dict[str, str]:
    """Return the overrides of a topic that the catalogue on disk has."""
    topics = json.loads((Path(served.broker.data_dir) / CATALOG).read_bytes())["topics"]
    return next(each["overrides"] for each in topics if each["name"] == topic)


@pytest.mark.parametrize("is_dry", [False, True], ids=["in earnest", "validate only"])
def test_a_topic_with_longer_settings_than_4_kib_is_not_created(served: HeldDiskBroker, is_dry: bool) -> None:
    wanted = []
    for name, length in (("just", OVERRIDES_LENGTH_MAX), ("over", OVERRIDES_LENGTH_MAX + 1)):
        config = create_schema.RequestConfig(name=LONG, value="0:1".ljust(length - len(LONG), "0"))
        wanted.append(new_topic(name))
        wanted[-1].configs.append(config)

    just, over = served.wire.ask(create_topics, 7, topics=wanted, validate_only=is_dry).topics

    assert (ErrorCode.NONE, ErrorCode.INVALID_CONFIG) == (just.error_code, over.error_code), just.error_message
    assert over.error_message is not None and "4096 characters" in over.error_message


@pytest.mark.parametrize("operation", [0, 2], ids=["set", "append"])
def test_settings_do_not_grow_beyond_4_kib_and_a_refused_change_changes_nothing(
    served: HeldDiskBroker, operation: int
) -> None:
    served.create(["topic"])
    answers = []
    for value in ("0:" + "1" * 2500, "0:" + "2" * (2500 if operation else 5000)):
        change = configs_schema.RequestConfig(name=LONG, config_operation=operation, value=value)
        wanted = configs_schema.RequestResource(resource_type=2, resource_name="topic", configs=[change])
        answer = served.wire.ask(incremental_alter_configs, 1, resources=[wanted])
        answers.append((answer.responses[0].error_code, overrides_of(served, "topic")))

    assert [ErrorCode.NONE, ErrorCode.INVALID_CONFIG] == [code for code, _ in answers]
    assert answers[0][1] == answers[1][1]


def test_the_topics_that_a_metadata_request_creates_are_one_write(served: HeldDiskBroker) -> None:
    wanted = [metadata_schema.RequestTopic(name=name) for name in NAMES]

    def ask() -> None:
        answer = served.wire.ask(metadata, 9, topics=wanted, allow_auto_topic_creation=True)
        assert {ErrorCode.NONE} == {topic.error_code for topic in answer.topics}

    assert 1 == served.count_writes(ask)
    assert 0 == served.count_writes(ask)


def test_a_request_of_which_every_topic_is_refused_writes_nothing(served: HeldDiskBroker) -> None:
    served.create(["there"])

    assert 0 == served.count_writes(lambda: served.create(["there", "a/b"]))
    assert 0 == served.count_writes(lambda: served.delete(["missing"]))


def test_a_start_finishes_all_interrupted_deletions_by_one_write(served: HeldDiskBroker) -> None:
    served.create(NAMES)
    served.produce(NAMES[0])
    served.broker.stop()
    path = Path(served.broker.data_dir) / CATALOG
    document = json.loads(path.read_bytes()) | {"version": 1}
    for topic in document["topics"]:
        topic["is_deleting"] = True
    path.write_text(json.dumps(document))

    assert 1 == served.count_writes(served.broker.start)
    assert {} == served.topics()
    assert [] == json.loads(path.read_bytes())["topics"]


def test_what_the_checkpoints_say_of_deleted_topics_is_dropped_by_one_write_for_all_that_follow_them(
    served: HeldDiskBroker,
) -> None:
    names = NAMES[:20]
    served.create(names)
    for name in names:
        assert ErrorCode.NONE is served.produce(name)
    # The stop writes the checkpoints, which mention every partition with a record.
    served.broker.restart()
    served.wire = Wire(served.broker)
    served.delete(names)

    assert 1 == served.count_writes(lambda: served.create(names), checkpoints.RECOVERY_POINTS)
    served.wire.close()


# Each topic by itself


def test_topics_of_one_request_are_refused_each_by_itself(served: HeldDiskBroker) -> None:
    served.create(["there"])
    names = ["a.b", "a_b", "there", "twice", "x/y", "twice", "last"]

    answer = served.wire.ask(create_topics, 7, topics=[new_topic(name) for name in names])

    assert {
        "a.b": ErrorCode.NONE,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "twice": ErrorCode.INVALID_REQUEST,
        "x/y": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "last": ErrorCode.NONE,
    } == {topic.name: topic.error_code for topic in answer.topics}
    assert {"there", "a.b", "last"} == served.topics().keys()


def test_a_folder_that_cannot_be_renamed_does_not_stop_the_deletion_of_other_topics(served: HeldDiskBroker) -> None:
    served.create(["stuck", "other"])
    for name in ("stuck", "other"):
        served.produce(name)
    served.files.fail_writes("/stuck-0.", errno.EIO)

    assert [ErrorCode.NONE, ErrorCode.NONE] == served.delete(["stuck", "other"])
    assert [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE] == served.create(["stuck", "other"])

    served.files.heal()
    served.broker.restart()
    assert {"other": 1} == served.topics()
    assert not (Path(served.broker.data_dir) / "stuck-0").exists()


@pytest.mark.parametrize("fail", [FaultyFileSystem.fail_writes, FaultyFileSystem.fail_syncs])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_when_the_disk_refuses_the_catalogue_nothing_has_changed(
    served: HeldDiskBroker, fail: Callable[..., None], number: int
) -> None:
    served.create(["there", "kept"])
    served.produce("kept")
    fail(served.files, CATALOG, number)
    refused = ErrorCode.KAFKA_STORAGE_ERROR
    growth = [partitions_schema.RequestTopic(name="there", count=2, assignments=None)]

    assert [refused, ErrorCode.TOPIC_ALREADY_EXISTS, refused] == served.create(["new", "there", "newer"])
    assert [refused, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == served.delete(["kept", "missing"])
    assert refused == served.wire.ask(create_partitions, 2, topics=growth).results[0].error_code
    answer = served.wire.ask(init_producer_id, 4, transactional_id=None, producer_id=-1, producer_epoch=-1)
    assert refused == answer.error_code
    assert {"there": 1, "kept": 1} == served.topics()
    assert ErrorCode.NONE is served.produce("kept")

    served.files.heal()
    assert [ErrorCode.NONE, ErrorCode.NONE] == served.create(["new", "newer"])
    assert [ErrorCode.NONE] == served.delete(["kept"])
    served.broker.restart()
    assert {"there", "new", "newer"} == served.topics().keys()


# Others are served


def test_others_are_served_and_see_the_old_topics_while_a_creation_is_written(served: HeldDiskBroker) -> None:
    served.create(["there"])
    with served.write_held():
        served.wire.send(create_topics, 7, topics=[new_topic(name) for name in NAMES])
        served.wait_for_write()
        assert ErrorCode.NONE is served.produce("there")
        assert {"there": 1} == served.topics()
        assert not served.wire.has_answer

    answer = served.wire.receive(create_topics, 7)
    assert {ErrorCode.NONE} == {topic.error_code for topic in answer.topics}
    assert COUNT + 1 == len(served.topics())


def test_others_are_served_while_a_deletion_is_written(served: HeldDiskBroker) -> None:
    served.create(["there", *NAMES])
    with served.write_held():
        served.wire.send(delete_topics, 5, topic_names=NAMES)
        served.wait_for_write()
        assert ErrorCode.NONE is served.produce("there")
        assert COUNT + 1 == len(served.topics()), "a topic is there until its deletion is durable"
        assert not served.wire.has_answer

    served.wire.receive(delete_topics, 5)
    assert {"there": 1} == served.topics()


def test_others_are_served_while_a_deletion_waits_for_a_flush_of_its_topic(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))

    async def work(broker: server.Broker) -> None:
        loop = asyncio.get_running_loop()
        for name in ("there", "gone"):
            topic = await broker.logs.create_topic(name, 1, {})
            topic.partitions[0].append(batch(b"v"), now_ms=broker.clock.now_ms())
        await (topic.partitions[0].durable(1) or asyncio.sleep(0))
        with files.hold_syncs("/gone-0/"):
            broker._committer.flusher.mark(topic.partitions[0])
            await loop.run_in_executor(None, lambda: files.wait_for_held_sync(timeout_s=60))
            deleting = asyncio.create_task(broker.logs.delete_topics([lambda: broker.logs.find("gone")]))
            while broker.logs.topic("gone") is not None:
                await asyncio.sleep(0)
            # On the old way the loop would wait for the flush in this turn, and the flush for ever.
            await asyncio.sleep(0)
            assert not deleting.done()
        assert [topic] == await deleting

    on_a_broker(tmp_path, files, work)
    assert ["there"] == names_in(tmp_path)


def test_others_are_served_while_producer_ids_are_reserved_and_one_reservation_is_enough_for_all(
    served: HeldDiskBroker,
) -> None:
    served.create(["there"])
    others = [Wire(served.broker) for _ in range(5)]
    ask = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    ids: list[int] = []

    def reserve() -> None:
        with served.write_held():
            for wire in others:
                wire.send(init_producer_id, 4, **ask)
            served.wait_for_write()
            assert ErrorCode.NONE is served.produce("there")
        ids.extend(wire.receive(init_producer_id, 4).producer_id for wire in others)

    assert 1 == served.count_writes(reserve)
    assert len(others) == len(set(ids))
    for wire in others:
        wire.close()


def test_the_first_request_of_a_group_waits_for_the_topic_of_the_offsets_and_nobody_else_does(
    served: HeldDiskBroker,
) -> None:
    served.create(["there"])
    with served.write_held():
        served.wire.send(find_coordinator, 3, key="group", key_type=0)
        served.wait_for_write()
        assert ErrorCode.NONE is served.produce("there")
        assert not served.wire.has_answer

    assert ErrorCode.NONE == served.wire.receive(find_coordinator, 3).error_code


def test_a_commit_that_comes_before_there_is_a_topic_for_it_is_taken(served: HeldDiskBroker) -> None:
    served.create(["there"])

    assert [ErrorCode.NONE] == commit(served, "group", ["there"])


# Stops


def test_a_stop_in_the_middle_of_a_large_request_leaves_no_request_behind(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))

    async def run() -> bool:
        broker = server.Broker(data_dir=str(tmp_path), durability="sync", files=files)
        await broker.start()
        loop = asyncio.get_running_loop()
        with files.hold_syncs(CATALOG), closing(await loop.run_in_executor(None, Wire, broker)) as wire:
            wire.send(create_topics, 7, topics=[new_topic(name) for name in NAMES])
            await loop.run_in_executor(None, lambda: files.wait_for_held_sync(timeout_s=60))
            stopping = asyncio.create_task(broker.stop())
            for _ in range(100):
                await asyncio.sleep(0)
        is_clean = await stopping
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return is_clean

    assert asyncio.run(run())
    assert NAMES == names_in(tmp_path)


# One after another


def test_of_two_requests_for_the_same_name_the_first_wins(served: HeldDiskBroker) -> None:
    with closing(Wire(served.broker)) as other:
        with served.write_held():
            served.wire.send(create_topics, 7, topics=[new_topic("wanted", 3)])
            served.wait_for_write()
            other.send(create_topics, 7, topics=[new_topic("wanted", 5), new_topic("alone")])
            # An answer on a third connection: the broker has seen the second request.
            assert {} == served.topics()
            assert not served.wire.has_answer
            assert not other.has_answer

        (first,) = served.wire.receive(create_topics, 7).topics
        second, alone = other.receive(create_topics, 7).topics
    assert (ErrorCode.NONE, 3) == (first.error_code, first.num_partitions)
    assert (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE) == (second.error_code, alone.error_code)
    assert {"wanted": 3, "alone": 1} == served.topics()


def test_a_small_request_does_not_overtake_a_large_one(served: HeldDiskBroker) -> None:
    served.wire.send(create_topics, 7, topics=[new_topic(name) for name in [*NAMES, "wanted"]])
    served.wire.send(create_topics, 7, topics=[new_topic("wanted", 5)])
    served.wire.send(delete_topics, 5, topic_names=["wanted", *NAMES])
    served.wire.send(create_topics, 7, topics=[new_topic("wanted", 7)])

    assert {ErrorCode.NONE} == {topic.error_code for topic in served.wire.receive(create_topics, 7).topics}
    assert ErrorCode.TOPIC_ALREADY_EXISTS == served.wire.receive(create_topics, 7).topics[0].error_code
    assert {ErrorCode.NONE} == {topic.error_code for topic in served.wire.receive(delete_topics, 5).responses}
    assert ErrorCode.NONE == served.wire.receive(create_topics, 7).topics[0].error_code
    assert {"wanted": 7} == served.topics()


def test_a_topic_that_is_created_while_its_predecessor_is_deleted_is_another_one(served: HeldDiskBroker) -> None:
    served.create(["again"])
    served.produce("again")
    with closing(Wire(served.broker)) as other:
        # The directory is synced when the folder has been renamed.
        with served.files.hold_syncs(CATALOG):
            served.wire.send(delete_topics, 5, topic_names=["again"])
            served.wait_for_write()
            other.send(create_topics, 7, topics=[new_topic("other")])
        served.wire.receive(delete_topics, 5)
        other.receive(create_topics, 7)
    assert [ErrorCode.NONE] == served.create(["again"])
    answer = by_hand.produce(served.broker.bootstrap_servers, "again", by_hand.batch([b"new"]))
    assert (ErrorCode.NONE, 0) == (answer.error_code, answer.base_offset)


def test_a_request_whose_connection_closes_meanwhile_is_carried_out(served: HeldDiskBroker) -> None:
    gone = Wire(served.broker)
    with served.write_held():
        gone.send(create_topics, 7, topics=[new_topic("first"), new_topic("second")])
        served.wait_for_write()
        gone.close()
        assert {} == served.topics()

    wait_until(lambda: served.topics() == {"first": 1, "second": 1}, "what was written is seen")
    served.broker.restart()
    assert {"first": 1, "second": 1} == served.topics()


# On the loop


def on_a_broker(folder: Path, files: FaultyFileSystem, work: Callable[[server.Broker], Any]) -> None:
    """Run something on the loop of a broker."""

    async def run() -> None:
        broker = server.Broker(data_dir=str(folder), durability="sync", files=files)
        await broker.start()
        try:
            await work(broker)
        finally:
            await broker.stop()

    asyncio.run(run())


def names_in(folder: Path) -> list[str]:
    return [topic["name"] for topic in json.loads((folder / CATALOG).read_bytes())["topics"]]


def test_a_change_whose_caller_is_cancelled_is_applied(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))

    async def work(broker: server.Broker) -> None:
        loop = asyncio.get_running_loop()
        with files.hold_syncs(CATALOG):
            creating = asyncio.create_task(broker.logs.create_topic("t", 1, {}))
            await loop.run_in_executor(None, lambda: files.wait_for_held_sync(timeout_s=60))
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            assert broker.logs.topic("t") is None
        # The next change comes after it.
        with pytest.raises(Refused, match="already exists"):
            await broker.logs.create_topic("t", 1, {})
        assert broker.logs.topic("t") is not None

    on_a_broker(tmp_path, files, work)


def test_a_stop_waits_for_the_change_that_is_written_and_refuses_those_behind_it(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(sync=False))

    async def run() -> None:
        broker = server.Broker(data_dir=str(tmp_path), durability="sync", files=files)
        await broker.start()
        loop = asyncio.get_running_loop()
        with files.hold_syncs(CATALOG):
            first = asyncio.create_task(broker.logs.create_topic("first", 1, {}))
            await loop.run_in_executor(None, lambda: files.wait_for_held_sync(timeout_s=60))
            second = asyncio.create_task(broker.logs.create_topic("second", 1, {}))
            stopping = asyncio.create_task(broker.stop())
            for _ in range(100):
                await asyncio.sleep(0)
            assert not stopping.done(), "a thread still writes to the directory"
        assert await stopping
        assert isinstance(await first, Topic)
        with pytest.raises(Refused):
            await second

    asyncio.run(run())
    assert ["first"] == names_in(tmp_path)


@pytest.mark.parametrize(("topics", "partitions"), [(COUNT, 1), (1, COUNT)])
def test_the_loop_turns_while_many_partitions_are_created_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int, partitions: int
) -> None:
    turn, done_in_turn = itertools.count(), dict[int, int]()
    create, close, now = Partition.create, Partition.close, 0

    def count() -> None:
        done_in_turn[now] = done_in_turn.get(now, 0) + 1

    def counted_create(*arguments: Any, **options: Any) -> Partition:
        count()
        return create(*arguments, **options)

    def counted_close(partition: Partition, **options: Any) -> bool:
        count()
        return close(partition, **options)

    async def turn_for_ever() -> None:
        nonlocal now
        while True:
            now = next(turn)
            await asyncio.sleep(0)

    async def work(broker: server.Broker) -> None:
        monkeypatch.setattr(Partition, "create", counted_create)
        monkeypatch.setattr(Partition, "close", counted_close)
        turning = asyncio.create_task(turn_for_ever())
        wanted = [partial(NewTopic, f"t{number}", partitions, {}) for number in range(topics)]
        created = await broker.logs.create_topics(wanted)
        assert COUNT == sum(done_in_turn.values())
        await broker.logs.delete_topics([lambda topic=topic: topic for topic in created])  # type: ignore[misc]
        assert 2 * COUNT == sum(done_in_turn.values())
        turning.cancel()
        monkeypatch.undo()

    on_a_broker(tmp_path, FaultyFileSystem(RealFileSystem(sync=False)), work)
    assert max(done_in_turn.values()) <= STEPS_IN_A_TURN


# What groups committed


def commit(served: HeldDiskBroker, group: str, names: Sequence[str]) -> list[ErrorCode]:
    partition = commit_schema.RequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [commit_schema.RequestTopic(name=name, partitions=[partition]) for name in names]
    answer = served.wire.ask(
        offset_commit, 5, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    return [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]


def test_groups_forget_a_thousand_topics_by_a_few_looks_at_their_offsets(
    served: HeldDiskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[GroupCoordinator] = []
    forget = GroupCoordinator.forget_topics

    def counted(coordinator: GroupCoordinator, *arguments: Any, **options: Any) -> Any:
        looks.append(coordinator)
        return forget(coordinator, *arguments, **options)

    served.create(["kept", *NAMES])
    commit(served, "group", ["kept", *NAMES])
    monkeypatch.setattr(GroupCoordinator, "forget_topics", counted)

    served.delete(NAMES)

    assert 1 + COUNT // DELETED_AT_ONCE == len(looks), "only a shard with offsets looks, once for each portion"
    answer = served.wire.ask(offset_fetch, 5, group_id="group", topics=None)
    assert ["kept"] == [topic.name for topic in answer.topics]


def ask_for_partitions(wire: Wire, topic: str, count: int, **more: Any) -> tuple[ErrorCode, str]:
    wanted = partitions_schema.RequestTopic(name=topic, count=count, assignments=None)
    (answer,) = wire.ask(create_partitions, 3, topics=[wanted], timeout_ms=60_000, **more).results
    return ErrorCode(answer.error_code), answer.error_message or ""


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_does_not_grow_beyond_what_a_new_one_may_have(validate_only: bool) -> None:
    with Broker() as broker, closing(Wire(broker)) as wire:
        broker.create_topic("t")

        code, text = ask_for_partitions(wire, "t", PARTITIONS_MAX + 1, validate_only=validate_only)

        assert (ErrorCode.INVALID_PARTITIONS, True) == (code, str(PARTITIONS_MAX) in text)
        broker.restart()  # a catalogue with more would be refused


def test_all_topics_together_have_a_limit_of_partitions_that_leaves_room_for_groups() -> None:
    with Broker({"partitions.max": "10"}) as broker, closing(Wire(broker)) as wire:
        topics = [new_topic("a", 6), new_topic("b", 5), new_topic("c", 4)]
        answered = wire.ask(create_topics, 7, topics=topics).topics
        assert [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE] == [each.error_code for each in answered]
        assert "partitions.max" in answered[1].error_message

        code, text = ask_for_partitions(wire, "a", 7)

        assert (ErrorCode.POLICY_VIOLATION, True) == (code, "partitions.max" in text)
        assert ErrorCode.NONE == wire.ask(find_coordinator, 3, key="group", key_type=0).error_code
        assert ErrorCode.NONE == wire.ask(delete_topics, 5, topic_names=["c"]).responses[0].error_code
        assert ErrorCode.NONE == ask_for_partitions(wire, "a", 10)[0]
