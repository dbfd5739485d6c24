"""Small files become large ones and old ones go, beside writers and readers."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable

from logmark.errors import UserError
from logmark.spark.tables import compaction
from logmark.spark.tables.commits import list_files, open_table
from logmark.spark.tables.compaction import group_files, optimize_table, optimize_when_due, vacuum_table
from logmark.spark.tables.files import DataFile
from logmark.spark.tables.modes import Rules
from tests.spark.table_batches import P0, P1, WHERE, Row, batch, rows, write

CLICKS = {**WHERE, "value": "string"}
RANGES = Rules()


def clicks(partition: int, first: int, end: int, value: str = "a") -> list[Row]:
    return [
        {"topic": "clicks", "partition": partition, "offset": offset, "value": value} for offset in range(first, end)
    ]


def put(table: Path, first: int, end: int, value: str = "a", generation: int = 1) -> None:
    """One batch of two partitions, each of them written by one task."""
    one = batch({P0: first, P1: first}, {P0: end, P1: end}, RANGES, generation=generation)
    write(table, one, RANGES, CLICKS, clicks(0, first, end, value), clicks(1, first, end, value))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eight small files: four batches of two partitions."""
    for first in (0, 10, 20, 30):
        put(tmp_path, first, first + 10)
    return tmp_path


def files(table: Path) -> list[DataFile]:
    delta = open_table(table)
    assert delta is not None
    return sorted(list_files(delta), key=lambda file: file.low or ())


def expected(*spans: tuple[int, int, str]) -> list[tuple[Any, ...]]:
    found = [row for partition in (0, 1) for span in spans for row in clicks(partition, *span)]
    return sorted(tuple(row.values()) for row in found)


def test_the_files_of_a_partition_become_one_in_the_order_of_their_offsets(table: Path) -> None:
    done = optimize_table(table)

    assert (8, 2) == (done.removed, done.added)
    assert expected((0, 40, "a")) == rows(table)
    assert [(("clicks", 0, 0), ("clicks", 0, 39)), (("clicks", 1, 0), ("clicks", 1, 39))] == [
        (file.low, file.high) for file in files(table)
    ]
    for file in files(table):
        assert list(range(40)) == parquet.read_table(table / file.path)["offset"].to_pylist()


def test_a_compaction_says_that_it_changes_no_rows(table: Path) -> None:
    optimize_table(table)

    last = sorted((table / "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    actions = [action for line in last for name, action in json.loads(line).items() if name in ("add", "remove")]
    assert len(actions) == 5
    assert not any(action["dataChange"] for action in actions)


def test_after_a_compaction_ranges_are_replaced_and_batches_recognised_as_before(table: Path) -> None:
    optimize_table(table)
    put(table, 30, 40, "repeated")
    put(table, 15, 25, "b", generation=2)

    assert expected((0, 15, "a"), (15, 25, "b"), (25, 40, "a")) == rows(table)


def test_a_second_compaction_finds_nothing_to_do(table: Path) -> None:
    optimize_table(table)
    before = DeltaTable(str(table)).version()

    assert (0, before) == (optimize_table(table).removed, DeltaTable(str(table)).version())


def test_a_compaction_stays_within_its_bound(table: Path) -> None:
    of_one = sum(file.size_bytes for file in files(table) if file.low is not None and file.low[1] == 0)

    assert 1 == optimize_table(table, size_bytes_max=of_one + 1).added
    assert 5 == len(files(table))


def test_a_table_is_compacted_once_it_has_got_so_many_commits(table: Path) -> None:
    assert optimize_when_due(table, every=4) is None
    put(table, 40, 50)
    done = optimize_when_due(table, every=4)
    assert done is not None
    assert 2 == done.added
    assert optimize_when_due(table, every=4) is None
    assert expected((0, 50, "a")) == rows(table)


def test_a_compaction_that_fails_does_not_stop_a_query(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    (table / files(table)[0].path).unlink()

    assert optimize_when_due(table, every=1) is None
    assert "stay as they are" in caplog.text


@pytest.mark.parametrize("is_replacing", [False, True])
def test_a_compaction_concurrent_with_a_writer_loses_nothing(
    table: Path, monkeypatch: pytest.MonkeyPatch, is_replacing: bool
) -> None:
    """The writer commits between what the compaction has read and its commit: new rows, or other ones for old."""
    made, races = compaction.write, [1]

    def overtaken(*arguments: Any, **named: Any) -> Any:
        joined = made(*arguments, **named)
        if races:
            races.clear()
            put(table, *((5, 15, "b", 2) if is_replacing else (40, 50, "b")))
        return joined

    monkeypatch.setattr(compaction, "write", overtaken)
    done = optimize_table(table)

    if is_replacing:
        # The files of both partitions were replaced meanwhile: they are left to the next time.
        assert (0, expected((0, 5, "a"), (5, 15, "b"), (15, 40, "a"))) == (done.added, rows(table))
        assert {str(table / file.path) for file in files(table)} <= {str(path) for path in table.rglob("*.parquet")}
    else:
        assert (2, expected((0, 40, "a"), (40, 50, "b"))) == (done.added, rows(table))


def test_a_reader_that_opened_the_table_before_still_finds_its_files(table: Path) -> None:
    before = DeltaTable(str(table))
    optimize_table(table)
    vacuum_table(table)

    assert 80 == before.to_pyarrow_table().num_rows


def test_vacuum_removes_what_is_old_and_named_by_nobody(table: Path) -> None:
    optimize_table(table)
    old, running = table / "data" / "old" / "part.parquet", table / "data" / "running" / "part.parquet"
    for path in (old, running):
        path.parent.mkdir()
        path.write_bytes(b"staged by a batch that has not been committed")
    os.utime(old, (0, 0))
    kept = {path for path in table.rglob("*.parquet") if path != old}

    assert ["data/old/part.parquet"] == vacuum_table(table, retention_hours=1, dry_run=True)
    assert old.exists()
    vacuum_table(table, retention_hours=1)

    assert kept == set(table.rglob("*.parquet"))
    assert expected((0, 40, "a")) == rows(table)
    with pytest.raises(UserError, match=r"retention of 0 hours .* Nothing was removed"):
        vacuum_table(table, retention_hours=0)


def test_an_upserted_table_is_compacted_in_the_order_of_its_keys(tmp_path: Path) -> None:
    rules = Rules.of("upsert", keys="user")
    for first, name in enumerate(["dora", "ada", "carl", "bob"]):
        row = {"topic": "clicks", "partition": 0, "offset": first, "user": name}
        write(tmp_path, batch({P0: first}, {P0: first + 1}, rules), rules, {**WHERE, "user": "string"}, [row])

    optimize_table(tmp_path)

    (joined,) = files(tmp_path)
    assert {"user": ("ada", "dora")} == joined.bounds
    assert ["ada", "bob", "carl", "dora"] == parquet.read_table(tmp_path / joined.path)["user"].to_pylist()


def test_files_go_together_up_to_the_target_and_large_ones_are_left_alone() -> None:
    def file(number: int, size: int, partition: int = 0) -> DataFile:
        where = ("clicks", partition, number * 10)
        return DataFile(path=f"{number}", size_bytes=size, records=1, low=where, high=where)

    small = [file(number, 30) for number in (3, 1, 2, 0)]
    found = list(group_files([*small, file(4, 76), file(5, 10, partition=1)], target_bytes=100))

    assert [["0", "1", "2"]] == [[one.path for one in bunch] for bunch in found]


def test_a_table_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for call in (optimize_table, vacuum_table):
        with pytest.raises(UserError, match="There is no table in"):
            call(tmp_path)
