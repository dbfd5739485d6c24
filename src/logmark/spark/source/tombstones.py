"""What becomes of tombstones, records without a value, where values have a schema: the option `tombstones`."""

from collections.abc import Mapping
from enum import StrEnum

from logmark.errors import UserError
from logmark.spark.source.option_names import parse_choice

NO_VALUE = "the record has no value: it is a tombstone"


class Tombstones(StrEnum):
    """What becomes of a record without a value."""

    ROWS = "rows"  # a row whose value is null
    DEAD_LETTERS = "dead-letters"
    SKIP = "skip"


def parse_tombstones(ours: Mapping[str, str]) -> Tombstones:
    """Return what the option says; raises UserError if it needs another option beside it."""
    chosen = parse_choice(ours, "tombstones", tuple(Tombstones))
    if chosen is None:
        return Tombstones.ROWS
    if ours.get("value.format", "").lower() != "json":
        raise UserError(
            "The option tombstones needs value.format=json and value.schema beside it. Nothing was read. Without a "
            "schema a tombstone is a row whose value is null: leave such rows out with where(\"value IS NOT NULL\")."
        )
    if chosen == Tombstones.DEAD_LETTERS and not ours.get("deadletters.topic"):
        raise UserError(
            "tombstones is dead-letters, but the option deadLetters.topic is missing, which names their topic. Nothing "
            "was read."
        )
    return Tombstones(chosen)
