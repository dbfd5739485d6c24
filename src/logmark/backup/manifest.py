"""The manifest: what a backup holds, every segment with its size and checksum, as one JSON file.

Stored files only grow. So a manifest stays true while a later run puts bytes behind what it counts, and a run that is
interrupted leaves the backup before it as good as it was. A manifest never changes: a run writes on a draft
(`logmark.backup.manifest_draft`), and `logmark.backup.manifest_decoder` reads a manifest back without trusting it.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from logmark.log.catalog import Entry, text_of_id
from logmark.names import TopicPartition

VERSION = 1
DIRECTORY, BROKERS = "directory", "brokers"

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A stretch of a segment that was no sound batch at the source; it is kept as it was.

    One of no bytes says that the source lacked offsets there: before the next batch, or before the next segment.
    """

    position: int
    size_bytes: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """One segment: the first `size_bytes` of a stored file."""

    base_offset: int
    file: str
    size_bytes: int
    crc: int
    next_offset: int
    last_position: int  # where the last batch begins
    origin: str  # the file it was copied from, as the operating system knows it
    damage: tuple[Damage, ...]
    producer_id_max: int
    ended: tuple[int, ...]  # producers that ended a transaction here
    begun: Mapping[int, int]  # the first offset of those that began one and did not end it


class SizedSegment(Protocol):
    """A segment that knows its size, its first offset and the offset behind its last record."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def damage(self) -> Sequence[Damage]: ...


class Gap(NamedTuple):
    """Offsets that are missing before the segment at an index of the list."""

    at: int
    first_offset: int
    next_offset: int

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.next_offset - 1}"


class LogOfSegments:
    """What is known of a log by its segments."""

    __slots__ = ()
    log_start_offset: int
    cleaned_to: int | None
    segments: Sequence[SizedSegment]

    def gaps(self) -> Iterator[Gap]:
        """Yield the readable offsets that no segment holds and no damage explains; only a compacted log may lack some.

        Below the log start a crash may leave any part of the segments that were deleted.
        """
        if self.cleaned_to is not None:
            return
        for at, (before, after) in enumerate(pairwise(self.segments), 1):
            is_jump = after.base_offset > max(before.next_offset, self.log_start_offset)
            if is_jump and not ends_in_damage(before):
                yield Gap(at, before.next_offset, after.base_offset)

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition(LogOfSegments):
    """One partition's log; one that was ever compacted says up to where, and may have holes."""

    topic_id: bytes
    log_start_offset: int
    cleaned_to: int | None
    segments: tuple[StoredSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that a restored directory is made of."""

    kind: str
    source: str
    cluster_id: str
    run: int
    node_id: int
    ended_ms: int
    next_producer_id: int
    topics: tuple[Entry, ...]
    partitions: Mapping[TopicPartition, StoredPartition]
    notes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions.values())

    def segments(self) -> Iterator[tuple[TopicPartition, StoredSegment]]:
        """Yield every segment with its partition."""
        for key, partition in self.partitions.items():
            for segment in partition.segments:
                yield key, segment

    def damage(self) -> Iterator[tuple[TopicPartition, StoredSegment, Damage]]:
        """Yield every stretch that was damaged at the source."""
        for key, segment in self.segments():
            for damage in segment.damage:
                yield key, segment, damage

    def encode(self) -> bytes:
        """Return the text of the file, with a checksum of its own."""
        body = json.dumps(
            {
                "kind": self.kind,
                "source": self.source,
                "cluster_id": self.cluster_id,
                "run": self.run,
                "node_id": self.node_id,
                "ended_ms": self.ended_ms,
                "next_producer_id": self.next_producer_id,
                "topics": [
                    {
                        "name": entry.name,
                        "id": text_of_id(entry.id),
                        "partitions": entry.partitions,
                        "overrides": dict(entry.overrides),
                    }
                    for entry in self.topics
                ],
                "partitions": [_partition_row(key, partition) for key, partition in self.partitions.items()],
                "notes": list(self.notes),
            }
        )
        return f'{{"version": {VERSION}, "crc": {zlib.crc32(body.encode())}, "backup":\n{body}\n}}\n'.encode()


def ends_in_damage(segment: SizedSegment) -> bool:
    """Return whether damage at the end of a segment explains what is missing behind it."""
    return any(one.position + one.size_bytes == segment.size_bytes for one in segment.damage[-1:])


def freeze(values: Mapping[K, V]) -> Mapping[K, V]:
    """Return a copy that nobody can change."""
    return MappingProxyType(dict(values))


def _partition_row(key: TopicPartition, partition: StoredPartition) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "topic_id": text_of_id(partition.topic_id),
        "log_start_offset": partition.log_start_offset,
        "cleaned_to": partition.cleaned_to,
        "segments": [_segment_row(segment) for segment in partition.segments],
    }


def _segment_row(segment: StoredSegment) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "file": segment.file,
        "size_bytes": segment.size_bytes,
        "crc": segment.crc,
        "next_offset": segment.next_offset,
        "last_position": segment.last_position,
        "origin": segment.origin,
        "damage": [
            {"position": one.position, "size_bytes": one.size_bytes, "problem": one.problem} for one in segment.damage
        ],
        "producer_id_max": segment.producer_id_max,
        "ended": list(segment.ended),
        "begun": list(segment.begun.items()),
    }
