"""A restore: a backup becomes a data directory, every file and every batch checked on the way.

The new directory is created beside its final path, opened once as a broker opens it, closed cleanly, and moved there as
a whole: there is a complete data directory or none. The backup is not trusted: the decoder has checked the manifest,
and every stored file is looked at, before anything is written.
"""

import asyncio
import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from logmark import properties
from logmark.backup import folder_checks
from logmark.backup.manifest import Manifest, StoredPartition, StoredSegment
from logmark.backup.segment_walk import Stretch, walk_sound
from logmark.backup.store import DATA, LOCK, MANIFEST, PROGRESS, make_directory, read_manifest, refuse_nested
from logmark.clock import Clock
from logmark.disk.file_system import File, FileSystem, Lock
from logmark.errors import LogmarkError, Malformed, UserError
from logmark.log import catalog, checkpoints
from logmark.log.catalog import PRODUCER_ID_BASE, Catalog, new_id
from logmark.log.chunks import Read
from logmark.log.clean_stop import write_mark
from logmark.log.directory import DataDirectory
from logmark.log.folder import METADATA
from logmark.log.group_commit import GroupCommit
from logmark.log.identity import META
from logmark.log.index import RELATIVE_OFFSET_MAX, OffsetIndex
from logmark.log.segment import INDEX, LOG, file_name
from logmark.log.settings import TopicSettings
from logmark.names import TopicPartition
from logmark.wire.batches import HEADER_BYTES, read_header

READ_BYTES = 4 << 20
# Producers that got their ids after the backup was taken may still be alive: nobody else gets one of those.
PRODUCER_ID_LEAP = 1 << 32
# What the log raises on bytes that no broker wrote.
_NONSENSE = (LogmarkError, ValueError, LookupError, ArithmeticError, TypeError, struct.error)


class Restorer:
    """Makes one data directory of one backup."""

    def __init__(
        self, manifest: Manifest, backup: str, data_dir: str, *, source: FileSystem, files: FileSystem, clock: Clock,
        lock: Lock, on_progress: Callable[[int], None], made: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Take what `open` has checked."""
        self.manifest = manifest
        self.data_dir = data_dir
        self._backup = backup
        self._source = source
        self._files = files
        self._clock = clock
        self._lock = lock
        self._on_progress = on_progress
        self._made = made
        self._work = f"{data_dir}.restoring"
        self._new = f"{self._work}/{os.path.basename(data_dir)}"

    @classmethod
    def open(
        cls, backup: str, data_dir: str, *, source: FileSystem, files: FileSystem, clock: Clock,
        on_progress: Callable[[int], None], free_bytes: Callable[[str], int] | None = None,
    ) -> Self:  # fmt: skip
        """Refuse what is no complete backup, and a path that is not free; the backup is only read.

        `free_bytes` says how much may be written where a path is; without it nobody asks beforehand.
        """
        # A directory takes the place of an empty one, and cannot take that of a link to it.
        backup, data_dir = os.path.abspath(backup), os.path.realpath(data_dir)
        if data_dir == os.path.realpath(os.getcwd()):
            raise UserError(
                f"{data_dir} is the current directory, which a restore would replace. Nothing was changed. "
                "Run the command from another directory.", exit_code=2,
            )  # fmt: skip
        manifest = _complete(backup, source)
        refuse_nested(backup, data_dir)
        refuse_nested(backup, f"{data_dir}.restoring")
        if files.exists(data_dir) and not (files.is_directory(data_dir) and not files.listdir(data_dir)):
            raise UserError(
                f"{data_dir} is there and is not an empty directory. Nothing was changed. "
                "Choose a new directory; two data directories cannot be merged."
            )
        work = f"{data_dir}.restoring"
        if not _is_left_by_restore(work, os.path.basename(data_dir), files):
            raise UserError(f"{work} is in the way, and no restore made it. Nothing was changed. Move it away.")
        _check_stored(manifest, backup, source)
        if free_bytes is not None:
            _check_space(manifest, backup, data_dir, free_bytes)
        made = make_directory(work, files)
        lock = files.lock(f"{work}/{LOCK}")
        if lock is None:
            raise UserError(f"Another restore to {data_dir} is under way. Nothing was changed. Wait for its end.")
        # Before anything else is in it: what a restore left half done is known by its lock.
        files.sync_directory(work)
        return cls(
            manifest, backup, data_dir, source=source, files=files, clock=clock, lock=lock, on_progress=on_progress,
            made=made[:-1],
        )  # fmt: skip

    @property
    def work_bytes(self) -> int:
        """The total of the progress reports: each byte is copied, and then checked by opening its log."""
        return 2 * self.manifest.size_bytes

    def restore(self, *, is_new_cluster: bool = False) -> None:
        """Make the directory; nothing is left of it when that fails, nor of parents that were made for it."""
        is_done = False
        try:
            _remove(self._new, self._files)
            self._files.mkdir(self._new)
            for key, partition in self.manifest.partitions.items():
                if partition.segments:
                    self._copy_partition(key, partition)
            self._write_top(is_new_cluster=is_new_cluster)
            self._open_once()
            self._files.replace(self._new, self.data_dir)
            is_done = True
            self._files.sync_directory(os.path.dirname(self.data_dir))
        finally:
            with contextlib.suppress(OSError):
                _remove(self._work, self._files)
                for parent in reversed(() if is_done else self._made):
                    self._files.rmdir(parent)
            self._lock.release()

    # Files

    def _copy_partition(self, key: TopicPartition, partition: StoredPartition) -> None:
        folder = f"{self._new}/{key}"
        self._files.mkdir(folder)
        self._files.write(f"{folder}/{METADATA}", checkpoints.write_partition_metadata(partition.topic_id))
        for segment in partition.segments:
            log = f"{folder}/{file_name(segment.base_offset, LOG)}"
            self._copy_segment(segment, log)
            entries = _entries_behind_damage(segment, log, self._files)
            if entries.data:
                self._files.write(f"{folder}/{file_name(segment.base_offset, INDEX)}", bytes(entries.data), sync=False)

    def _copy_segment(self, segment: StoredSegment, target: str) -> None:
        source = f"{self._backup}/{DATA}/{segment.file}"
        folder_checks.check_file(source)
        try:
            stored = self._source.open(source)
        except FileNotFoundError:
            raise _refusal(source, "it is missing") from None
        file = self._files.open(target, create=True)
        try:
            if stored.size() < segment.size_bytes:
                raise _refusal(source, f"it is shorter than the {segment.size_bytes} bytes that were stored")
            crc, position, end = 0, 0, segment.base_offset
            for data, next_offset in _checked(stored, segment):
                file.pwrite(data, position)
                crc, end = zlib.crc32(data, crc), next_offset
                position += len(data)
                self._on_progress(len(data))
            if crc != segment.crc:
                raise _refusal(source, "its checksum is not the one that was stored")
            if end != segment.next_offset:
                raise _refusal(
                    source, f"its records end at offset {end}, and the manifest says {segment.next_offset}"
                )  # fmt: skip
        finally:
            file.close()
            stored.close()

    def _write_top(self, *, is_new_cluster: bool) -> None:
        manifest = self.manifest
        cluster_id = checkpoints.id_text(new_id()) if is_new_cluster else manifest.cluster_id
        meta = {
            "cluster.id": cluster_id,
            # Another directory of the same node.
            "directory.id": checkpoints.id_text(new_id()),
            "node.id": str(manifest.node_id),
            "version": "1",
        }
        self._files.write_atomically(f"{self._new}/{META}", properties.write(meta))
        path = f"{self._new}/{catalog.FILE_NAME}"
        topics = Catalog(None, path=path, cluster_id=cluster_id)
        topics.adopt(manifest.topics, max(manifest.next_producer_id, PRODUCER_ID_BASE) + PRODUCER_ID_LEAP)
        self._files.write_atomically(path, topics.encode())
        stored = {key: partition for key, partition in manifest.partitions.items() if partition.segments}
        starts = {key: partition.log_start_offset for key, partition in stored.items()}
        ends = {key: partition.log_end_offset for key, partition in stored.items()}
        cleaned = {
            key: min(one.cleaned_to, one.log_end_offset) for key, one in stored.items() if one.cleaned_to is not None
        }
        for name, offsets in (
            (checkpoints.LOG_STARTS, starts), (checkpoints.RECOVERY_POINTS, ends), (checkpoints.HIGH_WATERMARKS, ends),
            (checkpoints.CLEANED, cleaned),
        ):  # fmt: skip
            self._files.write_atomically(f"{self._new}/{name}", checkpoints.write_offsets(offsets))
        # With it, nothing below the ends is taken for a torn tail: all of it was checked a moment ago.
        write_mark(self._new, self._files)

    # The first start

    def _open_once(self) -> None:
        """Open every log as a broker does, which builds indexes and snapshots, and close all of them cleanly.

        A log without indexes is checked, and what was checked is synced: from here on every segment is on disk.
        """
        loop = asyncio.new_event_loop()
        committer = GroupCommit(loop)
        try:
            with _quiet():
                directory = self._opened(committer)
                try:
                    self._open_partitions(directory)
                finally:
                    is_clean = directory.close()
        finally:
            committer.close()
            loop.close()
        if not is_clean:
            raise UserError(
                f"The disk refused the last writes, and {self.data_dir} was not made. Free some space or repair the "
                "disk, and run the same command again."
            )

    def _opened(self, committer: GroupCommit) -> DataDirectory:
        try:
            return DataDirectory.open(self._new, files=self._files, committer=committer, clock=self._clock)
        except UserError as error:
            # The error for what the disk refused has the name of the directory that was asked for.
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise

    def _open_partitions(self, directory: DataDirectory) -> None:
        topics = {entry.name: entry for entry in self.manifest.topics}
        settings = {name: TopicSettings(entry.overrides) for name, entry in topics.items()}
        for key, stored in self.manifest.partitions.items():
            if not stored.segments:
                continue
            try:
                opened = directory.open_partition(*key, stored.topic_id, settings[key.topic])
            except UserError:
                raise
            except _NONSENSE as error:
                raise UserError(
                    f"Partition {key} cannot be opened: {error}. {self.data_dir} was not made. The backup "
                    f"{self._backup} is damaged. Use another backup, or take a new one."
                ) from error
            self._on_progress(stored.size_bytes)
            found = (opened.log_start_offset, opened.log_end_offset)
            wanted = (stored.log_start_offset, stored.log_end_offset)
            if found != wanted:
                raise UserError(
                    f"Partition {key} opened with offsets {found[0]} to {found[1]} instead of {wanted[0]} to "
                    f"{wanted[1]}. {self.data_dir} was not made. The backup {self._backup} is damaged. Use another "
                    "backup, or take a new one."
                )


def _complete(backup: str, files: FileSystem) -> Manifest:
    if not files.is_directory(backup):
        raise UserError(f"There is no backup at {backup}: it is not a directory. Nothing was changed.", exit_code=2)
    manifest = read_manifest(backup, MANIFEST, files)
    if manifest is not None:
        return manifest
    if files.exists(f"{backup}/{PROGRESS}"):
        raise UserError(
            f"The backup {backup} is incomplete: the run that made it was interrupted. Nothing was changed. "
            "Run the same backup again; it goes on where it stood."
        )
    raise UserError(f"{backup} is not a backup: it has no {MANIFEST}. Nothing was changed.", exit_code=2)


def _check_stored(manifest: Manifest, backup: str, files: FileSystem) -> None:
    """Refuse a backup of which a stored file is missing, too short or of another kind, before anything is written."""
    folder_checks.check_directory(f"{backup}/{DATA}")
    for key, partition in manifest.partitions.items():
        if partition.segments:
            folder_checks.check_directory(f"{backup}/{DATA}/{key}")
        for segment in partition.segments:
            path = f"{backup}/{DATA}/{segment.file}"
            folder_checks.check_file(path)
            if not files.exists(path):
                raise _refusal(path, "it is missing")
            if files.size(path) < segment.size_bytes:
                raise _refusal(path, f"it is shorter than the {segment.size_bytes} bytes that were stored")


def _check_space(manifest: Manifest, backup: str, data_dir: str, free_bytes: Callable[[str], int]) -> None:
    """Refuse what does not fit on the disk, before it is filled."""
    free = free_bytes(data_dir)
    if manifest.size_bytes > free:
        raise UserError(
            f"The backup {backup} has {manifest.size_bytes} bytes, and the disk with {data_dir} has {free} bytes free. "
            "Nothing was changed. Free some space, or choose a directory on another disk."
        )


def _is_left_by_restore(work: str, name: str, files: FileSystem) -> bool:
    """Return whether a work directory is free, or holds only what an interrupted restore leaves in it."""
    if folder_checks.is_link(work):
        return False
    if not files.exists(work):
        return True
    if not files.is_directory(work):
        return False
    names = set(files.listdir(work))
    if any(folder_checks.is_link(f"{work}/{one}") for one in names):
        return False
    return not names or (LOCK in names and names <= {LOCK, name})


def _checked(stored: File, segment: StoredSegment) -> Iterator[tuple[bytes | memoryview, int]]:
    """Yield the bytes of a stored segment, each piece with the offset behind it.

    All are sound batches but for the damage that the manifest names; any other damage is refused where it begins.
    """

    def read(position: int, size: int) -> bytes:
        return stored.pread(min(size, segment.size_bytes - position), position)

    position, expected = 0, segment.base_offset
    for damage in segment.damage:
        for stretch in _sound(stored.path, read, position, damage.position, expected):
            expected = stretch.next_offset
            yield stretch.data, expected
        position = damage.position + damage.size_bytes
        for at in range(damage.position, position, READ_BYTES):
            yield read(at, min(READ_BYTES, position - at)), expected
    for stretch in _sound(stored.path, read, position, segment.size_bytes, expected):
        yield stretch.data, stretch.next_offset


def _entries_behind_damage(segment: StoredSegment, path: str, files: FileSystem) -> OffsetIndex:
    """Return an index of the batches right behind damage, which lead the first start past it.

    At the source its index did that. A backup has none, and without an entry nothing behind damage is believed.
    """
    entries = OffsetIndex(segment.base_offset)
    positions = [one.position + one.size_bytes for one in segment.damage if one.size_bytes]
    if not positions:
        return entries
    file = files.open(path)
    try:
        for position in positions:
            with contextlib.suppress(Malformed):
                header = read_header(file.pread(HEADER_BYTES, position))
                if 0 <= header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX:
                    entries.append(header.last_offset, position)
    finally:
        file.close()
    return entries


def _sound(path: str, read: Read, position: int, stop: int, expected: int) -> Iterator[Stretch]:
    for stretch in walk_sound(read, position, stop, expected=expected):
        if stretch.problem is not None:
            raise _refusal(path, f"at byte {stretch.position} {stretch.problem}")
        yield stretch


def _remove(path: str, files: FileSystem) -> None:
    """Remove a directory with all that is in it, if it is there; a link is removed and never followed."""
    if not files.exists(path):
        return
    for name in files.listdir(path):
        if files.is_directory(f"{path}/{name}") and not folder_checks.is_link(f"{path}/{name}"):
            _remove(f"{path}/{name}", files)
        else:
            files.remove(f"{path}/{name}")
    files.rmdir(path)


def _refusal(path: str, problem: str) -> UserError:
    return UserError(
        f"The backup is damaged: {path}: {problem}. No data directory was made. Use another backup, or take a new one."
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what opening logs logs: missing indexes are normal here, and failures are raised."""
    logger = logging.getLogger("logmark.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
