"""Entries saved aside: what one partition still needs of the WAL, in a file of its own.

When the disk fails a partition's own files after the acknowledgement, only the WAL holds its records for certain. The
partition must not keep all others from using the WAL again, so its runs are copied to a file beside the WAL's own. From
there they are written to the segments again, now and after a restart, until that succeeds.
"""

from collections.abc import Iterable
from contextlib import closing

from logmark.disk.files import FileSystem
from logmark.log.wal.entries import EntryBuilder, Run, align, partition_key
from logmark.log.wal.files import ENTRIES_AT, FileReader, WalFile

PREFIX = "saved-"
SUFFIX = ".entries"


def path_of(folder: str, key: bytes) -> str:
    """Return the file of a partition."""
    return f"{folder}/{PREFIX}{key.hex()}{SUFFIX}"


def write(folder: str, key: bytes, runs: Iterable[Run], directory_id: bytes, files: FileSystem) -> None:
    """Save the runs of a partition, durably; an entry for each run, numbered from 1."""
    kept = list(runs)
    sizes = [EntryBuilder.capacity_for(len(run.data)) for run in kept]
    saved = WalFile(path_of(folder, key), align(ENTRIES_AT + sum(sizes)), files)
    # It gets its name when it is complete.
    saved.create(directory_id, 1, entries=(_entry(number, run) for number, run in enumerate(kept, 1)))
    saved.close()


def _entry(number: int, run: Run) -> tuple[int, EntryBuilder]:
    builder = EntryBuilder(EntryBuilder.capacity_for(len(run.data)))
    key = partition_key(run.topic_id, run.partition)
    builder.add(key, run.segment_base, run.position, run.first_offset, run.end_offset, run.data, len(run.data))
    return number, builder


def read(folder: str, name: str, files: FileSystem) -> tuple[bytes, list[Run]]:
    """Return the partition and the runs in a file."""
    with closing(FileReader(f"{folder}/{name}", files)) as reader:
        runs = [run for found in reader.scan() for run in found.runs or ()]
    return bytes.fromhex(name.removeprefix(PREFIX).removesuffix(SUFFIX)), runs


def is_saved(name: str) -> bool:
    """Return whether a file of the WAL's folder holds saved entries."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)
