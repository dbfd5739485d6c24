"""Batches in a Delta table, written without Spark: which rows it holds after repetitions, replays and races."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark import read_table
from logmark.spark.source.position import Offsets, Position
from logmark.spark.tables import commits
from logmark.spark.tables.commits import write_batch
from logmark.spark.tables.ledger import Batch
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.table import read_batch
from tests.harness.searches import examples

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
TYPES = {"topic": "string", "partition": "integer", "offset": "long", "value": "string"}
SPARK_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": False, "metadata": {"comment": "x"}}
            for name, kind in TYPES.items()
        ],
    }
)
Row = tuple[str, int, int, str]


def batch(first: Offsets, end: Offsets, *, generation: int = 1, group: str = "billing") -> Batch:
    position = Position(group=group, query="q", generation=generation, first=first, next=end)
    return Batch(position=position, number=0)


def clicks(first: int, end: int, value: str = "a", partition: int = 0) -> list[Row]:
    return [("clicks", partition, offset, value) for offset in range(first, end)]


def staging(*files: list[Row]) -> Callable[[Path], None]:
    """Writes each list of rows as one file, as a task of Spark does; a list without rows too."""

    def stage(folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, rows in enumerate(files):
            columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
            parquet.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), folder / f"part-{number}.parquet")
            (folder / f".part-{number}.parquet.crc").touch()

    return stage


def write(table: Path, batch: Batch, *files: list[Row]) -> None:
    write_batch(table, batch, SPARK_SCHEMA, staging(*files))


def rows(table: Path) -> list[Row]:
    return sorted(tuple(row.values()) for row in read_table(table).to_pylist())  # type: ignore[arg-type]


def version(table: Path) -> int:
    return DeltaTable(str(table)).version()


def test_batches_follow_each_other(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0, P1: 0}, {P0: 3, P1: 2}), clicks(0, 3), clicks(0, 2, partition=1))
    write(tmp_path, batch({P0: 3, P1: 2}, {P0: 5, P1: 2}), clicks(3, 5), [])

    assert sorted(clicks(0, 5) + clicks(0, 2, partition=1)) == rows(tmp_path)


def test_a_repeated_batch_changes_nothing_and_is_not_even_computed(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 3}), clicks(0, 3))
    before = version(tmp_path)

    write_batch(tmp_path, batch({P0: 0}, {P0: 3}), SPARK_SCHEMA, lambda folder: pytest.fail("was computed again"))

    assert (before, clicks(0, 3)) == (version(tmp_path), rows(tmp_path))


def test_a_seek_writes_nothing(tmp_path: Path) -> None:
    write_batch(tmp_path, batch({P0: 3}, {P0: 3}), SPARK_SCHEMA, lambda folder: pytest.fail("was computed"))

    with pytest.raises(UserError, match="There is no table"):
        rows(tmp_path)


def test_a_range_that_is_read_again_is_replaced_also_by_fewer_rows(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}), clicks(0, 10, "false alarm"))
    write(tmp_path, batch({P0: 4}, {P0: 8}, generation=2), [("clicks", 0, 5, "true alarm")])

    kept = [*clicks(0, 4, "false alarm"), ("clicks", 0, 5, "true alarm"), *clicks(8, 10, "false alarm")]
    assert kept == rows(tmp_path)
    assert version(tmp_path) == 1


def test_a_range_that_yields_no_rows_any_more_is_empty_afterwards(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}), clicks(0, 10))
    write(tmp_path, batch({P0: 0}, {P0: 10}, generation=2), [])

    assert [] == rows(tmp_path)


def test_the_rows_of_other_partitions_in_the_same_file_stay(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0, P1: 0}, {P0: 4, P1: 4}), clicks(0, 4) + clicks(0, 4, partition=1))
    write(tmp_path, batch({P0: 0, P1: 4}, {P0: 4, P1: 4}, generation=2), clicks(0, 4, "b"))

    assert clicks(0, 4, "b") + clicks(0, 4, partition=1) == rows(tmp_path)


def test_a_table_is_no_worse_for_a_new_query_that_starts_behind_it(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}), clicks(0, 10))
    write(tmp_path, batch({P0: 6}, {P0: 8}, generation=9), clicks(6, 8, "b"))
    write(tmp_path, batch({P0: 8}, {P0: 12}, generation=9), clicks(8, 12, "b"))

    assert clicks(0, 6) + clicks(6, 12, "b") == rows(tmp_path)


@pytest.mark.parametrize(
    ("stale", "message"),
    [
        (batch({P0: 10}, {P0: 20}, generation=1), "A newer query has taken over"),
        (batch({P0: 15}, {P0: 20}, generation=5), "ends at offset 10"),
        (batch({P0: 10}, {P0: 20}, generation=6, group="fraud"), "another group"),
    ],
)
def test_what_must_not_be_written_is_an_error_and_leaves_no_file(tmp_path: Path, stale: Batch, message: str) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}, generation=5), clicks(0, 10))
    files = sorted(tmp_path.rglob("*"))

    with pytest.raises(UserError, match=message):
        write(tmp_path, stale, clicks(10, 20))
    assert files == sorted(tmp_path.rglob("*"))


def test_other_columns_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 1}), clicks(0, 1))

    with pytest.raises(UserError, match=r"but the table .* has topic, partition, offset, value"):
        write_batch(
            tmp_path, batch({P0: 1}, {P0: 2}), SPARK_SCHEMA.replace('"value"', '"amount"'), staging(clicks(1, 2))
        )


def test_a_failed_task_leaves_no_file(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        staging(clicks(0, 3))(folder)
        raise RuntimeError("a task failed")

    with pytest.raises(RuntimeError):
        write_batch(tmp_path, batch({P0: 0}, {P0: 3}), SPARK_SCHEMA, fail)
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_commit_that_somebody_else_overtook_is_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}), clicks(0, 10))
    replace, races = commits.replace, [1]

    def overtaken(*arguments: object) -> object:
        planned = replace(*arguments)  # type: ignore[arg-type]
        if races:
            races.clear()
            DeltaTable(str(tmp_path)).optimize.compact()
            DeltaTable(str(tmp_path)).delete("offset = 2")
        return planned

    monkeypatch.setattr(commits, "replace", overtaken)
    write(tmp_path, batch({P0: 5}, {P0: 12}, generation=2), clicks(5, 12, "b"))

    assert clicks(0, 2) + clicks(3, 5) + clicks(5, 12, "b") == rows(tmp_path)


def test_two_writers_of_the_same_batch_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 10}), clicks(0, 10))
    replace, races = commits.replace, [1]

    def overtaken(*arguments: object) -> object:
        planned = replace(*arguments)  # type: ignore[arg-type]
        if races:
            races.clear()
            write(tmp_path, batch({P0: 10}, {P0: 12}), clicks(10, 12, "first"))
        return planned

    monkeypatch.setattr(commits, "replace", overtaken)
    write(tmp_path, batch({P0: 10}, {P0: 12}), clicks(10, 12, "second"))

    assert clicks(0, 10) + clicks(10, 12, "first") == rows(tmp_path)


def test_the_ledger_survives_the_cleaning_of_the_tables_log(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 5}), clicks(0, 5))
    write(tmp_path, batch({P0: 5}, {P0: 10}), clicks(5, 10))
    DeltaTable(str(tmp_path)).optimize.compact()
    DeltaTable(str(tmp_path)).create_checkpoint()
    for old in (0, 1):
        (tmp_path / "_delta_log" / f"{old:020}.json").unlink()

    write(tmp_path, batch({P0: 5}, {P0: 10}), clicks(5, 10, "again"))
    write(tmp_path, batch({P0: 10}, {P0: 12}), clicks(10, 12))

    assert clicks(0, 12) == rows(tmp_path)


def test_columns_of_a_table_may_be_null_whatever_the_first_version_said(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 1}), clicks(0, 1))

    assert all(field.nullable for field in DeltaTable(str(tmp_path)).schema().fields)


replays = st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(1, 5), min_size=1, max_size=4)), max_size=4)


@settings(max_examples=examples(10, soak=500))
@given(replays, st.data())
def test_whatever_is_replayed_each_offset_has_the_row_of_its_last_reading(
    tmp_path_factory: pytest.TempPathFactory, seeks: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    table = tmp_path_factory.mktemp("table")
    write(table, batch({P0: 0}, {P0: 12}), clicks(0, 12, "0"))
    expected = dict.fromkeys(range(12), "0")
    for generation, (at, sizes) in enumerate(seeks, start=2):
        for size in sizes:
            read = [offset for offset in range(at, at + size) if data.draw(st.booleans())]
            fresh = [("clicks", 0, offset, f"{generation}") for offset in read]
            for _ in range(data.draw(st.integers(1, 2))):
                write(table, batch({P0: at}, {P0: at + size}, generation=generation), fresh)
            expected = {offset: value for offset, value in expected.items() if not at <= offset < at + size}
            expected |= dict.fromkeys(read, f"{generation}")
            at += size

    assert sorted(("clicks", 0, offset, value) for offset, value in expected.items()) == rows(table)


def plan(checkpoint: Path, number: int, first: Offsets, end: Offsets, *, generation: int = 1) -> Batch:
    """Spark plans a batch with this number; as the table is told of it."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    position = batch(first, end, generation=generation).position
    (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(position.sources[0].to_json())}")
    return read_batch(checkpoint, number, Rules())


def test_a_batch_continues_what_its_checkpoint_has_read_since_the_last_seek(tmp_path: Path) -> None:
    planned = [
        plan(tmp_path, 0, {P0: 0}, {P0: 3}),
        plan(tmp_path, 1, {P0: 3}, {P0: 5}),
        plan(tmp_path, 2, {P0: 5, P1: 0}, {P0: 5, P1: 0}),  # a new partition without records
        plan(tmp_path, 3, {P0: 5, P1: 0}, {P0: 6, P1: 0}),
        plan(tmp_path, 4, {P0: 2}, {P0: 2}, generation=2),  # a seek
        plan(tmp_path, 5, {P0: 2}, {P0: 4}, generation=2),
        plan(tmp_path, 6, {P0: 4}, {P0: 6}, generation=2),
    ]

    assert [False, True, True, True, False, False, True] == [one.is_continued for one in planned]
    assert tmp_path == planned[0].checkpoint
    (tmp_path / "offsets" / "5").unlink()
    assert not read_batch(tmp_path, 6, Rules()).is_continued


def test_a_table_that_was_removed_is_recreated_where_its_group_is_reset_to(tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    write(table, plan(checkpoint, 0, {P0: 0}, {P0: 3}), clicks(0, 3))
    shutil.rmtree(table)

    write(table, plan(checkpoint, 1, {P0: 0}, {P0: 0}, generation=2))
    write(table, plan(checkpoint, 2, {P0: 0}, {P0: 2}, generation=2), clicks(0, 2))
    write(table, plan(checkpoint, 3, {P0: 2}, {P0: 5}, generation=2), clicks(2, 5))

    assert clicks(0, 5) == rows(table)


def test_a_table_that_was_removed_under_a_query_is_recreated_as_the_error_says(tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    write(table, plan(checkpoint, 0, {P0: 0}, {P0: 3}), clicks(0, 3))
    shutil.rmtree(table)

    # Spark tries the batch again with every restart, also when the group has been reset meanwhile.
    planned = plan(checkpoint, 1, {P0: 3}, {P0: 5})
    for _ in range(2):
        with pytest.raises(UserError, match=rf"take the query's checkpoint away \({checkpoint}\) and start it again"):
            write(table, planned, clicks(3, 5))
    assert not table.exists()

    shutil.rmtree(checkpoint)
    write(table, plan(checkpoint, 0, {P0: 0}, {P0: 5}, generation=2), clicks(0, 5))
    assert clicks(0, 5) == rows(table)


def test_the_first_rows_may_come_after_batches_that_have_read_nothing(tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    write(table, plan(checkpoint, 0, {P0: 7}, {P0: 7}))
    write(table, plan(checkpoint, 1, {P0: 7}, {P0: 9}), clicks(7, 9))

    assert clicks(7, 9) == rows(table)
