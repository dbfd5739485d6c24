"""The demo as a newcomer starts it: a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.clicks import demo as main
from examples.clicks.checks import Checks
from tests.harness.spark_archive import java_options

ROOT = Path(__file__).resolve().parents[2]


def demo(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "examples.clicks.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=580,
    )


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_holds_every_check_and_says_so_in_plain_lines(tmp_path: Path) -> None:
    where = ("--keep", str(tmp_path / "kept"), "--plot", str(tmp_path / "lag.svg"))

    ended = demo("--clicks", "3000", *where, SPARK_SUBMIT_OPTS=java_options())

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "" == ended.stderr
    lines = ended.stdout.splitlines()
    held = [line for line in lines if line.startswith("held ")]
    assert 22 == len(held)
    assert lines[-2].startswith("All 22 checks held, in ")
    assert "\x1b" not in ended.stdout
    assert {"billing", "bounces", "features", "newcomer"} == {
        path.name for path in (tmp_path / "kept/tables").iterdir()
    }
    assert lines[-1].endswith(f": {tmp_path / 'lag.svg'}")
    drawn = (tmp_path / "lag.svg").read_text()
    groups = {"billing", "bounces", "features", "features.v2", "fraud", "fraud.v2", "newcomer"}
    assert groups <= {group for group in groups if f'id="lag {group}"' in drawn}


def test_without_java_the_demo_says_what_to_do() -> None:
    ended = demo(PATH="/nonexistent", JAVA_HOME="")

    assert 1 == ended.returncode
    assert ended.stderr.startswith("Spark needs Java, and none is on the PATH. Install a Java runtime")
    assert "Traceback" not in ended.stderr
    assert "" == ended.stdout


def test_without_pyspark_the_demo_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('not here')\n")

    ended = demo(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")]))

    assert 1 == ended.returncode
    assert ended.stderr.startswith("PySpark is not installed, so no pipeline can run.")
    assert "Traceback" not in ended.stderr


def test_a_directory_that_is_not_empty_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")

    ended = demo("--keep", str(tmp_path))

    assert 1 == ended.returncode
    assert f"{tmp_path} is there already and not empty" in ended.stderr
    assert ["mine"] == [path.name for path in tmp_path.iterdir()]


def test_a_wrong_number_of_clicks_is_refused_with_an_error() -> None:
    ended = demo("--clicks", "many")

    assert 2 == ended.returncode
    assert "'many' is not a whole number from 1000 on" in ended.stderr


def test_a_picture_of_another_kind_is_refused_with_an_error() -> None:
    ended = demo("--plot", "lag.gif")

    assert 2 == ended.returncode
    assert "'lag.gif' is neither a .png nor an .svg file" in ended.stderr


def run_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, story: Callable[[Checks], object]) -> int:
    """The demo in this process, with another story and without a broker or Spark."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(main, "_run", lambda options, console, work, checks: story(checks) and "The lag: lag.png")
    return main.main(["--plain"])


def test_a_check_that_fails_is_named_and_ends_the_demo_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def story(checks: Checks) -> None:
        checks.add("billing is current", True, "lag 0")
        checks.add("fraud is behind", False, "lag 0")

    assert 1 == run_in_place(monkeypatch, tmp_path, story)

    printed = capsys.readouterr().out
    assert (
        "held    billing is current: lag 0\nFAILED  fraud is behind: lag 0\nFailed: fraud is behind: lag 0\n" in printed
    )
    assert f"are kept in {next(tmp_path.iterdir())}" in printed


def test_a_story_that_breaks_off_ends_the_demo_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def story(checks: Checks) -> None:
        checks.add("billing is current", True, "lag 0")
        raise TimeoutError("Waited 300 s in vain: fraud to read up to the end.")

    assert 1 == run_in_place(monkeypatch, tmp_path, story)
    assert "did not get to its end: Waited 300 s in vain: fraud" in capsys.readouterr().out


def test_when_every_check_held_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 0 == run_in_place(monkeypatch, tmp_path, lambda checks: checks.add("all is well", True, ""))
    assert [] == list(tmp_path.iterdir())
