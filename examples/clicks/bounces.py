"""Visitors who were gone before a person could have seen the page: one row each, with the offset of the click.

Without state, so its group may be moved while it runs: what is read again replaces its rows.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark import Pipeline, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "id STRING, user STRING, campaign STRING, at_ms BIGINT, agent STRING, dwell_ms BIGINT"
PERSON_DWELL_MS_MIN = 120


def bounced(records: "DataFrame") -> "DataFrame":
    """A row for every visitor who left at once."""
    return _left_before(records, PERSON_DWELL_MS_MIN)


def bounced_with_a_bug(records: "DataFrame") -> "DataFrame":
    """The version with a zero too many: it also takes people in a hurry."""
    return _left_before(records, PERSON_DWELL_MS_MIN * 10)


def _left_before(records: "DataFrame", dwell_ms: int) -> "DataFrame":
    left = records.where(f"value.agent <> 'crawler' AND value.dwell_ms < {dwell_ms}")
    return left.select("topic", "partition", "offset", "value.*").drop("agent")


bounces = Pipeline(
    name="bounces",
    topics="clicks",
    schema=SCHEMA,
    transform=bounced,
    sink=Table(Path(os.environ.get("CLICKS_TABLES", "tables"), "bounces")),
    dead_letters="clicks.dead",
    options={"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "200000"},
)

if __name__ == "__main__":
    bounces.main()
