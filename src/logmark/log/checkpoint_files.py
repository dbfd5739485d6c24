"""The checkpoint files of a data directory, and what they say of each partition.

They hold the recovery point, the high watermark and the log start of each log, how far it was cleaned, and which
segments it had at a clean stop. `checkpoints` has their bytes. What they say of partitions that nobody has opened stays
in them.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints, sealed_offsets
from logmark.log.checkpoints import SEGMENTS, ListedSegment, ListedSegments, SegmentList
from logmark.log.clean_stop import CleanStop
from logmark.log.partition import Partition
from logmark.log.sealed_offsets import SealedOffsets
from logmark.log.wal import inventory
from logmark.log.wal import recovery_points as wal
from logmark.names import TopicPartition

logger = logging.getLogger(__name__)


class CheckpointFiles:
    """The checkpoints of all partitions; to be used on the event loop, except for the calls that write."""

    def __init__(self, path: str, files: FileSystem, stop: CleanStop) -> None:
        """Read the files; one that cannot be read counts as missing, and a warning says so."""
        self._path = path
        self._files = files
        self._recovery_points = self._read_offsets(checkpoints.RECOVERY_POINTS) or {}
        # Those of a clean stop. After a crash they may be of a deleted topic: recovery points are written before them.
        self._high_watermarks = (self._read_offsets(checkpoints.HIGH_WATERMARKS) or {}) if stop.is_of_logmark else {}
        listed = self._read_list(stop)
        self._segments = None if listed is None else dict(listed.segments)
        cleaned_by_kafka = self._read_offsets(checkpoints.CLEANED)
        of_kafka = SealedOffsets(self._read_offsets(checkpoints.LOG_STARTS) or {}, cleaned_by_kafka)
        known = sealed_offsets.read_in_force(path, files, listed, of_kafka, on_damage=self._warn_of_sealed)
        self._log_starts = dict(known.log_starts)
        self._cleaned = dict(known.cleaned or {})
        # Nobody knows any more which logs were cleaned, so that any log may have holes.
        self._is_cleaned_unknown = known.cleaned is None
        # Whether the file says of the logs something else than is known.
        self._is_cleaned_outdated = cleaned_by_kafka != known.cleaned
        self._mentioned = self._list_mentioned(self._recovery_points, self._log_starts)
        # Log starts that must be durable before a log moves to them.
        self._announced: list[dict[TopicPartition, int]] = []
        self._writing = threading.Lock()
        self._taken = 0
        self._written = 0

    def _list_mentioned(self, *offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Return the partitions of which the checkpoints say something; an offset of 0 says nothing."""
        return {key for each in offsets for key, offset in each.items() if offset} | self._cleaned.keys()

    # What the files say of a partition

    def recovery_point(self, key: TopicPartition) -> int:
        """Return the offset below which the partition's own files are durable."""
        return self._recovery_points.get(key, 0)

    def known_end(self, key: TopicPartition) -> int:
        """Return an offset below which all were given out, by whatever file says it."""
        listed = (self._segments or {}).get(key, {})
        return max(self._recovery_points.get(key, 0), self._high_watermarks.get(key, 0), *listed, 0)

    def log_start_offset(self, key: TopicPartition) -> int:
        """Return the log start, or 0 if it is that of the oldest segment."""
        return self._log_starts.get(key, 0)

    def cleaned_to(self, key: TopicPartition) -> int | None:
        """Return the offset up to which the log was cleaned; None if it never was."""
        if self._is_cleaned_unknown:
            # It is told the next start, too.
            self._is_cleaned_outdated |= key not in self._cleaned
            self._cleaned.setdefault(key, 0)
        return self._cleaned.get(key)

    def segments(self, key: TopicPartition) -> Mapping[int, ListedSegment] | None:
        """Return the segments that a clean stop has left, by base offset; None if there is no list of it."""
        return None if self._segments is None else self._segments.get(key, {})

    @property
    def listed_segments(self) -> ListedSegments | None:
        """Return the list of all segments that a clean stop has left; None if there is none."""
        return self._segments

    def mention_any(self, keys: Iterable[TopicPartition]) -> bool:
        """Return whether the files say something of one of these partitions."""
        return any(key in self._mentioned for key in keys)

    # Changes

    def note_unwritten(self, keys: Iterable[TopicPartition]) -> None:
        """Note that the files may still say something of these partitions: a write that should end that has failed."""
        self._mentioned.update(keys)

    def raise_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Move a recovery point up to an offset; it never moves back."""
        self._recovery_points[key] = max(offset, self._recovery_points.get(key, 0))

    def note_cleaned(self, key: TopicPartition, offset: int) -> Callable[[], None]:
        """Note how far a log was cleaned, and return the call that writes it; for a thread."""
        self._cleaned[key] = offset
        self._mentioned |= self._cleaned.keys()
        return self._write_cleaned

    def forget(self, key: TopicPartition) -> None:
        """Drop what is known of a partition; the files follow with the next write, the cleaner's with its own."""
        self._recovery_points.pop(key, None)
        self._log_starts.pop(key, None)
        self._high_watermarks.pop(key, None)
        for announced in self._announced:
            announced.pop(key, None)
        if self._segments is not None:
            self._segments.pop(key, None)
        if self._cleaned.pop(key, None) is not None:
            self._is_cleaned_outdated = True

    def write_cleaned(self) -> None:
        """Write how far logs were cleaned if the file says something else; in any thread."""
        if self._is_cleaned_outdated:
            self._write_cleaned()

    @contextmanager
    def announce_log_starts(self, starts: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Let every write within the block say that logs start at these offsets, or above.

        If the block ends by an error, the next write says again where the logs start: one that could not move because
        a write failed keeps its old start in the files as well.
        """
        announced = dict(starts)
        self._announced.append(announced)
        try:
            yield
            for key, start in announced.items():
                self._log_starts[key] = max(start, self._log_starts.get(key, 0))
        finally:
            self._announced = [each for each in self._announced if each is not announced]

    def _with_announced(self) -> dict[TopicPartition, int]:
        starts = dict(self._log_starts)
        for announced in self._announced:
            # A copy: a thread may ask while a topic is deleted.
            for key, start in dict(announced).items():
                starts[key] = max(start, starts.get(key, 0))
        return starts

    def take(self, partitions: Mapping[TopicPartition, Partition]) -> Callable[[], None]:
        """Take the offsets of open partitions now, and return the call that writes them; for a thread."""
        high_watermarks = dict(self._high_watermarks)
        for key, partition in partitions.items():
            if not partition.has_folder:
                # Nothing was ever written to it: there is nothing to remember, and a start has nothing to forget.
                continue
            self._recovery_points[key] = partition.recovery_point
            high_watermarks[key] = partition.high_watermark
            if partition.log_start_offset > partition.oldest_offset:
                self._log_starts[key] = partition.log_start_offset
            else:
                self._log_starts.pop(key, None)
        # Copies, because the write may come later; what is known of partitions that were not opened stays.
        recovery_points, starts = dict(self._recovery_points), self._with_announced()
        before, self._mentioned = self._mentioned, self._list_mentioned(recovery_points, starts)
        self._taken += 1
        taken = self._taken

        def write() -> None:
            with self._writing:
                # A later one may have been faster: an older one must not replace it.
                if taken <= self._written:
                    return
                try:
                    self._write(checkpoints.RECOVERY_POINTS, checkpoints.write_offsets(recovery_points))
                    self._write(checkpoints.HIGH_WATERMARKS, checkpoints.write_offsets(high_watermarks))
                    # Last: a log start above the log's end would make Kafka drop the log.
                    self._write(checkpoints.LOG_STARTS, checkpoints.write_offsets(starts))
                    self._write_sealed(starts)
                except OSError:
                    # The files may still say what they said before.
                    self._mentioned = self._mentioned | before
                    raise
                self._written = taken

        return write

    def write_segments(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        """List the segments of closed partitions: the next start sees what is taken away or added until then."""
        listed = dict(self._segments or {})
        for key, partition in partitions.items():
            segments = partition.listed_segments
            if segments is None:
                # A list that lacks a partition would make its segments additions. The mark of the clean stop, which
                # follows, makes the removal durable.
                with suppress(FileNotFoundError):
                    self._files.remove(f"{self._path}/{SEGMENTS}")
                return
            listed[key] = segments
        self._write(SEGMENTS, SegmentList(listed, self._log_starts, self._cleaned).encode())

    def create_wal(self, wal_id: bytes, create: Callable[[bytes], None]) -> None:
        """Let a call create the WAL with the offsets beside it that a recovery will believe; in any thread.

        No write of them comes between: one that comes later finds the WAL, and one that came before is in it.
        """
        with self._writing:
            create(SealedOffsets(self._with_announced(), dict(self._cleaned)).encode(wal_id))

    # The files

    def _write_sealed(self, starts: Mapping[TopicPartition, int]) -> None:
        folder = f"{self._path}/{wal.FOLDER}"
        if not self._files.exists(folder):
            return
        try:
            wal_id = inventory.read_wal_id(folder, self._files)
        except Malformed as error:
            raise OSError(errno.EIO, str(error), folder) from error
        if wal_id is not None:
            self._write(sealed_offsets.BESIDE_WAL, SealedOffsets(starts, dict(self._cleaned)).encode(wal_id))

    def _read(self, name: str) -> bytes | None:
        path = f"{self._path}/{name}"
        return self._files.read(path) if self._files.exists(path) else None

    def _read_offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """Return the offsets in a file, none if it is missing; None if it cannot be read."""
        try:
            return checkpoints.read_offsets(self._read(name) or b"")
        except Malformed as error:
            # As Kafka does: without a recovery point everything is checked, without a log start nothing is hidden.
            logger.warning("%s/%s is not used: %s", self._path, name, error)
            return None

    def _warn_of_sealed(self, error: Malformed) -> None:
        logger.warning("%s/%s is not used: %s", self._path, sealed_offsets.BESIDE_WAL, error)

    def _read_list(self, stop: CleanStop) -> SegmentList | None:
        """Return the list that a clean stop has left; None if it left none, or it cannot be read."""
        try:
            return stop.read_segment_list()
        except Malformed as error:
            logger.warning("%s/%s is not used: %s", self._path, SEGMENTS, error)
            return None

    def _write_cleaned(self) -> None:
        with self._writing:
            # As it is now, not as it was when it was requested: an older state must not replace a newer one.
            self._is_cleaned_outdated = False
            try:
                self._write(checkpoints.CLEANED, checkpoints.write_offsets(dict(self._cleaned)))
                self._write_sealed(self._with_announced())
            except OSError:
                self._is_cleaned_outdated = True
                raise

    def _write(self, name: str, data: bytes) -> None:
        self._files.write_atomically(f"{self._path}/{name}", data)
