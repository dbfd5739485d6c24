"""Cleaning: the rewriting of segments without the records that are no longer the newest of their key.

It runs in a process of its own (`python -m logmark.log.segment_cleaner`, driven by lines of JSON), so that neither the
event loop nor its interpreter waits for it; `clean` is the same in this process, on any file system. One cleaning is
`list(clean(plan, files))`: a `Cleaned` for every output, whose files are complete and synced under names that end in
`.cleaned`, and at the end one `Done` with its figures. Nothing that it reads is changed.
"""

import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

from logmark.disk.file_system import File, FileSystem, RealFileSystem
from logmark.errors import Malformed
from logmark.log import compaction_schedule, transactions
from logmark.log.compaction_schedule import Source
from logmark.log.index import OffsetIndex, TimeIndex
from logmark.log.transaction_retention import BatchRetention, TransactionRetention
from logmark.log.transactions import Aborted
from logmark.wire import batches
from logmark.wire.columns import HEADER_BYTES, index_batches
from logmark.wire.compaction_filter import CompactionFilter, KeyMap

CLEANED = ".cleaned"
LOG, INDEX, TIME_INDEX, TXN_INDEX = ".log", ".index", ".timeindex", ".txnindex"
NICENESS = 10


class Limits(NamedTuple):
    """How much memory a cleaning may take: for the map of keys, for a read, and for one decompressed batch."""

    map_bytes_max: int = 128 * 2**20
    read_bytes: int = 2**20
    decompressed_bytes_max: int = 100 * 2**20


_USUAL_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one cleaning of one partition needs to know; plain data.

    `bases` are the base offsets of all inactive segments below `end_offset`, the first offset that is not cleaned, and
    `sizes` their lengths in bytes.
    """

    folder: str
    bases: Sequence[int]
    sizes: Sequence[int]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    aborted: Sequence[Aborted] = ()
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    segment_bytes: int = 2**30
    index_bytes_max: int = 10 * 2**20
    index_interval_bytes: int = 4096
    limits: Limits = _USUAL_LIMITS

    def encode(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def decode(cls, line: str) -> "Plan":
        """Return the plan in a line."""
        fields = json.loads(line)
        fields["aborted"] = [Aborted(*entry) for entry in fields["aborted"]]
        fields["producers"] = {int(producer_id): tuple(last) for producer_id, last in fields["producers"].items()}
        fields["limits"] = Limits(*fields["limits"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """One output: it replaces the segments of these base offsets, the first of which is its own."""

    replaced: Sequence[int]
    size_bytes: int
    # The CRC-32 of its log.
    checksum: int
    max_timestamp: int
    max_timestamp_offset: int
    has_aborted: bool

    @property
    def base_offset(self) -> int:
        return self.replaced[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How far the log is clean now, and what that took."""

    cleaned_to: int
    keys: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_kept: int
    seconds: float


def clean(plan: Plan, files: FileSystem) -> Generator[Cleaned | Done, None, None]:
    """Write the outputs one by one; the caller may take each one over before it asks for the next."""
    return _Cleaning(plan, files).run()


def path_of(folder: str, base_offset: int, suffix: str) -> str:
    """Return the path of a file of a segment."""
    return f"{folder}/{base_offset:020d}{suffix}"


class _Cleaning:
    """One run through one log."""

    def __init__(self, plan: Plan, files: FileSystem) -> None:
        self._plan = plan
        self._files = files
        self._keys = KeyMap(plan.limits.map_bytes_max)
        self._bytes_read = self._bytes_kept = 0

    def run(self) -> Generator[Cleaned | Done, None, None]:
        plan = self._plan
        began = time.monotonic()
        cleaned_to = self._map_keys()
        # The filter keeps everything that the map does not reach: a map that was full ends in front of it.
        compaction = CompactionFilter(
            self._keys,
            mapped_to=cleaned_to - 1,
            end=plan.end_offset,
            producers=plan.producers,
            now_ms=plan.now_ms,
            horizon_ms=plan.now_ms + plan.delete_retention_ms,
            decompressed_bytes_max=plan.limits.decompressed_bytes_max,
        )
        transaction_retention = TransactionRetention(plan.aborted)
        sources = [self._source(base, size) for base, size in zip(plan.bases, plan.sizes, strict=True)]
        grouped = compaction_schedule.group_segments(
            [source for source in sources if source.base_offset < cleaned_to],
            segment_bytes=plan.segment_bytes,
            index_bytes_max=plan.index_bytes_max,
            end_offset=plan.end_offset,
        )
        for group in grouped:
            yield self._clean_group(group, compaction, transaction_retention)
        yield Done(
            cleaned_to=cleaned_to,
            keys=len(self._keys),
            records_read=compaction.read,
            records_kept=compaction.kept,
            bytes_read=self._bytes_read,
            bytes_kept=self._bytes_kept,
            seconds=time.monotonic() - began,
        )

    def _source(self, base_offset: int, size: int) -> Source:
        index, time_index = (self._size(base_offset, suffix) for suffix in (INDEX, TIME_INDEX))
        return Source(base_offset, size, index, time_index)

    def _size(self, base_offset: int, suffix: str) -> int:
        try:
            return self._files.size(path_of(self._plan.folder, base_offset, suffix))
        except FileNotFoundError:
            return 0

    # The newest offset of every key

    def _map_keys(self) -> int:
        """Map the dirty part, or as much as memory allows, and return the first offset that is not mapped."""
        plan = self._plan
        transaction_retention = TransactionRetention(plan.aborted)
        first = max(0, sum(1 for base in plan.bases if base <= plan.first_dirty_offset) - 1)
        ends = [*plan.bases[1:], plan.end_offset]
        for base, size, end in list(zip(plan.bases, plan.sizes, ends, strict=True))[first:]:
            last_offset = self._map_segment(base, size, transaction_retention)
            if self._keys.is_full and last_offset is not None:
                return max(plan.first_dirty_offset, last_offset + 1)
            # Offsets that are missing at a segment's end are mapped too: there is nothing to find.
            if self._keys.is_full:
                return end
        return plan.end_offset

    def _map_segment(self, base: int, size: int, transaction_retention: TransactionRetention) -> int | None:
        """Add the keys of a segment; if the map is full before its end, return the last offset mapped."""
        plan, keys = self._plan, self._keys
        last_offset = base - 1
        with _Batches(self._files, path_of(plan.folder, base, LOG), size, plan.limits.read_bytes) as source:
            while source.has_more:
                retention = _decide_retention(transaction_retention, source)
                if retention is not None and (retention.is_aborted or source.is_control):
                    last_offset = source.skip()
                    continue
                at, last = keys.add(
                    source.data,
                    source.at,
                    start=plan.first_dirty_offset,
                    is_judged=retention is not None,
                    decompressed_bytes_max=plan.limits.decompressed_bytes_max,
                )
                source.move_to(at)
                last_offset = max(last_offset, last)
                if keys.is_full and source.has_more:
                    return last_offset
        return None

    # What stays

    def _clean_group(
        self, group: list[Source], compaction: CompactionFilter, transaction_retention: TransactionRetention
    ) -> Cleaned:
        plan = self._plan
        output = _Output(plan, group[0].base_offset, self._files)
        try:
            output.empty()
            for member in group:
                self._clean_segment(member, compaction, transaction_retention, output)
            cleaned = output.finish([member.base_offset for member in group], transaction_retention.take_needed())
        except BaseException:
            # Half an output on a full disk would only keep it full.
            output.discard()
            raise
        finally:
            output.close()
        self._bytes_kept += cleaned.size_bytes
        return cleaned

    def _clean_segment(
        self,
        member: Source,
        compaction: CompactionFilter,
        transaction_retention: TransactionRetention,
        output: "_Output",
    ) -> None:
        plan = self._plan
        self._bytes_read += member.size_bytes
        path = path_of(plan.folder, member.base_offset, LOG)
        with _Batches(self._files, path, member.size_bytes, plan.limits.read_bytes) as source:
            while source.has_more:
                retention = _decide_retention(transaction_retention, source)
                if retention is None:
                    at = compaction.run(source.data, source.at)
                else:
                    at = compaction.filter_batch(source.data, source.at, **retention._asdict())
                source.move_to(at)
                if len(compaction.out) >= plan.limits.read_bytes:
                    output.write(compaction.out)
        output.write(compaction.out)


def _decide_retention(transaction_retention: TransactionRetention, source: "_Batches") -> BatchRetention | None:
    """Decide on the next batch if it is of a transaction; return None if it is not, as maybe those behind it."""
    if not source.is_of_transaction:
        return None
    header = source.header()
    marker = transactions.read_marker(source.data, source.at) if header.is_control else None
    return transaction_retention.decide_retention(header, marker)


class _Batches:
    """The batches of a file, read in pieces; a piece always holds the whole batch at `at`."""

    def __init__(self, files: FileSystem, path: str, size: int, read_bytes: int) -> None:
        self._path = path
        self._file: File = files.open(path)
        self._size = size
        self._read_bytes = read_bytes
        self._position = 0
        self.data = b""
        self.at = 0
        self._fill()

    def __enter__(self) -> "_Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def has_more(self) -> bool:
        return self._position + self.at < self._size

    @property
    def is_of_transaction(self) -> bool:
        return bool(self.data[self.at + 22] & (batches.TRANSACTIONAL_BIT | batches.CONTROL_BIT))

    @property
    def is_control(self) -> bool:
        return bool(self.data[self.at + 22] & batches.CONTROL_BIT)

    def header(self) -> batches.BatchHeader:
        """Return the header of the next batch."""
        return batches.read_header(self.data, self.at)

    def skip(self) -> int:
        """Pass over the next batch and return its last offset."""
        header = self.header()
        self.move_to(self.at + header.size)
        return header.last_offset

    def move_to(self, at: int) -> None:
        """Continue at a byte of `data`, and read what follows if the batch there is cut short."""
        self.at = at
        left = len(self.data) - at
        if self.has_more and (left < HEADER_BYTES or self.header().size > left):
            self._fill()

    def _fill(self) -> None:
        self._position += self.at
        self.at = 0
        left = self._size - self._position
        if not left:
            self.data = b""
            return
        self.data = self._file.pread(min(self._read_bytes, left), self._position)
        size = self.header().size if len(self.data) >= HEADER_BYTES else left + 1
        if size > left:
            raise Malformed(f"{self._path} has no whole batch at byte {self._position}")
        if size > len(self.data):
            self.data = self._file.pread(size, self._position)
        if size > len(self.data):
            raise Malformed(f"{self._path} is cut short at byte {self._position}")


class _Output:
    """One segment to be: its files end in `.cleaned` until the partition takes them over."""

    def __init__(self, plan: Plan, base_offset: int, files: FileSystem) -> None:
        self._plan = plan
        self._base_offset = base_offset
        self._files = files
        self._file = files.open(self._path(LOG), create=True)
        self._size = 0
        self._checksum = 0
        self._offsets, self._times = OffsetIndex(base_offset), TimeIndex(base_offset)
        self._expected = base_offset
        # As `index_batches` has it: the last entry's position, the largest timestamp and its offset, the last entry's.
        self._state = array("q", (0, -1, base_offset, -1, -1))

    def _path(self, suffix: str) -> str:
        return path_of(self._plan.folder, self._base_offset, suffix) + CLEANED

    def empty(self) -> None:
        """Start again where another run was interrupted."""
        self._file.truncate(0)

    def write(self, data: bytearray) -> None:
        """Add batches, and take them out of `data`."""
        if not data:
            return
        sound, self._expected, problem, *_ = index_batches(
            data,
            expected=self._expected,
            is_dense=False,
            position=self._size,
            base_offset=self._base_offset,
            interval=self._plan.index_interval_bytes,
            state=self._state,
            offset_entries=self._offsets.data,
            time_entries=self._times.data,
        )
        if sound != len(data) or problem:
            raise Malformed(f"{self._path(LOG)}: what was cleaned is not sound ({problem})")
        self._file.pwrite(data, self._size)
        self._size += len(data)
        self._checksum = zlib.crc32(data, self._checksum)
        data.clear()

    def finish(self, replaced: Sequence[int], aborted: Sequence[Aborted]) -> Cleaned:
        """Complete the files and sync them."""
        self._file.sync()
        _, timestamp, timestamp_offset, self._times.last_timestamp, _ = self._state
        self._times.append_if_later(timestamp, timestamp_offset)
        self._files.write(self._path(INDEX), self._offsets.data)
        self._files.write(self._path(TIME_INDEX), self._times.data)
        if aborted:
            self._files.write(self._path(TXN_INDEX), transactions.AbortedTransactions(aborted).encode())
        else:
            with suppress(FileNotFoundError):
                self._files.remove(self._path(TXN_INDEX))
        return Cleaned(
            replaced=list(replaced),
            size_bytes=self._size,
            checksum=self._checksum,
            max_timestamp=timestamp,
            max_timestamp_offset=timestamp_offset,
            has_aborted=bool(aborted),
        )

    def discard(self) -> None:
        """Remove the files."""
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
            with suppress(FileNotFoundError):
                self._files.remove(self._path(suffix))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# The process

_CLEANED, _DONE, _FAILED = "cleaned", "done", "failed"


def read_answer(line: str) -> Cleaned | Done:
    """Return what a line of the process says; raise what the cleaning raised."""
    kind, fields = json.loads(line)
    if kind == _CLEANED:
        return Cleaned(**fields)
    if kind == _DONE:
        return Done(**fields)
    raise OSError(fields["errno"], fields["text"]) if fields["errno"] else Malformed(fields["text"])


def _answer(to: TextIO, kind: str, fields: dict[str, Any]) -> None:
    to.write(json.dumps([kind, fields]) + "\n")
    to.flush()


def _keep_time(folder: str, cleaned: Cleaned) -> None:
    """Leave an output as old as the last segment in it: retention goes by that if records have no timestamps."""
    last = os.stat(path_of(folder, cleaned.replaced[-1], LOG))
    os.utime(path_of(folder, cleaned.base_offset, LOG) + CLEANED, ns=(last.st_atime_ns, last.st_mtime_ns))


def serve(plans: TextIO, answers: TextIO, *, is_syncing: bool) -> None:
    """Clean one plan after the other until there are no more."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in plans:
            lines.put(line)
        # The broker is gone, maybe killed: whatever is half done is of no use.
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    files = RealFileSystem(sync=is_syncing)
    while True:
        line = lines.get()
        try:
            plan = Plan.decode(line)
            for found in clean(plan, files):
                if isinstance(found, Cleaned):
                    _keep_time(plan.folder, found)
                _answer(answers, _DONE if isinstance(found, Done) else _CLEANED, dataclasses.asdict(found))
        except BrokenPipeError:
            raise
        except (Malformed, OSError) as error:
            _answer(answers, _FAILED, {"errno": getattr(error, "errno", None), "text": str(error)})


def main() -> None:
    """Run the process: low in priority, deaf to the terminal's Ctrl-C, and gone with the broker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        serve(sys.stdin, sys.stdout, is_syncing="--sync" in sys.argv[1:])
    except BrokenPipeError:
        # The broker was killed. Python would flush what is left to the broken pipe, and complain.
        os._exit(0)


if __name__ == "__main__":
    main()
