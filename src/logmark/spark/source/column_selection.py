"""Which columns a read has: all of Spark's Kafka source, or those of the option `columns`."""

import difflib
from collections.abc import Mapping

from logmark.errors import UserError
from logmark.spark.source.option_names import is_true, quote_value

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
_KNOWN = {name.lower(): name for name in (*COLUMNS, HEADERS)}


def parse_columns(ours: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the columns to read, in their order; what is left out is never made.

    Raises UserError for an unknown or repeated column, and for options that need a column which is left out.
    """
    with_headers = is_true(ours, "includeHeaders")
    text = ours.get("columns")
    if text is None:
        return (*COLUMNS, HEADERS) if with_headers else COLUMNS
    names = [_find_column(part.strip()) for part in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"The option columns names {name} twice. Nothing was read. Name each column once.")
    if with_headers and HEADERS not in names:
        raise UserError(
            "The option includeHeaders is true, but the option columns leaves out headers. Nothing was read. Add "
            "headers to columns, or leave out includeHeaders."
        )
    if ours.get("value.format", "").lower() == "json" and "value" not in names:
        raise UserError(
            "value.format is json, but the option columns leaves out value, so nothing would be decoded. Nothing was "
            "read. Add value to columns, or leave out value.format and value.schema."
        )
    return tuple(names)


def _find_column(given: str) -> str:
    if given.lower() in _KNOWN:
        return _KNOWN[given.lower()]
    close = difflib.get_close_matches(given.lower(), _KNOWN, n=1, cutoff=0.6)
    hint = f" Did you mean {_KNOWN[close[0]]}?" if close else ""
    raise UserError(
        f"The option columns names {quote_value(given)}, and there is no such column.{hint} Nothing was read. The "
        f"columns are {', '.join((*COLUMNS, HEADERS))}, separated by commas."
    )
