"""Which directory is meant, however it is written."""

from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark.tables.compaction import optimize_table, vacuum_table
from logmark.spark.tables.modes import Rules
from logmark.spark.tables.paths import local_path
from logmark.spark.tables.table import read_table
from logmark.spark.tables.versions import (
    current_version,
    drop_version,
    has_version,
    list_versions,
    next_version,
    roll_back_version,
    swap_in_version,
    version_path,
)
from tests.spark.table_batches import P0, batch, write

TOTALS = {"campaign": "string", "total": "long"}
UPSERT = Rules.of("upsert", keys="campaign")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/data/t", "/data/t"),
        ("file:///data/t", "/data/t"),
        ("file:/data/t", "/data/t"),
        (Path("file:///data/t"), "/data/t"),
        ("tables/t", "/here/tables/t"),
        ("file:t", "/here/file:t"),
    ],
)
def test_a_directory_is_the_same_however_it_is_written(given: str | Path, meant: str) -> None:
    assert Path(meant) == local_path(given, "table", below=Path("/here"))


def test_a_relative_path_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "tables/t" == local_path("tables/t", "table")


@pytest.mark.parametrize("given", ["s3://bucket/t", Path("s3://bucket/t"), "hdfs:/t", "file://server/t"])
def test_a_directory_of_other_machines_is_an_error(given: str | Path) -> None:
    with pytest.raises(UserError, match="is not a directory of this machine"):
        local_path(given, "table")


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}", "relative"])
def test_whoever_is_told_of_a_table_means_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "table"
    told = "table" if form == "relative" else form.format(root)
    for table, total in ((local_path(told, "table"), 1), (version_path(told, 2), 2)):
        one = batch({P0: 0}, {P0: 10}, UPSERT, generation=total)
        write(table, one, UPSERT, TOTALS, [{"campaign": "a", "total": total}])

    assert [1, 2] == [one.number for one in list_versions(told)]
    assert (1, 3, True) == (current_version(told), next_version(told), has_version(told, 2))
    swap_in_version(told, 2)
    assert [2] == read_table(root)["total"].to_pylist()
    assert 1 == roll_back_version(told)
    drop_version(told, 2)
    assert [] == vacuum_table(told)
    assert 0 == optimize_table(told).removed
    assert [1] == read_table(told)["total"].to_pylist()
    assert ["table"] == [path.name for path in tmp_path.iterdir()]
