"""Recovery from the WAL: writes every entry to its segment and cuts each partition behind its last one.

The WAL says exactly what was acknowledged, so nothing is guessed from the content of a segment:

1. The entries are read in their order. The first one that is not intact, with none behind it, is where the crash came:
   no client got an answer for it. One with intact entries behind it is damage at rest, which is reported; the others
   count, and nothing is cut: what a damaged entry held may still be in its segment. If it is not, the offset index
   names what follows, so that the damage costs no other record.
2. For each partition the runs above its recovery point are written to their segments. What a segment holds behind the
   last run, or behind the recovery point of a partition without runs, is cut away: it was never acknowledged. A run
   that goes back replaces what was there: the log was cut back there while the broker ran.
3. Segments and names are synced. Only then may the WAL go.

All of it can be done again: a crash in a recovery is repaired by the next one.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed, UserError
from logmark.log.index import OffsetIndex
from logmark.log.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from logmark.log.wal import inventory, saved_entries
from logmark.log.wal.entries import Run, partition_key, split_key
from logmark.log.wal.files import SUFFIX, FileReader, Found
from logmark.log.wal.recovery_points import FILE_NAME, FOLDER, RecoveryPoint, RecoveryPoints
from logmark.log.wal.saved_entries import SavedRuns
from logmark.wire import batches
from logmark.wire.batches import BatchHeader

logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """What recovery has made of a partition: where it was durable before, and where the log ends now."""

    recovery_point: int
    end: int
    # Whether every byte that was kept is known from the WAL, and so is synced.
    is_whole: bool = True


@dataclass(slots=True, kw_only=True)
class WalContent:
    """Everything that a WAL holds and a recovery needs."""

    points: RecoveryPoints
    # The runs of each partition, in the order in which they were appended.
    runs: dict[bytes, list[Run]] = field(default_factory=dict)
    entry_count: int = 0
    next_number: int = 1
    # Numbers of entries that were acknowledged and are damaged: first and last of each stretch.
    damaged: list[tuple[int, int]] = field(default_factory=list)
    # Partitions of which some entries that were saved aside are damaged.
    damaged_partitions: set[bytes] = field(default_factory=set)

    def is_whole(self, key: bytes) -> bool:
        """Return whether nothing is damaged that could hold batches of a partition."""
        return not self.damaged and key not in self.damaged_partitions


def read(directory: str, directory_id: bytes, files: FileSystem) -> WalContent:
    """Return the content of a directory's WAL.

    Raises UserError if the WAL belongs to another directory, if one of its files is missing or cut short, or if its
    recovery points or a file's header cannot be read.
    """
    folder = f"{directory}/{FOLDER}"
    try:
        points = RecoveryPoints.decode(files.read(f"{folder}/{FILE_NAME}"))
    except (Malformed, FileNotFoundError) as error:
        raise UserError(
            f"The write-ahead log {folder} cannot be used: {error}. It holds acknowledged records that are not yet in "
            f"the segments. Nothing was changed. Restore {FILE_NAME} from a copy, or restore a backup."
        ) from None
    owner = inventory.check(folder, files)
    if owner is not None and owner.directory_id != directory_id:
        raise _of_another_directory(folder)
    content = WalContent(points=points, next_number=points.first_entry)
    with ExitStack() as opened:
        readers = [
            opened.enter_context(closing(FileReader(f"{folder}/{name}", files)))
            for name in files.listdir(folder)
            if name.endswith(SUFFIX)
        ]
        _check_headers(readers)
        files_of = {FILE_NAME: points.wal_id} | {
            os.path.basename(reader.path): reader.header.wal_id for reader in readers if reader.header
        }
        _check_ids(files_of, owner, directory_id, folder)
        _take_all(_entries(readers), content)
    for name in files.listdir(folder):
        if saved_entries.is_saved(name):
            found = saved_entries.read(folder, name, files)
            _check_ids({name: found.wal_id}, owner, directory_id, folder)
            content.runs[found.key] = _merge(found, content.runs.get(found.key, []))
            if not found.is_whole:
                content.damaged_partitions.add(found.key)
                logger.error("entries in %s/%s are damaged", folder, name)
    return content


def _merge(found: SavedRuns, runs: list[Run]) -> list[Run]:
    """Return the runs that were saved aside, and behind them those that the WAL has of the same partition."""
    return found.runs + [run for run in runs if run.end_offset > found.end_offset]


def runs_above(directory: str, key: bytes, point: RecoveryPoint, end: int, files: FileSystem) -> list[Run]:
    """Return what a running broker's WAL, saved entries included, has of one partition between two offsets.

    Raises OSError if something of it is damaged.
    """
    folder = f"{directory}/{FOLDER}"
    names = files.listdir(folder)
    with ExitStack() as opened:
        readers = [
            opened.enter_context(closing(FileReader(f"{folder}/{name}", files)))
            for name in names
            if name.endswith(SUFFIX)
        ]
        intact = {found.header.number: found.runs for found in _entries(readers) if found.runs is not None}
    runs = [
        run
        for _, entry in sorted(intact.items())
        for run in entry
        if partition_key(run.topic_id, run.partition) == key
    ]
    name = os.path.basename(saved_entries.path_of(folder, key))
    if name in names:
        found = saved_entries.read(folder, name, files)
        if not found.is_whole:
            raise OSError(errno.EIO, "the entries that were saved aside are damaged", f"{folder}/{name}")
        runs = _merge(found, runs)
    return [run for run in runs if run.data and point.offset < run.end_offset <= end]


def rewrite(folder: str, point: RecoveryPoint, runs: list[Run], files: FileSystem) -> int:
    """Write the runs of a partition to its segments again, cut behind the last one and sync; returns the end."""
    return _PartitionReplay(folder, files).run(point, runs, cut_tail=True)


def _check_headers(readers: Iterable[FileReader]) -> None:
    """Refuse a file whose header is damaged: its entries cannot be distinguished from those of an earlier use."""
    for reader in readers:
        if reader.header is None:
            raise UserError(
                f"Both copies of the header of {reader.path} are damaged. The file may hold acknowledged records that "
                "are not yet in the segments. Nothing was changed. Restore the file from a copy, or restore a backup."
            )


def _check_ids(
    found: Mapping[str, bytes], owner: inventory.WalOwner | None, directory_id: bytes, folder: str
) -> None:
    """Raise UserError if a file is not one of this WAL; in an older version a file names only its directory."""
    if owner is None:
        if any(wal_id != directory_id for wal_id in found.values()):
            raise _of_another_directory(folder)
        return
    for name, wal_id in found.items():
        if wal_id != owner.wal_id:
            raise UserError(
                f"{folder}/{name} is not of this write-ahead log, but of another one, perhaps of an earlier run: files "
                "of two moments were mixed. Nothing was changed. Put the files of one moment together again, or "
                "restore a backup."
            )


def _of_another_directory(folder: str) -> UserError:
    return UserError(
        f"The write-ahead log {folder} belongs to another data directory. Nothing was changed. Files of two "
        "directories were mixed: put the right ones together again."
    )


def _entries(readers: Iterable[FileReader]) -> Iterator[Found]:
    """Yield the entries of all files in the order of their sequence."""
    for reader in sorted((reader for reader in readers if reader.header), key=lambda reader: reader.header.sequence):  # type: ignore[union-attr]
        yield from reader.scan()


def _take_all(found: Iterable[Found], content: WalContent) -> None:
    """Add the intact entries; a number that is left out was damaged, because a later one proves it acknowledged.

    A number that is there twice was given again after a write that failed: the later one counts.
    """
    intact = {entry.header.number: entry.runs for entry in found if entry.runs is not None}
    for number, runs in sorted(intact.items()):
        if number < content.points.first_entry:
            continue
        if number > content.next_number:
            content.damaged.append((content.next_number, number - 1))
            logger.error("entries %d to %d of the write-ahead log are damaged", content.next_number, number - 1)
        content.next_number = number + 1
        content.entry_count += 1
        for run in runs:
            content.runs.setdefault(partition_key(run.topic_id, run.partition), []).append(run)


class Replay:
    """Brings the segments of a data directory to what its WAL says."""

    def __init__(
        self,
        content: WalContent,
        files: FileSystem,
        *,
        folder_of: Callable[[bytes, int], str | None],
        make_folder: Callable[[str, bytes], None],
    ) -> None:
        """Take what the WAL holds; `folder_of` names the folder of a partition, or None if the topic is deleted.

        `make_folder` makes a folder, and what a log has besides its segments, where they are missing.
        """
        self._content = content
        self._files = files
        self._folder_of = folder_of
        self._make_folder = make_folder

    def check(self) -> None:
        """Refuse a WAL that does not fit its segments; changes nothing."""
        for key, folder, _, runs in self._partitions():
            # What a damaged entry held is missing here too: that is found and reported when the segment is loaded.
            if runs and self._content.is_whole(key):
                _PartitionReplay(folder, self._files).check(runs)

    def run(self, *, is_repeated: bool = False) -> dict[bytes, Recovered]:
        """Write, cut and sync; return what became of each partition that the WAL knows.

        If the recovery `is_repeated`, what the first one cut and removed may be gone in memory only.
        """
        recovered: dict[bytes, Recovered] = {}
        for key, folder, point, runs in self._partitions():
            if runs:
                self._make_folder(folder, split_key(key)[0])
            elif not self._files.exists(folder):
                # Its files were taken away: how far it went is all that is left to know.
                recovered[key] = Recovered(point.offset, point.offset)
                continue
            replay = _PartitionReplay(folder, self._files, is_repeated=is_repeated)
            # Behind the last run may lie what a damaged entry held: it was acknowledged, and is kept.
            is_whole = self._content.is_whole(key)
            if is_whole:
                replay.remove_strays(point, runs)
            recovered[key] = Recovered(point.offset, replay.run(point, runs, cut_tail=is_whole), is_whole)
            replay.index(runs)
        return recovered

    def _partitions(self) -> Iterator[tuple[bytes, str, RecoveryPoint, list[Run]]]:
        points = self._content.points.points
        for key in {**points, **self._content.runs}:
            folder = self._folder_of(*split_key(key))
            if folder is None:
                continue
            runs = self._content.runs.get(key, [])
            point = points.get(key) or _point_before(runs[0])
            yield key, folder, point, [run for run in runs if run.end_offset > point.offset]


def _first_header(run: Run) -> BatchHeader | None:
    """Return the header of the first batch of a run; None if it has none."""
    try:
        return batches.read_header(run.data) if run.data else None
    except Malformed:
        return None


def _point_before(first: Run) -> RecoveryPoint:
    """Return where a partition without a point was durable: it was opened or made after the points were written.

    Its first run continues it. One without data says that the first entry is damaged, so nothing is known to be there.
    """
    if not first.data:
        return RecoveryPoint(0, 0, 0)
    return RecoveryPoint(first.first_offset, first.segment_base, first.position)


class _PartitionReplay:
    """The segments of one partition on the way to what the WAL says."""

    def __init__(self, folder: str, files: FileSystem, *, is_repeated: bool = False) -> None:
        self._folder = folder
        self._files = files
        self._is_repeated = is_repeated
        self._sizes: dict[int, int] = {}
        if files.exists(folder):
            for name in files.listdir(folder):
                if name.endswith(LOG) and name[:20].isdigit():
                    self._sizes[int(name[:20])] = files.size(f"{folder}/{name}")
        self._changed: set[int] = set()
        self._has_new_names = is_repeated

    def check(self, runs: list[Run]) -> None:
        """Refuse runs that would leave a hole: their segment is another one, or a part of it is missing."""
        sizes = dict(self._sizes)
        for run in runs:
            size = sizes.get(run.segment_base, 0)
            if run.position > size:
                raise UserError(
                    f"The write-ahead log does not fit {self._path(run.segment_base)}: it continues at byte "
                    f"{run.position}, and the segment ends at byte {size}. Nothing was changed. Files of two moments "
                    "were mixed: put the right ones together again, or restore a backup."
                )
            sizes[run.segment_base] = max(size, run.position + len(run.data))

    def remove_strays(self, point: RecoveryPoint, runs: list[Run]) -> None:
        """Remove segments behind the recovery point that no run belongs to: they never held what was acknowledged."""
        known = {run.segment_base for run in runs}
        for base in [base for base in self._sizes if base > point.segment_base and base not in known]:
            self._remove(base)

    def run(self, point: RecoveryPoint, runs: list[Run], *, cut_tail: bool) -> int:
        """Write the runs, cut behind the last one if `cut_tail` is set, sync, and return the end of the log."""
        end, base, size = point
        for run in runs:
            if (run.segment_base, run.position) < (base, size):
                self._cut(run.segment_base, run.position)
            self._write(run)
            end, base, size = run.end_offset, run.segment_base, run.position + len(run.data)
        if cut_tail:
            self._cut(base, size)
            if self._is_repeated and base in self._sizes:
                self._changed.add(base)
        for changed in sorted(self._changed):
            self._files.sync_file(self._path(changed))
        if self._has_new_names:
            self._files.sync_directory(self._folder)
        return end

    def index(self, runs: list[Run]) -> None:
        """Name the first batch of each run in the offset index of its segment.

        The scan for damage then finds them behind a damaged batch below the recovery point, and behind the hole that a
        damaged entry has left. Not synced: the load that scans rebuilds the index, and a crash before that repeats the
        recovery.
        """
        indexes: dict[int, OffsetIndex] = {}
        for run in runs:
            header = _first_header(run)
            if header is None:
                continue
            base = run.segment_base
            index = indexes.get(base)
            if index is None:
                index = OffsetIndex(base, self._read_index(base))
            if index.at_or_behind(run.position) is not None:
                # A run that goes back has replaced what was there.
                index = index.below(run.position)
            index.append(header.last_offset, run.position)
            indexes[base] = index
        for base, index in indexes.items():
            self._files.write(f"{self._folder}/{file_name(base, INDEX)}", index.data, sync=False)

    def _read_index(self, base: int) -> bytes:
        """Return the whole entries of a segment's offset index; none if it has no file."""
        with suppress(FileNotFoundError):
            data = self._files.read(f"{self._folder}/{file_name(base, INDEX)}")
            return data[: len(data) // OffsetIndex.ENTRY_BYTES * OffsetIndex.ENTRY_BYTES]
        return b""

    def _path(self, base: int) -> str:
        return f"{self._folder}/{file_name(base, LOG)}"

    def _remove(self, base: int) -> None:
        self._files.remove(self._path(base))
        # Another segment may begin there: it must not find the aborted transactions of this one.
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            with suppress(FileNotFoundError):
                self._files.remove(f"{self._folder}/{file_name(base, suffix)}")
        del self._sizes[base]
        self._changed.discard(base)
        self._has_new_names = True

    def _cut(self, base: int, size: int) -> None:
        """Remove what lies behind a position."""
        for later in [other for other in self._sizes if other > base]:
            self._remove(later)
        if self._sizes.get(base, 0) > size:
            with closing(self._files.open(self._path(base))) as file:
                file.truncate(size)
            self._sizes[base] = size
            self._changed.add(base)

    def _write(self, run: Run) -> None:
        """Write a run to its segment; one without data only says where the log ended."""
        if not run.data:
            return
        with closing(self._files.open(self._path(run.segment_base), create=True)) as file:
            file.pwrite(run.data, run.position)
        size = self._sizes.get(run.segment_base, 0)
        self._sizes[run.segment_base] = max(size, run.position + len(run.data))
        self._changed.add(run.segment_base)
        # After a kill the name of the file may not be durable, so the folder is synced.
        self._has_new_names = True


def describe(content: WalContent, recovered: Mapping[bytes, Recovered]) -> str:
    """Return one line for the log of what a recovery did."""
    records = sum(max(0, found.end - found.recovery_point) for found in recovered.values())
    return f"{content.entry_count} entries with {records} records of {len(content.runs)} partitions"
