"""Where groups stand: their members, their committed offsets, and what the logs hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.answers import EARLIEST, LATEST, Committed, GroupDescription, GroupMember
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.names import TopicPartition
from logmark.offsets.lags.lag import Lag, lag_of

_WITH_OFFSETS = ("", "classic", "consumer", "streams")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A group's place in one partition; `problem` says why the log could not be asked."""

    group: str
    partition: TopicPartition
    committed: Committed | None
    start: int | None
    end: int | None
    member: GroupMember | None = None
    problem: str = ""

    @property
    def lag(self) -> Lag | None:
        """Unknown while nothing is committed or the log cannot be asked."""
        if self.committed is None or self.start is None or self.end is None:
            return None
        return lag_of(self.committed.offset, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group, its members and its places, by topic and partition."""

    description: GroupDescription
    places: Sequence[Place]

    @property
    def lag(self) -> int:
        """The lag of all partitions together."""
        return sum(place.lag.records for place in self.places if place.lag)


def groups_with_offsets(client: Client) -> list[str]:
    """The names of all groups of the kinds that commit offsets."""
    return [listing.group for listing in client.list_groups() if listing.type.lower() in _WITH_OFFSETS]


def inspect(client: Client, groups: Sequence[str]) -> list[GroupView]:
    """These groups as they are now, in the order asked for; one that nobody knows has state Dead and no places."""
    described = client.describe_groups(groups)
    committed = client.committed_of(groups)
    owned = {group: _owners(described[group]) for group in groups}
    partitions = sorted({one for group in groups for one in (*committed[group], *owned[group])})
    bounds = Bounds.of(client, partitions)
    return [
        GroupView(
            description=described[group],
            places=[
                bounds.place(group, one, committed[group].get(one), owned[group].get(one))
                for one in sorted({*committed[group], *owned[group]})
            ],
        )
        for group in groups
    ]


def _owners(description: GroupDescription) -> dict[TopicPartition, GroupMember]:
    return {partition: member for member in description.members for partition in member.partitions}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The log starts and visible ends of partitions, or why they are not known."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    problems: Mapping[TopicPartition, str]

    @classmethod
    def of(cls, client: Client, partitions: Sequence[TopicPartition]) -> "Bounds":
        """What the leaders say now; the start is asked first, so that it is never beyond the end."""
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        problems: dict[TopicPartition, str] = {}
        for into, timestamp in ((starts, EARLIEST), (ends, LATEST)):
            wanted = dict.fromkeys((one for one in partitions if one not in problems), timestamp)
            for partition, answer in client.try_list_offsets(wanted).items():
                if isinstance(answer, RefusedByBroker):
                    problems[partition] = str(answer)
                else:
                    into[partition] = answer.offset
        return cls(starts, ends, problems)

    def place(
        self, group: str, partition: TopicPartition, committed: Committed | None, member: GroupMember | None = None
    ) -> Place:
        """A group's place between these bounds."""
        return Place(
            group=group,
            partition=partition,
            committed=committed,
            start=self.starts.get(partition),
            end=self.ends.get(partition),
            member=member,
            problem=self.problems.get(partition, ""),
        )
