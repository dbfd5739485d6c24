"""A broker that is killed under load, and how soon it serves again: Logmark and Apache Kafka on the same work.

After a kill Apache Kafka's controller does not let the broker in again before the session of the old one has ended,
nine seconds by default. That wait is no part of the recovery, and the broker loads its logs meanwhile, so that it
cannot be subtracted. Apache Kafka therefore takes the load with its defaults, and starts again with a session of half
a second.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import sides, wire
from bench.load import connect, receive
from logmark.log import checkpoints
from logmark.names import TopicPartition

TOPIC = "crashed"
VALUE_BYTES, RECORDS_PER_BATCH = 1024, 64
IN_FLIGHT = 5
# Apache Kafka answers a fetch with 55 MiB at most, so many partitions are asked for in several requests.
PARTITIONS_PER_FETCH = 100
FETCHED_BYTES = 128 << 10
SHORT_SESSION = {"broker.session.timeout.ms": "500", "broker.heartbeat.interval.ms": "100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One start after a kill: how soon a fetch was answered, what was checked and from where."""

    first_fetch_s: float
    scanned_bytes: int
    scan_s: float
    recovery_points: list[int]

    @property
    def scanned_mb_per_s(self) -> float:
        """Bytes checked per second of opening the logs."""
        return self.scanned_bytes / self.scan_s / 1e6 if self.scan_s else 0.0


class Reads:
    """How much a process has read so far, seen every few milliseconds: what each side itself says is not comparable."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """Begins to look."""
        self._thread = threading.Thread(target=self._look, args=(Path(f"/proc/{pid}/io"),), daemon=True)
        self._thread.start()

    def _look(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over.wait(0.002):
                read = int(path.read_text().split(maxsplit=2)[1])
                self._seen.append((time.perf_counter(), read))

    def seconds(self, size: int) -> float:
        """How long the middle eight tenths of the last `size` bytes took, scaled up to all of them."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if not self._seen:
            return 0.0
        last = self._seen[-1][1]
        begin = next((at for at, read in self._seen if last - read <= 0.9 * size), 0.0)
        end = next((at for at, read in self._seen if last - read <= 0.1 * size), 0.0)
        return (end - begin) / 0.8


def logmark(folder: Path, size: int, *, partitions: int, durability: str) -> Crash:
    """Logmark, killed after that many bytes were acknowledged."""
    folder.mkdir(parents=True)

    def start(**watching: Any) -> sides.Running:
        return sides.logmark_at(folder, durability=durability, **watching)

    return _crash(folder, size, partitions, start, start)


def kafka(folder: Path, size: int, *, partitions: int) -> Crash:
    """Apache Kafka with its defaults, killed likewise and started without the wait for its old session."""
    sides.format_kafka(folder)

    def start(**watching: Any) -> sides.Running:
        return sides.kafka_at(folder, **watching)

    def start_again(**watching: Any) -> sides.Running:
        sides.configure_kafka(folder, SHORT_SESSION)
        return sides.kafka_at(folder, **watching)

    return _crash(folder, size, partitions, start, start_again)


def _crash(
    folder: Path,
    size: int,
    partitions: int,
    start: Callable[..., sides.Running],
    start_again: Callable[..., sides.Running],
) -> Crash:
    running = start()
    try:
        sides.create_topic(running.address, TOPIC, partitions)
        _load(running, size, partitions)
        data = folder / "data"
        points = _recovery_points(data, partitions)
        scanned, reads = _to_scan(data, points), Reads()
        running = start_again(is_ready=lambda address: _fetch_is_answered(address, partitions), watch=reads.watch)
        return Crash(
            first_fetch_s=running.start_ms / 1000,
            scanned_bytes=scanned,
            scan_s=reads.seconds(scanned),
            recovery_points=points,
        )
    finally:
        running.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _load(running: sides.Running, size: int, partitions: int) -> None:
    """Sends batches until so many bytes are acknowledged, and kills the broker with more under way."""
    batch = wire.batch(b"." * VALUE_BYTES, RECORDS_PER_BATCH)
    made = [wire.produce_request(TOPIC, index, batch) for index in range(partitions)]
    connection, buffer = connect(running.address), bytearray(4096)
    with connection:
        for number in range(size // len(batch) + IN_FLIGHT):
            connection.sendall(made[number % partitions])
            if number >= IN_FLIGHT and (error := wire.produce_error(receive(connection, buffer), TOPIC)):
                raise RuntimeError(f"{running.name} answered error code {error}")
        running.kill()


def _fetch_is_answered(address: str, partitions: int) -> bool:
    """Whether every partition can be read from its beginning."""
    with contextlib.suppress(OSError, RuntimeError, IndexError), connect(address) as connection:
        connection.settimeout(5)
        positions, buffer = [0] * partitions, bytearray(8 << 20)
        for first in range(0, partitions, PARTITIONS_PER_FETCH):
            some = range(first, min(first + PARTITIONS_PER_FETCH, partitions))
            request = wire.fetch_request(TOPIC, positions, partition_bytes_max=FETCHED_BYTES, partitions=some)
            connection.sendall(request)
            wire.fetched(receive(connection, buffer), TOPIC, positions)
        return min(positions) > 0
    return False


def _recovery_points(data: Path, partitions: int) -> list[int]:
    """What each partition's log says is on disk for sure; 0 where nothing is said."""
    path = data / checkpoints.RECOVERY_POINTS
    known = checkpoints.read_offsets(path.read_bytes()) if path.exists() else {}
    return [known.get(TopicPartition(TOPIC, index), 0) for index in range(partitions)]


def _segments(data: Path, index: int) -> list[Path]:
    return sorted((data / f"{TOPIC}-{index}").glob("*.log"))


def _to_scan(data: Path, points: list[int]) -> int:
    """The bytes of the segments that both brokers check: from the one that holds the recovery point on."""
    total = 0
    for index, point in enumerate(points):
        paths = _segments(data, index)
        first = max((at for at, path in enumerate(paths) if int(path.stem) <= point), default=0)
        total += sum(path.stat().st_size for path in paths[first:])
    return total
