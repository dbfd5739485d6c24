"""Segments that are missing in a data directory: found by names, checkpoints and the last batch of each segment.

A start after a clean stop reads no records, and a recovery only those above the recovery point. Neither notices a
segment that somebody has taken away below that. This search reads little: the verification reads everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from logmark.disk.files import FileSystem
from logmark.disk.overlay import OverlayFileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog
from logmark.log.epochs import FILE_NAME as EPOCHS
from logmark.log.folder_names import partition_of
from logmark.log.segment import LOG, Segment, file_name
from logmark.names import TopicPartition

_OFFSET_MAX = 2**63 - 1

Offsets = Mapping[TopicPartition, int]


class MissingOffsets(NamedTuple):
    """Offsets of a log that no segment holds, and what says that one did."""

    path: str
    first_offset: int
    next_offset: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: offsets {self.first_offset} to {self.next_offset - 1} are missing: {self.problem}."


def known_start(
    epochs: Sequence[tuple[int, int]] | None, log_start_offset: int | None, *, is_clean: bool
) -> int | None:  # fmt: skip
    """Return the log start up to which segments may have been deleted; None if no file of a log of ours says it.

    A log start is in the leader-epoch checkpoint durably before a segment below it is deleted. The checkpoint of log
    starts may be older than that after a crash.
    """
    starts = [start for _, start in (epochs or ())[:1]]
    if log_start_offset is not None and (is_clean or starts):
        starts.append(log_start_offset)
    return max(starts, default=None)


def describe_missing_start(start: int, first_base: int) -> str:
    """Return what is wrong with a log whose first segment begins behind its start."""
    return f"the log started at offset {start}, and its first segment begins at {first_base}"


class MissingSegments:
    """Looks for missing segments in a data directory of ours to which nobody writes."""

    def __init__(self, path: str, files: FileSystem, *, is_clean: bool) -> None:
        """Take a directory that a clean stop has left, or whose writes were synced."""
        self._path = path
        self._files = files
        self._is_clean = is_clean
        self._log_starts = self._read(checkpoints.LOG_STARTS) or {}
        self._segments = self._list_segments()

    def _read(self, name: str) -> Offsets | None:
        """Return the offsets in a checkpoint; None if it cannot be read."""
        try:
            return checkpoints.read_offsets(self._files.read(f"{self._path}/{name}"))
        except FileNotFoundError:
            return {}
        except Malformed:
            return None

    def _list_segments(self) -> dict[TopicPartition, list[int]]:
        found = {}
        for name in self._files.listdir(self._path):
            key = partition_of(name)
            if key is not None and self._files.is_directory(f"{self._path}/{name}"):
                names = self._files.listdir(f"{self._path}/{name}")
                found[key] = sorted(int(one[:20]) for one in names if one[20:] == LOG and one[:20].isdigit())
        return dict(sorted(found.items()))

    def known_starts(self) -> Offsets:
        """Return the log starts up to which segments may have been deleted, as far as a file says them."""
        found = {}
        for key in self._segments:
            epochs = None
            with suppress(Malformed, FileNotFoundError):
                epochs = checkpoints.read_epochs(self._files.read(f"{self._path}/{key}/{EPOCHS}"))
            start = known_start(epochs, self._log_starts.get(key), is_clean=self._is_clean)
            if start is not None:
                found[key] = start
        return found

    def find_before(self, starts: Offsets) -> list[MissingOffsets]:
        """Return what is missing before the first segment of each log, by its known start."""
        return [
            MissingOffsets(str(key), starts[key], bases[0], describe_missing_start(starts[key], bases[0]))
            for key, bases in self._segments.items()
            if bases and starts.get(key, bases[0]) < bases[0]
        ]

    def find_behind(self) -> list[MissingOffsets]:
        """Return what is missing behind the first segment of each log; at its end only after a clean stop.

        A log that was compacted may have holes. What lies behind damage in the last batches of a segment is not known
        here.
        """
        cleaned = self._read(checkpoints.CLEANED)
        ends = (self._read(checkpoints.RECOVERY_POINTS) or {}) if self._is_clean else {}
        found: list[MissingOffsets] = []
        # A look-up that finds a wrong index writes it again: on the overlay, not on the disk.
        with OverlayFileSystem(self._files) as overlay:
            for key, bases in self._segments.items():
                if cleaned is not None and key not in cleaned:
                    found += self._find_gaps(key, bases, overlay)
                if bases:
                    found += self._find_end(key, bases[-1], ends.get(key, 0), overlay)
        return found + self._find_lost_logs(ends)

    def _find_gaps(self, key: TopicPartition, bases: Sequence[int], files: FileSystem) -> Iterator[MissingOffsets]:
        for base, following in pairwise(bases):
            if following > self._log_starts.get(key, 0):
                end = self._end_of(key, base, files)
                if end is not None and end < following:
                    problem = f"the segment before it ends at {end}"
                    yield MissingOffsets(f"{key}/{file_name(following, LOG)}", end, following, problem)

    def _find_end(self, key: TopicPartition, base: int, promised: int, files: FileSystem) -> Iterator[MissingOffsets]:
        if promised > base:
            end = self._end_of(key, base, files)
            if end is not None and end < promised:
                problem = f"the log ends at {end}, and {checkpoints.RECOVERY_POINTS} says {promised}"
                yield MissingOffsets(str(key), end, promised, problem)

    def _find_lost_logs(self, ends: Offsets) -> list[MissingOffsets]:
        path = f"{self._path}/{CATALOG}"
        catalogue = Catalog(self._files.read(path), path=path)
        counts = {entry.name: entry.partitions for entry in catalogue.entries()}
        return [
            MissingOffsets(str(key), self._log_starts.get(key, 0), end,
                           f"it has no segments, and {checkpoints.RECOVERY_POINTS} says that the log ends at {end}")
            for key, end in ends.items()
            if key.partition < counts.get(key.topic, 0) and not self._segments.get(key)
            and end > self._log_starts.get(key, 0)
        ]  # fmt: skip

    def _end_of(self, key: TopicPartition, base: int, files: FileSystem) -> int | None:
        """Return the offset behind the last batch of a segment; None if its last batches are not sound."""
        folder = f"{self._path}/{key}"
        size = files.size(f"{folder}/{file_name(base, LOG)}")
        segment = Segment(folder, base, files, size=size, created_ms=0, index_interval=4096, is_dense=True)
        try:
            return segment.lookup.sound_end(segment.lookup.nearest(_OFFSET_MAX, size))
        except Malformed:
            return None
        finally:
            segment.release()
