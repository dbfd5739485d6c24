"""The repair of a verified data directory: what is damaged is cut out, what is derived is made again.

No offset changes. What is lost is replaced by an empty batch that covers its offsets, as compaction leaves one: every
reader continues behind it, and a log without gaps stays one. The bytes that were cut out are kept beside the segment,
under a suffix that no broker looks at. A segment is exchanged the way compaction exchanges one (`.cleaned`, `.swap`,
then the name itself), so that a repair which is cut short is undone or finished by the next start, Apache Kafka's too.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from logmark.disk.file_system import File, FileSystem
from logmark.errors import Malformed, UserError
from logmark.log import checkpoints, chunks
from logmark.log.added_files import Addition, set_aside
from logmark.log.clean_stop import CLEAN
from logmark.log.damage import Damage
from logmark.log.file_formats import BATCH_HEADER
from logmark.log.findings import Finding, PartitionFindings, SegmentFindings, of_damage
from logmark.log.folder import METADATA
from logmark.log.index import RELATIVE_OFFSET_MAX, TimeIndex
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.scanner import CHUNK_BYTES, HEAD_BYTES
from logmark.log.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from logmark.log.segment_cleaner import CLEANED
from logmark.log.segment_swap import SWAP, finish_interrupted
from logmark.log.transactions import AbortedTransactions
from logmark.log.verification import Verified
from logmark.names import TopicPartition
from logmark.wire import batches, columns
from logmark.wire.columns import HEADER_BYTES

INDEX_INTERVAL_BYTES = 4096
DAMAGED = ".damaged"


def check_recovered(path: str, *, has_wal: bool) -> None:
    """Refuse a directory with a WAL: its segments are not yet what they will be."""
    if has_wal:
        raise UserError(
            f"A crash has left a write-ahead log in {path}, and a repair must not go before its recovery. Nothing was "
            f"changed. Run `logmark recover {path}` first."
        )


def empty_batch(first_offset: int, next_offset: int, *, leader_epoch: int) -> bytes:
    """Return a batch without records that covers the offsets from one up to, excluding, another."""
    batch = bytearray(HEADER_BYTES)
    delta = next_offset - first_offset - 1
    fields = (0, delta, -1, -1, -1, -1, -1, 0)
    BATCH_HEADER.pack_into(batch, 0, first_offset, HEADER_BYTES - 12, leader_epoch, batches.MAGIC, 0, *fields)
    struct.pack_into(">I", batch, 17, columns.crc32c(batch, HEAD_BYTES, HEADER_BYTES - HEAD_BYTES))
    return bytes(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change that is done wholly or not at all."""

    description: str
    run: Callable[[], None]

    def __str__(self) -> str:
        return self.description


class Repair:
    """What would be lost, what would be done, and then the doing; the caller holds the directory's lock."""

    def __init__(self, verified: Verified, files: FileSystem) -> None:
        """Plan the repair; raises UserError for a directory that was not recovered."""
        check_recovered(verified.path, has_wal=verified.has_wal)
        self._verified = verified
        self._files = files
        self._on_progress: Callable[[int], None] = lambda size: None
        self.losses: list[Finding] = []
        self.steps: list[Step] = []
        self.kept: list[str] = []
        self.size_bytes = 0
        if verified.is_exchanged:
            raise UserError(
                f"Folders or files of partitions in {verified.path} were exchanged, and a repair would make that "
                "permanent. Nothing was changed. Put each back in its place first."
            )
        for name, offsets in verified.right_offsets.items():
            self._add(f"write {name} again with what is known of the logs", self._write_offsets, name, offsets)
        for folder, additions in verified.additions.items():
            self._add(f"keep what was added to {folder} in files that nobody reads", self._leave_out, folder, additions)
        for folder, left_over in verified.interrupted_swaps.items():
            self._add(f"finish the compaction of {folder}", self._finish_swaps, folder, left_over)
        for found in verified.partitions:
            self._plan(found)
        for name in (one for one in verified.wrong_checkpoints if one not in verified.right_offsets):
            self._add(f"set {name} aside", self._set_aside, name)

    def apply(self, on_progress: Callable[[int], None] = lambda size: None) -> None:
        """Run every step; `on_progress` is called with the number of bytes written."""
        self._on_progress = on_progress
        known = len(self._verified.right_offsets)
        for step in self.steps[:known]:
            step.run()
        if self.steps[known:]:
            # The list is of the segments as they were. What it says of offsets is in Kafka's files now.
            self._forget_list()
        for step in self.steps[known:]:
            step.run()

    def _forget_list(self) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(self._path(checkpoints.SEGMENTS))
            self._files.sync_directory(self._verified.path)

    def _add(self, description: str, run: Callable[..., None], *arguments: object) -> None:
        self.steps.append(Step(description=description, run=partial(run, *arguments)))

    def _plan(self, found: PartitionFindings) -> None:
        must_check = bool(found.wrong_snapshots)
        for segment in found.segments:
            name = f"{found.folder}/{file_name(segment.base_offset, LOG)}"
            damage = _find_damage(segment)
            if damage:
                self.losses += [of_damage(name, one) for one in damage if one.right_head is None]
                self.size_bytes += segment.size_bytes
                self._add(f"write {name} anew, and its indexes", self._rewrite, found, segment)
            elif segment.indexes_are_wrong:
                self._add(f"make the indexes of {name} again; nothing is lost", self._index, found, segment)
            if segment.aborts_are_wrong:
                path = f"{found.folder}/{file_name(segment.base_offset, TXN_INDEX)}"
                if segment.aborted is not None:
                    self._add(f"make {path} again from the log; nothing is lost", self._write_aborted, path, segment)
                else:
                    must_check = True
                    self._add(f"set {path} aside; the next start makes it again from the log", self._set_aside, path)
        for name in found.wrong_snapshots:
            self._add(f"set {found.folder}/{name} aside", self._set_aside, f"{found.folder}/{name}")
        if found.epochs_are_wrong:
            self._add(f"write {found.folder}/{EPOCHS} again from the log", self._write_epochs, found)
        if found.metadata_is_wrong and found.folder.rpartition("-")[0] in self._verified.topic_ids:
            self._add(f"write {found.folder}/{METADATA} again from the catalogue", self._write_metadata, found)
        if must_check:
            self._add(f"have the next start check {found.folder} from its beginning", self._have_checked, found)

    # Segments

    def _leave_out(self, folder: str, additions: list[Addition]) -> None:
        set_aside(self._path(folder), additions, self._files)

    def _finish_swaps(self, folder: str, left_over: list[str]) -> None:
        finish_interrupted(self._path(folder), left_over, self._files)

    def _path(self, name: str) -> str:
        return f"{self._verified.path}/{name}"

    def _rewrite(self, found: PartitionFindings, segment: SegmentFindings) -> None:
        stem = self._path(f"{found.folder}/{segment.base_offset:020d}")
        folder = self._path(found.folder)
        source = self._files.open(stem + LOG)
        target = self._files.open(stem + LOG + CLEANED, create=True)
        try:
            target.truncate(0)
            at = 0
            for data in self._pieces(found, segment, source, stem):
                target.pwrite(data, at)
                at += len(data)
                self._on_progress(len(data))
            target.sync()
            offsets, times = _indexes(target, at, segment.base_offset)
            self._files.write(stem + INDEX + CLEANED, offsets)
            self._files.write(stem + TIME_INDEX + CLEANED, times)
            # What finishes an interrupted swap removes the old files, so what stays as it is has to come along.
            has_aborted = self._files.exists(stem + TXN_INDEX)
            if has_aborted:
                self._files.write(stem + TXN_INDEX + CLEANED, self._files.read(stem + TXN_INDEX))
            self._files.sync_directory(folder)
        except BaseException:
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
                with suppress(FileNotFoundError):
                    self._files.remove(stem + suffix + CLEANED)
            raise
        finally:
            source.close()
            target.close()
        indexes = (INDEX, TIME_INDEX, TXN_INDEX) if has_aborted else (INDEX, TIME_INDEX)
        # The log comes last at first, and first in the end: a start that finds it as .swap finds its indexes too.
        for suffixes, old, new in ((indexes, CLEANED, SWAP), ((LOG,), CLEANED, SWAP), ((LOG,), SWAP, ""),
                                   (indexes, SWAP, "")):  # fmt: skip
            for suffix in suffixes:
                self._files.replace(stem + suffix + old, stem + suffix + new)
            self._files.sync_directory(folder)

    def _pieces(
        self, found: PartitionFindings, segment: SegmentFindings, source: File, stem: str
    ) -> Iterator[bytes]:  # fmt: skip
        """Yield the segment without what is damaged, in chunks."""
        position = 0
        for damage in _find_damage(segment):
            yield from _copied(source, position, damage.position)
            position = damage.position + damage.size_bytes
            if damage.right_head is not None:
                yield damage.right_head
                yield from _copied(source, damage.position + HEAD_BYTES, position)
                continue
            if damage.size_bytes:
                self._keep(source, damage, f"{stem}{LOG}{DAMAGED}-{damage.position}")
            if damage.next_offset is not None and damage.next_offset > damage.first_offset:
                epoch = max((one for one, start in found.epochs if start <= damage.first_offset), default=0)
                yield empty_batch(damage.first_offset, damage.next_offset, leader_epoch=epoch)
        yield from _copied(source, position, segment.size_bytes)

    def _keep(self, source: File, damage: Damage, path: str) -> None:
        """Keep the bytes of a damaged range."""
        path = self._free_name(path)
        kept = self._files.open(path, create=True)
        try:
            at = 0
            for data in _copied(source, damage.position, damage.position + damage.size_bytes):
                kept.pwrite(data, at)
                at += len(data)
            kept.sync()
        finally:
            kept.close()
        self.kept.append(path)

    def _free_name(self, path: str) -> str:
        number, free = 1, path
        while self._files.exists(free):
            number, free = number + 1, f"{path}.{number}"
        return free

    def _index(self, found: PartitionFindings, segment: SegmentFindings) -> None:
        stem = self._path(f"{found.folder}/{segment.base_offset:020d}")
        file = self._files.open(stem + LOG)
        try:
            size = file.size() if segment.torn is None else segment.torn.position
            offsets, times = _indexes(file, size, segment.base_offset)
        finally:
            file.close()
        self._files.write_atomically(stem + INDEX, offsets)
        self._files.write_atomically(stem + TIME_INDEX, times)

    # What is said of a log beside it

    def _set_aside(self, name: str) -> None:
        path = self._path(name)
        if self._files.exists(path):
            aside = self._free_name(path + DAMAGED)
            self._files.replace(path, aside)
            self._files.sync_directory(path.rpartition("/")[0])
            self.kept.append(aside)

    def _write_aborted(self, name: str, segment: SegmentFindings) -> None:
        path = self._path(name)
        if segment.aborted:
            self._files.write_atomically(path, AbortedTransactions(segment.aborted).encode())
        else:
            self._set_aside(name)

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._files.write_atomically(self._path(name), checkpoints.write_offsets(offsets))

    def _write_epochs(self, found: PartitionFindings) -> None:
        self._files.write_atomically(self._path(f"{found.folder}/{EPOCHS}"), checkpoints.write_epochs(found.epochs))

    def _write_metadata(self, found: PartitionFindings) -> None:
        topic_id = self._verified.topic_ids[found.folder.rpartition("-")[0]]
        path = self._path(f"{found.folder}/{METADATA}")
        self._files.write_atomically(path, checkpoints.write_partition_metadata(topic_id))

    def _have_checked(self, found: PartitionFindings) -> None:
        """Remove the mark of a clean stop and the recovery point: the next start reads every batch again."""
        path = self._path(checkpoints.RECOVERY_POINTS)
        topic, _, index = found.folder.rpartition("-")
        with suppress(FileNotFoundError, Malformed):
            points = checkpoints.read_offsets(self._files.read(path))
            points.pop(TopicPartition(topic, int(index)), None)
            self._files.write_atomically(path, checkpoints.write_offsets(points))
        with suppress(FileNotFoundError):
            self._files.remove(self._path(CLEAN))
            self._files.sync_directory(self._verified.path)


def _find_damage(segment: SegmentFindings) -> list[Damage]:
    """Return what a new segment file has to leave out or put right, in order."""
    damage = [*segment.damage, *([] if segment.gap is None else [segment.gap])]
    if damage and segment.torn is not None:
        damage.append(segment.torn)
    return [one for one in damage if (one.next_offset or 0) - segment.base_offset <= RELATIVE_OFFSET_MAX]


def _copied(source: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = source.pread(min(CHUNK_BYTES, end - start), start)
        if not data:
            raise UserError(f"{source.path} became shorter while it was read. Nothing of it was changed.")
        yield data
        start += len(data)


def _indexes(file: File, size: int, base_offset: int) -> tuple[bytearray, bytearray]:
    """Return both indexes of a segment file, and check every batch again on the way."""
    offsets, times = bytearray(), TimeIndex(base_offset)
    state = array("q", (0, -1, base_offset, -1, -1))

    def check(data: bytes, position: int, expected: int) -> tuple[int, int, str | None, Sequence[int]]:
        sound, following, problem, positions = columns.index_batches(
            data, expected=expected, is_dense=False, position=position, base_offset=base_offset,
            interval=INDEX_INTERVAL_BYTES, state=state, offset_entries=offsets, time_entries=times.data,
        )  # fmt: skip
        return sound, following, batches.damage(problem), positions

    for chunk in chunks.read_chunks(
        lambda position, wanted: file.pread(wanted, position), 0, size, expected=base_offset, check=check,
        chunk_bytes=CHUNK_BYTES,
    ):  # fmt: skip
        if chunk.problem is not None:
            where = f"byte {chunk.position + chunk.sound}"
            raise UserError(f"{file.path} is not sound at {where} ({chunk.problem}). It was left as it was.")
    times.last_timestamp = state[3]
    times.append_if_later(state[1], state[2])
    return offsets, times.data
