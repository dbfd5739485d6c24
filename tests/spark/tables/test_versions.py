"""Versions of a table: built beside it, swapped in by one commit, taken back, and what queries may do meanwhile."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from logmark.errors import UserError
from logmark.spark import read_table
from logmark.spark.tables import commits
from logmark.spark.tables import versions as module
from logmark.spark.tables.compaction import optimize_table, vacuum_table
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.versions import (
    current_version,
    drop_version,
    has_version,
    list_versions,
    next_version,
    roll_back_version,
    swap_in_version,
    transactions,
    version_path,
)
from tests.spark.table_batches import P0, P1, WHERE, batch, rows, write

TOTALS = {"campaign": "string", "total": "long"}
UPSERT = Rules.of("upsert", keys="campaign")


def count(table: Path, number: int, total: int, *, query: str = "old", **more: Any) -> bool:
    """Batch number n of a query that counts: it reads ten records and knows two campaigns."""
    first, end = {P0: number * 10}, {P0: number * 10 + 10}
    one = batch(first, end, UPSERT, is_stateful=True, query=query, number=number, **more)
    found = [{"campaign": name, "total": total} for name in ("a", "b")]
    return write(table, one, UPSERT, more.pop("columns", TOTALS), found[:1], found[1:])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that the old query has filled to batch 2, with a version 2 beside it that the new one has."""
    root = tmp_path_factory.mktemp("versions") / "billing"
    for number in range(3):
        count(root, number, total=number)
        count(version_path(root, 2), number, total=100 + number, query="new", generation=7, group="billing.v2")
    return root


@pytest.fixture
def table(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "billing"))


OLD, NEW = [("a", 2), ("b", 2)], [("a", 102), ("b", 102)]


def history(table: Path) -> list[dict[str, Any]]:
    return [commit["logmark"] for commit in DeltaTable(str(table)).history() if "logmark" in commit]


def test_a_version_is_swapped_in_by_one_commit_with_its_ledger(table: Path) -> None:
    before = DeltaTable(str(table)).version()
    assert (1, 3) == (current_version(table), next_version(table))

    swap_in_version(table, 2, group="billing")

    assert (NEW, before + 1, 2) == (rows(table), DeltaTable(str(table)).version(), current_version(table))
    assert {
        "swapped in": 2,
        "swapped out": 1,
        "kept": True,
        "generation": 7,
        "batch": 2,
        "end": {"clicks": {"0": 30}},
    } == history(table)[0]


def test_after_the_swap_the_new_query_continues_in_the_table_and_the_old_one_is_refused(table: Path) -> None:
    swap_in_version(table, 2, group="billing")

    assert not count(table, 2, total=999, query="new", generation=7)
    assert count(table, 3, total=103, query="new", generation=7)
    with pytest.raises(UserError, match="another version was swapped in"):
        count(table, 3, total=3)
    with pytest.raises(UserError, match=r"was swapped in and is closed.* Let the query write the table itself"):
        count(version_path(table, 2), 3, total=103, query="new", generation=7, group="billing.v2")
    assert [("a", 103), ("b", 103)] == rows(table)


def test_the_old_version_can_be_rolled_back_to_with_its_ledger_and_abandoned_again(table: Path) -> None:
    swap_in_version(table, 2, group="billing")
    count(table, 3, total=103, query="new", generation=7)

    assert 1 == roll_back_version(table)
    assert OLD == rows(table)
    assert not count(table, 2, total=999)
    count(table, 3, total=3)
    assert 2 == roll_back_version(table)
    assert [("a", 103), ("b", 103)] == rows(table)
    count(table, 4, total=104, query="new", generation=7)
    roll_back_version(table, 1)
    assert [("a", 3), ("b", 3)] == rows(table)
    assert [1, 2, 1, 2] == [entry["swapped in"] for entry in history(table) if "swapped in" in entry]


def test_the_ledger_of_a_version_leaves_nothing_of_the_other_behind(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0, P1: 0}, {P0: 5, P1: 9}, UPSERT), UPSERT, TOTALS, [])
    write(version_path(tmp_path, 2), batch({P0: 0}, {P0: 3}, UPSERT, generation=2), UPSERT, TOTALS, [])

    swap_in_version(tmp_path, 2)

    # Partition 1 is new to this version: it may begin anywhere.
    write(tmp_path, batch({P0: 3, P1: 4}, {P0: 4, P1: 6}, UPSERT, generation=2), UPSERT, TOTALS, [])
    assert {"clicks": {"0": 4, "1": 6}} == history(tmp_path)[0]["end"]


def test_a_version_may_have_other_columns(table: Path) -> None:
    wide = {**TOTALS, "currency": "string"}
    one = batch({P0: 0}, {P0: 30}, UPSERT, is_stateful=True, query="wide", number=0, generation=9)
    write(version_path(table, 3), one, UPSERT, wide, [{"campaign": "a", "total": 1, "currency": "EUR"}])

    swap_in_version(table, 3)
    assert [("a", 1, "EUR")] == rows(table)
    roll_back_version(table)
    assert OLD == rows(table)


def test_a_version_may_have_a_type_that_the_tables_protocol_does_not_know(table: Path) -> None:
    wide = {**TOTALS, "at": "timestamp_ntz"}
    noon = datetime(2026, 11, 16, 12)
    one = batch({P0: 0}, {P0: 30}, UPSERT, is_stateful=True, query="wide", number=0, generation=9)
    write(version_path(table, 3), one, UPSERT, wide, [{"campaign": "a", "total": 1, "at": noon}])

    swap_in_version(table, 3)
    assert [("a", 1, noon)] == rows(table)
    assert ["timestampNtz"] == DeltaTable(str(table)).protocol().reader_features
    roll_back_version(table)
    assert OLD == rows(table)


def test_versions_are_listed_with_what_they_hold(table: Path) -> None:
    assert [(1, True, 2), (2, False, 2)] == [(one.number, one.is_current, one.records) for one in list_versions(table)]
    swap_in_version(table, 2)
    listed = list_versions(table)
    assert [(1, False, 2), (2, True, 2)] == [(one.number, one.is_current, one.records) for one in listed]
    assert [table / "_versions" / "v1", table] == [one.path for one in listed]
    assert [{"clicks": {"0": 30}}] * 2 == [one.ledger["end"] for one in listed]


def test_a_kept_version_survives_vacuum_and_one_that_is_dropped_takes_nothing_with_it(table: Path) -> None:
    swap_in_version(table, 2, group="billing")
    optimize_table(table)
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert NEW == rows(table)
    roll_back_version(table)
    assert OLD == rows(table)

    drop_version(table, 2)

    assert OLD == rows(table)
    with pytest.raises(UserError, match=r"Version 2 of the table .* was not kept"):
        roll_back_version(table)


def test_a_version_that_was_not_kept_cannot_be_rolled_back_and_is_not_listed(table: Path) -> None:
    count(version_path(table, 3), 0, total=1000, query="newer", generation=9, group="billing.v3")
    swap_in_version(table, 2, group="billing")
    swap_in_version(table, 3, group="billing", keep=False)

    with pytest.raises(UserError, match=r"Version 2 of the table .* was not kept\. The table was left as it is"):
        roll_back_version(table)
    with pytest.raises(UserError, match=r"Version 2 .* its rows are gone\. The table was left as it is"):
        swap_in_version(table, 2)
    assert [("a", 1000), ("b", 1000)] == rows(table)
    assert [1, 3] == [one.number for one in list_versions(table)]
    assert (True, False, 4) == (has_version(table, 1), has_version(table, 2), next_version(table))
    assert 1 == roll_back_version(table, 1)
    assert OLD == rows(table)


def test_a_version_without_rows_is_kept_and_rolled_back_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, batch({P0: 0}, {P0: 5}, UPSERT), UPSERT, TOTALS, [])
    write(version_path(tmp_path, 2), batch({P0: 0}, {P0: 5}, UPSERT, generation=2), UPSERT, TOTALS, [])

    swap_in_version(tmp_path, 2)
    assert 1 == roll_back_version(tmp_path)
    assert 2 == roll_back_version(tmp_path)

    assert [1, 2] == [one.number for one in list_versions(tmp_path)]


def test_a_version_whose_swap_was_stopped_before_it_was_emptied_is_not_kept_by_a_swap_that_keeps_nothing(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(version_path(table, 3), 0, total=1000, query="newer", generation=9, group="billing.v3")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_empty", lambda path: None)
        swap_in_version(table, 2, group="billing")
    count(table, 3, total=103, query="new", generation=7)

    swap_in_version(table, 3, group="billing", keep=False)

    with pytest.raises(UserError, match=r"Version 2 of the table .* was not kept"):
        roll_back_version(table)


def test_the_checkpoint_of_a_version_outlives_every_swap(table: Path) -> None:
    checkpoint = version_path(table, 2) / "_checkpoint"
    checkpoint.mkdir()

    swap_in_version(table, 2)
    roll_back_version(table)

    assert checkpoint.is_dir()


def test_readers_find_the_nulls_of_files_that_another_writer_joined_also_after_swaps(tmp_path: Path) -> None:
    import polars

    rules, columns = Rules.of("replace"), {**WHERE, "user": "string"}
    for number in range(2):
        one = batch({P0: number}, {P0: number + 1}, rules, number=number)
        row = {"topic": "clicks", "partition": 0, "offset": number, "user": None if number else "ann"}
        write(tmp_path, one, rules, columns, [row])
    write(version_path(tmp_path, 2), batch({P0: 0}, {P0: 1}, rules, generation=2), rules, columns, [])
    DeltaTable(str(tmp_path)).optimize.compact()

    swap_in_version(tmp_path, 2)
    roll_back_version(tmp_path)

    nulls = polars.scan_delta(str(tmp_path)).filter(polars.col("user").is_null())
    assert [(1,)] == nulls.select("offset").collect().rows()
    found = QueryBuilder().register("t", DeltaTable(str(tmp_path))).execute("select offset from t where user is null")
    assert [1] == pa.table(found.read_all())["offset"].to_pylist()


def test_a_vacuum_in_the_middle_of_a_swap_takes_none_of_its_files_however_old_they_are(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in version_path(table, 2).rglob("*.parquet"):
        os.utime(file, (0, 0))
    planned: list[str] = []
    commit = module.commit

    def vacuumed(path: Path, *arguments: Any, **named: Any) -> bool:
        if path == table:
            planned.extend(vacuum_table(table, retention_hours=1, dry_run=True))
        return commit(path, *arguments, **named)

    monkeypatch.setattr(module, "commit", vacuumed)
    swap_in_version(table, 2)

    assert [] == planned
    assert NEW == rows(table)


def test_without_links_files_are_copied(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError("this file system knows no links")

    monkeypatch.setattr(os, "link", refuse)
    swap_in_version(table, 2)
    assert NEW == rows(table)
    roll_back_version(table)
    assert OLD == rows(table)


@pytest.mark.parametrize("step", range(0, 14, 2))
def test_a_swap_that_is_stopped_anywhere_can_be_made_again(
    table: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    steps = iter(range(step))

    def stopping(call: Any) -> Any:
        def stop(*arguments: Any, **named: Any) -> Any:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            result = call(*arguments, **named)
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return result

        return stop

    with monkeypatch.context() as patched:
        for name in ("commit", "_linked", "_empty"):
            patched.setattr(module, name, stopping(getattr(module, name)))
        patched.setattr(shutil, "rmtree", stopping(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            swap_in_version(table, 2)
        assert rows(table) == (OLD if current_version(table) == 1 else NEW)

    swap_in_version(table, 2)
    assert NEW == rows(table)
    roll_back_version(table)
    assert OLD == rows(table)


def test_a_swap_that_a_batch_overtook_keeps_that_batch_in_the_old_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, races = module._keep, [1]

    def overtaken(*arguments: Any) -> None:
        keep(*arguments)
        if races:
            races.clear()
            count(table, 3, total=3)

    monkeypatch.setattr(module, "_keep", overtaken)
    swap_in_version(table, 2)
    assert NEW == rows(table)
    roll_back_version(table)
    assert [("a", 3), ("b", 3)] == rows(table)


def test_a_swap_that_another_writer_overtook_leaves_nothing_of_it_in_the_new_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, races = module._keep, [1]

    def overtaken(*arguments: Any) -> None:
        keep(*arguments)
        if races:
            races.clear()
            write_deltalake(str(table), pa.table({"campaign": ["c"], "total": [7]}), mode="append")

    monkeypatch.setattr(module, "_keep", overtaken)
    swap_in_version(table, 2)
    assert NEW == rows(table)
    roll_back_version(table)
    assert [*OLD, ("c", 7)] == rows(table)


def test_what_cannot_be_swapped_is_an_error(table: Path) -> None:
    with pytest.raises(UserError, match=r"There is no version 5 .* left as it is"):
        swap_in_version(table, 5)
    with pytest.raises(UserError, match="Nothing was ever swapped into"):
        roll_back_version(table)
    with pytest.raises(UserError, match="holds version 1"):
        drop_version(table, 1)
    with pytest.raises(UserError, match="There is no version 9 beside"):
        drop_version(table, 9)


def test_a_table_may_begin_with_a_version_that_is_swapped_in(tmp_path: Path) -> None:
    count(version_path(tmp_path, 2), 0, total=5)

    swap_in_version(tmp_path, 2)

    assert [("a", 5), ("b", 5)] == rows(tmp_path)


def test_all_transactions_are_found_in_the_log_and_in_its_checkpoints(table: Path) -> None:
    def read_versions() -> dict[str, int | None]:
        delta = DeltaTable(str(table))
        return {name: delta.transaction_version(name) for name in transactions(delta, table)}

    expected = transactions(DeltaTable(str(table)), table)
    assert {"logmark/next/clicks/0", "logmark/batch", "logmark/query"} <= set(expected)
    assert expected == read_versions()
    DeltaTable(str(table)).create_checkpoint()
    for old in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    assert expected == transactions(DeltaTable(str(table)), table)
    count(table, 3, total=3)
    assert expected | {"logmark/next/clicks/0": 40, "logmark/batch": 3} == read_versions()


def test_readers_that_poll_during_swaps_see_the_old_or_the_new(table: Path) -> None:
    import duckdb
    import polars

    def through_duckdb() -> list[tuple[str, int]]:
        files = DeltaTable(str(table)).file_uris()
        return duckdb.connect().execute("SELECT campaign, total FROM read_parquet($1) ORDER BY 1", [files]).fetchall()

    readers = {
        "ours": lambda: [tuple(row.values()) for row in read_table(table).to_pylist()],
        "deltalake": lambda: [tuple(row.values()) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()],
        "polars": lambda: polars.read_delta(str(table)).rows(),
        "duckdb": through_duckdb,
    }
    done, begun = Event(), Barrier(len(readers) + 1)

    def poll(read: Callable[[], list[Any]]) -> list[list[Any]]:
        begun.wait(60)
        seen = [sorted(read())]
        while not done.is_set():
            seen.append(sorted(read()))
        return seen

    with ThreadPoolExecutor(len(readers)) as threads:
        polls = {name: threads.submit(poll, read) for name, read in readers.items()}
        try:
            begun.wait(60)
            swap_in_version(table, 2)
            for _ in range(5):
                roll_back_version(table)
        finally:
            done.set()

    for name, polled in polls.items():
        assert all(one in (OLD, NEW) for one in polled.result()), (name, polled.result())


def test_the_files_of_a_version_that_was_never_finished_are_removed_with_the_next_vacuum(table: Path) -> None:
    left = table / "_versions" / ".0123"
    left.mkdir()
    empty = table / "data" / "0123"
    empty.mkdir()
    for folder in (left, empty):
        os.utime(folder, (0, 0))

    vacuum_table(table, retention_hours=1)

    assert not left.exists()
    assert not empty.exists()
    assert commits.open_table(version_path(table, 2)) is not None
