"""What a run shows: a board in a terminal, bars over what is left to read, or plain lines."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from logmark.cli.lagtables import rate_text
from logmark.cli.tables import count, say
from logmark.errors import LogmarkError
from logmark.escaping import escape

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from logmark.client.client import Client
    from logmark.names import TopicPartition
    from logmark.spark.pipelines.status import Status
    from logmark.spark.pipelines.supervisor import Worker

    # What looks at a run again and again, and what is told of what happens.
    Watching = tuple[Callable[[Sequence[Worker]], None], Callable[[str], None]]

_LOOK_EVERY_S = 2.0
_TELL_EVERY_S = 10.0


class Lags:
    """How far the groups of a run are behind, asked for every few seconds."""

    def __init__(self, clients: "Mapping[str, Client]") -> None:
        self._clients = clients
        self._looked_s = 0.0
        self.records: dict[str, int | None] = {}

    def look(self, workers: "Sequence[Worker]", every_s: float = _LOOK_EVERY_S) -> bool:
        """Asks again if it is time; True if it was."""
        if time.monotonic() - self._looked_s < every_s:
            return False
        for worker in workers:
            self.records[worker.name] = self._lag(worker)
        self._looked_s = time.monotonic()
        return True

    def _lag(self, worker: "Worker") -> int | None:
        client = self._clients.get(worker.job.brokers.bootstrap_servers)
        with contextlib.suppress(LogmarkError):
            if client is not None:
                committed = client.committed(worker.job.pipeline.group)
                ends = client.latest(committed) if committed else {}
                return sum(max(ends[place] - one.offset, 0) for place, one in committed.items()) if committed else None
        return None


def batch_text(status: "Status", now_ms: int) -> str | None:
    """The last batch, for people."""
    from logmark.offsets.times import format_duration

    if status.batch is None:
        return None
    done = status.batch
    ago = format_duration(max(now_ms - done.at_ms, 0))
    return f"{done.number}: {count(done.records, 'record')} in {done.duration_ms / 1000:.1f} s, {ago} ago"


@contextlib.contextmanager
def board(clients: "Mapping[str, Client]") -> "Iterator[Watching]":
    """What watches a run and what tells of it: a table that is drawn over itself, with the last sentences under it."""
    from rich.console import Console
    from rich.live import Live

    lags = Lags(clients)
    with Live(console=Console(stderr=True), auto_refresh=False) as live:

        def watch(workers: "Sequence[Worker]") -> None:
            lags.look(workers)
            live.update(board_table([one.status for one in workers], workers, lags.records), refresh=True)

        def tell(sentence: str) -> None:
            line = f"{time.strftime('%H:%M:%S')} {escape(sentence)}"
            live.console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield watch, tell


def board_table(
    statuses: "Sequence[Status]", workers: "Sequence[Worker]", lags: Mapping[str, int | None]
) -> "RenderableType":
    """The pipelines as they are now."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, is_number in (
        ("PIPELINE", False), ("GROUP", False), ("VERSION", True), ("STATE", False), ("LAG", True), ("RATE", True),
        ("LAST BATCH", False), ("RESTARTS", True),
    ):  # fmt: skip
        table.add_column(title, justify="right" if is_number else "left")
    for worker, status in zip(workers, statuses, strict=True):
        lag = lags.get(worker.name)
        cells = (
            worker.name, worker.job.pipeline.group, str(status.version), status.state,
            "-" if lag is None else f"{lag:,}", rate_text(status.rate), batch_text(status, status.at_ms) or "-",
            str(status.restarts),
        )  # fmt: skip
        table.add_row(*(Text(escape(cell)) for cell in cells))
    return table


@contextlib.contextmanager
def lines(clients: "Mapping[str, Client]") -> "Iterator[Watching]":
    """The same as plain lines: what happens when it happens, and how far things are every ten seconds."""
    lags = Lags(clients)
    told: dict[str, int] = {}

    def watch(workers: "Sequence[Worker]") -> None:
        if not lags.look(workers, _TELL_EVERY_S):
            return
        for worker in workers:
            status = worker.status
            if status.batches and told.get(worker.name) != status.batches:
                told[worker.name] = status.batches
                lag = lags.records.get(worker.name)
                behind = "" if lag is None else f", {count(lag, 'record')} behind"
                say(f"{worker.name}: batch {batch_text(status, status.at_ms)}, {rate_text(status.rate)}{behind}")

    yield watch, say


@contextlib.contextmanager
def bars(clients: "Mapping[str, Client]") -> "Iterator[Watching]":
    """A bar for each pipeline over what it had to read when the run began."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        runs: dict[str, Remaining] = {}
        looked_s = 0.0

        def watch(workers: "Sequence[Worker]") -> None:
            nonlocal looked_s
            is_over = all(worker.status.state.is_over for worker in workers)
            if time.monotonic() - looked_s < _LOOK_EVERY_S / 4 and not is_over:
                return
            for worker in workers:
                if worker.name not in runs:
                    runs[worker.name] = Remaining(progress, progress.add_task(worker.name, total=None))
                client = clients.get(worker.job.brokers.bootstrap_servers)
                runs[worker.name].look(client, worker.job.pipeline.group)
            looked_s = time.monotonic()

        def tell(sentence: str) -> None:
            progress.console.print(escape(sentence), highlight=False, markup=False, soft_wrap=True)

        yield watch, tell if sys.stderr.isatty() else say


class Remaining:
    """One bar: the offsets between where the group was first seen and where the logs ended then."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress = progress
        self._task = task
        self._first: Mapping[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] = {}

    def look(self, client: "Client | None", group: str) -> None:
        """The bar stands where the group stands."""
        if client is None:
            return
        with contextlib.suppress(LogmarkError):
            offsets = {place: one.offset for place, one in client.committed(group).items()}
            if not self._first and offsets:
                self._first, self._ends = offsets, client.latest(offsets)
            done, total = how_far(self._first, self._ends, offsets)
            if self._first:
                self._progress.update(self._task, completed=done, total=total)


def how_far(
    first: "Mapping[TopicPartition, int]", ends: "Mapping[TopicPartition, int]", now: "Mapping[TopicPartition, int]"
) -> tuple[int, int]:
    """How many offsets of those between `first` and `ends` are read, and how many these are."""
    total = {place: max(ends[place] - offset, 0) for place, offset in first.items()}
    done = sum(min(max(now.get(place, offset) - offset, 0), total[place]) for place, offset in first.items())
    return done, sum(total.values())
