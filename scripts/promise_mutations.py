"""Break the code on purpose, and see that the test of the broken promise fails.

`promise_mutations.toml` has the mutations. Each names a test of docs/promises.md, a file, a text in it that occurs
once, and what takes its place. `before` has file and text as they were in an older commit, where they had other names;
the test is found there by `promise_renames.tsv`. Every commit gets a temporary worktree. The tests must pass there
first; then each mutation is made alone, its test must fail, and the file is put back. A mutation that survives says
that the mutation is wrong or the test too weak. One that survives in the older commit only is no loss: the test has
become stronger since. So the exit code goes by the newest commit alone.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
MUTATIONS = SCRIPTS / "promise_mutations.toml"
SECONDS_PER_TEST = 120
SECONDS_PER_RUN = 1800
# The test has failed; the commit is older than the test, so that nothing was promised there.
KILLED, NEWER = "killed", "newer"
_ERROR = "error: "


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A way to break a promise: the test that must fail, what breaks, and the edits, newest names first."""

    test: str
    breaks: str
    edits: Sequence[Edit]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutation: `killed`, or why not, and what the test said."""

    mutation: Mutation
    verdict: str
    message: str = ""


def read_mutations(path: Path = MUTATIONS) -> list[Mutation]:
    """Return the table of mutations."""
    return [_mutation(row) for row in tomllib.loads(path.read_text())["mutation"]]


def _mutation(row: Mapping[str, Any]) -> Mutation:
    first = Edit(row["file"], row["old"], row["new"])
    before = row.get("before")
    edits = [first]
    if before is not None:
        old = before.get("old", first.old)
        edits.append(Edit(before.get("file", first.file), old, before.get("new", first.new)))
    return Mutation(row["test"], row["breaks"], edits)


def draw(mutations: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Return so many mutations, drawn with a seed, in the order of the table."""
    if count >= len(mutations):
        return list(mutations)
    chosen = set(random.Random(seed).sample(range(len(mutations)), count))  # noqa: S311 - nothing secret
    return [each for number, each in enumerate(mutations) if number in chosen]


class Commit:
    """A worktree of a commit in which tests run."""

    def __init__(self, folder: Path, python: str, old_names: Mapping[str, Sequence[str]]) -> None:
        self._folder = folder
        self._python = python
        self._old_names = old_names

    def find_test(self, test: str) -> str | None:
        """Return the id of a test in this commit, under its name or an older one; None if it has no such test.

        A test that has moved to another file is the only one with its name.
        """
        path, _, name = test.partition("::")
        known = [each for one in (test, name) for each in self._old_names.get(one, ())]
        names = list(dict.fromkeys(each.rpartition("::")[2] for each in (name, *known)))
        for file in (path, *self._old_names.get(path, ())):
            for each in names:
                if each in self._tests.get(file, {}):
                    return f"{file}::{self._tests[file][each]}"
        found = [f"{file}::{tests[each]}" for each in names for file, tests in self._tests.items() if each in tests]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _tests(self) -> dict[str, dict[str, str]]:
        """The tests of each file by their bare name, each with its name in pytest."""
        files = sorted((self._folder / "tests").rglob("*.py"))
        return {str(file.relative_to(self._folder)): _list_tests(ast.parse(file.read_text())) for file in files}

    def find_edit(self, mutation: Mutation) -> Edit | None:
        """Return the edit that fits this commit, with the file's name here; None if the text is not here."""
        for edit in mutation.edits:
            for name in (edit.file, *self._old_names.get(edit.file, ())):
                path = self._folder / name
                if path.is_file() and path.read_text().count(edit.old) == 1:
                    return replace(edit, file=name)
        return None

    def run(self, tests: Sequence[str]) -> dict[str, str]:
        """Run tests, and return the message of each that failed, by its name."""
        results = self._folder / "results.xml"
        results.unlink(missing_ok=True)
        command = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={SECONDS_PER_TEST}"]
        command += ["-m", "soak or not soak", f"--junitxml={results}", *tests]
        environment = os.environ | {"PYTHONPATH": str(self._folder / "src"), "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and tests
                command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=SECONDS_PER_RUN
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return dict.fromkeys(tests, "The run took too long.")
        if not results.exists():
            raise SystemExit(f"pytest did not run in {self._folder}:\n{done.stdout}\n{done.stderr}")
        return _read_failures(results)

    def prove(self, mutation: Mutation) -> Outcome:
        """Make a mutation, run its test, and undo the mutation."""
        edit = self.find_edit(mutation)
        test = self.find_test(mutation.test)
        if test is None:
            return Outcome(mutation, NEWER, "The commit has no such test.")
        if edit is None:
            return Outcome(mutation, "NO TEXT", "The text to be replaced does not occur once.")
        path = self._folder / edit.file
        before = path.read_text()
        path.write_text(before.replace(edit.old, edit.new))
        try:
            compile(path.read_text(), path, "exec")
            failures = self.run([test])
        finally:
            path.write_text(before)
        if not failures:
            return Outcome(mutation, "SURVIVED")
        message = next((each for each in failures.values() if not each.startswith(_ERROR)), None)
        # An error before or after the test says nothing of what the test claims.
        return Outcome(mutation, KILLED if message else "ONLY ERRORS", message or next(iter(failures.values())))


def _list_tests(module: ast.Module) -> dict[str, str]:
    tests = {}
    for node in module.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for each in members:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name.startswith("test_"):
                tests[each.name] = f"{prefix}{each.name}"
    return tests


def _read_failures(results: Path) -> dict[str, str]:
    """Return the message of each failed test by name; errors before and after a test have the prefix `error:`."""
    failures = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):  # noqa: S314 - pytest has just written it
        name = str(case.get("name"))
        for kind, prefix in (("error", _ERROR), ("failure", "")):
            for found in case.iter(kind):
                failures[name] = prefix + " ".join(str(found.get("message")).split())
    return failures


@contextmanager
def checked_out(repository: Path, commit: str, python: str, old_names: Mapping[str, Sequence[str]]) -> Iterator[Commit]:
    """Yield a temporary worktree of a commit, with its compiled modules."""
    with tempfile.TemporaryDirectory(prefix="logmark-mutations-") as temporary:
        folder = Path(temporary, "tree")
        _git(repository, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        try:
            _compile(repository, folder, python)
            yield Commit(folder, python, old_names)
        finally:
            _git(repository, "worktree", "remove", "--force", str(folder))


def _compile(repository: Path, folder: Path, python: str) -> None:
    """Copy the compiled modules of the repository if their sources are the same, else compile them."""
    compiled = sorted((repository / "src").rglob("*.so"))
    sources = {each.with_name(f"{each.name.partition('.')[0]}.py") for each in compiled}
    sources |= {repository / "setup.py", *(repository / "src").rglob("*.pxd")}
    if all(_is_same(source, folder / source.relative_to(repository)) for source in sources):
        for each in compiled:
            shutil.copy2(each, folder / each.relative_to(repository))
    elif (folder / "setup.py").exists():
        command = [python, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603 - our own setup.py
    # Python tells a changed file by its time and size, which a mutation may leave as they are: hashes are sure.
    command = [python, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603 - our own interpreter


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, check=True)  # noqa: S603, S607 - git of this machine


def prove_all(commit: Commit, mutations: Sequence[Mutation]) -> Iterator[Outcome]:
    """Yield what became of each mutation; a test that fails without one proves nothing."""
    tests = {each.test: found for each in mutations if (found := commit.find_test(each.test)) is not None}
    failures = commit.run(sorted(set(tests.values()))) if tests else {}
    failed = {name.partition("[")[0]: message for name, message in failures.items()}
    for mutation in mutations:
        name = tests.get(mutation.test, "").rpartition("::")[2]
        if name in failed:
            yield Outcome(mutation, "FAILS ANYWAY", failed[name])
        else:
            yield commit.prove(mutation)


def check(
    repository: Path,
    commits: Sequence[str],
    mutations: Sequence[Mutation],
    old_names: Mapping[str, Sequence[str]],
    *,
    python: str = sys.executable,
) -> int:
    """Prove mutations at each commit, the newest last, and print what became of them; return the exit code."""
    counts: dict[str, int] = {}
    for commit in dict.fromkeys(commits):
        counts = {}
        with checked_out(repository, commit, python, old_names) as tree:
            for outcome in prove_all(tree, mutations):
                counts[outcome.verdict] = counts.get(outcome.verdict, 0) + 1
                print(f"{commit}\t{outcome.verdict}\t{outcome.mutation.test}\t{outcome.mutation.breaks}")
                print(f"    {outcome.message[:300]}", flush=True)
        summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print(f"{len(mutations)} mutations at {commit}: {summary}.", flush=True)
    return 0 if counts.keys() <= {KILLED} else 1
