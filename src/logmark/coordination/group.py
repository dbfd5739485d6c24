"""A group as the coordinator sees it, whatever protocol its members speak; the classic group is one implementation."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logmark.coordination.commands import CommitOffsets


class GroupState(StrEnum):
    """The state of a group; the text is what Kafka's tools show.

    EMPTY       no members, perhaps offsets. The first join makes it PREPARING.
    PREPARING   members join; heartbeats are told to join. All joined, or time is up: COMPLETING, or EMPTY.
    COMPLETING  joins were answered, the leader assigns; syncs wait for it. The leader's sync: STABLE.
    STABLE      everybody has an assignment. A join, a leave or a death: PREPARING.
    DEAD        there is no such group.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list."""

    id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member as tools see it; its subscription only while the group is stable."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as tools see it."""

    id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class Group(Protocol):
    """What the coordinator and the committed offsets need of a group."""

    id: str
    state: GroupState
    # Without a record of its own a group exists as long as it has committed offsets.
    is_recorded: bool

    @property
    def memory_bytes(self) -> int:
        """How much memory the group takes without its offsets, about."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether it has no members, and nobody was given an id to join with."""
        ...

    def check_committer(self, command: CommitOffsets) -> None:
        """Raise Refused if a commit comes from outside the group's present generation."""
        ...

    def check_offset_deletion(self) -> None:
        """Raise Refused if no offset may be deleted now."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member reads this topic, or may read it."""
        ...

    def retention_start_ms(self, committed_at_ms: int) -> int | None:
        """Return from when on the retention of an offset counts; None if offsets of the group do not expire now."""
        ...

    def list(self) -> GroupListing:
        """Return what a list of groups shows."""
        ...

    def describe(self) -> GroupDescription:
        """Return what tools see of it."""
        ...
