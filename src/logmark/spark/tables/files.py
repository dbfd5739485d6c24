"""The Parquet files of a table: which rows they hold, and what is left of them when a range is replaced."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.tables.modes import WHERE

if TYPE_CHECKING:
    import pyarrow as pa

Ranges = Mapping[TopicPartition, tuple[int, int]]
Bounds = Mapping[str, tuple[Any, Any]]
_BOUND_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file under the table's directory, with the least and greatest (topic, partition, offset) in it.

    The bounds are those of each column alone, None where nobody wrote them down; `bounds` has the least and greatest
    value of other columns, as far as they are known. A column with bounds has no nulls. `records` is None where nobody
    has counted them.
    """

    path: str
    size_bytes: int
    records: int | None
    low: tuple[str, int, int] | None
    high: tuple[str, int, int] | None
    bounds: Bounds = field(default_factory=dict)

    def stats(self) -> str:
        """Return the file's statistics as Delta writes them."""
        low = {name: least for name, (least, _) in self.bounds.items()}
        high = {name: greatest for name, (_, greatest) in self.bounds.items()}
        if self.low is not None and self.high is not None:
            low |= dict(zip(WHERE, self.low, strict=True))
            high |= dict(zip(WHERE, self.high, strict=True))
        known: dict[str, Any] = {} if self.records is None else {"numRecords": self.records}
        if low:
            known |= {"minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
        return json.dumps(known)

    def may_share(self, bounds: Bounds) -> bool:
        """Return False only if no value of the file can lie in these bounds."""
        shared = ((self.bounds[name], bound) for name, bound in bounds.items() if name in self.bounds)
        return all(least <= high and low <= greatest for (least, greatest), (low, high) in shared)

    def may_hold(self, ranges: Ranges) -> bool:
        """Return False only if no row of these ranges can be in the file."""
        if self.low is None or self.high is None:
            return bool(ranges)
        (topic_low, partition_low, low), (topic_high, partition_high, high) = self.low, self.high
        return any(
            topic_low <= topic_partition.topic <= topic_high
            and partition_low <= topic_partition.partition <= partition_high
            and low < end
            and first <= high
            for topic_partition, (first, end) in ranges.items()
        )

    def is_within(self, ranges: Ranges) -> bool:
        """Return whether every row of the file is certainly in these ranges."""
        if self.low is None or self.high is None or self.low[:2] != self.high[:2]:
            return False
        first, end = ranges.get(TopicPartition(*self.low[:2]), (0, 0))
        return first <= self.low[2] and self.high[2] < end


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What becomes of the files that hold rows of the ranges: these go, and these take over the rows that stay."""

    removed: list[DataFile]
    rewritten: list[DataFile]


def describe(table: Path, path: str, *, keys: Sequence[str] = (), is_located: bool = True) -> DataFile:
    """Return the file as its footer describes it; raises UserError if located rows lack their topic or offset."""
    # Only here, as in all of this module: pyarrow belongs to the extra `spark`.
    import pyarrow.parquet as parquet

    file = table / path
    with parquet.ParquetFile(file) as content:
        footer = content.metadata
        numbers = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        wanted = [name for name in dict.fromkeys((*WHERE, *keys)) if name in numbers]
        statistics = {name: [group.column(numbers[name]).statistics for group in groups] for name in wanted}
    found = {name: bound for name, column in statistics.items() if (bound := _bound(column)) is not None}
    where = [statistics.get(name, []) for name in WHERE]
    if is_located and any(one and one.has_null_count and one.null_count for column in where for one in column):
        raise UserError(
            "Some rows have no topic, partition or offset, so the table could not tell which records they came from. "
            "Nothing was written. Keep these three columns as the source gives them."
        )
    return _with_bounds(path, file.stat().st_size, footer.num_rows, found)


def _with_bounds(path: str, size_bytes: int, records: int | None, found: Bounds) -> DataFile:
    """Return the file with the bounds of these columns, those of topic, partition and offset apart from the others."""
    is_known = all(name in found for name in WHERE)
    return DataFile(
        path=path,
        size_bytes=size_bytes,
        records=records,
        low=tuple(found[name][0] for name in WHERE) if is_known else None,
        high=tuple(found[name][1] for name in WHERE) if is_known else None,
        bounds={name: bound for name, bound in found.items() if name not in WHERE},
    )


def _bound(column: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a column, or None if there is any doubt about them."""
    if not column or not all(one is not None and one.has_min_max and one.has_null_count for one in column):
        return None
    values = [value for one in column for value in (one.min, one.max)]
    if any(one.null_count for one in column) or not all(_is_plain(value) for value in values):
        return None
    return min(values), max(values)


def _is_plain(value: Any) -> bool:
    """Return True for a value that Delta's statistics hold as it is."""
    return type(value) is int or (type(value) is str and len(value) <= _BOUND_LENGTH_MAX)


def parse_files(actions: Iterable[Mapping[str, Any]]) -> list[DataFile]:
    """Return the files of a table, from deltalake's flat list of them."""

    def bounds(action: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        names = [name.removeprefix("min.") for name in action if name.startswith("min.")]
        # Other writers of the table keep bounds of columns with nulls too; those say nothing of the nulls.
        names = [name for name in names if action.get(f"null_count.{name}") == 0]
        both = {name: (action[f"min.{name}"], action.get(f"max.{name}")) for name in names}
        return {name: bound for name, bound in both.items() if all(map(_is_plain, bound))}

    return [_with_bounds(one["path"], one["size_bytes"], one["num_records"], bounds(one)) for one in actions]


def replace(table: Path, files: Iterable[DataFile], ranges: Ranges, schema: "pa.Schema") -> Replacement:
    """Remove the rows of the ranges from the files: remove a file, or rewrite one that holds other rows too."""
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
            rewritten.append(write(table, rest))
    return Replacement(removed=removed, rewritten=rewritten)


def _rest(file: Path, ranges: Ranges, schema: "pa.Schema") -> "pa.Table | None":
    """Return the rows of the file outside of the ranges, or None if all of them are."""
    # Only here: they take long to import, and most batches replace no rows.
    import pyarrow.compute as compute
    import pyarrow.dataset as dataset

    # With the table's schema: other writers of the table may have other types for the same columns.
    rows = dataset.dataset(str(file), schema=schema, format="parquet").to_table()
    topic, partition, offset = (compute.field(name) for name in WHERE)
    goes = compute.scalar(False)
    for topic_partition, (first, end) in ranges.items():
        goes |= (
            (topic == topic_partition.topic)
            & (partition == topic_partition.partition)
            & (offset >= first)
            & (offset < end)
        )
    rest = rows.filter(~goes)
    return None if rest.num_rows == rows.num_rows else rest


def write(table: Path, rows: "pa.Table", *, keys: Sequence[str] = (), is_located: bool = True) -> DataFile:
    """Return a new file of these rows, which belongs to no table until a commit adds it."""
    # Only here: see `describe`.
    import pyarrow.parquet as parquet

    path = f"data/{uuid.uuid4().hex}.parquet"
    (table / path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, table / path)
    return describe(table, path, keys=keys, is_located=is_located)
