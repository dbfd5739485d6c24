"""Our groups and Apache Kafka's answer the same requests alike, whole answers compared."""

import re
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from logmark.broker.api import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from logmark.wire.messages import Message
from tests.coordination.coordinator_driver import subscription
from tests.coordination.wire import Wire
from tests.harness.brokers import BrokerUnderTest

pytestmark = pytest.mark.kafka

# What differs by nature: how long, and messages for people.
MASKED = {"throttle_time_ms", "error_message"}
ORDERED_BY = ("partition_index", "group_id", "name", "member_id")
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RANGE = [join_group.schema.RequestProtocol(name="range", metadata=subscription("clicks"))]
BOTH = [*RANGE, join_group.schema.RequestProtocol(name="sticky", metadata=subscription("clicks"))]


class Talk:
    """What was asked and answered, with random ids named in the order of their appearance."""

    def __init__(self, broker: BrokerUnderTest, topic: str) -> None:
        self._broker = broker
        self._wires: list[Wire] = []
        self._names: dict[str, str] = {}
        self.topic = topic
        self.group = f"talk-{uuid.uuid4().hex[:8]}"
        self.transcript: list[tuple[str, Any]] = []
        self._names[self.group] = "<group>"
        self.wire = self.connect()

    def connect(self) -> Wire:
        wire = Wire(self._broker)  # type: ignore[arg-type]
        self._wires.append(wire)
        return wire

    def ask(self, api: ModuleType, version: int, *, wire: Wire | None = None, **fields: Any) -> Any:
        answer = (wire or self.wire).ask(api, version, **fields)
        return self.note(api, version, answer)

    def note(self, api: ModuleType, version: int, answer: Any) -> Any:
        name = api.__name__.rpartition(".")[2]
        self.transcript.append((f"{name} v{version}", self._plain(answer)))
        return answer

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Message):
            return {
                field.name: self._plain(getattr(value, field.name))
                for field in value.FIELDS
                if field.name not in MASKED
            }
        if isinstance(value, list):
            plain = [self._plain(each) for each in value]
            # The order in which partitions and groups are answered means nothing to any client.
            return sorted(plain, key=_key) if _is_keyed(plain) else plain
        if isinstance(value, str):
            for part in RANDOM.finditer(value):
                self._names.setdefault(part[0], f"<id {len(self._names)}>")
            for text, named in self._names.items():
                value = value.replace(text, named)
        return value

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    # Shortcuts

    def join(self, version: int = 9, *, knows: bool = False, **more: Any) -> Any:
        fields = {"group_id": self.group, "session_timeout_ms": 60_000, "protocol_type": "consumer", "protocols": RANGE}
        if version >= 1:
            fields["rebalance_timeout_ms"] = 30_000
        answer = self.ask(join_group, version, **(fields | more))
        if answer.error_code == 79 and not knows:
            answer = self.ask(join_group, version, **(fields | more | {"member_id": answer.member_id}))
        return answer

    def sync(self, member: Any, version: int = 3, *, assigns: bool = True, **more: Any) -> Any:
        fields: dict[str, Any] = {
            "group_id": self.group, "generation_id": member.generation_id, "member_id": member.member_id
        }
        if assigns:
            fields["assignments"] = [
                sync_group.schema.RequestAssignment(member_id=member.member_id, assignment=b"mine")
            ]
        return self.ask(sync_group, version, **(fields | more))

    def beat(self, member: Any, **more: Any) -> Any:
        fields = {"group_id": self.group, "generation_id": member.generation_id, "member_id": member.member_id}
        return self.ask(heartbeat, 4, **(fields | more))

    def commit(
        self, *offsets: tuple[int, int, str | None], version: int = 8, topic: str | None = None, **more: Any
    ) -> Any:
        partitions = [
            offset_commit.schema.RequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
            for partition, offset, metadata in offsets
        ]
        topics = [offset_commit.schema.RequestTopic(name=topic or self.topic, partitions=partitions)]
        return self.ask(offset_commit, version, **({"group_id": self.group, "topics": topics} | more))

    def fetch(self, version: int = 7, group: str | None = None, partitions: list[int] | None = None) -> Any:
        schema, group_id = offset_fetch.schema, group or self.group
        make = schema.RequestGroupTopic if version >= 8 else schema.RequestTopic
        topics = None if partitions is None else [make(name=self.topic, partition_indexes=partitions)]
        if version >= 8:
            return self.ask(offset_fetch, version, groups=[schema.RequestGroup(group_id=group_id, topics=topics)])
        return self.ask(offset_fetch, version, group_id=group_id, topics=topics)

    def describe(self, version: int = 6, *groups: str) -> Any:
        return self.ask(describe_groups, version, groups=list(groups) or [self.group])

    def leave(self, *who: tuple[str, str | None], version: int = 5) -> Any:
        make = leave_group.schema.RequestMember
        members = [make(member_id=each, group_instance_id=instance) for each, instance in who]
        return self.ask(leave_group, version, group_id=self.group, members=members)

    def delete(self, *groups: str) -> Any:
        return self.ask(delete_groups, 2, groups_names=list(groups) or [self.group])

    def delete_offsets(self, *partitions: int, topic: str | None = None, group: str | None = None) -> Any:
        schema = offset_delete.schema
        indexes = [schema.RequestPartition(partition_index=partition) for partition in partitions]
        topics = [schema.RequestTopic(name=topic or self.topic, partitions=indexes)]
        return self.ask(offset_delete, 0, group_id=self.group if group is None else group, topics=topics)


def _is_keyed(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], dict) and any(name in values[0] for name in ORDERED_BY)


def _key(value: dict[str, Any]) -> list[str]:
    return [str(value.get(name)) for name in ORDERED_BY]


# Where a talk begins with a commit: a group with nothing to remember may be forgotten between any two requests.
TALKS: list[Callable[[Talk], None]] = []


def talk(speak: Callable[[Talk], None]) -> Callable[[Talk], None]:
    TALKS.append(speak)
    return speak


@talk
def joins_that_cannot_be(at: Talk) -> None:
    for version in (0, 3, 5, 9):
        at.join(version, group_id="")
        at.join(version, session_timeout_ms=99)
        at.join(version, session_timeout_ms=1_800_001)
        at.join(version, member_id="stranger")
        at.join(version, protocols=[])
        at.join(version, protocol_type="")
    at.commit((0, 1, ""))
    at.join(0)
    at.join(9, protocol_type="connect", knows=True)
    at.join(9, protocols=[join_group.schema.RequestProtocol(name="other", metadata=b"")], knows=True)


@talk
def joins_in_every_version(at: Talk) -> None:
    for version in join_group.VERSIONS:
        at.group = at.group + "x"
        at._names[at.group] = f"<group {version}>"
        at.commit((0, 1, ""))
        member = at.join(version)
        at.sync(member, assigns=True)
        at.beat(member)
        at.describe(5)


@talk
def syncs_and_heartbeats_out_of_turn(at: Talk) -> None:
    at.commit((0, 1, ""))
    member = at.join()
    at.sync(member, group_id="")
    at.sync(member, group_id="nobody")
    at.sync(member, member_id="stranger")
    at.sync(member, generation_id=7)
    at.sync(member, group_instance_id="i")
    at.sync(member, 5)
    at.sync(member, 5, protocol_type="consumer", protocol_name="other")
    at.sync(member, 5, protocol_type="other", protocol_name="range")
    at.beat(member)
    at.commit((0, 5, ""), generation_id_or_member_epoch=1, member_id=member.member_id)
    at.describe()
    at.sync(member, 5, protocol_type="consumer", protocol_name="range")
    at.sync(member, assigns=False)
    at.describe()
    at.beat(member, group_id="")
    at.beat(member, group_id="nobody")
    at.beat(member, generation_id=7)
    at.beat(member, member_id="stranger", generation_id=7)
    at.beat(member, group_instance_id="i")
    at.beat(member)


@talk
def a_second_member_comes_and_goes(at: Talk) -> None:
    at.commit((0, 1, ""))
    first = at.join()
    at.sync(first)
    other = at.connect()
    fields = {
        "group_id": at.group, "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer", "protocols": BOTH,
    }
    asked = at.ask(join_group, 9, wire=other, **fields)
    at.beat(first)
    other.send(join_group, 9, **fields, member_id=asked.member_id)
    while at.beat(first).error_code == 0:
        at.transcript.pop()  # the other connection's join has not come through yet
    at.describe()
    at.sync(first)
    again = at.join(member_id=first.member_id)
    second = at.note(join_group, 9, other.receive(join_group, 9))
    at.commit((0, 5, ""), generation_id_or_member_epoch=2, member_id=second.member_id)
    at.sync(again, assigns=True)
    at.sync(second, assigns=False)
    at.join(member_id=second.member_id, protocols=BOTH)
    at.beat(second)
    at.leave((second.member_id, None))
    at.beat(again)
    third = at.join(member_id=first.member_id)
    at.sync(third)
    at.leave((first.member_id, None), ("stranger", None), ("", "i"), ("", None))
    at.describe()
    at.beat(third)
    at.sync(third)


@talk
def leaves(at: Talk) -> None:
    at.commit((0, 1, ""))
    at.leave(("m", None))
    at.ask(leave_group, 2, group_id=at.group, member_id="m")
    at.ask(leave_group, 2, group_id="", member_id="m")
    at.ask(leave_group, 5, group_id="", members=[])
    asked = at.join(knows=True)
    at.leave((asked.member_id, None))
    at.join(member_id=asked.member_id)
    member = at.join()
    at.sync(member)
    at.ask(leave_group, 1, group_id=at.group, member_id=member.member_id)
    at.ask(leave_group, 1, group_id=at.group, member_id=member.member_id)
    at.describe(4)


@talk
def static_members(at: Talk) -> None:
    at.commit((0, 1, ""))
    first = at.join(group_instance_id="i1", protocols=BOTH)
    at.sync(first, group_instance_id="i1")
    second = at.join(8, group_instance_id="i1", protocols=BOTH)
    at.sync(second, assigns=False, group_instance_id="i1")
    third = at.join(9, group_instance_id="i1", protocols=BOTH)
    at.sync(third, assigns=False, group_instance_id="i1")
    at.beat(first, group_instance_id="i1")
    at.beat(third, group_instance_id="i1")
    at.beat(third, group_instance_id="i9")
    at.beat(first)
    at.sync(second, group_instance_id="i1")
    at.join(member_id=second.member_id, group_instance_id="i1", protocols=BOTH)
    at.join(member_id=third.member_id, group_instance_id="i9", protocols=BOTH)
    at.commit((0, 5, ""), generation_id_or_member_epoch=1, member_id=second.member_id, group_instance_id="i1")
    at.commit((0, 5, ""), generation_id_or_member_epoch=1, member_id=third.member_id, group_instance_id="i1")
    at.describe()
    at.leave((second.member_id, "i1"), ("", "i9"), (third.member_id, "i9"))
    changed = at.join(group_instance_id="i1", protocols=BOTH[::-1])
    at.sync(changed, group_instance_id="i1")
    at.describe()
    at.leave(("", "i1"))
    at.describe()


@talk
def commits(at: Talk) -> None:
    for version in offset_commit.VERSIONS:
        at.commit((0, version, "note"), (1, version, None), (9, 1, ""), version=version)
        at.commit((0, 1, ""), version=version, topic="nowhere")
        at.commit((0, 1, "x" * 4097), (1, version + 100, "x" * 4096), version=version)
        at.commit((0, 1, ""), version=version, group_id="never", generation_id_or_member_epoch=3, member_id="m")
        at.commit((0, 1, ""), version=version, generation_id_or_member_epoch=3, member_id="m")
        at.commit((0, 1, ""), version=version, member_id="m")
    at.fetch()
    member = at.join()
    at.commit((0, 1, ""))
    at.sync(member)
    at.commit((0, 1, ""))
    at.commit((0, 1, ""), member_id=member.member_id)
    at.commit((0, 1, ""), generation_id_or_member_epoch=1)
    at.commit((0, 1, ""), generation_id_or_member_epoch=2, member_id=member.member_id)
    at.commit((0, 1, ""), generation_id_or_member_epoch=1, member_id="stranger")
    at.commit((0, 77, "mine"), generation_id_or_member_epoch=1, member_id=member.member_id)
    at.fetch()


@talk
def fetches(at: Talk) -> None:
    at.commit((0, 5, "note"), (1, 6, ""))
    for version in offset_fetch.VERSIONS:
        at.fetch(version, partitions=[0, 1, 9])
        at.fetch(version, group="nobody", partitions=[0])
        if version >= 2:
            at.fetch(version)
            at.fetch(version, group="nobody")


@talk
def descriptions_and_lists(at: Talk) -> None:
    for version in describe_groups.VERSIONS:
        at.describe(version, "nobody")
        at.describe(version, "")
        if version >= 3:
            at.ask(describe_groups, version, groups=["nobody"], include_authorized_operations=True)
    at.commit((0, 5, "note"))
    for version in describe_groups.VERSIONS:
        at.describe(version)
    at.ask(describe_groups, 6, groups=[at.group], include_authorized_operations=True)
    at.join()
    at.describe()
    for fields in ({}, {"states_filter": ["CompletingRebalance"]}, {"states_filter": ["completingrebalance"]},
                   {"states_filter": ["Empty"]}, {"states_filter": ["nonsense"]}):
        _listed(at, 4, **fields)
    for fields in ({"types_filter": ["classic"]}, {"types_filter": ["CLASSIC"]}, {"types_filter": ["consumer"]}):
        _listed(at, 5, **fields)


def _listed(at: Talk, version: int, **fields: Any) -> None:
    answer = at.wire.ask(list_groups, version, **fields)
    answer.groups = [group for group in answer.groups if group.group_id == at.group]
    at.note(list_groups, version, answer)


@talk
def deletions(at: Talk) -> None:
    at.delete("nobody", "")
    at.delete_offsets(0, group="nobody")
    at.delete_offsets(0, group="")
    at.commit((0, 5, ""), (1, 6, ""))
    at.delete_offsets(0, 9)
    at.delete_offsets(0, topic="nowhere")
    at.commit((0, 7, ""))  # or the group, without an offset and a member, may be forgotten before it is deleted
    at.fetch()
    member = at.join()
    at.delete()
    at.delete_offsets(1)
    at.sync(member)
    at.delete()
    at.delete_offsets(1)
    at.leave((member.member_id, None))
    at.delete(at.group, at.group)
    at.describe()
    at.fetch()
    at.group += "c"
    at._names[at.group] = "<connect>"
    at.commit((0, 1, ""))
    member = at.join(protocol_type="connect")
    at.sync(member)
    at.delete_offsets(0)


@pytest.mark.parametrize("speak", TALKS, ids=lambda speak: speak.__name__)
def test_both_brokers_answer_alike(
    speak: Callable[[Talk], None], our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> None:
    transcripts = []
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    for broker in (apache_kafka, our_broker):
        at = Talk(broker, broker.create_topic(name, partitions=2))
        at._names[at.topic] = "<topic>"
        try:
            speak(at)
        finally:
            at.close()
        transcripts.append(at.transcript)

    kafkas, ours = transcripts
    assert kafkas == ours
