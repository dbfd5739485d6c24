"""The live board of `logmark lag --watch`: a line for each group, with what its lag has done lately."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from logmark.cli.lag_tables import format_age, format_rate, print_lag_report
from logmark.cli.tables import count, json_line, say
from logmark.errors import LogmarkError
from logmark.escaping import escape
from logmark.offsets.lag.history import History
from logmark.offsets.lag.report import GroupLag, LagReport
from logmark.offsets.lag.sample import Sample
from logmark.offsets.lag.verdicts import Verdict
from logmark.offsets.lag.views import LagLevel, view_lag

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 24
_COLOURS = {
    Verdict.OK: "green", Verdict.SLOW: "yellow", Verdict.STALLED: "red", Verdict.STOPPED: "red",
    Verdict.REWOUND: "magenta", Verdict.UNKNOWN: "dim",
}  # fmt: skip


def sparkline(values: Sequence[int], width: int = _SPARK_WIDTH) -> str:
    """Return the last values as blocks: the highest is full, zero is the lowest block."""
    shown = values[-width:]
    top = max(shown, default=0)
    if top == 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // top)] for value in shown)


class _Watcher(ABC):
    """Looks again and again; a cluster that does not answer is said, and looked at again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    @abstractmethod
    def show(self, standing: LagReport, history: History) -> None:
        """Show a new report."""

    def trouble(self, sentence: str) -> None:
        """Print why there is no sample this time."""
        say(sentence)

    def run(self, first: Sample, sample: Callable[[], Sample], look: Callable[[Sample], None], pause_s: float) -> None:
        """Sample and show until Ctrl-C, which is no failure here."""
        try:
            due = time.monotonic()
            look(first)
            while True:
                now = time.monotonic()
                due = max(due + pause_s, now)
                time.sleep(due - now)
                try:
                    look(sample())
                except LogmarkError as error:
                    self.trouble(str(error))
        except KeyboardInterrupt:
            return


class JsonLines(_Watcher):
    """One line of JSON for each look, for programs."""

    def __init__(self, by: LagLevel, only_with_lag: bool) -> None:
        self._by = by
        self._only_with_lag = only_with_lag

    def show(self, standing: LagReport, history: History) -> None:
        found = [asdict(one) for one in view_lag(standing, self._by, only_with_lag=self._only_with_lag)]
        line = {"at_ms": standing.sample.at_ms, "requests": standing.sample.requests, "rows": found}
        typer.echo(json_line(line))
        sys.stdout.flush()


class Board(_Watcher):
    """A table that is drawn over itself; where there is no terminal, one table after the other."""

    def __init__(self, only_with_lag: bool, pause_s: float) -> None:
        self._only_with_lag = only_with_lag
        self._pause_s = pause_s
        self._live: Live | None = None
        self._last: RenderableType = ""

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            # Drawn only when something is new, and in place: a board that flickers cannot be read.
            self._live = Live(console=Console(), auto_refresh=False, screen=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live.console.print(self._last)

    def show(self, standing: LagReport, history: History) -> None:
        if self._live is None:
            print_lag_report(standing, LagLevel.GROUP, only_with_lag=self._only_with_lag)
            return
        height = self._live.console.size.height
        groups = [one.group.group for one in standing.groups]
        sparks = {
            group: sparkline([lag for _, lag in points])
            for group, points in history.totals(groups, since_ms=_since(history)).items()
        }
        rows_max = max(height - 5, 1)
        self._last = board(
            standing, sparks, rows_max=rows_max, only_with_lag=self._only_with_lag, pause_s=self._pause_s
        )
        self._live.update(self._last, refresh=True)

    def trouble(self, sentence: str) -> None:
        if self._live is None:
            say(sentence)
            return

        # What was seen last stays, under the sentence that says it is old.
        told = Text(f"{time.strftime('%H:%M:%S')} {escape(sentence)}", style="red")
        self._live.update(Group(told, self._last), refresh=True)


def _since(history: History) -> int:
    times = history.times()
    return times[-_SPARK_WIDTH:][0] if times else 0


def board(
    standing: LagReport, sparks: dict[str, str], *, rows_max: int, only_with_lag: bool = False, pause_s: float = 0
) -> RenderableType:
    """Return the board of a report: the worst groups first, as many as fit."""

    sample = standing.sample
    groups = [one for one in standing.groups if one.total.partitions and (not only_with_lag or one.total.records)]
    groups.sort(key=_worst_first)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, is_number in (
        ("GROUP", False), ("STATE", False), ("MEMBERS", True), ("LAG", True), ("LATELY", False), ("BEHIND", False),
        ("IN", True), ("OUT", True), ("CATCH UP", False), ("VERDICT", False),
    ):  # fmt: skip
        table.add_column(title, justify="right" if is_number else "left", no_wrap=title in ("LATELY", "LAG"))
    for one in groups[:rows_max]:
        table.add_row(*(cell if isinstance(cell, Text) else Text(escape(cell)) for cell in _cells(one, sparks)))
    at = time.strftime("%H:%M:%S", time.localtime(sample.at_ms / 1000))
    head = (
        f"{at}  {count(standing.total.records, 'record')} behind in {count(len(standing.groups), 'group')}   "
        f"{count(sample.requests, 'request')} in {sample.took_ms} ms, every {pause_s:g} s   Ctrl-C ends"
    )
    parts: list[RenderableType] = [Text(head, style="dim"), table]
    if len(groups) > rows_max:
        parts.append(Text(f"and {len(groups) - rows_max} more", style="dim"))
    parts += [Text(escape(sentence), style="yellow") for sentence in sample.notes]
    return Group(*parts)


def _worst_first(one: GroupLag) -> tuple[int, int, str]:
    severity = one.finding.verdict.severity if one.finding else 0
    return -severity, -one.total.records, one.group.group


def _cells(one: GroupLag, sparks: dict[str, str]) -> Iterator[Any]:

    trend, finding = one.trend, one.finding
    yield one.group.group
    yield one.group.state or "-"
    yield str(len(one.group.members))
    yield f"{one.total.records:,}"
    yield sparks.get(one.group.group, "")
    yield format_age(one.age) or "-"
    yield format_rate(trend.in_per_s if trend else None)
    yield format_rate(trend.out_per_s if trend else None)
    yield trend.catch_up if trend and trend.catch_up_ms is not None else "-"
    if finding is None:
        yield "-"
        return
    said = str(finding.verdict)
    if finding.verdict.is_bad or finding.verdict is Verdict.UNKNOWN:
        said += f"  {finding.evidence}"
    if finding.note:
        said += f"  ({finding.note})"
    yield Text(escape(said), style=_COLOURS[finding.verdict])
