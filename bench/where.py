"""Where the broker's time goes under a load: `python bench/where.py [requests|commits|produce|fetch_batches]`.

For requests and commits it also says how many Python calls one of them takes, with `--connections` to compare: with a
single connection each request is a round of the write-ahead log by itself.

The broker runs under Python's profiler, which slows small functions down more than large ones: read the order of the
rows and their rough shares, not the seconds.
"""

import argparse
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/where.py` finds its neighbours

from rich.console import Console
from rich.table import Table

from bench import load, sides
from tests.harness.node import free_ports, wait_until

LOADS = ("requests", "commits", "produce", "fetch_batches")
PARTITIONS = 4
GROUPS = 64


Function = tuple[str, int, str]
Spent = dict[Function, tuple[int, float]]


def profile(name: str | None, durability: str, connections: int, folder: Path) -> tuple[Spent, int]:
    """How often each function of the broker was called in one load, how long it took, and how many requests came."""
    requests = 0
    (port,) = free_ports(1)
    address, out = f"127.0.0.1:{port}", folder / f"{name}.profile"
    serve = ["logmark", "serve", "--data-dir", str(folder / str(name)), "--listen", address, "--durability", durability]
    command = [sys.executable, "-m", "cProfile", "-o", str(out), "-m", *serve]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: sides.first_record_is_acknowledged(address), "the broker serves")
        sides.create_topic(address, "where", PARTITIONS)
        where: dict[str, object] = {"address": address, "topic": "where", "partitions": PARTITIONS}
        if name == "requests":
            seen = load.run("requests", **where, pid=broker.pid, connections=connections, seconds=5, value_bytes=100)
            requests = int(seen["requests"])
        elif name == "commits":
            seen = load.run("commits", **where, pid=broker.pid, connections=connections, seconds=5, groups=GROUPS)
            requests = int(seen["requests"])
        elif name is not None:
            load.run("produce", **where, records=1_000_000, value_bytes=100)
        for _ in range(20 if name == "fetch_batches" else 0):
            load.run("fetch_batches", **where, records=1_000_000, value_bytes=100)
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(60)
    stats: dict[Function, tuple[int, int, float, float, object]] = pstats.Stats(str(out)).stats  # type: ignore[attr-defined]
    return {function: (calls, own) for function, (_, calls, own, _, _) in stats.items()}, requests


def difference(loaded: Spent, idle: Spent) -> list[tuple[float, int, Function]]:
    """What the load alone cost, the dearest first: a broker that starts and stops has its own costs."""
    rows = []
    for function, (calls, own) in loaded.items():
        calls_idle, own_idle = idle.get(function, (0, 0.0))
        # The loop itself is one call that lasts for the whole run; what it spends is mostly waiting.
        if calls - calls_idle > 50:
            rows.append((own - own_idle, calls - calls_idle, function))
    return sorted(rows, reverse=True)


def main() -> int:
    """Prints the functions in which most time was spent."""
    parser = argparse.ArgumentParser(description="Where the broker's time goes.")
    parser.add_argument("load", choices=LOADS, nargs="?", default="requests")
    parser.add_argument("--durability", choices=("sync", "os"), default="os")
    parser.add_argument("--connections", type=int, default=16, help="of requests and commits, with one in flight each")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="logmark-where-"))
    try:
        idle, _ = profile(None, options.durability, options.connections, folder)
        loaded, requests = profile(options.load, options.durability, options.connections, folder)
        rows = difference(loaded, idle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = sum(own for own, _, _ in rows)
    table = Table("share", "calls", "function", title=f"{options.load}, durability {options.durability}")
    for own, calls, (path, line, function) in rows[:16]:
        short = path.rpartition("/src/")[2].rpartition("/site-packages/")[2]
        table.add_row(f"{own / total:.0%}", f"{calls:,}", f"{short}:{line} {function}" if line else function)
    Console(width=140).print(table)
    if requests:
        calls = sum(calls for _, calls, _ in rows)
        print(f"{calls / requests:.0f} calls of functions for each of {requests:,} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
