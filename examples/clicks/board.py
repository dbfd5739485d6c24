"""The board: where every group stands in the log, live in a terminal, and in plain lines without one."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.clicks.lags import Lags
from logmark.client import Client
from logmark.client.errors import ClientError
from logmark.names import TopicPartition
from logmark.offsets.partitions import compute_lag

LOOK_EVERY_S = 0.4
PLAIN_LINE_EVERY_S = 3.0
PACE_OVER_S = 4.0
BAR_WIDTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The log and the groups at one moment; a group that has committed nothing has no committed offset yet."""

    at_s: float
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    committed: Mapping[str, Mapping[int, int]]

    @property
    def end(self) -> int:
        return sum(self.ends.values())

    def position(self, group: str) -> int:
        """Records that the group has behind it, in all partitions together."""
        return sum(self.committed.get(group, {}).values())

    def lag(self, group: str) -> int:
        """Records that the group has before it; all of them while it has committed nothing."""
        stands = self.committed.get(group, {})
        offsets = ((stands.get(number, self.starts[number]), number) for number in self.ends)
        return sum(compute_lag(at, start=self.starts[number], end=self.ends[number]).records for at, number in offsets)


@dataclass(slots=True)
class _Work:
    what: str
    done: int
    total: int


@dataclass(slots=True)
class _Drawing:
    """What is on the screen besides the story."""

    view: View | None = None
    groups: list[str] = field(default_factory=list)
    work: _Work | None = None


class Board:
    """Looks at the groups all the time, shows them, and lets the story wait for what they do."""

    def __init__(
        self, console: Console, bootstrap_servers: str, topic: str, partitions: int, *, is_live: bool,
        lags: Lags | None = None,
    ) -> None:  # fmt: skip
        self._console = console
        self._servers = bootstrap_servers
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._topic = topic
        self._lags = lags
        self._drawing = _Drawing()
        self._past: deque[View] = deque()
        self._looked = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="board", daemon=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_live else None
        self._plain_due_s = 0.0
        self._plain_shown = ""
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()

    # -- the story's side ----------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        """A line of the story, with the seconds since the beginning."""
        stamp = f"{time.monotonic() - self._began_s:6.1f} s  "
        for line in text.splitlines() or [""]:
            self._console.print(Text(stamp, "dim") + Text(line, style), soft_wrap=True)
            stamp = " " * len(stamp)

    def act(self, title: str) -> None:
        """A heading of the story."""
        self._console.print()
        self._console.print(Text(title, "bold"), soft_wrap=True)

    def follow(self, group: str) -> None:
        """The group has a line on the board from now on."""
        if group not in self._drawing.groups:
            self._drawing.groups.append(group)

    def unfollow(self, group: str) -> None:
        """The group is gone from the board."""
        self._drawing.groups.remove(group)

    def progress(self, what: str, done: int, total: int) -> None:
        """Work that the board shows until it is done."""
        before = self._drawing.work
        self._drawing.work = _Work(what, done, total) if done < total else None
        tenth_before = 10 * before.done // total if before is not None else 0
        if self._live is None and done < total and 10 * done // total > tenth_before:
            self.say(f"{what}: {done:,} of {total:,}")

    def wait(self, reached: Callable[[View], bool], *, alive: Callable[[], None], what: str, timeout_s: float) -> View:
        """The first view from now on in which something is so; raises an error if it never comes."""
        asked_s = time.monotonic()
        while time.monotonic() - asked_s < timeout_s:
            alive()
            with self._looked:
                self._looked.wait(1.0)
                view = self._drawing.view
            # A look that began before the question may show what was true before.
            if view is not None and view.at_s > asked_s and reached(view):
                return view
        raise TimeoutError(f"Waited {timeout_s:.0f} s in vain: {what}.")

    # -- the watching side ---------------------------------------------------------------------

    def _watch(self) -> None:
        with Client(self._servers) as client:
            while not self._stopping.is_set():
                try:
                    self._show(self._look(client))
                    if self._lags is not None:
                        self._lags.look(client)
                except ClientError:
                    continue  # the next look may work; the story's waits end the demo if none does
                finally:
                    self._stopping.wait(LOOK_EVERY_S)

    def _look(self, client: Client) -> View:
        at_s = time.monotonic()
        committed = client.committed_of(list(self._drawing.groups)) if self._drawing.groups else {}
        return View(
            at_s=at_s,
            starts={partition.partition: offset for partition, offset in client.earliest(self._partitions).items()},
            ends={partition.partition: offset for partition, offset in client.latest(self._partitions).items()},
            committed={
                group: {partition.partition: commit.offset for partition, commit in commits.items()}
                for group, commits in committed.items()
            },
        )

    def _show(self, view: View) -> None:
        self._past.append(view)
        while view.at_s - self._past[0].at_s > PACE_OVER_S:
            self._past.popleft()
        if self._live is not None:
            self._live.update(self._table(view), refresh=True)
        else:
            self._plain(view)
        with self._looked:
            self._drawing.view = view
            self._looked.notify_all()

    def _plain(self, view: View) -> None:
        parts = [f"{group} {_stands(view, group)} lag {view.lag(group):,}" for group in self._drawing.groups]
        line = f"log end {view.end:,} | " + " | ".join(parts)
        if parts and line != self._plain_shown and view.at_s >= self._plain_due_s:
            self._plain_shown, self._plain_due_s = line, view.at_s + PLAIN_LINE_EVERY_S
            self.say(line)

    def _table(self, view: View) -> RenderableType:
        # 80 columns are enough for it.
        title = f"Topic {self._topic}: committed offsets"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("group", style="bold", min_width=8)
        for number in view.ends:
            table.add_column(f"P{number}", justify="right", min_width=7)
        table.add_column("lag", justify="right", min_width=7)
        table.add_column("read", width=BAR_WIDTH)
        table.add_column("records/s", justify="right")
        table.add_row("log end", *(f"{end:,}" for end in view.ends.values()), "", "", "", style="dim", end_section=True)
        for group in list(self._drawing.groups):
            table.add_row(*self._row(view, group))
        work = self._drawing.work
        if work is None:
            return table
        bar = Table.grid(padding=(0, 1))
        bar.add_row(f"{work.what}:", ProgressBar(total=work.total, completed=work.done, width=30), f"{work.done:,}")
        return Group(table, bar)

    def _row(self, view: View, group: str) -> Sequence[RenderableType]:
        stands = view.committed.get(group, {})
        lag = view.lag(group)
        offsets = [f"{stands[number]:,}" if number in stands else "-" for number in view.ends]
        bar = ProgressBar(total=max(view.end, 1), completed=view.end - lag, width=BAR_WIDTH, finished_style="green")
        shown = Text("-") if not stands else Text(f"{lag:,}", "green" if lag == 0 else "yellow")
        return group, *offsets, shown, bar, self._pace(view, group)

    def _pace(self, view: View, group: str) -> str:
        before = self._past[0]
        moved = view.position(group) - before.position(group)
        seconds = view.at_s - before.at_s
        if moved < 0:
            return "moved"
        return f"{moved / seconds:,.0f}" if moved and seconds else ""


def _stands(view: View, group: str) -> str:
    stands = view.committed.get(group, {})
    return "/".join(f"{stands[number]:,}" for number in sorted(stands)) or "-"
