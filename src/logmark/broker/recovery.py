"""The recovery of a crashed data directory as a step of its own: afterwards it is as a clean stop leaves one.

`logmark recover` does it, and the broker does it before it serves a directory with a write-ahead log in a mode that
does not sync: the WAL may go only when the segments are on the medium.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from logmark.broker.config import BrokerConfig
from logmark.broker.logs import Logs
from logmark.clock import Clock
from logmark.disk.file_system import FileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.errors import DataDirectoryUnusable, UserError
from logmark.log import recovery_preview
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.clean_stop import CLEAN
from logmark.log.directory import LOCK, DataDirectory
from logmark.log.group_commit import GroupCommit
from logmark.log.missing_segments import check_segment_ends, find_overlaps
from logmark.log.recovery_preview import Cut, RecoveredPartition
from logmark.log.wal import log as wal


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a recovery has done, or a dry run would do, as programs read it; `dataclasses.asdict` makes it JSON."""

    data_dir: str
    dry_run: bool
    # Nothing had to be done, and nothing was.
    was_clean: bool = False
    had_wal: bool = False
    entries: int = 0
    records: int = 0
    partitions: Sequence[RecoveredPartition] = ()
    cuts: Sequence[Cut] = ()
    # Numbers of entries of the WAL that were acknowledged and cannot be read: first and last of each stretch.
    damaged_entries: Sequence[tuple[int, int]] = ()
    # What is damaged in the segments or missing, one description for each stretch or file.
    damage: Sequence[str] = ()
    # What somebody has added since the clean stop; the next start sets it aside.
    additions: Sequence[str] = ()


def is_clean(path: str, files: FileSystem) -> bool:
    """Return whether a directory was closed cleanly, so that any broker opens it at once."""
    names = files.listdir(path)
    return CLEAN in names and not any(name in names for name in (wal.FOLDER, *wal.UNFINISHED))


def recover(
    path: str,
    *,
    files: FileSystem,
    clock: Clock,
    config: BrokerConfig | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Recovery:
    """Recover the WAL of a directory, open every partition and close all of them cleanly.

    A directory that is clean is opened as well, to see what is damaged or missing, and not changed. `files` must sync,
    unless it is an overlay for a dry run. The loop need not run; a new one is taken if none is given. Raises UserError
    if the directory is in use, is none of Logmark's, or cannot be closed cleanly.
    """
    if not files.exists(f"{path}/{CATALOG}"):
        raise UserError(f"{path} is not a data directory of Logmark: it has no {CATALOG}. Nothing was changed.",
                        exit_code=2)  # fmt: skip
    config = config or BrokerConfig()
    dry_run = isinstance(files, OverlayFileSystem)
    if is_clean(path, files):
        with OverlayFileSystem(files) as overlay:
            damage, additions = _open_and_close(path, files=overlay, clock=clock, config=config, loop=loop)
        return Recovery(data_dir=path, dry_run=dry_run, was_clean=True, damage=damage, additions=additions)
    with _locked(path, files):
        before = recovery_preview.segment_sizes(path, files)
        content = recovery_preview.read_wal(path, files) if recovery_preview.has_wal(path, files) else None
        partitions = [] if content is None else recovery_preview.list_partitions(content, path, files)
    damage, _ = _open_and_close(path, files=files, clock=clock, config=config, loop=loop)
    return Recovery(
        data_dir=path,
        dry_run=dry_run,
        had_wal=content is not None,
        entries=0 if content is None else content.entry_count,
        records=sum(partition.records for partition in partitions),
        partitions=partitions,
        cuts=recovery_preview.find_cuts(path, before, recovery_preview.segment_sizes(path, files), files),
        damaged_entries=[] if content is None else content.damaged,
        damage=damage,
    )


@contextmanager
def _locked(path: str, files: FileSystem) -> Iterator[None]:
    """Keep brokers away while the files are looked at; raise DataDirectoryUnusable if one is there."""
    lock = files.lock(f"{path}/{LOCK}")
    if lock is None:
        raise DataDirectoryUnusable(
            f"The data directory {path} is in use by another broker. Nothing was changed. Stop that broker first."
        )
    try:
        yield
    finally:
        lock.release()


def _open_and_close(
    path: str,
    *,
    files: FileSystem,
    clock: Clock,
    config: BrokerConfig,
    loop: asyncio.AbstractEventLoop | None,
) -> tuple[list[str], list[str]]:
    """Open everything as a start does and close it; return what is damaged or missing, and what was added."""
    own_loop = asyncio.new_event_loop() if loop is None else None
    committer = GroupCommit(loop or own_loop, durability="sync")  # type: ignore[arg-type]
    try:
        directory = DataDirectory.open(path, files=files, committer=committer, clock=clock)
        try:
            logs = Logs(directory, config, clock)
            logs.open()
            partitions = [partition for topic in logs.topics() for partition in topic.partitions]
            for partition in partitions:
                # A start reads nothing below the recovery point, so it knows only a part of the damage.
                check_segment_ends(partition)
            damage = [str(one) for each in partitions for one in (*each.damage, *find_overlaps(each))]
        except BaseException:
            directory.close(clean=False)
            raise
        if not directory.close():
            raise UserError(
                f"The disk refused the last writes to {path}, and it is not clean yet. No acknowledged record was "
                "lost. Free some space or repair the disk, and run the same command again."
            )
    finally:
        committer.close()
        if own_loop is not None:
            own_loop.close()
    return damage, directory.additions
