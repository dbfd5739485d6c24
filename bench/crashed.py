"""A broker that is killed under load, and how soon it serves again: Logmark and Apache Kafka on the same work."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import sides, wire
from bench.load import connect, receive
from logmark.log import checkpoints
from logmark.names import TopicPartition

TOPIC, PARTITIONS = "crashed", 4
VALUE_BYTES, RECORDS_PER_BATCH = 1024, 64
IN_FLIGHT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One start after a kill: how soon a fetch was answered, what was checked and from where."""

    side: str
    first_fetch_s: float
    scanned_bytes: int
    scan_s: float
    recovery_points: list[int]
    sizes: list[int]

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


def logmark(folder: Path, size: int, *, durability: str) -> Crash:
    """Logmark, killed after that many bytes were acknowledged."""
    folder.mkdir(parents=True)
    return _crash(
        f"logmark {durability}", folder, size, lambda **how: sides.logmark_at(folder, durability=durability, **how)
    )


def kafka(folder: Path, size: int, settings: Mapping[str, str]) -> Crash:
    """Apache Kafka with its defaults but for some settings, killed likewise."""
    sides.format_kafka(folder, settings)
    return _crash("kafka", folder, size, lambda **how: sides.kafka_at(folder, **how))


def _crash(side: str, folder: Path, size: int, start: Callable[..., sides.Running]) -> Crash:
    running = start()
    try:
        sides.create_topic(running.address, TOPIC, PARTITIONS)
        _load(running, size)
        data = folder / "data"
        points, sizes = _recovery_points(data), _sizes(data)
        scanned, reads = _to_scan(data, points), Reads()
        running = start(is_ready=_fetch_is_answered, watch=reads.watch)
        return Crash(
            side=side,
            first_fetch_s=running.start_ms / 1000,
            scanned_bytes=scanned,
            scan_s=reads.seconds(scanned),
            recovery_points=points,
            sizes=sizes,
        )
    finally:
        running.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _load(running: sides.Running, size: int) -> None:
    """Sends batches until so many bytes are acknowledged, and kills the broker with more under way."""
    batch = wire.batch(b"." * VALUE_BYTES, RECORDS_PER_BATCH)
    made = [wire.produce_request(TOPIC, index, batch) for index in range(PARTITIONS)]
    connection, buffer = connect(running.address), bytearray(4096)
    with connection:
        for number in range(size // len(batch) + IN_FLIGHT):
            connection.sendall(made[number % PARTITIONS])
            if number >= IN_FLIGHT and (error := wire.produce_error(receive(connection, buffer), TOPIC)):
                raise RuntimeError(f"{running.name} answered error code {error}")
        running.kill()


def _fetch_is_answered(address: str) -> bool:
    """Whether every partition can be read from its beginning."""
    with contextlib.suppress(OSError, RuntimeError, IndexError), connect(address) as connection:
        connection.settimeout(5)
        positions = [0] * PARTITIONS
        connection.sendall(wire.fetch_request(TOPIC, positions, partition_bytes_max=1 << 20))
        wire.fetched(receive(connection, bytearray(8 << 20)), TOPIC, positions)
        return min(positions) > 0
    return False


def _recovery_points(data: Path) -> list[int]:
    """What each partition's log says is on disk for sure; 0 where nothing is said."""
    path = data / checkpoints.RECOVERY_POINTS
    known = checkpoints.read_offsets(path.read_bytes()) if path.exists() else {}
    return [known.get(TopicPartition(TOPIC, index), 0) for index in range(PARTITIONS)]


def _segments(data: Path, index: int) -> list[Path]:
    return sorted((data / f"{TOPIC}-{index}").glob("*.log"))


def _sizes(data: Path) -> list[int]:
    return [sum(path.stat().st_size for path in _segments(data, index)) for index in range(PARTITIONS)]


def _to_scan(data: Path, points: list[int]) -> int:
    """The bytes of the segments that both brokers check: from the one that holds the recovery point on."""
    total = 0
    for index, point in enumerate(points):
        paths = _segments(data, index)
        first = max((at for at, path in enumerate(paths) if int(path.stem) <= point), default=0)
        total += sum(path.stat().st_size for path in paths[first:])
    return total
