"""Delta tables that hold the rows of each offset once, whatever is read again.

Spark's executors write the rows of a batch as Parquet files, and the driver adds them to the table in one commit
(`commits.py`).

Which batch it is. `foreachBatch` gets a batch id, which starts at 0 again when a checkpoint is deleted. But the
checkpoint's `offsets/<batch id>` is there before the batch runs, and holds what the source returned: group, query,
generation, first and next offsets (`position.py`). No other file is needed, so it works for the first batch too, whose
beginning Spark stores nowhere, and for a batch without rows. Whether the query keeps state is seen in the checkpoint as
well: Spark makes the folder `state` before the first batch. The table's own ledger (`ledger.py`) says whether the batch
is new, repeated or stale.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.spark.checkpoint import has_state, read_position
from logmark.spark.sink.topics import start_writer
from logmark.spark.source.positions import QueryPosition
from logmark.spark.stream_sources import check_sources
from logmark.spark.tables.commits import check_rows, list_files, open_existing_table, write_batch
from logmark.spark.tables.compaction import optimize_when_due
from logmark.spark.tables.ledger import Batch
from logmark.spark.tables.modes import COMPLETE, REPLACE, UPSERT, Rules
from logmark.spark.tables.paths import local_path
from logmark.spark.tables.schemas import columns_of, schema_of

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_OUTPUT_MODES = {COMPLETE: "complete", UPSERT: "update"}


def write_table(
    frame: "DataFrame",
    path: str | Path,
    *,
    mode: str = REPLACE,
    keys: str | Sequence[str] | None = None,
    sequence: str | None = None,
    delete_by: str | None = None,
    merge_schema: bool = False,
    checkpoint: str | Path | None = None,
    every: str | None = None,
    available_now: bool = False,
    name: str | None = None,
    output_mode: str | None = None,
    optimize_every: int | None = 100,
) -> "StreamingQuery":
    """Start a query that writes a stream of `format("logmark")` into a Delta table, each batch once; return it.

    mode            replace: rows of offsets that are read again are replaced (needs topic, partition and offset)
                    append: rows are added, those of offsets that were read before are left out
                    upsert: rows replace those of the same `keys`, unless these have a greater `sequence` (a column;
                    without it offsets of the same partition decide, else the later batch); a row is deleted where the
                    boolean column `delete_by` is true, or where a `delete_by` of any other type is null
                    complete: the whole result of an aggregation replaces the table
    merge_schema    columns that the table lacks are added to it
    checkpoint      `<path>/_checkpoint` unless given
    every           a batch runs once an interval ("5 seconds"), and not whenever there is something to read
    available_now   the query ends when all that is there now is read
    output_mode     Spark's, where it does not follow from the mode
    optimize_every  after so many commits small files are joined, a bounded number of bytes at a time; None for never
    """
    rules = Rules.of(mode, keys=keys, sequence=sequence, delete_by=delete_by, merge_schema=merge_schema)
    table = local_path(path, "table")
    kept = local_path(checkpoint, "checkpoint") if checkpoint is not None else table / "_checkpoint"
    if not frame.isStreaming:
        raise UserError("write_table takes a stream: load it with spark.readStream and not with spark.read.")
    check_rows(frame.schema.json(), rules)
    check_sources(frame)

    def write(rows: "DataFrame", batch_id: int) -> None:
        batch = read_batch(kept, batch_id, rules)
        is_computed = write_batch(table, batch, rows.schema.json(), lambda folder: _stage(rows, folder), rules)
        if batch.is_stateful and not is_computed:
            # Spark wants the state of every batch, also of one that the table holds already.
            rows.write.format("noop").mode("overwrite").save()
        if optimize_every is not None:
            optimize_when_due(table, every=optimize_every)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(kept))
    writer = writer.outputMode(output_mode or _OUTPUT_MODES.get(mode, "append"))
    return start_writer(writer, name=name, available_now=available_now, every=every)


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> "pyarrow.Table":
    """Return the rows that the table holds now, of all columns or of these."""
    # Only here: pyarrow belongs to the extra `spark`.
    import pyarrow.dataset

    delta, paths = _files(path)
    schema = schema_of(delta)
    # Not by deltalake's own to_pyarrow_table: its file system is called from Arrow's threads, which now and then aborts
    # the interpreter at its end.
    if not paths:
        return schema.empty_table().select(list(columns or schema.names))
    return pyarrow.dataset.dataset(paths, schema=schema, format="parquet").to_table(
        columns=list(columns) if columns else None
    )


def load_table(spark: "SparkSession", path: str | Path) -> "DataFrame":
    """Return the rows that the table holds now, as a DataFrame that Spark's own Parquet reader reads."""
    # Only here: `read_table` needs no Spark.
    from pyspark.sql.types import StructType

    delta, paths = _files(path)
    schema = StructType.fromJson(columns_of(delta.schema().to_json()))
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def _files(path: str | Path) -> "tuple[DeltaTable, list[str]]":
    table = local_path(path, "table")
    delta = open_existing_table(table)
    return delta, [str(table / file.path) for file in list_files(delta)]


def read_batch(checkpoint: Path, batch_id: int, rules: Rules) -> Batch:
    """Return the batch that runs now, as the checkpoint of the query knows it."""
    position = read_position(checkpoint, batch_id)
    return Batch(
        position=position,
        number=batch_id,
        is_stateful=has_state(checkpoint),
        is_continued=_is_continued(checkpoint, batch_id, position),
        checkpoint=checkpoint,
        mode=rules.mode,
        keys=rules.keys,
        has_sequence=rules.sequence is not None,
    )


def _is_continued(checkpoint: Path, batch_id: int, position: QueryPosition) -> bool:
    """Return whether an earlier batch has read records of a source in the same generation."""
    generations = {(source.query, source.generation) for source in position.sources}
    for number in range(batch_id - 1, -1, -1):
        try:
            earlier = read_position(checkpoint, number)
        except FileNotFoundError:
            return False  # so old that Spark has removed it
        same = [source for source in earlier.sources if (source.query, source.generation) in generations]
        if not same:
            return False
        if any(source.ranges for source in same):
            return True
    return False


def _stage(batch: "DataFrame", directory: Path) -> None:
    # Delta readers expect microseconds; Spark's default for Parquet is an older form.
    batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = batch.write.mode("error").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(str(directory))
