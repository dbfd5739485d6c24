"""Where the tool prints: tables and errors on standard output, remarks and warnings on standard error."""

from collections.abc import Sequence
from datetime import datetime
from typing import TextIO

MISSING = "-"


class Printer:
    """Standard output and standard error, and whether an error was printed."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self.has_failed = False

    def write(self, text: str) -> None:
        """To standard output, as it is."""
        self._out.write(text)

    def error(self, message: str) -> None:
        """What went wrong, where Kafka's tool says it: on standard output."""
        self.has_failed = True
        self._out.write(f"\nError: {message}\n")

    def say(self, line: str) -> None:
        """A line on standard error; where both streams are one, in the order in which it was said."""
        self._out.flush()
        self._err.write(line + "\n")
        self._err.flush()

    def warn(self, message: str) -> None:
        """A line on standard error in the format of the tool's logger."""
        now = datetime.now()
        self.say(f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] WARN {message}")

    def flush(self) -> None:
        """What was printed is seen."""
        self._out.flush()


def width(least: int, texts: Sequence[str]) -> int:
    """The width of a column."""
    return max([least, *(len(text) for text in texts)])


def row(cells: Sequence[object], widths: Sequence[int]) -> str:
    """Cells next to each other, each as wide as its column; a cell without a width is not padded."""
    padded = [f"{cell!s:<{wide}}" for cell, wide in zip(cells, widths, strict=False)]
    return " ".join([*padded, *(str(cell) for cell in cells[len(widths) :])])


def shown(value: object) -> str:
    """A value, or the sign for a missing one."""
    return MISSING if value is None else str(value)
