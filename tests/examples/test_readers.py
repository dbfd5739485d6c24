"""What the readers make of clicks: plain functions of DataFrames, on a table of a few rows."""

from typing import TYPE_CHECKING

import pyarrow
import pytest

from examples.clicks import billing, features, fraud
from examples.clicks.generator import DAY_MS, Click, generate
from examples.clicks.truth import Place, Truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 3_000
RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture(scope="module")
def records(spark: "SparkSession", truth: Truth) -> "DataFrame":
    """A few thousand clicks as the source gives them."""
    rows = []
    for click in generate(COUNT, seed=2, start_ms=0, end_ms=DAY_MS):
        rows.append(record(click, truth.ends[click.partition]))
        truth.note(click)
    return spark.createDataFrame(rows, RECORD)


def record(click: Click, offset: int) -> tuple[bytes, bytes, str, int, int]:
    return click.key, click.value, "clicks", click.partition, offset


def places(rows: pyarrow.Table) -> list[Place]:
    assert {"clicks"} == set(rows["topic"].to_pylist())
    return sorted(map(Place, rows["partition"].to_pylist(), rows["offset"].to_pylist()))


@pytest.mark.spark
def test_billing_owes_what_a_direct_computation_says(records: "DataFrame", truth: Truth) -> None:
    rows = billing.charges(records).toArrow()

    assert pyarrow.int64() == rows.schema.field("price_micros").type
    assert truth.owed_micros == billing.owed_micros(rows)


@pytest.mark.spark
def test_fraud_accuses_every_bot_and_nobody_else(records: "DataFrame", truth: Truth) -> None:
    assert sorted(truth.bots) == places(fraud.alerts(records).toArrow())


@pytest.mark.spark
def test_fraud_with_a_bug_accuses_people_in_a_hurry_too(records: "DataFrame", truth: Truth) -> None:
    assert sorted(truth.bots | truth.hurried) == places(fraud.alerts_with_a_bug(records).toArrow())


@pytest.mark.spark
def test_features_knows_every_click_of_a_user(records: "DataFrame", truth: Truth) -> None:
    rows = features.per_user(features.observations(records).toArrow()).to_pylist()

    assert {user: (one.clicks, len(one.campaigns), one.dwell_ms) for user, one in truth.users.items()} == {
        row["user"]: (row["clicks"], row["campaigns"], row["dwell_ms"]) for row in rows
    }
    assert all(0 <= row["first_ms"] <= row["last_ms"] <= DAY_MS for row in rows)


@pytest.mark.spark
def test_a_record_that_is_no_click_is_neither_charged_nor_accused(spark: "SparkSession") -> None:
    broken = spark.createDataFrame([(None, value, "clicks", 0, 0) for value in (b"not json", b"", None)], RECORD)

    assert 0 == billing.charges(broken).count()
    assert 0 == fraud.alerts(broken).count()
