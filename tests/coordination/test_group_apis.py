"""The group APIs over a socket, in every version that is advertised."""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from logmark.broker import groups, internal_partition
from logmark.broker.api import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from logmark.coordination.classic_membership import PROTOCOLS_MAX
from logmark.errors import ErrorCode
from logmark.testing import Broker
from tests.coordination.coordinator_driver import subscription
from tests.coordination.wire import Wire

NAMES = (f"group-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}) as broker:
        broker.create_topic("clicks", partitions=2)
        broker.create_topic("orders", partitions=1)
        yield broker


@pytest.fixture
def wire(served: Broker) -> Iterator[Wire]:
    connection = Wire(served)
    yield connection
    connection.close()


def versions(api: ModuleType) -> Any:
    return pytest.mark.parametrize("version", list(api.VERSIONS))


def joined(wire: Wire, group: str, version: int = 9, **more: Any) -> Any:
    """The answer to a join, asked again with the id if one was given out."""
    fields = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [join_group.schema.RequestProtocol(name="range", metadata=subscription("clicks"))],
    }
    if version >= 1:
        fields["rebalance_timeout_ms"] = 30_000
    answer = wire.ask(join_group, version, **(fields | more))
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = wire.ask(join_group, version, **(fields | more | {"member_id": answer.member_id}))
    return answer


def stable(wire: Wire, group: str, **more: Any) -> Any:
    """The only member of a stable group."""
    member = joined(wire, group, **more)
    synced = wire.ask(
        sync_group, 3, group_id=group, generation_id=member.generation_id, member_id=member.member_id,
        assignments=[sync_group.schema.RequestAssignment(member_id=member.member_id, assignment=b"P0")],
    )
    assert (0, b"P0") == (synced.error_code, synced.assignment)
    return member


def at_offset(offset: int, partition: int = 0, **more: Any) -> Any:
    return offset_commit.schema.RequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="note", **more
    )


def committed(
    wire: Wire, group: str, *partitions: Any, topic: str = "clicks", version: int = 8, **more: Any
) -> list[int]:
    topics = [offset_commit.schema.RequestTopic(name=topic, partitions=list(partitions))]
    answer = wire.ask(offset_commit, version, group_id=group, topics=topics, **more)
    return [partition.error_code for each in answer.topics for partition in each.partitions]


@versions(find_coordinator)
def test_this_broker_coordinates_every_group(served: Broker, wire: Wire, version: int) -> None:
    many = version >= 4
    keys: dict[str, Any] = {"coordinator_keys": ["a", "b"]} if many else {"key": "a"}

    answer = wire.ask(find_coordinator, version, **keys)

    found = answer.coordinators if many else [answer]
    assert len(found) == (2 if many else 1)
    for each in found:
        assert (0, served.bootstrap_servers) == (each.error_code, f"{each.host}:{each.port}")


@pytest.mark.parametrize("version", range(1, 7))
def test_a_transactional_producer_is_sent_away_for_good(wire: Wire, version: int) -> None:
    keys: dict[str, Any] = {"coordinator_keys": ["t"]} if version >= 4 else {"key": "t"}

    answer = wire.ask(find_coordinator, version, key_type=1, **keys)

    found = answer.coordinators[0] if version >= 4 else answer
    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED == found.error_code
    assert "Transactions are not served" in found.error_message


def test_there_is_no_coordinator_of_other_kinds(wire: Wire) -> None:
    answer = wire.ask(find_coordinator, 6, key_type=2, coordinator_keys=["s"])

    assert ErrorCode.INVALID_REQUEST == answer.coordinators[0].error_code


@versions(join_group)
def test_a_member_joins(wire: Wire, version: int) -> None:
    answer = joined(wire, next(NAMES), version)

    assert (0, 1, "range") == (answer.error_code, answer.generation_id, answer.protocol_name)
    assert answer.member_id == answer.leader
    assert answer.member_id.startswith("wire-")
    assert [subscription("clicks")] == [member.metadata for member in answer.members]


@versions(join_group)
def test_a_refused_join_is_readable(wire: Wire, version: int) -> None:
    answer = joined(wire, next(NAMES), version, session_timeout_ms=1)

    assert ErrorCode.INVALID_SESSION_TIMEOUT == answer.error_code


def test_metadata_of_a_member_has_a_limit(wire: Wire) -> None:
    group = next(NAMES)
    large = join_group.schema.RequestProtocol(name="range", metadata=bytes(1024 * 1024))

    assert ErrorCode.MESSAGE_TOO_LARGE == joined(wire, group, protocols=[large]).error_code
    assert 0 == joined(wire, group).error_code


def test_the_protocols_of_a_member_have_a_limit(wire: Wire) -> None:
    group = next(NAMES)
    names = [f"assignor-{number}" for number in range(PROTOCOLS_MAX + 1)]
    many = [join_group.schema.RequestProtocol(name=name, metadata=b"") for name in names]

    assert ErrorCode.INVALID_REQUEST == joined(wire, group, protocols=many).error_code
    assert 0 == joined(wire, group, protocols=many[:-1]).error_code


def test_metadata_of_a_group_has_a_limit() -> None:
    with Broker({"group.initial.rebalance.delay.ms": "60000", "group.max.bytes": "100000"}) as broker:
        broker.create_topic("clicks")
        wires = [Wire(broker) for _ in range(3)]
        fields = {
            "group_id": "billing", "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [join_group.schema.RequestProtocol(name="range", metadata=bytes(40_000))],
        }  # fmt: skip
        # Version 3 joins at once, without an id of its own; the first two wait for the others.
        for wire in wires[:2]:
            wire.send(join_group, 3, **fields)
        Wire(broker).ask(find_coordinator, 0, key="billing")
        described: list[Any] = []
        while not described or len(described[0].members) < 2:
            described = wires[2].ask(describe_groups, 0, groups=["billing"]).groups

        assert ErrorCode.GROUP_MAX_SIZE_REACHED == wires[2].ask(join_group, 3, **fields).error_code
        for wire in wires:
            wire.close()


def test_an_assignment_has_a_limit(wire: Wire) -> None:
    group = next(NAMES)
    member = joined(wire, group)
    large = sync_group.schema.RequestAssignment(member_id=member.member_id, assignment=bytes(1024 * 1024 + 1))

    answer = wire.ask(
        sync_group, 3, group_id=group, generation_id=1, member_id=member.member_id, assignments=[large]
    )  # fmt: skip

    assert ErrorCode.MESSAGE_TOO_LARGE == answer.error_code


@versions(sync_group)
def test_a_member_gets_its_assignment(wire: Wire, version: int) -> None:
    group = next(NAMES)
    member = joined(wire, group)
    more = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}

    answer = wire.ask(
        sync_group, version, group_id=group, generation_id=1, member_id=member.member_id,
        assignments=[sync_group.schema.RequestAssignment(member_id=member.member_id, assignment=b"P0")], **more,
    )

    assert (0, b"P0") == (answer.error_code, answer.assignment)
    if version >= 5:
        assert ("consumer", "range") == (answer.protocol_type, answer.protocol_name)


def test_a_sync_must_name_its_protocol_since_version_5(wire: Wire) -> None:
    group = next(NAMES)
    member = stable(wire, group)

    answer = wire.ask(sync_group, 5, group_id=group, generation_id=1, member_id=member.member_id)

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == answer.error_code


@versions(heartbeat)
def test_a_heartbeat_is_answered(wire: Wire, version: int) -> None:
    group = next(NAMES)
    member = stable(wire, group)

    good = wire.ask(heartbeat, version, group_id=group, generation_id=1, member_id=member.member_id)
    bad = wire.ask(heartbeat, version, group_id=group, generation_id=7, member_id=member.member_id)

    assert (0, ErrorCode.ILLEGAL_GENERATION) == (good.error_code, bad.error_code)


@versions(leave_group)
def test_a_member_leaves(wire: Wire, version: int) -> None:
    group = next(NAMES)
    member = stable(wire, group)
    who: dict[str, Any] = (
        {"member_id": member.member_id}
        if version < 3
        else {"members": [leave_group.schema.RequestMember(member_id=member.member_id)]}
    )

    first = wire.ask(leave_group, version, group_id=group, **who)
    second = wire.ask(leave_group, version, group_id=group, **who)

    if version < 3:
        assert (0, ErrorCode.UNKNOWN_MEMBER_ID) == (first.error_code, second.error_code)
    else:
        assert [0] == [each.error_code for each in first.members]
        assert [ErrorCode.UNKNOWN_MEMBER_ID] == [each.error_code for each in second.members]


@versions(offset_commit)
def test_a_commit_is_kept_and_fetched(wire: Wire, version: int) -> None:
    group = next(NAMES)
    more: dict[str, Any] = {"committed_leader_epoch": 0} if version >= 6 else {}

    assert [0, 3] == committed(
        wire, group, at_offset(259_000_000_000, **more), at_offset(1, partition=7), version=version
    )

    fetched = wire.ask(
        offset_fetch, 7, group_id=group,
        topics=[offset_fetch.schema.RequestTopic(name="clicks", partition_indexes=[0, 1])],
    )
    (topic,) = fetched.topics
    assert [(0, 259_000_000_000, 0 if version >= 6 else -1, "note"), (1, -1, -1, "")] == [
        (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata)
        for each in topic.partitions
    ]


def test_a_commit_to_an_unknown_topic_is_refused_partition_by_partition(wire: Wire) -> None:
    assert [3] == committed(wire, next(NAMES), at_offset(1), topic="nowhere")


@pytest.mark.parametrize(
    ("version", "expected"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_commit_of_a_generation_that_never_was_is_refused(wire: Wire, version: int, expected: ErrorCode) -> None:
    errors = committed(
        wire, next(NAMES), at_offset(1), version=version, generation_id_or_member_epoch=4, member_id="m"
    )

    assert [expected] == errors


def test_a_tool_cannot_commit_while_members_are_at_work(wire: Wire) -> None:
    group = next(NAMES)
    member = stable(wire, group)

    assert [ErrorCode.UNKNOWN_MEMBER_ID] == committed(wire, group, at_offset(1))
    assert [0] == committed(wire, group, at_offset(1), generation_id_or_member_epoch=1, member_id=member.member_id)


@versions(offset_fetch)
def test_offsets_are_fetched_by_partition_and_all_at_once(wire: Wire, version: int) -> None:
    group = next(NAMES)
    committed(wire, group, at_offset(5), at_offset(6, partition=1))
    committed(wire, group, at_offset(7), topic="orders")

    if version >= 8:
        wanted = offset_fetch.schema.RequestGroup(
            group_id=group, topics=[offset_fetch.schema.RequestGroupTopic(name="clicks", partition_indexes=[1, 9])]
        )
        everything = offset_fetch.schema.RequestGroup(group_id=group, topics=None)
        nobody = offset_fetch.schema.RequestGroup(group_id="nobody", topics=None)
        some, full, none = wire.ask(offset_fetch, version, groups=[wanted, everything, nobody]).groups
        assert [0, 0, 0] == [each.error_code for each in (some, full, none)]
        assert [] == none.topics
    else:
        topics = [offset_fetch.schema.RequestTopic(name="clicks", partition_indexes=[1, 9])]
        some = wire.ask(offset_fetch, version, group_id=group, topics=topics)
        full = wire.ask(offset_fetch, version, group_id=group, topics=None) if version >= 2 else None

    assert [("clicks", [(1, 6), (9, -1)])] == _offsets(some)
    if full is not None:
        assert [("clicks", [(0, 5), (1, 6)]), ("orders", [(0, 7)])] == _offsets(full)


def _offsets(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(each.partition_index, each.committed_offset) for each in topic.partitions])
        for topic in answer.topics
    ]


@versions(describe_groups)
def test_a_group_is_described(wire: Wire, version: int) -> None:
    group = next(NAMES)
    member = stable(wire, group, group_instance_id="i1")
    more = {"include_authorized_operations": True} if version >= 3 else {}

    found, missing = wire.ask(describe_groups, version, groups=[group, "nobody"], **more).groups

    assert ("Stable", "consumer", "range") == (found.group_state, found.protocol_type, found.protocol_data)
    (shown,) = found.members
    assert (member.member_id, "wire", "/127.0.0.1") == (shown.member_id, shown.client_id, shown.client_host)
    assert (subscription("clicks"), b"P0") == (shown.member_metadata, shown.member_assignment)
    assert (None if version < 4 else "i1") == shown.group_instance_id
    assert "Dead" == missing.group_state
    assert (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0) == missing.error_code
    if version >= 3:
        assert 3400 == found.authorized_operations


@versions(list_groups)
def test_groups_are_listed(wire: Wire, version: int) -> None:
    empty, full = next(NAMES), next(NAMES)
    committed(wire, empty, at_offset(1))
    stable(wire, full)

    listed = {group.group_id: group for group in wire.ask(list_groups, version).groups}

    assert ("", "consumer") == (listed[empty].protocol_type, listed[full].protocol_type)
    if version >= 4:
        assert ("Empty", "Stable") == (listed[empty].group_state, listed[full].group_state)
        by_state = wire.ask(list_groups, version, states_filter=["stable"]).groups
        assert full in {group.group_id for group in by_state}
        assert empty not in {group.group_id for group in by_state}
    if version >= 5:
        assert {"classic"} == {group.group_type for group in listed.values()}
        assert [] == wire.ask(list_groups, version, types_filter=["consumer"]).groups
        assert len(listed) == len(wire.ask(list_groups, version, types_filter=["Classic"]).groups)


@versions(delete_groups)
def test_groups_are_deleted(wire: Wire, version: int) -> None:
    empty, full = next(NAMES), next(NAMES)
    committed(wire, empty, at_offset(1))
    stable(wire, full)

    results = wire.ask(delete_groups, version, groups_names=[empty, full, "nobody"]).results

    assert [
        (empty, 0), (full, ErrorCode.NON_EMPTY_GROUP), ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)
    ] == [(each.group_id, each.error_code) for each in results]


def test_offsets_are_deleted_but_for_topics_that_are_read(wire: Wire) -> None:
    group = next(NAMES)
    committed(wire, group, at_offset(1))
    committed(wire, group, at_offset(2), topic="orders")
    stable(wire, group)
    schema = offset_delete.schema
    topics = [
        schema.RequestTopic(name=name, partitions=[schema.RequestPartition(partition_index=partition)])
        for name, partition in (("clicks", 0), ("orders", 0), ("orders", 5))
    ]

    answer = wire.ask(offset_delete, 0, group_id=group, topics=topics)

    assert 0 == answer.error_code
    assert [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == [
        each.error_code for topic in answer.topics for each in topic.partitions
    ]


def test_offsets_of_no_group_cannot_be_deleted(wire: Wire) -> None:
    schema = offset_delete.schema
    topics = [schema.RequestTopic(name="clicks", partitions=[schema.RequestPartition(partition_index=0)])]

    assert ErrorCode.GROUP_ID_NOT_FOUND == wire.ask(offset_delete, 0, group_id="nobody", topics=topics).error_code


@pytest.mark.parametrize(
    ("api", "fields", "error_of"),
    [
        (find_coordinator, {"coordinator_keys": ["g"]}, lambda answer: answer.coordinators[0].error_code),
        (join_group, {"group_id": "g", "member_id": "m"}, lambda answer: answer.error_code),
        (sync_group, {"group_id": "g"}, lambda answer: answer.error_code),
        (heartbeat, {"group_id": "g"}, lambda answer: answer.error_code),
        (leave_group, {"group_id": "g"}, lambda answer: answer.error_code),
        (
            offset_commit,
            {"group_id": "g", "topics": [offset_commit.schema.RequestTopic(name="clicks", partitions=[at_offset(1)])]},
            lambda answer: answer.topics[0].partitions[0].error_code,
        ),
        (
            offset_fetch,
            {"groups": [offset_fetch.schema.RequestGroup(group_id="g", topics=None)]},
            lambda answer: answer.groups[0].error_code,
        ),
        (offset_delete, {"group_id": "g"}, lambda answer: answer.error_code),
        (describe_groups, {"groups": ["g"]}, lambda answer: answer.groups[0].error_code),
        (list_groups, {}, lambda answer: answer.error_code),
        (delete_groups, {"groups_names": ["g"]}, lambda answer: answer.results[0].error_code),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else "",
)
def test_a_planned_fault_reaches_the_client_where_it_looks_for_errors(
    served: Broker, wire: Wire, api: ModuleType, fields: dict[str, Any], error_of: Any
) -> None:
    name = "".join(word.capitalize() for word in api.__name__.rpartition(".")[2].split("_"))
    served.fail_next(name, ErrorCode.NOT_COORDINATOR)

    answer = wire.ask(api, api.VERSIONS[-1], **fields)

    assert ErrorCode.NOT_COORDINATOR == error_of(answer)


@pytest.mark.parametrize(("version", "error_of"), [
    (1, lambda answer: answer.topics[0].partitions[0].error_code),
    (7, lambda answer: answer.error_code),
])
def test_a_fault_in_an_older_fetch_is_where_that_version_has_it(
    served: Broker, wire: Wire, version: int, error_of: Any
) -> None:
    served.fail_next("OffsetFetch", ErrorCode.NOT_COORDINATOR)
    topics = [offset_fetch.schema.RequestTopic(name="clicks", partition_indexes=[0])]

    assert ErrorCode.NOT_COORDINATOR == error_of(wire.ask(offset_fetch, version, group_id="g", topics=topics))


def test_a_deleted_topic_takes_its_offsets_with_it(served: Broker, wire: Wire) -> None:
    from logmark.broker.api import delete_topics

    group = next(NAMES)
    served.create_topic("short-lived")
    committed(wire, group, at_offset(5), topic="short-lived")
    committed(wire, group, at_offset(6))

    wire.ask(delete_topics, 3, topic_names=["short-lived"])

    answer = wire.ask(offset_fetch, 7, group_id=group, topics=None)
    assert [("clicks", [(0, 6)])] == _offsets(answer)


def test_groups_and_offsets_outlive_a_restart() -> None:
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.create_topic("clicks")
        wire = Wire(broker)
        member = stable(wire, "workers")
        committed(wire, "tool", at_offset(5))
        wire.close()

        broker.restart()

        wire = Wire(broker)
        assert 0 == wire.ask(
            heartbeat, 4, group_id="workers", generation_id=1, member_id=member.member_id
        ).error_code
        assert [("clicks", [(0, 5)])] == _offsets(wire.ask(offset_fetch, 7, group_id="tool", topics=None))
        wire.close()


def test_a_week_of_idleness_is_forgotten() -> None:
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.create_topic("clicks")
        wire = Wire(broker)
        committed(wire, "weekly", at_offset(5))

        broker.advance(7 * 86_400 - 1)
        committed(wire, "daily", at_offset(6))
        broker.advance(601)

        listed = {group.group_id for group in wire.ask(list_groups, 5).groups}
        assert {"daily"} == listed
        wire.close()


def test_large_journals_are_loaded_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "LOAD_AT_START_BYTES", 0)
    monkeypatch.setattr(internal_partition, "LOAD_BYTES", 200)
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.create_topic("clicks")
        wire = Wire(broker)
        for offset in range(100):
            committed(wire, "busy", at_offset(offset))
        committed(wire, "other", at_offset(7))
        wire.close()

        broker.restart()

        wire = Wire(broker)
        assert {"busy", "other"} == {group.group_id for group in wire.ask(list_groups, 5).groups}
        assert [("clicks", [(0, 99)])] == _offsets(wire.ask(offset_fetch, 7, group_id="busy", topics=None))
        wire.close()


def test_nothing_of_groups_is_made_before_somebody_asks_for_one() -> None:
    with Broker() as broker:
        wire = Wire(broker)
        assert [] == wire.ask(list_groups, 5).groups
        assert [] == wire.ask(metadata, 12, topics=None).topics

        wire.ask(find_coordinator, 2, key="g")
        (made,) = wire.ask(metadata, 12, topics=None).topics
        assert ("__consumer_offsets", 50, True) == (made.name, len(made.partitions), made.is_internal)
        wire.close()


def test_groups_and_commits_outlive_a_kill() -> None:
    with Broker({"group.initial.rebalance.delay.ms": "0"}, durability="sync", subprocess=True) as broker:
        broker.create_topic("clicks")
        wire = Wire(broker)
        member = stable(wire, "workers")
        assert [0] == committed(
            wire, "workers", at_offset(5), generation_id_or_member_epoch=1, member_id=member.member_id
        )
        wire.close()

        broker.kill()
        broker.start()

        wire = Wire(broker)
        beat = wire.ask(heartbeat, 4, group_id="workers", generation_id=1, member_id=member.member_id)
        assert 0 == beat.error_code
        assert [("clicks", [(0, 5)])] == _offsets(wire.ask(offset_fetch, 7, group_id="workers", topics=None))
        wire.close()
