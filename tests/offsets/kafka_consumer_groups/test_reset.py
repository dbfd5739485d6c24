"""What happens to a reset whose commit is refused, for a consumer may join between the look and the commit."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from logmark.client.answers import Committed, GroupDescription, OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, ClientError, CommitRefused
from logmark.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.journal.file_journal import FileJournal
from logmark.offsets.kafka_consumer_groups.command import run_tool
from logmark.offsets.kafka_consumer_groups.printer import Printer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WORDS = ["--bootstrap-server", "127.0.0.1:9092", "--reset-offsets", "--group", "g", "--topic", "t", "--to-latest"]


class FakeClient:
    """A client's answers about an empty group, whose commits fail."""

    is_read_only = False

    def __init__(self, failure: ClientError, *, leader: int = 1) -> None:
        self.failure = failure
        self.leader = leader

    def describe_consumer_groups(self, groups: Sequence[str]) -> Mapping[str, GroupDescription]:
        return {group: GroupDescription(group=group, state="Empty") for group in groups}

    def committed_of(self, groups: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, Committed]]:
        return {group: {T0: Committed(offset=1)} for group in groups}

    def metadata(self, topics: Sequence[str]) -> ClusterMetadata:
        there = PartitionMetadata(leader=self.leader, leader_epoch=0, replicas=[], in_sync=[], error=ErrorCode.NONE)
        topic = TopicMetadata(name="t", topic_id=bytes(16), is_internal=False, partitions={0: there, 1: there})
        return ClusterMetadata(
            cluster_id="c", controller=1, brokers={1: cast(Any, None)}, topics={"t": topic} if "t" in topics else {},
            errors={},
        )  # fmt: skip

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetAndTimestamp]:
        return {one: OffsetAndTimestamp(offset=9) for one in wanted}

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        raise self.failure

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("failure", "message", "state"),
    [
        (
            CommitRefused("g", dict.fromkeys((T0, T1), ErrorCode.UNKNOWN_MEMBER_ID)),
            "Failed altering group offsets for the following partitions: [t-0, t-1]",
            "refused",
        ),
        (
            CommitRefused("g", {T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}),
            "Failed altering group offsets for the following partitions: [t-1]",
            "pending",
        ),
        (
            BrokerUnreachable("Nobody answers."),
            "Timed out waiting for a node assignment. Call: alterConsumerGroupOffsets(api=FIND_COORDINATOR)",
            "pending",
        ),
    ],
)
def test_a_commit_that_fails_is_told_and_written_down(failure: ClientError, message: str, state: str) -> None:
    before = {one.id for one in FileJournal().changes()}
    out, err = io.StringIO(), io.StringIO()

    code = run_tool(
        [*WORDS, "--execute"], Printer(out, err), connect=lambda _: cast(Client, FakeClient(failure))
    )  # fmt: skip

    assert (0, f"\nError: Executing consumer group command failed due to {message}\n") == (code, out.getvalue())
    assert f"logmark: {failure}\n" == err.getvalue()
    (entry,) = [one for one in FileJournal().changes() if one.id not in before]
    assert (state, {T0: Committed(offset=1), T1: None}) == (entry.state, entry.before)


def test_partitions_without_a_leader_are_not_reset() -> None:
    out = io.StringIO()
    cluster = FakeClient(BrokerUnreachable(""), leader=-1)

    run_tool([*WORDS, "--execute"], Printer(out, io.StringIO()), connect=lambda _: cast(Client, cluster))

    assert 'failed due to The partitions "t-0,t-1" have no leader\n' in out.getvalue()
