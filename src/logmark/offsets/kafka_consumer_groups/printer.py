"""Where the tool prints: tables and errors on standard output, remarks and warnings on standard error."""

from collections.abc import Sequence
from datetime import datetime
from typing import TextIO

from logmark.escaping import escape

MISSING = "-"


class Printer:
    """Standard output and standard error, and whether an error was printed."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self.has_failed = False

    def write(self, text: str) -> None:
        """To standard output, without what could steer a terminal; newlines stay, so names come escaped."""
        self._out.write(_escape_lines(text))

    def write_file(self, text: str) -> None:
        """To standard output as it is: the content of a file, for programs."""
        self._out.write(text)

    def error(self, message: str) -> None:
        """Print an error on standard output, where Kafka's tool prints it."""
        self.has_failed = True
        self._out.write(_escape_lines(f"\nError: {message}\n"))

    def say(self, line: str) -> None:
        """Print a line on standard error, in order with standard output if both are the same stream."""
        self._out.flush()
        self._err.write(_escape_lines(line) + "\n")
        self._err.flush()

    def warn(self, message: str) -> None:
        """Print a line on standard error in the format of the tool's logger."""
        now = datetime.now()
        self.say(f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] WARN {message}")

    def flush(self) -> None:
        """Flush standard output."""
        self._out.flush()


def _escape_lines(text: str) -> str:
    return "\n".join("\t".join(escape(part) for part in line.split("\t")) for line in text.split("\n"))


def column_width(least: int, texts: Sequence[str]) -> int:
    """Return the width of a column."""
    return max([least, *(len(escape(text)) for text in texts)])


def format_row(cells: Sequence[object], widths: Sequence[int]) -> str:
    """Cells next to each other, each as wide as its column; a cell without a width is not padded."""
    texts = [escape(str(cell)) for cell in cells]
    padded = [f"{text:<{wide}}" for text, wide in zip(texts, widths, strict=False)]
    return " ".join([*padded, *texts[len(widths) :]])


def format_value(value: object) -> str:
    """Return a value as text, or the sign for a missing one."""
    return MISSING if value is None else str(value)
