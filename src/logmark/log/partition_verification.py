"""The inspection of one partition's folder: every batch, every record, and every file that speaks of them.

It reads only. Batches are compared with their neighbours, indexes and snapshots with the batches. Records are walked by
the compiled columns; nothing here is done record by record.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed
from logmark.log import checkpoints, file_formats, transactions
from logmark.log.damage import Damage
from logmark.log.findings import Finding, FindingKind, PartitionFindings, SegmentFindings, of_damage
from logmark.log.index_check import IndexCheck
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.missing_segments import describe_missing_start, known_start
from logmark.log.scanner import Scanner, Stretch, head_of
from logmark.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, file_name
from logmark.log.transactions import Aborted
from logmark.wire import batches, codecs, columns
from logmark.wire.batches import CODEC_BITS, CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader

# A batch that unpacks to more is not looked into: no broker takes one by default.
UNPACKED_BYTES_MAX = 256 * 1024 * 1024
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_UNKNOWN = -1
_PAGES_BYTES = 64 * 1024


class PartitionVerification:
    """One folder; `on_progress` is called with the number of bytes read."""

    def __init__(
        self,
        path: str,
        folder: str,
        *,
        files: FileSystem,
        cleaned_to: int | None,
        end: int | None,
        is_clean: bool,
        is_ours: bool,
        on_progress: Callable[[int], None],
        flushed_to: int | None = None,
        rebuilt_from: int | None = None,
        log_start_offset: int | None = None,
        listed: Collection[int] = (),
        is_synced: bool = False,
    ) -> None:
        """Take a folder; `flushed_to` is the offset below which a WAL says that all of its files were durable.

        From the segment of `rebuilt_from` on the next start makes the indexes again; None if it keeps all of them.
        `log_start_offset` is that of its checkpoint. `listed` are the base offsets that a clean stop has listed:
        without them nobody misses a segment of a compacted log. `is_synced` says that the directory is one of ours
        after a clean stop or with a WAL: then the files beside the segments say up to where segments may have been
        deleted.
        """
        self._path = f"{path}/{folder}"
        self._folder = folder
        self._files = files
        self._cleaned_to = cleaned_to
        self._end = end
        self._is_clean = is_clean
        self._is_ours = is_ours
        self._flushed_to = flushed_to
        self._rebuilt_from = rebuilt_from
        self._on_progress = on_progress
        self._log_start_offset = log_start_offset
        self._listed = listed
        self._is_synced = is_synced
        # The log start up to which segments may have been deleted, if a file says it.
        self._start: int | None = None
        self._result = PartitionFindings(folder=folder)
        self._names: Sequence[str] = ()
        # The open transactions by producer, each with its first offset.
        self._open: dict[int, int] = {}
        self._aborts: dict[int, Aborted] = {}
        self._epochs: list[tuple[int, int]] | None = None
        self._gaps: list[tuple[SegmentFindings, Damage]] = []
        self._is_compacted = self._has_gaps = cleaned_to is not None
        self._max_timestamp = -1

    def run(self) -> PartitionFindings:
        """Verify the whole folder."""
        self._names = self._files.listdir(self._path)
        self._epochs = self._read_epochs()
        if self._is_synced:
            self._start = known_start(self._epochs, self._log_start_offset, is_clean=self._is_clean)
        bases = sorted(int(name[:20]) for name in self._names if name.endswith(LOG) and name[:20].isdigit())
        self._check_start(bases)
        for base, following in zip_longest(bases, bases[1:]):
            self._inspect(base, following)
        self._judge_gaps()
        self._check_epochs(bases)
        self._check_snapshots(bases)
        # A clean stop leaves `.deleted` files as well, until file.delete.delay.ms has passed: they mean nothing.
        left_over = [name for name in self._names if name.endswith(".tmp")]
        if left_over:
            more = f", and {len(left_over) - 1} more" if len(left_over) > 1 else ""
            self._note(left_over[0], f"it is left over{more}", "The next start removes such files.")
        return self._result

    # Segments

    def _check_start(self, bases: Sequence[int]) -> None:
        """Check that the first segment holds the log start, or begins below it."""
        if not bases or self._start is None or bases[0] <= self._start:
            return
        # A repair writes the epochs again from the log: then the log starts where its records do.
        self._result.epochs_are_wrong = True
        self._result.found.append(
            Finding(
                kind=FindingKind.RECORDS,
                path=self._folder,
                problem=describe_missing_start(self._start, bases[0]),
                first_offset=self._start,
                next_offset=bases[0],
                meaning="These records are lost unless you put the files of their segments back. A repair makes "
                f"{bases[0]} the log start.",
                records_lost_max=bases[0] - self._start,
            )
        )

    def _inspect(self, base: int, following: int | None) -> None:
        name = file_name(base, LOG)
        file = self._files.open(f"{self._path}/{name}")
        try:
            size = file.size()
            found = SegmentFindings(base_offset=base, size_bytes=size)
            self._result.segments.append(found)
            is_kept = self._is_kept(following)
            offsets, times = (self._pointers(found, base, one, is_kept=is_kept) for one in (INDEX, TIME_INDEX))
            self._aborts, self._max_timestamp = {}, -1
            expected = base
            is_dense = self._cleaned_to is None or (following is None and base >= self._cleaned_to)
            scanner = Scanner(
                file, size, base_offset=base, is_dense=is_dense, next_base=following, end=self._end,
                is_guess=not self._is_ours, entries=offsets.entries,
            )  # fmt: skip
            for part in scanner:
                if isinstance(part, Stretch):
                    self._check_stretch(name, part, offsets, times)
                    expected = part.next_offset
                    self._on_progress(len(part.data))
                else:
                    self._has_gaps = True
                    self._take(name, found, part, is_last=following is None)
                    if part.next_offset is not None:
                        expected = part.next_offset
                    offsets.skip(part.position + part.size_bytes)
                    times.skip(expected)
                    self._on_progress(part.size_bytes)
        finally:
            file.close()
        self._result.log_end_offset = expected
        self._check_end(found, expected, following, size)
        if is_kept:
            self._check_pointers(found, base, offsets, times)
            self._check_aborts(found, base, following)

    def _is_kept(self, following: int | None) -> bool:
        """Return whether the next start keeps the indexes of a segment: it rebuilds what was perhaps not flushed."""
        return self._rebuilt_from is None or (following is not None and following < self._rebuilt_from)

    def _take(self, name: str, found: SegmentFindings, damage: Damage, *, is_last: bool) -> None:
        if not damage.size_bytes:
            self._gaps.append((found, damage))
        elif is_last and not self._is_clean and damage.next_offset is None and damage.right_head is None:
            found.torn = damage
            if self._flushed_to is not None and damage.first_offset < self._flushed_to:
                return  # records that were durable: the end of the log is reported
            self._note(
                name, f"{damage.size_bytes} bytes at its end are no batch ({damage.problem})",
                "The directory was not closed cleanly: the next start cuts such a tail, and nothing acknowledged is in "
                "it unless a checkpoint says otherwise.", position=damage.position,
            )  # fmt: skip
        else:
            found.damage.append(damage)
            self._result.found.append(of_damage(f"{self._folder}/{name}", damage))

    def _check_end(self, found: SegmentFindings, expected: int, following: int | None, size: int) -> None:
        is_deleted = following is not None and self._start is not None and following <= self._start
        if following is None or expected >= following or is_deleted:
            return
        if self._cleaned_to is not None:
            lost = [base for base in self._listed if found.base_offset < base < following]
            if not lost:
                return
            expected = max(expected, min(lost))
        self._has_gaps = True
        problem = f"the next segment begins at {following}, and the offsets before it are missing"
        self._gaps.append((found, Damage(size, 0, expected, following, problem)))

    def _judge_gaps(self) -> None:
        """Report missing offsets as lost, unless Kafka's batches show that it compacted the log once."""
        for found, gap in self._gaps:
            path = file_name(found.base_offset, LOG)
            if self._is_compacted and self._cleaned_to is None and not self._is_ours:
                self._note(path, f"no offsets {gap.first_offset} to {(gap.next_offset or 0) - 1}",
                           "The log was compacted once, and compaction leaves such gaps.")  # fmt: skip
                continue
            if gap.position == found.size_bytes:
                found.gap = gap
            else:
                found.damage.append(gap)
                found.damage.sort()
            self._result.found.append(of_damage(f"{self._folder}/{path}", gap))

    # Batches and records

    def _check_stretch(self, name: str, stretch: Stretch, offsets: IndexCheck, times: IndexCheck) -> None:
        position, largest, producer_id_max = stretch.position, self._max_timestamp, self._result.producer_id_max
        records = special = 0
        is_sparse = has_gaps = False
        epoch = self._result.epochs[-1][0] if self._result.epochs else None
        has_one_epoch = True
        for (
            base,
            size,
            leader_epoch,
            _,
            _,
            attributes,
            delta,
            _,
            timestamp,
            producer_id,
            _,
            _,
            count,
        ) in stretch.headers:
            last = base + delta
            if position >= offsets.due:
                offsets.meet(position, last)
            if last >= times.due:
                times.meet(last, timestamp)
            if timestamp > largest:
                largest = timestamp
            if producer_id > producer_id_max:
                producer_id_max = producer_id
            if leader_epoch != epoch:
                has_one_epoch = False
            if count != delta + 1:
                is_sparse = is_sparse or count > 0
                has_gaps = True
            special |= attributes
            records += count
            position += size
        self._max_timestamp, self._result.producer_id_max = largest, producer_id_max
        self._result.records += records
        self._is_compacted = self._is_compacted or is_sparse
        self._has_gaps = self._has_gaps or has_gaps
        if not has_one_epoch:
            self._check_leader_epochs(name, stretch)
        if special & TRANSACTIONAL_BIT:
            self._follow_transactions(stretch)
        self._check_records(name, stretch)

    def _check_records(self, name: str, stretch: Stretch) -> None:
        data, check, position = stretch.data, columns.check_records, 0
        for header in stretch.headers:
            begin, position = position, position + header.size
            is_plain = not header.attributes & (CODEC_BITS | CONTROL_BIT)
            if is_plain and header.record_count == header.last_offset_delta + 1:
                body = data[begin + HEADER_BYTES : position]
                problem_code, *_, is_numbered = check(data[begin:position], body, 0, False, _LONG_MIN, _LONG_MAX)
                if not problem_code and is_numbered:
                    continue
            problem = self._problem_of(data[begin:position], header)
            if problem is not None:
                self._result.found.append(
                    Finding(
                        kind=FindingKind.RECORDS,
                        path=f"{self._folder}/{name}",
                        position=stretch.position + begin,
                        size_bytes=header.size,
                        first_offset=header.base_offset,
                        next_offset=header.next_offset,
                        problem=problem,
                        meaning="The checksum is right, so it was written like this; readers cannot decode it. "
                        "A repair leaves it as it is.",
                    )
                )

    def _problem_of(self, data: memoryview, header: BatchHeader) -> str | None:
        if not header.record_count:
            return None if header.size == HEADER_BYTES else "a batch without records has bytes of records"
        try:
            body: batches.Buffer = data[HEADER_BYTES:]
            if header.codec:
                body = codecs.decompress(header.codec, body, bytes_max=UNPACKED_BYTES_MAX)
            problem, at, *rest = columns.check_records(data, body, 0, False, _LONG_MIN, _LONG_MAX)
        except Malformed as error:
            return f"its records cannot be unpacked ({error})"
        if problem == columns.Problem.BROKEN_RECORD:
            return f"record {at} of {header.record_count} is broken"
        if problem == columns.Problem.BYTES_LEFT:
            return f"bytes are left behind its {header.record_count} records"
        if header.record_count > header.last_offset_delta + 1:
            return f"{header.record_count} records for {header.last_offset_delta + 1} offsets"
        is_numbered = rest[-1]
        if not is_numbered and header.record_count == header.last_offset_delta + 1:
            return "its records are not numbered 0, 1, 2, ..."
        return None

    # Leader epochs

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        if EPOCHS not in self._names:
            return None
        try:
            found = checkpoints.read_epochs(self._files.read(f"{self._path}/{EPOCHS}"))
        except Malformed as error:
            self._say_epochs(str(error))
            return None
        if any(one[0] >= two[0] or one[1] > two[1] for one, two in pairwise(found)):
            self._say_epochs("its epochs or their offsets are out of order")
            return None
        if self._is_ours and any(epoch for epoch, _ in found):
            self._say_epochs(f"it names leader epoch {found[-1][0]}, and a log of Logmark has epoch 0 only")
            return None
        return found

    def _say_epochs(self, problem: str) -> None:
        self._result.epochs_are_wrong = True
        self._state(EPOCHS, problem, "Leader epochs are made again from the log. A repair loses nothing.")

    def _check_leader_epochs(self, name: str, stretch: Stretch) -> None:
        known = self._result.epochs
        position = stretch.position
        current = known[-1][0] if known else -1
        for at, header in enumerate(stretch.headers):
            epoch = header.leader_epoch
            if epoch != current:
                following = stretch.headers[at + 1].leader_epoch if at + 1 < len(stretch.headers) else epoch
                if self._is_ours and epoch != 0:
                    self._wrong_epoch(name, position, header, 0)
                elif epoch < current or following < epoch:
                    self._wrong_epoch(name, position, header, max(current, min(epoch, following)))
                else:
                    known.append((epoch, header.base_offset))
                    current = epoch
            position += header.size

    def _wrong_epoch(self, name: str, position: int, header: BatchHeader, right: int) -> None:
        head = head_of(header._replace(leader_epoch=right))
        damage = Damage(
            position, header.size, header.base_offset, header.next_offset,
            f"leader epoch {header.leader_epoch} where {right} belongs", head,
        )  # fmt: skip
        found = self._result.segments[-1]
        found.damage.append(damage)
        found.damage.sort()
        self._result.found.append(of_damage(f"{self._folder}/{name}", damage))

    def _check_epochs(self, bases: Sequence[int]) -> None:
        if self._epochs is None:
            if bases and EPOCHS not in self._names and self._is_clean and self._result.log_end_offset > bases[0]:
                self._say_epochs("it is missing")
            return
        beyond = [start for _, start in self._epochs if start > self._result.log_end_offset]
        if beyond and bases:
            self._say_epochs(f"an epoch begins at {beyond[0]}, behind the log's end, {self._result.log_end_offset}")

    # Transactions

    def _follow_transactions(self, stretch: Stretch) -> None:
        position = 0
        for header in stretch.headers:
            if header.attributes & CONTROL_BIT:
                marker = None
                with suppress(Malformed):
                    marker = transactions.read_marker(stretch.data, position)
                first = self._open.pop(header.producer_id, _UNKNOWN)
                if marker is not None and not marker.is_commit:
                    last = header.last_offset
                    stable = min(self._open.values(), default=last + 1)
                    self._aborts[last] = Aborted(header.producer_id, first, last, stable)
            elif header.attributes & TRANSACTIONAL_BIT:
                self._open.setdefault(header.producer_id, header.base_offset)
            position += header.size

    def _check_aborts(self, found: SegmentFindings, base: int, following: int | None) -> None:
        name = file_name(base, TXN_INDEX)
        data = self._files.read(f"{self._path}/{name}") if name in self._names else b""
        # Compaction and repairs remove records of aborted transactions, and damage may have held any marker.
        is_known = not self._has_gaps
        # A marker without records here aborts nothing; one whose records lie before the log cannot be judged.
        expected = {last: abort for last, abort in self._aborts.items() if abort.first_offset != _UNKNOWN}
        problem = self._problem_of_aborts(data, base, following, can_miss=self._has_gaps)
        if problem is None and is_known:
            listed = {entry.last_offset: entry[1:4] for entry in file_formats.aborted_entries(data)}
            missing = [last for last, abort in expected.items() if listed.get(last) != abort[:3]]
            if missing:
                problem = f"the transaction aborted at offset {missing[0]} is not in it as the log has it"
        if problem is not None:
            found.aborts_are_wrong = True
            found.aborted = list(expected.values()) if is_known and len(expected) == len(self._aborts) else None
            self._state(name, problem, "Readers of committed records may be shown aborted ones. A repair makes it "
                        "again from the log.")  # fmt: skip

    def _problem_of_aborts(self, data: bytes, base: int, following: int | None, *, can_miss: bool) -> str | None:
        """Return what is wrong with a transaction index by itself, and with the markers that it names."""
        if len(data) % file_formats.ABORTED_ENTRY.size:
            return "half an entry"
        before = base - 1
        for entry in file_formats.aborted_entries(data):
            if entry.version != 0 or not (0 <= entry.first_offset < entry.last_offset and before < entry.last_offset):
                return f"an impossible entry, {entry}"
            marker = self._aborts.get(entry.last_offset)
            if (marker is None and not can_miss) or (following is not None and entry.last_offset >= following):
                return f"no abort marker at offset {entry.last_offset}"
            if marker is not None and marker.producer_id != entry.producer_id:
                return f"the marker at offset {entry.last_offset} is of another producer than {entry.producer_id}"
            before = entry.last_offset
        return None

    # Indexes

    def _pointers(self, found: SegmentFindings, base: int, suffix: str, *, is_kept: bool) -> IndexCheck:
        name = file_name(base, suffix)
        entry = file_formats.OFFSET_ENTRY if suffix == INDEX else file_formats.TIME_ENTRY
        data = b""
        if name in self._names and not is_kept:
            # The next start rebuilds it, and takes from it only where batches begin behind damage.
            data = file_formats.unpadded(self._used(name)[0], entry)
        elif name in self._names:
            data, size = self._used(name)
            data = file_formats.unpadded(data, entry)
            if size % entry.size and (self._is_clean or len(data) == size):
                self._index(found, name, f"its {size} bytes are not whole entries")
            elif len(data) < size and self._is_clean:
                self._index(found, name, f"{(size - len(data)) // entry.size} entries at its end are zeros")
        elif self._is_clean:
            self._index(found, name, "it is missing")
        if suffix == INDEX:
            return IndexCheck(file_formats.offset_entries(data, base), by=1)
        return IndexCheck(file_formats.time_entries(data, base), by=1)

    def _used(self, name: str) -> tuple[bytes, int]:
        """Return an index up to the zeros that a running Kafka reserves (20 MB for each partition), and its size."""
        file = self._files.open(f"{self._path}/{name}")
        try:
            size, data = file.size(), b""
            while len(data) < size and (chunk := file.pread(min(_PAGES_BYTES, size - len(data)), len(data))):
                if not any(chunk) and not any(file.pread(len(chunk), size - len(chunk))):
                    break
                data += chunk
        finally:
            file.close()
        return data, size

    def _check_pointers(self, found: SegmentFindings, base: int, offsets: IndexCheck, times: IndexCheck) -> None:
        for suffix, pointers, words in (
            (INDEX, offsets, "entry {} says that offset {} lies at byte {}"),
            (TIME_INDEX, times, "entry {} says that timestamp {} is the largest of the batch of offset {}"),
        ):
            pointers.finish()
            if pointers.wrong:
                at, entry = pointers.wrong[0]
                many = f"{len(pointers.wrong)} of {pointers.count} entries do not match the log; " if (
                    len(pointers.wrong) > 1) else ""  # fmt: skip
                self._index(found, file_name(base, suffix), many + words.format(at, *entry) + ", and the log does not")
        if not times.wrong and not found.damage and self._max_timestamp >= 0 and (
            times.last is None or times.last[0] != self._max_timestamp
        ):  # fmt: skip
            name = file_name(base, TIME_INDEX)
            if name in self._names:
                self._index(found, name, f"it does not say the segment's largest timestamp, {self._max_timestamp}")

    # Producers

    def _check_snapshots(self, bases: Sequence[int]) -> None:
        end = self._result.log_end_offset
        for name in self._names:
            if not name.endswith(SNAPSHOT) or not name[:20].isdigit():
                continue
            offset = int(name[:20])
            if self._flushed_to is not None and offset > end:
                # It is of records that were never acknowledged: a recovery removes it with them.
                continue
            try:
                producers = file_formats.producer_entries(self._files.read(f"{self._path}/{name}"))
            except Malformed as error:
                self._snapshot(name, str(error))
                continue
            if bases and offset > end and not self._is_ours:
                self._snapshot(name, f"it is of offset {offset}, and the log ends at {end}")
            wrong = [one for one in producers if max(one.last_offset, one.transaction_first_offset) >= offset]
            if wrong:
                self._snapshot(name, f"producer {wrong[0].producer_id} is said to have written at or above {offset}")
            elif name not in self._result.wrong_snapshots:
                self._result.snapshots.append(name)

    def _snapshot(self, name: str, problem: str) -> None:
        self._result.wrong_snapshots.append(name)
        self._state(name, problem, "It is not used: the producers are made again from the log. A repair sets it aside.")

    # Words

    def _index(self, found: SegmentFindings, name: str, problem: str) -> None:
        found.indexes_are_wrong = True
        meaning = "It is made again from the log when it is used. A repair loses nothing."
        self._add(FindingKind.INDEX, name, problem, meaning)

    def _state(self, name: str, problem: str, meaning: str) -> None:
        self._add(FindingKind.STATE, name, problem, meaning)

    def _note(self, name: str, problem: str, meaning: str, position: int | None = None) -> None:
        self._add(FindingKind.NOTE, name, problem, meaning, position)

    def _add(self, kind: FindingKind, name: str, problem: str, meaning: str, position: int | None = None) -> None:
        self._result.found.append(
            Finding(kind=kind, path=f"{self._folder}/{name}", problem=problem, meaning=meaning, position=position)
        )
