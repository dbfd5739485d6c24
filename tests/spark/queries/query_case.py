"""A streaming query as a pipeline, with the rows that it must make, computed directly from the events."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.spark import Pipeline, Table
from tests.spark.queries.events import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Where rows came from: told by tables in mode replace, and no part of what a query computes.
_ORIGIN = ("topic", "partition", "offset")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCase:
    """A query of other people: what it does with events, into which table, and the rows that are expected.

    transform   gets the fields of the events beside topic, partition and offset
    expected    returns the rows for these events; a query with a watermark drops what comes late, unless a replay reads
                all events in one batch
    """

    name: str
    transform: "Callable[[DataFrame], DataFrame]"
    expected: Callable[[Any], Iterable[Row]]
    table: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    drops_late: bool = False
    fields: str = FIELDS

    def pipeline(self, folder: Path, topics: Sequence[str], *, group: str) -> Pipeline:
        """Return the pipeline that runs the query into a table in the folder."""
        more: dict[str, Any] = {"conf": dict(self.conf)} if self.conf else {}
        return Pipeline(
            name=self.name,
            group=group,
            topics=topics,
            transform=lambda records: self.transform(parse(records, self.fields)),
            sink=Table(folder / self.name, **self.table),
            options={"auto.offset.reset": "earliest"},
            **more,
        )

    def rows(self, events: Sequence[Any]) -> Counter[Row]:
        """Return the rows that are expected of these events."""
        return Counter(self.expected(events))


def parse(records: "DataFrame", fields: str) -> "DataFrame":
    """Return the fields of the events, and where they came from."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), fields).alias("event")
    return records.select(*_ORIGIN, event).select(*_ORIGIN, "event.*")


def read_rows(path: Path) -> Counter[Row]:
    """Return the rows of a table without where they came from, columns by name."""
    from logmark.spark import read_table

    rows = read_table(path)
    names = [name for name in sorted(rows.schema.names) if name not in _ORIGIN]
    return Counter(tuple(_plain(row[name]) for name in names) for row in rows.select(names).to_pylist())


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
