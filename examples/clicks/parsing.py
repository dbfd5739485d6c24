"""Records of the topic as columns of clicks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "id STRING, user STRING, campaign STRING, price_micros BIGINT, at_ms BIGINT, agent STRING, dwell_ms BIGINT"


def clicks(records: "DataFrame") -> "DataFrame":
    """The columns of each click, after the place of its record: topic, partition, offset."""
    from pyspark.sql.functions import col, from_json

    click = from_json(col("value").cast("string"), SCHEMA).alias("click")
    return records.select("topic", "partition", "offset", click).select("topic", "partition", "offset", "click.*")
