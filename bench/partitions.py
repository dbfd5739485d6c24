"""A data directory with thousands of partitions: how long a broker takes to open it with 1,024 descriptors."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import wire
from bench.load import connect, receive
from logmark.clock import SystemClock
from logmark.disk.file_system import RealFileSystem
from logmark.log import catalog
from logmark.log.directory import DataDirectory
from logmark.log.group_commit import GroupCommit
from logmark.log.settings import TopicSettings
from logmark.wire import batches

PARTITIONS_PER_TOPIC = 100
BATCHES, RECORDS_PER_BATCH = 4, 20
DESCRIPTORS = 1024
PRODUCER_ID = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What was seen of one start and one stop."""

    listening_s: float
    first_fetch_s: float
    all_fetched_s: float
    stop_s: float
    descriptors: int
    memory_mb: float


def make(path: Path, topics: int) -> float:
    """Fills a directory with topics of 100 partitions and closes it cleanly; returns how long the close took."""
    loop = asyncio.new_event_loop()
    committer = GroupCommit(loop, durability="os")
    directory = DataDirectory.open(path, files=RealFileSystem(sync=False), committer=committer, clock=SystemClock())
    entries = catalog.Catalog(None)
    now_ms = int(time.time() * 1000)
    for number in range(topics):
        entry = entries.create(name(number), PARTITIONS_PER_TOPIC, {})
        indexes = range(PARTITIONS_PER_TOPIC)
        for partition in directory.create_partitions(entry.name, indexes, entry.id, TopicSettings({}), lazily=True):
            for count in range(BATCHES):
                partition.append(_batch(count, now_ms), now_ms=now_ms)
    directory.write(catalog.FILE_NAME, entries.encode())
    begin = time.perf_counter()
    if not directory.close():
        raise RuntimeError(f"{path} was not closed cleanly")
    took_s = time.perf_counter() - begin
    committer.close()
    loop.close()
    return took_s


def _batch(number: int, now_ms: int) -> batches.ProducedBatch:
    records = [(None, b"." * 100)] * RECORDS_PER_BATCH
    sequence = number * RECORDS_PER_BATCH
    built = batches.build(
        records, timestamp_ms=now_ms, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence
    )
    return batches.own(built)


def name(number: int) -> str:
    """A topic's name."""
    return f"many-{number}"


def start(path: Path, topics: int) -> Opened:
    """Starts a broker that may have 1,024 descriptors, fetches every partition, and stops it."""
    command = [str(Path(sys.executable).with_name("logmark")), "serve", "--data-dir", str(path)]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, preexec_fn=_limit_descriptors
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if "listening" not in words:
            raise RuntimeError(f"the broker did not start: {words}")
        listening_s = time.perf_counter() - begin
        connection, buffer = connect(words[words.index("on") + 1].rstrip(",")), bytearray(1 << 20)
        _fetch(connection, buffer, 0)
        first_fetch_s = time.perf_counter() - begin
        for number in range(1, topics):
            _fetch(connection, buffer, number)
        all_fetched_s = time.perf_counter() - begin
        connection.close()
        descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        memory_mb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6
        begin = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        if process.wait(600):
            raise RuntimeError(f"the broker ended with {process.returncode}")
        stop_s = time.perf_counter() - begin
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    return Opened(
        listening_s=listening_s,
        first_fetch_s=first_fetch_s,
        all_fetched_s=all_fetched_s,
        stop_s=stop_s,
        descriptors=descriptors,
        memory_mb=memory_mb,
    )


def _limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def _fetch(connection: object, buffer: bytearray, number: int) -> None:
    positions = [0] * PARTITIONS_PER_TOPIC
    connection.sendall(wire.fetch_request(name(number), positions, partition_bytes_max=1 << 20))  # type: ignore[attr-defined]
    wire.fetched(receive(connection, buffer), name(number), positions)  # type: ignore[arg-type]
    if positions != [BATCHES * RECORDS_PER_BATCH] * PARTITIONS_PER_TOPIC:
        raise RuntimeError(f"{name(number)} was read up to {positions}")


def plain(path: Path) -> float:
    """Seconds for plain Python to list every folder and to read the three small files of a partition."""
    begin = time.perf_counter()
    for folder in os.listdir(path):
        if (path / folder).is_dir():
            for each in os.listdir(path / folder):
                if each.endswith((".metadata", ".snapshot", ".index")):
                    (path / folder / each).read_bytes()
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A directory of many partitions: what it took to close and to open it, and what plain Python took to read it."""

    opened: Opened
    close_s: float
    plain_s: float


def measure(path: Path, topics: int) -> Many:
    """Makes the directory, starts on it, and removes it."""
    try:
        close_s = make(path, topics)
        plain_s = plain(path)
        return Many(opened=start(path, topics), close_s=close_s, plain_s=plain_s)
    finally:
        shutil.rmtree(path, ignore_errors=True)
