"""Searches draw the same examples in every run of the fast tests, and new ones, from a seed that is told, in a soak."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.distribution import REPOSITORY

PROBE = """
import random
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.harness.searches import examples, seed

@settings(max_examples=examples(3, soak=6))
@given(st.integers())
def test_of_a_function(number):
    print("drawn", number)

class Machine(RuleBasedStateMachine):
    @rule(number=st.integers())
    def step(self, number):
        print("drawn", number)

TestOfAMachine = Machine.TestCase
TestOfAMachine.settings = settings(max_examples=examples(3, soak=6), stateful_step_count=5)

def test_of_its_own_search():
    print("drawn", random.Random(seed(7)).random())
"""
TESTS = ["test_of_a_function", "TestOfAMachine", "test_of_its_own_search"]
# What draws from outside of the seed, or says for one test how examples are drawn.
OWN_CHANCE = re.compile(
    r"derandomize|reproduce_failure|@seed\b|Random\(\)|SystemRandom|import secrets|random\.seed\(\)"
)


def drawn(tmp_path: Path, test: str, *options: str) -> list[str]:
    """Return what a test of the probe draws, under this repository's profiles."""
    (tmp_path / "conftest.py").write_text(
        "from tests.harness import searches\n"
        "searches.register_profiles()\n"
        "def pytest_configure(config):\n    searches.take_seed(config)\n"
    )
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", f"test_probe.py::{test}", *options],
        cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    return re.findall(r"drawn (.+)", ran.stdout)


def soaked(tmp_path: Path, test: str, seed: int) -> list[str]:
    return drawn(tmp_path, test, "--hypothesis-profile=soak", f"--hypothesis-seed={seed}")


@pytest.mark.parametrize("test", TESTS)
def test_the_fast_tests_draw_the_same_examples_in_every_run(tmp_path: Path, test: str) -> None:
    assert drawn(tmp_path, test) == drawn(tmp_path, test, "--hypothesis-seed=8")


@pytest.mark.parametrize("test", TESTS)
def test_a_soak_draws_more_examples_and_its_seed_draws_them_again(tmp_path: Path, test: str) -> None:
    first = soaked(tmp_path, test, 7001)

    assert first == soaked(tmp_path, test, 7001)
    assert first != soaked(tmp_path, test, 7002)
    if test != "test_of_its_own_search":
        assert len(first) > len(drawn(tmp_path, test)), "the soak has the larger budget"


def test_no_test_draws_its_examples_in_a_way_of_its_own() -> None:
    allowed = {"tests/harness/searches.py", "tests/harness/test_searches.py", "tests/harness/node.py"}
    found = [
        f"{file.relative_to(REPOSITORY)}: {hit[0]}"
        for file in sorted((REPOSITORY / "tests").rglob("*.py"))
        if str(file.relative_to(REPOSITORY)) not in allowed
        for hit in OWN_CHANCE.finditer(file.read_text())
    ]
    assert [] == found, "a failure that these find cannot be repeated; see tests/harness/searches.py"
