"""Records as Arrow, in exactly the types that Spark wants."""

from array import array

import pyarrow as pa
import pytest

from logmark.names import TopicPartition
from logmark.spark.source import arrow
from logmark.spark.source.arrow import Times, split_batch, to_arrow
from logmark.wire import columns
from logmark.wire.batches import build

PARTITION = TopicPartition("clicks", 3)
FIRST = 259_000_000_000


def decoded(records: list[tuple[bytes | None, bytes | None]], *, with_headers: bool = False) -> pa.RecordBatch:
    headers = [[("a", b"1"), ("b", None)] if number % 2 else [] for number in range(len(records))]
    data = build(records, timestamp_ms=1_700_000_000_123, base_offset=FIRST, headers=headers)
    part = columns.decode(data, start=0, stop=2**62, with_headers=with_headers, decompressed_bytes_max=1 << 20)
    return to_arrow(part, PARTITION)


def test_the_types_are_those_of_sparks_kafka_source() -> None:
    assert [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ] == [(field.name, field.type) for field in decoded([(b"k", b"v")], with_headers=True).schema]


def test_every_field_of_a_record_arrives() -> None:
    batch = decoded([(b"k", b"v"), (None, b""), (b"", None)], with_headers=True)
    batch.validate(full=True)

    assert {
        "key": [b"k", None, b""],
        "value": [b"v", b"", None],
        "topic": ["clicks"] * 3,
        "partition": [3] * 3,
        "offset": [FIRST, FIRST + 1, FIRST + 2],
        "timestampType": [0] * 3,
        "headers": [None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None],
    } == {name: values for name, values in batch.to_pydict().items() if name != "timestamp"}
    assert [1_700_000_000_123_000] * 3 == batch.column("timestamp").cast(pa.int64()).to_pylist()


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    data = build([(b"k", b"v")], timestamp_ms=1_700_000_000_123, base_offset=FIRST)
    part = columns.decode(data, start=0, stop=2**62, decompressed_bytes_max=1 << 20)

    found = to_arrow(part, PARTITION, names=("offset", "topic"))

    assert {"offset": [FIRST], "topic": ["clicks"]} == found.to_pydict()
    assert 30 > found.nbytes


def test_a_time_that_spark_cannot_hold_becomes_the_nearest_that_it_can_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nanoseconds, last_ms = 1_700_000_000_123_456_789, (2**63 - 1) // 1000
    given = [5, nanoseconds, last_ms, last_ms + 1, -last_ms, -last_ms - 1, -(2**63)]
    data = build([(b"k", b"v")] * 7, timestamp_ms=0, base_offset=FIRST)
    part = columns.decode(data, start=0, stop=2**62, decompressed_bytes_max=1 << 20)
    part.timestamps_ms[:] = array("q", given)
    times = Times()

    found = [to_arrow(part, PARTITION, times).column("timestamp").cast(pa.int64()).to_pylist() for _ in range(2)]

    assert [[time * 1000 for time in (5, last_ms, last_ms, last_ms, -last_ms, -last_ms, -last_ms)]] * 2 == found
    (said,) = caplog.messages
    assert f"The record at offset {FIRST + 1} of clicks-3 says that it was written {nanoseconds} milliseconds" in said


def test_a_large_batch_goes_to_the_jvm_in_slices() -> None:
    batch = decoded([(None, b"x" * 1000)] * 100)

    parts = list(split_batch(batch, bytes_max=20_000))

    assert len(parts) > 4
    assert batch.to_pydict() == pa.Table.from_batches(parts).to_pydict()
    assert all(part.num_rows <= 20 for part in parts)
    assert [batch] == list(split_batch(batch, bytes_max=arrow.BYTES_PER_BATCH))
