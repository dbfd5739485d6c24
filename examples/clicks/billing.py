"""What each campaign owes, to the cent: one row per click that is charged."""

from typing import TYPE_CHECKING

from examples.clicks.parsing import clicks

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

MICROS_PER_CENT = 10_000


def charges(records: "DataFrame") -> "DataFrame":
    """One row for every click but those of crawlers, which say that they are no customers."""
    charged = clicks(records).where("agent <> 'crawler'")
    return charged.select("topic", "partition", "offset", "id", "campaign", "price_micros")


def owed_micros(rows: "pyarrow.Table") -> dict[str, int]:
    """What each campaign owes in millionths; a double click has the id of the first, and is charged once."""
    clicks = rows.group_by("id").aggregate([("campaign", "min"), ("price_micros", "min")])
    owed = clicks.group_by("campaign_min").aggregate([("price_micros_min", "sum")]).to_pylist()
    return {row["campaign_min"]: row["price_micros_min_sum"] for row in owed}


def bills(owed_micros: dict[str, int]) -> dict[str, int]:
    """The bills in cents, each rounded once, at its end, half a cent up."""
    return {
        campaign: (micros + MICROS_PER_CENT // 2) // MICROS_PER_CENT for campaign, micros in sorted(owed_micros.items())
    }


def money(cents: int) -> str:
    """An amount as it stands on a bill."""
    return f"{cents // 100:,}.{cents % 100:02d}"
