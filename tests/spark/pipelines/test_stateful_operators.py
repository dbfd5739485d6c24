"""Which streams keep state, as Spark itself plans them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from logmark.spark.pipelines.stateful_operators import keeps_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

STATELESS: "dict[str, Callable[[DataFrame], DataFrame]]" = {
    "select": lambda rows: rows.selectExpr("value * 2 AS value"),
    "where": lambda rows: rows.where("value > 1"),
    "explode": lambda rows: rows.selectExpr("explode(array(value, value)) AS value"),
    "union": lambda rows: rows.union(rows),
    "watermark": lambda rows: rows.withWatermark("timestamp", "1 minute"),
    "join with a table": lambda rows: rows.join(rows.sparkSession.range(3), rows.value == 1, "left"),
    "join with a counted table": lambda rows: rows.join(
        rows.sparkSession.range(3).groupBy("id").count(), rows.value == 1
    ),
    "map": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
}
STATEFUL: "dict[str, Callable[[DataFrame], DataFrame]]" = {
    "count": lambda rows: rows.groupBy("value").count(),
    "window": lambda rows: rows.selectExpr("window(timestamp, '1 hour') AS w").groupBy("w").count(),
    "below a select": lambda rows: rows.groupBy("value").count().selectExpr("count + 1"),
    "distinct": lambda rows: rows.distinct(),
    "duplicates": lambda rows: rows.dropDuplicates(["value"]),
    "duplicates in time": lambda rows: rows.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(
        ["value"]
    ),
    "two streams": lambda rows: rows.alias("a").join(rows.alias("b"), "value"),
    "limit": lambda rows: rows.limit(5),
    "applyInPandasWithState": lambda rows: rows.groupBy("value").applyInPandasWithState(
        lambda key, frames, state: frames, "value LONG", "n LONG", "append", "NoTimeout"
    ),
}


def test_state_is_seen_in_the_plan_whatever_it_comes_from(spark: "SparkSession") -> None:
    rows = spark.readStream.format("rate").load()

    found = {name: keeps_state(transform(rows)) for name, transform in (STATELESS | STATEFUL).items()}

    assert dict.fromkeys(STATELESS, False) | dict.fromkeys(STATEFUL, True) == found


def test_a_batch_keeps_no_state(spark: "SparkSession") -> None:
    assert not keeps_state(spark.range(5).groupBy("id").count())
