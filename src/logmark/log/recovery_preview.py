"""The preview of a recovery: a crashed data directory as its write-ahead log will make it, without a change on disk.

The same replay that a start does runs on an overlay of the disk. Verification and backup read that overlay, and see
every acknowledged record in its segment and nothing that was never acknowledged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark import properties
from logmark.disk.file_system import FileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.errors import Malformed, UserError
from logmark.log import checkpoints, segment_swap
from logmark.log.clean_stop import CLEAN
from logmark.log.cut_files import CUT
from logmark.log.folder import complete_folder
from logmark.log.folder_names import partition_of
from logmark.log.folders import folders_by_id
from logmark.log.identity import META
from logmark.log.segment import LOG, file_name
from logmark.log.wal import log as wal
from logmark.log.wal import replay
from logmark.log.wal.entries import split_key
from logmark.log.wal.replay import Recovered, Replay, WalContent
from logmark.log.wal_recovery import not_of_last_stop
from logmark.names import TopicPartition

# The sizes of the segments of each folder, by base offset.
SegmentSizes = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RecoveredPartition:
    """What a partition has in the WAL that its own files need not have: entries, and offsets from first to end."""

    topic: str
    partition: int
    entries: int
    records: int
    first_offset: int
    end_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes that a recovery takes away from the end of a segment, and the file that keeps them, if one does."""

    path: str
    position: int
    size_bytes: int
    kept: str | None

    def __str__(self) -> str:
        what = f"{self.path}: {self.size_bytes} bytes from byte {self.position} on"
        return f"{what}, kept in {self.kept}" if self.kept is not None else what


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What the WAL of a directory holds, and the overlay on which it has been replayed."""

    files: OverlayFileSystem
    content: WalContent
    recovered: Mapping[TopicPartition, Recovered]
    partitions: Sequence[RecoveredPartition]


def has_wal(path: str, files: FileSystem) -> bool:
    """Return whether a crash has left a WAL in a data directory, or a broker is using it."""
    return files.exists(f"{path}/{wal.FOLDER}")


def read_wal(path: str, files: FileSystem) -> WalContent:
    """Return what the WAL of a directory holds; raises UserError if it cannot be used."""
    try:
        meta = properties.parse(files.read(f"{path}/{META}").decode("utf-8", "replace"))
        directory_id = checkpoints.id_bytes(meta["directory.id"])
    except (FileNotFoundError, KeyError, Malformed, ValueError):
        raise UserError(
            f"{path}/{META} does not say whose the write-ahead log is. Nothing was changed. Restore that file from a "
            "copy."
        ) from None
    return replay.read(path, directory_id, files)


def replay_on(overlay: OverlayFileSystem, path: str) -> Preview:
    """Replay the WAL of a directory on an overlay of its disk.

    Raises UserError if the WAL cannot be used or does not fit the segments, and so if a clean stop came after it: a
    start refuses it then too. The caller holds the directory's lock.
    """
    if overlay.base.exists(f"{path}/{CLEAN}"):
        raise not_of_last_stop(path)
    content = read_wal(path, overlay.base)
    folder_of = folders_by_id(path, overlay)
    work = Replay(
        content,
        overlay,
        folder_of=folder_of,
        make_folder=lambda folder, topic_id: complete_folder(folder, topic_id, overlay),
    )
    work.check()
    recovered = {}
    for key, found in work.run().items():
        partition = partition_of(folder_of(*split_key(key)) or "")
        if partition is not None:
            recovered[partition] = found
    return Preview(
        files=overlay, content=content, recovered=recovered, partitions=list_partitions(content, path, overlay)
    )


def list_partitions(content: WalContent, path: str, files: FileSystem) -> list[RecoveredPartition]:
    """Return what each partition has in the WAL above its recovery point; deleted topics are left out."""
    folder_of = folders_by_id(path, files)
    found = []
    for key, all_runs in content.runs.items():
        partition = partition_of(folder_of(*split_key(key)) or "")
        point = content.points.points.get(key)
        runs = [run for run in all_runs if point is None or run.end_offset > point.offset]
        if partition is None or not runs:
            continue
        first = min(run.first_offset for run in runs)
        first_offset = first if point is None else max(first, point.offset)
        found.append(
            RecoveredPartition(
                topic=partition.topic,
                partition=partition.partition,
                # The runs of one entry are views of the same bytes; one without data repeats the end of another entry.
                entries=len({id(run.data.obj) for run in runs if run.data}),
                records=runs[-1].end_offset - first_offset,
                first_offset=first_offset,
                end_offset=runs[-1].end_offset,
                bytes=sum(len(run.data) for run in runs),
            )
        )
    return sorted(found)


# What a recovery cuts


def segment_sizes(path: str, files: FileSystem) -> SegmentSizes:
    """Return the sizes of all segments, as they are when interrupted swaps of compaction are finished."""
    sizes: dict[str, dict[int, int]] = {}
    with OverlayFileSystem(files) as overlay:
        for name in overlay.listdir(path):
            folder = f"{path}/{name}"
            if partition_of(name) is None or not overlay.is_directory(folder):
                continue
            segment_swap.finish_interrupted(folder, overlay.listdir(folder), overlay)
            sizes[name] = {
                int(one[:20]): overlay.size(f"{folder}/{one}")
                for one in overlay.listdir(folder)
                if one[20:] == LOG and one[:20].isdigit()
            }
    return sizes


def find_cuts(path: str, before: SegmentSizes, after: SegmentSizes, files: FileSystem) -> list[Cut]:
    """Return what is missing at the ends of segments; those that retention has taken are no cut."""
    cuts = []
    for folder, sizes in sorted(before.items()):
        if folder not in after:
            continue
        left = after[folder]
        oldest = min(left, default=0)
        for base, size in sorted(sizes.items()):
            position = left.get(base, 0)
            if position >= size or (base not in left and base < oldest):
                continue
            name = f"{folder}/{file_name(base, LOG)}"
            kept = f"{name}.{position}{CUT}"
            cuts.append(Cut(name, position, size - position, kept if files.exists(f"{path}/{kept}") else None))
    return cuts
