"""The source of what runs, so that what is shown and what runs cannot differ."""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from functools import lru_cache
from types import FrameType


def of_block(frame: FrameType) -> str:
    """Return the body of the one-line `with` statement that this frame is entering."""
    file = frame.f_code.co_filename
    block = _blocks(file)[frame.f_lineno]
    # From the line below the `with`, and not from its first statement, so that a comment above that is shown too.
    lines = linecache.getlines(file)[block.lineno : block.body[-1].end_lineno]
    return textwrap.dedent("".join(lines)).rstrip()


def of_function(function: Callable[..., object]) -> str:
    """Return the source of a whole function."""
    return textwrap.dedent(inspect.getsource(function)).rstrip()


@lru_cache
def _blocks(file: str) -> dict[int, ast.With]:
    tree = ast.parse("".join(linecache.getlines(file)))
    return {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.With)}
