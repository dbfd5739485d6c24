"""Writes tables for people and JSON for programs; data goes to standard output, talk to standard error.

Everything that a command writes for people passes through here, where control characters become visible escapes.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import typer

from logmark.escaping import escape, escape_json

# What is not a terminal has no width; a table there is never folded.
_NO_TERMINAL_WIDTH = 10_000


class Column(NamedTuple):
    """A table's column; numbers are aligned to the right."""

    title: str
    is_number: bool = False


def print_json(value: object) -> None:
    """Print one JSON document."""
    typer.echo(escape_json(json.dumps(value, indent=2, ensure_ascii=False)))


def json_line(value: object) -> str:
    """Return a JSON document on one line."""
    return escape_json(json.dumps(value, ensure_ascii=False))


def write_line(text: str) -> None:
    """Write one line of data for people."""
    typer.echo(escape(text))


def confirm(question: str) -> bool:
    """Ask a person, on standard error."""
    return typer.confirm(escape(question), err=True)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; a missing value is a dash, and a last column without any text is left out."""
    # Not at the top: `logmark serve` and JSON output need no tables.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [["-" if cell is None else escape(str(cell)) for cell in row] for row in rows]
    if cells and not any(row[-1] for row in cells):
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=not sys.stdout.isatty())
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def say(sentence: str) -> None:
    """Tells the person something that is not data, on one line."""
    typer.echo(escape(sentence), err=True)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 record, 2 records."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun and verb: 1 record was, 2 records were."""
    return f"{count(number, noun)} {'was' if number == 1 else 'were'}"


def offset_cells(committed: int | None) -> tuple[object, object]:
    """Return the cells COMMITTED (the next offset to read) and LAST PROCESSED; what is not there is said in words."""
    if committed is None:
        return "nothing committed", None
    return committed, committed - 1 if committed else "nothing"
