"""Who else reads our tables: deltalake, polars and DuckDB, after everything that we do to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from logmark.spark.tables.compaction import optimize_table
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.versions import roll_back_version, swap_in_version, version_path
from tests.spark.table_batches import P0, WHERE, Row, batch, rows, write

NARROW = {**WHERE, "user": "string"}
WIDE = {**NARROW, "price": "double"}
RULES = Rules.of("replace", merge_schema=True)


def clicks(first: int, end: int, **more: Any) -> list[Row]:
    return [
        {"topic": "clicks", "partition": 0, "offset": offset, "user": f"u{offset % 3}", **more}
        for offset in range(first, end)
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that was appended to, replaced in part, widened, compacted, swapped and taken back."""
    root = tmp_path_factory.mktemp("readers") / "table"
    write(root, batch({P0: 0}, {P0: 10}, RULES), RULES, NARROW, clicks(0, 10))
    write(root, batch({P0: 10}, {P0: 20}, RULES), RULES, NARROW, clicks(10, 15), clicks(15, 20))
    optimize_table(root)
    write(root, batch({P0: 5}, {P0: 25}, RULES, generation=2), RULES, WIDE, clicks(5, 25, price=1.5))
    write(version_path(root, 2), batch({P0: 0}, {P0: 1}, RULES, generation=3), RULES, WIDE, clicks(0, 1, price=2.0))
    swap_in_version(root, 2)
    roll_back_version(root)
    return root


def through_arrow(table: Path) -> list[tuple[Any, ...]]:
    dataset = DeltaTable(str(table)).to_pyarrow_dataset()
    return duckdb.connect().register("found", dataset).execute("SELECT * FROM found").fetchall()


def through_files(table: Path) -> list[tuple[Any, ...]]:
    files = DeltaTable(str(table)).file_uris()
    found = duckdb.connect().execute("SELECT * FROM read_parquet($1, union_by_name => true)", [files])
    columns = [column[0] for column in found.description or ()]
    return [tuple(row[columns.index(name)] for name in WIDE) for row in found.fetchall()]


READERS: dict[str, Callable[[Path], list[tuple[Any, ...]]]] = {
    "deltalake": lambda table: [tuple(row.values()) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()],
    "polars": lambda table: polars.read_delta(str(table)).rows(),
    "DuckDB over Arrow": through_arrow,
    "DuckDB over the list of files": through_files,
}


@pytest.mark.parametrize("reader", READERS)
def test_other_readers_see_the_same_rows(table: Path, reader: str) -> None:
    expected = [tuple(row.values()) for row in (*clicks(0, 5, price=None), *clicks(5, 25, price=1.5))]

    assert expected == sorted(READERS[reader](table))
    assert expected == rows(table)


def test_other_readers_find_a_range_by_our_statistics(table: Path) -> None:
    found = polars.scan_delta(str(table)).filter(polars.col("offset") >= 20).collect()

    assert list(range(20, 25)) == sorted(found["offset"].to_list())
