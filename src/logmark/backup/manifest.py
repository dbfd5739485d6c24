"""The manifest: what a backup holds, every segment with its size and checksum, as one JSON file.

Stored files only grow. So a manifest stays true while a later run puts bytes behind what it counts, and a run that is
interrupted leaves the backup before it as good as it was.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from logmark.errors import Malformed, UserError
from logmark.log.catalog import Entry, id_of_text, text_of_id
from logmark.names import TopicPartition

VERSION = 1
DIRECTORY, BROKERS = "directory", "brokers"


@dataclass(slots=True, kw_only=True)
class Damage:
    """A stretch of a segment that was no sound batch at the source; it is kept as it was."""

    position: int
    size_bytes: int
    problem: str


@dataclass(slots=True, kw_only=True)
class StoredSegment:
    """One segment: the first `size_bytes` of a stored file."""

    base_offset: int
    file: str
    size_bytes: int = 0
    crc: int = 0
    next_offset: int
    last_position: int = 0  # where the last batch begins
    origin: str = ""  # the file it was copied from, as the operating system knows it
    damage: list[Damage] = field(default_factory=list)
    producer_id_max: int = -1
    ended: list[int] = field(default_factory=list)  # producers that ended a transaction here
    begun: dict[int, int] = field(default_factory=dict)  # the first offset of those that began one and did not end it


@dataclass(slots=True, kw_only=True)
class StoredPartition:
    """One partition's log; one that was ever compacted says up to where, and may have holes."""

    topic_id: bytes
    log_start_offset: int = 0
    cleaned_to: int | None = None
    segments: list[StoredSegment] = field(default_factory=list)

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

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


@dataclass(slots=True, kw_only=True)
class Manifest:
    """Everything that a restored directory is made of."""

    kind: str
    source: str
    cluster_id: str
    run: int = 1
    node_id: int = 1
    ended_ms: int = 0
    next_producer_id: int = 0
    topics: list[Entry] = field(default_factory=list)
    partitions: dict[TopicPartition, StoredPartition] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions.values())

    def segments(self) -> Iterator[tuple[TopicPartition, StoredSegment]]:
        """Every segment with its partition."""
        for key, partition in self.partitions.items():
            for segment in partition.segments:
                yield key, segment

    def damage(self) -> Iterator[tuple[TopicPartition, StoredSegment, Damage]]:
        """Every stretch that was damaged at the source."""
        for key, segment in self.segments():
            for damage in segment.damage:
                yield key, segment, damage

    def encode(self) -> bytes:
        """The text of the file, with a checksum of its own."""
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
                "notes": self.notes,
            }
        )
        return f'{{"version": {VERSION}, "crc": {zlib.crc32(body.encode())}, "backup":\n{body}\n}}\n'.encode()


def decode(content: bytes, path: str) -> Manifest:
    """The manifest in a file's content; a sentence when it is of another version or not as it was written."""
    try:
        version = json.loads(content)["version"]
        if version != VERSION:
            raise UserError(
                f"{path} is of version {version}, and this Logmark reads version {VERSION} only. Nothing was changed. "
                "Use the Logmark that made this backup, or a newer one."
            )
        head, body, _ = content.decode().split("\n", 2)
        if int(head.split('"crc": ')[1].split(",")[0]) != zlib.crc32(body.encode()):
            raise Malformed("its checksum is wrong")
        return _read(json.loads(body))
    except (ValueError, KeyError, TypeError, IndexError, Malformed) as error:
        raise UserError(
            f"{path} is damaged ({error}). Nothing was changed. Without it the backup cannot be trusted: "
            "take another backup, or use an older one."
        ) from None


def _partition_row(key: TopicPartition, partition: StoredPartition) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "topic_id": text_of_id(partition.topic_id),
        "log_start_offset": partition.log_start_offset,
        "cleaned_to": partition.cleaned_to,
        "segments": [{**asdict(segment), "begun": list(segment.begun.items())} for segment in partition.segments],
    }


def _read(document: dict[str, Any]) -> Manifest:
    return Manifest(
        kind=document["kind"],
        source=document["source"],
        cluster_id=document["cluster_id"],
        run=document["run"],
        node_id=document["node_id"],
        ended_ms=document["ended_ms"],
        next_producer_id=document["next_producer_id"],
        topics=[
            Entry(name=row["name"], id=id_of_text(row["id"]), partitions=row["partitions"], overrides=row["overrides"])
            for row in document["topics"]
        ],
        partitions={
            TopicPartition(row["topic"], row["partition"]): StoredPartition(
                topic_id=id_of_text(row["topic_id"]),
                log_start_offset=row["log_start_offset"],
                cleaned_to=row["cleaned_to"],
                segments=[_read_segment(segment) for segment in row["segments"]],
            )
            for row in document["partitions"]
        },
        notes=document["notes"],
    )


def _read_segment(row: dict[str, Any]) -> StoredSegment:
    return StoredSegment(
        **{**row, "damage": [Damage(**one) for one in row["damage"]], "begun": dict(row["begun"])}
    )  # fmt: skip
