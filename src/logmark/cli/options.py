"""The options that many commands share, apart from those that say which cluster is meant."""

from enum import StrEnum
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """How a table is written."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="A table for people or JSON for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def example(*lines: str) -> str:
    """Return a command's example in the form that its help shows."""
    return "Example: " + "    ".join(lines)
