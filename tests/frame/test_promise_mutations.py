"""The mutations of `scripts/promise_mutations.toml` are up to date, and each one makes the test of its promise fail."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "promise_check.py"
sys.path.insert(0, str(SCRIPT.parent))

import promise_mutations  # noqa: E402 - a script's module, which is no package

HERE = promise_mutations.Commit(REPOSITORY, sys.executable, {})
MUTATIONS = promise_mutations.read_mutations()
PROMISES = (REPOSITORY / "docs" / "promises.md").read_text()


def test_every_section_of_the_promises_has_mutations() -> None:
    sections = PROMISES.split("\n## ")[1:]

    assert len(MUTATIONS) >= 40
    assert [] == [each.splitlines()[0] for each in sections if not any(is_held_by(one, each) for one in MUTATIONS)]


def is_held_by(mutation: promise_mutations.Mutation, text: str) -> bool:
    return f"`{mutation.test}`" in text or f"`{mutation.test.partition('::')[0]}`" in text


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.test.rpartition("::")[2])
def test_every_mutation_breaks_a_promise_and_fits_the_sources(mutation: promise_mutations.Mutation) -> None:
    path, _, name = mutation.test.partition("::")

    assert is_held_by(mutation, PROMISES)
    assert (HERE.find_test(mutation.test) or "").startswith(f"{path}::")
    assert (HERE.find_test(mutation.test) or "").endswith(f"::{name}")
    assert mutation.edits[0] == HERE.find_edit(mutation)


def test_a_mutation_is_killed_or_survives(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    source, test = repository / "src" / "limit.py", repository / "tests" / "test_limit.py"
    source.parent.mkdir(parents=True)
    test.parent.mkdir()
    source.write_text("LIMIT = 3\n")
    test.write_text(
        "from limit import LIMIT\n\n\ndef test_limit():\n    assert 3 == LIMIT\n\n\n"
        "def test_weak():\n    assert LIMIT\n\n\ndef test_broken():\n    assert 5 == LIMIT\n"
    )
    known = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "A limit."]):
        subprocess.run(["git", *known, *words], cwd=repository, check=True)
    table, renames = tmp_path / "mutations.toml", tmp_path / "renames.tsv"
    renames.touch()
    table.write_text(
        "".join(
            f'[[mutation]]\ntest = "tests/test_limit.py::{name}"\nbreaks = "The limit."\nfile = "src/limit.py"\n'
            f'old = "{old}"\nnew = "LIMIT = 4"\n'
            for name, old in (
                ("test_limit", "LIMIT = 3"), ("test_weak", "LIMIT = 3"), ("test_weak", "MAXIMUM"),
                ("test_broken", "LIMIT = 3"), ("test_new", "LIMIT = 3"),
            )
        )
    )  # fmt: skip
    command = [sys.executable, str(SCRIPT), "HEAD", "HEAD", "--mutations", "9", "--table", str(table)]
    command += ["--repository", str(repository), "--renames", str(renames)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert "5 mutations at HEAD: 1 FAILS ANYWAY, 1 NO TEXT, 1 SURVIVED, 1 killed, 1 newer." in done.stdout, done
    assert "assert 3 == 4" in done.stdout


@pytest.mark.soak
def test_every_mutation_makes_its_test_fail(record_property) -> None:
    command = [sys.executable, str(SCRIPT), "HEAD", "HEAD", "--mutations", str(len(MUTATIONS))]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    record_property("mutations", len(MUTATIONS))
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
