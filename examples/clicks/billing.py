"""What each campaign owes for each hour, to the cent, however late a click arrives and however often.

The pipeline keeps one row per click that is charged, with its offset, and knows nothing else: no state, so
that its group may be moved at any time, and records that are read again replace their rows. A click that was delivered
twice has two rows of the same id; `owed_micros` counts ids. Doing that in the stream instead would need every id ever
seen in its state, because a click may come again after days; in a table it is one pass when a bill is made. A late
click belongs to the hour in which it was made, so a bill grows until nobody brings clicks of its hour any more.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark import Pipeline, Table

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

SCHEMA = "id STRING, campaign STRING, price_micros BIGINT, at_ms BIGINT, agent STRING"
NEEDED = ("id", "campaign", "price_micros", "at_ms")
HOUR_MS = 3600 * 1000
MICROS_PER_CENT = 10_000


def charges(records: "DataFrame") -> "DataFrame":
    """One row for every click but those of crawlers, which say that they are no customers.

    A click that lacks what a bill needs is marked in `error`, and becomes a dead letter instead of a row.
    """
    from pyspark.sql.functions import coalesce, col, lit, timestamp_millis, when

    value = col("value")
    missing = (when(value[name].isNull(), lit(f"The click has no {name}.")) for name in NEEDED)
    hour_ms = value["at_ms"] - value["at_ms"] % HOUR_MS
    charged = records.where("value IS NULL OR coalesce(value.agent, '') <> 'crawler'")
    return charged.select(
        "topic",
        "partition",
        "offset",
        coalesce(when(value.isNull(), lit("The record has no value.")), *missing).alias("error"),
        value["id"].alias("id"),
        value["campaign"].alias("campaign"),
        timestamp_millis(hour_ms).alias("hour"),
        value["price_micros"].alias("price_micros"),
    )


def owed_micros(rows: "pyarrow.Table") -> dict[tuple[str, int], int]:
    """What each campaign owes for each hour (milliseconds since 1970), in millionths, each id once."""
    clicks = rows.group_by("id").aggregate([("campaign", "min"), ("hour", "min"), ("price_micros", "min")])
    sums = clicks.group_by(["campaign_min", "hour_min"]).aggregate([("price_micros_min", "sum")])
    hours = sums["hour_min"].cast("timestamp[ms]", safe=False).cast("int64")
    names = zip(sums["campaign_min"].to_pylist(), hours.to_pylist(), strict=True)
    return dict(zip(names, sums["price_micros_min_sum"].to_pylist(), strict=True))


def bills(owed_micros: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """The bills in cents, by campaign and hour, each rounded once, at its end, half a cent up."""
    return {which: (micros + MICROS_PER_CENT // 2) // MICROS_PER_CENT for which, micros in sorted(owed_micros.items())}


def totals(bills: dict[tuple[str, int], int]) -> dict[str, int]:
    """The sum of all bills of a campaign, in cents."""
    sums: dict[str, int] = {}
    for (campaign, _), cents in bills.items():
        sums[campaign] = sums.get(campaign, 0) + cents
    return sums


def money(cents: int) -> str:
    """An amount as it stands on a bill."""
    return f"{cents // 100:,}.{cents % 100:02d}"


billing = Pipeline(
    name="billing",
    topics="clicks",
    schema=SCHEMA,
    transform=charges,
    sink=Table(Path(os.environ.get("CLICKS_TABLES", "tables"), "billing")),
    dead_letters="clicks.dead",
    options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "200000"},
)

if __name__ == "__main__":
    billing.main()
