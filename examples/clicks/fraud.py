"""Clicks that no person made: one row per alert, with the place of the click in the log."""

from typing import TYPE_CHECKING

from examples.clicks.parsing import clicks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERSON_DWELL_MS_MIN = 120


def alerts(records: "DataFrame") -> "DataFrame":
    """An alert for every visitor who left before a person could have seen the page."""
    return _left_before(records, PERSON_DWELL_MS_MIN)


def alerts_with_a_bug(records: "DataFrame") -> "DataFrame":
    """The version with a zero too many: it also takes people in a hurry for bots."""
    return _left_before(records, PERSON_DWELL_MS_MIN * 10)


def _left_before(records: "DataFrame", dwell_ms: int) -> "DataFrame":
    suspicious = clicks(records).where(f"agent <> 'crawler' AND dwell_ms < {dwell_ms}")
    return suspicious.select("topic", "partition", "offset", "id", "user", "campaign", "price_micros", "dwell_ms")
