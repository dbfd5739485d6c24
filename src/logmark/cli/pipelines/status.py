"""`logmark pipelines list` and `status`: the pipelines that have a home, their state and their lag; without Spark."""

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.lag_tables import format_age, format_rate
from logmark.cli.options import Output, OutputFormat
from logmark.cli.pipelines.homes import HomeFolder, complete_pipeline, find_homes, home_root, recorded_cluster
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.errors import LogmarkError
from logmark.offsets.dead_letters.topic import count_dead_letters
from logmark.offsets.lag.ages import Age
from logmark.offsets.lag.report import build_lag_report
from logmark.offsets.lag.sample import take_sample
from logmark.offsets.lag.views import age_fields
from logmark.offsets.times import format_duration, format_time
from logmark.spark.pipelines.home import Home, PipelineRecord
from logmark.spark.pipelines.status import RunStatus, read_status

_LIST = [
    Column("PIPELINE"), Column("GROUP"), Column("TOPICS"), Column("SINK"), Column("VERSION", True), Column("STATE"),
    Column("FILE"),
]  # fmt: skip


def list_pipelines(home: HomeFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List the pipelines that were ever run from here."""
    root = home_root(home)
    found = [_read_home(one) for one in find_homes(root, ())]
    if output is OutputFormat.JSON:
        print_json(found)
    elif not found:
        say(f"No pipeline was ever run from {root}. `logmark pipelines run FILE` runs one.")
    else:
        print_table(
            _LIST,
            [
                (
                    one["name"], one["group"], one["topics"], one["sink"], one["version"], one["state"],
                    one["file"],
                )
                for one in found
            ],
        )  # fmt: skip


def _read_home(home: Home) -> dict[str, Any]:
    record = home.record()
    return _home_fields(home, record, read_status(home.status_file))


def _home_fields(home: Home, record: PipelineRecord, status: RunStatus | None) -> dict[str, Any]:
    return {
        "name": home.name,
        "file": record.file,
        "bootstrap_servers": record.bootstrap_servers,
        "group": record.group,
        "topics": record.topics,
        "sink": record.sink,
        "version": record.live,
        "building": record.building,
        "is_running": home.is_live(),
        "is_replaying": home.is_replaying(),
        "state": describe_state(status, is_live=home.is_live(), is_replaying=home.is_replaying()),
    }


def describe_state(status: RunStatus | None, *, is_live: bool, is_replaying: bool) -> str:
    """Return what a pipeline is doing: its locks decide where its last status may be outdated."""
    if status is None:
        text = "running" if is_live else "never ran"
    elif is_live:
        text = "running" if status.state.is_over else str(status.state)
    elif status.state.is_over or (is_replaying and status.state == "superseded"):
        text = str(status.state)
    else:
        text = "died"
    return f"{text}, being replayed" if is_replaying else text


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
    found = [_status_fields(one, cluster) for one in find_homes(root, names or ())]
    if output is OutputFormat.JSON:
        print_json([{name: value for name, value in one.items() if not name.startswith("_")} for one in found])
    elif not found:
        say(f"No pipeline was ever run from {root}. `logmark pipelines run FILE` runs one.")
    else:
        for one in found:
            _print(one)


def _status_fields(home: Home, cluster: Cluster) -> dict[str, Any]:
    record = home.record()
    last = read_status(home.status_file)
    fields = _home_fields(home, record, last)
    lag, age, dead_letters, problem = _measure_lag(record, cluster)
    fields |= {
        "lag": lag,
        **(age_fields(age) if age is not None else {"seconds": None}),
        "dead_letters_topic": record.dead_letters,
        "dead_letters": dead_letters,
        "problem": problem,
        "rate": None if last is None else _fresh_rate(last, is_live=fields["is_running"]),
        "batch": None if last is None or last.batch is None else asdict(last.batch),
        "batches": None if last is None else last.batches,
        "records": None if last is None else last.records,
        "restarts": None if last is None else last.restarts,
        "error": None if last is None else last.error,
        "error_at_ms": None if last is None else last.error_at_ms,
        "next_try_at_ms": None if last is None or not fields["is_running"] else last.next_try_at_ms,
        "since_ms": None if last is None else last.since_ms,
        "pid": None if last is None or not fields["is_running"] else last.pid,
        "_age": age,
        "_status": last,
    }
    return fields


def _fresh_rate(last: RunStatus, *, is_live: bool) -> float:
    return last.rate if is_live else 0.0


def _measure_lag(record: PipelineRecord, cluster: Cluster) -> tuple[int | None, Age | None, int | None, str | None]:
    """Return the lag in records and in time, the number of dead letters, and why they are unknown."""
    if record.group is None:
        return None, None, None, None
    try:
        with recorded_cluster(cluster, record).connect() as client:
            sample = take_sample(client, [record.group])
            [group] = build_lag_report(sample, client=client).groups
            dead_letters = None if record.dead_letters is None else count_dead_letters(client, record.dead_letters)
    except LogmarkError as error:
        return None, None, None, str(error)
    if group.group.problem or not group.total.partitions:
        return None, None, dead_letters, group.group.problem or None
    return group.total.records, group.age, dead_letters, None


def format_batch(status: RunStatus, now_ms: int) -> str | None:
    """Return the last batch, for people."""
    if status.batch is None:
        return None
    done = status.batch
    ago = format_duration(max(now_ms - done.at_ms, 0))
    return f"{done.number}: {count(done.records, 'record')} in {done.duration_ms / 1000:.1f} s, {ago} ago"


def _print(one: dict[str, Any]) -> None:
    last: RunStatus | None = one["_status"]
    now_ms = time.time_ns() // 1_000_000
    behind = format_age(one["_age"]) if one["_age"] is not None else None
    building = f", version {one['building']} is being built" if one["building"] is not None else ""
    process = f" in process {one['pid']}" if one["pid"] is not None else ""
    rows: list[tuple[str, object]] = [
        ("state", f"{one['state']}{process}"),
        ("version", f"{one['version']}{building}"),
        ("group", one["group"]),
        ("topics", one["topics"]),
        ("sink", one["sink"]),
        ("lag", None if one["lag"] is None else f"{one['lag']:,} records" + (f", {behind} behind" if behind else "")),
        ("rate", None if one["rate"] is None else format_rate(one["rate"])),
        ("last batch", None if last is None else format_batch(last, now_ms)),
        ("restarts", one["restarts"]),
    ]
    if one["dead_letters_topic"] is not None:
        number = "unknown" if one["dead_letters"] is None else f"{one['dead_letters']:,}"
        rows.append(("dead letters", f"{number} in {one['dead_letters_topic']}"))
    if one["error"] is not None:
        at = f" ({format_time(one['error_at_ms'])})" if one["error_at_ms"] is not None else ""
        rows.append(("last error", f"{one['error']}{at}"))
    if one["problem"] is not None:
        rows.append(("problem", one["problem"]))
    write_line(one["name"])
    for title, value in rows:
        write_line(f"  {title:<13} {'-' if value is None else value}")
