"""What can become true of groups and offsets: the facts that the log keeps."""

from dataclasses import dataclass

from logmark.coordination.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """A group has committed this offset of one partition: the next one that it will read."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int
    expires_at_ms: int | None = None  # only old clients ask for a retention of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForgotten:
    """A group has no committed offset of this partition any more."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecorded:
    """One member of a recorded generation, with what it subscribes to and what it owns."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecorded:
    """A group is in this generation: stable with these members, or empty."""

    group: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    state_changed_at_ms: int  # -1 where an old record did not say
    members: tuple[MemberRecorded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForgotten:
    """A group does not exist any more."""

    group: str


Fact = OffsetCommitted | OffsetForgotten | GroupRecorded | GroupForgotten
GroupOutcome = Outcome[Fact]
