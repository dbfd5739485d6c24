"""A backup of a data directory, while its broker runs or not: segments only grow, so they can be copied at any time.

Committed offsets are copied before the records, so that none of them points behind the records that were copied; the
catalogue is read again at the end, so that it knows every producer id in them. When topics came or went meanwhile,
another round copies what has changed since.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from logmark import properties
from logmark.backup.draft import Draft, PartitionDraft, SegmentDraft
from logmark.backup.manifest import DIRECTORY, Manifest
from logmark.backup.store import Store, checksum
from logmark.backup.stretches import walk
from logmark.clock import Clock
from logmark.errors import Malformed, UserError
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog, Entry
from logmark.log.directory import META
from logmark.log.partition import METADATA
from logmark.log.segment import LOG
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
        """Refuses what is no data directory of ours."""
        self._path = path
        self._clock = clock
        self._meta = _meta(path)

    def copy(self, store: Store, *, expect: Callable[[int], None]) -> Manifest:
        """A complete backup of the directory as it is now; `expect` is told how many bytes are to come."""
        self._store = store
        draft = Draft(
            kind=DIRECTORY,
            source=self._path,
            cluster_id=self._meta["cluster.id"],
            node_id=int(self._meta["node.id"]),
        )
        catalog = self._catalog()
        store.begin(draft)
        for _ in range(ROUNDS_MAX):
            expect(self._size_to_come(catalog))
            self._copy_all(catalog)
            before, catalog = catalog, self._catalog()
            if _shape(before) == _shape(catalog):
                return self._finish(draft, catalog)
        raise UserError(
            f"Topics of {self._path} came and went during each of {ROUNDS_MAX} rounds. What was copied is kept; "
            "run the same command again when fewer topics are created and deleted."
        )

    def _finish(self, draft: Draft, catalog: Catalog) -> Manifest:
        draft.topics = catalog.entries()
        draft.next_producer_id = catalog.next_producer_id
        draft.ended_ms = self._clock.now_ms()
        wanted = {key for entry in draft.topics for key in _keys(entry)}
        draft.partitions = {key: draft.partitions[key] for key in sorted(draft.partitions) if key in wanted}
        draft.notes = [
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
            return Catalog(file.read(), write=lambda _: None, path=path)

    def _checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """The offsets in a checkpoint, None when it cannot be read."""
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
                    size += sum(os.stat(one.path).st_size for one in _sources(self._folder(key)))
                size -= self._store.known(key, entry.id).size_bytes
        return max(size, 0)

    def _folder(self, key: TopicPartition) -> str:
        return f"{self._path}/{key}"

    # Partitions

    def _copy_all(self, catalog: Catalog) -> None:
        entries = sorted(catalog.entries(), key=lambda entry: _FIRST.get(entry.name, len(_FIRST)))
        # Before the records: a log start that is read later could lie behind what was copied.
        log_starts = self._checkpoint(checkpoints.LOG_STARTS) or {}
        cleaned = self._checkpoint(checkpoints.CLEANED)
        for entry in entries:
            for key in _keys(entry):
                self._store.keep(key, self._copy_partition(key, entry.id, log_starts.get(key, 0)))
        self._note_cleaned(cleaned)

    def _note_cleaned(self, before: dict[TopicPartition, int] | None) -> None:
        """Notes which logs may have holes; a log is in the checkpoint before it gets its first."""
        after = self._checkpoint(checkpoints.CLEANED)
        for key, partition in self._store.draft.partitions.items():
            if after is None or before is None:
                # Nobody knows any more, so any of them may.
                partition.cleaned_to = 0
            elif key in after:
                partition.cleaned_to = before.get(key, partition.log_start_offset)

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
            with open(f"{self._folder(key)}/{METADATA}", "rb") as file:
                return checkpoints.read_partition_metadata(file.read()) == topic_id
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
        sources = _sources(self._folder(key))
        covered = 0
        for at, source in enumerate(sources):
            if source.base_offset < covered:
                # A compacted segment that is about to take its place holds what is left of it.
                continue
            descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                stat = os.fstat(descriptor)
                segment = self._continued(descriptor, stat, stored.get(source.base_offset))
                if segment is None:
                    segment = self._store.new_segment(key, source.base_offset, origin=_identity(stat))
                copied.segments.append(segment)
                # Before it is copied, so that an interrupted run knows what it has of it.
                self._store.keep(key, _with_rest(copied, known))
                if stat.st_size > segment.size_bytes:
                    _make_durable(descriptor)
                    self._copy_batches(descriptor, stat.st_size, segment, is_last=at == len(sources) - 1)
            finally:
                os.close(descriptor)
            if source.is_swap:
                covered = segment.next_offset
        self._check_unmoved(key, topic_id, copied)
        return copied

    def _check_unmoved(self, key: TopicPartition, topic_id: bytes, copied: PartitionDraft) -> None:
        """Sees to it that the segments belong together: retention may have taken the oldest since, nothing else."""
        if not self._belongs(key, topic_id):
            raise _Moved
        present = {source.base_offset: _identity(os.stat(source.path)) for source in _sources(self._folder(key))}
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

    def _continued(
        self, descriptor: int, stat: os.stat_result, known: SegmentDraft | None
    ) -> SegmentDraft | None:  # fmt: skip
        """The stored segment, when it is the beginning of this file and can be trusted."""
        if known is None or stat.st_size < known.size_bytes or not self._store.is_whole(known):
            return None
        is_same_file = known.origin == _identity(stat)
        if is_same_file and stat.st_size == known.size_bytes:
            is_same = self._has_same_tail(descriptor, known)
        elif is_same_file:
            # Nothing is put behind bytes that are no longer what they were.
            is_same = self._has_same_tail(descriptor, known) and self._store.is_sound(known)
        else:
            there = checksum(partial(os.pread, descriptor), known.size_bytes)
            is_same = there == known.crc and self._store.is_sound(known)
        if not is_same:
            return None
        return known.copy(origin=_identity(stat))

    def _has_same_tail(self, descriptor: int, known: SegmentDraft) -> bool:
        size = min(TAIL_BYTES, known.size_bytes)
        at = known.size_bytes - size
        return os.pread(descriptor, size, at) == self._store.read(known, at, size)

    def _copy_batches(
        self, descriptor: int, size: int, segment: SegmentDraft, *, is_last: bool
    ) -> None:  # fmt: skip
        def read(position: int, wanted: int) -> bytes:
            return os.pread(descriptor, wanted, position)

        with self._store.writer(segment) as writer:
            for stretch in walk(read, segment.size_bytes, size, expected=segment.next_offset):
                if stretch.problem is None:
                    writer.append(stretch.data, stretch.next_offset)
                elif stretch.is_tail and is_last:
                    # A batch that is being written at this moment, or was when the broker died.
                    return
                else:
                    for at in range(stretch.position, stretch.position + stretch.size_bytes, READ_BYTES):
                        left = stretch.position + stretch.size_bytes - at
                        writer.append_damage(read(at, min(READ_BYTES, left)), stretch.problem)


def _with_rest(copied: PartitionDraft, known: PartitionDraft) -> PartitionDraft:
    """What has been copied, and of what follows it what was stored before."""
    behind = copied.segments[-1].base_offset
    return PartitionDraft(
        topic_id=copied.topic_id, log_start_offset=copied.log_start_offset,
        segments=[*copied.segments, *(one for one in known.segments if one.base_offset > behind)],
    )  # fmt: skip


def _keys(entry: Entry) -> Iterator[TopicPartition]:
    return (TopicPartition(entry.name, index) for index in range(entry.partitions))


def _shape(catalog: Catalog) -> list[tuple[str, bytes, int]]:
    return [(entry.name, entry.id, entry.partitions) for entry in catalog.entries()]


def _sources(folder: str) -> Sequence[_Source]:
    """The segments in a folder; one that compaction has finished stands for those that it replaces."""
    found: dict[int, _Source] = {}
    for name in sorted(os.listdir(folder)):
        if name[:20].isdigit() and name[20:] in (LOG, SWAP):
            base_offset = int(name[:20])
            found[base_offset] = _Source(base_offset, f"{folder}/{name}", name.endswith(SWAP))
    return [found[base_offset] for base_offset in sorted(found)]


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}"


def _make_durable(descriptor: int) -> None:
    """Puts on disk what was written so far: a copy must not know more than the log after a power cut."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A directory that is mounted read-only has nothing to sync.
        if error.errno not in (errno.EROFS, errno.EINVAL, errno.ENOTSUP):
            raise


def _meta(path: str) -> dict[str, str]:
    """What meta.properties says of a directory of ours; a sentence when it is none."""
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        raise UserError(f"The data directory {path} {what}. Nothing was copied.", exit_code=2)
    if not os.path.exists(f"{path}/{CATALOG}"):
        is_kafka = os.path.exists(f"{path}/{META}")
        raise UserError(
            f"Apache Kafka wrote the data directory {path}. Nothing was copied. Back it up through its brokers: "
            "logmark backup --bootstrap-servers HOST:PORT DEST"
            if is_kafka
            else f"{path} is no data directory of Logmark: it has no {CATALOG}. Nothing was copied.",
            exit_code=2,
        )
    meta = properties.read(f"{path}/{META}")
    if "cluster.id" not in meta or not meta.get("node.id", "").isdigit():
        raise UserError(f"{path}/{META} is not whole. Nothing was copied. Restore that file from a copy.")
    return meta
