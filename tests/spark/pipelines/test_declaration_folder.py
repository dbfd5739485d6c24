"""From where the relative path of a pipeline's table counts."""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark.pipelines.declaration import Table, format_sink
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.pipeline_files import load_pipelines, reload_pipeline

HEAD = "from logmark.spark import Pipeline, Table\n"
DECLARES = "p = Pipeline(name='billing', topics='clicks', transform=lambda f: f, sink=Table('tables/billing'))\n"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which has nothing to do with where the files are; what was loaded is forgotten."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before, path = dict(sys.modules), list(sys.path)
    yield tmp_path / "elsewhere"
    sys.modules.clear()
    sys.modules.update(before)
    sys.path[:] = path


def write(file: Path, *parts: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(parts))
    return file


def path_of(pipeline: Pipeline) -> Path:
    assert isinstance(pipeline.sink, Table)
    return Path(pipeline.sink.path)


def test_it_counts_from_the_folder_of_the_file_wherever_the_command_is_started(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "shop" / "billing_there.py", HEAD, DECLARES)

    [loaded] = load_pipelines([file])
    monkeypatch.chdir(tmp_path)
    again = reload_pipeline(file, "billing")

    assert tmp_path / "shop/tables/billing" == path_of(loaded.pipeline) == path_of(again)
    assert f"table {tmp_path / 'shop/tables/billing'}" == format_sink(loaded.pipeline.sink)


def test_it_counts_from_the_file_also_where_that_is_run_as_a_program(tmp_path: Path, elsewhere: Path) -> None:
    file = write(tmp_path / "shop" / "billing.py", HEAD, DECLARES)

    found = runpy.run_path(str(file), run_name="__main__")

    assert tmp_path / "shop/tables/billing" == path_of(found["p"])


def test_it_counts_from_the_file_also_where_another_one_imports_it(tmp_path: Path, elsewhere: Path) -> None:
    write(tmp_path / "shop" / "billing_to_import.py", HEAD, DECLARES)
    lines = f"import sys\nsys.path.append({str(tmp_path / 'shop')!r})\nfrom billing_to_import import p\n"
    program = write(tmp_path / "programs" / "program.py", lines)

    [loaded] = load_pipelines([program])

    assert tmp_path / "shop/tables/billing" == path_of(loaded.pipeline)


def test_it_counts_from_the_file_also_where_a_function_of_another_one_makes_the_pipeline(
    tmp_path: Path, elsewhere: Path
) -> None:
    write(tmp_path / "library" / "made_elsewhere.py", HEAD, f"def make():\n    {DECLARES}    return p\n")
    lines = f"import sys\nsys.path.append({str(tmp_path / 'library')!r})\nimport made_elsewhere\n"
    file = write(tmp_path / "shop" / "billing_made.py", lines, "p = made_elsewhere.make()\n")

    [loaded] = load_pipelines([file])

    assert tmp_path / "shop/tables/billing" == path_of(loaded.pipeline)


def test_without_a_file_it_counts_from_the_working_directory_at_the_time(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: dict[str, Pipeline] = {}
    exec(HEAD + DECLARES, typed)  # type: ignore[arg-type]
    called = Pipeline(name="billing", topics="clicks", transform=lambda rows: rows, sink=Table("tables/billing"))
    monkeypatch.chdir(tmp_path)

    assert elsewhere / "tables/billing" == path_of(typed["p"]) == path_of(called)


def test_a_table_of_other_machines_is_an_error_when_the_file_is_loaded(tmp_path: Path, elsewhere: Path) -> None:
    file = write(tmp_path / "billing_far.py", HEAD, DECLARES.replace("'tables", "'s3://tables"))

    with pytest.raises(UserError, match=r"billing_far\.py: The table s3://.* is not a directory of this machine"):
        load_pipelines([file])
