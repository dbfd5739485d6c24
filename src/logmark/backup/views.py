"""Backups and restored directories as programs read them; `dataclasses.asdict` makes them JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from logmark.backup.manifest import Manifest
from logmark.backup.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartitionView:
    """The offsets from `start` up to, excluding, `end` that a backup holds of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupView:
    """A backup after a run: what it holds, what the source could not give whole, and what was damaged in the backup."""

    backup: str
    source: str
    cluster_id: str
    topics: int
    partitions: Sequence[StoredPartitionView]
    bytes: int
    new_bytes: int
    notes: Sequence[str]
    damage: Sequence[str]
    copied_again: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreView:
    """A data directory that was made from a backup, and what was damaged before the backup was taken."""

    data_dir: str
    cluster_id: str
    topics: int
    partitions: Sequence[StoredPartitionView]
    bytes: int
    damage: Sequence[str]


def view_backup(store: Store, manifest: Manifest, *, lost: Sequence[str]) -> BackupView:
    """Return what a run has stored; `lost` is what its copier says that the source cannot give any more."""
    return BackupView(
        backup=store.path,
        source=manifest.source,
        **_content_fields(manifest),
        new_bytes=store.new_bytes,
        notes=manifest.notes,
        damage=[*lost, *describe_damage(manifest)],
        copied_again=store.damaged_files,
    )


def view_restore(data_dir: str, manifest: Manifest) -> RestoreView:
    """Return what was restored to a data directory."""
    return RestoreView(data_dir=data_dir, **_content_fields(manifest), damage=describe_damage(manifest))


def describe_damage(manifest: Manifest) -> list[str]:
    """Return a line for each stretch that was damaged at the source and copied as it was."""
    return [
        f"{key}/{segment.base_offset:020d}.log, byte {one.position}, {one.size_bytes} bytes: {one.problem}"
        for key, segment, one in manifest.damage()
    ]


def _content_fields(manifest: Manifest) -> dict[str, Any]:
    return {
        "cluster_id": manifest.cluster_id,
        "topics": len(manifest.topics),
        "partitions": [
            StoredPartitionView(
                topic=key.topic,
                partition=key.partition,
                start=partition.log_start_offset,
                end=partition.log_end_offset,
                bytes=partition.size_bytes,
            )
            for key, partition in manifest.partitions.items()
            if partition.segments
        ],
        "bytes": manifest.size_bytes,
    }
