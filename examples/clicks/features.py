"""What a model is trained with: one row per user, kept up to date by every click since the first.

Spark's own aggregation keeps the sums, so the state is one small row per user: the campaigns are a set, which there are
few of. It counts what was delivered; a click that comes twice counts twice, because knowing better would need every id
in the state. The table is upserted by user. Rows of users whom fixed code no longer knows would stay in it, and state
counts records that are read again a second time: so a replay builds a version beside it and swaps that in.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark import Pipeline, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "user STRING, campaign STRING, price_micros BIGINT, at_ms BIGINT, agent STRING, dwell_ms BIGINT"
NIGHT_HOURS = (22, 23, 0, 1, 2, 3, 4, 5)  # UTC


def per_user(records: "DataFrame") -> "DataFrame":
    """The features of every user: how often, how long, when first and last, how much at night, what it cost."""
    return per_user_with_a_bug(records.where("value.agent <> 'crawler'"))


def per_user_with_a_bug(records: "DataFrame") -> "DataFrame":
    """The version that forgets to leave crawlers out: there are users who are none."""
    from pyspark.sql.functions import col, collect_set, count, expr, lit, size
    from pyspark.sql.functions import max as max_
    from pyspark.sql.functions import min as min_
    from pyspark.sql.functions import sum as sum_

    clicks = records.where("value.user IS NOT NULL AND value.at_ms IS NOT NULL AND value.price_micros IS NOT NULL")
    at_night = expr(f"CAST(value.at_ms DIV 3600000 % 24 IN {NIGHT_HOURS} AS INT)")
    return clicks.groupBy(col("value.user").alias("user")).agg(
        count(lit(1)).alias("clicks"),
        size(collect_set("value.campaign")).alias("campaigns"),
        sum_("value.dwell_ms").alias("dwell_ms"),
        min_("value.at_ms").alias("first_ms"),
        max_("value.at_ms").alias("last_ms"),
        (sum_(at_night) / count(lit(1))).alias("night_share"),
        (sum_("value.price_micros") / count(lit(1))).alias("mean_price_micros"),
    )


features = Pipeline(
    name="features",
    topics="clicks",
    schema=SCHEMA,
    transform=per_user,
    sink=Table(Path(os.environ.get("CLICKS_TABLES", "tables"), "features"), mode="upsert", keys="user"),
    dead_letters="clicks.dead",
    options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "200000"},
)

if __name__ == "__main__":
    features.main()
