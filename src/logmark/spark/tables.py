"""Delta tables that hold the rows of each offset once, whatever is read again.

How a batch gets in. Spark's executors write the rows as Parquet files below the table's directory; the driver then
adds them in one Delta commit through `deltalake`, whose `create_write_transaction` takes added and removed files
together. Of the ways there are, this one is exact and cheap: `write_deltalake` would pass all rows through the driver,
and its predicate would have deltalake search the rows; here the files to touch follow from their statistics, and files
that overlap the batch's ranges in part are rewritten in the same commit.

Which batch it is. `foreachBatch` is told a batch id, which begins at 0 again when a checkpoint is deleted. But the
checkpoint's `offsets/<batch id>` is there before the batch runs, and holds what the source returned: group, generation,
first and next offsets (`position.py`). No other file is needed, so it works for the first batch too, whose beginning
Spark stores nowhere. The table's own ledger (`ledger.py`) says whether the batch is new, repeated or stale.

Why it is exact. Each commit is tried once against the version of the table that was read (no retries inside deltalake),
so what was decided holds when it becomes true; if somebody else committed first, everything is decided again. Rows are
replaced by the batch's ranges and never by its rows, so a fixed pipeline that yields fewer rows leaves none of the old.
What a crash leaves behind are Parquet files that no commit names: no reader sees them, and vacuum removes them.
"""

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.spark.files import WHERE, DataFile, Replacement, describe, listed, replace
from logmark.spark.ledger import entries, note, read_ledger, takes
from logmark.spark.position import Position

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

COMMIT_ATTEMPTS_MAX = 20
_KNOWN_FEATURES = {"timestampNtz"}


def write_table(
    frame: "DataFrame",
    path: str | Path,
    *,
    checkpoint: str | Path | None = None,
    every: str | None = None,
    available_now: bool = False,
    name: str | None = None,
) -> "StreamingQuery":
    """A running query that writes a stream of `format("logmark")` into a Delta table, each offset once.

    The rows must keep the columns topic, partition and offset. The checkpoint is `<path>/_checkpoint` unless given. A
    batch runs whenever there is something to read, or once `every` interval ("5 seconds"), or, with `available_now`,
    until all that is there now is read.
    """
    table = _local(path, "table")
    kept = _local(checkpoint, "checkpoint") if checkpoint is not None else table / "_checkpoint"
    _check_columns(frame)

    def write(batch: "DataFrame", batch_id: int) -> None:
        write_batch(batch, read_position(kept, batch_id), table)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(kept))
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> "pyarrow.Table":
    """The rows that the table holds now, of all columns or of these."""
    import pyarrow
    import pyarrow.dataset

    table = _local(path, "table")
    delta = _open(table)
    if delta is None:
        raise UserError(f"There is no table in {table}. A pipeline makes it with its first batch.")
    _check_kind(delta, table)
    schema = pyarrow.schema(delta.schema().to_arrow())
    # Not by deltalake's own to_pyarrow_table: its file system is called from Arrow's threads, which now and then aborts
    # the interpreter at its end.
    paths = [str(table / file.path) for file in _files(delta)]
    if not paths:
        return schema.empty_table().select(list(columns or schema.names))
    return pyarrow.dataset.dataset(paths, schema=schema, format="parquet").to_table(
        columns=list(columns) if columns else None
    )


def read_position(checkpoint: Path, batch_id: int) -> Position:
    """What the batch reads, from the write-ahead log of the query."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    sources = [line[line.index("{") :] for line in lines[2:] if "{" in line]
    if len(sources) != 1:
        raise UserError(
            f"This query reads {len(sources)} sources, and a table takes the rows of one: offsets of several could not "
            "be told apart. Nothing was written. Subscribe one source to all the topics instead."
        )
    return Position.from_json(json.loads(sources[0]))


def write_batch(batch: "DataFrame", position: Position, table: Path) -> None:
    """The table holds exactly these rows for the batch's ranges; a batch that it holds already changes nothing."""
    if not position.ranges or not _is_new(_open(table), position, table):
        return
    staged = f"data/{uuid.uuid4().hex}"
    try:
        _stage(batch, table / staged)
        added = _staged_files(table, staged)
        for _ in range(COMMIT_ATTEMPTS_MAX):
            if _commit(table, batch.schema.json(), added, position):
                return
    except BaseException:
        shutil.rmtree(table / staged, ignore_errors=True)
        raise
    shutil.rmtree(table / staged, ignore_errors=True)
    raise UserError(
        f"Others change the table {table} all the time: {COMMIT_ATTEMPTS_MAX} commits failed in a row. Nothing was "
        "written. Stop the other writers, or start the query again when they are done."
    )


def _stage(batch: "DataFrame", directory: Path) -> None:
    # Delta readers expect microseconds; Spark's default for Parquet is an older form.
    batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = batch.write.mode("error").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(str(directory))


def _staged_files(table: Path, staged: str) -> list[DataFile]:
    files = [describe(table, f"{staged}/{file.name}") for file in sorted((table / staged).glob("*.parquet"))]
    for checksum in (table / staged).glob(".*.crc"):
        checksum.unlink()
    for empty in (file for file in files if not file.records):
        (table / empty.path).unlink()
    return [file for file in files if file.records]


def _commit(table: Path, schema_json: str, added: list[DataFile], position: Position) -> bool:
    """True once the table holds the batch; False if somebody else committed meanwhile, with nothing changed."""
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

    properties = CommitProperties(
        custom_metadata={"logmark": note(position)},
        app_transactions=[Transaction(name, number) for name, number in entries(position).items()],
        max_commit_retries=0,
    )
    schema = Schema.from_json(schema_json)
    delta = _open(table)
    if delta is None:
        try:
            create_table_with_add_actions(
                str(table), schema, [_add(file) for file in added], mode="error", commit_properties=properties
            )
        except (CommitFailedError, DeltaError):
            if _open(table) is None:
                raise
            return False
        return True
    if not _is_new(delta, position, table):
        for file in added:
            (table / file.path).unlink(missing_ok=True)
        return True
    _check_schema(delta, schema_json, table)
    changes = replace(table, _files(delta), position.ranges)
    try:
        delta.create_write_transaction(
            _actions(added, changes), mode="append", schema=schema, commit_properties=properties
        )
    except CommitFailedError:
        for file in changes.rewritten:
            (table / file.path).unlink(missing_ok=True)
        return False
    return True


def _open(table: Path) -> "DeltaTable | None":
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with contextlib.suppress(TableNotFoundError):
        return DeltaTable(str(table)) if (table / "_delta_log").is_dir() else None
    return None


def _is_new(delta: "DeltaTable | None", position: Position, table: Path) -> bool:
    return delta is None or takes(read_ledger(delta.transaction_version, position.next), position, table=str(table))


def _files(delta: "DeltaTable") -> list[DataFile]:
    import pyarrow

    return listed(pyarrow.table(delta.get_add_actions(flatten=True)).to_pylist())


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


def _check_columns(frame: "DataFrame") -> None:
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    wanted = {"topic": "string", "partition": "int", "offset": "bigint"}
    wrong = [name for name in WHERE if types.get(name) != wanted[name]]
    if wrong:
        raise UserError(
            f"The rows have no column {' and no column '.join(wrong)} of the type that the source gives. A table needs "
            "topic, partition and offset to know which records a row came from. Select them together with the others."
        )


def _check_kind(delta: "DeltaTable", table: Path) -> None:
    features = set(delta.protocol().reader_features or ()) - _KNOWN_FEATURES
    if features or delta.metadata().partition_columns:
        what = f"the features {', '.join(sorted(features))}" if features else "partition columns"
        raise UserError(f"The table {table} has {what}, which pipelines do not know. It was left as it is.")


def _check_schema(delta: "DeltaTable", schema_json: str, table: Path) -> None:
    _check_kind(delta, table)
    there = {field["name"]: field["type"] for field in json.loads(delta.schema().to_json())["fields"]}
    here = {field["name"]: field["type"] for field in json.loads(schema_json)["fields"]}
    if _bare(there) != _bare(here):
        raise UserError(
            f"The pipeline gives the columns {', '.join(here)}, but the table {table} has {', '.join(there)}, or their "
            "types differ. Nothing was written. Give the new columns a table of their own."
        )


def _bare(types: Any) -> Any:
    """Column types without what does not matter: whether they may be null, and comments."""
    if isinstance(types, dict):
        quiet = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _bare(value) for name, value in types.items() if name not in quiet}
    return [_bare(value) for value in types] if isinstance(types, list) else types


def _local(path: str | Path, what: str) -> Path:
    text = str(path).removeprefix("file://") if str(path).startswith("file:///") else str(path)
    if "://" in text:
        raise UserError(f"The {what} {path} is not a directory of this machine. Give a local or mounted directory.")
    return Path(text).absolute()
