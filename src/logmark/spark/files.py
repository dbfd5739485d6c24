"""The Parquet files of a table: which rows they hold, and what is left of them when a range is replaced."""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Ranges = Mapping[TopicPartition, tuple[int, int]]
WHERE = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file under the table's directory, with the least and greatest (topic, partition, offset) in it.

    The bounds are those of each column alone, None where nobody wrote them down.
    """

    path: str
    size_bytes: int
    records: int
    low: tuple[str, int, int] | None
    high: tuple[str, int, int] | None

    def stats(self) -> str:
        """The file's statistics as Delta writes them."""
        if self.low is None or self.high is None:
            return json.dumps({"numRecords": self.records})
        none = dict.fromkeys(WHERE, 0)
        low, high = dict(zip(WHERE, self.low, strict=True)), dict(zip(WHERE, self.high, strict=True))
        return json.dumps({"numRecords": self.records, "minValues": low, "maxValues": high, "nullCount": none})

    def may_hold(self, ranges: Ranges) -> bool:
        """False only if no row of these ranges can be in the file."""
        if self.low is None or self.high is None:
            return bool(ranges)
        (topic_low, partition_low, low), (topic_high, partition_high, high) = self.low, self.high
        return any(
            topic_low <= place.topic <= topic_high
            and partition_low <= place.partition <= partition_high
            and low < end
            and first <= high
            for place, (first, end) in ranges.items()
        )

    def is_within(self, ranges: Ranges) -> bool:
        """True only if every row of the file is in these ranges."""
        if self.low is None or self.high is None or self.low[:2] != self.high[:2]:
            return False
        first, end = ranges.get(TopicPartition(*self.low[:2]), (0, 0))
        return first <= self.low[2] and self.high[2] < end


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What becomes of the files that hold rows of the ranges: these go, and these take over the rows that stay."""

    removed: list[DataFile]
    rewritten: list[DataFile]


def describe(table: Path, path: str) -> DataFile:
    """The file as its own footer describes it; raises a sentence if rows do not say where they came from."""
    import pyarrow.parquet as parquet

    file = table / path
    with parquet.ParquetFile(file) as content:
        footer = content.metadata
        numbers = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        bounds = [[group.column(numbers[name]).statistics for group in groups] for name in WHERE]
    if any(one is not None and one.has_null_count and one.null_count for column in bounds for one in column):
        raise UserError(
            "Some rows have no topic, partition or offset, so the table could not tell which records they came from. "
            "Nothing was written. Keep these three columns as the source gives them."
        )
    is_known = groups and all(one is not None and one.has_min_max for column in bounds for one in column)
    low = tuple(min(one.min for one in column) for column in bounds) if is_known else None
    high = tuple(max(one.max for one in column) for column in bounds) if is_known else None
    return DataFile(path=path, size_bytes=file.stat().st_size, records=footer.num_rows, low=low, high=high)


def listed(actions: Iterable[Mapping[str, Any]]) -> list[DataFile]:
    """The files of a table, from deltalake's flat list of them."""

    def bound(action: Mapping[str, Any], edge: str) -> tuple[str, int, int] | None:
        values = [action.get(f"{edge}.{name}") for name in WHERE]
        return None if None in values else tuple(values)  # type: ignore[return-value]

    return [
        DataFile(
            path=action["path"],
            size_bytes=action["size_bytes"],
            records=action["num_records"] or 0,
            low=bound(action, "min"),
            high=bound(action, "max"),
        )
        for action in actions
    ]


def replace(table: Path, files: Iterable[DataFile], ranges: Ranges, schema: "pa.Schema") -> Replacement:
    """Takes the rows of the ranges out of the files: by removing a file, or by rewriting one that holds others too."""
    removed, rewritten = [], []
    for file in files:
        if not file.may_hold(ranges):
            continue
        if file.is_within(ranges):
            removed.append(file)
            continue
        rest = _rest(table / file.path, ranges, schema)
        if rest is None:
            continue
        removed.append(file)
        if rest.num_rows:
            rewritten.append(_write(table, rest))
    return Replacement(removed=removed, rewritten=rewritten)


def _rest(file: Path, ranges: Ranges, schema: "pa.Schema") -> "pa.Table | None":
    """The rows of the file outside of the ranges, or None if all of them are."""
    import pyarrow.compute as compute
    import pyarrow.dataset as dataset

    # With the table's schema: other writers of the table may have other types for the same columns.
    rows = dataset.dataset(str(file), schema=schema, format="parquet").to_table()
    topic, partition, offset = (compute.field(name) for name in WHERE)
    goes = compute.scalar(False)
    for place, (first, end) in ranges.items():
        goes |= (topic == place.topic) & (partition == place.partition) & (offset >= first) & (offset < end)
    rest = rows.filter(~goes)
    return None if rest.num_rows == rows.num_rows else rest


def _write(table: Path, rows: "pa.Table") -> DataFile:
    import pyarrow.parquet as parquet

    path = f"data/{uuid.uuid4().hex}.parquet"
    (table / path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, table / path)
    return describe(table, path)
