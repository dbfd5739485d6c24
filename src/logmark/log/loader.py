"""Opening a partition's folder: at once after a clean stop, by checking every batch after any other.

Where the log ends is known and not guessed. After a recovery from the write-ahead log (WAL) it is the end that the WAL
proved: everything before it was acknowledged, so a bad batch there is damage: kept, reported and not served. Without a
WAL (a directory of `--durability os`, of an older version, or of Apache Kafka) Kafka's own rule holds: behind the
recovery point the log is cut at the first bad batch. What is cut is kept in a file beside the segment.
"""

import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints, cut_files, segment_swap, transactions
from logmark.log.added_files import check_damaged, check_owner, has_content
from logmark.log.checkpoints import Condition, ListedSegment
from logmark.log.damage import BadBatch, Damage
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.missing_segments import describe_missing_start
from logmark.log.producers import Producers
from logmark.log.segment import (
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Fingerprint,
    Segment,
    file_name,
)  # fmt: skip
from logmark.log.transactions import Aborted, AbortedTransactions
from logmark.wire import batches
from logmark.wire.batches import BatchHeader
from logmark.wire.columns import HEADER_BYTES

READ_BYTES = 1024 * 1024
# Five batches in flight, each of the default largest size.
TAIL_BYTES = 8 * 1024 * 1024
_LEFT_OVERS = (DELETED, ".tmp")

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What was found in a partition's folder."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    producers: Producers
    damage: list[Damage] = field(default_factory=list)
    was_checked: bool = False


@dataclass(slots=True, kw_only=True)
class Loader:
    """Loads one folder."""

    folder: str
    files: FileSystem
    is_clean: bool
    recovery_point: int
    log_start_offset: int
    index_interval: int
    cleaned_to: int | None
    now_ms: int
    # The segments that a clean stop has left, by base offset; None if nobody listed them.
    listed: Mapping[int, ListedSegment] | None = None
    # Whether the leader epochs say where the log starts: they were synced before a segment below that was deleted.
    is_synced: bool = False
    # Where the log starts, if the caller knows.
    known_start: int | None = None
    segments: list[Segment] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    checked: list[Segment] = field(default_factory=list)
    producers: Producers = field(default_factory=Producers)
    check_all: bool = False
    # Where the log is known to end, by the WAL; without one, the recovery point or what else is known.
    durable_end: int = 0
    # A recovery from the WAL has written and synced the segments from the recovery point on.
    is_replayed: bool = False
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    missing_snapshots: dict[int, bytes] = field(default_factory=dict)

    def load(self) -> Loaded:
        """Open the folder and leave it as a stop would have left it."""
        names = self._sweep()
        present = set(names)
        self._remove_stray_aborts(present)
        self.segments = [
            self._segment(int(name[:20]), has_aborted=name[:20] + TXN_INDEX in present)
            for name in names
            if name.endswith(LOG)
        ]
        self._find_holes()
        self.snapshots = [int(name[:20]) for name in names if name.endswith(SNAPSHOT)]
        if not self.is_clean:
            self._finish_deletion()
        if not self.segments and max(self.durable_end, self.recovery_point) <= self.log_start_offset:
            return self._empty(self.log_start_offset)
        first_offset = self._first_offset()
        self.durable_end = max(self.durable_end, self.recovery_point, self.log_start_offset)
        log_end_offset = None if self.segments else first_offset
        if log_end_offset is None and self.is_clean:
            log_end_offset = self._open_cleanly(present)
        if log_end_offset is None:
            # Not after a clean stop, whose checkpoints say it: that would be one more file of each partition to read.
            self.durable_end = max([self.durable_end, *self._epoch_starts()])
            log_end_offset = self._check_from(0 if self.check_all else self.recovery_point)
        if not self.checked:
            self._check_changed()
        log_end_offset = self._keep_lost_offsets(log_end_offset)
        log_start_offset = max(self.log_start_offset, min(first_offset, self.segments[0].base_offset))
        self._find_missing(log_start_offset)
        self._finish_producers(log_end_offset)
        self._make_durable()
        if not self.checked:
            self.segments[-1].release()
        return Loaded(
            segments=self.segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            producers=self.producers,
            damage=self.damage,
            was_checked=bool(self.checked),
        )

    def _empty(self, offset: int) -> Loaded:
        return Loaded(segments=[], log_start_offset=offset, log_end_offset=offset, producers=Producers())

    def _sweep(self) -> list[str]:
        found = self.files.listdir(self.folder)
        if left_over := segment_swap.find_interrupted(found):
            for done in segment_swap.finish_interrupted(self.folder, left_over, self.files):
                logger.warning("%s", done)
            found = self.files.listdir(self.folder)
        names = []
        for name in found:
            if name.endswith(_LEFT_OVERS):
                self.files.remove(f"{self.folder}/{name}")
            elif name[:20].isdigit():
                names.append(name)
        return names

    def _remove_stray_aborts(self, present: Set[str]) -> None:
        """Remove transaction indexes without a segment, whose name a crash has lost: another may get the same name.

        The sync of the folder that makes that segment durable makes the removal durable too.
        """
        for name in present:
            if name.endswith(TXN_INDEX) and name[:20] + LOG not in present:
                self.files.remove(f"{self.folder}/{name}")

    def _segment(self, base_offset: int, *, size: int | None = None, has_aborted: bool = False) -> Segment:
        path = f"{self.folder}/{file_name(base_offset, LOG)}"
        return Segment(
            self.folder,
            base_offset,
            self.files,
            size=self.files.size(path) if size is None else size,
            created_ms=self.now_ms,
            index_interval=self.index_interval,
            is_dense=True,
            has_aborted=has_aborted,
        )

    def _find_holes(self) -> None:
        """Find gaps, except in segments that may have been cleaned: all of a cleaned log but the active one."""
        if self.cleaned_to is not None:
            for segment in self.segments:
                is_active = segment is self.segments[-1] and segment.base_offset >= self.cleaned_to
                segment.is_dense = is_active

    def _first_offset(self) -> int:
        """Return where the oldest segment began, also if it is missing; the log starts there or behind it."""
        if self.known_start is not None:
            return self.known_start
        starts = [*(self.listed or ())] or (self._epoch_starts() if self.is_synced else [])
        return min([*starts, *(segment.base_offset for segment in self.segments[:1])], default=self.log_start_offset)

    def _check_changed(self) -> None:
        """Check the segments that are not as a clean stop has left them, or were damaged even then."""
        if self.listed is None:
            return
        for at, segment in enumerate(self.segments):
            listed = self.listed.get(segment.base_offset)
            is_other = self._has_other_content(segment, listed)
            if (
                listed is None
                or listed.condition is not Condition.WHOLE
                or listed.size_bytes != segment.size
                or is_other
            ):
                following = self.segments[at + 1] if at + 1 < len(self.segments) else None
                end = segment.lookup.find_damage(None if following is None else following.base_offset)
                if is_other:
                    check_damaged(segment)
                self.damage += segment.damage
                if following is not None and self._is_gap(at + 1, end):
                    self._report_gap(following, end)
                segment.release()

    @staticmethod
    def _has_other_content(segment: Segment, listed: ListedSegment | None) -> bool:
        """Return whether a segment of the listed size does not hold what a compaction had written to it."""
        if listed is None or listed.content is None or listed.size_bytes != segment.size:
            return False
        segment.fingerprint = Fingerprint(listed.size_bytes, listed.content.checksum)
        # An untouched file is not read: a start does not take longer with every record that was compacted.
        return segment.change_stamp() != listed.content.change_stamp and not has_content(segment, listed.content)

    def _find_missing(self, log_start_offset: int) -> None:
        """Report the offsets of segments that are not there: of the first ones, and of those that were listed."""
        reported = {one.next_offset for one in self.damage if one.is_gap}
        missing = {*(self.listed or ())} - {segment.base_offset for segment in self.segments}
        oldest = self.segments[0].base_offset
        if log_start_offset < oldest:
            missing.add(log_start_offset)
        before = -1
        for segment in self.segments:
            lost = [max(base, log_start_offset) for base in missing if before < base < segment.base_offset]
            before = segment.base_offset
            if lost and before > log_start_offset and before not in reported:
                problem = describe_missing_start(log_start_offset, oldest) if before == oldest else None
                self._report_gap(segment, min(lost), problem)

    def _epoch_starts(self) -> list[int]:
        with suppress(Malformed, FileNotFoundError):
            epochs = checkpoints.read_epochs(self.files.read(f"{self.folder}/{EPOCHS}"))
            return [start_offset for _, start_offset in epochs]
        return []

    def _finish_deletion(self) -> None:
        """Remove the segments below a log start that was moved: the crash may have left any part of them.

        Only with a snapshot: without one the producers are known from what lies below. Only below the recovery point
        of a WAL: if this start crashes, the next one writes what lies behind it again.
        """
        start = min(self._epoch_starts(), default=0)
        if self.durable_end:
            start = min(start, self.recovery_point)
        kept = max((at for at, segment in enumerate(self.segments) if segment.base_offset <= start), default=0)
        if kept and self.segments[kept].base_offset in self.snapshots:
            self._remove(self.segments[:kept])

    def _open_cleanly(self, present: Set[str]) -> int | None:
        """Return the log end after a clean stop, or None if something is missing and the log must be checked.

        Raises UserError if the folder is another partition's.
        """
        wanted = (file_name(segment.base_offset, suffix) for segment in self.segments for suffix in (INDEX, TIME_INDEX))
        missing = None if all(name in present for name in wanted) else "it lacks an index"
        last = self.segments[-1]
        if self.listed is not None and last.base_offset in self.listed:
            check_owner(last, self.listed[last.base_offset])
        end = None if missing else self._end_of_log()
        if end is not None and self.segments[-1].size and end not in self.snapshots:
            # Without it nobody knows of open transactions, and what removed it may have removed the aborted ones too.
            missing = "it lacks the producers at its end"
        missing = missing or self._unbelievable_aborts()
        if missing is not None:
            logger.warning("%s was stopped cleanly but is not whole: %s; it is checked", self.folder, missing)
            self.check_all = True
            return None
        return end

    def _unbelievable_aborts(self) -> str | None:
        """Return what is wrong with the segments' transaction indexes."""
        checksums = {}
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            if segment.has_aborted:
                try:
                    aborted = segment.aborted
                except Malformed as error:
                    return str(error)
                if following is not None and aborted and aborted.entries[-1].last_offset >= following.base_offset:
                    return "a transaction index reaches into the next segment"
                checksums[segment.base_offset] = aborted.checksum
        if self.listed is not None:
            bases = {segment.base_offset for segment in self.segments}
            noted = {base: one.aborted_checksum for base, one in self.listed.items() if base in bases}
            if checksums != {base: checksum for base, checksum in noted.items() if checksum is not None}:
                return "its transaction indexes are not those that it had"
        return None

    def _end_of_log(self) -> int | None:
        """Return the offset behind the last batch, or None if that is not sound."""
        last = self.segments[-1]
        end = last.base_offset
        begin = last.lookup.nearest(2**63 - 1, last.size)
        if last.size - begin <= READ_BYTES and (found := last.lookup.sound_end(begin)) is not None:
            return found
        position = None
        try:
            for position, header in last.lookup.batches(begin, last.size):  # noqa: B007
                end = header.next_offset
            # The end decides which offset comes next, so it is believed only with a right checksum.
            if position is not None and last.lookup.sound_header(position) is None:
                raise BadBatch(position, end, "the last batch has a wrong checksum")
        except BadBatch as bad:
            logger.warning("%s was stopped cleanly but is not whole: %s; it is checked", last.path, bad.problem)
            return None
        return end

    def _check_from(self, offset: int) -> int:
        """Check every batch from the segment that holds an offset to the end, and return the log end."""
        first = max((at for at, segment in enumerate(self.segments) if segment.base_offset <= offset), default=0)
        if first and self.segments[first].base_offset == offset:
            # The crash came while the segment before was being closed, and may have taken its indexes.
            first -= 1
        expected = self.segments[first].base_offset
        self._begin_producers(expected)
        at = first
        while at < len(self.segments):
            segment = self.segments[at]
            if self._is_gap(at, expected):
                if self._is_unproved(expected):
                    self._set_aside(segment, 0, f"offset {segment.base_offset} where {expected} belongs")
                    self._drop(at)
                    break
                self._report_gap(segment, expected)
            if at and segment.base_offset not in self.snapshots:
                self.missing_snapshots[segment.base_offset] = self.producers.encode()
            expected = self._check(at, segment)
            self.checked.append(segment)
            at += 1
        return expected

    def _is_gap(self, at: int, expected: int) -> bool:
        """Return whether offsets are missing before a segment that must be there."""
        if not at or expected >= self.segments[at].base_offset:
            return False
        return self.segments[at - 1].is_dense and not self._ends_in_damage(at - 1)

    def _report_gap(self, segment: Segment, expected: int, problem: str | None = None) -> None:
        damage = Damage(
            path=self.folder,
            position=0,
            size_bytes=0,
            first_offset=expected,
            next_offset=segment.base_offset,
            problem=problem or f"no segment holds them, and the next one begins at {segment.base_offset}",
        )
        self.damage.append(damage)
        logger.warning("%s", damage)

    def _check(self, at: int, segment: Segment) -> int:
        """Walk a segment, rebuild its indexes and return the offset behind its last sound batch."""
        segment.begin_indexes()
        segment.skips.clear()
        self.aborted = AbortedTransactions()
        position, expected = 0, segment.base_offset
        while position < segment.size:
            sound, expected, problem = self._check_chunk(segment, position, expected)
            position += sound
            if problem is None:
                continue
            if self._is_unproved(expected):
                self._set_aside(segment, position, problem)
                segment.truncate(position)
                for later in self.segments[at + 1 :]:
                    self._set_aside(later, 0, "it follows what was cut")
                self._drop(at + 1)
                break
            known = self._known_offset(at, expected)
            bad = BadBatch(position, expected, problem)
            position = segment.lookup.note_damage(bad, segment.size, known_offset=known)
            segment.index_next_batch(position)
            self.damage.append(segment.damage[-1])
            if self.damage[-1].next_offset is not None:
                expected = self.damage[-1].next_offset
        segment.show()
        if self.aborted or segment.has_aborted:
            segment.replace_aborted(self.aborted)
        return expected

    def _check_chunk(self, segment: Segment, position: int, expected: int) -> tuple[int, int, str | None]:
        """Check what one read holds; return sound bytes, the next offset, and what is wrong there, if anything."""
        data = segment.read(position, min(READ_BYTES, segment.size - position))
        sound, following, problem, positions = segment.index_batches(data, position, expected)
        if not sound and problem is None:
            size = batches.read_header(data).size if len(data) >= HEADER_BYTES else 0
            if not 0 < size <= segment.size - position:
                return 0, expected, "the last batch is not whole"
            data = segment.read(position, size)
            sound, following, problem, positions = segment.index_batches(data, position, expected)
            if not sound and problem is None:
                return 0, expected, "the file is cut short"
        for at in positions:
            aborted = self._remember(self.producers, batches.read_header(data, at), data, at)
            if aborted is not None:
                self.aborted.append(aborted)
        return sound, following, problem

    def _is_unproved(self, offset: int) -> bool:
        """Return whether nothing says that a batch at an offset was durable; after a clean stop all of them were."""
        return not self.is_clean and offset >= self.durable_end

    def _set_aside(self, segment: Segment, position: int, problem: str) -> None:
        """Keep what is about to be cut from a segment, unless it is only zeros."""
        kept = cut_files.keep_tail(segment.path, position, self.files)
        logger.warning(
            "%s: cut %d bytes at byte %d, behind what is known to be durable (%s); %s",
            segment.path, segment.size - position, position, problem,
            "they were zeros" if kept is None else f"they are kept in {kept}",
        )  # fmt: skip

    def _known_offset(self, at: int, expected: int) -> int | None:
        """Return an offset behind the expected one at which a batch of a segment begins, or the segment ends."""
        if at + 1 < len(self.segments):
            return self.segments[at + 1].base_offset
        return self.durable_end if expected < self.durable_end else None

    def _keep_lost_offsets(self, log_end_offset: int) -> int:
        """Begin a new segment if durable records are missing at the end, or damage is there.

        An offset is never given twice, and nobody could tell where a batch begins that is appended to damage.
        """
        ends_in_damage = self._ends_in_damage(len(self.segments) - 1)
        if log_end_offset >= self.durable_end and not ends_in_damage:
            return log_end_offset
        begin = max(log_end_offset, self.durable_end)
        if self.segments and begin == self.segments[-1].base_offset:
            # The name is taken by a segment without a sound batch, whose first offset was given out.
            begin += 1
        segment = self._segment(begin, size=0)
        segment.create()
        self.checked.append(segment)
        if not ends_in_damage:
            self._report_gap(segment, log_end_offset)
        self.segments.append(segment)
        return begin

    def _ends_in_damage(self, at: int) -> bool:
        return at >= 0 and self.segments[at].size in self.segments[at].skips.values()

    def _drop(self, at: int) -> None:
        self._remove(self.segments[at:])

    def _remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.release()
            segment.mark_deleted()
            segment.remove_deleted()
            self.segments.remove(segment)
            if segment.base_offset in self.snapshots:
                self.snapshots.remove(segment.base_offset)

    def _make_durable(self) -> None:
        """Sync what the check has found and rebuilt, before readers see it: it may be in memory only."""
        if not self.checked:
            return
        for segment in self.checked:
            if not self.is_replayed:
                # A process that did not wait for the disk may have written it.
                segment.file.sync()
            if segment is self.segments[-1]:
                segment.save_rebuilt_index()
            else:
                segment.finish_indexes()
                segment.sync_indexes()
                segment.release()
        # Deleting the segments before also deletes the producers that are known from nowhere else.
        for offset, producers in self.missing_snapshots.items():
            if any(segment.base_offset == offset for segment in self.segments):
                self.files.write_atomically(f"{self.folder}/{file_name(offset, SNAPSHOT)}", producers)

    # Producers

    def _begin_producers(self, offset: int) -> None:
        """Load the producers as they were at an offset: the newest whole snapshot up to there, and what came after."""
        began = self.segments[0].base_offset
        for candidate in sorted(self.snapshots, reverse=True):
            if candidate > offset:
                continue
            path = f"{self.folder}/{file_name(candidate, SNAPSHOT)}"
            try:
                self.producers, began = Producers.decode(self.files.read(path), now_ms=self.now_ms), candidate
                break
            except Malformed as error:
                logger.warning("%s is not used: %s", path, error)
                self._remove_snapshot(candidate)
        self._replay(began, offset)

    def _finish_producers(self, log_end_offset: int) -> None:
        """Set the producers at the log's end, and remove every snapshot that says something else."""
        for candidate in [offset for offset in self.snapshots if offset > log_end_offset]:
            logger.warning(
                "%s/%s is not used: it is of a later offset than the log's end",
                self.folder, file_name(candidate, SNAPSHOT),
            )  # fmt: skip
            self._remove_snapshot(candidate)
        if not self.checked or (self.damage and log_end_offset in self.snapshots):
            # What a damaged batch said of its producer, a snapshot behind it still knows.
            self._begin_producers(log_end_offset)
        self.producers.undecided.show(log_end_offset)
        self._remove_stray_snapshots()

    def _remove_snapshot(self, offset: int) -> None:
        self.files.remove(f"{self.folder}/{file_name(offset, SNAPSHOT)}")
        self.snapshots.remove(offset)

    def _replay(self, offset: int, end: int) -> None:
        """Remember the batches between two offsets."""
        if offset >= end:
            return
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            if segment.base_offset >= end:
                break
            if following is not None and following.base_offset <= offset:
                continue
            if offset <= segment.base_offset:
                self._replay_from(self.producers, segment, 0)
            elif (found := segment.lookup.find(offset, segment.size)) is not None:
                self._replay_from(self.producers, segment, found[0])

    def _replay_from(self, producers: Producers, segment: Segment, position: int) -> None:
        try:
            for at, header in segment.lookup.batches(position, segment.size):
                if header.producer_id >= 0:
                    data = segment.read(at, header.size) if header.is_control else b""
                    self._remember(producers, header, data, 0)
        except BadBatch as bad:
            end = segment.lookup.note_damage(bad, segment.size)
            self._replay_from(producers, segment, end)

    def _remember(self, producers: Producers, header: BatchHeader, data: batches.Buffer, at: int) -> Aborted | None:
        """Remember a batch, which lies in `data` if it is a marker, and return the transaction that it aborts."""
        if not header.is_control:
            producers.record(header, last_offset=header.last_offset, seen_ms=self.now_ms)
            return None
        marker = None
        with suppress(Malformed):
            marker = transactions.read_marker(data, at)
        if marker is None:
            return None
        ended = producers.record_marker(
            header.producer_id, header.producer_epoch, marker,
            offset=header.base_offset, timestamp=header.max_timestamp, seen_ms=self.now_ms,
        )  # fmt: skip
        if ended is None:
            return None
        producers.undecided.end(ended)
        stable = producers.undecided.stable_after(ended)
        return Aborted(ended.producer_id, ended.first_offset, ended.last_offset, stable) if ended.is_aborted else None

    def tail_producers(self, segments: Sequence[Segment]) -> Producers:
        """Return the producers of the last batches of a log, with all that a producer may send again."""
        producers, wanted = Producers(), []
        left = TAIL_BYTES
        for segment in reversed(segments):
            wanted.append((segment, max(0, segment.size - left)))
            left -= segment.size
            if left <= 0:
                break
        for segment, size in reversed(wanted):
            index = segment.offset_index
            position = next((entry[1] for entry in (index[at] for at in range(len(index))) if entry[1] >= size), 0)
            self._replay_from(producers, segment, position if size else 0)
        return producers

    def _remove_stray_snapshots(self) -> None:
        bases = {segment.base_offset for segment in self.segments}
        for candidate in sorted(self.snapshots)[:-1]:
            if candidate not in bases:
                self.files.remove(f"{self.folder}/{file_name(candidate, SNAPSHOT)}")
