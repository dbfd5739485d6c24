"""Pipeline files: what counts in them, and what is said of those that cannot be run."""

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark.pipelines.pipeline_files import (
    NeedsSpark,
    load_pipelines,
    load_with_spark,
    own_modules,
    ship_by_value,
)

HEAD = "from logmark.spark import Pipeline, Table, Topic\n"
Write = Callable[..., Path]


def declares(name: str = "billing", table: str = "t1", **more: str) -> str:
    fields = "".join(f", {key}={value!r}" for key, value in more.items())
    return f"{name} = Pipeline(name={name!r}, topics='clicks', transform=lambda f: f, sink=Table({table!r}){fields})\n"


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a file; what it has loaded is forgotten at the end."""
    before, path = dict(sys.modules), list(sys.path)

    def write(name: str, *parts: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(parts))
        return file

    yield write
    sys.modules.clear()
    sys.modules.update(before)
    sys.path[:] = path


def names(*files: Path, only: tuple[str, ...] = ()) -> list[str]:
    return [one.pipeline.name for one in load_pipelines(files, only=only)]


def test_every_pipeline_at_the_top_level_counts(write: Write) -> None:
    file = write("shop.py", HEAD, declares("billing"), declares("fraud", "t2"), "also = fraud\n")

    assert ["billing", "fraud"] == names(file)
    assert ["fraud"] == names(file, only=("fraud",))
    assert {file} == {one.file for one in load_pipelines([file])}


def test_a_pipeline_file_imports_modules_of_its_folder(write: Write) -> None:
    write("prices.py", "TABLE = 't1'\n")
    file = write("shop.py", HEAD, "import prices\n", "assert prices.TABLE == 't1'\n", declares())

    assert ["billing"] == names(file)


def test_a_file_of_a_package_is_imported_as_a_part_of_it(write: Write) -> None:
    write("store/__init__.py")
    write("store/prices.py", "TABLE = 't1'\n")
    file = write("store/shop.py", HEAD, "from .prices import TABLE\n", declares(), "name = __name__\n")

    assert ["billing"] == names(file)
    assert "store.shop" in sys.modules


def test_pipelines_that_one_file_imports_from_another_count_once(write: Write) -> None:
    first = write("first.py", HEAD, declares("billing"))
    second = write("second.py", HEAD, "from first import billing\n", declares("fraud", "t2"))

    assert ["billing", "fraud"] == names(first, second)


def test_files_of_the_same_name_and_of_a_librarys_name_are_not_mixed_up(write: Write) -> None:
    one = write("a/job.py", HEAD, declares("billing"))
    other = write("b/job.py", HEAD, declares("fraud", "t2"))
    third = write("json.py", HEAD, declares("third", "t3"))

    assert ["billing", "fraud", "third"] == names(one, other, third)
    import json

    assert hasattr(json, "loads")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["x = 1\n", "def f(:\n"], "shop.py, line 2: "),
        (["import nowhere_at_all\n"], "shop.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (["x = 1\n", "\n", "y = 1 / 0\n"], "shop.py, line 3: ZeroDivisionError: division by zero"),
        (["import sys\n", "sys.exit(3)\n"], "shop.py, line 2: it exits while it is loaded"),
        ([HEAD, "x = Pipeline(name='a b', topics='t', transform=len, sink=Table('t'))\n"], "cannot name a pipeline"),
        ([HEAD, "x = Pipeline(name='a')\n"], "shop.py, line 2: TypeError: "),
        (["x = 1\n"], "declares no pipeline"),
        (["def f():\n    return int('x')\n", "f()\n"], "shop.py, line 2: ValueError: invalid literal"),
    ],
)
def test_a_file_that_does_not_load_is_an_error_with_its_line(write: Write, parts: list[str], said: str) -> None:
    file = write("shop.py", *parts)

    with pytest.raises(UserError) as refused:
        load_pipelines([file])

    assert said in str(refused.value)
    assert "Nothing was" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert 2 == refused.value.exit_code


def test_an_error_deep_inside_names_both_lines(write: Write) -> None:
    write("prices.py", "\n", "raise ValueError('no prices')\n")
    file = write("shop.py", "x = 1\n", "import prices\n")

    with pytest.raises(UserError, match=r"shop\.py, line 2: ValueError: no prices, in .*prices\.py, line 2"):
        load_pipelines([file])


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*nowhere\.py\. Nothing was run"):
        load_pipelines([tmp_path / "nowhere.py"])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (("billing2 = 1\n" + declares("billing", "t2")), "Two pipelines have the name billing"),
        (declares("fraud", "t2", group="billing"), "Two pipelines have the group billing (billing and fraud"),
        (declares("fraud", "../{folder}/t1"), "Two pipelines have the table"),
    ],
)
def test_two_that_would_disturb_each_other_are_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    one = write("one.py", HEAD, declares("billing"))
    other = write("other.py", HEAD, second.format(folder=tmp_path.name))

    with pytest.raises(UserError) as refused:
        load_pipelines([one, other])

    assert said in str(refused.value)


def test_two_may_write_to_one_topic(write: Write) -> None:
    topic = "{0} = Pipeline(name='{0}', topics='clicks', transform=lambda f: f, sink=Topic('alerts'))\n"
    file = write("shop.py", HEAD, topic.format("a"), topic.format("b"))

    assert ["a", "b"] == names(file)


def test_a_name_that_is_not_there_is_said_with_the_one_that_is_meant(write: Write) -> None:
    file = write("shop.py", HEAD, declares("billing"))

    with pytest.raises(UserError, match=r"There is no pipeline biling in .*shop\.py\. Did you mean billing\?"):
        load_pipelines([file], only=["biling"])


def test_spark_is_started_for_a_file_only_if_it_cannot_be_loaded_without(write: Write) -> None:
    started: list[str] = []
    plain = write("plain.py", HEAD, declares("plain"))
    eager = write(
        "eager.py",
        HEAD,
        "import os\n",
        "if 'SPARK_IS_HERE' not in os.environ:\n",
        "    raise RuntimeError('[SESSION_OR_CONTEXT_NOT_EXISTS] should be created first')\n",
        declares("eager", "t2"),
    )

    def start() -> None:
        started.append("spark")
        patched.setenv("SPARK_IS_HERE", "1")

    with pytest.MonkeyPatch.context() as patched:
        assert ["plain"] == [one.pipeline.name for one in load_with_spark(start, [plain])]
        assert [] == started
        with pytest.raises(NeedsSpark):
            load_pipelines([eager])
        assert ["eager"] == [one.pipeline.name for one in load_with_spark(start, [eager])]
    assert ["spark"] == started


def test_functions_of_a_file_and_of_its_neighbours_travel_with_their_code(write: Write) -> None:
    from pyspark import cloudpickle

    # Names that no other test of this process has: a name that is taken gets a longer one.
    write("prices_that_travel.py", "def double(x):\n    return 2 * x\n")
    code = "def f(x):\n    return double(x) + 1\n"
    file = write("shop_that_travels.py", HEAD, "from prices_that_travel import double\n", declares(), code)
    load_pipelines([file])
    ship_by_value(own_modules([file]))

    packed = cloudpickle.dumps(sys.modules["shop_that_travels"].f)  # type: ignore[no-untyped-call]
    for name in ("shop_that_travels", "prices_that_travel"):
        cloudpickle.unregister_pickle_by_value(sys.modules.pop(name))  # type: ignore[no-untyped-call]

    assert 7 == pickle.loads(packed)(3)
