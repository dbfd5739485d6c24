"""Columns of records as Arrow, in exactly the types that Spark expects of its Kafka source."""

import logging
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from logmark.names import TopicPartition
from logmark.spark.source.column_selection import COLUMNS, HEADERS
from logmark.wire.columns import Columns

log = logging.getLogger(__name__)

BYTES_PER_BATCH = 8 << 20  # the JVM holds one batch at a time

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_MILLISECONDS_MAX = (2**63 - 1) // 1000  # Spark counts microseconds in 64 bits
_FIELDS = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string()),
    "partition": pa.field("partition", pa.int32()),
    "offset": pa.field("offset", pa.int64()),
    "timestamp": pa.field("timestamp", _TIMESTAMP),
    "timestampType": pa.field("timestampType", pa.int32()),
    "headers": pa.field("headers", _HEADERS),
}


class Times:
    """The times of a task's records as Spark has them."""

    def __init__(self) -> None:
        self._is_told = False

    def of(self, columns: Columns, partition: TopicPartition) -> pa.Array:
        """Return the time of each record, or the nearest that Spark can hold, which the log tells once."""
        try:
            return _plain(_MILLISECONDS, columns.count, columns.timestamps_ms).cast(_TIMESTAMP)
        except pa.ArrowInvalid:
            return self._nearest(columns, partition)

    def _nearest(self, columns: Columns, partition: TopicPartition) -> pa.Array:
        # Only here: pyarrow's functions take long to import, and few tasks need them.
        import pyarrow.compute as compute

        given = _plain(pa.int64(), columns.count, columns.timestamps_ms)
        held = compute.max_element_wise(compute.min_element_wise(given, _MILLISECONDS_MAX), -_MILLISECONDS_MAX)
        if not self._is_told:
            self._is_told = True
            first = compute.index(compute.not_equal(given, held), True).as_py()
            log.warning(
                "The record at offset %d of %s says that it was written %d milliseconds after 1970, which is more than "
                "Spark's timestamps hold (did its producer mean nanoseconds?). It is read with the nearest time that "
                "they do, and so are others like it.",
                columns.offsets[first], partition, given[first].as_py(),
            )  # fmt: skip
        return held.cast(_MILLISECONDS).cast(_TIMESTAMP)


def to_arrow(
    columns: Columns, partition: TopicPartition, times: Times | None = None, names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return one batch of all the records with the columns of these names, which shares the memory of the records.

    Without names it has all that were decoded.
    """
    if names is None:
        names = COLUMNS if columns.header_key_offsets is None else (*COLUMNS, HEADERS)
    arrays = [_column(name, columns, partition, times or Times()) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(tuple(names)))


@lru_cache(maxsize=2)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([_FIELDS[name] for name in names])


def _column(name: str, columns: Columns, partition: TopicPartition, times: Times) -> pa.Array:
    count = columns.count
    match name:
        case "key":
            return _binary(pa.binary(), count, columns.key_validity, columns.key_offsets, columns.key_bytes)
        case "value":
            return _binary(pa.binary(), count, columns.value_validity, columns.value_offsets, columns.value_bytes)
        case "topic" | "partition":
            return _constants(partition, _rounded_up(count))[name == "partition"].slice(0, count)
        case "offset":
            return _plain(pa.int64(), count, columns.offsets)
        case "timestamp":
            return times.of(columns, partition)
        case "timestampType":
            return _plain(pa.int32(), count, columns.timestamp_types)
    return _headers(columns)


def _rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


@lru_cache(maxsize=2)
def _constants(partition: TopicPartition, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns that say the same in every row, which all batches of a task share.

    They are made from bytes: pyarrow imports pandas before it makes a scalar, which takes most of the time that a new
    process needs for its first rows.
    """
    name = partition.topic.encode()
    ends = array("i", range(0, len(name) * (count + 1), len(name)))
    topics = _binary(pa.string(), count, None, ends, name * count)
    return topics, _plain(pa.int32(), count, array("i", [partition.partition]) * count)


def split_batch(batch: pa.RecordBatch, *, bytes_max: int = BYTES_PER_BATCH) -> Iterator[pa.RecordBatch]:
    """Return the batch in slices of a size that the JVM can hold at ease."""
    rows = batch.num_rows
    slices = max(1, -(-batch.nbytes // bytes_max))
    step = max(1, -(-rows // slices))
    for at in range(0, rows, step):
        yield batch.slice(at, step)


def _plain(kind: pa.DataType, count: int, values: object) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


def _binary(kind: pa.DataType, count: int, validity: object | None, offsets: object, data: object) -> pa.Array:
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def _headers(columns: Columns) -> pa.Array:
    # Only here: pyarrow's functions take long to import, and most tasks read no headers.
    import pyarrow.compute as compute

    assert columns.header_key_offsets is not None, "decoded without headers"
    count = len(columns.header_key_offsets) - 1
    keys = _binary(pa.string(), count, None, columns.header_key_offsets, columns.header_key_bytes)
    values = _binary(
        pa.binary(), count, columns.header_value_validity, columns.header_value_offsets, columns.header_value_bytes
    )
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    offsets = _plain(pa.int32(), columns.count + 1, columns.header_list_offsets)
    # Spark's Kafka source says null where a record has no headers.
    is_empty = compute.equal(offsets.slice(0, columns.count), offsets.slice(1))
    return pa.ListArray.from_arrays(offsets, pairs, type=_HEADERS, mask=is_empty)
