"""What is left of a table's files when a range is replaced."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.tables.files import DataFile, Ranges, describe, parse_files, replace
from tests.harness.searches import examples

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
Row = tuple[str, int, int]


def file(table: Path, name: str, rows: list[tuple[str | None, int, int]]) -> DataFile:
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)]
    parquet.write_table(pa.table(columns, names=["topic", "partition", "offset"]), table / name)
    return describe(table, name)


KINDS = (pa.string(), pa.int32(), pa.int64())
SCHEMA = pa.schema(list(zip(("topic", "partition", "offset"), KINDS, strict=True)))


def rows_of(table: Path, files: list[DataFile]) -> list[Row]:
    rows: list[Row] = []
    for one in files:
        rows += [
            (row["topic"], row["partition"], row["offset"]) for row in parquet.read_table(table / one.path).to_pylist()
        ]
    return sorted(rows)


def clicks(partition: int, first: int, end: int) -> list[tuple[str | None, int, int]]:
    return [("clicks", partition, offset) for offset in range(first, end)]


def test_a_file_inside_of_the_range_is_removed_without_being_read(tmp_path: Path) -> None:
    one = file(tmp_path, "a.parquet", clicks(0, 10, 20))
    (tmp_path / "a.parquet").unlink()

    changes = replace(tmp_path, [one], {P0: (10, 20)}, SCHEMA)

    assert ([one], []) == (changes.removed, changes.rewritten)


def test_a_file_outside_of_the_range_is_not_touched(tmp_path: Path) -> None:
    one = file(tmp_path, "a.parquet", clicks(0, 10, 20))
    (tmp_path / "a.parquet").unlink()

    for ranges in ({P0: (0, 10)}, {P0: (20, 30)}, {P1: (10, 20)}, {TopicPartition("orders", 0): (10, 20)}):
        changes = replace(tmp_path, [one], ranges, SCHEMA)
        assert ([], []) == (changes.removed, changes.rewritten)


def test_a_file_that_overlaps_in_part_is_rewritten_without_the_range(tmp_path: Path) -> None:
    one = file(tmp_path, "a.parquet", clicks(0, 10, 20))

    changes = replace(tmp_path, [one], {P0: (15, 30)}, SCHEMA)

    assert [one] == changes.removed
    assert sorted(clicks(0, 10, 15)) == rows_of(tmp_path, changes.rewritten)
    assert ("clicks", 0, 10) == changes.rewritten[0].low
    assert ("clicks", 0, 14) == changes.rewritten[0].high


def test_a_file_without_statistics_is_looked_into(tmp_path: Path) -> None:
    known = file(tmp_path, "a.parquet", clicks(0, 10, 20))
    one = DataFile(path=known.path, size_bytes=known.size_bytes, records=known.records, low=None, high=None)

    assert [one] == replace(tmp_path, [one], {P0: (19, 30)}, SCHEMA).removed
    assert [] == replace(tmp_path, [one], {P0: (20, 30)}, SCHEMA).removed


def test_rows_without_an_offset_are_refused_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Some rows have no topic, partition or offset"):
        file(tmp_path, "a.parquet", [("clicks", 0, 1), (None, 0, 2)])


ACTION = {"path": "a.parquet", "size_bytes": 9, "num_records": 2, "min.user": "ann", "max.user": "bob"}


@pytest.mark.parametrize(
    ("nulls", "bounds"), [(0, {"user": ("ann", "bob")}), (1, {}), (None, {})], ids=["none", "some", "unknown"]
)
def test_bounds_count_only_where_it_is_known_that_there_are_no_nulls(
    nulls: int | None, bounds: dict[str, tuple[str, str]]
) -> None:
    [one] = parse_files([{**ACTION, "null_count.user": nulls}])

    assert bounds == one.bounds
    assert ("user" in bounds) == ("user" in one.stats())


def test_a_file_whose_records_nobody_counted_is_not_said_to_have_none() -> None:
    [one] = parse_files([{**ACTION, "num_records": None, "null_count.user": 0}])

    assert "numRecords" not in one.stats()


partitions = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 12))
spans = st.tuples(st.integers(0, 12), st.integers(0, 12))
wanted = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2)), spans, min_size=1, max_size=3
)


@settings(max_examples=examples(60, soak=1000))
@given(st.lists(st.lists(partitions, min_size=1, max_size=8), max_size=3), wanted)
def test_exactly_the_rows_of_the_ranges_go(
    tmp_path_factory: pytest.TempPathFactory, contents: list[list[Row]], ranges: Ranges
) -> None:
    table = tmp_path_factory.mktemp("table")
    files = [file(table, f"{number}.parquet", list(rows)) for number, rows in enumerate(contents)]

    changes = replace(table, files, ranges, SCHEMA)

    left = [one for one in files if one not in changes.removed] + changes.rewritten
    kept = [
        row
        for rows in contents
        for row in rows
        if not (span := ranges.get(TopicPartition(*row[:2]), (0, 0)))[0] <= row[2] < span[1]
    ]
    assert sorted(kept) == rows_of(table, left)
