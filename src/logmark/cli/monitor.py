"""`logmark monitor`: samples a cluster, keeps its history, serves metrics and sends alerts."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from logmark.cli.clusters import Cluster, complete_group, complete_topic, on_cluster
from logmark.cli.options import OutputFormat
from logmark.cli.tables import count, json_line, say, write_line
from logmark.client.errors import ClientError
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.monitor.alert_file import AlertFile, read_alert_file
from logmark.offsets.monitor.alerts import EXPIRING, FALLING_OFF
from logmark.offsets.monitor.cluster_sampler import ClusterSampler, SampleScope
from logmark.offsets.monitor.metrics import FAMILIES, KAFKA_EXPORTER
from logmark.offsets.monitor.metrics_server import MetricsServer, parse_listen
from logmark.offsets.monitor.monitor import Monitor, MonitorSettings
from logmark.offsets.monitor.notifications import NotificationDispatcher, format_message
from logmark.offsets.suggestions import did_you_mean
from logmark.offsets.times import format_time, parse_duration

_INTERVAL_MIN_MS = 1000
_FLUSH_S = 30.0
FIRING, NOT_ASKED = 1, 4


@on_cluster
def monitor(
    cluster: Cluster,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="How often the cluster is sampled (10s, 1m).")
    ] = "10s",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where metrics are served; none for nowhere.")
    ] = "127.0.0.1:9308",
    families: Annotated[
        str,
        typer.Option(
            "--families", metavar="NAMES", help="Which metrics: those of these exporters, and our own, with commas."
        ),
    ] = "kafka_exporter,kafka_lag_exporter,logmark",
    alerts: Annotated[
        Path | None,
        typer.Option("--alerts", metavar="FILE", help="Alerts to watch for, a TOML file.", show_default=False),
    ] = None,
    check_alerts: Annotated[
        Path | None,
        typer.Option("--check-alerts", metavar="FILE", help="Only check a file of alerts.", show_default=False),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Take one sample and stop: 0 if no alert fires, 1 if one does, 4 without one."),
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Only these groups; wildcards too.", autocompletion=complete_group
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only these topics; wildcards too.", autocompletion=complete_topic
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history", metavar="FILE", help="Where samples are kept, if not in the cluster's own file.",
            show_default=False,
        ),
    ] = None,
    cluster_name: Annotated[
        str | None,
        typer.Option(
            "--cluster-name", metavar="NAME", help="The cluster in messages and labels, if not by context or id.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Alerts on standard output: lines, or JSON lines.")
    ] = OutputFormat.TABLE,
) -> None:  # fmt: skip
    """Watch a cluster until it is told to stop: store the history of lag, serve metrics, send alerts."""

    if check_alerts is not None:
        _check(check_alerts, read_alert_file(check_alerts))
        return
    interval_ms = _interval_ms(interval)
    wanted_families = _families(families)
    address = None if once else parse_listen(listen)
    file = read_alert_file(alerts) if alerts else None
    name = cluster_name or cluster.context or ""
    clock = SystemClock()
    talk = _Talk(output)
    lookout = ClusterSampler(
        lambda: replace(cluster, is_read_only=True).connect(timeout_s=max(8.0, min(interval_ms / 1000, 60.0))),
        wanted=_wanted(group, topic, file, name, every_partition=KAFKA_EXPORTER in wanted_families and not once),
        clock=clock,
        say=talk.say,
        history_path=history,
    )
    settings = MonitorSettings(
        interval_s=interval_ms / 1000,
        families=wanted_families,
        alerts=file,
        cluster_name=name,
        gap_ms_max=float("inf") if once else None,
    )
    post = NotificationDispatcher(file.notifiers if file else {}, say=talk.say, write=talk.write)
    watching = Monitor(lookout, post, settings=settings, clock=clock, say=talk.say)
    if once:
        _run_once(watching, post)
        return
    with _stopped_by_signals() as stop:
        _run(watching, address, stop, talk, cluster)


def _run_once(watching: Monitor, post: Any) -> None:

    try:
        watching.begin()
        is_sampled = watching.step()
        post.flush(_FLUSH_S)
    except ClientError as error:
        raise UserError(str(error), exit_code=NOT_ASKED) from None
    finally:
        watching.close()
    if not is_sampled:
        raise typer.Exit(NOT_ASKED)
    say(f"{watching.status[0].upper()}{watching.status[1:]}.")
    if watching.firing:
        raise typer.Exit(FIRING)


def _run(watching: Monitor, address: tuple[str, int] | None, stop: "_Stop", talk: "_Talk", cluster: Cluster) -> None:

    server = None
    try:
        with stop.interrupting():
            watching.begin()
        if address is not None:
            server = MetricsServer(*address, metrics=watching.metrics, health=watching.health)
            host = f"[{server.host}]" if ":" in server.host else server.host
            talk.say(f"Watching {cluster.bootstrap_servers}; metrics at http://{host}:{server.port}/metrics.")
        else:
            talk.say(f"Watching {cluster.bootstrap_servers}.")
        with talk.status() as show:
            watching.run(stop.event, around=stop.interrupting, after=lambda: show(watching.status))
    except _Stopped:
        pass
    finally:
        if server is not None:
            server.close()
        watching.close()
    talk.say("Stopped.")


class _Stopped(BaseException):
    """Somebody asked us to stop while we were asking the cluster."""


class _Stop:
    """Told to stop: at once while the cluster is being asked, else when the step is done."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._may_interrupt = False

    def ask(self, *_: object) -> None:
        self.event.set()
        if self._may_interrupt:
            self._may_interrupt = False
            raise _Stopped

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a signal interrupt what runs inside: the history stores a sample whole or not at all."""
        self._may_interrupt = True
        try:
            yield
        finally:
            self._may_interrupt = False


@contextmanager
def _stopped_by_signals() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Talk:
    """Messages on standard error, each with its time; on a terminal also a status line."""

    def __init__(self, output: OutputFormat) -> None:
        self._output = output
        self._console: Any = None
        self._lock = threading.Lock()

    def say(self, sentence: str) -> None:

        with self._lock:
            if self._console is not None:
                self._show(sentence)
            else:
                say(f"{format_time(SystemClock().now_ms())} {sentence}")

    def write(self, message: Mapping[str, Any]) -> None:
        """Print an alert on standard output."""

        is_json = self._output is OutputFormat.JSON
        line = json_line(message) if is_json else escape(format_message(message))
        with self._lock:
            if self._console is not None and sys.stdout.isatty():
                # One screen for both: the console keeps the line of status below.
                self._show(line)
            else:
                typer.echo(line)
                sys.stdout.flush()

    def _show(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def status(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows the status in a line that changes; without a terminal it shows nothing."""
        if not sys.stderr.isatty():
            yield lambda text: None
            return

        console, spinner = Console(stderr=True), Spinner("dots", Text("sampling"))
        with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False):
            self._console = console
            try:
                yield lambda text: spinner.update(text=Text(escape(text), no_wrap=True, overflow="ellipsis"))
            finally:
                self._console = None


def _check(path: Path, file: AlertFile) -> None:
    write_line(
        f"{path}: {count(len(file.rules), 'alert')} and {count(len(file.notifiers), 'notifier')}; nothing is wrong, "
        "and nothing was sent."
    )


def _interval_ms(text: str) -> int:

    found = parse_duration(text)
    if found < _INTERVAL_MIN_MS:
        raise UserError(f"An interval of {text} would only keep the brokers busy: write 1s or more.", exit_code=2)
    return found


def _families(text: str) -> Sequence[str]:

    names = [one.strip() for one in text.split(",") if one.strip()]
    for name in names:
        if name not in FAMILIES:
            raise UserError(
                f"There are no metrics called {name}.{did_you_mean(name, FAMILIES)} There are {', '.join(FAMILIES)}.",
                exit_code=2,
            )
    return names


def _wanted(
    groups: list[str] | None, topics: list[str] | None, file: AlertFile | None, name: str, *, every_partition: bool
) -> Any:

    kinds = {rule.when for rule in file.rules} if file else set()
    return SampleScope(
        groups=groups or None,
        topics=topics or None,
        every_partition=every_partition,
        falling_off=FALLING_OFF in kinds,
        expiring=EXPIRING in kinds,
        cluster_name=name,
    )
