"""The display of a run: a board in a terminal, bars over what is left to read, or plain lines."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from logmark.cli.lag_tables import format_rate
from logmark.cli.pipelines.status import format_batch
from logmark.cli.tables import count, say
from logmark.client.client import Client
from logmark.errors import LogmarkError
from logmark.escaping import escape
from logmark.names import TopicPartition
from logmark.spark.pipelines.status import RunStatus
from logmark.spark.pipelines.supervisor import Supervisor

# A function that shows the pipelines again and again, and one that writes a message.
Display = tuple[Callable[[Sequence[Supervisor]], None], Callable[[str], None]]

_MEASURE_EVERY_S = 2.0
_WRITE_EVERY_S = 10.0


class GroupLags:
    """The lag of the groups of a run, measured every few seconds."""
    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients
        self._measured_s = 0.0
        self.records: dict[str, int | None] = {}

    def measure(self, supervisors: Sequence[Supervisor], every_s: float = _MEASURE_EVERY_S) -> bool:
        """Measure the lags if it is time; return whether it was."""
        if time.monotonic() - self._measured_s < every_s:
            return False
        for supervisor in supervisors:
            self.records[supervisor.name] = self._read_lag(supervisor)
        self._measured_s = time.monotonic()
        return True

    def _read_lag(self, supervisor: Supervisor) -> int | None:
        client = self._clients.get(supervisor.job.brokers.bootstrap_servers)
        with contextlib.suppress(LogmarkError):
            if client is not None:
                committed = client.committed(supervisor.job.pipeline.group)
                ends = client.latest(committed) if committed else {}
                lag = sum(max(ends[partition] - one.offset, 0) for partition, one in committed.items())
                return lag if committed else None
        return None


@contextlib.contextmanager
def show_board(clients: Mapping[str, Client]) -> Iterator[Display]:
    """Yield a display: a table that is drawn over itself, with messages above it."""
    lags = GroupLags(clients)
    with Live(console=Console(stderr=True), auto_refresh=False) as live:

        def watch(supervisors: Sequence[Supervisor]) -> None:
            lags.measure(supervisors)
            live.update(make_board([one.status for one in supervisors], supervisors, lags.records), refresh=True)

        def write(message: str) -> None:
            line = f"{time.strftime('%H:%M:%S')} {escape(message)}"
            live.console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield watch, write


def make_board(
    statuses: Sequence[RunStatus], supervisors: Sequence[Supervisor], lags: Mapping[str, int | None]
) -> RenderableType:
    """Return the table of the pipelines as they are now."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, is_number in (
        ("PIPELINE", False), ("GROUP", False), ("VERSION", True), ("STATE", False), ("LAG", True), ("RATE", True),
        ("LAST BATCH", False), ("RESTARTS", True),
    ):  # fmt: skip
        table.add_column(title, justify="right" if is_number else "left")
    for supervisor, status in zip(supervisors, statuses, strict=True):
        lag = lags.get(supervisor.name)
        cells = (
            supervisor.name, supervisor.job.pipeline.group, str(status.version), status.state,
            "-" if lag is None else f"{lag:,}", format_rate(status.rate), format_batch(status, status.at_ms) or "-",
            str(status.restarts),
        )  # fmt: skip
        table.add_row(*(Text(escape(cell)) for cell in cells))
    return table


@contextlib.contextmanager
def show_lines(clients: Mapping[str, Client]) -> Iterator[Display]:
    """Yield a display of plain lines: messages as they come, and the progress every ten seconds."""
    lags = GroupLags(clients)
    written: dict[str, int] = {}

    def watch(supervisors: Sequence[Supervisor]) -> None:
        if not lags.measure(supervisors, _WRITE_EVERY_S):
            return
        for supervisor in supervisors:
            status = supervisor.status
            if status.batches and written.get(supervisor.name) != status.batches:
                written[supervisor.name] = status.batches
                lag = lags.records.get(supervisor.name)
                behind = "" if lag is None else f", {count(lag, 'record')} behind"
                batch = format_batch(status, status.at_ms)
                say(f"{supervisor.name}: batch {batch}, {format_rate(status.rate)}{behind}")

    yield watch, say


@contextlib.contextmanager
def show_bars(clients: Mapping[str, Client]) -> Iterator[Display]:
    """Yield a display: a bar for each pipeline over what it had to read when the run started."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        runs: dict[str, RemainingBar] = {}
        measured_s = 0.0

        def watch(supervisors: Sequence[Supervisor]) -> None:
            nonlocal measured_s
            is_over = all(supervisor.status.state.is_over for supervisor in supervisors)
            if time.monotonic() - measured_s < _MEASURE_EVERY_S / 4 and not is_over:
                return
            for supervisor in supervisors:
                if supervisor.name not in runs:
                    runs[supervisor.name] = RemainingBar(progress, progress.add_task(supervisor.name, total=None))
                client = clients.get(supervisor.job.brokers.bootstrap_servers)
                runs[supervisor.name].update(client, supervisor.job.pipeline.group)
            measured_s = time.monotonic()

        def write(message: str) -> None:
            progress.console.print(escape(message), highlight=False, markup=False, soft_wrap=True)

        yield watch, write if sys.stderr.isatty() else say


class RemainingBar:
    """One bar: the offsets between the group's first committed offsets and the log ends of that time."""
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._first: Mapping[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] = {}

    def update(self, client: Client | None, group: str) -> None:
        """Set the bar to the committed offsets of the group."""
        if client is None:
            return
        with contextlib.suppress(LogmarkError):
            offsets = {partition: one.offset for partition, one in client.committed(group).items()}
            if not self._first and offsets:
                self._first, self._ends = offsets, client.latest(offsets)
            done, total = count_read(self._first, self._ends, offsets)
            if self._first:
                self._progress.update(self._task, completed=done, total=total)


def count_read(
    first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]
) -> tuple[int, int]:
    """Return how many offsets between `first` and `ends` are read, and how many there are."""
    total = {partition: max(ends[partition] - offset, 0) for partition, offset in first.items()}
    done = sum(min(max(now.get(one, offset) - offset, 0), total[one]) for one, offset in first.items())
    return done, sum(total.values())
