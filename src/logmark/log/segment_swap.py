"""The swap: a cleaned segment replaces others on disk, and a crash at any point loses nothing.

One line after the other, with a sync of the folder after each but the last:

    X.index, X.timeindex, X.txnindex, X.log   .cleaned -> .swap     X.log.swap is the promise to finish
    every file of what is replaced            -> .deleted
    X.log, X.index, X.timeindex, X.txnindex   .swap -> their names

A start that finds X.log.swap finishes: whatever has a final name in the range of that log, but X's own, is removed.
Other files in `.cleaned` or `.swap` are dropped. An index that gets lost so is made again, and the transaction index of
a cleaned segment says nothing to readers: the records of aborted transactions are gone. The names are Kafka's.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from logmark.disk.file_system import File, FileSystem
from logmark.log import chunks
from logmark.log.index import OffsetIndex, TimeIndex
from logmark.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from logmark.log.segment_cleaner import CLEANED, Cleaned, path_of
from logmark.log.transactions import AbortedTransactions

SWAP = ".swap"
_INDEXES = (INDEX, TIME_INDEX, TXN_INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A cleaned segment whose files are open and read, so that nobody waits for the disk when it is taken over."""

    cleaned: Cleaned
    file: File
    offsets: OffsetIndex
    times: TimeIndex
    aborted: AbortedTransactions


def load(folder: str, cleaned: Cleaned, files: FileSystem) -> Incoming:
    """Open and read what was cleaned; to be called off the event loop."""

    def path(suffix: str) -> str:
        return path_of(folder, cleaned.base_offset, suffix) + CLEANED

    aborted = files.read(path(TXN_INDEX)) if cleaned.has_aborted else b""
    return Incoming(
        cleaned=cleaned,
        file=files.open(path(LOG)),
        offsets=OffsetIndex(cleaned.base_offset, files.read(path(INDEX))),
        times=TimeIndex(cleaned.base_offset, files.read(path(TIME_INDEX))),
        aborted=AbortedTransactions.decode(aborted, base_offset=cleaned.base_offset),
    )


def drop(folder: str, cleaned: Cleaned, files: FileSystem) -> None:
    """Remove what was cleaned and is no longer wanted."""
    for suffix in (*_INDEXES, LOG):
        with suppress(FileNotFoundError):
            files.remove(path_of(folder, cleaned.base_offset, suffix) + CLEANED)


class Swap:
    """The steps on disk for one output; they run in a thread, in their order."""

    def __init__(self, folder: str, cleaned: Cleaned, files: FileSystem) -> None:
        self._folder = folder
        self._base_offset = cleaned.base_offset
        self._indexes = [INDEX, TIME_INDEX] + ([TXN_INDEX] if cleaned.has_aborted else [])
        self._files = files

    def begin(self) -> None:
        """Make the output one that a start would finish."""
        # The log last, because it is what a start goes by.
        self._rename([*self._indexes, LOG], CLEANED, SWAP)
        self._files.sync_directory(self._folder)

    def finish(self) -> None:
        """Give the output its names; what it replaces is out of the way."""
        self._rename([LOG, *self._indexes], SWAP, "")

    def _rename(self, suffixes: Sequence[str], old: str, new: str) -> None:
        for suffix in suffixes:
            path = path_of(self._folder, self._base_offset, suffix)
            # What an earlier attempt, which a full disk stopped, has renamed already is not there any more.
            with suppress(FileNotFoundError):
                self._files.replace(path + old, path + new)


def find_interrupted(names: Sequence[str]) -> list[str]:
    """Return the names of the files that swaps and cleanings have left when a crash interrupted them."""
    return [name for name in names if name.endswith((CLEANED, SWAP))]


def finish_interrupted(folder: str, names: Sequence[str], files: FileSystem) -> list[str]:
    """Finish or drop the swaps that a crash interrupted; return what was done with each, for the log of a start.

    Nothing is logged here: a preview calls this on an overlay, and changes nothing on disk.
    """
    left_over = find_interrupted(names)
    swapped = {name[:20] for name in left_over if name[:20].isdigit() and name[20:] == LOG + SWAP}
    done = [_finish_log(folder, digits, files) for digits in sorted(swapped)]
    for name in left_over:
        if name.endswith(CLEANED) or name[:20] not in swapped:
            files.remove(f"{folder}/{name}")
    return done


def _finish_log(folder: str, digits: str, files: FileSystem) -> str:
    base = int(digits)
    path = path_of(folder, base, LOG)
    end = _end_of(path + SWAP, base, files)
    names = files.listdir(folder)
    if end is None and files.exists(path):
        for name in names:
            if name.startswith(digits) and name.endswith(SWAP):
                files.remove(f"{folder}/{name}")
        return f"{path}{SWAP} is damaged: what it was to replace is kept instead"
    for name in names:
        is_of_segment = name[:20].isdigit() and name.endswith((LOG, *_INDEXES, SNAPSHOT))
        # Files of the same offset are replaced by a rename, and never missing; the snapshot stays true.
        if is_of_segment and base < int(name[:20]) < (end or 0):
            files.remove(f"{folder}/{name}")
    # Else a segment could come back beside the one that has its records.
    files.sync_directory(folder)
    # The log last: until it has its name, the next start does the rest, and no index of the old log stays beside it.
    for name in sorted(names, key=lambda name: name.endswith(LOG + SWAP)):
        if name.startswith(digits) and name.endswith(SWAP):
            files.replace(f"{folder}/{name}", f"{folder}/{name.removesuffix(SWAP)}")
    return f"{path}{SWAP} was left by a crash: it has its final name now"


def _end_of(path: str, base_offset: int, files: FileSystem) -> int | None:
    """Return the offset behind the last batch of a log, or None if the log is not sound."""
    file = files.open(path)
    try:
        end = base_offset
        for chunk in chunks.read_chunks(
            lambda position, size: file.pread(size, position), 0, file.size(), expected=base_offset,
            check=chunks.check_growing,
        ):  # fmt: skip
            if chunk.problem is not None:
                return None
            end = chunk.next_offset
        return end
    finally:
        file.close()
