"""Record batches (magic 2): read, checked as Kafka's leader checks them, given offsets and built.

A produced batch stays where the socket put it. Only the base offset and the leader epoch change without a new CRC;
a corrected max timestamp, log append time and another codec cost one.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logmark.errors import ErrorCode, Malformed, Refused
from logmark.wire import codecs, columns
from logmark.wire.batch_header import ATTRIBUTES_AT, CRC_AT, FLAGS_AT, LENGTH_AT, MAX_TIMESTAMP_AT, OVERHEAD
from logmark.wire.columns import Problem

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = columns.HEADER_BYTES
MAGIC = 2
LEADER_EPOCH = 0  # one node never changes leaders; Java consumers refuse metadata with an older epoch than a batch's
NO_TIMESTAMP = -1
NO_PRODUCER_ID = NO_PRODUCER_EPOCH = NO_SEQUENCE = -1

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_ZSTD_SINCE_PRODUCE = 7
_RECORD_ERRORS_MAX = 1000  # a full answer to a batch of bad records would be larger than the batch

_HEAD = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_EPOCH = struct.Struct(">qii")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records; `size` is the whole batch."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def last_sequence(self) -> int:
        return last_sequence(self.base_sequence, self.last_offset_delta)


class Record(NamedTuple):
    """One record as Python objects: for small uses."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What a topic asks of the batches that are produced to it."""

    max_message_bytes: int = 1_048_588
    decompressed_bytes_max: int = 128 << 20
    keys_required: bool = False
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = _LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    # One of Kafka's levels for that codec; None for the default.
    compression_level: int | None = None


class NeedsThread(Exception):
    """A batch that must be built again, which takes too long for the event loop."""


class ProducedBatch:
    """One checked batch in writable memory, ready to be given its offsets."""

    __slots__ = (
        "attributes",
        "base_sequence",
        "base_timestamp",
        "data",
        "last_offset_delta",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
        "unpacked_size",
    )

    def __init__(
        self,
        data: memoryview,
        size: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> None:
        self.data = data
        self.size = size
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count
        # The bytes that the check of a compressed batch has unpacked.
        self.unpacked_size = 0

    @property
    def last_sequence(self) -> int:
        return last_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence of a batch's last record: after 2^31 - 1 comes 0; a batch without sequences has none."""
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Return the header of the batch at `at`; the caller checks whether all records are there."""
    if at < 0 or len(buffer) - at < HEADER_BYTES:
        raise Malformed(f"{HEADER_BYTES} bytes of a batch header wanted, {len(buffer) - at} left")
    base_offset, length, *rest = _HEAD.unpack_from(buffer, at)
    if length < HEADER_BYTES - OVERHEAD:
        raise Malformed(f"a batch of {length} bytes is shorter than its header")
    return BatchHeader(base_offset, length + OVERHEAD, *rest)


def crc_is_right(buffer: Buffer, at: int, size: int) -> bool:
    """Return whether the batch of `size` bytes at `at` has the CRC that its header claims."""
    if size < HEADER_BYTES or at < 0 or len(buffer) - at < size:
        return False
    claimed: int = _UINT32.unpack_from(buffer, at + CRC_AT)[0]
    return columns.crc32c(buffer, at + ATTRIBUTES_AT, size - ATTRIBUTES_AT) == claimed


def sound_prefix(
    buffer: Buffer, *, base: int, end: int | None = None, leader_epoch: int = -1
) -> tuple[int, int, str | None]:
    """Return the bytes of whole sound batches, the offset after them, and what is wrong there or None.

    Offsets begin at `base` or above and only grow, and every batch has the leader epoch, if one is given. A batch that
    is cut short by the end of the buffer, or that reaches past the offset `end`, is left out and is no problem.
    """
    size, next_offset, problem = columns.sound_prefix(buffer, base, _LONG_MAX if end is None else end, leader_epoch)
    return size, next_offset, damage(problem)


def damage(problem: int) -> str | None:
    """Return the description of a problem of stored batches."""
    return _DAMAGE[problem] if problem else None


_DAMAGE: dict[int, str] = {
    Problem.BAD_LENGTH: "the length of the batch is shorter than its header",
    Problem.BAD_MAGIC: "the batch is not of magic 2",
    Problem.OUT_OF_ORDER: "the offsets of the batch do not follow those before it",
    Problem.BAD_EPOCH: "the leader epoch of the batch is another one",
    Problem.BAD_CRC: "the CRC of the batch is wrong",
}


def assign_offset(batch: ProducedBatch, base_offset: int) -> None:
    """Write the base offset and the leader epoch, which no CRC covers."""
    _OFFSET_AND_EPOCH.pack_into(batch.data, 0, base_offset, batch.size - OVERHEAD, LEADER_EPOCH)


def own(batch: bytes | bytearray) -> ProducedBatch:
    """Return a batch of our own making, without checks; `bytes` are copied because a batch is written to."""
    header = read_header(batch)
    data = memoryview(batch if isinstance(batch, bytearray) else bytearray(batch))
    return _produced(data, header)


def _produced(data: memoryview, header: BatchHeader) -> ProducedBatch:
    return ProducedBatch(
        data,
        header.size,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


def build(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int | Sequence[int],
    base_offset: int = 0,
    codec: int = codecs.NONE,
    headers: Sequence[Sequence[tuple[str | bytes, bytes | None]]] | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytearray:
    """Build one batch of (key, value) pairs; `timestamp_ms` and `headers` may have one entry per record."""
    if not records:
        raise ValueError("a batch has at least one record")
    if isinstance(timestamp_ms, int):
        first = last = timestamp_ms
        deltas = None
    else:
        first, last = timestamp_ms[0], max(timestamp_ms)
        deltas = [timestamp - first for timestamp in timestamp_ms]
    body: Buffer = columns.encode_records(records, deltas, headers)
    if codec != codecs.NONE:
        body = codecs.compress(codec, body)
    batch = bytearray(HEADER_BYTES)
    batch += body
    count = len(records)
    _HEAD.pack_into(
        batch, 0, base_offset, len(batch) - OVERHEAD, LEADER_EPOCH, MAGIC, 0, attributes & ~CODEC_BITS | codec,
        count - 1, first, last, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    _seal(batch)
    return batch


def unpack(data: Buffer, *, decompressed_bytes_max: int = BatchRules().decompressed_bytes_max) -> list[Record]:
    """Return the records of concatenated whole batches, as objects: for small uses."""
    found = columns.decode(
        data, start=0, stop=_LONG_MAX, with_headers=True, decompressed_bytes_max=decompressed_bytes_max
    )
    return [
        Record(*fields)
        for fields in zip(
            found.offsets, found.timestamps_ms, found.keys(), found.values(), found.headers(), strict=True
        )
    ]


def without_control_bit(batch: Buffer) -> bytearray:
    """Return a copy of a control batch that is decoded as records; its checksum must be right."""
    copy = bytearray(batch)
    _INT16.pack_into(copy, ATTRIBUTES_AT, read_header(copy).attributes & ~CONTROL_BIT)
    _seal(copy)
    return copy


def _seal(batch: bytearray | memoryview) -> None:
    _UINT32.pack_into(batch, CRC_AT, columns.crc32c(batch, ATTRIBUTES_AT, len(batch) - ATTRIBUTES_AT))


def is_recompressed(attributes: int, rules: BatchRules) -> bool:
    """Return whether a topic stores a batch with these attributes with another codec."""
    return rules.compression_type not in ("producer", codecs.NAMES[min(attributes & CODEC_BITS, codecs.ZSTD)])


def check_produced(
    records: memoryview | None, rules: BatchRules, *, now_ms: int, produce_version: int, may_rebuild: bool = True
) -> ProducedBatch:
    """Return the one batch in `records`, checked as Kafka's leader checks it and stamped as the topic asks.

    Raises NeedsThread, with the records as they came, if the batch has to be built again and may not be.
    """
    if records is None:
        raise Refused(ErrorCode.INVALID_RECORD, f"Produce version {produce_version} must have one record batch.")
    if rules.is_log_append_time:
        earliest, latest = _LONG_MIN, _LONG_MAX
    else:
        earliest = now_ms - rules.timestamp_before_max_ms
        latest = min(now_ms + rules.timestamp_after_max_ms, _LONG_MAX)
    body: Buffer | None = None
    found = columns.check_records(records, None, rules.max_message_bytes, rules.keys_required, earliest, latest)
    if found[0]:
        _check_codec(found[0], records, produce_version)
        if found[0] == Problem.COMPRESSED:
            body = _decompressed(found[3] & CODEC_BITS, records[HEADER_BYTES : found[2]], rules)
            found = columns.check_records(records, body, 0, rules.keys_required, earliest, latest)
        if found[0]:
            raise _refusal(found, records, body, rules, earliest, latest)
    _, _, size, attributes, last_delta, base_time, max_time, producer, epoch, sequence, count, largest, dense = found
    if attributes & LOG_APPEND_TIME_BIT and (rules.is_log_append_time or max_time == NO_TIMESTAMP):
        raise _refused_append_time(count)
    if len(records) != size:
        records = records[:size]
    if records.readonly:
        records = memoryview(bytearray(records))
    batch = ProducedBatch(records, size, attributes, last_delta, base_time, max_time, producer, epoch, sequence, count)
    if not dense or rules.compression_type != "producer":
        batch = _stored_as_asked(batch, body, rules, dense, may_rebuild)
    batch.unpacked_size = 0 if body is None else len(body)
    if rules.is_log_append_time:
        _stamp(batch, attributes | LOG_APPEND_TIME_BIT, now_ms)
    elif max_time != largest or attributes & LOG_APPEND_TIME_BIT:
        _stamp(batch, attributes & ~LOG_APPEND_TIME_BIT, largest)
    return batch


_BEFORE_CODEC = frozenset({Problem.NO_BATCH, Problem.BAD_LENGTH, Problem.BAD_MAGIC, Problem.OLD_MAGIC})


def _check_codec(problem: int, records: memoryview, produce_version: int) -> None:
    if problem in _BEFORE_CODEC or produce_version >= _ZSTD_SINCE_PRODUCE:
        return
    if records[FLAGS_AT] & CODEC_BITS == codecs.ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Produce version {produce_version} does not allow zstd.")


def _stamp(batch: ProducedBatch, attributes: int, max_timestamp: int) -> None:
    batch.attributes = batch.attributes & CODEC_BITS | attributes & ~CODEC_BITS
    batch.max_timestamp = max_timestamp
    _INT16.pack_into(batch.data, ATTRIBUTES_AT, batch.attributes)
    _INT64.pack_into(batch.data, MAX_TIMESTAMP_AT, max_timestamp)
    _seal(batch.data)


def _decompressed(codec: int, data: memoryview, rules: BatchRules) -> Buffer:
    try:
        return codecs.decompress(codec, data, bytes_max=rules.decompressed_bytes_max)
    except codecs.TooLarge as error:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"The records are too large: {error}.") from None
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_RECORD, f"The records cannot be decompressed: {error}.") from None


def _stored_as_asked(
    batch: ProducedBatch, body: Buffer | None, rules: BatchRules, is_dense: bool, may_rebuild: bool
) -> ProducedBatch:
    """Return the batch with offset deltas 0, 1, 2, ... and the topic's codec; unchanged if it has them."""
    source = batch.attributes & CODEC_BITS
    target = source if rules.compression_type == "producer" else codecs.NAMES.index(rules.compression_type)
    if is_dense and source == target:
        return batch
    if not may_rebuild:
        raise NeedsThread
    plain: Buffer = batch.data[HEADER_BYTES:] if body is None else body
    if not is_dense:
        if source == target != codecs.NONE:
            raise Refused(ErrorCode.INVALID_RECORD, "The offset deltas of the compressed records are not 0, 1, 2, ...")
        # Kafka keeps wrong deltas of uncompressed records, and consumers then see offsets twice or never.
        plain = _renumbered(batch, rules)
    packed = codecs.compress(target, plain, rules.compression_level) if target != codecs.NONE else plain
    if HEADER_BYTES + len(packed) > rules.max_message_bytes:
        raise _too_large(HEADER_BYTES + len(packed), rules)
    rebuilt = bytearray(batch.data[:HEADER_BYTES])
    rebuilt += packed
    _INT32.pack_into(rebuilt, LENGTH_AT, len(rebuilt) - OVERHEAD)
    _INT16.pack_into(rebuilt, ATTRIBUTES_AT, batch.attributes & ~CODEC_BITS | target)
    _seal(rebuilt)
    return _produced(memoryview(rebuilt), read_header(rebuilt))


def _renumbered(batch: ProducedBatch, rules: BatchRules) -> bytearray:
    found = columns.decode(
        batch.data,
        start=_LONG_MIN,
        stop=_LONG_MAX,
        with_headers=True,
        decompressed_bytes_max=rules.decompressed_bytes_max,
    )
    deltas = [(time - batch.base_timestamp + 2**63) % 2**64 - 2**63 for time in found.timestamps_ms]
    return columns.encode_records(list(zip(found.keys(), found.values(), strict=True)), deltas, found.headers())


def _too_large(size: int, rules: BatchRules) -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch has {size} bytes, more than max.message.bytes of the topic, {rules.max_message_bytes}.",
    )


_REFUSALS: dict[int, tuple[ErrorCode, str]] = {
    Problem.NO_BATCH: (ErrorCode.INVALID_RECORD, "There is no whole record batch in the request."),
    Problem.OLD_MAGIC: (ErrorCode.INVALID_RECORD, "Record batches must have magic version 2."),
    Problem.BAD_MAGIC: (ErrorCode.CORRUPT_MESSAGE, "The magic version of the record batch is unknown."),
    Problem.BAD_LENGTH: (ErrorCode.CORRUPT_MESSAGE, "The record batch is shorter than its header."),
    Problem.SECOND_BATCH: (ErrorCode.INVALID_RECORD, "Exactly one record batch per partition is allowed."),
    Problem.BASE_OFFSET: (ErrorCode.INVALID_RECORD, "The base offset of a produced record batch must be 0."),
    Problem.BAD_CRC: (ErrorCode.CORRUPT_MESSAGE, "The CRC of the record batch is wrong."),
    Problem.OFFSET_RANGE: (ErrorCode.INVALID_RECORD, "The last offset delta of the record batch is negative."),
    Problem.BAD_COUNT: (ErrorCode.INVALID_RECORD, "The record batch claims to have no records."),
    Problem.COUNT_MISMATCH: (
        ErrorCode.INVALID_RECORD,
        "The last offset delta of the record batch does not agree with its number of records.",
    ),
    Problem.CONTROL: (ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records."),
    Problem.SEQUENCE: (ErrorCode.INVALID_RECORD, "The record batch has a producer id but no sequence number."),
    Problem.BYTES_LEFT: (ErrorCode.INVALID_RECORD, "Bytes are left after the last record of the batch."),
}


def _refusal(
    found: "columns.Checked",
    records: memoryview,
    body: Buffer | None,
    rules: BatchRules,
    earliest: int,
    latest: int,
) -> Refused:
    problem, detail = found[0], found[1]
    if problem == Problem.TOO_LARGE:
        return _too_large(detail, rules)
    if problem == Problem.BROKEN_RECORD:
        return Refused(ErrorCode.INVALID_RECORD, f"Record {detail} of the batch is broken.")
    if problem != Problem.RECORD_REFUSED:
        return Refused(*_REFUSALS[problem])
    size, attributes, base_time, max_time, count = found[2], found[3], found[5], found[6], found[10]
    is_fixed = bool(attributes & LOG_APPEND_TIME_BIT)
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    refused = columns.refused_records(
        records if body is None else body,
        HEADER_BYTES if body is None else 0,
        size if body is None else len(body),
        count,
        max_time if is_fixed else base_time,
        is_fixed,
        rules.keys_required,
        earliest,
        latest,
    )
    if not all(has_no_key for _, _, has_no_key in refused):
        code = ErrorCode.INVALID_TIMESTAMP
    for index, timestamp, has_no_key in refused[:_RECORD_ERRORS_MAX]:
        if has_no_key:
            errors.append((index, "A compacted topic takes no record without a key."))
        else:
            errors.append((index, f"Timestamp {timestamp} is not between {earliest} and {latest}."))
    return _refused_records(errors, len(refused), code)


def _refused_append_time(count: int) -> Refused:
    told = "The producer set the timestamp type to LogAppendTime."
    errors = [(index, told) for index in range(min(count, _RECORD_ERRORS_MAX))]
    return _refused_records(errors, count, ErrorCode.INVALID_TIMESTAMP)


def _refused_records(errors: list[tuple[int, str]], count: int, code: ErrorCode) -> Refused:
    return Refused(
        code,
        f"{count} of the batch's records were refused, so none was written; the first: {errors[0][1]}",
        record_errors=errors,
    )
