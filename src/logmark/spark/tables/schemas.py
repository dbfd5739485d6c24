"""The columns of a table and of the rows that enter it: whether they fit, and what is added when asked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable, Schema

_KNOWN_FEATURES = {"timestampNtz"}
_PLAIN = {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "date"}
_PLAIN |= {"timestamp", "timestamp_ntz"}
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")


def columns_of(schema: str, *, without: str | None = None) -> Any:
    """Return Spark's schema as it is kept, in which everything may be null, without a column that is not."""
    columns = _loosened(json.loads(schema))
    return columns | {"fields": [field for field in columns["fields"] if field["name"] != without]}


def types_of(columns: Any) -> dict[str, Any]:
    """Return the types by the names of the columns."""
    return {field["name"]: field["type"] for field in columns["fields"]}


def arrow_of(columns: Any) -> "pyarrow.Schema":
    """Return the columns as Arrow has them."""
    # Only here, as in all of this module: deltalake is an extra.
    from deltalake import Schema

    return _to_arrow(Schema.from_json(json.dumps(columns)))


def check_types(columns: Any) -> None:
    """Raise UserError if a column has a type that Delta does not know."""
    for field in columns["fields"]:
        unknown = _unknown(field["type"])
        if unknown is not None:
            raise UserError(
                f"The column {field['name']} has the type {unknown}, which Delta tables do not have. Nothing was "
                "written. Cast it to another type, or leave it out."
            )


def _unknown(kind: Any) -> str | None:
    """Return the first type in it that Delta does not know."""
    if isinstance(kind, str):
        return None if kind in _PLAIN or kind.startswith("decimal(") else kind
    inner = {"struct": "fields", "array": "elementType", "map": "valueType"}.get(kind["type"])
    if inner is None:
        return str(kind["type"])
    parts = [field["type"] for field in kind["fields"]] if inner == "fields" else [kind[inner], kind.get("keyType")]
    return next((found for part in parts if part is not None and (found := _unknown(part)) is not None), None)


def table_columns(delta: "DeltaTable") -> Any:
    """Return the columns of a table."""
    return columns_of(delta.schema().to_json())


def schema_of(delta: "DeltaTable") -> "pyarrow.Schema":
    """Return the table's columns as Arrow has them."""
    return _to_arrow(delta.schema())


def _to_arrow(schema: "Schema") -> "pyarrow.Schema":
    # Only here: pyarrow belongs to the extra `spark`.
    import pyarrow

    return pyarrow.schema(schema.to_arrow())


def check_kind(delta: "DeltaTable", table: Path) -> None:
    """Raise UserError if the table is of a kind that pipelines neither read nor write."""
    features = set(delta.protocol().reader_features or ()) - _KNOWN_FEATURES
    if features or delta.metadata().partition_columns:
        what = f"the features {', '.join(sorted(features))}" if features else "partition columns"
        raise UserError(f"The table {table} has {what}, which pipelines do not know. It was left as it is.")


def check_fit(delta: "DeltaTable", columns: Any, table: Path, *, may_grow: bool) -> list[Any]:
    """Return the columns that the table lacks and may get; raises UserError if the rows do not fit it."""
    check_kind(delta, table)
    there, here = types_of(table_columns(delta)), types_of(columns)
    other = [name for name, kind in here.items() if name in there and there[name] != kind]
    if other:
        types = ", ".join(
            f"{name} ({_format_type(here[name])}, in the table {_format_type(there[name])})" for name in other
        )
        raise UserError(
            f"The rows do not fit the table {table}: other types for {types}. Nothing was written. Cast them to the "
            "table's types, or give the new columns a table of their own."
        )
    if not may_grow and there.keys() != here.keys():
        raise UserError(
            f"The pipeline gives the columns {', '.join(here)}, but the table {table} has {', '.join(there)}. Nothing "
            "was written. Add the new columns to the table with merge_schema=True, or give them a table of their own."
        )
    return [field for field in columns["fields"] if field["name"] not in there]


def grow(delta: "DeltaTable", fields: list[Any]) -> None:
    """Add columns to the table, null in the rows that are there."""
    # Only here: see `arrow_of`.
    from deltalake import CommitProperties, Field

    names = [field["name"] for field in fields]
    properties = CommitProperties(custom_metadata={"logmark": {"added columns": names}}, max_commit_retries=0)
    delta.alter.add_columns([Field.from_json(json.dumps(field)) for field in fields], commit_properties=properties)


def widen_protocol(delta: "DeltaTable", like: "DeltaTable") -> bool:
    """Return whether the table's protocol has every type of the other one; if not, commit a wider protocol."""
    # Only here: see `arrow_of`.
    from deltalake import CommitProperties, TableFeatures

    if set(like.protocol().reader_features or ()) <= set(delta.protocol().reader_features or ()):
        return True
    # It is the one feature that check_kind lets pass.
    delta.alter.add_feature(
        TableFeatures.TimestampWithoutTimezone,
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    return False


def _format_type(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _loosened(kind: Any) -> Any:
    """Return a type without comments, in which everything may be null: the next version of a pipeline may need it."""
    if isinstance(kind, dict):
        plain = {name: _loosened(value) for name, value in kind.items() if name != "metadata"}
        return plain | {name: True for name in _NULLABLE if name in kind} | ({"metadata": {}} if "name" in kind else {})
    return [_loosened(value) for value in kind] if isinstance(kind, list) else kind
