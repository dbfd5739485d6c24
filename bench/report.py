"""What a bench says: rows of Logmark beside something else, as a table or as JSON."""

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

from rich.console import Console
from rich.table import Table

PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One work, measured on both sides in the same run; the ratio is Logmark divided by the other."""

    work: str
    logmark_as: str
    against: str
    unit: str
    logmark: float
    other: float
    kind: str
    is_higher_better: bool = True
    goal: float | None = None  # the least ratio, or the largest where lower is better

    @property
    def ratio(self) -> float:
        """Logmark divided by the other side; 0 when the other is too small to be measured."""
        return self.logmark / self.other if self.other else 0.0

    @property
    def verdict(self) -> str:
        """Who did better; within five percent nobody did."""
        if 0.95 <= self.ratio <= 1.05:
            return "even"
        return "better" if (self.ratio > 1) == self.is_higher_better else "worse"

    def shown(self, value: float) -> str:
        """One side's figure, as the table has it."""
        return f"{value:,.4g} {self.unit}" if value < 1e4 else f"{value:,.0f} {self.unit}"

    def as_json(self) -> dict[str, object]:
        """The row with its ratio under a name that says what was divided: `throughput_ratio`, `scan_ratio`, ..."""
        hidden = ("kind", "is_higher_better") if self.goal is not None else ("kind", "is_higher_better", "goal")
        values = {name: value for name, value in asdict(self).items() if name not in hidden}
        better = "higher" if self.is_higher_better else "lower"
        return values | {"better": better, f"{self.kind}_ratio": round(self.ratio, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A table of its own below the rows: one line for each work."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]

    def as_json(self) -> dict[str, object]:
        """The lines, each by its headings."""
        return {"title": self.title, "lines": [dict(zip(self.headings, line, strict=True)) for line in self.lines]}

    def markdown(self) -> list[str]:
        """The lines as a table."""
        table = ["| " + " | ".join(line) + " |" for line in (self.headings, *self.lines)]
        return ["", f"{self.title}:", "", table[0], "|" + "---|" * len(self.headings), *table[1:]]


def goals(rows: Iterable[Row]) -> Shares:
    """Return the rows that have a goal, each with its verdict."""
    lines = [
        (
            row.work,
            row.logmark_as,
            f"at {'least' if row.is_higher_better else 'most'} {row.goal:g} times {row.against}",
            f"{row.ratio:.2f}",
            "met" if (row.ratio >= row.goal if row.is_higher_better else row.ratio <= row.goal) else "MISSED",
        )
        for row in rows
        if row.goal is not None
    ]
    return Shares(title="Goals", headings=("work", "Logmark as", "goal", "ratio", "verdict"), lines=lines)


def middle(samples: Iterable[float]) -> float:
    """The median of the rounds, to four digits."""
    return float(f"{median(samples):.4g}")


def machine() -> dict[str, object]:
    """Where and when this was measured: ratios travel, absolute figures do not."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_gib, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def add_options(parser: argparse.ArgumentParser, *, rounds: int = 3) -> None:
    """The options that every bench has."""
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds that count (default {rounds})")
    parser.add_argument("--tiny", action="store_true", help="only see that everything runs")
    parser.add_argument("--record", action="store_true", help="write the table into docs/performance.md too")


def add_works(parser: argparse.ArgumentParser, works: Sequence[str]) -> None:
    """The option that chooses among a bench's works; without it all of them run."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := sorted(set(names) - set(works)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose among {', '.join(works)}")
        return names

    shown = ",".join(works)
    parser.add_argument("--works", type=read, default=works, metavar="WORK,...", help=f"works to run (default {shown})")


def show(
    rows: list[Row],
    *,
    about: Mapping[str, object],
    title: str,
    bench: str,
    options: argparse.Namespace,
    notes: Sequence[str] = (),
    shares: Sequence[Shares] = (),
) -> None:
    """Prints the rows and what belongs to them as the options ask; `--record` puts it into docs/performance.md too."""
    about = {**machine(), **about}
    if options.record:
        record(markdown(rows, about=about, title=title, notes=notes, shares=shares), bench)
    if options.output == "json":
        said: dict[str, object] = {"notes": list(notes)} if notes else {}
        said |= {"shares": [one.as_json() for one in shares]} if shares else {}
        print(json.dumps({**about, **ratios(rows), **said, "rows": [row.as_json() for row in rows]}, indent=2))
    else:
        _table(rows, about=about, title=title)
        for note in notes:
            print(f"- {note}")
        for one in shares:
            print("\n".join(one.markdown()))


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """The geometric mean of the ratios of each kind of work, under the name that its rows have it by."""
    kinds: dict[str, list[float]] = {}
    for row in rows:
        kinds.setdefault(f"{row.kind}_ratio", []).append(row.ratio)
    return {name: round(geometric_mean(found), 3) for name, found in kinds.items() if all(found)}


def record(text: str, bench: str) -> None:
    """Replaces what docs/performance.md has between the marks of this bench."""
    before, begin, rest = PERFORMANCE.read_text().partition(f"<!-- bench:{bench}:begin -->\n")
    _, end, after = rest.partition(f"<!-- bench:{bench}:end -->")
    if not (begin and end):
        raise RuntimeError(f"{PERFORMANCE} has lost the marks of the {bench} bench")
    PERFORMANCE.write_text(before + begin + text + end + after)


def _cells(row: Row) -> list[str]:
    return [
        row.work,
        row.logmark_as,
        row.against,
        row.shown(row.logmark),
        row.shown(row.other),
        f"{row.ratio:.2f} ({row.verdict})",
    ]


HEADINGS = ("work", "Logmark as", "against", "Logmark", "the other", "ratio")


def markdown(
    rows: list[Row],
    *,
    about: Mapping[str, object],
    title: str,
    notes: Sequence[str] = (),
    shares: Sequence[Shares] = (),
) -> str:
    """The rows as a table in Markdown, with where and how they were measured."""
    lines = [f"### {title}", "", ", ".join(f"{name}: {value}" for name, value in about.items()), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    lines += [line for one in shares for line in one.markdown()]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row], *, about: Mapping[str, object], title: str) -> None:
    table = Table(title=title, caption=", ".join(f"{name}: {value}" for name, value in about.items()))
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in HEADINGS[3:] else "left")
    for row in rows:
        table.add_row(*_cells(row), style="yellow" if row.verdict == "worse" else None)
    console = Console()
    # Piped output has no width of its own, and a table folded at 80 columns cannot be read.
    Console(width=max(console.width, 170) if not console.is_terminal else None).print(table)
