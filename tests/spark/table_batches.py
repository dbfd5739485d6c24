"""Batches for tables, written without Spark: what its tasks would have staged, and who reads it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from logmark.names import TopicPartition
from logmark.spark import read_table
from logmark.spark.source.position import Offsets, Position
from logmark.spark.tables.commits import write_batch
from logmark.spark.tables.ledger import Batch
from logmark.spark.tables.modes import Rules

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
WHERE = {"topic": "string", "partition": "integer", "offset": "long"}
_ARROW = {
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "timestamp_ntz": pa.timestamp("us"),
}
Columns = Mapping[str, str]
Row = Mapping[str, Any]


def spark_schema(columns: Columns) -> str:
    """The JSON that Spark has for these columns."""
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def staging(columns: Columns, *files: Sequence[Row]) -> Callable[[Path], None]:
    """Writes each list of rows as one file, as a task of Spark does; a list without rows too."""
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])

    def stage(folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, rows in enumerate(files):
            parquet.write_table(pa.Table.from_pylist(list(rows), schema), folder / f"part-{number}.parquet")
            (folder / f".part-{number}.parquet.crc").touch()

    return stage


def batch(
    first: Offsets,
    end: Offsets,
    rules: Rules,
    *,
    number: int = 0,
    query: str = "q",
    generation: int = 1,
    group: str = "billing",
    is_stateful: bool = False,
    is_continued: bool = False,
    topic_id: str = "the first",
) -> Batch:
    """A batch of these offsets."""
    ids = {"clicks": topic_id}
    position = Position(group=group, query=query, generation=generation, first=first, next=end, ids=ids)
    return Batch(
        position=position,
        number=number,
        is_stateful=is_stateful,
        is_continued=is_continued,
        mode=rules.mode,
        keys=rules.keys,
        has_sequence=rules.sequence is not None,
    )


def write(table: Path, one: Batch, rules: Rules, columns: Columns, *files: Sequence[Row]) -> bool:
    """Puts the rows into the table; False if they were not even computed."""
    return write_batch(table, one, spark_schema(columns), staging(columns, *files), rules)


def rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of the table in order, of all columns or of these."""
    found = [tuple(row.values()) for row in read_table(table, columns or None).to_pylist()]
    return sorted(found, key=lambda row: [(value is not None, value) for value in row])
