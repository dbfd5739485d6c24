"""What a person is told who has no Spark, an old one, or no Java."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logmark.errors import UserError
from logmark.spark.sessions import check_java, check_spark, session
from tests.harness.spark_archive import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(folder: Path, version: str) -> dict[str, str]:
    """A Java home whose Java says that it is this version."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": ""}


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_java_that_can_run_spark_is_taken(tmp_path: Path, version: str) -> None:
    check_java(java(tmp_path, version))


@pytest.mark.parametrize(("version", "shown"), [("11.0.2", "11"), ("1.8.0_292", "8")])
def test_an_old_java_is_an_error(tmp_path: Path, version: str, shown: str) -> None:
    with pytest.raises(UserError, match=f"needs Java 17 or newer, and .* is version {shown}"):
        check_java(java(tmp_path, version))


def test_no_java_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is on the PATH.*openjdk-17-jre-headless"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(UserError, match="there is no bin/java in it"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    environment = java(tmp_path, "17")
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")

    with pytest.raises(UserError, match="does not run"):
        check_java(environment)


def test_an_old_spark_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")

    with pytest.raises(UserError, match=r"PySpark 4\.1\.3 is too old.*Install 4\.2 or newer"):
        session()


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.0.dev1", "5.0"])
def test_a_new_enough_spark_is_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("pyspark.__version__", version)

    check_spark()


def test_the_format_itself_says_that_spark_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark_logmark", raising=False)
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    found = importlib.import_module("pyspark_logmark").DefaultSource
    monkeypatch.delitem(sys.modules, "pyspark_logmark")

    assert "logmark" == found.name()
    with pytest.raises(UserError, match=r"PySpark 4\.0\.1 is too old"):
        found({}).schema()


def test_no_spark_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(UserError, match=r"PySpark is not installed.*pip install"):
        check_spark()


@pytest.mark.spark
def test_workers_import_the_pyspark_that_is_installed_and_not_its_archive(spark: "SparkSession") -> None:
    import pyspark

    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()

    assert [pyspark.__file__] == found


@pytest.mark.spark
def test_a_session_knows_the_format_even_if_spark_itself_finds_none(spark: "SparkSession") -> None:
    known_by_this_session = spark._jsparkSession.sessionState().dataSourceManager().runtimeDataSourceBuilders()

    assert session() is spark
    assert known_by_this_session.containsKey("logmark")


@pytest.mark.spark
def test_the_spark_of_the_tests_takes_its_classes_from_the_archive(spark: "SparkSession") -> None:
    archive = class_archive().resolve()
    if not archive.stat().st_size:
        pytest.skip("this Java has made no class archive")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()

    assert str(archive) in Path(f"/proc/{java}/maps").read_text()
