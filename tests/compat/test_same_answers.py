"""The same request, in every version that we serve, gets the same answer from our broker and from Apache Kafka."""

from collections.abc import Callable, Iterator
from contextlib import closing
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from logmark.broker import api
from logmark.wire.messages import Message
from logmark.wire.schema import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from tests.compat.asking import Connection, plain
from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest

pytestmark = pytest.mark.kafka

SERVED = {module.KEY: module.VERSIONS for module in api.MODULES}
MEMBER_ID_REQUIRED = 79


class RequestTarget(NamedTuple):
    """What a request may be about: a topic with records 4 to 9 in partition 0 and none in partition 1; a group."""

    topic: str
    group: str
    version: int


def offsets(timestamp: int, **more: Any) -> Callable[[RequestTarget], Message]:
    def request(at: RequestTarget) -> Message:
        asked = [list_offsets.RequestPartition(partition_index=each, timestamp=timestamp, **more) for each in (0, 1)]
        return list_offsets.Request(
            replica_id=-1, timeout_ms=1000, topics=[list_offsets.RequestTopic(name=at.topic, partitions=asked)]
        )

    return request


def commit(
    at: RequestTarget,
    *,
    member: str = "",
    generation: int = -1,
    group: str | None = None,
    topic: str | None = None,
    **more: Any,
) -> Message:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "", **more}
    return offset_commit.Request(
        group_id=at.group if group is None else group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            offset_commit.RequestTopic(
                name=at.topic if topic is None else topic, partitions=[offset_commit.RequestPartition(**partition)]
            )
        ],
    )


def committed(
    at: RequestTarget,
    *,
    group: str | None = None,
    topic: str | None = None,
    partitions: tuple[int, ...] | None = (0, 1),
) -> Message:
    group, topic = at.group if group is None else group, topic or at.topic
    asked = None if partitions is None else list(partitions)
    return offset_fetch.Request(
        group_id=group,
        topics=None if asked is None else [offset_fetch.RequestTopic(name=topic, partition_indexes=asked)],
        groups=[
            offset_fetch.RequestGroup(
                group_id=group,
                topics=None if asked is None else [offset_fetch.RequestGroupTopic(name=topic, partition_indexes=asked)],
            )
        ],
    )


def join(at: RequestTarget, member: str = "", *, instance: str | None = None, **more: Any) -> Message:
    values: dict[str, Any] = {
        "group_id": at.group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [join_group.RequestProtocol(name="range", metadata=b"\0\0")],
    }
    return join_group.Request(**{**values, **more})


def sync(at: RequestTarget, member: str, generation: int, *, is_leader: bool = False, **more: Any) -> Message:
    assignments = [sync_group.RequestAssignment(member_id=member, assignment=b"all")] if is_leader else []
    values: dict[str, Any] = {"group_id": at.group, "protocol_type": "consumer", "protocol_name": "range"}
    return sync_group.Request(generation_id=generation, member_id=member, assignments=assignments, **{**values, **more})


def beat(at: RequestTarget, member: str, generation: int, **more: Any) -> Message:
    return heartbeat.Request(**{"group_id": at.group, "generation_id": generation, "member_id": member, **more})


def leave(at: RequestTarget, member: str, *, group: str | None = None, instance: str | None = None) -> Message:
    return leave_group.Request(
        group_id=at.group if group is None else group,
        member_id=member,
        members=[leave_group.RequestMember(member_id=member, group_instance_id=instance)],
    )


def forget(at: RequestTarget, *partitions: int, group: str | None = None, topic: str | None = None) -> Message:
    asked = [offset_delete.RequestPartition(partition_index=each) for each in partitions]
    return offset_delete.Request(
        group_id=group or at.group, topics=[offset_delete.RequestTopic(name=topic or at.topic, partitions=asked)]
    )


def epochs(leader_epoch: int) -> Callable[[RequestTarget], Message]:
    def request(at: RequestTarget) -> Message:
        asked = [
            offset_for_leader_epoch.RequestPartition(
                partition=each, leader_epoch=leader_epoch, current_leader_epoch=now
            )
            for each, now in ((0, -1), (9, -1), (0, 3))
        ]
        return offset_for_leader_epoch.Request(
            replica_id=-1, topics=[offset_for_leader_epoch.RequestTopic(topic=at.topic, partitions=asked)]
        )

    return request


def coordinator(*keys: str, kind: int = 0) -> Callable[[RequestTarget], Message]:
    return lambda _: find_coordinator.Request(key=keys[0] if keys else "", key_type=kind, coordinator_keys=list(keys))


def topics(*names: str) -> Callable[[RequestTarget], Message]:
    return lambda at: metadata.Request(
        topics=[metadata.RequestTopic(name=name or at.topic) for name in names], allow_auto_topic_creation=False
    )


CASES: dict[str, tuple[ModuleType, Callable[[RequestTarget], Message]]] = {
    **{f"offsets at {when}": (list_offsets, offsets(when)) for when in (-1, -2, -4, -5, -6, -7, 0, 9 * 10**12)},
    "offsets of a later leader": (list_offsets, offsets(-1, current_leader_epoch=5)),
    **{f"the end of leader epoch {epoch}": (offset_for_leader_epoch, epochs(epoch)) for epoch in (-1, 0, 1, 5)},
    "the coordinator of two groups": (find_coordinator, coordinator("g", "h")),
    "the coordinator of no group": (find_coordinator, coordinator()),
    "metadata": (metadata, topics("", "nowhere", "not a name")),
    "a join without a group": (join_group, lambda at: join(at, group_id="")),
    "a join of an unknown member": (join_group, lambda at: join(at, "nobody")),
    "a join without protocols": (join_group, lambda at: join(at, protocols=[])),
    "a join without a type": (join_group, lambda at: join(at, protocol_type="")),
    "a join with a session too short": (join_group, lambda at: join(at, session_timeout_ms=5)),
    "a join with a session too long": (join_group, lambda at: join(at, session_timeout_ms=1_800_001)),
    "a heartbeat in no group": (heartbeat, lambda at: beat(at, "nobody", 1)),
    "a heartbeat without a group": (heartbeat, lambda at: beat(at, "nobody", 1, group_id="")),
    "a sync in no group": (sync_group, lambda at: sync(at, "nobody", 1)),
    "a sync without a group": (sync_group, lambda at: sync(at, "nobody", 1, group_id="")),
    "a leave in no group": (leave_group, lambda at: leave(at, "nobody")),
    "a leave without a group": (leave_group, lambda at: leave(at, "nobody", group="")),
    "a commit": (offset_commit, commit),
    "a commit without a group": (offset_commit, lambda at: commit(at, group="")),
    "a commit of an unknown member": (offset_commit, lambda at: commit(at, member="nobody", generation=3)),
    "a commit of a generation alone": (offset_commit, lambda at: commit(at, generation=3)),
    "a commit to no topic": (offset_commit, lambda at: commit(at, topic="nowhere")),
    "a commit to no partition": (offset_commit, lambda at: commit(at, partition_index=99)),
    "a commit with much metadata": (offset_commit, lambda at: commit(at, committed_metadata="m" * 4097)),
    "a commit without metadata": (offset_commit, lambda at: commit(at, committed_metadata=None)),
    "a commit below zero": (offset_commit, lambda at: commit(at, committed_offset=-5)),
    "committed offsets of no group": (offset_fetch, committed),
    "committed offsets without a group": (offset_fetch, lambda at: committed(at, group="")),
    "committed offsets of no topic": (offset_fetch, lambda at: committed(at, topic="nowhere")),
    "committed offsets of no partition": (offset_fetch, lambda at: committed(at, partitions=(77,))),
    "a description of no group": (describe_groups, lambda at: describe_groups.Request(groups=[at.group, ""])),
    "a deletion of no group": (delete_groups, lambda at: delete_groups.Request(groups_names=[at.group, ""])),
    "offsets forgotten of no group": (offset_delete, lambda at: forget(at, 0)),
}


@pytest.fixture
def both(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> Iterator[list[tuple[BrokerUnderTest, Connection, str]]]:
    """Both brokers with the same topic, and a connection to each."""
    apache_kafka.share_names(our_broker)
    with closing(Connection(apache_kafka)) as theirs, closing(Connection(our_broker)) as ours:
        yield [(apache_kafka, theirs, with_records(apache_kafka)), (our_broker, ours, with_records(our_broker))]


def with_records(broker: BrokerUnderTest) -> str:
    """A topic of two partitions; the first holds the records 4 to 9, the second none."""
    topic = broker.create_topic("orders", partitions=2)
    broker.produce(topic, ["ORD"] * 10, timestamp_ms=wire.now_ms() // 1000 * 1000)
    broker.delete_records(topic, 4)
    return topic


def test_requests_that_stand_alone(both: list[tuple[BrokerUnderTest, Connection, str]]) -> None:
    for name, (schema, request) in CASES.items():
        for version in SERVED[schema.KEY]:
            apache, ours = (
                plain(
                    connection.ask(
                        schema, version, request(RequestTarget(topic, broker.group(f"{name}-{version}"), version))
                    )
                )
                for broker, connection, topic in both
            )
            assert without_times(apache) == without_times(ours), f"{name}, {schema.__name__} version {version}"


def without_times(answer: Any) -> Any:
    """The moment at which the records were produced differs."""
    if isinstance(answer, dict):
        is_time = {name: name == "timestamp" and value > 0 for name, value in answer.items()}
        return {name: "a time" if is_time[name] else without_times(value) for name, value in answer.items()}
    return [without_times(each) for each in answer] if isinstance(answer, list) else answer


def life_of_a_member(ask: Callable[..., Any], at: RequestTarget) -> Iterator[tuple[str, Any]]:
    """Joins, syncs, commits and leaves, with every wrong step on the way."""
    # A group without a commit is swept away at any moment while it is empty, with the ids that it has given.
    yield "commit of nobody before", ask(offset_commit, commit(at, partition_index=1))
    joined = ask(join_group, join(at))
    yield "join", joined
    member = joined.member_id
    if joined.error_code == MEMBER_ID_REQUIRED:
        joined = ask(join_group, join(at, member))
        yield "join with the id that was given", joined
    generation = joined.generation_id
    yield "heartbeat before the sync", ask(heartbeat, beat(at, member, generation))
    yield "commit before the sync", ask(offset_commit, commit(at, member=member, generation=generation))
    yield "sync of another generation", ask(sync_group, sync(at, member, generation + 1))
    yield "sync of another member", ask(sync_group, sync(at, "nobody", generation))
    yield "sync of another protocol", ask(sync_group, sync(at, member, generation, protocol_name="other"))
    yield "sync", ask(sync_group, sync(at, member, generation, is_leader=True))
    yield "sync again", ask(sync_group, sync(at, member, generation))
    yield "heartbeat", ask(heartbeat, beat(at, member, generation))
    yield "heartbeat of another generation", ask(heartbeat, beat(at, member, generation + 1))
    yield "heartbeat of another member", ask(heartbeat, beat(at, "nobody", generation))
    yield "commit", ask(offset_commit, commit(at, member=member, generation=generation))
    yield "commit of another generation", ask(offset_commit, commit(at, member=member, generation=generation + 1))
    yield "commit of another member", ask(offset_commit, commit(at, member="nobody", generation=generation))
    yield "commit of nobody", ask(offset_commit, commit(at))
    yield "committed offsets", ask(offset_fetch, committed(at))
    yield "description", ask(describe_groups, describe_groups.Request(groups=[at.group]))
    yield "deletion of the live group", ask(delete_groups, delete_groups.Request(groups_names=[at.group]))
    yield "offsets forgotten", ask(offset_delete, forget(at, 0, 99))
    yield "join of another type", ask(join_group, join(at, protocol_type="connect"))
    other = [join_group.RequestProtocol(name="other", metadata=b"")]
    yield "join with another protocol", ask(join_group, join(at, protocols=other))
    yield "leave of another member", ask(leave_group, leave(at, "nobody"))
    yield "leave", ask(leave_group, leave(at, member))
    yield "heartbeat after the leave", ask(heartbeat, beat(at, member, generation))
    yield "description after the leave", ask(describe_groups, describe_groups.Request(groups=[at.group]))
    yield "commit of nobody after the leave", ask(offset_commit, commit(at))
    yield "commit after the leave", ask(offset_commit, commit(at, member=member, generation=generation))
    yield "committed offsets after the leave", ask(offset_fetch, committed(at))
    # One commit stays.
    yield "offsets forgotten after the leave", ask(offset_delete, forget(at, 1, 99))
    yield "deletion", ask(delete_groups, delete_groups.Request(groups_names=[at.group]))


def life_of_a_static_member(ask: Callable[..., Any], at: RequestTarget) -> Iterator[tuple[str, Any]]:
    """Comes back under its instance id; the member that it was is fenced."""
    joined = ask(join_group, join(at, instance="i"))
    yield "join", joined
    old, generation = joined.member_id, joined.generation_id
    yield "sync", ask(sync_group, sync(at, old, generation, is_leader=True, group_instance_id="i"))
    yield "heartbeat of another member", ask(heartbeat, beat(at, "other", generation, group_instance_id="i"))
    yield "heartbeat of another instance", ask(heartbeat, beat(at, old, generation, group_instance_id="j"))
    again = ask(join_group, join(at, instance="i"))
    yield "join again", again
    yield "heartbeat of the old member", ask(heartbeat, beat(at, old, generation, group_instance_id="i"))
    new = again.member_id
    yield "heartbeat of the new member", ask(heartbeat, beat(at, new, again.generation_id, group_instance_id="i"))
    yield "leave by instance", ask(leave_group, leave(at, "", instance="i"))


@pytest.mark.parametrize(
    ("life", "versions"),
    [(life_of_a_member, range(0, 10)), (life_of_a_static_member, range(5, 10))],
    ids=["dynamic", "static"],
)
def test_the_life_of_a_member(
    both: list[tuple[BrokerUnderTest, Connection, str]],
    life: Callable[[Callable[..., Any], RequestTarget], Iterator[tuple[str, Any]]],
    versions: range,
) -> None:
    for version in versions:
        lives = [
            list(life(asking(connection, version), RequestTarget(topic, broker.group(f"group-{version}"), version)))
            for broker, connection, topic in both
        ]
        for (step, apache), (_, ours) in zip(*lives, strict=True):
            assert plain(apache) == plain(ours), f"{step}, version {version}"


def asking(connection: Connection, version: int) -> Callable[..., Any]:
    """Asks each API in the version of that age."""

    def ask(schema: ModuleType, request: Message) -> Any:
        served = SERVED[schema.KEY]
        floor = 3 if schema in (heartbeat, sync_group, leave_group) and version >= 5 else served[0]
        return connection.ask(schema, max(min(version, served[-1]), floor), request)

    return ask


def test_batches_that_are_refused(both: list[tuple[BrokerUnderTest, Connection, str]]) -> None:
    good = wire.batch([b"ORD-1001"])
    for name, batch, partition in (
        ("a batch for no partition", good, 9),
        ("a bad CRC", good[:30] + bytes([good[30] ^ 1]) + good[31:], 0),
        ("two batches", good * 2, 0),
        ("no batch", b"", 0),
        ("half a batch", good[:-3], 0),
        ("magic 1", good[:16] + b"\1" + good[17:], 0),
        ("magic 3", good[:16] + b"\3" + good[17:], 0),
        ("a base offset", wire.batch([b"ORD-1001"], base_offset=7), 0),
    ):
        apache, ours = (answer_to(broker, topic, batch, partition) for broker, _, topic in both)
        assert apache == ours, name
    assert 10 == both[1][0].end_offset(both[1][2])


def answer_to(broker: BrokerUnderTest, topic: str, batch: bytes, partition: int) -> object:
    """The code and base offset that a batch gets, or that the broker hangs up on it."""
    try:
        return wire.produce(broker.bootstrap_servers, topic, batch, partition=partition)[:2]
    except (AssertionError, ConnectionError):
        return "hung up"
