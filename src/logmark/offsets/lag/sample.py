"""One sample of a whole cluster: its groups, their committed offsets, log starts and log ends.

Commits are read before log starts, and starts before ends: a group that reads while we look seems a little further
behind than it is, never ahead of the end.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from logmark.client.answers import Committed, GroupDescription, GroupListing, GroupMember
from logmark.client.client import Client
from logmark.client.errors import ClientError, RefusedByBroker
from logmark.clock import SystemClock
from logmark.names import TopicPartition
from logmark.offsets.partitions import GroupPartition, Lag, LogBounds, compute_lag

# Groups of these kinds commit offsets; share groups keep theirs elsewhere.
_WITH_OFFSETS = ("", "classic", "consumer", "streams")
_UNCOMMITTED_TOPICS_MAX = 500
_UNCOMMITTED_MAX = 10_000
_WITH_MEMBERS = ("", "classic", "consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """A group at one moment; `problem` says why its members or its commits could not be read.

    `uncommitted` are partitions of its topics that hold records, without a commit and without a reader; they are looked
    up where somebody asks (`add_uncommitted_partitions`).
    """

    group: str
    state: str
    type: str = "classic"
    members: Sequence[GroupMember] = ()
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    uncommitted: Sequence[TopicPartition] = ()
    problem: str = ""

    @property
    def is_unknown(self) -> bool:
        """Nobody knows this group."""
        return self.state == "Dead" and not self.committed and not self.problem

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """Who reads each partition that is assigned."""
        return {partition: member for member in self.members for partition in member.partitions}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions with a commit or with a reader, and those that are known to be uncommitted, in order."""
        held = (one for member in self.members for one in member.partitions)
        return sorted({*self.committed, *held, *self.uncommitted})


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Lag over several partitions; `uncommitted` have no commit, `unknown` could not be asked."""

    records: int = 0
    lost: int = 0
    partitions: int = 0
    uncommitted: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look: groups, log starts and visible ends, as of `at_ms`, when the ends were read.

    A partition in `problems` could not be asked, and the sentence says why; `notes` are about the whole look.
    """

    at_ms: int
    cluster_id: str
    groups: Mapping[str, GroupSample]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    read_committed: bool = False
    requests: int = 0
    took_ms: int = 0

    @property
    def pairs(self) -> int:
        """How many (group, partition) pairs have a commit."""
        return sum(len(group.committed) for group in self.groups.values())

    def lag(self, group: str, partition: TopicPartition) -> Lag | None:
        """Return the lag of a group in a partition, None if nothing is committed or the log cannot be reached."""
        committed = self.groups[group].committed.get(partition)
        end = self.ends.get(partition)
        if committed is None or end is None:
            return None
        return compute_lag(committed.offset, start=self.starts[partition], end=end)

    def unread(self, group: str, partition: TopicPartition) -> int | None:
        """Return the oldest unread offset that the log still holds, None if there is none or it is unknown."""
        lag = self.lag(group, partition)
        return self.ends[partition] - lag.records if lag and lag.records else None

    def total(self, group: str | None = None, topic: str | None = None) -> Total:
        """Return the lag of a group or of all, in a topic or in all."""
        records = lost = partitions = uncommitted = unknown = 0
        for one in self.groups.values() if group is None else [self.groups[group]]:
            for partition in one.partitions:
                if topic is not None and partition.topic != topic:
                    continue
                partitions += 1
                if partition not in one.committed:
                    uncommitted += 1
                    continue
                lag = self.lag(one.group, partition)
                if lag is None:
                    unknown += 1
                else:
                    records += lag.records
                    lost += lag.lost
        return Total(records=records, lost=lost, partitions=partitions, uncommitted=uncommitted, unknown=unknown)

    def group_partitions(self, group: str) -> Iterator[GroupPartition]:
        """Yield the group's partitions, by topic and partition number."""
        one = self.groups[group]
        owners = one.owners
        for partition in one.partitions:
            yield GroupPartition(
                group=group,
                partition=partition,
                committed=one.committed.get(partition),
                start=self.starts.get(partition),
                end=self.ends.get(partition),
                member=owners.get(partition),
                problem=self.problems.get(partition, ""),
            )

    def only(self, groups: Sequence[str] | None, topics: Sequence[str] | None) -> "Sample":
        """Return the part of the sample about these groups and topics; a named group that is missing is Dead."""
        found = {name: _narrowed(one, topics) for name, one in self.groups.items() if matches(name, groups)}
        for name in groups or ():
            if name not in found and not is_pattern(name):
                found[name] = GroupSample(group=name, state="Dead")
        return replace(self, groups=found)


def take_sample(
    client: Client,
    groups: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    *,
    read_committed: bool = False,
    now_ms: Callable[[], int] | None = None,
) -> Sample:
    """Sample all groups and all topics that they read, or these; names may have wildcards (`billing-*`).

    A group or a partition that cannot be reached carries its problem as text; the others are complete. A named group
    without a wildcard that does not exist has state Dead and no commits.
    """
    clock = now_ms or SystemClock().now_ms
    began_ms, requests_before = clock(), client.requests_sent
    listings, notes = _listed(client, groups)
    described = _described(client, listings)
    committed = client.try_committed_of([one.group for one in listings])
    found = {
        one.group: _group(one, described.get(one.group), committed[one.group], topics) for one in listings
    }
    partitions = sorted({partition for one in found.values() for partition in one.partitions})
    bounds = LogBounds.fetch(client, partitions, read_committed=read_committed, wait_for_leader=False)
    at_ms = clock()
    return Sample(
        at_ms=at_ms,
        cluster_id=client.cluster_id,
        groups=found,
        starts=bounds.starts,
        ends=bounds.ends,
        problems=bounds.problems,
        notes=notes,
        read_committed=read_committed,
        requests=client.requests_sent - requests_before,
        took_ms=at_ms - began_ms,
    )


def add_uncommitted_partitions(client: Client, sample: Sample) -> Sample:
    """Add what no lag counts: records in partitions of a group's topics where it has committed nothing.

    Return the sample unchanged if there are too many such partitions.
    """
    topics = sorted({one.topic for group in sample.groups.values() for one in group.committed})
    if not topics or len(topics) > _UNCOMMITTED_TOPICS_MAX:
        return sample
    cluster = client.metadata(topics)
    found: dict[str, list[TopicPartition]] = {}
    for name, group in sample.groups.items():
        known = {*group.committed, *group.owners}
        siblings = [one for topic in {one.topic for one in group.committed} for one in cluster.partitions(topic)]
        found[name] = [one for one in siblings if one not in known]
    if sum(map(len, found.values())) > _UNCOMMITTED_MAX:
        return sample
    missing = sorted({one for partitions in found.values() for one in partitions} - sample.ends.keys())
    bounds = LogBounds.fetch(client, missing, read_committed=sample.read_committed, wait_for_leader=False)
    starts, ends = {**sample.starts, **bounds.starts}, {**sample.ends, **bounds.ends}
    groups = {
        name: replace(group, uncommitted=[one for one in found[name] if one in ends and starts[one] < ends[one]])
        for name, group in sample.groups.items()
    }
    return replace(sample, groups=groups, starts=starts, ends=ends)


def _listed(client: Client, groups: Sequence[str] | None) -> tuple[list[GroupListing], list[str]]:
    try:
        listed, notes = client.try_list_groups()
    except RefusedByBroker as refused:
        if groups is None or any(is_pattern(name) for name in groups):
            raise
        # Who may not list groups may still be allowed to look at these.
        listed, notes = [], [str(refused)]
    if groups is None:
        return [one for one in listed if one.type.lower() in _WITH_OFFSETS], notes
    known = {one.group: one for one in listed}
    named: dict[str, GroupListing] = {}
    for name in groups:
        if name in known:
            named[name] = known[name]
        elif is_pattern(name):
            named |= {one.group: one for one in listed if fnmatchcase(one.group, name)}
        else:
            named[name] = GroupListing(group=name, protocol_type="", state="")
    return list(named.values()), notes


def is_pattern(name: str) -> bool:
    """Return whether the name has wildcards; names of groups and topics have none of these characters by accident."""
    return any(character in name for character in "*?[")


def matches(name: str, patterns: Collection[str] | None) -> bool:
    """Return whether the name is one of these or matches one of them; None matches all."""
    return patterns is None or any(name == one or (is_pattern(one) and fnmatchcase(name, one)) for one in patterns)


def _described(client: Client, listings: Sequence[GroupListing]) -> dict[str, GroupDescription | ClientError]:
    # Who is Empty has no members to ask for, and of a streams or share group the list says all that can be had here.
    asked = [one.group for one in listings if one.state != "Empty" and one.type.lower() in _WITH_MEMBERS]
    return client.try_describe_groups(asked, types={one.group: one.type for one in listings})


def _group(
    listing: GroupListing,
    described: GroupDescription | ClientError | None,
    committed: "Mapping[TopicPartition, Committed] | ClientError",
    topics: Sequence[str] | None,
) -> GroupSample:
    problems = [str(one) for one in (described, committed) if isinstance(one, ClientError)]
    description = described if isinstance(described, GroupDescription) else None
    members: Sequence[GroupMember] = description.members if description else ()
    found = GroupSample(
        group=listing.group,
        state=description.state if description else listing.state,
        type=(description.type if description else listing.type.lower()) or "classic",
        members=members,
        committed={} if isinstance(committed, ClientError) else committed,
        problem=" ".join(dict.fromkeys(problems)),
    )
    return _narrowed(found, topics)


def _narrowed(group: GroupSample, topics: Sequence[str] | None) -> GroupSample:
    """Return the group with only the partitions of these topics."""
    if topics is None:
        return group
    wanted = {topic: matches(topic, topics) for topic in {one.topic for one in (*group.committed, *group.owners)}}
    members = [
        replace(one, partitions=[partition for partition in one.partitions if wanted[partition.topic]])
        for one in group.members
    ]
    committed = {partition: offset for partition, offset in group.committed.items() if wanted[partition.topic]}
    return replace(group, members=members, committed=committed)
