"""`format("logmark.delta")`: Spark's side of tables that a stream writes without foreachBatch.

Spark tells the writer of a stream its options, the checkpoint's directory among them, and with each commit the batch's
number: so the offsets of the batch are found in the checkpoint as in `tables.py`, and the commit is the same. Two
things differ. The rows pass through Python on the executors, which is slower than Spark's own Parquet writer; and Spark
refuses outputMode("update") for every writer in Python, so an aggregation that is upserted takes `write_table`.
"""

import difflib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamArrowWriter, DataSourceWriter
from pyspark.sql.datasource import WriterCommitMessage as Message
from pyspark.sql.types import StructType

from logmark.errors import UserError
from logmark.spark.tables.commits import check_rows, write_batch
from logmark.spark.tables.compaction import optimize_when_due
from logmark.spark.tables.modes import COMPLETE, REPLACE, Rules
from logmark.spark.tables.paths import local_path
from logmark.spark.tables.schemas import arrow_of, columns_of
from logmark.spark.tables.table import read_batch

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = ("path", "checkpointLocation", "mode", "keys", "sequence", "deleteBy", "mergeSchema", "optimizeEvery")
_READ_OTHERWISE = (
    'format("logmark.delta") writes streams. Read a table with logmark.spark.load_table(spark, path), and write one '
    'from a stream of format("logmark").'
)


class DefaultSource(DataSource):
    """Writes a stream of `format("logmark")` into a Delta table, each batch once."""

    @classmethod
    def name(cls) -> str:
        return "logmark.delta"

    def schema(self) -> StructType:
        raise UserError(_READ_OTHERWISE)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise UserError(_READ_OTHERWISE)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise UserError(f"{_READ_OTHERWISE} Nothing was written.")

    def streamWriter(self, schema: StructType, overwrite: bool) -> "Writer":
        return Writer(Settings.of(self.options, is_complete=overwrite), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the options say."""

    table: Path
    checkpoint: Path
    rules: Rules
    optimize_every: int | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_complete: bool) -> "Settings":
        """Return the options as settings; raises UserError if they contradict each other."""
        plain = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _NAMES}
        for name in plain:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {known[close[0]]}?" if close else f"It knows {', '.join(_NAMES)}."
                raise UserError(f'format("logmark.delta") has no option {name}. {hint} Nothing was written.')
        for name in ("path", "checkpointlocation"):
            if name not in plain:
                raise UserError(f'format("logmark.delta") needs the option {known[name]}. Nothing was written.')
        mode = plain.get("mode", COMPLETE if is_complete else REPLACE)
        if is_complete != (mode == COMPLETE):
            raise UserError(
                f'Mode {mode} does not go with Spark\'s outputMode("{"complete" if is_complete else "append"}"). Give '
                "both as complete, or none. Nothing was written."
            )
        every = plain.get("optimizeevery", "100")
        if not every.isdigit():
            raise UserError(f"optimizeEvery must be a number of commits, 0 for never, not {every!r}.")
        return cls(
            table=local_path(plain["path"], "table"),
            checkpoint=local_path(plain["checkpointlocation"], "checkpoint"),
            rules=Rules.of(
                mode,
                keys=plain.get("keys"),
                sequence=plain.get("sequence"),
                delete_by=plain.get("deleteby"),
                merge_schema=plain.get("mergeschema", "false").lower() == "true",
            ),
            optimize_every=int(every) or None,
        )


@dataclass(frozen=True)
class Staged(Message):
    """The file that a task has written, if it had rows."""

    file: Path | None


class Writer(DataSourceStreamArrowWriter):
    """Tasks stage Parquet files below the table's directory, and the driver adds them in one commit."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema.json()
        check_rows(self._schema, settings.rules)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Write the rows of a task as one file."""
        # Only here: tasks write files, and the driver plans them without Arrow.
        from pyarrow import Table, parquet

        schema = arrow_of(columns_of(self._schema))
        file = self._settings.table / "data" / f"{uuid.uuid4().hex}.staged"
        writer = None
        for rows in iterator:
            if not rows.num_rows:
                continue
            if writer is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                writer = parquet.ParquetWriter(file, schema)
            writer.write_table(Table.from_batches([rows]).cast(schema))
        if writer is None:
            return Staged(None)
        writer.close()
        return Staged(file)

    def commit(self, messages: list[Message | None], batchId: int) -> None:
        """Commit the batch to the table, on the driver, when all tasks have written."""
        files = _files(messages)

        def stage(folder: Path) -> None:
            folder.mkdir(parents=True)
            for number, file in enumerate(files):
                file.rename(folder / f"part-{number:05}.parquet")

        settings = self._settings
        try:
            batch = read_batch(settings.checkpoint, batchId, settings.rules)
            write_batch(settings.table, batch, self._schema, stage, settings.rules)
        finally:
            _remove(files)
        if settings.optimize_every is not None:
            optimize_when_due(settings.table, every=settings.optimize_every)

    def abort(self, messages: list[Message | None], batchId: int) -> None:
        """Remove what the tasks wrote, on the driver, when one has failed."""
        _remove(_files(messages))


def _files(messages: list[Message | None]) -> list[Path]:
    return [message.file for message in messages if isinstance(message, Staged) and message.file is not None]


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
