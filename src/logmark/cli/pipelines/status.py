"""`logmark pipelines list` and `status`: the pipelines that have a home, their state and their lag; without Spark."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.lag_tables import format_age, format_rate
from logmark.cli.options import Output, OutputFormat
from logmark.cli.pipelines.homes import HomeFolder, complete_pipeline, find_homes, home_root, recorded_cluster
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.errors import LogmarkError
from logmark.offsets.times import format_duration, format_time
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.status import RunStatus
from logmark.spark.pipelines.views import (
    PipelineLag,
    PipelineStatusView,
    PipelineView,
    measure_lag,
    view_pipeline,
    view_status,
)

_LIST = [
    Column("PIPELINE"), Column("GROUP"), Column("TOPICS"), Column("SINK"), Column("VERSION", True), Column("STATE"),
    Column("FILE"),
]  # fmt: skip


def list_pipelines(home: HomeFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List the pipelines that were ever run from here."""
    root = home_root(home)
    found = [view_pipeline(one) for one in find_homes(root, ())]
    if output is OutputFormat.JSON:
        print_json([asdict(one) for one in found])
    elif not found:
        say(f"No pipeline was ever run from {root}. `logmark pipelines run FILE` runs one.")
    else:
        print_table(
            _LIST,
            [(one.name, one.group, one.topics, one.sink, one.version, one.state, _format_file(one)) for one in found],
        )


def _format_file(one: PipelineView) -> str | None:
    """Return the file of a pipeline; one without a file was declared in a notebook."""
    return one.file if one.file is not None or one.group is None else "(notebook)"


@on_cluster
def status(
    cluster: Cluster,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Pipelines; none means all.",
            autocompletion=complete_pipeline,
            show_default=False,
        ),
    ] = None,
    home: HomeFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show group, lag, rate, last batch, restarts and last error of pipelines, whether they run or not."""
    root = home_root(home)
    found = [_view_status(one, cluster) for one in find_homes(root, names or ())]
    if output is OutputFormat.JSON:
        print_json([one.to_json() for one in found])
    elif not found:
        say(f"No pipeline was ever run from {root}. `logmark pipelines run FILE` runs one.")
    else:
        for one in found:
            _print(one)


def _view_status(home: Home, cluster: Cluster) -> PipelineStatusView:
    record = home.record()
    lag = PipelineLag()
    if record.group is not None:
        try:
            with recorded_cluster(cluster, record).connect() as client:
                lag = measure_lag(client, record.group, record.dead_letters)
        except LogmarkError as error:
            lag = PipelineLag(problem=str(error))
    return view_status(home, record, lag)


def format_batch(status: RunStatus, now_ms: int) -> str | None:
    """Return the last batch, for people."""
    if status.batch is None:
        return None
    done = status.batch
    ago = format_duration(max(now_ms - done.at_ms, 0))
    return f"{done.number}: {count(done.records, 'record')} in {done.duration_ms / 1000:.1f} s, {ago} ago"


def _print(view: PipelineStatusView) -> None:
    one, lag, last = view.pipeline, view.lag, view.last
    now_ms = time.time_ns() // 1_000_000
    behind = format_age(lag.age) if lag.age is not None else None
    building = f", version {one.building} is being built" if one.building is not None else ""
    process = f" in process {view.pid}" if view.pid is not None else ""
    rows: list[tuple[str, object]] = [
        ("state", f"{one.state}{process}"),
        ("version", f"{one.version}{building}"),
        ("group", one.group),
        ("topics", one.topics),
        ("file", _format_file(one)),
        ("sink", one.sink),
        ("lag", None if lag.records is None else f"{lag.records:,} records" + (f", {behind} behind" if behind else "")),
        ("rate", None if view.rate is None else format_rate(view.rate)),
        ("last batch", None if last is None else format_batch(last, now_ms)),
        ("restarts", None if last is None else last.restarts),
    ]
    if last is not None and last.dropped_rows:
        rows.append(("late rows", f"at least {last.dropped_rows:,} dropped by the watermark in the last run"))
    if lag.restored_at_ms is not None:
        at = format_time(lag.restored_at_ms)
        rows.append(("group moved", f"by somebody; the pipeline keeps state and restored its offsets ({at})"))
    if view.dead_letters_topic is not None:
        number = "unknown" if lag.dead_letters is None else f"{lag.dead_letters:,}"
        rows.append(("dead letters", f"{number} in {view.dead_letters_topic}"))
    if last is not None and last.error is not None:
        at = f" ({format_time(last.error_at_ms)})" if last.error_at_ms is not None else ""
        rows.append(("last error", f"{last.error}{at}"))
    if lag.problem is not None:
        rows.append(("problem", lag.problem))
    write_line(one.name)
    for title, value in rows:
        write_line(f"  {title:<13} {'-' if value is None else value}")
