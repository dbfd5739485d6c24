"""What is known about each user, from the first click on: one row per click, added up when it is asked for."""

from typing import TYPE_CHECKING

from examples.clicks.parsing import clicks

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame


def observations(records: "DataFrame") -> "DataFrame":
    """What one click says about its user."""
    return clicks(records).select("topic", "partition", "offset", "user", "campaign", "at_ms", "dwell_ms")


def per_user(rows: "pyarrow.Table") -> "pyarrow.Table":
    """The features of every user: clicks, different campaigns, dwell time in all, first and last click."""
    wanted = [
        ("offset", "count"),
        ("campaign", "count_distinct"),
        ("dwell_ms", "sum"),
        ("at_ms", "min"),
        ("at_ms", "max"),
    ]
    names = ["user", "clicks", "campaigns", "dwell_ms", "first_ms", "last_ms"]
    return rows.group_by("user").aggregate(wanted).rename_columns(names)
