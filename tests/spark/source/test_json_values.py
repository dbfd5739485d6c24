"""Values as typed columns: the schema in Spark's words, the columns in Arrow's types, what does not fit set apart."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.ddl import parse_fields
from logmark.spark.source.data_source import DefaultSource
from logmark.spark.source.json_values import JsonValues
from logmark.spark.source.schemas import SCHEMA, SCHEMA_WITH_HEADERS, typed_schema
from logmark.spark.source.tombstones import Tombstones
from logmark.wire import columns
from logmark.wire.batches import build

PARTITION = TopicPartition("clicks", 3)
SOURCE = {"bootstrap.servers": "b:1", "subscribe": "clicks", "value.format": "json"}
ALL = (
    "s STRING, y BOOLEAN, t TINYINT, h SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(10,2), a DATE, "
    "p TIMESTAMP, b BINARY, r ARRAY<STRUCT<x: INT, y: ARRAY<STRING>>>, q MAP<STRING, STRUCT<v: DECIMAL(38, 10)>>"
)


def fields(text: str) -> spark.StructType:
    return parse_fields(text, name="value.schema")


def decoded(schema: str, *values: bytes | None, with_headers: bool = False) -> pa.RecordBatch:
    data = build([(b"k", value) for value in values], timestamp_ms=1_700_000_000_123, base_offset=7)
    part = columns.decode(data, start=0, stop=2**62, with_headers=with_headers, decompressed_bytes_max=1 << 20)
    batch = JsonValues(schema).to_arrow(part, PARTITION)
    batch.validate(full=True)
    return batch


def test_a_schema_is_what_spark_makes_of_the_same_words() -> None:
    inner = spark.StructType().add("x", "integer").add("y", spark.ArrayType(spark.StringType()))
    value = spark.StructType().add("v", spark.DecimalType(38, 10))

    assert spark.StructType(
        [
            spark.StructField("s", spark.StringType()),
            spark.StructField("y", spark.BooleanType()),
            spark.StructField("t", spark.ByteType()),
            spark.StructField("h", spark.ShortType()),
            spark.StructField("i", spark.IntegerType()),
            spark.StructField("l", spark.LongType()),
            spark.StructField("f", spark.FloatType()),
            spark.StructField("d", spark.DoubleType()),
            spark.StructField("m", spark.DecimalType(10, 2)),
            spark.StructField("a", spark.DateType()),
            spark.StructField("p", spark.TimestampType()),
            spark.StructField("b", spark.BinaryType()),
            spark.StructField("r", spark.ArrayType(inner)),
            spark.StructField("q", spark.MapType(spark.StringType(), value)),
        ]
    ) == fields(ALL)


@pytest.mark.parametrize(
    "text",
    [
        "id string, `a ``b` Decimal",
        "id: STRING NOT NULL COMMENT 'it\\'s', `a ``b`: DEC(10)",
        "STRUCT<id: STRING, `a ``b`: NUMERIC(10,0)>",
        spark.StructType().add("id", "string", nullable=False).add("a `b", spark.DecimalType(10, 0)).json(),
    ],
)
def test_a_schema_may_be_written_as_spark_writes_it(text: str) -> None:
    assert spark.StructType().add("id", "string").add("a `b", spark.DecimalType(10, 0)) == fields(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id", "it ends too early"),
        ("id STRING,", "it ends too early"),
        ("id TEXT", "it has no type TEXT; there are STRING, BOOLEAN"),
        ("id STRING id2 INT", "'id2' comes after its end"),
        ("id STRING, id INT", "the field id is there twice"),
        ("id STRUCT<a: INT", "it ends too early"),
        ("id MAP<INT, STRING>", "the keys of a MAP are STRING"),
        ("id DECIMAL(39,0)", "a DECIMAL has 1 to 38 digits"),
        ("id DECIMAL(5,6)", "a DECIMAL has 1 to 38 digits"),
        ("id INT; DROP", "';' is not understood"),
        ("id DECIMAL(a)", "'a' stands where a number must be"),
        (": INT", "':' stands where the name of a field must be"),
        ("{}", "it is not the JSON of a Spark schema"),
        ('{"type":"struct","fields":[]}', "it has no fields"),
        (spark.StructType().add("v", spark.VariantType()).json(), "it has no type variant"),
    ],
)
def test_a_schema_that_cannot_be_read_is_an_error(text: str, why: str) -> None:
    with pytest.raises(UserError, match=r"The option value\.schema is not a schema that can be read: ") as refused:
        fields(text)

    assert why in str(refused.value)
    assert str(refused.value).endswith("Nothing was read.")


def test_the_source_says_its_columns_before_anything_runs() -> None:
    plain = DefaultSource(SOURCE | {"value.schema": "id STRING"}).schema()
    with_headers = DefaultSource(SOURCE | {"value.schema": "id STRING", "includeHeaders": "true"}).schema()

    assert typed_schema(SCHEMA, fields("id STRING")) == plain
    assert [*SCHEMA.names, "error", "raw"] == plain.names
    assert [*SCHEMA_WITH_HEADERS.names, "error", "raw"] == with_headers.names
    assert fields("id STRING") == plain["value"].dataType


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"value.format": "json"}, "the option value.schema is missing"),
        ({"value.schema": "id STRING"}, "needs value.format=json beside it"),
        ({"value.format": "avro"}, "The option value.format must be binary or json, not 'avro'"),
        ({"value.format": "json", "value.schema": "id TEXT"}, "it has no type TEXT"),
        ({"value.fromat": "json"}, "Did you mean value.format?"),
    ],
)
def test_options_that_do_not_go_together_are_an_error_when_the_source_is_loaded(
    given: dict[str, str], why: str
) -> None:
    with pytest.raises(UserError) as refused:
        DefaultSource({"bootstrap.servers": "b:1", "subscribe": "clicks"} | given).schema()

    assert why in str(refused.value)


@pytest.mark.parametrize("with_headers", [False, True])
def test_the_types_are_exactly_those_that_spark_wants_of_its_schema(with_headers: bool) -> None:
    batch = decoded(ALL, b"{}", with_headers=with_headers)
    plain = SCHEMA_WITH_HEADERS if with_headers else SCHEMA

    assert to_arrow_schema(typed_schema(plain, fields(ALL)), timezone="UTC") == batch.schema


def test_every_type_arrives_in_arrow() -> None:
    text = {
        "s": "é", "y": True, "t": -1, "h": 2, "i": 3, "l": 4, "f": 0.5, "d": 0.25, "m": 12.345, "a": "2026-11-16",
        "p": "2026-11-16T12:00:00Z", "b": "AAE=", "r": [{"x": 1, "y": ["a", None]}, None], "q": {"k": {"v": -1.5}},
    }  # fmt: skip

    (row,) = decoded(ALL, json.dumps(text).encode()).column("value").to_pylist()

    assert {
        "s": "é", "y": True, "t": -1, "h": 2, "i": 3, "l": 4, "f": 0.5, "d": 0.25, "m": Decimal("12.35"),
        "a": date(2026, 11, 16), "p": datetime(2026, 11, 16, 12, tzinfo=UTC), "b": b"\0\1",
        "r": [{"x": 1, "y": ["a", None]}, None], "q": [("k", {"v": Decimal("-1.5")})],
    } == row  # fmt: skip


def test_a_bad_value_is_set_apart_with_the_reason_its_bytes_and_its_offset() -> None:
    batch = decoded("id STRING, n INT", b'{"id":"a","n":1}', b'{"id":"b","n":"x"}', None, b"\xff", b"null")

    assert {
        "key": [b"k"] * 5,
        "value": [{"id": "a", "n": 1}, None, None, None, None],
        "topic": ["clicks"] * 5,
        "partition": [3] * 5,
        "offset": [7, 8, 9, 10, 11],
        "timestampType": [0] * 5,
        "error": [
            None,
            "n: a string where INT is wanted, at byte 14",
            None,
            "no JSON value where STRUCT is wanted, at byte 0",
            None,
        ],
        "raw": [None, b'{"id":"b","n":"x"}', None, b"\xff", None],
    } == {name: values for name, values in batch.to_pydict().items() if name != "timestamp"}


def test_typed_rows_have_the_columns_that_are_asked_for() -> None:
    data = build([(b"k", b'{"n":1}'), (b"k", b"{")], timestamp_ms=0, base_offset=7)
    part = columns.decode(data, start=0, stop=2**62, decompressed_bytes_max=1 << 20)
    values = JsonValues("n INT", ("offset", "value"))

    whole, (fitting, _) = values.to_arrow(part, PARTITION), values.split(part, PARTITION)

    assert ["offset", "value", "error", "raw"] == whole.schema.names
    assert [None, b"{"] == whole.column("raw").to_pylist()
    assert {"offset": [7], "value": [{"n": 1}]} == fitting.to_pydict()


def test_a_record_with_a_time_that_spark_cannot_hold_is_read_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    data = build([(b"k", b'{"n":1}')] * 2, timestamp_ms=[1_700_000_000_123, 1_700_000_000_123_456_789], base_offset=7)
    part = columns.decode(data, start=0, stop=2**62, decompressed_bytes_max=1 << 20)
    values = JsonValues("n INT")

    batches = [values.to_arrow(part, PARTITION), values.split(part, PARTITION)[0]]

    times = [batch.column("timestamp").cast(pa.int64()).to_pylist() for batch in batches]
    assert [[1_700_000_000_123_000, (2**63 - 1) // 1000 * 1000]] * 2 == times
    assert [[{"n": 1}] * 2] * 2 == [batch.column("value").to_pylist() for batch in batches]
    assert ["offset 8 of clicks-3" in said for said in caplog.messages] == [True]


def test_slices_of_typed_columns_hold_what_the_whole_held() -> None:
    from logmark.spark.source.arrow import split_batch

    batch = decoded(ALL, *[json.dumps({"s": "x" * n, "r": [{"x": n}] * (n % 3)}).encode() for n in range(200)])

    parts = list(split_batch(batch, bytes_max=4000))

    assert len(parts) > 3
    assert batch.to_pydict() == pa.Table.from_batches(parts).to_pydict()


RECORDS = (b'{"i": 1}', None, b'{"i": "x"}', b"null", None)


def split(tombstones: Tombstones) -> tuple[list[int], list[tuple[int, str]]]:
    data = build([(b"k", value) for value in RECORDS], timestamp_ms=1_700_000_000_123, base_offset=0)
    part = columns.decode(data, start=0, stop=2**62, with_headers=True, decompressed_bytes_max=1 << 20)
    values = JsonValues("i INT", tombstones=tombstones)
    rows, refused = values.split(part, PARTITION)
    rows.validate(full=True)
    return rows.column("offset").to_pylist(), [(index, error.partition(":")[0]) for index, error in refused]


def test_tombstones_are_rows_or_dead_letters_or_skipped_and_a_json_null_is_a_row() -> None:
    assert ([0, 1, 3, 4], [(2, "i")]) == split(Tombstones.ROWS)
    assert ([0, 3], [(2, "i")]) == split(Tombstones.SKIP)
    assert ([0, 3], [(1, "the record has no value"), (2, "i"), (4, "the record has no value")]) == split(
        Tombstones.DEAD_LETTERS
    )


def test_tombstones_can_be_skipped_where_refused_values_are_rows_too() -> None:
    data = build([(b"k", value) for value in RECORDS], timestamp_ms=1_700_000_000_123, base_offset=0)
    part = columns.decode(data, start=0, stop=2**62, with_headers=False, decompressed_bytes_max=1 << 20)
    rows = {kind: JsonValues("i INT", tombstones=kind).to_arrow(part, PARTITION) for kind in Tombstones}

    assert [0, 1, 2, 3, 4] == rows[Tombstones.ROWS].column("offset").to_pylist()
    assert [0, 2, 3] == rows[Tombstones.SKIP].column("offset").to_pylist()
    assert [None, b'{"i": "x"}', None] == rows[Tombstones.SKIP].column("raw").to_pylist()
