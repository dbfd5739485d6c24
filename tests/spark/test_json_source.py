"""`value.format=json` in a real Spark, beside Spark's own from_json on the same records."""

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.spark.pipeline import sentence_in
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


def test_a_schema_that_cannot_be_read_is_one_sentence_at_load(
    spark: "SparkSession", our_broker: BrokerUnderTest
) -> None:
    options = {"bootstrap.servers": our_broker.bootstrap_servers, "subscribe": "x", "value.format": "json"}

    with pytest.raises(Exception, match=r"value\.schema") as refused:
        spark.read.format("logmark").options(**options, **{"value.schema": "id TEXT"}).load()

    assert "The option value.schema is not a schema that can be read: it has no type TEXT" in str(
        sentence_in(str(refused.value))
    )
