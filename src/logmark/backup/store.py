"""The folder of a backup while it is written: stored segments, and the manifest that makes them one backup.

    DEST/logmark.backup            the manifest of the last complete run
    DEST/logmark.backup.progress   how far a run has come that is not complete
    DEST/data/TOPIC-PARTITION/     stored segments

What a manifest counts is on disk before the manifest is.
"""

import errno
import os
import time
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from logmark.backup import folder_checks, manifest_decoder
from logmark.backup.manifest import BROKERS, Damage, Manifest, StoredSegment
from logmark.backup.manifest_draft import Draft, PartitionDraft, SegmentDraft
from logmark.backup.segment_walk import note_batches
from logmark.disk.file_system import Bytes, File, FileSystem, Lock
from logmark.errors import UserError
from logmark.log.segment import LOG, file_name
from logmark.names import TopicPartition

MANIFEST = "logmark.backup"
PROGRESS = "logmark.backup.progress"
DATA = "data"
LOCK = ".lock"
PROGRESS_S = 5.0
READ_BYTES = 4 << 20
SHOWN_MAX = 300

Progress = Callable[[int], None]
Segment = StoredSegment | SegmentDraft


class Store:
    """One backup folder, held by one run."""

    def __init__(self, path: str, files: FileSystem, lock: Lock, *, on_progress: Progress, on_check: Progress) -> None:
        """Take what `open` has locked and read."""
        self.path = path
        self.new_bytes = 0
        # The stored files that were damaged or missing when this run began.
        self.damaged_files: list[str] = []
        self.previous = read_manifest(path, MANIFEST, files)
        self.interrupted = read_manifest(path, PROGRESS, files)
        if self.previous and self.interrupted and self.interrupted.run <= self.previous.run:
            # Its run was completed, and a power cut brought the file back. What it counts has grown since.
            self.interrupted = None
        self.draft = Draft(kind="", source="", cluster_id="")
        self._files = files
        self._lock = lock
        self._on_progress = on_progress
        self._on_check = on_check
        # The stored files that are not what the manifest says: they are copied again.
        self._unsound: set[str] = set()
        self._touched: set[str] = set()
        self._writer: SegmentWriter | None = None
        self._progress_at = time.monotonic()

    @classmethod
    def open(cls, path: str, *, files: FileSystem, on_progress: Progress, on_check: Progress = lambda _: None) -> Self:
        """Lock a backup folder, which is made if there is none; refuse a folder that is something else.

        `on_progress` gets the bytes that the run stores, and `on_check` those of earlier runs that it checks.
        """
        path = os.path.abspath(path)
        if files.exists(path) and not files.is_directory(path):
            raise UserError(f"{path} is not a directory. Nothing was changed. Choose another directory for the backup.")
        names = set(files.listdir(path)) if files.exists(path) else set()
        # A half-written first manifest is ours too.
        if names - {LOCK} and not any(name.startswith(MANIFEST) for name in names):
            raise UserError(
                f"{path} holds files and is no backup. Nothing was changed. Choose an empty or a new directory."
            )
        for name in sorted(names):
            if name == LOCK or name.startswith(MANIFEST):
                folder_checks.check_file(f"{path}/{name}")
        folder_checks.check_tree(f"{path}/{DATA}")
        make_directory(path, files)
        lock = files.lock(f"{path}/{LOCK}")
        if lock is None:
            raise UserError(f"Another run writes to the backup {path} now. Nothing was changed. Wait for its end.")
        try:
            store = cls(path, files, lock, on_progress=on_progress, on_check=on_check)
            # Another name of the same file may belong to somebody else: a new file is written instead.
            for name in (f"{MANIFEST}.tmp", f"{PROGRESS}.tmp"):
                if name in names:
                    files.remove(f"{path}/{name}")
            return store
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            # An interrupt or a broker that went away: what is there is worth keeping. A disk that failed is not asked.
            if error is not None and self.draft.kind and not isinstance(error, OSError):
                self._write_progress()
        finally:
            if self._writer is not None:
                self._writer.abandon()
            self._lock.release()

    @property
    def is_resumed(self) -> bool:
        return self.interrupted is not None

    def begin(self, draft: Draft, *, expect: Progress) -> None:
        """Take up what earlier runs left, if it is of the same source, and note on disk that a run is under way.

        Every stored file is read and checked: a restore would refuse one that was damaged since, and that would be too
        late. `expect` gets the bytes to read.
        """
        for known in (self.interrupted, self.previous):
            if known is not None:
                self._check_same(known, draft)
        known = self.interrupted or self.previous
        draft.run = self.previous.run + 1 if self.previous else 1
        if known is not None:
            draft.resume(known)
        self._check_restorable(draft.freeze(), is_complete=False)
        self.draft = draft
        # First of all: a folder with anything else in it would not be known for a backup.
        self._write_progress()
        make_directory(f"{self.path}/{DATA}", self._files)
        self._remove_strangers()
        stored = [segment for partition in draft.partitions.values() for segment in partition.segments]
        expect(sum(segment.size_bytes for segment in stored))
        self._unsound = {segment.file for segment in stored if not self._has_checksum(segment)}
        self.damaged_files = [f"{self.path}/{DATA}/{file}" for file in sorted(self._unsound)]

    def _check_restorable(self, manifest: Manifest, *, is_complete: bool) -> None:
        """Refuse to write a manifest that a restore would refuse: it is better said before the backup is needed."""
        problem = manifest_decoder.find_problem(manifest, is_complete=is_complete)
        if problem is not None:
            raise UserError(
                f"A backup of {show(manifest.source)} could not be restored: {problem}. The last complete backup in "
                f"{self.path} is as it was, and what was copied is kept. If the source is a data directory, "
                "`logmark verify` shows what is wrong with it."
            )

    def _check_same(self, known: Manifest, draft: Draft) -> None:
        if known.cluster_id != draft.cluster_id:
            raise UserError(
                f"{self.path} is a backup of cluster {known.cluster_id} ({show(known.source)}), and "
                f"{show(draft.source)} is cluster {draft.cluster_id}. Nothing was changed. Choose another directory "
                "for this backup."
            )
        if known.kind != draft.kind:
            made = "through its brokers" if known.kind == BROKERS else "from its data directory"
            raise UserError(
                f"{self.path} is a backup that was taken {made} ({show(known.source)}). Nothing was changed. "
                "Go on in the same way, or choose another directory for this backup."
            )

    # Segments

    def known(self, key: TopicPartition, topic_id: bytes) -> PartitionDraft:
        """Return what is stored of a partition of this topic id; nothing of its predecessors."""
        found = self.draft.partitions.get(key)
        if found is None or found.topic_id != topic_id:
            return PartitionDraft(topic_id=topic_id)
        return found

    def keep(self, key: TopicPartition, partition: PartitionDraft) -> None:
        """Take a partition's copy into the run."""
        self.draft.partitions[key] = partition

    def writer(self, segment: SegmentDraft) -> "SegmentWriter":
        """Return a writer that puts batches behind what is stored of a segment; one at a time."""
        assert self._writer is None, "another segment is being written"
        self._writer = SegmentWriter(self, segment, self._files)
        return self._writer

    def new_segment(self, key: TopicPartition, base_offset: int, *, origin: str = "") -> SegmentDraft:
        """Return an empty segment in a file that no manifest counts."""
        folder = f"{self.path}/{DATA}/{key}"
        if not self._files.is_directory(folder):
            # Its name is synced with all the others: a run that is interrupted before makes it again.
            self._files.mkdir(folder)
            self._touched.add(f"{self.path}/{DATA}")
        name, number = file_name(base_offset, LOG), 0
        while self._files.exists(f"{folder}/{name}"):
            number += 1
            name = f"{file_name(base_offset, LOG)}.{number}"
        self._files.open(f"{folder}/{name}", create=True).close()
        self._touched.add(folder)
        return SegmentDraft(base_offset=base_offset, file=f"{key}/{name}", next_offset=base_offset, origin=origin)

    def is_sound(self, segment: Segment) -> bool:
        """Return whether a stored file was what the manifest says when this run began, or is of this run."""
        return segment.file not in self._unsound

    def _has_checksum(self, segment: Segment) -> bool:
        path = self._path(segment)
        if not self._files.exists(path):
            return False
        file = self._files.open(path)

        def read(size: int, position: int) -> bytes:
            data = file.pread(size, position)
            self._on_check(len(data))
            return data

        try:
            return checksum(read, segment.size_bytes) == segment.crc
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The disk has lost it.
            return False
        finally:
            file.close()

    def read(self, segment: Segment, position: int, size: int) -> bytes:
        """Return stored bytes of a segment."""
        file = self._files.open(self._path(segment))
        try:
            return file.pread(size, position)
        finally:
            file.close()

    def _path(self, segment: Segment) -> str:
        return f"{self.path}/{DATA}/{segment.file}"

    # Progress and completion

    def wrote(self, size: int) -> None:
        """Count new bytes, and now and then write down how far the run has come."""
        self.new_bytes += size
        self._on_progress(size)
        if time.monotonic() - self._progress_at > PROGRESS_S:
            self._write_progress()

    def _write_progress(self) -> None:
        if self._writer is not None:
            self._writer.sync()
        # The names of new files may be lost: the next run then copies those again.
        self._files.write_atomically(f"{self.path}/{PROGRESS}", self.draft.freeze().encode())
        self._progress_at = time.monotonic()

    def closed(self) -> None:
        """Note that the segment that was being written is on disk."""
        self._writer = None

    def complete(self) -> Manifest:
        """Make the run the backup: from here on it is what a restore restores."""
        assert self._writer is None, "a segment is still being written"
        manifest = self.draft.freeze()
        self._check_restorable(manifest, is_complete=True)
        for touched in sorted(self._touched):
            self._files.sync_directory(touched)
        self._touched.clear()
        self._files.write_atomically(f"{self.path}/{MANIFEST}", manifest.encode())
        self._files.remove(f"{self.path}/{PROGRESS}")
        self.previous, self.interrupted = manifest, None
        self._remove_strangers()
        return manifest

    def _remove_strangers(self) -> None:
        """Remove stored files that neither the backup nor the run counts."""
        counted = {segment.file for one in (self.previous, self.draft.freeze()) if one for _, segment in one.segments()}
        for folder in self._files.listdir(f"{self.path}/{DATA}"):
            left = False
            for name in self._files.listdir(f"{self.path}/{DATA}/{folder}"):
                if f"{folder}/{name}" in counted:
                    left = True
                else:
                    self._files.remove(f"{self.path}/{DATA}/{folder}/{name}")
            if not left:
                self._files.rmdir(f"{self.path}/{DATA}/{folder}")


class SegmentWriter:
    """Puts batches behind what is stored of one segment."""

    def __init__(self, store: Store, segment: SegmentDraft, files: FileSystem) -> None:
        """Open the stored file; overwrite what an interrupted run has left behind the counted bytes."""
        self.segment = segment
        self._store = store
        self._file: File = files.open(f"{store.path}/{DATA}/{segment.file}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave(error)

    def append(self, data: memoryview, next_offset: int) -> None:
        """Add whole sound batches."""
        last = note_batches(self.segment, data)
        self.segment.last_position = self.segment.size_bytes + last
        self.segment.next_offset = next_offset
        self._add(data)

    def append_damage(self, data: bytes, problem: str) -> None:
        """Add bytes that are no sound batch, as they are; none where offsets are missing."""
        before = self.segment.damage[-1:]
        if before and not before[0].size_bytes and before[0].position == self.segment.size_bytes:
            problem = f"{self.segment.damage.pop().problem}; {problem}"
        self.segment.damage.append(
            Damage(position=self.segment.size_bytes, size_bytes=len(data), problem=problem)
        )  # fmt: skip
        self._add(data)

    def _add(self, data: Bytes) -> None:
        self._file.pwrite(data, self.segment.size_bytes)
        self.segment.crc = zlib.crc32(data, self.segment.crc)
        self.segment.size_bytes += len(data)
        self._store.wrote(len(data))

    def sync(self) -> None:
        """Sync what was added."""
        self._file.sync()

    def leave(self, error: BaseException | None) -> None:
        """Close the file, after an error too; do not ask a disk that failed for more."""
        if isinstance(error, OSError):
            self.abandon()
        else:
            self.close()

    def close(self) -> None:
        """Sync what was added and close the file."""
        try:
            self._file.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without a sync."""
        self._file.close()
        self._store.closed()


def checksum(read: Callable[[int, int], bytes], size: int) -> int:
    """Return the CRC-32 of the first `size` bytes; `read` takes a size and a position."""
    crc = position = 0
    while position < size:
        data = read(min(READ_BYTES, size - position), position)
        if not data:
            return -1
        crc = zlib.crc32(data, crc)
        position += len(data)
    return crc


def read_manifest(path: str, name: str, files: FileSystem) -> Manifest | None:
    """Return the manifest of that name, None if there is none."""
    file = f"{path}/{name}"
    folder_checks.check_file(file)
    if not files.exists(file):
        return None
    manifest_decoder.check_size(files.size(file), file)
    return manifest_decoder.decode(files.read(file), file, is_complete=name == MANIFEST)


def show(text: str) -> str:
    """Return a text of a manifest as the terminal may show it: short and without control characters."""
    return "".join(one if one.isprintable() else "?" for one in text[:SHOWN_MAX])


def refuse_nested(source: str, dest: str) -> None:
    """Refuse two directories of which one lies in the other."""
    one, other = os.path.realpath(source), os.path.realpath(dest)
    if os.path.commonpath([one, other]) in (one, other):
        raise UserError(
            f"{dest} and {source} are the same directory, or one lies in the other. Nothing was changed. "
            "Choose a directory outside.", exit_code=2,
        )  # fmt: skip


def make_directory(path: str, files: FileSystem) -> list[str]:
    """Make a directory with its parents, durably; return those that were not there, the outermost first."""
    if files.is_directory(path):
        return []
    parent = os.path.dirname(path)
    made = make_directory(parent, files)
    files.mkdir(path)
    files.sync_directory(parent)
    return [*made, path]
