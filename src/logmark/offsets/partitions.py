"""A consumer group in its partitions: committed offsets between log start and log end, and the lag that follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import EARLIEST, LATEST, Committed, GroupDescription, GroupMember, OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import UserError
from logmark.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Records that a group can still read and has not read, and records that expired before it read them."""

    records: int
    lost: int


def compute_lag(committed: int, *, start: int, end: int) -> Lag:
    """Return the lag: log end - max(committed, log start), never negative; what lies below the log start is lost."""
    return Lag(records=max(0, end - max(committed, start)), lost=max(0, min(start, end) - committed))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """A group in one topic-partition; `problem` says why the partition's leader could not be asked."""

    group: str
    partition: TopicPartition
    committed: Committed | None
    start: int | None
    end: int | None
    member: GroupMember | None = None
    problem: str = ""

    @property
    def lag(self) -> Lag | None:
        """The lag; None while nothing is committed or the log's bounds are unknown."""
        if self.committed is None or self.start is None or self.end is None:
            return None
        return compute_lag(self.committed.offset, start=self.start, end=self.end)

    @property
    def last_processed(self) -> int | None:
        """The offset before the committed one; None while nothing was processed."""
        return self.committed.offset - 1 if self.committed and self.committed.offset else None


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Log start offsets and visible log end offsets of partitions, or why they are unknown."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    problems: Mapping[TopicPartition, str]

    @classmethod
    def fetch(
        cls,
        client: Client,
        partitions: Sequence[TopicPartition],
        *,
        read_committed: bool = False,
        wait_for_leader: bool = True,
    ) -> "LogBounds":
        """Ask the leaders for log starts, then for log ends (last stable offsets if `read_committed`).

        The starts come first, so that a start never lies behind its end. Without `wait_for_leader` a partition that has
        no leader at this moment is a problem at once.
        """
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        problems: dict[TopicPartition, str] = {}
        for into, timestamp in ((starts, EARLIEST), (ends, LATEST)):
            wanted = dict.fromkeys((one for one in partitions if one not in problems), timestamp)
            answers: Mapping[TopicPartition, OffsetAndTimestamp | tuple[int, int] | RefusedByBroker] = (
                client.try_list_offsets(wanted, read_committed=read_committed)
                if wait_for_leader
                else client.try_offsets(wanted, read_committed=read_committed)
            )
            for partition, answer in answers.items():
                if isinstance(answer, RefusedByBroker):
                    problems[partition] = str(answer)
                else:
                    into[partition] = answer[0] if isinstance(answer, tuple) else answer.offset
        for partition in problems:
            starts.pop(partition, None)
        return cls(starts, ends, problems)

    def check(self, note: str = "") -> "LogBounds":
        """Return the bounds; raises UserError, with a note, if those of a partition are unknown."""
        for problem in self.problems.values():
            raise UserError(f"{problem}{note}")
        return self

    def group_partition(
        self, group: str, partition: TopicPartition, committed: Committed | None, member: GroupMember | None = None
    ) -> GroupPartition:
        """Return a group's partition between these bounds."""
        return GroupPartition(
            group=group,
            partition=partition,
            committed=committed,
            start=self.starts.get(partition),
            end=self.ends.get(partition),
            member=member,
            problem=self.problems.get(partition, ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group, its members and its partitions, by topic and partition number."""

    description: GroupDescription
    partitions: Sequence[GroupPartition]

    @property
    def lag(self) -> int:
        """The lag of all partitions together, in records."""
        return sum(one.lag.records for one in self.partitions if one.lag)


def inspect_groups(client: Client, groups: Sequence[str]) -> list[GroupView]:
    """Return these groups in the order asked for; an unknown group has state Dead and no partitions."""
    described = client.describe_groups(groups)
    committed = client.committed_of(groups)
    owners = {
        group: {partition: member for member in described[group].members for partition in member.partitions}
        for group in groups
    }
    bounds = LogBounds.fetch(
        client, sorted({one for group in groups for one in (*committed[group], *owners[group])})
    )  # fmt: skip
    return [
        GroupView(
            description=described[group],
            partitions=[
                bounds.group_partition(group, one, committed[group].get(one), owners[group].get(one))
                for one in sorted({*committed[group], *owners[group]})
            ],
        )
        for group in groups
    ]


def nest_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition number, as JSON has them: {"clicks": {"0": 42}}."""
    found: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found
