"""The draft of a manifest: what a run of a backup writes on until it is complete.

A draft is never read back: a run that continues decodes the manifest on disk and copies it into its own draft.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from logmark.backup.manifest import (
    Damage,
    Gap,
    LogOfSegments,
    Manifest,
    StoredPartition,
    StoredSegment,
    ends_in_damage,
    freeze,
)
from logmark.log.catalog import Entry
from logmark.names import TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(slots=True, kw_only=True)
class SegmentDraft:
    """A segment that may grow; the fields are those of a stored segment."""

    base_offset: int
    file: str
    size_bytes: int = 0
    crc: int = 0
    next_offset: int
    last_position: int = 0
    origin: str = ""
    damage: list[Damage] = field(default_factory=list)
    producer_id_max: int = -1
    ended: dict[int, None] = field(default_factory=dict)  # in their order, each once
    begun: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: StoredSegment) -> Self:
        """Return a draft that continues where a stored segment ends."""
        return cls(**_fields_of(stored)).copy(origin=stored.origin)

    def copy(self, *, origin: str = "") -> Self:
        """Return the same segment to be written on, so that this one still says what is stored.

        Whether offsets are missing behind it is not known any more: it may grow.
        """
        damage = [one for one in self.damage if one.size_bytes or one.position < self.size_bytes]
        return replace(self, origin=origin, damage=damage, ended=dict.fromkeys(self.ended), begun=dict(self.begun))

    def freeze(self) -> StoredSegment:
        """Return the segment as it is now."""
        changed = {"damage": tuple(self.damage), "ended": tuple(self.ended), "begun": freeze(self.begun)}
        return StoredSegment(**_fields_of(self) | changed)


@dataclass(slots=True, kw_only=True)
class PartitionDraft(LogOfSegments):
    """One partition's log while it is copied."""

    topic_id: bytes
    log_start_offset: int = 0
    cleaned_to: int | None = None
    segments: list[SegmentDraft] = field(default_factory=list)

    @classmethod
    def of(cls, stored: StoredPartition) -> Self:
        """Return a draft that continues where a stored log ends."""
        return cls(**_fields_of(stored) | {"segments": [SegmentDraft.of(segment) for segment in stored.segments]})

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each transaction without an end, by its producer."""
        found: dict[int, int] = {}
        for segment in self.segments:
            for producer_id in segment.ended:
                found.pop(producer_id, None)
            for producer_id, offset in segment.begun.items():
                found.setdefault(producer_id, offset)
        return found

    def note_gaps(self) -> None:
        """Note which offsets the source lacks between its segments: they are damage, and nothing of the copy's."""
        for gap in list(self.gaps()):
            self.note_missing(gap.at, gap.first_offset)

    def note_taken_away(self, listed: Collection[int]) -> None:
        """Note the segments that a clean stop has listed and that are gone; a compacted log has no other sign of it."""
        for at, (before, after) in enumerate(pairwise(self.segments), 1):
            lost = [base for base in listed if before.base_offset < base < after.base_offset]
            if lost and after.base_offset > self.log_start_offset:
                self.note_missing(at, max(min(lost), self.log_start_offset))

    def note_missing(self, at: int, first_offset: int) -> None:
        """Note that the offsets from one on are missing before the segment at an index of the list."""
        before, after = self.segments[at - 1], self.segments[at]
        gap = Gap(at, max(first_offset, before.next_offset), after.base_offset)
        if gap.first_offset < gap.next_offset and not ends_in_damage(before):
            problem = f"{gap} before the next segment are missing"
            before.damage.append(Damage(position=before.size_bytes, size_bytes=0, problem=problem))

    def freeze(self) -> StoredPartition:
        """Return the log as it is now."""
        return StoredPartition(**_fields_of(self) | {"segments": tuple(segment.freeze() for segment in self.segments)})


@dataclass(slots=True, kw_only=True)
class Draft:
    """What a run has copied so far."""

    kind: str
    source: str
    cluster_id: str
    run: int = 1
    node_id: int = 1
    ended_ms: int = 0
    next_producer_id: int = 0
    topics: list[Entry] = field(default_factory=list)
    partitions: dict[TopicPartition, PartitionDraft] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def resume(self, known: Manifest) -> None:
        """Take up the topics and partitions that an earlier run stored."""
        self.topics = list(known.topics)
        self.partitions = {key: PartitionDraft.of(partition) for key, partition in known.partitions.items()}

    def freeze(self) -> Manifest:
        """Return the manifest of what has been copied."""
        partitions = freeze({key: partition.freeze() for key, partition in self.partitions.items()})
        changed = {"topics": tuple(self.topics), "partitions": partitions, "notes": tuple(self.notes)}
        return Manifest(**_fields_of(self) | changed)


def _fields_of(one: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a draft, or of what is stored, by their names: both have the same."""
    return {field.name: getattr(one, field.name) for field in fields(one)}
