"""What a test cluster cannot easily be: old brokers, partitions without a leader, groups that are not consumers'."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from logmark.client.answers import Committed, GroupDescription, GroupMember, OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.connection import Address
from logmark.client.errors import RefusedByBroker
from logmark.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.kafka_consumer_groups.arguments import parse
from logmark.offsets.kafka_consumer_groups.command import run_tool
from logmark.offsets.kafka_consumer_groups.description import describe_groups
from logmark.offsets.kafka_consumer_groups.failures import Failed
from logmark.offsets.kafka_consumer_groups.printer import Printer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeClient:
    """A client's answers about one group and one topic of two partitions, the second without a leader."""

    is_read_only = False

    def __init__(self, described: GroupDescription | RefusedByBroker, committed: Mapping[TopicPartition, int]) -> None:
        self.described = described
        self.commits = {one: Committed(offset=offset, leader_epoch=3) for one, offset in committed.items()}
        self.asked: list[TopicPartition] = []

    def describe_consumer_groups(self, groups: Sequence[str]) -> Mapping[str, GroupDescription | RefusedByBroker]:
        return dict.fromkeys(groups, self.described)

    def committed_of(self, groups: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, Committed]]:
        return dict.fromkeys(groups, self.commits)

    def metadata(self, topics: Sequence[str]) -> ClusterMetadata:
        partitions = {
            number: PartitionMetadata(leader=leader, leader_epoch=0, replicas=[], in_sync=[], error=ErrorCode.NONE)
            for number, leader in ((0, 1), (1, -1))
        }
        topic = TopicMetadata(name="t", topic_id=b"", is_internal=False, partitions=partitions)
        return ClusterMetadata(
            cluster_id="", controller=1, brokers={1: Address("b", 9)}, topics={"t": topic}, errors={}
        )

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetAndTimestamp]:
        self.asked += wanted
        return {one: OffsetAndTimestamp(offset=10) for one in wanted}

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def described(cluster: FakeClient, *args: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    describe_groups(cast(Client, cluster), parse(["--describe", "--group", "g", *args]), Printer(out, err))
    return out.getvalue(), err.getvalue()


def test_an_old_broker_calls_a_group_that_it_does_not_know_dead() -> None:
    dead = FakeClient(GroupDescription(group="g", state="Dead"), {})

    for view in ((), ("--state",)):
        assert ("\nError: Consumer group 'g' does not exist.\n", "") == described(dead, *view)
    out, _ = described(dead, "--members")
    assert out.startswith("\nError: Consumer group 'g' does not exist.\n\nGROUP           CONSUMER-ID ")

    out_stream = io.StringIO()
    words = ["--bootstrap-server", "127.0.0.1:9092", "--describe", "--group", "g", "--strict"]
    assert 1 == run_tool(words, Printer(out_stream, io.StringIO()), connect=lambda _: cast(Client, dead))


def test_a_partition_without_a_leader_has_no_end_and_no_lag() -> None:
    cluster = FakeClient(GroupDescription(group="g", state="Empty"), {T0: 4, T1: 5})

    out, _ = described(cluster, "--verbose")

    assert [T0] == cluster.asked
    assert [["3", "4", "10", "6"], ["3", "5", "-", "-"]] == [line.split()[3:7] for line in out.splitlines()[2:]]


def test_members_come_by_the_number_of_their_partitions_and_then_what_nobody_owns() -> None:
    members = [
        GroupMember(member_id=name, instance_id=None, client_id="c", host="/h", partitions=partitions)
        for name, partitions in (("none", []), ("one", [T0]), ("two", [TopicPartition("s", 1), TopicPartition("s", 0)]))
    ]
    cluster = FakeClient(GroupDescription(group="g", state="Stable", members=members), {T1: 5})

    out, err = described(cluster)

    assert "" == err
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [["s", "0", "two"], ["s", "1", "two"], ["t", "0", "one"], ["t", "1", "-"]] == [
        [row[1], row[2], row[6]] for row in rows
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            GroupDescription(group="g", state="Stable", protocol_type="connect"),
            "java.lang.IllegalArgumentException: GroupId g is not a consumer group (connect).",
        ),
        (
            RefusedByBroker(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no"),
            "org.apache.kafka.common.errors.GroupAuthorizationException: Group authorization failed.",
        ),
        (
            RefusedByBroker(ErrorCode.GROUP_ID_NOT_FOUND, "no", said="Group g not found."),
            "org.apache.kafka.common.errors.GroupIdNotFoundException: Group g not found.",
        ),
        (GroupDescription(group="g", state="Puzzled"), "Expected a valid consumer group state, but found 'Unknown'."),
    ],
)
def test_a_group_that_cannot_be_shown_ends_the_tool(answer: GroupDescription | RefusedByBroker, message: str) -> None:
    with pytest.raises(Failed) as failed:
        described(FakeClient(answer, {}))
    assert message == failed.value.message
