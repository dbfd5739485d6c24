"""Calls about many groups and partitions when brokers load, move, refuse or break off."""

from collections.abc import Sequence
from types import ModuleType

import pytest

from logmark.client import bulk
from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.wire.messages import Message, encode_response, is_flexible
from logmark.wire.schema import find_coordinator, list_groups, list_offsets, metadata, offset_fetch
from tests.client.scripted_server import Reply, framed, scripted, versions
from tests.harness.node import unserved_address

HIGHEST = {
    metadata: 12, list_groups: 4, find_coordinator: 4, offset_fetch: 8, list_offsets: 7,
}  # fmt: skip
KEYS = versions(*((schema.KEY, version, version) for schema, version in HIGHEST.items()))
# Brokers before Kafka 3.0 take one group in a request.
OLD = {metadata: 1, list_groups: 0, find_coordinator: 1, offset_fetch: 5, list_offsets: 2}
OLD_KEYS = versions(*((schema.KEY, version, version) for schema, version in OLD.items()))


def reply(schema: ModuleType, response: Message, highest: dict[ModuleType, int] = HIGHEST) -> Reply:
    version = highest[schema]
    tags = b"\0" if is_flexible(schema, version) else b""
    return lambda request: framed(request, tags + encode_response(schema, version, response))


def brokers(address: str, topics: Sequence[str] = ()) -> metadata.Response:
    """One broker that leads partition 0 of each topic."""
    host, _, port = address.partition(":")
    return metadata.Response(
        brokers=[metadata.ResponseBroker(node_id=1, host=host, port=int(port))],
        cluster_id="c",
        controller_id=1,
        topics=[
            metadata.ResponseTopic(
                name=name,
                partitions=[
                    metadata.ResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                ],
            )
            for name in topics
        ],
    )


class AddressedReplies:
    """Replies that need the address of the scripted broker, which is known only when it runs."""

    def __init__(self) -> None:
        self.address = ""

    def metadata(self, *topics: str, highest: dict[ModuleType, int] = HIGHEST) -> Reply:
        return lambda request: reply(metadata, brokers(self.address, topics), highest)(request)

    def coordinators(self, *groups: str, at: str = "") -> Reply:
        def answer(request: bytes) -> bytes | None:
            host, _, port = (at or self.address).partition(":")
            found = [
                find_coordinator.ResponseCoordinator(key=group, node_id=2 if at else 1, host=host, port=int(port))
                for group in groups
            ]
            return reply(find_coordinator, find_coordinator.Response(coordinators=found))(request)

        return answer

    def coordinator(self) -> Reply:
        def answer(request: bytes) -> bytes | None:
            host, _, port = self.address.partition(":")
            found = find_coordinator.Response(node_id=1, host=host, port=int(port))
            return reply(find_coordinator, found, OLD)(request)

        return answer


def groups(*names: str, error: int = 0) -> Reply:
    listed = [list_groups.ResponseGroup(group_id=name, protocol_type="consumer", group_state="Empty") for name in names]
    return reply(list_groups, list_groups.Response(error_code=error, groups=listed))


def commits(*answers: tuple[str, int, int]) -> Reply:
    """Each group with its error code and its committed offset."""
    return reply(
        offset_fetch,
        offset_fetch.Response(
            groups=[
                offset_fetch.ResponseGroup(
                    group_id=group,
                    error_code=error,
                    topics=[]
                    if error
                    else [
                        offset_fetch.ResponseGroupTopic(
                            name="t",
                            partitions=[
                                offset_fetch.ResponseGroupPartition(partition_index=0, committed_offset=offset)
                            ],
                        )
                    ],
                )
                for group, error, offset in answers
            ]
        ),
    )


def offsets(error: int, offset: int = -1) -> Reply:
    return reply(
        list_offsets,
        list_offsets.Response(
            topics=[
                list_offsets.ResponseTopic(
                    name="t",
                    partitions=[
                        list_offsets.ResponsePartition(partition_index=0, error_code=error, offset=offset, timestamp=-1)
                    ],
                )
            ]
        ),
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_PAUSE_S", 0.001)


LOADING, MOVED = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
PARTITION = TopicPartition("t", 0)


def test_a_broker_that_still_loads_is_asked_again() -> None:
    replies = AddressedReplies()
    with (
        scripted([KEYS, replies.metadata(), groups("a", error=LOADING), groups("a", "b")]) as replies.address,
        Client(replies.address) as client,
    ):
        listed, notes = client.try_list_groups()

    assert (["a", "b"], []) == ([one.group for one in listed], notes)


def test_a_broker_that_loads_for_long_is_said_and_what_it_has_is_shown() -> None:
    replies = AddressedReplies()
    with (
        scripted([KEYS, replies.metadata(), *[groups("a", error=LOADING)] * 3]) as replies.address,
        Client(replies.address) as client,
    ):
        listed, notes = client.try_list_groups()

    assert ["a"] == [one.group for one in listed]
    assert ["Broker 1 is still loading groups (COORDINATOR_LOAD_IN_PROGRESS). Some may be missing here."] == notes


def test_a_client_that_may_not_list_groups_gets_an_error() -> None:
    replies = AddressedReplies()
    refused = groups(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    script = [KEYS, replies.metadata(), refused]
    with (
        scripted(script) as replies.address,
        Client(replies.address) as client,
        pytest.raises(RefusedByBroker, match="cannot be listed"),
    ):
        client.try_list_groups()


def test_a_group_that_may_not_be_read_has_an_error_instead_of_offsets() -> None:
    replies = AddressedReplies()
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    script = [
        KEYS, replies.metadata(), replies.coordinators("a", "b"), commits(("a", 0, 5), ("b", denied, 0)),
    ]  # fmt: skip
    with scripted(script) as replies.address, Client(replies.address) as client:
        client.metadata([])
        found = client.try_committed_of(["a", "b"])

    assert {PARTITION: Committed(offset=5)} == found["a"]
    assert isinstance(found["b"], RefusedByBroker) and "you are not allowed to use it" in str(found["b"])


def test_a_group_whose_coordinator_moved_is_asked_again_and_the_others_are_not() -> None:
    replies = AddressedReplies()
    script = [
        KEYS, replies.metadata(), replies.coordinators("a", "b"), commits(("a", 0, 5), ("b", MOVED, 0)),
        replies.coordinators("b"), commits(("b", 0, 7)),
    ]  # fmt: skip
    with scripted(script) as replies.address, Client(replies.address) as client:
        client.metadata([])
        found = client.try_committed_of(["a", "b"])

    assert {"a": {PARTITION: Committed(offset=5)}, "b": {PARTITION: Committed(offset=7)}} == found


def test_a_group_whose_coordinator_is_gone_is_asked_at_the_next_one() -> None:
    replies = AddressedReplies()
    with unserved_address() as gone:
        script = [
            KEYS,
            replies.metadata(),
            replies.coordinators("a", at=gone),
            replies.coordinators("a"),
            commits(("a", 0, 5)),
        ]
        with scripted(script) as replies.address, Client(replies.address, patience_s=0) as client:
            client.metadata([])
            assert {"a": {PARTITION: Committed(offset=5)}} == client.try_committed_of(["a"])


def test_what_was_on_its_way_when_a_connection_broke_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "GROUPS_MAX", 1)
    replies = AddressedReplies()
    first = [KEYS, replies.metadata(), replies.coordinators("a", "b", "c"), commits(("a", 0, 1)), lambda _: None]
    second = [KEYS, commits(("b", 0, 2)), commits(("c", 0, 3))]
    with scripted(first, second) as replies.address, Client(replies.address) as client:
        client.metadata([])
        found = client.try_committed_of(["a", "b", "c"])

    assert {name: {PARTITION: Committed(offset=offset)} for name, offset in (("a", 1), ("b", 2), ("c", 3))} == found


def test_an_old_broker_is_asked_for_one_group_at_a_time() -> None:
    def old_commits(offset: int) -> Reply:
        topic = offset_fetch.ResponseTopic(
            name="t", partitions=[offset_fetch.ResponsePartition(partition_index=0, committed_offset=offset)]
        )
        return reply(offset_fetch, offset_fetch.Response(topics=[topic]), OLD)

    replies = AddressedReplies()
    script = [
        OLD_KEYS, replies.metadata(highest=OLD), replies.coordinator(), replies.coordinator(), old_commits(5),
        old_commits(7),
    ]  # fmt: skip
    with scripted(script) as replies.address, Client(replies.address) as client:
        client.metadata([])
        found = client.try_committed_of(["a", "b"])

    assert {"a": {PARTITION: Committed(offset=5)}, "b": {PARTITION: Committed(offset=7)}} == found


def test_a_leader_that_moved_is_looked_up_again() -> None:
    replies = AddressedReplies()
    script = [
        KEYS, replies.metadata("t"), offsets(ErrorCode.NOT_LEADER_OR_FOLLOWER), replies.metadata("t"), offsets(0, 42),
    ]  # fmt: skip
    with scripted(script) as replies.address, Client(replies.address) as client:
        assert {PARTITION: (42, -1)} == client.try_offsets({PARTITION: -1})


def test_a_topic_that_may_not_be_seen_is_not_asked_for_again() -> None:
    replies = AddressedReplies()
    script = [KEYS, replies.metadata("t"), offsets(ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    with scripted(script) as replies.address, Client(replies.address) as client:
        found = client.try_offsets({PARTITION: -1})[PARTITION]

    assert isinstance(found, RefusedByBroker) and "you are not allowed to use this topic" in str(found)


def test_every_request_is_counted() -> None:
    replies = AddressedReplies()
    with (
        scripted([KEYS, replies.metadata("t"), offsets(0, 1), offsets(0, 1)]) as replies.address,
        Client(replies.address) as client,
    ):
        client.try_offsets({PARTITION: -2})
        client.try_offsets({PARTITION: -1})
        assert 3 == client.requests_sent
