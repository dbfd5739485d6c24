"""Columns of records as Arrow, in exactly the types that Spark expects of its Kafka source."""

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from logmark.names import TopicPartition
from logmark.wire.columns import Columns

BYTES_PER_BATCH = 8 << 20  # the JVM holds one batch at a time

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
_SCHEMA_WITH_HEADERS = _SCHEMA.append(pa.field("headers", _HEADERS))


def to_arrow(columns: Columns, place: TopicPartition) -> pa.RecordBatch:
    """One batch of all the records, which shares the memory of the columns."""
    count = columns.count
    milliseconds = _plain(pa.timestamp("ms", tz="UTC"), count, columns.timestamps_ms)
    arrays = [
        _binary(pa.binary(), count, columns.key_validity, columns.key_offsets, columns.key_bytes),
        _binary(pa.binary(), count, columns.value_validity, columns.value_offsets, columns.value_bytes),
        *(column.slice(0, count) for column in _constants(place, _rounded_up(count))),
        _plain(pa.int64(), count, columns.offsets),
        milliseconds.cast(_TIMESTAMP),
        _plain(pa.int32(), count, columns.timestamp_types),
    ]
    if columns.header_key_offsets is None:
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
    return pa.RecordBatch.from_arrays([*arrays, _headers(columns)], schema=_SCHEMA_WITH_HEADERS)


def _rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


@lru_cache(maxsize=2)
def _constants(place: TopicPartition, count: int) -> tuple[pa.Array, pa.Array]:
    """The columns that say the same in every row, which all batches of a task share."""
    topic, partition = pa.scalar(place.topic, pa.string()), pa.scalar(place.partition, pa.int32())
    return pa.repeat(topic, count), pa.repeat(partition, count)


def pieces(batch: pa.RecordBatch, *, bytes_max: int = BYTES_PER_BATCH) -> Iterator[pa.RecordBatch]:
    """The batch in slices of a size that the JVM can hold at ease."""
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
