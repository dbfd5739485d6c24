"""The loads: each runs in a process of its own, against any broker, and prints what it saw as JSON.

`python -m bench.load NAME JSON-ARGUMENTS`
"""

import itertools
import json
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import wire

REPOSITORY = Path(__file__).resolve().parents[1]
# A log of 100 MB is read in the time that a connection takes to warm up, so it is read several times.
FETCH_PASSES = 5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
IN_FLIGHT = 5

Result = dict[str, float]


def run(name: str, /, **arguments: Any) -> Result:
    """Runs one load in a fresh process and returns what it measured."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", name, json.dumps(arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load {name} {arguments} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


class Meter:
    """The time that passes, and what this process and the broker's use meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin = time.perf_counter()
        self._own, self._broker, self._written = time.process_time(), cpu_seconds(pid), written_bytes(pid)

    def stop(self) -> Result:
        """Return the seconds that have passed, the processors kept busy, and the bytes that the broker has written."""
        seconds = time.perf_counter() - self._begin
        own, broker = time.process_time() - self._own, cpu_seconds(self._pid) - self._broker
        return {
            "seconds": seconds,
            "generator_processors": own / seconds,
            "broker_processors": broker / seconds,
            "written_bytes": written_bytes(self._pid) - self._written,
        }


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def written_bytes(pid: int) -> int:
    """Return how much a process has sent to the block device since its start; a page counts when it gets dirty."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def connect(address: str) -> socket.socket:
    """A connection without Nagle's delay."""
    host, port = address.rsplit(":", 1)
    opened = socket.create_connection((host, int(port)), timeout=60)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def receive(connection: socket.socket, buffer: bytearray) -> memoryview:
    """One answer without its length, in `buffer`, which grows as needed."""
    view = memoryview(buffer)
    have = 0
    while have < 4:
        got = connection.recv_into(view[have:4])
        if got == 0:
            raise RuntimeError("the broker closed the connection")
        have += got
    size = int.from_bytes(view[:4], "big")
    if size > len(buffer):
        view.release()
        buffer.extend(bytes(size - len(buffer)))
        view = memoryview(buffer)
    have = 0
    while have < size:
        got = connection.recv_into(view[have:size])
        if got == 0:
            raise RuntimeError("the broker closed the connection")
        have += got
    return view[:size]


def touch(address: str, topic: str, partitions: int) -> None:
    """Write one record to every partition, so that a load does not measure each partition's first write.

    Apache Kafka's first writes to many partitions are many times slower than those that follow.
    """
    record = wire.batch(b"first", 1)
    buffer = bytearray(4096)
    with connect(address) as connection:
        for number in range(partitions + IN_FLIGHT):
            if number < partitions:
                connection.sendall(wire.produce_request(topic, number, record))
            if number >= IN_FLIGHT and (error := wire.produce_error(receive(connection, buffer), topic)):
                raise RuntimeError(f"the broker answered error code {error}")


def requests(
    address: str, pid: int, topic: str, partitions: int, connections: int, seconds: float, value_bytes: int
) -> Result:
    """One-record Produce requests with acks=all, one in flight on each connection, spread over all partitions."""
    record = wire.batch(os.urandom(value_bytes), 1)
    made = [wire.produce_request(topic, index, record) for index in range(partitions)]
    touch(address, topic, partitions)
    seen = _send(address, pid, made, connections, seconds, lambda answer: wire.produce_error(answer, topic, at=4))
    return {**seen, "bytes": seen["requests"] * len(record)}


def commits(
    address: str, pid: int, topic: str, partitions: int, connections: int, seconds: float, groups: int
) -> Result:
    """OffsetCommits of simple groups, one in flight on each connection, spread over all groups."""
    names = [f"bench-{number}" for number in range(groups)]
    # Every group's offset changes with every commit, so that no broker can skip one that says nothing new.
    made = [
        wire.commit_request(name, topic, number % partitions, offset)
        for offset in (1, 2)
        for number, name in enumerate(names)
    ]
    _find_coordinators(address, topic, names, made)
    return _send(address, pid, made, connections, seconds, lambda answer: wire.commit_error(answer, topic, at=4))


def _find_coordinators(address: str, topic: str, groups: list[str], made: list[bytes]) -> None:
    """Wait until every group's coordinator has accepted a commit."""
    deadline, buffer = time.monotonic() + 60, bytearray(4096)
    with connect(address) as connection:
        for group, request in zip(groups, made, strict=False):
            while True:
                connection.sendall(wire.coordinator_request(group))
                receive(connection, buffer)
                connection.sendall(request)
                error = wire.commit_error(receive(connection, buffer), topic)
                if not error:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the broker answered error code {error} to commits of {group} for a minute")
                time.sleep(0.01)


def _send(
    address: str, pid: int, made: list[bytes], connections: int, seconds: float, error_of: Callable[[bytes], int]
) -> Result:
    """Send the requests over and over, one in flight on each connection, and measure the answers.

    Each connection begins at another request and steps over those of the others, so that all together send all of them.
    """
    turns = [itertools.cycle(_turn(made, number, connections)) for number in range(connections)]
    opened = [connect(address) for _ in range(connections)]
    meter = Meter(pid)
    until = time.perf_counter() + seconds
    # A selector costs more than a single connection's request, so one connection is simply waited for.
    if connections == 1:
        latencies = _in_turn(opened[0], turns[0], error_of, until)
    else:
        latencies = _at_once(opened, turns, error_of, until)
    measured = meter.stop()
    for connection in opened:
        connection.close()
    latencies.sort()
    return {
        "requests": len(latencies),
        "requests_per_s": len(latencies) / measured["seconds"],
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[int(0.99 * (len(latencies) - 1))],
        **measured,
    }


def _turn(made: list[bytes], first: int, step: int) -> list[bytes]:
    """Return the requests of one connection: every `step`-th from `first` on, around the end until they repeat."""
    length = len(made) // math.gcd(len(made), step)
    return [made[(first + number * step) % len(made)] for number in range(length)]


def _in_turn(
    connection: socket.socket, requests: Iterator[bytes], error_of: Callable[[bytes], int], until: float
) -> list[float]:
    """Return how long each request took, one after the other."""
    clock, latencies = time.perf_counter, list[float]()
    connection.settimeout(None)
    sent = clock()
    while sent < until:
        connection.send(next(requests))
        _check(connection, error_of)
        now = clock()
        latencies.append(now - sent)
        sent = now
    return latencies


def _at_once(
    opened: list[socket.socket], turns: Sequence[Iterator[bytes]], error_of: Callable[[bytes], int], until: float
) -> list[float]:
    """Return how long each request took, with one under way on every connection all the time."""
    clock, latencies = time.perf_counter, list[float]()
    # Neither a selector's objects nor a parsed answer: a generator that is busy itself measures itself.
    ready, sent = select.epoll(), dict[int, float]()
    connections = {connection.fileno(): connection for connection in opened}
    requests = dict(zip(connections, turns, strict=True))
    for descriptor, connection in connections.items():
        ready.register(descriptor, select.EPOLLIN)
        sent[descriptor] = clock()
        connection.send(next(requests[descriptor]))
    now = clock()
    while now < until:
        for descriptor, _ in ready.poll(30):
            connection = connections[descriptor]
            _check(connection, error_of)
            now = clock()
            latencies.append(now - sent[descriptor])
            sent[descriptor] = now
            connection.send(next(requests[descriptor]))
    return latencies


def _check(connection: socket.socket, error_of: Callable[[bytes], int]) -> None:
    """Take one whole answer and check that it has no error."""
    answer = connection.recv(4096)
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        more = connection.recv(4096)
        if not more:
            raise RuntimeError("the broker closed the connection")
        answer += more
    if error := error_of(answer):
        raise RuntimeError(f"the broker answered error code {error}")


def produce(address: str, topic: str, partitions: int, records: int, value_bytes: int) -> Result:
    """A librdkafka producer with acks=all, as an application would configure it for throughput."""
    from confluent_kafka import Producer

    failures: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    producer.list_topics(topic, timeout=30)
    chunk = [{"value": os.urandom(value_bytes)} for _ in range(1000)]
    begin = time.perf_counter()
    for number in range(records // len(chunk)):
        # A call takes many records, so that the client's own cost per record hides the broker's as little as it can.
        while producer.produce_batch(topic, chunk, partition=number % partitions, on_delivery=told) < len(chunk):
            raise RuntimeError("the producer's queue is full; its limit is above the load on purpose")
        while len(producer) > 200_000:
            producer.poll(0.005)
    if producer.flush(120):
        raise RuntimeError("records without an answer after two minutes")
    seconds = time.perf_counter() - begin
    if failures:
        raise RuntimeError(f"{len(failures)} records failed, the first with {failures[0]}")
    return {"records_per_s": records / seconds, "mb_per_s": records * value_bytes / seconds / 1e6, "seconds": seconds}


def consume(address: str, topic: str, partitions: int, records: int, value_bytes: int) -> Result:
    """A librdkafka consumer, as an application would configure it for throughput, from every partition's beginning."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
            # With the default the client stops asking at 100,000 records and rests for a second, whatever the broker.
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    consumer.list_topics(topic, timeout=30)
    begin = time.perf_counter()
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    count = 0
    while count < records:
        # Never more than there are: consume() waits for all that it was asked for.
        messages = consumer.consume(min(10_000, records - count), timeout=30)
        if not messages or messages[-1].error():
            raise RuntimeError(f"{count} of {records} records came")
        count += len(messages)
    seconds = time.perf_counter() - begin
    consumer.close()
    return {"records_per_s": records / seconds, "mb_per_s": records * value_bytes / seconds / 1e6, "seconds": seconds}


def send_batches(
    address: str, pid: int, topic: str, partitions: int, records: int, value_bytes: int, seconds: float
) -> Result:
    """Ready-made batches with acks=all, five in flight on one connection: nearly all the work is the broker's.

    The load ends after so many records or so many seconds, whichever comes first.
    """
    per_batch = max(1, 65_536 // value_bytes)
    batch = wire.batch(os.urandom(value_bytes), per_batch)
    made = [wire.produce_request(topic, index, batch) for index in range(partitions)]
    touch(address, topic, partitions)
    connection, buffer = connect(address), bytearray(4096)
    sent = answered = 0
    meter = Meter(pid)
    until, total = time.perf_counter() + seconds, max(1, records // per_batch)
    while answered < sent or not sent:
        while sent < total and sent - answered < IN_FLIGHT:
            connection.sendall(made[sent % partitions])
            sent += 1
        if error := wire.produce_error(receive(connection, buffer), topic):
            raise RuntimeError(f"the broker answered error code {error}")
        answered += 1
        if time.perf_counter() >= until:
            total = sent
    measured = meter.stop()
    connection.close()
    return {"records_per_s": sent * per_batch / measured["seconds"], "bytes": sent * len(batch), **measured}


def fetch_batches(address: str, topic: str, partitions: int, records: int, value_bytes: int) -> Result:
    """Raw fetches of every partition, over and over; only batch headers are read, so the broker is what counts."""
    connection, buffer = connect(address), bytearray(8 << 20)
    begin = time.perf_counter()
    for _ in range(FETCH_PASSES):
        positions = [0] * partitions
        while sum(positions) < records:
            connection.sendall(wire.fetch_request(topic, positions, partition_bytes_max=1 << 20))
            wire.fetched(receive(connection, buffer), topic, positions)
    seconds = time.perf_counter() - begin
    connection.close()
    read = FETCH_PASSES * records
    return {"records_per_s": read / seconds, "mb_per_s": read * value_bytes / seconds / 1e6, "seconds": seconds}


def fetch_by_readers(readers: int, **arguments: Any) -> Result:
    """Do the raw fetches of several readers of one log at once, each in a process of its own; return their sum."""
    command = [sys.executable, "-m", "bench.load", fetch_batches.__name__, json.dumps(arguments)]
    running = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) for _ in range(readers)]
    measured = [json.loads(process.communicate()[0]) for process in running]
    return {name: sum(each[name] for each in measured) for name in ("records_per_s", "mb_per_s")}


LOADS = {
    load.__name__: load
    for load in (requests, commits, produce, consume, send_batches, fetch_batches, fetch_by_readers)
}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](**json.loads(sys.argv[2]))))
