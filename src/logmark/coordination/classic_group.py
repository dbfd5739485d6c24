"""A classic group: its members, its generation and the vote on how to assign."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from logmark.coordination.commands import CommitOffsets, JoinedMember, Protocol
from logmark.coordination.facts import GroupRecorded, MemberRecorded
from logmark.coordination.group import GroupDescription, GroupListing, GroupState, MemberDescription
from logmark.coordination.outcome import Ticket
from logmark.coordination.subscription import CONSUMER, topics_of
from logmark.errors import ErrorCode, Malformed, Refused

NEXT = {
    GroupState.EMPTY: {GroupState.PREPARING, GroupState.DEAD},
    GroupState.PREPARING: {GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD},
    GroupState.COMPLETING: {GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD},
    GroupState.STABLE: {GroupState.PREPARING, GroupState.DEAD},
    GroupState.DEAD: set[GroupState](),
}


# What a group, a member and an id that was handed out take in memory, about, without what the member sends.
GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES = 1500, 1500, 500


# Every protocol is compared with those of the other members: thousands of empty ones would take as long as large ones.
PROTOCOL_BYTES = 100


def protocols_bytes(protocols: Sequence[Protocol]) -> int:
    """Return how many bytes a member's protocols take, about."""
    return sum(PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member, with the tickets it waits on."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # it does not know its generation yet, so it cannot send heartbeats
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its group: then it needs no heartbeat."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def protocol_names(self) -> set[str]:
        """The protocols that it supports."""
        return {each.name for each in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """Return what this member says under one protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the first of this member's protocols that everybody supports."""
        return next(each.name for each in self.protocols if each.name in candidates)


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """One group of the classic protocol. What the log keeps of it changes in `become` alone."""

    id: str
    state: GroupState = GroupState.EMPTY
    state_changed_at_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    is_recorded: bool = False  # without a record of its own it exists as long as it has offsets
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)  # instance id to member id
    pending: set[str] = field(default_factory=set)  # ids handed out, not yet joined with
    unsynced: set[str] = field(default_factory=set)  # joined this generation, not yet synced
    subscribed_topics: frozenset[str] | None = None  # None: not known
    is_first_rebalance: bool = False
    has_grown: bool = False  # somebody joined during the delay of the first rebalance
    delay_left_ms: int = 0
    delay_ms: int = 0
    # Sums over the members, kept because a join must not look at all the others.
    joined_count: int = 0  # how many wait for the next generation
    protocols_bytes: int = 0
    assignments_bytes: int = 0
    supporters: Counter[str] = field(default_factory=Counter)  # how many support a protocol

    def become(self, fact: GroupRecorded) -> None:
        """Make a recorded generation true; members that are already here keep what only they know."""
        known = self.members
        self.members = {each.id: known.get(each.id) or _member(fact, each) for each in fact.members}
        for recorded in fact.members:
            self.members[recorded.id].assignment = recorded.assignment
        self.instances = {each.instance_id: each.id for each in fact.members if each.instance_id is not None}
        self.generation = fact.generation
        self.protocol_type = fact.protocol_type
        self.protocol = fact.protocol
        self.leader = fact.leader if fact.leader in self.members else next(iter(self.members), None)
        self.state = GroupState.STABLE if fact.members else GroupState.EMPTY
        self.state_changed_at_ms = fact.state_changed_at_ms
        self.is_recorded = True
        self.is_first_rebalance = self.has_grown = False
        self.subscribed_topics = self._topics()
        self._sum_up()

    def _sum_up(self) -> None:
        members = self.members.values()
        self.joined_count = sum(member.joining is not None for member in members)
        self.protocols_bytes = sum(protocols_bytes(member.protocols) for member in members)
        self.assignments_bytes = sum(len(member.assignment) for member in members)
        self.supporters = Counter(name for member in members for name in member.protocol_names)

    @property
    def memory_bytes(self) -> int:
        """How much memory the group takes without its offsets, about."""
        counted = GROUP_BYTES + MEMBER_BYTES * len(self.members) + PENDING_BYTES * len(self.pending)
        return counted + self.protocols_bytes + self.assignments_bytes

    @property
    def is_idle(self) -> bool:
        """Whether it has no members, and nobody was given an id to join with."""
        return self.state is GroupState.EMPTY and not self.pending

    def record(self, *, now_ms: int, assignments: dict[str, bytes] | None = None) -> GroupRecorded:
        """Return the fact of this generation, with these assignments or those that members have."""
        return GroupRecorded(
            group=self.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            state_changed_at_ms=now_ms,
            members=tuple(
                MemberRecorded(
                    id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment if assignments is None else assignments.get(member.id, b""),
                )
                for member in self.members.values()
            ),
        )

    def move_to(self, state: GroupState, *, now_ms: int) -> None:
        """Take one of the steps that NEXT allows."""
        assert state in NEXT[self.state], f"group {self.id} cannot go from {self.state} to {state}"
        self.is_first_rebalance = state is GroupState.PREPARING and self.state is GroupState.EMPTY
        self.state = state
        self.state_changed_at_ms = now_ms

    # Members

    def add(self, member: Member, *, protocol_type: str) -> None:
        """Add a member; the first one leads the group and gives it its type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        self.members[member.id] = member
        self.pending.discard(member.id)
        self.joined_count += member.joining is not None
        self.assignments_bytes += len(member.assignment)
        self._count_protocols(member, 1)

    def _count_protocols(self, member: Member, sign: int) -> None:
        self.protocols_bytes += sign * protocols_bytes(member.protocols)
        for name in member.protocol_names:
            self.supporters[name] += sign
            if not self.supporters[name]:
                del self.supporters[name]

    def set_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        """Take what a member says about itself now."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def set_joining(self, member: Member, ticket: Ticket | None) -> None:
        """Note that a member waits for the next generation, or does not any more."""
        self.joined_count += (ticket is not None) - (member.joining is not None)
        member.joining = ticket

    def clear_assignments(self) -> None:
        """Take all assignments away: the leader has yet to assign."""
        for member in self.members.values():
            member.assignment = b""
        self.assignments_bytes = 0

    def remove(self, member_id: str) -> None:
        """Remove a member, or an id that was handed out."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.joined_count -= member.joining is not None
            self.assignments_bytes -= len(member.assignment)
            self._count_protocols(member, -1)
            if member.instance_id is not None:
                self.instances.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member that came back its new id; it keeps everything else."""
        member = self.members.pop(old_id)
        member.id = new_id
        member.is_new = False
        self.members[new_id] = member
        assert member.instance_id is not None
        self.instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member of an id; raise Refused if it is unknown, or fenced by another of the same instance."""
        if instance_id is not None:
            owner = self.instances.get(instance_id)
            if owner is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def has_everybody_joined(self) -> bool:
        """Whether nobody is missing for the next generation."""
        return not self.pending and self.joined_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Let a member lead that has joined; return False if nobody has."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is None:
            joined = next((member.id for member in self.members.values() if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def as_leader_sees(self) -> tuple[JoinedMember, ...]:
        """Return every member with what it says under the chosen protocol."""
        return tuple(
            JoinedMember(member.id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # The vote

    def accepts(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Return whether a member of this type and with these protocols can work with those who are here."""
        names = {each.name for each in protocols}
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(self.supporters[name] == count for name in names)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that everybody supports."""
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def start_generation(self, *, now_ms: int) -> None:
        """Begin the next generation with the members that are here; the leader has yet to assign."""
        self.generation += 1
        self.protocol = self.select_protocol()
        self.subscribed_topics = self._topics()
        self.move_to(GroupState.COMPLETING, now_ms=now_ms)
        self.unsynced = set(self.members)

    def _candidates(self) -> set[str]:
        return {name for name, count in self.supporters.items() if count == len(self.members)}

    # Committed offsets

    def check_committer(self, command: CommitOffsets) -> None:
        """Raise Refused if a commit comes from outside the group's present generation."""
        if command.generation < 0 and self.state is GroupState.EMPTY:
            return  # a tool, or a consumer that assigns its partitions itself
        if command.generation < 0 and not command.member_id and command.instance_id is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        self.check_member(command.member_id, command.instance_id)
        if command.generation != self.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        if self.state is GroupState.COMPLETING:
            # The member knows the generation but not yet what it owns in it.
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_deletion(self) -> None:
        """Raise Refused if no offset may be deleted now: nobody can tell what such members read."""
        if self.state is not GroupState.EMPTY and not self.is_of_consumers:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)

    def retention_start_ms(self, committed_at_ms: int) -> int | None:
        """Return from when on the retention of an offset counts; None if offsets of the group do not expire now.

        For an empty group that had members, that is when the last one left; for a group that never had any, the
        commit; for consumers at work, the commit. Other groups with members keep their offsets.
        """
        if self.protocol_type is None:
            return committed_at_ms
        if self.state is GroupState.EMPTY:
            return committed_at_ms if self.state_changed_at_ms == -1 else self.state_changed_at_ms
        if self.state is GroupState.STABLE and self.is_of_consumers and self.subscribed_topics is not None:
            return committed_at_ms
        return None

    # What tools see

    def list(self) -> GroupListing:
        """Return what a list of groups shows."""
        return GroupListing(id=self.id, protocol_type=self.protocol_type or "", state=self.state)

    def describe(self) -> GroupDescription:
        """Return what tools see of it."""
        is_stable = self.state is GroupState.STABLE
        return GroupDescription(
            id=self.id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=(self.protocol or "") if is_stable else "",
            members=tuple(
                MemberDescription(
                    id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(self.protocol) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ),
        )

    # Topics

    @property
    def is_of_consumers(self) -> bool:
        """Whether its members speak the consumers' own protocol, whose subscriptions we can read."""
        return self.protocol_type == CONSUMER

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member reads this topic, or consumers are here and we cannot tell what they read."""
        if self.subscribed_topics is None:
            return self.is_of_consumers
        return topic in self.subscribed_topics

    def _topics(self) -> frozenset[str] | None:
        if not self.is_of_consumers:
            return None
        if self.members and self.protocol is None:
            return None
        # The members of most groups say the same.
        subscriptions = {member.metadata(self.protocol) for member in self.members.values()}
        try:
            return frozenset().union(*map(topics_of, subscriptions))
        except Malformed:
            return None


def _member(fact: GroupRecorded, recorded: MemberRecorded) -> Member:
    return Member(
        id=recorded.id,
        instance_id=recorded.instance_id,
        client_id=recorded.client_id,
        client_host=recorded.client_host,
        session_timeout_ms=recorded.session_timeout_ms,
        rebalance_timeout_ms=recorded.rebalance_timeout_ms,
        protocols=(Protocol(fact.protocol or "", recorded.subscription),),
    )
