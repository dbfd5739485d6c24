"""The loads: each runs in a process of its own, against any broker, and prints what it saw as JSON.

`python -m bench.load NAME JSON-ARGUMENTS`
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import wire

REPOSITORY = Path(__file__).resolve().parents[1]
# A log of 100 MB is read in the time that a connection takes to warm up, so it is read several times.
FETCH_PASSES = 5

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


def requests(address: str, topic: str, partitions: int, connections: int, seconds: float, value_bytes: int) -> Result:
    """One-record Produce requests with acks=all, one in flight on each connection."""
    record = wire.batch(os.urandom(value_bytes), 1)
    made = [wire.produce_request(topic, index, record) for index in range(partitions)]
    opened = [connect(address) for _ in range(connections)]
    begin = time.perf_counter()
    until = begin + seconds
    # A selector costs more than a single connection's request, so one connection is simply waited for.
    latencies = _in_turn(opened[0], made[0], topic, until) if connections == 1 else _at_once(opened, made, topic, until)
    elapsed = time.perf_counter() - begin
    for connection in opened:
        connection.close()
    latencies.sort()
    return {
        "requests_per_s": len(latencies) / elapsed,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[int(0.99 * (len(latencies) - 1))],
    }


def _in_turn(connection: socket.socket, request: bytes, topic: str, until: float) -> list[float]:
    """How long each request took, one after the other."""
    clock, latencies = time.perf_counter, list[float]()
    connection.settimeout(None)
    sent = clock()
    while sent < until:
        connection.send(request)
        _check(connection, topic)
        now = clock()
        latencies.append(now - sent)
        sent = now
    return latencies


def _at_once(opened: list[socket.socket], made: list[bytes], topic: str, until: float) -> list[float]:
    """How long each request took, with one under way on every connection all the time."""
    clock, latencies = time.perf_counter, list[float]()
    # Neither a selector's objects nor a parsed answer: a generator that is busy itself measures itself.
    ready, sent, requests = select.epoll(), dict[int, float](), dict[int, bytes]()
    connections = {connection.fileno(): connection for connection in opened}
    for number, (descriptor, connection) in enumerate(connections.items()):
        requests[descriptor] = made[number % len(made)]
        ready.register(descriptor, select.EPOLLIN)
        sent[descriptor] = clock()
        connection.send(requests[descriptor])
    now = clock()
    while now < until:
        for descriptor, _ in ready.poll(30):
            connection = connections[descriptor]
            _check(connection, topic)
            now = clock()
            latencies.append(now - sent[descriptor])
            sent[descriptor] = now
            connection.send(requests[descriptor])
    return latencies


def _check(connection: socket.socket, topic: str) -> None:
    """Takes one whole answer and sees that it is a good one."""
    answer = connection.recv(4096)
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        answer += connection.recv(4096)
    if error := wire.produce_error(answer, topic, at=4):
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


def send_batches(address: str, topic: str, partitions: int, records: int, value_bytes: int) -> Result:
    """Ready-made batches with acks=all, five in flight on one connection: nearly all the work is the broker's."""
    per_batch = max(1, 65_536 // value_bytes)
    batch = wire.batch(os.urandom(value_bytes), per_batch)
    made = [wire.produce_request(topic, index, batch) for index in range(partitions)]
    connection, buffer = connect(address), bytearray(4096)
    total = records // per_batch
    begin = time.perf_counter()
    for number in range(total + 5):
        if number < total:
            connection.sendall(made[number % partitions])
        if number >= 5 and (error := wire.produce_error(receive(connection, buffer), topic)):
            raise RuntimeError(f"the broker answered error code {error}")
    seconds = time.perf_counter() - begin
    connection.close()
    sent = total * per_batch
    return {"records_per_s": sent / seconds, "mb_per_s": sent * value_bytes / seconds / 1e6, "seconds": seconds}


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


LOADS = {load.__name__: load for load in (requests, produce, consume, send_batches, fetch_batches)}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](**json.loads(sys.argv[2]))))
