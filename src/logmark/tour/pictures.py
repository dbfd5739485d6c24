"""Draws a log with committed offsets and positions under it: cells for a short log, a scale for a long one."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from logmark.offsets.partitions import compute_lag

WIDTH = 84
CELLS_MAX = 12
SCALE = 50
_MARGIN = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A partition as the broker describes it, and the worker that the group has given it to, if any."""

    topic: str
    partition: int
    start: int
    end: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A group's committed offset in that partition; none is said, not drawn."""

    group: str
    offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a running consumer stands, which only the consumer knows."""

    reader: str
    offset: int


Mark = Committed | Position


def draw(log: Log, marks: Sequence[Mark]) -> list[str]:
    """Return the lines of the picture; every mark is under the record that is read next."""
    margin = max([_MARGIN, *(len(_name(mark)) + 2 for mark in marks)])
    ruler = _Cells(log) if log.end <= CELLS_MAX else _Scale(log)
    lines = ruler.lines(f"{log.topic}-{log.partition}", margin)
    if log.owner:
        lines[1] += f"   read by {log.owner}"
    return [line.rstrip() for line in (*lines, *(_mark(mark, log, ruler, margin) for mark in marks))]


class _Cells:
    """One cell for each offset; what is gone is shaded, and behind the last cell stands the next offset."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._width = len(str(log.end)) + 2

    def column(self, offset: int) -> int:
        """Where the number of a cell stands."""
        return offset * (self._width + 1) + 2

    def lines(self, name: str, margin: int) -> list[str]:
        """Return the box of cells, with its name on the left."""
        log, width = self._log, self._width
        line = "─" * width
        cells = "│".join(
            "░" * width if offset < log.start else f" {offset} ".center(width) for offset in range(log.end)
        )
        blank = " " * margin
        if not log.end:
            return [f"{blank}┌", f"{name:{margin}}│ 0", f"{blank}└"]
        return [
            f"{blank}┌{'┬'.join([line] * log.end)}┐",
            f"{name:{margin}}│{cells}│ {log.end}",
            f"{blank}└{'┴'.join([line] * log.end)}┘",
        ]


class _Scale:
    """A line from 0 to the end, for logs with more records than cells fit."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def column(self, offset: int) -> int:
        """Where an offset lies on the line."""
        return round(offset / self._log.end * SCALE)

    def lines(self, name: str, margin: int) -> list[str]:
        """Return the line with the offsets of its ends above it, and its name on the left."""
        log, gone = self._log, self.column(self._log.start)
        numbers = f"{log.start:<{SCALE - gone}}{log.end}"
        return [
            f"{' ' * (margin + gone)}{numbers}",
            f"{name:{margin}}{'░' * gone}├{'─' * (SCALE - gone - 1)}┤",
        ]


def _mark(mark: Mark, log: Log, ruler: _Cells | _Scale, margin: int) -> str:
    name, said = _name(mark), _said(mark, log)
    if mark.offset is None:
        return f"{name:{margin}}{said}"
    column = margin + ruler.column(mark.offset)
    sign = "▲" if isinstance(mark, Committed) else "△"
    right = f"{name:{column}}{sign} {said}"
    if len(right) > WIDTH and len(name) + 2 + len(said) < column:
        # Near the end of a long log the words find room only before their mark.
        return f"{name}{f'{said} {sign}':>{column + 1 - len(name)}}"
    return right


def _name(mark: Mark) -> str:
    return mark.group if isinstance(mark, Committed) else mark.reader


def _said(mark: Mark, log: Log) -> str:
    if isinstance(mark, Position):
        return f"position {mark.offset}"
    if mark.offset is None:
        return "nothing committed"
    behind = compute_lag(mark.offset, start=log.start, end=log.end)
    processed = f"last processed {mark.offset - 1}" if mark.offset else "nothing processed"
    lost = f", {behind.lost} lost" if behind.lost else ""
    return f"committed {mark.offset} ({processed}), lag {behind.records}{lost}"


_ASCII = str.maketrans("┌┬┐└┴┘├┤│─░▲△", "+++++++||-.^*")


def in_ascii(text: str) -> str:
    """Return the picture for a terminal that has only ASCII: ^ is a committed offset, * a position."""
    return text.translate(_ASCII)

def writable(text: str, encoding: str | None) -> str:
    """Return the text, with its pictures in ASCII if the encoding lacks their characters."""
    try:
        text.encode(encoding or sys.getdefaultencoding())
    except UnicodeEncodeError:
        return in_ascii(text)
    return text
