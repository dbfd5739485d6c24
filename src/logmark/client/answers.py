"""What a client's calls return: plain values that know nothing of a version or a connection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logmark.errors import ErrorCode
from logmark.names import TopicPartition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """Where a look-up by time landed: offset -1 means that no record is that young."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed offset of a group in one partition: the next offset to read, with its metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """One answer to a fetch: whole batches as they are on disk, the last one perhaps cut off."""

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: Sequence[tuple[int, int]] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list of groups, as programs read it; an old broker leaves state and type empty."""

    group: str
    state: str = ""
    type: str = ""
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A consumer in a group, with the partitions that it was given.

    In a group of the newer protocol it has an epoch of its own and partitions that it shall have (`target`), and
    `is_upgraded` says whether it speaks that protocol itself; elsewhere these are None.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition] = ()
    member_epoch: int | None = None
    target: Sequence[TopicPartition] | None = None
    is_upgraded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group's state; a group that nobody knows is `Dead`."""

    group: str
    state: str
    type: str = "classic"
    protocol_type: str = ""
    assignor: str = ""
    coordinator: int = -1
    members: Sequence[GroupMember] = ()
    group_epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def is_unknown(self) -> bool:
        return self.state == "Dead"

    @property
    def is_active(self) -> bool:
        """Members hold the group, so nobody else may move its offsets."""
        return self.state not in ("Dead", "Empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting of a topic or a broker, and whether it was set explicitly."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
