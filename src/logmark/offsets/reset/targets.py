"""Where a group shall go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from logmark.client.answers import Committed
from logmark.names import TopicPartition
from logmark.offsets.times import format_time


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To the log start: everything that is still there is read again."""

    @property
    def description(self) -> str:
        return "to the log start"


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To the visible end: everything that is there now is skipped."""

    @property
    def description(self) -> str:
        return "to the end"


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To one offset in every partition."""

    offset: int

    @property
    def description(self) -> str:
        return f"to offset {self.offset}"


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record at or after a point in time."""

    timestamp_ms: int

    @property
    def description(self) -> str:
        return f"to the first record at or after {format_time(self.timestamp_ms)}"


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Forward, or back if negative, from the committed offset."""

    records: int

    @property
    def description(self) -> str:
        return f"{'forward' if self.records >= 0 else 'back'} by {abs(self.records)}"


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """To the committed offset itself, which keeps it from expiring; to the log end where nothing is committed."""

    @property
    def description(self) -> str:
        return "to the committed offsets"


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """To an offset of its own in each partition; with `is_exact` also to its metadata and leader epoch."""

    offsets: Mapping[TopicPartition, Committed]
    source: str
    is_exact: bool = False

    @property
    def description(self) -> str:
        return f"to the offsets of {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """Where a record is and when it was written."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToKey:
    """To the first record with a key, or behind it; a partition without one stays as it is."""

    key: bytes
    is_after: bool = False
    found: Mapping[TopicPartition, FoundRecord] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"just {'after' if self.is_after else 'before'} the first record with key {format_key(self.key)}"


Target = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy | ToCurrent | ToOffsets | ToKey


def format_key(key: bytes) -> str:
    """Return a key as text, or as hexadecimal digits if it is not text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return repr(text) if text.isprintable() else f"0x{key.hex()}"
