"""Entries saved aside: what one partition still needs of the WAL, in a file of its own.

When the disk fails a partition's own files after the acknowledgement, only the WAL holds its records for certain. The
partition must not keep all others from using the WAL again, so its runs are copied to a file beside the WAL's own. From
there they are written to the segments again, now and after a restart, until that succeeds.

The file is one of the WAL's format with an entry for each run. Every entry repeats where the partition ends, so that a
damaged one lets no offset be given out twice.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from logmark.disk.file_system import FileSystem
from logmark.errors import UserError
from logmark.log.wal.entries import EntryBuilder, Run, RunRow, align, partition_key
from logmark.log.wal.files import ENTRIES_AT, FileReader, WalFile

PREFIX = "saved-"
SUFFIX = ".entries"


class SavedRuns(NamedTuple):
    """The runs of a partition that were saved aside; the last one has no data and says where the partition ends."""

    key: bytes
    wal_id: bytes
    runs: list[Run]
    # Whether every run is there that was saved.
    is_whole: bool

    @property
    def end_offset(self) -> int:
        return self.runs[-1].end_offset


def path_of(folder: str, key: bytes) -> str:
    """Return the file of a partition."""
    return f"{folder}/{PREFIX}{key.hex()}{SUFFIX}"


def write(folder: str, key: bytes, runs: Sequence[Run], wal_id: bytes, files: FileSystem) -> None:
    """Save runs with data of a partition, durably, instead of those that were saved before."""
    sizes = [EntryBuilder.capacity_for(len(run.data), 1) for run in runs]
    saved = WalFile(path_of(folder, key), align(ENTRIES_AT + sum(sizes)), files)
    last = runs[-1]
    end = (key, last.segment_base, last.position + len(last.data), last.end_offset, last.end_offset, 0)
    # It gets its name when it is complete.
    saved.create(wal_id, 1, entries=(_entry(number, run, end) for number, run in enumerate(runs, 1)))
    saved.close()


def _entry(number: int, run: Run, end: RunRow) -> tuple[int, EntryBuilder]:
    builder = EntryBuilder(EntryBuilder.capacity_for(len(run.data), 1), [end])
    key = partition_key(run.topic_id, run.partition)
    builder.add(key, run.segment_base, run.position, run.first_offset, run.end_offset, run.data, len(run.data))
    return number, builder


def read(folder: str, name: str, files: FileSystem) -> SavedRuns:
    """Return what a file holds.

    Raises UserError if nothing in it can be read: the partition's end is not known then.
    """
    path = f"{folder}/{name}"
    with closing(FileReader(path, files)) as reader:
        header = reader.header
        intact = {found.header.number: found.runs for found in reader.scan() if found.runs}
    if header is None or not intact:
        raise UserError(
            f"{path} is damaged. It holds acknowledged records that may not be in the segments. Nothing was changed. "
            "Restore the file from a copy, or restore a backup."
        )
    runs = [run for _, (_, *added) in sorted(intact.items()) for run in added]
    end = next(iter(intact.values()))[0]
    is_whole = sorted(intact) == list(range(1, len(intact) + 1)) and runs[-1].end_offset == end.end_offset
    key = bytes.fromhex(name.removeprefix(PREFIX).removesuffix(SUFFIX))
    return SavedRuns(key, header.wal_id, [*runs, end], is_whole)


def is_saved(name: str) -> bool:
    """Return whether a file of the WAL's folder holds saved entries."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)
