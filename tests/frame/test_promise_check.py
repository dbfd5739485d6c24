"""`scripts/promise_check.py` finds a promise that has become weaker, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "promise_check.py"
BASE = '''
import pytest
from hypothesis import example, given, settings
from tests.helpers import check_sorted

TABLE = {"a": 1, "b": 2}


@pytest.mark.parametrize("size", [1, 20])
def test_sizes(size):
    assert size == measure(size)
    with pytest.raises(ValueError, match="too large"):
        measure(10**6)


@settings(max_examples=50)
@given(integers())
@example(0)
def test_drawn(number):
    check_sorted([number])


def test_rounds():
    for _ in range(100):
        for name in ("x", "y"):
            assert name in found()
'''
HELPERS = "def check_sorted(found):\n    assert found == sorted(found)\n"


class History:
    """A repository with two commits of one test module, and the two tables."""

    def __init__(self, path: Path) -> None:
        self._path = path
        (path / "repository" / "tests").mkdir(parents=True)
        self._git("init", "--quiet")
        self.renames, self.accepted = path / "renames.tsv", path / "accepted.tsv"
        self.renames.touch()
        self.accepted.touch()
        self.commit(BASE)

    def _git(self, *arguments: str) -> None:
        known = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *known, *arguments], cwd=self._path / "repository", check=True)

    def commit(self, source: str, path: str = "tests/test_sizes.py", helpers: str = HELPERS) -> None:
        for old in (self._path / "repository" / "tests").iterdir():
            old.unlink()
        (self._path / "repository" / path).write_text(source)
        (self._path / "repository" / "tests" / "helpers.py").write_text(helpers)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", "A step.")

    def check(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        tables = ["--repository", str(self._path / "repository")]
        tables += ["--renames", str(self.renames), "--accepted", str(self.accepted)]
        command = [sys.executable, str(SCRIPT), "HEAD~1", "HEAD", *tables, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def test_the_same_tests_and_stronger_ones_pass(history: History) -> None:
    stronger = BASE.replace("[1, 20]", "[1, 20, 300]").replace("max_examples=50", "max_examples=60")
    history.commit(stronger + "\n\ndef test_more():\n    assert found()\n")

    checked = history.check()

    assert (0, "") == (checked.returncode, checked.stderr)
    assert "0 differences left" in checked.stdout


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("def test_rounds", "def rounds", "test\tthe test does not exist"),
        ("assert size == measure(size)", "assert measure(size)", "assert\tsize == measure(size)"),
        ("size == measure", "size <= measure", "assert\tsize == measure(size)"),
        ("ValueError", "Exception", "raises\t(ValueError, 'too large')"),
        (', match="too large"', "", "raises\t(ValueError, 'too large')"),
        ("[1, 20]", "[1]", "parameter\t20"),
        ("max_examples=50", "max_examples=49", "max_examples\t50"),
        ("integers()", "integers(min_value=0)", "given\t(integers(),)"),
        ("@example(0)\n", "", "example\t(0,)"),
        ("range(100)", "range(10)", "rounds\trange(100)"),
        ('("x", "y")', '("x",)', "case\t'y'"),
        ('"b": 2', '"b": 3', "table\t('b', 2)"),
        ("check_sorted([number])", "[number]", "calls\tcheck_sorted(…)"),
        ("def test_rounds", "@pytest.mark.skip\ndef test_rounds", "new mark\tskip"),
        ("def test_rounds", "@pytest.mark.xfail\ndef test_rounds", "new mark\txfail"),
        ("def test_rounds", "@pytest.mark.soak\ndef test_rounds", "new mark\tsoak"),
        ("    for _ in", "    pytest.skip()\n    for _ in", "new mark\tskip"),
        ("20])", "pytest.param(20, marks=pytest.mark.soak)])", "new mark\tsoak"),
    ],
)
def test_what_is_weaker_is_named_with_its_test(history: History, old: str, new: str, missing: str) -> None:
    assert old in BASE
    history.commit(BASE.replace(old, new))

    checked = history.check()

    assert 1 == checked.returncode
    assert missing in checked.stdout


def test_a_helper_that_asserts_less_is_named(history: History) -> None:
    history.commit(BASE, helpers="def check_sorted(found):\n    assert found\n")

    checked = history.check()

    assert 1 == checked.returncode
    assert "tests/helpers.py::check_sorted\tassert\tfound == sorted(found)" in checked.stdout


def test_renames_are_taken_from_the_table_and_suggested(history: History) -> None:
    renamed = BASE.replace("measure", "count").replace("too large", "exceeds the limit")
    history.commit(renamed.replace("test_sizes", "test_counts"), path="tests/test_counts.py")
    history.renames.write_text("file\ttests/test_sizes.py\ttests/test_counts.py\ntest\ttest_sizes\ttest_counts\n")
    assert 1 == history.check().returncode

    suggested = {line.rpartition("\t")[0] for line in history.check("--suggest").stdout.splitlines()}

    assert {"identifier\tmeasure\tcount", "text\ttoo large\texceeds the limit"} == suggested
    history.renames.write_text(history.renames.read_text() + "\n".join(suggested) + "\n")
    assert 0 == history.check().returncode


def test_a_judged_difference_is_accepted_for_as_long_as_it_applies(history: History) -> None:
    history.commit(BASE.replace("[1, 20]", "[1]"))
    judged = "tests/test_sizes.py::test_sizes\tparameter\t20\t"
    history.accepted.write_text(f"{judged}\n")
    assert 1 == history.check().returncode, "a line without a reason accepts nothing"

    history.accepted.write_text(f"{judged}Nobody measures 20 any more.\n")
    assert 0 == history.check().returncode

    history.commit(BASE.replace("[1, 20]", "[1]"))
    stale = history.check()
    assert 1 == stale.returncode
    assert "accepted, but no longer a difference\ttests/test_sizes.py::test_sizes\tparameter\t20" in stale.stdout
