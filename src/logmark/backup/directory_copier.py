"""A backup of a data directory, while its broker runs or not: segments only grow, so they can be copied at any time.

Committed offsets are copied before the records, so that none of them points behind the records that were copied; the
catalogue is read again at the end, so that it knows every producer id in them. When topics came or went meanwhile,
another round copies what has changed since.

The write-ahead log is no part of a backup. While a broker runs, everything that it acknowledged is in the segments too,
at least in the system's memory, which is what a copy reads. After a crash that need not be so: then the copy is taken
from the segments as a recovery will leave them, and the directory stays locked, and unchanged, until it is done.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from logmark.backup.manifest import DIRECTORY, Damage, Manifest
from logmark.backup.manifest_draft import Draft, PartitionDraft, SegmentDraft
from logmark.backup.segment_walk import walk
from logmark.backup.store import Store, checksum
from logmark.clock import Clock
from logmark.disk.file_system import File, FileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.disk.read_only import ReadOnlyFileSystem
from logmark.errors import DirectoryOfKafka, Malformed, UserError
from logmark.log import checkpoints, identity, recovery_preview, sealed_offsets
from logmark.log.added_files import check_all_owners, find_all, set_aside
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.checkpoints import SegmentList
from logmark.log.clean_stop import CLEAN, CleanStop
from logmark.log.directory import LOCK
from logmark.log.folder import METADATA
from logmark.log.folders import PartitionFolders
from logmark.log.identity import META, Identity
from logmark.log.index import OffsetIndex
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.missing_segments import known_start
from logmark.log.sealed_offsets import SealedOffsets
from logmark.log.segment import INDEX, LOG
from logmark.names import OFFSETS_TOPIC, TopicPartition

ROUNDS_MAX = 100
TRIES_MAX = 500
PAUSE_S = 0.02
TAIL_BYTES = 64 * 1024
SWAP = LOG + ".swap"
READ_BYTES = 4 << 20
# What points to records is copied before them: it may then be older than they are, and never newer.
_FIRST = {"__transaction_state": 0, OFFSETS_TOPIC: 1}


class _Moved(Exception):
    """Compaction or a deletion changed the folder while it was copied."""


class _Source(NamedTuple):
    base_offset: int
    path: str
    is_swap: bool


class DirectoryCopier:
    """Copies one data directory into a store."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Refuse what is no data directory of ours."""
        self._path = path
        self._clock = clock
        self._files: FileSystem = ReadOnlyFileSystem()
        self._owner = _identify(path, self._files)
        # Of a crashed directory: the disk with the WAL replayed on top of it, and the ends that the WAL proves.
        self._overlay: OverlayFileSystem | None = None
        self._recovered_ends: dict[TopicPartition, int] = {}
        self._notes: list[str] = []
        # What nobody can read any more, and no segment has a mark of.
        self.lost: Sequence[str] = ()
        # How far each log is known to be acknowledged: a bad batch below that is damage, and not one under way.
        self._durable_ends: dict[TopicPartition, int] = {}
        # Up to where each compacted log was cleaned; None if nobody knows.
        self._cleaned: Mapping[TopicPartition, int] | None = None

    def copy(self, store: Store, *, expect: Callable[[int], None]) -> Manifest:
        """Take a complete backup of the directory as it is now; `expect` is called with the number of bytes to come.

        Raises UserError if a crash has left a WAL that cannot be used.
        """
        with contextlib.ExitStack() as stack:
            self._look_through_wal(stack)
            self._leave_out_additions(stack)
            return self._copy(store, expect=expect)

    def _look_through_wal(self, stack: contextlib.ExitStack) -> None:
        """Read a crashed directory as its recovery will leave it; the lock keeps brokers away meanwhile."""
        if not recovery_preview.has_wal(self._path, self._files):
            return
        lock = self._files.lock(f"{self._path}/{LOCK}")
        if lock is None:
            # A broker runs: all that it acknowledged is in the segments.
            return
        stack.callback(lock.release)
        if not recovery_preview.has_wal(self._path, self._files):
            # The broker stopped cleanly just now.
            return
        self._check_folders()
        overlay = stack.enter_context(OverlayFileSystem(self._files))
        found = recovery_preview.replay_on(overlay, self._path)
        self._files = self._overlay = overlay
        self._recovered_ends = {key: one.end for key, one in found.recovered.items()}
        records = sum(partition.records for partition in found.partitions)
        self._notes.append(
            f"The broker of {self._path} was not stopped cleanly. The copy has the {records} record(s) of its "
            "write-ahead log; the directory itself was not changed."
        )
        self.lost = [
            f"Entries {first} to {last} of the write-ahead log cannot be read; records in them may be lost."
            for first, last in found.content.damaged
        ]

    def _check_folders(self) -> None:
        """Raise UserError if the catalogue of a stopped directory does not know a folder with records: it is older."""
        catalog = self._catalog()
        folders = PartitionFolders(self._path, self._files, self._files.listdir(self._path))
        folders.check_owners([*catalog.entries(), *catalog.deleting()])

    def _leave_out_additions(self, stack: contextlib.ExitStack) -> None:
        """Read a stopped directory without what was added to it since; the lock keeps brokers away meanwhile.

        Raises UserError if folders of partitions were exchanged.
        """
        if self._files.exists(f"{self._path}/{CLEAN}"):
            self._check_folders()
        listed = self._segment_list()
        if listed is None:
            return
        topics = self._catalog().entries()
        check_all_owners(self._path, listed.segments, topics, self._files)
        found = find_all(self._path, listed.segments, topics, self._files)
        if not found:
            return
        lock = self._files.lock(f"{self._path}/{LOCK}")
        if lock is None:
            # A broker has started just now, and has set them aside itself.
            return
        stack.callback(lock.release)
        overlay = stack.enter_context(OverlayFileSystem(self._files))
        for folder, additions in found.items():
            set_aside(f"{self._path}/{folder}", additions, overlay)
        self._files = self._overlay = overlay
        self.lost = [
            f"{folder}/{one} was added by no broker, and is not in the backup."
            for folder, additions in found.items()
            for one in additions
        ]

    def _copy(self, store: Store, *, expect: Callable[[int], None]) -> Manifest:
        self._store = store
        draft = Draft(
            kind=DIRECTORY,
            source=self._path,
            cluster_id=self._owner.cluster_id,
            node_id=self._owner.node_id,
        )
        catalog = self._catalog()
        store.begin(draft, expect=expect)
        for _ in range(ROUNDS_MAX):
            expect(self._size_to_come(catalog))
            self._copy_all(catalog)
            before, catalog = catalog, self._catalog()
            foreign = self._foreign_folder(catalog)
            if _shape(before) == _shape(catalog) and foreign is None:
                return self._finish(draft, catalog)
        if foreign is not None:
            raise UserError(
                f"{foreign}/{METADATA} has the id of another topic than the catalogue, so a broker refuses to start "
                f"on {self._path}. What was copied is kept. Restore that file from a copy, and run the same command "
                "again."
            )
        raise UserError(
            f"Topics of {self._path} came and went during each of {ROUNDS_MAX} rounds. What was copied is kept; "
            "run the same command again when fewer topics are created and deleted."
        )

    def _foreign_folder(self, catalog: Catalog) -> str | None:
        """Return a folder with the id of another topic; a broker that makes a topic again leaves one for a moment."""
        for entry in catalog.entries():
            for key in _keys(entry):
                if self._files.exists(f"{self._folder(key)}/{METADATA}") and not self._belongs(key, entry.id):
                    return self._folder(key)
        return None

    def _finish(self, draft: Draft, catalog: Catalog) -> Manifest:
        draft.topics = catalog.entries()
        draft.next_producer_id = catalog.next_producer_id
        draft.ended_ms = self._clock.now_ms()
        wanted = {key for entry in draft.topics for key in _keys(entry)}
        draft.partitions = {key: draft.partitions[key] for key in sorted(draft.partitions) if key in wanted}
        draft.notes = self._notes + [
            f"Partition {key} has {len(partition.open_transactions)} open transaction(s), the first from offset "
            f"{min(partition.open_transactions.values())} on; what ends them is not in the backup."
            for key, partition in draft.partitions.items()
            if partition.open_transactions
        ]
        return self._store.complete()

    # What there is

    def _catalog(self) -> Catalog:
        path = f"{self._path}/{CATALOG}"
        with open(path, "rb") as file:
            return Catalog(file.read(), path=path)

    def _checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """Return the offsets in a checkpoint, None if it cannot be read."""
        try:
            with open(f"{self._path}/{name}", "rb") as file:
                return checkpoints.read_offsets(file.read())
        except FileNotFoundError:
            return {}
        except Malformed:
            return None

    def _size_to_come(self, catalog: Catalog) -> int:
        size = 0
        for entry in catalog.entries():
            for key in _keys(entry):
                with contextlib.suppress(FileNotFoundError):
                    size += sum(self._files.size(one.path) for one in self._sources(key))
                size -= self._store.known(key, entry.id).size_bytes
        return max(size, 0)

    def _folder(self, key: TopicPartition) -> str:
        return f"{self._path}/{key}"

    # Partitions

    def _copy_all(self, catalog: Catalog) -> None:
        entries = sorted(catalog.entries(), key=lambda entry: _FIRST.get(entry.name, len(_FIRST)))
        # Before the records: a log start that is read later could lie behind what was copied.
        starts, cleaned = self._known_offsets()
        self._cleaned = cleaned
        recovery_points = self._checkpoint(checkpoints.RECOVERY_POINTS) or {}
        self._durable_ends = {**recovery_points, **self._recovered_ends}
        for entry in entries:
            for key in _keys(entry):
                log_start_offset = starts.get(key, 0)
                copied = self._copy_partition(key, entry.id, log_start_offset)
                self._keep_end(key, copied, log_start_offset, self._durable_ends.get(key, 0))
                self._store.keep(key, copied)
        self._find_missing_segments(starts)
        self._note_cleaned(cleaned)

    def _known_offsets(self) -> SealedOffsets:
        of_kafka = SealedOffsets(
            self._checkpoint(checkpoints.LOG_STARTS) or {}, self._checkpoint(checkpoints.CLEANED)
        )  # fmt: skip
        return sealed_offsets.read_in_force(self._path, self._files, self._segment_list(), of_kafka)

    def _find_missing_segments(self, starts: Mapping[TopicPartition, int]) -> None:
        """Find segments that were removed from a directory that no broker writes to.

        A broker that has started since may have deleted segments itself; it has removed the mark of a clean stop first.
        """
        is_clean = self._files.exists(f"{self._path}/{CLEAN}")
        if not is_clean and self._overlay is None:
            return
        segment_list = self._segment_list()
        listed = {} if segment_list is None else segment_list.segments
        for key, copied in self._store.draft.partitions.items():
            if not copied.segments:
                continue
            bases = listed.get(key, ())
            copied.note_taken_away(bases)
            start = known_start(self._leader_epochs(key), starts.get(key), is_clean=is_clean)
            start = min(bases, default=None) if start is None else start
            if start is not None and start < copied.segments[0].base_offset:
                copied.segments.insert(0, self._store.new_segment(key, start))
                copied.log_start_offset = start
                copied.note_missing(1, start)

    def _segment_list(self) -> SegmentList | None:
        """Return the list that the last clean stop has left; None if that is not known."""
        with contextlib.suppress(FileNotFoundError, Malformed):
            return CleanStop.read(self._path, self._files).read_segment_list()
        return None

    def _leader_epochs(self, key: TopicPartition) -> list[tuple[int, int]] | None:
        """Return the leader epochs of a log; None if there are none that a log of Logmark can have."""
        with contextlib.suppress(FileNotFoundError, Malformed):
            epochs = checkpoints.read_epochs(self._files.read(f"{self._folder(key)}/{EPOCHS}"))
            return None if any(epoch for epoch, _ in epochs) else epochs
        return None

    def _note_cleaned(self, before: Mapping[TopicPartition, int] | None) -> None:
        """Note which logs may have holes, and what the others lack; a log is in the checkpoint before its first one."""
        _, after = self._known_offsets()
        for key, partition in self._store.draft.partitions.items():
            if after is None or before is None:
                # Nobody knows any more, so any of them may.
                partition.cleaned_to = 0
            elif key in after:
                partition.cleaned_to = before.get(key, partition.log_start_offset)
            partition.note_gaps()

    def _keep_end(self, key: TopicPartition, copied: PartitionDraft, log_start_offset: int, end: int) -> None:
        """Add an empty segment at the known end of a log whose segments lack it, as a start does.

        Else a broker on the restored directory would give offsets out again.
        """
        if copied.log_end_offset >= end:
            return
        segment = self._store.new_segment(key, end)
        copied.segments.append(segment)
        if len(copied.segments) > 1:
            copied.note_missing(len(copied.segments) - 1, log_start_offset)
            return
        copied.log_start_offset = end
        if log_start_offset < end:
            problem = f"offsets {log_start_offset} to {end - 1} before it are missing"
            segment.damage.append(Damage(position=0, size_bytes=0, problem=problem))

    def _copy_partition(self, key: TopicPartition, topic_id: bytes, log_start_offset: int) -> PartitionDraft:
        for _ in range(TRIES_MAX):
            try:
                if not self._belongs(key, topic_id):
                    # A partition without a record has no folder; one of another topic is not the broker's either.
                    return PartitionDraft(topic_id=topic_id)
                copied = self._copy_folder(key, topic_id)
            except (FileNotFoundError, _Moved):
                time.sleep(PAUSE_S)
                continue
            first = copied.segments[0].base_offset if copied.segments else 0
            copied.log_start_offset = max(first, min(log_start_offset, copied.log_end_offset))
            return copied
        raise UserError(
            f"The segments of {key} in {self._path} changed faster than they could be copied. What was copied is "
            "kept; run the same command again."
        )

    def _belongs(self, key: TopicPartition, topic_id: bytes) -> bool:
        try:
            content = self._files.read(f"{self._folder(key)}/{METADATA}")
            return checkpoints.read_partition_metadata(content) == topic_id
        except FileNotFoundError:
            return False
        except Malformed as error:
            raise UserError(
                f"{self._folder(key)}/{METADATA} cannot be read: {error}. What was copied is kept. "
                "Repair the directory (`logmark verify` shows what is wrong) and run the same command again."
            ) from None

    def _copy_folder(self, key: TopicPartition, topic_id: bytes) -> PartitionDraft:
        known = self._store.known(key, topic_id)
        stored = {segment.base_offset: segment for segment in known.segments}
        copied = PartitionDraft(topic_id=topic_id)
        sources = self._sources(key)
        covered = 0
        for at, source in enumerate(sources):
            if source.base_offset < covered:
                # A compacted segment that is about to replace it holds what is left of it.
                continue
            with self._opened(source.path) as file:
                segment = self._continued(file, stored.get(source.base_offset), is_last=source is sources[-1])
                if segment is None:
                    segment = self._store.new_segment(key, source.base_offset, origin=file.identity)
                copied.segments.append(segment)
                # Before it is copied, so that an interrupted run knows what it has of it.
                self._store.keep(key, _with_rest(copied, known))
                if file.size > segment.size_bytes:
                    file.make_durable()
                    following = sources[at + 1].base_offset if at + 1 < len(sources) else None
                    self._copy_batches(key, file, segment, source, following)
            if source.is_swap:
                covered = segment.next_offset
        self._check_unmoved(key, topic_id, copied)
        return copied

    def _check_unmoved(self, key: TopicPartition, topic_id: bytes, copied: PartitionDraft) -> None:
        """Check that the segments belong together: retention may have taken the oldest since, nothing else."""
        if not self._belongs(key, topic_id):
            raise _Moved
        present = {source.base_offset: self._identity(source.path) for source in self._sources(key)}
        taken = {segment.base_offset: segment.origin for segment in copied.segments}
        first, last = min(present, default=0), max(taken, default=-1)
        for base_offset, origin in taken.items():
            if present.get(base_offset, origin) != origin or (base_offset not in present and base_offset > first):
                raise _Moved
        covered = {segment.base_offset: segment.next_offset for segment in copied.segments}
        for base_offset in present:
            if base_offset <= last and base_offset not in taken:
                before = max((base for base in covered if base < base_offset), default=None)
                if before is None or covered[before] <= base_offset:
                    raise _Moved

    # Segments

    def _opened(self, path: str) -> "contextlib.AbstractContextManager[_OpenSegment]":
        if self._overlay is not None:
            return contextlib.closing(_RecoveredSegment(self._overlay.open(path), self._identity(path)))
        return contextlib.closing(_OpenSegment(path))

    def _identity(self, path: str) -> str:
        """Return what distinguishes a file from another one at its path; nothing for one that the WAL has changed."""
        return "" if self._overlay is not None and self._overlay.is_changed(path) else _identity(os.stat(path))

    def _sources(self, key: TopicPartition) -> Sequence[_Source]:
        return _sources(self._folder(key), self._files.listdir(self._folder(key)))

    def _continued(
        self, file: "_OpenSegment", known: SegmentDraft | None, *, is_last: bool
    ) -> SegmentDraft | None:  # fmt: skip
        """Return the stored segment, if it is the beginning of this file and can be trusted."""
        if known is None or file.size < known.size_bytes or not self._store.is_sound(known):
            return None
        if file.identity and known.origin == file.identity:
            is_same = self._has_same_tail(file, known)
        else:
            is_same = checksum(lambda size, at: file.read(at, size), known.size_bytes) == known.crc
        if not is_same:
            return None
        continued = known.copy(origin=file.identity)
        # Behind damage nobody knows which offset comes next: the segment is then read from its beginning.
        return None if continued.damage and (is_last or file.size > continued.size_bytes) else continued

    def _has_same_tail(self, file: "_OpenSegment", known: SegmentDraft) -> bool:
        size = min(TAIL_BYTES, known.size_bytes)
        at = known.size_bytes - size
        return file.read(at, size) == self._store.read(known, at, size)

    def _copy_batches(
        self, key: TopicPartition, file: "_OpenSegment", segment: SegmentDraft, source: _Source, following: int | None
    ) -> None:
        """Copy what is new; `following` is the base offset of the next segment, None for the last one."""
        durable_end = self._durable_ends.get(key, 0) if following is None else None
        stretches = walk(
            _Batches(source.base_offset, file.read),
            segment.size_bytes,
            file.size,
            expected=segment.next_offset,
            is_dense=self._is_dense(key, source, following),
            entries=self._index_entries(source),
            # One that compaction has just made may hold the records of the segments behind it too.
            following=None if source.is_swap else following,
            known_end=durable_end,
        )
        with self._store.writer(segment) as writer:
            for stretch in stretches:
                if stretch.problem is None:
                    writer.append(stretch.data, stretch.next_offset)
                elif stretch.is_tail and durable_end is not None and stretch.next_offset >= durable_end:
                    # A batch that is being written at this moment, or was when the broker died.
                    return
                elif not stretch.size_bytes:
                    writer.append_damage(b"", stretch.problem)
                else:
                    if durable_end is not None:
                        # A batch whose leader epoch is wrong has its offsets all the same: nobody else gets them.
                        self._durable_ends[key] = max(durable_end, stretch.next_offset)
                    for at in range(stretch.position, stretch.position + stretch.size_bytes, READ_BYTES):
                        left = stretch.position + stretch.size_bytes - at
                        writer.append_damage(file.read(at, min(READ_BYTES, left)), stretch.problem)

    def _is_dense(self, key: TopicPartition, source: _Source, following: int | None) -> bool:
        """Return whether a segment has no holes: it was never cleaned, as far as is known."""
        if source.is_swap or self._cleaned is None:
            return False
        cleaned_to = self._cleaned.get(key)
        return cleaned_to is None or (following is None and source.base_offset >= cleaned_to)

    def _index_entries(self, source: _Source) -> list[tuple[int, int]]:
        """Return the entries of a segment's offset index as far as they are on disk; none if it has none."""
        path = source.path.removesuffix(SWAP).removesuffix(LOG) + INDEX
        with contextlib.suppress(FileNotFoundError):
            index = OffsetIndex(source.base_offset, self._files.read(path))
            return [index[at] for at in range(len(index))]
        return []


class _Batches(NamedTuple):
    """A segment of the source as a scan for damage reads it."""

    base_offset: int
    read: Callable[[int, int], bytes]


class _OpenSegment:
    """A segment of the source, with its size at the moment when it was opened."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stat = os.fstat(self._descriptor)
        self.size = stat.st_size
        self.identity = _identity(stat)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def make_durable(self) -> None:
        """Put on disk what was written so far, so that a power cut does not leave the log with less than the copy.

        The copy may end with batches that were never acknowledged; the next run copies what the log has there then.
        """
        _make_durable(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class _RecoveredSegment(_OpenSegment):
    """A segment of a crashed source as the WAL will make it; what the WAL has is on disk already."""

    def __init__(self, file: File, identity: str) -> None:
        self._file = file
        self.size = file.size()
        self.identity = identity

    def read(self, position: int, size: int) -> bytes:
        return self._file.pread(size, position)

    def make_durable(self) -> None:
        """Do nothing: the recovery points and the WAL are durable."""

    def close(self) -> None:
        self._file.close()


def _with_rest(copied: PartitionDraft, known: PartitionDraft) -> PartitionDraft:
    """Return what has been copied, and of what follows it what was stored before."""
    behind = copied.segments[-1].base_offset
    return PartitionDraft(
        topic_id=copied.topic_id, log_start_offset=copied.log_start_offset,
        segments=[*copied.segments, *(one for one in known.segments if one.base_offset > behind)],
    )  # fmt: skip


def _keys(entry: Entry) -> Iterator[TopicPartition]:
    return (TopicPartition(entry.name, index) for index in range(entry.partitions))


def _shape(catalog: Catalog) -> list[tuple[str, bytes, int]]:
    return [(entry.name, entry.id, entry.partitions) for entry in catalog.entries()]


def _sources(folder: str, names: Sequence[str]) -> Sequence[_Source]:
    """Return the segments in a folder; one that compaction has finished counts for those that it replaces."""
    found: dict[int, _Source] = {}
    for name in sorted(names):
        if name[:20].isdigit() and name[20:] in (LOG, SWAP):
            base_offset = int(name[:20])
            found[base_offset] = _Source(base_offset, f"{folder}/{name}", name.endswith(SWAP))
    return [found[base_offset] for base_offset in sorted(found)]


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}"


def _make_durable(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A directory that is mounted read-only has nothing to sync.
        if error.errno not in (errno.EROFS, errno.EINVAL, errno.ENOTSUP):
            raise


def _identify(path: str, files: FileSystem) -> Identity:
    """Return the identity of a directory of ours; raise UserError if it is none, or no start would accept it."""
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        raise UserError(f"The data directory {path} {what}. Nothing was copied.", exit_code=2)
    if not os.path.exists(f"{path}/{CATALOG}"):
        if os.path.exists(f"{path}/{META}"):
            raise DirectoryOfKafka(
                f"Apache Kafka wrote the data directory {path}, and Logmark copies only its own. Nothing was copied.",
                exit_code=2,
            )
        raise UserError(
            f"{path} is no data directory of Logmark: it has no {CATALOG}. Nothing was copied.", exit_code=2
        )
    return identity.read(path, files)
