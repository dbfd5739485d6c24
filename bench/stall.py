"""How long the event loop of a loaded broker is held up while it compacts, and while it does not.

`python -m bench.stall FOLDER POLICY` is the broker: it prints its address, beats on its own event loop until standard
input ends, and prints the largest gaps. In wall time a gap has whatever else the machine did; in the loop's own
processor time it has only what the broker did.
"""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from bench import wire
from bench.load import REPOSITORY, connect, receive
from logmark.wire import batches

TOPIC, PARTITIONS = "stall", 2
KEYS, RECORDS_PER_BATCH, VALUE_BYTES = 50_000, 300, 100
IN_FLIGHT = 5
BEAT_SECONDS = 0.0005
WORKS = {
    "stall": "largest gap of the event loop's heartbeat under load",
    "p99.9 stall": "99.9th percentile of those gaps",
    "loop": "longest work of the loop between two heartbeats, in processor time",
    "cleaner": "longest that the cleaner holds the event loop, in processor time",
    "cleaner wall": "the same in wall time",
}
SETTINGS = {"log.cleaner.backoff.ms": "20", "log.flush.offset.checkpoint.interval.ms": "1000"}


def measure(folder: Path, *, seconds: float) -> dict[str, tuple[float, float]]:
    """Each of the works in milliseconds: while compacting, and without."""
    compacting = _run(folder, "compact", seconds)
    idle = _run(folder, "delete", seconds)
    return {work: (compacting[work], idle[work]) for work in WORKS}


def _run(folder: Path, policy: str, seconds: float) -> dict[str, float]:
    broker = subprocess.Popen(
        [sys.executable, "-m", "bench.stall", str(folder), policy],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the broker did not start:\n{broker.communicate()[1]}")
        _load(address, seconds)
        said, complaints = broker.communicate(timeout=120)
        if broker.returncode:
            raise RuntimeError(f"the broker failed:\n{complaints}")
        return dict(json.loads(said))
    finally:
        broker.kill()
        broker.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _load(address: str, seconds: float) -> None:
    """Produces records with keys, five batches in flight, and reads what was produced, for some seconds."""
    chance = random.Random(1)
    made = [
        wire.produce_request(TOPIC, number % PARTITIONS, bytes(_batch(chance))) for number in range(50 * PARTITIONS)
    ]
    connection, buffer = connect(address), bytearray(4 << 20)
    positions, until, number = [0] * PARTITIONS, time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for request in made[:IN_FLIGHT]:
            connection.sendall(request)
        made = made[IN_FLIGHT:] + made[:IN_FLIGHT]
        for _ in range(IN_FLIGHT):
            if error := wire.produce_error(receive(connection, buffer), TOPIC):
                raise RuntimeError(f"the broker answered error code {error}")
        number += 1
        if number % 4 == 0:
            connection.sendall(wire.fetch_request(TOPIC, positions, partition_bytes_max=1 << 20))
            wire.fetched(receive(connection, buffer), TOPIC, positions)
    connection.close()


def _batch(chance: random.Random) -> bytearray:
    records = [(b"%08d" % chance.randrange(KEYS), b"." * VALUE_BYTES) for _ in range(RECORDS_PER_BATCH)]
    return batches.build(records, timestamp_ms=int(time.time() * 1000))


class Heart:
    """Beats on the loop and keeps how far apart the beats were."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.gaps_ms: list[float] = []
        self.works_ms: list[float] = []
        self._at, self._worked = time.perf_counter(), time.thread_time()

    def beat(self) -> None:
        """Notes the time since the last beat, and comes again soon."""
        at, worked = time.perf_counter(), time.thread_time()
        # A timer of the loop may be called a little early: that is no gap.
        self.gaps_ms.append(max(0.0, 1000 * (at - self._at - BEAT_SECONDS)))
        self.works_ms.append(1000 * (worked - self._worked))
        self._at, self._worked = at, worked
        self._loop.call_later(BEAT_SECONDS, self.beat)

    def figures(self) -> dict[str, float]:
        """What was seen, without the first beats, in which everything is new."""
        gaps = sorted(self.gaps_ms[20:])
        return {"stall": gaps[-1], "p99.9 stall": gaps[int(0.999 * (len(gaps) - 1))], "loop": max(self.works_ms[20:])}


class Steps:
    """How long each step of the cleaner's tasks held the event loop."""

    def __init__(self) -> None:
        self.works_ms, self.gaps_ms = [0.0], [0.0]

    def task(self, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> Any:
        """The loop's factory of tasks: those of the cleaner are watched."""
        if str(getattr(work, "__qualname__", "")).startswith("Cleaner."):
            work = _Watched(work, self)
        return asyncio.Task(work, loop=loop, **how)

    def figures(self) -> dict[str, float]:
        """The longest step."""
        return {"cleaner": max(self.works_ms), "cleaner wall": max(self.gaps_ms)}


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def send(self, value: Any) -> Any:
        at, worked = time.perf_counter(), time.thread_time()
        try:
            return self._work.send(value)
        finally:
            self._steps.gaps_ms.append(1000 * (time.perf_counter() - at))
            self._steps.works_ms.append(1000 * (time.thread_time() - worked))

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()


async def _serve(folder: str, policy: str) -> None:
    from logmark.broker.config import BrokerConfig
    from logmark.broker.server import Broker

    loop, steps = asyncio.get_running_loop(), Steps()
    loop.set_task_factory(steps.task)
    broker = Broker(data_dir=folder, config=BrokerConfig(SETTINGS), durability="os")
    await broker.start()
    settings = {"cleanup.policy": policy, "segment.bytes": str(8 << 20), "min.cleanable.dirty.ratio": "0.01"}
    await broker.logs.create_topic(TOPIC, PARTITIONS, settings)
    heart, ended = Heart(loop), asyncio.Event()
    print(broker.bootstrap_servers, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    heart.beat()
    await ended.wait()
    figures = {**heart.figures(), **steps.figures()}
    cleaned = [broker.logs.partition(TOPIC, index).cleaned_to for index in range(PARTITIONS)]
    print(f"cleaned up to the offsets {cleaned}", file=sys.stderr)
    await broker.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    from logmark.broker.loops import new_event_loop
    from logmark.memory import keep_freed_buffers

    keep_freed_buffers()
    made = new_event_loop()
    asyncio.set_event_loop(made)
    made.run_until_complete(_serve(sys.argv[1], sys.argv[2]))
