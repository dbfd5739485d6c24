"""What the pipelines make of clicks: functions of DataFrames, on a few thousand records as the source gives them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from pyarrow import parquet

from examples.clicks import billing, bounces, features, fraud
from examples.clicks.generator import DAY_MS, MISSING, Click, generate
from examples.clicks.truth import ClickOffset, Truth
from examples.clicks.world import TOPIC
from logmark.spark import Pipeline, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 4_000
START_MS = 1_700_000_000_000
CLICK = (
    "id STRING, user STRING, address STRING, north DOUBLE, east DOUBLE, campaign STRING, price_micros BIGINT, "
    "at_ms BIGINT, agent STRING, dwell_ms BIGINT"
)
RECORD = f"topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, value STRUCT<{CLICK}>"
BATCHES = 3


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture(scope="module")
def folder(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records that decode, in a few files."""
    folder = tmp_path_factory.mktemp("records")
    rows: list[dict[str, Any]] = []
    for click in generate(COUNT, seed=2, start_ms=START_MS, end_ms=START_MS + 5 * DAY_MS):
        if click.flaw in ("", MISSING):
            rows.append(record(click, truth.ends[click.partition]))
        truth.note(click)
    size = len(rows) // BATCHES + 1
    for number in range(BATCHES):
        some = rows[number * size : (number + 1) * size]
        parquet.write_table(pyarrow.Table.from_pylist(some, schema()), folder / f"{number}.parquet")
    return folder


def record(click: Click, offset: int) -> dict[str, Any]:
    value = click._asdict()
    if click.flaw:
        value["price_micros"] = None
    return {
        "topic": TOPIC,
        "partition": click.partition,
        "offset": offset,
        "timestamp": datetime.fromtimestamp(click.arrived_ms / 1000, UTC),
        "value": value,
    }


def schema() -> pyarrow.Schema:
    kinds = {"STRING": "string", "BIGINT": "int64", "DOUBLE": "float64"}
    value = pyarrow.struct([(name, kinds[kind]) for name, kind in (field.split() for field in CLICK.split(", "))])
    columns = [("topic", "string"), ("partition", "int32"), ("offset", "int64")]
    return pyarrow.schema([*columns, ("timestamp", pyarrow.timestamp("us", "UTC")), ("value", value)])


@pytest.fixture(scope="module")
def records(spark: "SparkSession", folder: Path) -> "DataFrame":
    return spark.read.schema(RECORD).parquet(str(folder))


def offsets_of(rows: pyarrow.Table) -> list[ClickOffset]:
    assert {TOPIC} <= set(rows["topic"].to_pylist())
    return sorted(map(ClickOffset, rows["partition"].to_pylist(), rows["offset"].to_pylist()))


@pytest.mark.spark
def test_billing_owes_what_a_direct_computation_says_hour_by_hour(records: "DataFrame", truth: Truth) -> None:
    rows = billing.charges(records).toArrow()
    charged = rows.filter(rows["error"].is_null())

    assert pyarrow.int64() == rows.schema.field("price_micros").type
    assert truth.owed_micros == billing.owed_micros(charged)


@pytest.mark.spark
def test_billing_marks_what_has_no_price(records: "DataFrame", truth: Truth) -> None:
    rows = billing.charges(records).where("error IS NOT NULL").toArrow()

    assert sorted(truth.incomplete) == offsets_of(rows) != []
    assert {"The click has no price_micros."} == set(rows["error"].to_pylist())


@pytest.mark.spark
def test_bounces_has_every_bounce_and_with_the_bug_people_in_a_hurry_too(records: "DataFrame", truth: Truth) -> None:
    assert sorted(truth.bounced) == offsets_of(bounces.bounced(records).toArrow())
    assert sorted(truth.bounced | truth.hurried) == offsets_of(bounces.bounced_with_a_bug(records).toArrow())


@pytest.mark.spark
def test_features_knows_every_click_of_a_user_and_with_the_bug_crawlers_too(
    records: "DataFrame", truth: Truth
) -> None:  # fmt: skip
    rows = {row.pop("user"): row for row in features.per_user(records).toArrow().to_pylist()}
    assert truth.features() == rows

    rows = {row.pop("user"): row for row in features.per_user_with_a_bug(records).toArrow().to_pylist()}
    assert truth.features(with_crawlers=True) == rows


@pytest.mark.spark
def test_fraud_sends_every_alert_once_over_several_batches(
    spark: "SparkSession", folder: Path, truth: Truth, tmp_path: Path
) -> None:
    records = spark.readStream.schema(RECORD).option("maxFilesPerTrigger", 1).parquet(str(folder))
    writer = fraud.alerts(records).writeStream.format("parquet").option("path", str(tmp_path / "alerts"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()

    rows = spark.read.parquet(str(tmp_path / "alerts")).toArrow()
    assert BATCHES == len(list((tmp_path / "checkpoint/commits").glob("[0-9]")))
    assert sorted(truth.alerts()) == sorted(rows["id"].to_pylist())
    assert {id.split(":")[1] for id in truth.alerts()} == set(rows["key"].to_pylist())


@pytest.mark.parametrize("pipeline", [billing.billing, bounces.bounces, features.features, fraud.fraud])
def test_every_pipeline_reads_clicks_from_the_beginning_and_keeps_what_it_cannot_read(pipeline: Pipeline) -> None:
    assert TOPIC == pipeline.topics
    assert pipeline.schema is not None
    assert "clicks.dead" == pipeline.dead_letters
    assert "earliest" == pipeline.options["auto.offset.reset"]
    assert pipeline.group == pipeline.name
    assert isinstance(pipeline.sink, Topic) or Path(pipeline.sink.path).name == pipeline.name
