"""`value.format=json` in a real Spark, beside Spark's own from_json on the same records."""

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.spark.errors import find_message
from tests.harness.brokers import BrokerUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "id STRING, price DECIMAL(10,2), at TIMESTAMP, user STRUCT<id: BIGINT, tags: ARRAY<STRING>>, dims MAP<STRING,INT>, "
    "ok BOOLEAN, score DOUBLE, day DATE"
)


def click(number: int) -> bytes:
    return json.dumps(
        {
            "id": f"click {number} \N{SNOWMAN}",
            "price": number * 1.005,
            "at": f"2026-11-16T12:00:{number % 60:02d}.{number:06d}+01:00",
            "user": {"id": number, "tags": [None, "a\n", "b"][: number % 4]},
            "dims": {"width": number, "height": -1} if number % 5 else None,
            "ok": number % 2 == 0,
            "score": number / 7,
            "day": "2026-11-16",
            "other": [{}],
        }
    ).encode()


def test_typed_columns_are_those_of_from_json_and_bad_values_are_set_apart(
    spark: "SparkSession", broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic = broker.create_topic(broker.unique("clicks"), 2)
    bad = [b'{"id": 1, "ok": "yes"}', b"{"]
    for partition in (0, 1):
        broker.produce(topic, [click(number) for number in range(60)] + [bad[partition]], partition=partition)
    where = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    typed = where | {"value.format": "json", "value.schema": SCHEMA}

    plain = spark.read.format("logmark").options(**where).load()
    expected = plain.selectExpr("partition", "offset", f"from_json(cast(value as string), '{SCHEMA}') as value")
    found = spark.read.format("logmark").options(**typed).load()
    stream = (
        spark.readStream.format("logmark")
        .options(**typed, **{"group.id": topic, "auto.offset.reset": "earliest"})
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination()

    good = "offset < 60"
    order = ("partition", "offset")
    wanted = [row.value.asDict(True) for row in expected.where(good).orderBy(*order).collect()]
    rows = found.orderBy(*order).collect()
    assert wanted == [row.value.asDict(True) for row in rows if row.error is None]
    assert Decimal("59.29") == rows[59].value.price
    assert [
        (0, 60, None, "ok: a string where BOOLEAN is wanted, at byte 16", bad[0]),
        (1, 60, None, "no name where one must be, at byte 1", bad[1]),
    ] == [(row.partition, row.offset, row.value, row.error, bytes(row.raw)) for row in rows if row.error is not None]
    assert rows == spark.read.parquet(str(tmp_path / "rows")).orderBy(*order).collect()


ALL = (
    "s STRING, y BOOLEAN, t TINYINT, h SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(10,2), w DECIMAL(38,9), "
    "a DATE, p TIMESTAMP, b BINARY, r ARRAY<INT>, q MAP<STRING,INT>, u STRUCT<x: INT, y: ARRAY<STRUCT<z: DOUBLE>>>"
)
# Where from_json does something else: docs/spark-json.md names them all.
DIFFERENT = (
    "", " ", "null", '{"i":1} x', "{'i':1}", '{"s":"\\ud83d"}', '{"t":200}', '{"d":1e400}', '{"f":3.5e38}',
    '{"d":"INF"}', '{"s":1.50}', '{"s":{"a" : 1}}', '{"s":NaN}', '{"q":{"a":1,"a":2}}', '{"a":"12026-01-01"}',
    '{"p":"2026-11-16T12:30:45 Europe/Berlin"}', '{"p":"12:30"}', '{"p":1763294400000}',
)  # fmt: skip
EDGES = (
    "[]", "7", '{"i":1', '{"i":"x"}', '{"i":1.0}', '{"i":2147483648}', '{"h":40000}', '{"l":9223372036854775808}',
    '{"l":-9223372036854775808}', '{"i":"5"}', '{"y":"true"}', '{"y":1}', '{"s":true}', '{"s":12}', '{"d":"1.5"}',
    '{"d":-Infinity}', '{"d":"Infinity"}', '{"f":16777217}', '{"d":""}', '{"s":""}', '{"m":""}', '{"m":"1.005"}',
    '{"m":123456789}', '{"m":" 1.5 "}', '{"m":"+1.5"}', '{"m":".5"}', '{"m":1e3}', '{"m":-0.005}', '{"d":01}',
    '{"d":.5}',
    '{"i":1,"i":2}', '{"i":1,"i":null}', '{"I":1}', '{"q":{"a":null}}', '{"q":{"a":"x"}}', '{"r":[1,"x"]}', '{"r":1}',
    '{"u":[1]}', '{"u":{}}', '{"u":{"y":[{},{"z":1},null]}}', '{"b":"AP8="}', '{"b":"AP8"}', '{"a":"2026-1-6"}',
    '{"a":"2026-11"}', '{"a":"2026-11-16T25:00"}', '{"a":"2026-02-30"}', '{"a":20000}', '{"p":"2026-11-16 12:30"}',
    '{"p":"2026-11-16T12"}', '{"p":"2026-11-16T12:30:45.123456789Z"}', '{"p":"2026-11-16T12:30:45 UTC"}',
    '{"p":"2026-11-16T12:30:45+1"}', '{"p":"2026-11-16T12:30:45+0100"}', '{"p":" 2026-11-16 "}', '{"p":1763294400}',
    '{"p":1763294400.5}', '{"p":"1763294400"}', '{"p":"2026-11-16T24:00:00"}', '{"p":"2026-11-16T12:30:45-18:01"}',
    '{"s":"a\nb"}', '{"s":"\\x"}', '{"i":1,}', "{i:1}", '{"z":tru}', '{"z":01}', '{"z":[1,2}', '{"d":5e-324}',
    '{"d":123456789012345678901234567890}', '{"w":12345678901234567890.0123456789}', '{"w":1e28}', '{"w":1e29}',
)  # fmt: skip


def random_record(chance: random.Random) -> str:
    """A record of anything, mostly of what its schema says."""
    characters = 'aé\u2603\U0001f600\\"/\n\x7f'
    text = lambda: "".join(chance.choice(characters) for _ in range(chance.randint(0, 9)))  # noqa: E731
    number = lambda: chance.choice([0.1, -0.0, 1e-7, 1.5e300]) * chance.choice([1, 10, chance.random()])  # noqa: E731
    fields = {
        "s": text,
        "y": lambda: chance.random() < 0.5,
        "l": lambda: chance.randint(-(2**63), 2**63 - 1) >> chance.randint(0, 63),
        "d": number,
        "m": lambda: round(chance.uniform(-1e8, 1e8), chance.randint(0, 5)),
        "w": lambda: chance.randint(-(10**25), 10**25) / 1000,
        "r": lambda: [chance.randint(-9, 9) if chance.random() < 0.8 else None for _ in range(chance.randint(0, 4))],
        "q": lambda: {text(): chance.randint(-9, 9) for _ in range(chance.randint(0, 3))},
        "u": lambda: {"x": chance.randint(-9, 9), "y": [{"z": number()}] * chance.randint(0, 2)},
        "other": lambda: [text(), {text(): number()}],
    }
    names = chance.sample(list(fields), chance.randint(0, len(fields)))
    record = {name: fields[name]() if chance.random() < 0.9 else None for name in names}
    if chance.random() < 0.1 and names:
        record[names[0]] = chance.choice([[], {}, 1, "x", True])
    written = json.dumps(record, ensure_ascii=chance.random() < 0.5)
    return written if "s" not in record or isinstance(record["s"], str | None) else "{}"  # see DIFFERENT


def test_what_is_taken_and_what_is_refused_is_as_from_json_does_it_but_for_the_differences_that_are_named(
    spark: "SparkSession", our_broker: BrokerUnderTest
) -> None:
    chance = random.Random(6)
    texts = [*DIFFERENT, *EDGES, *(random_record(chance) for _ in range(400))]
    topic = our_broker.create_topic(our_broker.unique("corpus"))
    our_broker.produce(topic, texts)
    where = {"bootstrap.servers": our_broker.bootstrap_servers, "subscribe": topic}
    # As text, because Python has no dates beyond the year 9999.
    shown = ["cast(value.a as string) a", "cast(value.p as string) p", "hex(value.b) b"]
    spoilt = f"from_json(cast(value as string), '{ALL}, bad STRING', map('columnNameOfCorruptRecord', 'bad'))"

    theirs = spark.read.format("logmark").options(**where).load().selectExpr("offset", f"{spoilt} value")
    ours = spark.read.format("logmark").options(**where, **{"value.format": "json", "value.schema": ALL}).load()
    columns = [f"value.{name}" for name in "sythilfdmwrqu"] + shown
    expected = theirs.selectExpr("value is null n", "value.bad is not null bad", *columns).orderBy("offset").collect()
    found = ours.selectExpr("value is null n", "error is not null bad", *columns).orderBy("offset").collect()

    def outcome(row: object) -> str:
        is_null, is_bad, *fields = row  # type: ignore[misc]
        return "refused" if is_bad else "null" if is_null else repr(fields)

    pairs = [(text, outcome(one), outcome(two)) for text, one, two in zip(texts, expected, found, strict=True)]
    assert [] == [pair for pair in pairs[len(DIFFERENT) :] if pair[1] != pair[2]]
    assert [] == [pair for pair in pairs[: len(DIFFERENT)] if pair[1] == pair[2]]
    assert 300 < sum(two not in ("refused", "null") for _, _, two in pairs)


def test_a_schema_that_cannot_be_read_is_one_error_at_load(spark: "SparkSession", our_broker: BrokerUnderTest) -> None:
    options = {"bootstrap.servers": our_broker.bootstrap_servers, "subscribe": "x", "value.format": "json"}

    with pytest.raises(Exception, match=r"value\.schema") as refused:
        spark.read.format("logmark").options(**options, **{"value.schema": "id TEXT"}).load()

    assert "The option value.schema is not a schema that can be read: it has no type TEXT" in str(
        find_message(str(refused.value))
    )
