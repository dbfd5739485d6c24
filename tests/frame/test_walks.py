"""The walks of docs/design.md name functions that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DESIGN = (REPOSITORY / "docs" / "design.md").read_text()
WALKS = re.findall(r"^### (.+?)\n(.+?)(?=^##)", DESIGN.partition("## Six walks")[2], re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)` `([\w.]+)`: ", re.MULTILINE)


def test_there_are_six_walks() -> None:
    assert 6 == len(WALKS)


@pytest.mark.parametrize(("title", "walk"), WALKS[:6], ids=[title for title, _ in WALKS[:6]])
def test_each_step_of_a_walk_names_a_function_of_its_file(title: str, walk: str) -> None:
    steps = STEP.findall(walk)
    assert [str(number) for number in range(1, len(steps) + 1)] == [number for number, _, _ in steps]
    assert len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) == len(steps), f"a step of “{title}” names no function"
    assert 5 <= len(steps) <= 12

    for _, path, function in steps:
        file = REPOSITORY / "src" / "logmark" / path
        assert file.is_file(), f"{path} does not exist"
        assert function in set(_functions(ast.parse(file.read_text()))), f"{path} has no function {function}"


def _functions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the functions of a module, and those of its classes after the name of the class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
