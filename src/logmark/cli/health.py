"""`logmark health`: whether a cluster does its work, for a person and for a script."""

import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import typer

from logmark.cli.clusters import Cluster, on_cluster
from logmark.cli.options import Output, OutputFormat
from logmark.cli.tables import Column, count, print_json, print_table, say, write_line
from logmark.client.errors import BrokerUnreachable
from logmark.client.health import BrokerHealth, ClusterHealth, check_health
from logmark.client.views import view_health, view_unreachable

DEGRADED, UNREACHABLE = 1, 4
WIDTH = 80
_TURNS_SHOWN = 5


@on_cluster
def health(
    cluster: Cluster,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show whether brokers answer, accept records, and have all partitions and coordinators.

    Exit codes: 0 healthy; 1 degraded; 2 a mistake in the options; 4 no broker answers.
    """

    try:
        with cluster.connect() as client:
            found = check_health(client)
    except BrokerUnreachable as error:
        if output is OutputFormat.JSON:
            print_json(asdict(view_unreachable(error)))
        else:
            say(f"logmark: {error}")
        raise typer.Exit(UNREACHABLE) from None
    if output is OutputFormat.JSON:
        print_json(asdict(view_health(found)))
    else:
        _print(found)
    if not found.is_healthy:
        raise typer.Exit(DEGRADED)


def _print(found: ClusterHealth) -> None:
    rows = [row for broker in found.brokers for row in _rows(broker)]
    if not any(broker.details for broker in found.brokers):
        rows.append(("partitions", _of(found.partition_count - len(found.partition_errors), found.partition_count)))
    print_table([Column("CHECK"), Column("STATE")], rows)
    for broker in found.brokers:
        _print_turns(broker)
        _print_failures(broker)
    for problem in found.problems:
        _write_wrapped(f"! {problem}")
    write_line("Healthy." if found.is_healthy else f"Degraded: {count(len(found.problems), 'problem')}.")


def _rows(broker: BrokerHealth) -> Iterator[tuple[str, str]]:
    details = broker.details
    if not broker.is_up:
        yield f"broker {broker.id}", f"no answer from {broker.address}"
        return
    version = f", Logmark {details['logmark']}, up {_duration(details)}" if details else ""
    yield f"broker {broker.id}", f"up at {broker.address}{version}"
    if details:
        yield "writes", "accepted" if details["accepts_writes"] else "refused until a restart"
        wal = details["wal"]["state"]
        yield "write-ahead log", {"none": "not there yet: it comes with the first record"}.get(wal, wal)
        yield "partitions", f"{_of(details['partitions']['open'], details['partitions']['total'])} open"
        ready, total = details["coordinators"]["ready"], details["coordinators"]["total"]
        yield "coordinators", f"{_of(ready, total)} ready" if total else "not there yet: they come with the first group"
    for one in broker.description.log_dirs if broker.description is not None else ():
        if one.total_bytes >= 0:
            state = details.get("disk", {}).get("state", "writable")
            shown = "" if state == "writable" else f", {state}"
            yield "disk", f"{_bytes(one.usable_bytes)} free of {_bytes(one.total_bytes)}{shown}"
    if details.get("compaction"):
        compaction = details["compaction"]
        idle = compaction["seconds_without_progress"]
        yield "compaction", f"{compaction['log']}, last progress {idle} s ago"
    if details:
        memory, connections = details["memory"], details["connections"]
        yield "memory of clients", f"{_bytes(memory['used_bytes'])} of {_bytes(memory['max_bytes'])}"
        yield "connections", _of(connections["used"], connections["max"])


def _print_turns(broker: BrokerHealth) -> None:
    turns = broker.details.get("turns", ())
    if turns:
        write_line("")
        print_table(
            [Column("LONGEST TURNS OF THE EVENT LOOP"), Column("MS", True), Column("AT"), Column("OVER 50 MS", True)],
            [
                (_shortened(one["work"], 31), one["longest_ms"], _time(one["at_ms"]), one["long_count"])
                for one in turns[:_TURNS_SHOWN]
            ],
        )


def _print_failures(broker: BrokerHealth) -> None:
    failures = broker.details.get("failures", ())
    if failures:
        write_line("")
        write_line("LAST FAILURES")
        for one in failures:
            _write_wrapped(f"{_time(one['at_ms'])} {one['event']}")
    if broker.details.get("turns") or failures:
        write_line("")


def _write_wrapped(text: str) -> None:
    for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False) or [text]:
        write_line(line)


def _of(part: int, total: int) -> str:
    return f"{part} of {total}"


def _bytes(number: int) -> str:
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _duration(details: Any) -> str:
    seconds = max(0, details["now_ms"] - details["started_ms"]) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _time(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
