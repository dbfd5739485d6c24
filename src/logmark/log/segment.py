"""One segment: a file of batches back to back, two sparse indexes that point into it, and what was aborted in it.

Here are its files: how they are named, appended to, indexed, replaced and deleted. `segment_lookup` finds batches in
them, and `damage` finds the way past what is broken.
"""

import errno
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from logmark.disk.file_system import Bytes, File, FileSystem
from logmark.log.damage import Damage
from logmark.log.index import OffsetIndex, TimeIndex
from logmark.log.segment_lookup import Lookup
from logmark.log.transactions import ENTRY_BYTES, Aborted, AbortedTransactions, encode_entry
from logmark.wire import batches, columns
from logmark.wire.batches import BatchHeader

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
FILES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
DELETED = ".deleted"

logger = logging.getLogger(__name__)


def file_name(offset: int, suffix: str) -> str:
    """Return Kafka's name of a file of a partition: twenty digits and what it is."""
    return f"{offset:020d}{suffix}"


def sync_if_there(files: FileSystem, path: str) -> None:
    """Sync a file by its name; one that retention has renamed meanwhile needs no sync."""
    with suppress(FileNotFoundError):
        files.sync_file(path)


class Fingerprint(NamedTuple):
    """What a compaction wrote: only by it an older output of the same size can be told from this one."""

    size_bytes: int
    checksum: int


class Segment:
    """The batches from one base offset up to the next segment's."""

    __slots__ = (
        "_aborted", "_ending", "_file", "_files", "_index_interval", "_index_on_disk", "_indexed_position", "_is_timed",
        "_offset_index", "_path", "_saved_index_bytes", "_time_index", "base_offset", "created_ms", "damage",
        "fingerprint", "first_timestamp", "has_aborted", "index_bytes", "is_dense", "max_timestamp",
        "max_timestamp_offset", "size", "skips", "time_index_bytes", "visible_bytes", "visible_timestamp",
        "visible_timestamp_offset",
    )  # fmt: skip

    def __init__(
        self,
        folder: str,
        base_offset: int,
        files: FileSystem,
        *,
        size: int,
        created_ms: int,
        index_interval: int,
        is_dense: bool,
        has_aborted: bool = False,
    ) -> None:
        self.base_offset = base_offset
        # Every batch begins where the one before it ended: so it is unless the log was compacted.
        self.is_dense = is_dense
        self.created_ms = created_ms
        self.size = size
        # Only what lies below is served: it is on disk.
        self.visible_bytes = size
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.visible_timestamp = -1
        self.visible_timestamp_offset = base_offset
        self.damage: list[Damage] = []
        self.skips: dict[int, int] = {}
        # None if no compaction has written it, or a crash came after that.
        self.fingerprint: Fingerprint | None = None
        self._path = f"{folder}/{base_offset:020d}"
        # What the files' names end in: of a segment that replaces another, and of one that was replaced.
        self._ending = ""
        self._files = files
        self._file: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        # The offset index as its file has it; kept only while a rebuild needs it.
        self._index_on_disk: OffsetIndex | None = None
        # How many bytes of the offset index its file has, while the segment is active.
        self._saved_index_bytes = 0
        # Whether the segment has a transaction index: it comes with the first marker that aborts.
        self.has_aborted = has_aborted
        self._aborted: AbortedTransactions | None = None
        # The largest timestamp of the first batch: it decides when the segment is old enough to roll.
        self.first_timestamp = -1
        self.index_bytes = 0
        self.time_index_bytes = 0
        self._is_timed = False
        self._indexed_position = 0
        self._index_interval = index_interval

    def __repr__(self) -> str:
        return f"Segment({self._path}, {self.size} bytes)"

    @property
    def path(self) -> str:
        return self._path + LOG

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path + LOG + self._ending)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            data = self._read_index(INDEX, OffsetIndex.ENTRY_BYTES)
            if data is not None:
                self._offset_index = OffsetIndex(self.base_offset, data)
                self._saved_index_bytes = len(data)
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            data = self._read_index(TIME_INDEX, TimeIndex.ENTRY_BYTES)
            if data is not None:
                self._time_index = TimeIndex(self.base_offset, data)
        assert self._time_index is not None
        return self._time_index

    @property
    def aborted(self) -> AbortedTransactions:
        """Return the aborted transactions whose markers lie here; raise Malformed if their index cannot be believed."""
        if self._aborted is None:
            data = self._files.read(self._path + TXN_INDEX + self._ending) if self.has_aborted else b""
            self._aborted = AbortedTransactions.decode(data, base_offset=self.base_offset)
        return self._aborted

    def entries_behind(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield the entries of the offset index behind a position, which nobody has compared with the log.

        While the index in memory is rebuilt, it has none yet: then they are those of the file.
        """
        index = self._offset_index
        if index is None or index.at_or_behind(position + 1) is None:
            if self._index_on_disk is None:
                data = b""
                with suppress(FileNotFoundError):
                    data = self._files.read(self._path + INDEX + self._ending)
                whole = len(data) // OffsetIndex.ENTRY_BYTES * OffsetIndex.ENTRY_BYTES
                self._index_on_disk = OffsetIndex(self.base_offset, data[:whole])
            index = self._index_on_disk
        return index.from_position(position + 1)

    # Writing

    def create(self) -> None:
        """Make the files of an empty segment; syncs of the log, the indexes and the folder make them durable."""
        self._file = self._files.open(self._path + LOG, create=True)
        self._file.truncate(0)
        self.begin_indexes()
        for suffix in (INDEX, TIME_INDEX):
            self._files.write(self._path + suffix, b"", sync=False)

    def append(self, data: Bytes, size: int, last_offset: int, max_timestamp: int) -> None:
        """Write one batch at the end; every `index_interval` bytes a batch gets its index entries."""
        position = self.size
        (self._file or self.file).pwrite(data, position)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if not position:
            self.first_timestamp = max_timestamp
        elif position - self._indexed_position > self._index_interval:
            self._add_entries(last_offset, position)
        self.size = position + size

    def _add_entries(self, last_offset: int, position: int) -> None:
        self.offset_index.append(last_offset, position)
        self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self._indexed_position = position
        self.index_bytes = len(self.offset_index.data)
        self.time_index_bytes = len(self.time_index.data)

    def configure(self, *, index_interval: int) -> None:
        """Set the distance between index entries, in bytes."""
        self._index_interval = index_interval

    def show(self) -> None:
        """Let readers see everything that was written."""
        self.visible_bytes = self.size
        self.visible_timestamp = self.max_timestamp
        self.visible_timestamp_offset = self.max_timestamp_offset

    def prepare(self) -> None:
        """Read what an append needs to know of a segment that was closed."""
        self.load_timestamps()
        index = self.offset_index
        self._indexed_position = index[len(index) - 1][1] if len(index) else 0
        self.index_bytes, self.time_index_bytes = len(index.data), len(self.time_index.data)
        self.first_batch_timestamp()

    def first_batch_timestamp(self) -> int:
        """Return the largest timestamp of the first batch, or -1."""
        if self.first_timestamp < 0 and self.size:
            header = self.lookup.header_at(0, self.size)
            self.first_timestamp = -1 if header is None else header.max_timestamp
        return self.first_timestamp

    def load_timestamps(self) -> bool:
        """Load the largest timestamp, and return whether it had to be read.

        It is that of the last entry of the time index, if the log says the same; otherwise both indexes are rebuilt.
        """
        if self._is_timed:
            return False
        entries = self.time_index
        last = entries[len(entries) - 1] if len(entries) else None
        is_right = last is not None and self.lookup.is_largest_time(last[0])
        # Only now: what could not be read is read the next time.
        self._is_timed = True
        if last is not None and is_right:
            self.max_timestamp, self.max_timestamp_offset = last
            self.show()
        elif last is not None or self.size:
            logger.warning("time index contradicts the log: %s is rebuilt", self._path + TIME_INDEX)
            self.rebuild()
        return True

    def finish_indexes(self) -> None:
        """Add the entry of the largest timestamp, on which retention relies, and write both index files."""
        self.load_timestamps()
        self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        for suffix, index in ((INDEX, self.offset_index), (TIME_INDEX, self.time_index)):
            # A file that is whole is left alone: after a clean stop nobody would notice that a crash tore it.
            if index.bytes_on_disk != len(index.data):
                self._files.write(self._path + suffix, index.data, sync=False)
                index.bytes_on_disk = len(index.data)

    def index_saver(self) -> Callable[[], None] | None:
        """Return a call that writes the new entries of the offset index of an active segment; None if there are none.

        After a crash a start rebuilds the index, and only these entries lead it past damage. So nothing depends on
        them, and they need no sync. The call may be made in a thread.
        """
        index = self._offset_index
        if index is None or len(index.data) == self._saved_index_bytes:
            return None
        begin, self._saved_index_bytes = self._saved_index_bytes, len(index.data)
        return partial(self._save_entries, begin, bytes(index.data[begin:]))

    def _save_entries(self, begin: int, entries: bytes) -> None:
        try:
            # Without a truncation: the segment may have been closed meanwhile, and its index be complete.
            file = self._files.open(self._path + INDEX, create=not begin)
            try:
                file.pwrite(entries, begin)
            finally:
                file.close()
        except OSError:
            # The next call writes all of them.
            self._saved_index_bytes = 0

    def save_rebuilt_index(self) -> None:
        """Write the offset index of an active segment that was rebuilt: entries of records that were cut must go.

        To be called before anything is appended. Does nothing if the disk refuses it: nothing depends on it.
        """
        entries = bytes(self.offset_index.data)
        with suppress(OSError):
            if entries or self._files.size(self._path + INDEX):
                self._files.write(self._path + INDEX, entries, sync=False)
                self._saved_index_bytes = len(entries)

    def sync_log(self) -> None:
        """Sync the batches of the active segment; raise FileNotFoundError if nobody would find them by its name."""
        self.file.sync()
        if not self.file.is_in_place():
            raise FileNotFoundError(errno.ENOENT, "it was removed or replaced while the broker ran", self.path)

    def sync_indexes(self) -> None:
        """Sync both index files."""
        for suffix in (INDEX, TIME_INDEX):
            sync_if_there(self._files, self._path + suffix)

    def add_aborted(self, entry: Aborted) -> None:
        """Write an entry of the transaction index; the first one creates the file."""
        aborted = self.aborted
        file = self._files.open(self._path + TXN_INDEX, create=not self.has_aborted)
        try:
            file.pwrite(encode_entry(entry), len(aborted) * ENTRY_BYTES)
        except OSError:
            # By the file that is open: there may be no descriptor for another.
            if aborted:
                file.truncate(len(aborted) * ENTRY_BYTES)
            else:
                self._files.remove(self._path + TXN_INDEX)
            raise
        finally:
            file.close()
        self.has_aborted = True
        aborted.append(entry)

    def cut_aborted(self, count: int = 0) -> None:
        """Take the last entries out of the transaction index again, and whatever a failed write left behind them."""
        aborted = self.aborted
        aborted.drop_last(count)
        if not aborted:
            with suppress(FileNotFoundError):
                self._files.remove(self._path + TXN_INDEX)
            self.has_aborted = False
            return
        file = self._files.open(self._path + TXN_INDEX)
        try:
            file.truncate(len(aborted) * ENTRY_BYTES)
        finally:
            file.close()

    def replace_aborted(self, aborted: AbortedTransactions) -> None:
        """Rewrite the transaction index, or remove it if there are no entries."""
        if aborted:
            self._files.write(self._path + TXN_INDEX, aborted.encode())
        elif self.has_aborted:
            self._files.remove(self._path + TXN_INDEX)
        self._aborted, self.has_aborted = aborted, bool(aborted)

    def sync_aborted(self) -> None:
        """Sync the transaction index."""
        sync_if_there(self._files, self._path + TXN_INDEX)

    def cut_torn(self) -> None:
        """Truncate what a failed write may have left behind the last batch."""
        if self._file is not None and self._file.size() > self.size:
            self._file.truncate(self.size)

    def discard(self) -> None:
        """Remove the files of a segment that could not be made."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for suffix in (LOG, INDEX, TIME_INDEX):
            with suppress(FileNotFoundError):
                self._files.remove(self._path + suffix)

    def truncate(self, size: int) -> None:
        """Truncate the file; the caller rebuilds the indexes."""
        self.file.truncate(size)
        self.size = self.visible_bytes = size

    def release(self) -> None:
        """Close the file and free the memory of a segment that is complete on disk."""
        if self._ending not in ("", DELETED):
            # Its files are about to get other names: what is open stays right, what would be opened might not be.
            return
        if self._file is not None:
            self._file.close()
            self._file = None
        self._offset_index = self._time_index = self._index_on_disk = None
        self._aborted = None

    def mark_deleted(self, *, with_snapshot: bool = True) -> None:
        """Rename the segment's files to `.deleted`, where reads under way continue; to be called in a thread.

        Closing the last descriptor of a large file takes the kernel many milliseconds if the file is removed meanwhile.
        """
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT) if with_snapshot else FILES:
            with suppress(FileNotFoundError):
                self._files.replace(self._path + suffix, self._path + suffix + DELETED)
        self._ending = DELETED
        if self._file is not None:
            # A read under way may hold the file and open it again by its path.
            self._file.path = self._path + LOG + DELETED
        self._file = None

    def remove_deleted(self) -> bool:
        """Remove the files that `mark_deleted` has renamed, and return whether there were any."""
        if not self._files.exists(self._path + LOG + DELETED):
            return False
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, LOG):
            with suppress(FileNotFoundError):
                self._files.remove(self._path + suffix + DELETED)
        return True

    # Replacing another segment

    def enter(
        self, file: File, offsets: OffsetIndex, times: TimeIndex, aborted: AbortedTransactions, largest: tuple[int, int]
    ) -> None:
        """Take over files that are open and read, under temporary names until `settle` is called."""
        self._ending = file.path.removeprefix(self._path + LOG)
        self._file = file
        self._offset_index, self._time_index = offsets, times
        self._aborted = aborted
        self.max_timestamp, self.max_timestamp_offset = largest
        self._is_timed = True
        self.show()

    def settle(self) -> None:
        """Use the final names from now on: the files were renamed to them."""
        if self._file is not None:
            self._file.path = self._path + LOG
        self._ending = ""

    # Reading

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes at a position."""
        return (self._file or self.file).pread(size, position)

    @property
    def lookup(self) -> Lookup:
        """Return the look-up in this segment, made on demand: a segment that held it would be a reference cycle."""
        return Lookup(self)

    def change_stamp(self) -> str:
        """Return a text that differs as soon as the log is written to, replaced or copied."""
        return self._files.change_stamp(self.path)

    def modified_ms(self) -> int:
        """Return when the file was written last, which is used if there are no timestamps."""
        try:
            return self._files.modified_ms(self.path)
        except FileNotFoundError:
            # A swap is under way and the name is free for a moment.
            return self.created_ms

    # Rebuilding the indexes

    def rebuild(self) -> None:
        """Make both indexes again from the headers in the log."""
        is_shown = self.visible_bytes == self.size
        self.begin_indexes()
        try:
            for position, header in self.lookup.walk_sound(self.size):
                self.index_batch(position, header)
        except OSError:
            # Half an index must not pass for a whole one.
            self._offset_index = self._time_index = None
            self._is_timed = False
            raise
        if is_shown:
            self.show()

    def begin_indexes(self) -> None:
        """Empty both indexes in memory, so that `index_batch` can fill them again."""
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._index_on_disk = None
        self._saved_index_bytes = 0
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        self._indexed_position = self.index_bytes = self.time_index_bytes = 0
        self._is_timed = True

    def index_batch(self, position: int, header: BatchHeader) -> None:
        """Add the entries that an append of this batch would have added."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
        if not position:
            self.first_timestamp = header.max_timestamp
        elif position - self._indexed_position > self._index_interval:
            self._add_entries(header.last_offset, position)

    def index_next_batch(self, position: int) -> None:
        """Let the batch at a position get an index entry, however near the last one is.

        It follows damage: a later scan, which does not know what the recovery knew, finds it by this entry.
        """
        self._indexed_position = position - self._index_interval - 1

    def index_batches(
        self, data: Bytes, position: int, expected: int
    ) -> tuple[int, int, str | None, Sequence[int]]:  # fmt: skip
        """Check the batches at a position and index those that are sound.

        Return the number of sound bytes, the next offset, what is wrong there (None if nothing is), and where in the
        data the batches of producers with an id begin.
        """
        offsets, times = self.offset_index, self.time_index
        state = array(
            "q",
            (
                self._indexed_position, self.max_timestamp, self.max_timestamp_offset, times.last_timestamp,
                self.first_timestamp,
            ),
        )  # fmt: skip
        sound, next_offset, problem, positions = columns.index_batches(
            data,
            expected=expected,
            is_dense=self.is_dense,
            position=position,
            base_offset=self.base_offset,
            interval=self._index_interval,
            state=state,
            offset_entries=offsets.data,
            time_entries=times.data,
        )
        (
            self._indexed_position, self.max_timestamp, self.max_timestamp_offset, times.last_timestamp,
            self.first_timestamp,
        ) = state  # fmt: skip
        self.index_bytes, self.time_index_bytes = len(offsets.data), len(times.data)
        return sound, next_offset, batches.damage(problem), positions

    def _read_index(self, suffix: str, entry_bytes: int) -> bytes | None:
        """Return an index file as it is; None if it cannot be one, and both indexes were rebuilt."""
        try:
            data = self._files.read(self._path + suffix + self._ending)
        except FileNotFoundError:
            data = b"?"
        if len(data) % entry_bytes == 0:
            return data
        logger.warning("index missing or cut: %s is rebuilt", self._path + suffix)
        self.rebuild()
        return None
