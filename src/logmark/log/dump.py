"""The content of a log's files, item by item: batches, records, markers, and the entries of the files beside them.

It reads Logmark's files and Apache Kafka's, also while a broker runs, and continues behind what is damaged.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from logmark.disk.file_system import FileSystem
from logmark.errors import Malformed, UserError
from logmark.log import checkpoints, file_formats, transactions
from logmark.log.catalog import FILE_NAME as CATALOG
from logmark.log.catalog import Catalog
from logmark.log.damage import Damage
from logmark.log.dump_items import (
    AbortedTransactionItem,
    BatchDamageItem,
    BatchItem,
    DamageItem,
    FileItem,
    IndexEntryItem,
    Item,
    LeaderEpochItem,
    MarkerItem,
    OffsetItem,
    PartitionMetadataItem,
    ProducerItem,
    RecordItem,
    RecoveryPointItem,
    TimeIndexEntryItem,
    WalEntryItem,
    WalHeaderItem,
    WalPointsItem,
    WalRunItem,
    Where,
)
from logmark.log.folder import METADATA
from logmark.log.leader_epochs import FILE_NAME as EPOCHS
from logmark.log.partition_verification import UNPACKED_BYTES_MAX
from logmark.log.scanner import Scanner
from logmark.log.segment import LOG, file_name
from logmark.log.wal.entries import Run, split_key
from logmark.log.wal.files import SUFFIX, FileReader
from logmark.log.wal.log import FOLDER as WAL
from logmark.log.wal.recovery_points import FILE_NAME as WAL_POINTS
from logmark.log.wal.recovery_points import RecoveryPoints
from logmark.wire import codecs, columns
from logmark.wire.batches import HEADER_BYTES, BatchHeader, read_header

DELETE_HORIZON_BIT = 0x40
_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<index>\d+)(\.[0-9a-f]{32}-\w+)?")
_FILE = re.compile(r"(?P<base>\d{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)(\..+)?")
_OFFSET_FILES = (
    checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS, checkpoints.CLEANED,
)  # fmt: skip
_LONG_MAX = 2**63 - 1


class Dump:
    """What a file, a partition's folder or a whole data directory holds."""

    def __init__(
        self, files: FileSystem, *, with_records: bool = False, with_indexes: bool = False, from_offset: int = 0
    ) -> None:
        self._files = files
        self._with_records = with_records
        self._with_indexes = with_indexes
        self._from_offset = from_offset

    def of(self, path: str) -> Iterator[Item]:
        """Yield the items of a path; raise UserError if it is no part of a log."""
        if not self._files.exists(path):
            raise UserError(f"{path} does not exist. Name a file of a log, a partition's folder or a data directory.",
                            exit_code=2)  # fmt: skip
        if not self._files.is_directory(path):
            yield from self._file(path)
        elif os.path.basename(path) == WAL:
            yield from self._wal(path)
        elif _is_partition(self._files.listdir(path)):
            yield from self._folder(path)
        else:
            yield from self._directory(path)

    def _directory(self, path: str) -> Iterator[Item]:
        names = self._files.listdir(path)
        folders = [name for name in names if _FOLDER.fullmatch(name) and self._files.is_directory(f"{path}/{name}")]
        if not folders and not any(name in names for name in _OFFSET_FILES):
            raise UserError(f"{path} is neither a partition's folder nor a data directory.", exit_code=2)
        for name in sorted(folders, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2]))
                           if name.rpartition("-")[2].isdigit() else (name, 0)):  # fmt: skip
            yield from self._folder(f"{path}/{name}")
        for name in _OFFSET_FILES:
            if self._with_indexes and name in names:
                yield from self._file(f"{path}/{name}")
        if self._with_indexes and WAL in names:
            yield from self._wal(f"{path}/{WAL}")

    def _folder(self, path: str) -> Iterator[Item]:
        names = self._files.listdir(path)
        logs = [name for name in names if name.endswith(".log") and name[:20].isdigit()]
        first = max((at for at, name in enumerate(logs) if int(name[:20]) <= self._from_offset), default=0)
        for name in logs[first:]:
            yield from self._file(f"{path}/{name}")
        if self._with_indexes:
            for name in names:
                if name in (EPOCHS, METADATA) or ((match := _FILE.fullmatch(name)) and match["kind"] != "log"):
                    yield from self._file(f"{path}/{name}")

    def _file(self, path: str) -> Iterator[Item]:
        folder, name = os.path.split(path)
        if name.endswith(SUFFIX) or name == WAL_POINTS:
            yield from self._wal_file(path)
            return
        match = _FILE.fullmatch(name)
        if match is None and name not in (EPOCHS, METADATA, *_OFFSET_FILES) and not name.endswith(".log"):
            raise UserError(
                f"{path} is no file of a log: name a .log, .index, .timeindex, .txnindex, .snapshot or .wal file, a "
                "checkpoint, a partition's folder or a data directory.",
                exit_code=2,
            )
        where = Where(path, *_partition(os.path.basename(folder)))
        yield FileItem(where, size_bytes=self._files.size(path))
        try:
            if match is not None and match["kind"] == "log":
                yield from self._log(path, int(match["base"]), where)
            elif match is not None:
                yield from self._small(where, match["kind"], int(match["base"]))
            else:
                yield from self._text(where, name)
        except Malformed as error:
            yield DamageItem(where, problem=str(error))

    # Batches and records

    def _log(self, path: str, base: int, where: Where) -> Iterator[Item]:
        file = self._files.open(path)
        try:
            for part in Scanner(file, file.size(), base_offset=base, is_dense=False):
                if isinstance(part, Damage):
                    if (part.next_offset or _LONG_MAX) > self._from_offset:
                        yield _damage(part, where)
                    continue
                at = 0
                for header in part.headers:
                    if header.last_offset >= self._from_offset:
                        data = part.data[at : at + header.size]
                        yield from self._batch(part.position + at, header, data, where)
                    at += header.size
        finally:
            file.close()

    def _batch(self, position: int, header: BatchHeader, data: memoryview, where: Where) -> Iterator[Item]:
        yield BatchItem(
            where,
            position=position,
            size_bytes=header.size,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            record_count=header.record_count,
            codec="none" if not header.codec else _codec_name(header.codec),
            timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
            max_timestamp=header.max_timestamp,
            delete_horizon=header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            last_sequence=header.last_sequence,
            leader_epoch=header.leader_epoch,
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            crc=header.crc,
        )
        if not header.record_count:
            return
        try:
            if header.is_control:
                marker = transactions.read_marker(data)
                yield MarkerItem(
                    where,
                    offset=header.base_offset,
                    type="OTHER" if marker is None else "COMMIT" if marker.is_commit else "ABORT",
                    coordinator_epoch=None if marker is None else marker.coordinator_epoch,
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    timestamp=header.max_timestamp,
                )
            elif self._with_records:
                yield from self._records(data, where)
        except Malformed as error:
            damage = Damage(position, header.size, header.base_offset, header.next_offset, str(error))
            yield _damage(damage, where)

    def _records(self, data: memoryview, where: Where) -> Iterator[Item]:
        found = columns.decode(
            data, start=self._from_offset, stop=_LONG_MAX, with_headers=True, decompressed_bytes_max=UNPACKED_BYTES_MAX
        )
        fields = zip(found.offsets, found.timestamps_ms, found.keys(), found.values(), found.headers(), strict=True)
        for offset, timestamp, key, value, headers in fields:
            yield RecordItem(where, offset=offset, timestamp=timestamp, key=key, value=value, headers=headers)

    # The write-ahead log

    def _wal(self, path: str) -> Iterator[Item]:
        """Yield the recovery points, then the entries of every file, in the order in which they were written."""
        names = self._files.listdir(path)
        if WAL_POINTS in names:
            yield from self._wal_file(f"{path}/{WAL_POINTS}")
        found = [name for name in names if name.endswith(SUFFIX)]
        for name in sorted(found, key=lambda name: self._sequence(path, name)):
            yield from self._wal_file(f"{path}/{name}")

    def _sequence(self, folder: str, name: str) -> tuple[int, str]:
        reader = FileReader(f"{folder}/{name}", self._files)
        reader.close()
        return (reader.header.sequence if reader.header else 0), name

    def _wal_file(self, path: str) -> Iterator[Item]:
        where = Where(path)
        yield FileItem(where, size_bytes=self._files.size(path))
        try:
            if path.endswith(SUFFIX):
                yield from self._wal_entries(path, where)
            else:
                yield from self._wal_points(path, where)
        except Malformed as error:
            yield DamageItem(where, problem=str(error))

    def _wal_points(self, path: str, where: Where) -> Iterator[Item]:
        points = RecoveryPoints.decode(self._files.read(path))
        names = self._topic_names(path)
        owner = checkpoints.id_text(points.wal_id)
        yield WalPointsItem(where, wal_id=owner, first_entry=points.first_entry)
        for key, point in points.points.items():
            topic_id, partition = split_key(key)
            yield RecoveryPointItem(
                Where(path, names.get(topic_id), partition),
                topic_id=checkpoints.id_text(topic_id),
                offset=point.offset,
                segment=file_name(point.segment_base, LOG),
                position=point.position,
            )

    def _wal_entries(self, path: str, where: Where) -> Iterator[Item]:
        names, first_entry = self._topic_names(path), self._first_entry(path)
        reader = FileReader(path, self._files)
        try:
            if reader.header is None:
                raise Malformed("it has no header: it was not in use yet, or both copies are damaged")
            owner = checkpoints.id_text(reader.header.wal_id)
            yield WalHeaderItem(where, wal_id=owner, sequence=reader.header.sequence)
            expected = None
            for header, runs in reader.scan():
                if expected is not None and header.number != expected:
                    yield DamageItem(where, problem=f"no entry from {expected} to {header.number - 1}")
                expected = header.number + 1
                yield WalEntryItem(
                    where,
                    number=header.number,
                    # Runs without data repeat where the entry before has ended.
                    run_count=header.run_count if runs is None else sum(1 for run in runs if run.data),
                    size_bytes=header.size_bytes,
                    # A recovery begins at the first entry that some recovery point needs.
                    is_needed=None if first_entry is None else header.number >= first_entry,
                )
                if runs is None:
                    yield DamageItem(where, problem=f"entry {header.number} has a wrong checksum")
                for run in runs or ():
                    if run.data and run.end_offset > self._from_offset:
                        yield from self._run(path, header.number, run, names.get(run.topic_id))
        finally:
            reader.close()

    def _run(self, path: str, number: int, run: Run, topic: str | None) -> Iterator[Item]:
        where = Where(path, topic, run.partition)
        yield WalRunItem(
            where,
            topic_id=checkpoints.id_text(run.topic_id),
            number=number,
            segment=file_name(run.segment_base, LOG),
            position=run.position,
            first_offset=run.first_offset,
            last_offset=run.end_offset - 1,
            size_bytes=len(run.data),
        )
        at = 0
        while self._with_records and at + HEADER_BYTES <= len(run.data):
            header = read_header(run.data, at)
            yield from self._batch(run.position + at, header, run.data[at : at + header.size], where)
            at += header.size

    def _topic_names(self, path: str) -> dict[bytes, str]:
        """Return the names of the topics by id, as far as the catalogue of the directory can be read."""
        catalogue = f"{os.path.dirname(os.path.dirname(path))}/{CATALOG}"
        with suppress(OSError, UserError):
            return {one.id: one.name for one in Catalog(self._files.read(catalogue)).entries()}
        return {}

    def _first_entry(self, path: str) -> int | None:
        with suppress(OSError, Malformed):
            return RecoveryPoints.decode(self._files.read(f"{os.path.dirname(path)}/{WAL_POINTS}")).first_entry
        return None

    # The files beside a log

    def _small(self, where: Where, kind: str, base: int) -> Iterator[Item]:
        data = self._files.read(where.path)
        if kind == "index":
            entries = file_formats.unpadded(data, file_formats.OFFSET_ENTRY)
            for offset, position in file_formats.offset_entries(entries, base):
                yield IndexEntryItem(where, offset=offset, position=position)
        elif kind == "timeindex":
            entries = file_formats.unpadded(data, file_formats.TIME_ENTRY)
            for timestamp, offset in file_formats.time_entries(entries, base):
                yield TimeIndexEntryItem(where, timestamp=timestamp, offset=offset)
        elif kind == "txnindex":
            for entry in file_formats.aborted_entries(data):
                yield AbortedTransactionItem(where, **entry._asdict())
        else:
            for producer in file_formats.producer_entries(data):
                yield ProducerItem(where, **producer._asdict())

    def _text(self, where: Where, name: str) -> Iterator[Item]:
        path = where.path
        if name == EPOCHS:
            for epoch, start_offset in checkpoints.read_epochs(self._files.read(path)):
                yield LeaderEpochItem(where, leader_epoch=epoch, start_offset=start_offset)
        elif name == METADATA:
            topic_id = checkpoints.read_partition_metadata(self._files.read(path))
            yield PartitionMetadataItem(where, topic_id=checkpoints.id_text(topic_id))
        elif name in _OFFSET_FILES:
            for (topic, partition), offset in checkpoints.read_offsets(self._files.read(path)).items():
                yield OffsetItem(Where(path, topic, partition), offset=offset)
        else:
            yield from self._log(path, self._first_offset(path), Where(path))

    def _first_offset(self, path: str) -> int:
        """Return the base offset of a segment that was renamed."""
        file = self._files.open(path)
        try:
            return max(read_header(file.pread(HEADER_BYTES, 0)).base_offset, 0)
        finally:
            file.close()


def _is_partition(names: object) -> bool:
    assert isinstance(names, (list, tuple))
    return any(_FILE.fullmatch(name) for name in names) or METADATA in names


def _partition(folder: str) -> tuple[str | None, int | None]:
    match = _FOLDER.fullmatch(folder)
    return (None, None) if match is None else (match["topic"], int(match["index"]))


def _codec_name(codec: int) -> str:
    return codecs.NAMES[codec] if codec < len(codecs.NAMES) else f"unknown codec {codec}"


def _damage(damage: Damage, where: Where) -> BatchDamageItem:
    return BatchDamageItem(
        where,
        position=damage.position,
        size_bytes=damage.size_bytes,
        first_offset=damage.first_offset,
        next_offset=damage.next_offset,
        problem=damage.problem,
    )
