"""A batch enters a Delta table: its rows replace those of its ranges, in one commit, once.

Executors have written the rows as Parquet files below the table's directory; here the driver adds them through
`deltalake`, whose `create_write_transaction` takes added and removed files together. Of the ways there are, this one is
exact and cheap: `write_deltalake` would pass all rows through the driver, and its predicate would have deltalake search
the rows; here the files to touch follow from their statistics, and files that overlap the batch's ranges in part are
rewritten in the same commit.

Why it is exact. A commit is tried once against the version of the table that was read (no retries inside deltalake), so
what was decided still holds when it becomes true; if somebody else committed first, everything is decided again. Rows
are replaced by the batch's ranges and never by its rows, so a fixed pipeline that yields fewer rows leaves none of the
old. Files are removed from disk only while no commit can name them: what a crash or an unclear failure leaves behind
is seen by no reader, and vacuum removes it.
"""

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.spark.files import DataFile, Replacement, describe, listed, replace
from logmark.spark.ledger import entries, note, read_ledger, takes
from logmark.spark.position import Position

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

ATTEMPTS_MAX = 20
_KNOWN_FEATURES = {"timestampNtz"}
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")


def put(table: Path, position: Position, schema: str, stage: Callable[[Path], None]) -> None:
    """The table holds exactly the staged rows for the batch's ranges; a batch that it holds already changes nothing.

    `schema` is Spark's, as JSON; `stage` writes the rows as Parquet files into the folder that it is given.
    """
    delta = open_table(table)
    if not position.ranges or not _is_new(delta, position, table):
        return
    columns = _loosened(json.loads(schema))
    if delta is not None:
        _check_columns(delta, columns, table)
    staged = f"data/{uuid.uuid4().hex}"
    try:
        stage(table / staged)
        added = _staged_files(table, staged)
    except BaseException:
        shutil.rmtree(table / staged, ignore_errors=True)
        raise
    for _ in range(ATTEMPTS_MAX):
        if _commit(table, json.dumps(columns), added, position):
            return
    raise UserError(
        f"Others change the table {table} all the time: {ATTEMPTS_MAX} commits failed in a row. Nothing was written. "
        "Stop the other writers, or start the query again when they are done."
    )


def _staged_files(table: Path, staged: str) -> list[DataFile]:
    files = [describe(table, f"{staged}/{file.name}") for file in sorted((table / staged).glob("*.parquet"))]
    for checksum in (table / staged).glob(".*.crc"):
        checksum.unlink()
    for empty in (file for file in files if not file.records):
        (table / empty.path).unlink()
    return [file for file in files if file.records]


def _commit(table: Path, schema_json: str, added: list[DataFile], position: Position) -> bool:
    """True once the table holds the batch; False if somebody else committed meanwhile."""
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

    schema = Schema.from_json(schema_json)
    properties = CommitProperties(
        custom_metadata={"logmark": note(position)},
        app_transactions=[Transaction(name, number) for name, number in entries(position).items()],
        max_commit_retries=0,
    )
    delta = open_table(table)
    if delta is None:
        try:
            create_table_with_add_actions(
                str(table), schema, [_add(file) for file in added], mode="error", commit_properties=properties
            )
        except DeltaError:
            if open_table(table) is None:
                raise
            return False
        return True
    if not _is_new(delta, position, table):
        return True
    _check_columns(delta, json.loads(schema_json), table)
    changes = replace(table, files_of(delta), position.ranges, schema_of(delta))
    with contextlib.suppress(CommitFailedError):
        delta.create_write_transaction(
            _actions(added, changes), mode="append", schema=schema, commit_properties=properties
        )
        return True
    return False


def open_table(table: Path) -> "DeltaTable | None":
    """The table as it is now, or None if there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with contextlib.suppress(TableNotFoundError):
        return DeltaTable(str(table)) if (table / "_delta_log").is_dir() else None
    return None


def _is_new(delta: "DeltaTable | None", position: Position, table: Path) -> bool:
    return delta is None or takes(read_ledger(delta.transaction_version, position.next), position, table=str(table))


def files_of(delta: "DeltaTable") -> list[DataFile]:
    """The Parquet files that make up the table."""
    import pyarrow

    return listed(pyarrow.table(delta.get_add_actions(flatten=True)).to_pylist())


def schema_of(delta: "DeltaTable") -> "pyarrow.Schema":
    """The table's columns as Arrow has them."""
    import pyarrow

    return pyarrow.schema(delta.schema().to_arrow())


def _actions(added: list[DataFile], changes: Replacement) -> list[Any]:
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 1_000_000
    gone = [RemoveAction(file.path, True, now_ms, file.size_bytes, {}) for file in changes.removed]
    return [_add(file) for file in (*added, *changes.rewritten)] + gone


def _add(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={},
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=file.stats(),
    )


def check_kind(delta: "DeltaTable", table: Path) -> None:
    """Raises a sentence if the table is of a kind that pipelines neither read nor write."""
    features = set(delta.protocol().reader_features or ()) - _KNOWN_FEATURES
    if features or delta.metadata().partition_columns:
        what = f"the features {', '.join(sorted(features))}" if features else "partition columns"
        raise UserError(f"The table {table} has {what}, which pipelines do not know. It was left as it is.")


def _check_columns(delta: "DeltaTable", columns: Any, table: Path) -> None:
    check_kind(delta, table)
    there = _types(_loosened(json.loads(delta.schema().to_json())))
    here = _types(columns)
    if there != here:
        raise UserError(
            f"The pipeline gives the columns {', '.join(here)}, but the table {table} has {', '.join(there)}, or their "
            "types differ. Nothing was written. Give the new columns a table of their own."
        )


def _types(columns: Any) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in columns["fields"]}


def _loosened(kind: Any) -> Any:
    """A type without comments, in which everything may be null: the next version of a pipeline may need it."""
    if isinstance(kind, dict):
        plain = {name: _loosened(value) for name, value in kind.items() if name != "metadata"}
        return plain | {name: True for name in _NULLABLE if name in kind} | ({"metadata": {}} if "name" in kind else {})
    return [_loosened(value) for value in kind] if isinstance(kind, list) else kind
