"""What clients ask of the coordinator of their group, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from logmark.errors import ErrorCode


class Protocol(NamedTuple):
    """One way of assigning that a member supports, with its metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A member wants to be in the next generation."""

    group: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    must_know_its_id: bool = True  # since version 4 a member first asks for an id (KIP-394)
    can_skip_assignment: bool = True  # since version 9 a returning static leader is told not to assign (KIP-814)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member wants its assignment; the leader brings everybody's."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member is alive."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


class Leaver(NamedTuple):
    """Who leaves: a member by its id, or a static one by its instance id alone."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Members leave the group, of their own or by an administrator's hand."""

    group: str
    leavers: tuple[Leaver, ...]


class OffsetToCommit(NamedTuple):
    """The next offset to read of one partition, as a client commits it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """A member, or a client without membership, commits offsets of a group."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int | None = None
    offsets: tuple[OffsetToCommit, ...]
    unknown_group_error: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND  # ILLEGAL_GENERATION before version 9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """An administrator deletes committed offsets of a group."""

    group: str
    partitions: tuple[tuple[str, int], ...]


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The member is in this generation; only the leader sees the others."""

    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    error: ErrorCode = ErrorCode.NONE  # MEMBER_ID_REQUIRED comes with the id to join with


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Return the member's assignment in this generation."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAccepted:
    """The heartbeat counted; REBALANCE_IN_PROGRESS asks the member to join again."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What became of each leaver, in the order of the request."""

    errors: tuple[tuple[Leaver, ErrorCode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """What became of each offset, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeleted:
    """What became of each partition, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """The group and its offsets are gone."""


Answer = Joined | Synced | HeartbeatAccepted | Left | OffsetsCommitted | OffsetsDeleted | GroupDeleted
