"""Delta tables that hold the rows of each offset once, whatever is read again.

Spark's executors write the rows of a batch as Parquet files, and the driver adds them to the table in one commit
(`commits.py`).

Which batch it is. `foreachBatch` is told a batch id, which begins at 0 again when a checkpoint is deleted. But the
checkpoint's `offsets/<batch id>` is there before the batch runs, and holds what the source returned: group, generation,
first and next offsets (`position.py`). No other file is needed, so it works for the first batch too, whose beginning
Spark stores nowhere, and for a batch without rows. The table's own ledger (`ledger.py`) says whether the batch is new,
repeated or stale.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.spark.commits import check_kind, files_of, open_table, put, schema_of
from logmark.spark.files import WHERE
from logmark.spark.position import Position

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


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
        put(table, read_position(kept, batch_id), batch.schema.json(), lambda folder: _stage(batch, folder))

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
    import pyarrow.dataset

    table = _local(path, "table")
    delta = open_table(table)
    if delta is None:
        raise UserError(f"There is no table in {table}. A pipeline makes it with its first batch.")
    check_kind(delta, table)
    schema = schema_of(delta)
    # Not by deltalake's own to_pyarrow_table: its file system is called from Arrow's threads, which now and then aborts
    # the interpreter at its end.
    paths = [str(table / file.path) for file in files_of(delta)]
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


def _stage(batch: "DataFrame", directory: Path) -> None:
    # Delta readers expect microseconds; Spark's default for Parquet is an older form.
    batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = batch.write.mode("error").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(str(directory))


def _check_columns(frame: "DataFrame") -> None:
    if not frame.isStreaming:
        raise UserError("write_table takes a stream: load it with spark.readStream and not with spark.read.")
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    wanted = {"topic": "string", "partition": "int", "offset": "bigint"}
    wrong = [name for name in WHERE if types.get(name) != wanted[name]]
    if wrong:
        raise UserError(
            f"The rows have no column {' and no column '.join(wrong)} of the type that the source gives. A table needs "
            "topic, partition and offset to know which records a row came from. Select them together with the others."
        )


def _local(path: str | Path, what: str) -> Path:
    text = str(path).removeprefix("file://") if str(path).startswith("file:///") else str(path)
    if "://" in text:
        raise UserError(f"The {what} {path} is not a directory of this machine. Give a local or mounted directory.")
    return Path(text).absolute()
