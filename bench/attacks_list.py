"""The attacks of `bench/attacks.py`: what each does, how much of it, and the process that carries it out.

`python -m bench.attacks_list prepare|attack NAME JSON-ARGUMENTS` prints what the attacker saw as JSON. Attackers run
with a low priority, so that on a small machine they do not take the processors from those whom they attack: what the
others wait for is then the broker.
"""

import contextlib
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import attacks_link as link
from bench import sides, wire
from bench.attacks_link import LOG_TOPIC, PROBE_TOPIC, Link, open_socket, request
from bench.load import receive
from logmark.wire import batches, codecs, columns, frames, produce
from logmark.wire.schema import (
    create_topics,
    delete_topics,
    describe_configs,
    heartbeat,
    join_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    sync_group,
)

MIB = 1 << 20
BATCH_VALUE_BYTES = 900_000
SMALL_RECEIVE_BYTES = 16 << 10
NICE = 10
TOPIC_RESOURCE = 2
PRODUCE_VERSION = 7
# What a client can meet when the broker closes its connection or refuses it.
LOST = (OSError, RuntimeError)


class Attacker:
    """One attack; `prepare` makes what it needs beforehand, `attack` goes on until the time is over."""

    def __init__(self, address: str, seconds: float, sizes: dict[str, Any]) -> None:
        self.address = address
        self.sizes = sizes
        self.seconds = seconds
        self.began = self.until = 0.0
        self.saw: Counter[str] = Counter()

    def prepare(self) -> None:
        """Make topics and records; the broker is restarted afterwards."""

    def attack(self) -> None:
        """Attack until `until`, and count in `saw`."""
        raise NotImplementedError

    def run(self) -> dict[str, Any]:
        """Attack, and return from when to when, and what was seen."""
        self.begin()
        self.attack()
        return {"began": self.began, "ended": time.monotonic(), "saw": dict(self.saw)}

    def begin(self) -> None:
        """Attack from now on; called again by attackers that have made their requests only now."""
        self.began = time.monotonic()
        self.extend()

    def extend(self) -> None:
        """Let the time begin now, when all connections are open."""
        self.until = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the time of the attack is over."""
        return time.monotonic() >= self.until

    def fill(self, topic: str, megabytes: int) -> None:
        """Write uncompressed records to partition 0 of a topic."""
        if topic != PROBE_TOPIC:
            sides.create_topic(self.address, topic, 1)
        made = wire.produce_request(topic, 0, wire.batch(os.urandom(BATCH_VALUE_BYTES), 1))
        one = Link(self.address)
        for _ in range(-(-megabytes * 1_000_000 // BATCH_VALUE_BYTES)):
            if error := wire.produce_error(one.exchange(made), topic):
                raise RuntimeError(f"the broker answered error code {error}")
        one.close()

    def open_many(self, count: int, *, receive_bytes: int | None = None) -> list[socket.socket]:
        """Return so many connections, or as many as the broker accepts."""
        opened: list[socket.socket] = []
        with contextlib.suppress(*LOST):
            for _ in range(count):
                opened.append(open_socket(self.address, receive_bytes=receive_bytes))
        self.saw["connections"] += len(opened)
        return opened

    def in_threads(self, count: int, work: Callable[[int], None]) -> None:
        """Run a work in so many threads, each with its number, and wait for all of them."""
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.until - time.monotonic()) + 60)

    def repeat(self, work: Callable[[Link], None]) -> None:
        """Do a work again and again until the time is over, and connect again whenever the broker has closed."""
        while not self.is_over:
            one = None
            try:
                one = Link(self.address)
                while not self.is_over:
                    work(one)
            except LOST:
                self.saw["connections closed"] += 1
                time.sleep(0.01)
            finally:
                if one is not None:
                    one.close()


class UnreadFetches(Attacker):
    """Pipelines fetches on one connection and never reads."""

    def prepare(self) -> None:
        self.fill(LOG_TOPIC, self.sizes["megabytes"])

    def attack(self) -> None:
        one = open_socket(self.address, receive_bytes=SMALL_RECEIVE_BYTES)
        one.sendall(link.fetch_request({LOG_TOPIC: 0}) * self.sizes["fetches"])
        self.saw["fetches"] = self.sizes["fetches"]
        time.sleep(self.seconds)
        one.close()


class SlowReaders(Attacker):
    """Asks for records on many connections and takes a few kilobytes of them each second."""

    def prepare(self) -> None:
        self.fill(LOG_TOPIC, self.sizes["megabytes"])

    def attack(self) -> None:
        opened = self.open_many(self.sizes["readers"], receive_bytes=SMALL_RECEIVE_BYTES)
        for one in opened:
            one.sendall(link.fetch_request({LOG_TOPIC: 0}))
            one.setblocking(False)
        self.extend()
        while not self.is_over:
            began = time.monotonic()
            for one in opened:
                with contextlib.suppress(BlockingIOError):
                    try:
                        taken = len(one.recv(self.sizes["bytes_per_second"]))
                    except ConnectionError:
                        taken = 0
                    self.saw["bytes read" if taken else "reads of closed connections"] += taken or 1
            time.sleep(max(0.0, began + 1 - time.monotonic()))
        close_all(opened)


class Announcements(Attacker):
    """Announces large requests, sends four bytes of each, and waits."""

    def attack(self) -> None:
        opened = self.open_many(self.sizes["connections"])
        for one in opened:
            one.sendall(struct.pack(">i", self.sizes["announced_mib"] * MIB) + b"four")
        time.sleep(self.seconds)
        close_all(opened)


class SlowSenders(Attacker):
    """Sends large requests slowly, each on a connection of its own, and begins again when the broker closes it."""

    def attack(self) -> None:
        self.in_threads(self.sizes["connections"], self._send)

    def _send(self, _: int) -> None:
        size = self.sizes["announced_mib"] * MIB
        part = bytes(self.sizes["bytes_per_second"] // 10)
        while not self.is_over:
            try:
                with contextlib.closing(open_socket(self.address)) as one:
                    one.sendall(struct.pack(">i", size) + struct.pack(">hhih", wire.PRODUCE, 9, 1, -1))
                    one.settimeout(1)
                    while not self.is_over:
                        with contextlib.suppress(TimeoutError):
                            self.saw["bytes sent"] += one.send(part)
                        time.sleep(0.1)
            except LOST:
                self.saw["connections closed"] += 1
                time.sleep(0.1)


class IdleConnections(Attacker):
    """Opens connections and sends nothing."""

    def attack(self) -> None:
        opened = self.open_many(self.sizes["connections"])
        time.sleep(self.seconds)
        close_all(opened)


class ActiveConnections(Attacker):
    """Opens connections and sends a small request on one after the other."""

    def prepare(self) -> None:
        sides.create_topic(self.address, LOG_TOPIC, 1)

    def attack(self) -> None:
        opened = self.open_many(self.sizes["connections"])
        made = metadata_of([LOG_TOPIC])
        ready = select.epoll()
        by_descriptor = {one.fileno(): one for one in opened}
        for one in opened:
            one.setblocking(False)
            ready.register(one.fileno(), select.EPOLLIN)
        self.extend()
        began, sent = time.monotonic(), 0
        while not self.is_over:
            due = int((time.monotonic() - began) * self.sizes["requests_per_second"])
            while sent < due:
                with contextlib.suppress(OSError):
                    opened[sent % len(opened)].send(made)
                sent += 1
            for descriptor, _ in ready.poll(0.005):
                with contextlib.suppress(BlockingIOError):
                    if not lost(by_descriptor[descriptor]):
                        self.saw["answers"] += 1
                        continue
                    self.saw["connections closed"] += 1
                    ready.unregister(descriptor)
        self.saw["requests"] = sent
        close_all(opened)


class ManyTopics(Attacker):
    """Creates topics in one request, lists and describes them, and deletes them in one request."""

    def attack(self) -> None:
        names = [f"many-{number:05}" for number in range(self.sizes["topics"])]
        one = Link(self.address, timeout_s=240)
        with self._timed("create s"):
            answer = one.ask(create_topics, 5, topics=[new_topic(name, 1) for name in names], timeout_ms=240_000)
            self.saw["topics refused"] = sum(topic.error_code != 0 for topic in answer.topics)
        with self._timed("list s"):
            self.saw["bytes listed"] = len(one.exchange(metadata_of(None)))
        with self._timed("describe s"):
            self.saw["bytes described"] = len(one.exchange(configs_of(names)))
        with self._timed("delete s"):
            answer = one.ask(delete_topics, 4, topic_names=names, timeout_ms=240_000)
            self.saw["deletions refused"] = sum(topic.error_code != 0 for topic in answer.responses)
        one.close()

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.saw[name] = round(time.monotonic() - began, 2)  # type: ignore[assignment]


class RepeatedNames(Attacker):
    """Names one topic again and again in one DescribeConfigs."""

    def prepare(self) -> None:
        sides.create_topic(self.address, LOG_TOPIC, 1)

    def attack(self) -> None:
        made = configs_of([LOG_TOPIC] * self.sizes["names"])
        self.begin()

        def describe(one: Link) -> None:
            self.saw["bytes answered"] += len(one.exchange(made))
            self.saw["requests"] += 1

        self.repeat(describe)


class WaitingFetches(Attacker):
    """Waits for more bytes than will ever come, in the log that the well-behaved producer writes to."""

    def prepare(self) -> None:
        self.fill(PROBE_TOPIC, self.sizes["megabytes"])

    def attack(self) -> None:
        opened = self.open_many(self.sizes["fetches"])
        made = link.fetch_request({PROBE_TOPIC: 0}, min_bytes=self.sizes["min_bytes"], max_wait_ms=30_000)
        for one in opened:
            one.sendall(made)
        self.extend()
        buffer = bytearray(1 << 20)
        while not self.is_over:
            for one in select.select(opened, [], [], 0.2)[0]:
                try:
                    self.saw["bytes answered"] += len(receive(one, buffer))
                    self.saw["answers"] += 1
                    one.sendall(made)
                except LOST:
                    self.saw["connections closed"] += 1
                    opened.remove(one)
        close_all(opened)


class TailingFetches(Attacker):
    """Waits for the next record of one log on very many connections, and lets it have small ones all the time."""

    # Behind the correlation id, the throttle time, the error, the session, one topic and the head of one partition.
    _HIGH_WATERMARK_AT = 4 + 4 + 2 + 4 + 4 + 2 + len(LOG_TOPIC) + 4 + 4 + 2

    def prepare(self) -> None:
        self.fill(LOG_TOPIC, 1)

    def attack(self) -> None:
        opened = self.open_many(self.sizes["fetches"])
        ready = select.epoll()
        by_descriptor = {one.fileno(): one for one in opened}
        producer = Link(self.address)
        made = {(end := producer.log_end_offset(LOG_TOPIC)): self._request(end)}
        for one in opened:
            ready.register(one.fileno(), select.EPOLLIN)
            one.sendall(made[end])
        self.extend()
        threading.Thread(target=self._produce, args=(producer,), daemon=True).start()
        buffer = bytearray(1 << 20)
        while not self.is_over:
            for descriptor, _ in ready.poll(0.2):
                one = by_descriptor[descriptor]
                try:
                    end = struct.unpack_from(">q", receive(one, buffer), self._HIGH_WATERMARK_AT)[0]
                    if end not in made:
                        made = {end: self._request(end)}
                    one.sendall(made[end])
                    self.saw["answers"] += 1
                except LOST:
                    self.saw["connections closed"] += 1
                    ready.unregister(descriptor)
        close_all(opened)

    def _request(self, offset: int) -> bytes:
        return link.fetch_request({LOG_TOPIC: offset}, max_wait_ms=30_000)

    def _produce(self, one: Link) -> None:
        made = wire.produce_request(LOG_TOPIC, 0, wire.batch(bytes(100), 1))
        with contextlib.suppress(*LOST):
            while not self.is_over:
                one.exchange(made)
                self.saw["records"] += 1
                time.sleep(1 / self.sizes["records_per_second"])


class NewGroups(Attacker):
    """Commits an offset of another group with every request, many requests at a time on each connection."""

    def attack(self) -> None:
        self.in_threads(self.sizes["connections"], self._commit)

    def _commit(self, number: int) -> None:
        partition = offset_commit.RequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        topic = offset_commit.RequestTopic(name=PROBE_TOPIC, partitions=[partition])
        # The requests differ in the name of the group only.
        head, tail = request(offset_commit, 7, group_id="g" * 20, member_id="", topics=[topic]).split(b"g" * 20)
        pending = self.sizes["at_once"]
        groups = itertools.count()

        def commit(one: Link) -> None:
            names = (f"{number:05}-{next(groups):014}".encode() for _ in range(pending))
            one.send(b"".join(head + name + tail for name in names))
            for _ in range(pending):
                answer = link.read(offset_commit, 7, one.receive())
                error = answer.topics[0].partitions[0].error_code
                self.saw[f"commits with error code {error}" if error else "commits"] += 1

        self.repeat(commit)


class TopicChurn(Attacker):
    """Creates topics in one request, deletes them in another, and begins again."""

    def attack(self) -> None:
        names = [f"churn-{number:05}" for number in range(self.sizes["topics"])]
        topics = [new_topic(name, self.sizes["partitions"]) for name in names]

        def churn(one: Link) -> None:
            created = one.ask(create_topics, 5, topics=topics, timeout_ms=60_000)
            self.saw["topics refused"] += sum(topic.error_code != 0 for topic in created.topics)
            one.ask(delete_topics, 4, topic_names=names, timeout_ms=60_000)
            self.saw["partitions deleted"] += len(names) * self.sizes["partitions"]

        self.repeat(churn)


class LargeJoins(Attacker):
    """Joins groups with metadata of many megabytes, each client a group of its own."""

    def attack(self) -> None:
        blob = bytes(self.sizes["megabytes"] * 1_000_000)
        self.begin()
        self.in_threads(self.sizes["clients"], lambda number: self._join(number, blob))

    def _join(self, number: int, blob: bytes) -> None:
        made = link.join_request(f"large-{number}", "", metadata=blob, session_timeout_ms=10_000)

        def join(one: Link) -> None:
            joined = link.read(join_group, link.JOIN_VERSION, one.exchange(made))
            self.saw[f"joins with error code {joined.error_code}" if joined.error_code else "joins accepted"] += 1

        self.repeat(join)


class Members(Attacker):
    """Joins members to one group, or each to its own, and lets them send heartbeats."""

    def attack(self) -> None:
        members = [Member(one) for one in self.open_many(self.sizes["members"])]
        ready = select.epoll()
        by_descriptor = {member.socket.fileno(): member for member in members}
        for number, member in enumerate(members):
            member.group = f"crowd-{number % self.sizes['groups']}"
            ready.register(member.socket.fileno(), select.EPOLLIN)
            member.join()
        self.extend()
        while not self.is_over:
            for descriptor, _ in ready.poll(0.05):
                member = by_descriptor[descriptor]
                try:
                    self.saw[member.take()] += 1
                except LOST:
                    self.saw["connections closed"] += 1
                    ready.unregister(descriptor)
                    member.is_lost = True
            for member in members:
                member.send_heartbeat()
        close_all([member.socket for member in members])


class Member:
    """A member of a group that takes part in every rebalance."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.group = ""
        self.is_lost = False
        self._member = ""
        self._joined: Any = None
        self._awaits = ""
        self._beats_at = 0.0
        self._buffer = bytearray(4096)

    def join(self) -> None:
        """Ask to be in the group."""
        self._awaits = "joins"
        self.socket.sendall(link.join_request(self.group, self._member))

    def send_heartbeat(self) -> None:
        """Send a heartbeat if one is due."""
        if self._awaits or self.is_lost or time.monotonic() < self._beats_at:
            return
        self._awaits, self._beats_at = "heartbeats", time.monotonic() + 1
        made = request(
            heartbeat, 2, group_id=self.group, generation_id=self._joined.generation_id, member_id=self._member
        )
        with contextlib.suppress(OSError):
            self.socket.sendall(made)

    def take(self) -> str:
        """Take an answer, do what follows from it, and return what it was."""
        answer, awaited = receive(self.socket, self._buffer), self._awaits
        self._awaits = ""
        if awaited == "joins":
            self._joined = link.read(join_group, link.JOIN_VERSION, answer)
            error = self._joined.error_code
            self._member = "" if error else self._joined.member_id
            if error:
                self.join()
            else:
                self._awaits = "syncs"
                self.socket.sendall(link.sync_request(self.group, self._joined))
        else:
            error = link.read(*((sync_group, link.SYNC_VERSION) if awaited == "syncs" else (heartbeat, 2)), answer)
            error = error.error_code
            if error:
                self._member = self._member if error == link.REBALANCE_IN_PROGRESS else ""
                self.join()
        return f"{awaited} with error code {error}" if error else awaited


class Bombs(Attacker):
    """Produces batches of a few kilobytes that decompress to nearly the limit, one or more in a request."""

    def prepare(self) -> None:
        sides.create_topic(self.address, LOG_TOPIC, self.sizes["partitions"])

    def attack(self) -> None:
        inflated_bytes = self.sizes["inflated_mib"] * MIB
        made = [produce_to_all(bomb(codec, inflated_bytes), self.sizes["partitions"]) for codec in self.sizes["codecs"]]
        self.saw["bytes of the largest request"] = max(map(len, made))
        self.begin()
        self.in_threads(
            self.sizes["connections"], lambda number: self.repeat(lambda one: self.send(one, made[number % len(made)]))
        )

    def send(self, one: Link, made: bytes) -> None:
        """Send a Produce request, and count what became of its batches."""
        answer = produce.decode_response(PRODUCE_VERSION, one.exchange(made)[4:])
        for partition in answer.topics[0][1]:
            error = partition.error_code
            self.saw[f"batches with error code {error}" if error else "batches accepted"] += 1


class ExpensiveTopic(Bombs):
    """Produces to a topic with settings that make work of each batch; each is later than the one before."""

    def prepare(self) -> None:
        sides.create_topic(self.address, LOG_TOPIC, self.sizes["partitions"], self.sizes["settings"])

    def attack(self) -> None:
        value = bytes(random.Random(7).choices(b"ab", k=self.sizes["bytes"]))
        numbers = itertools.count()
        self.begin()

        def send(one: Link) -> None:
            later_ms = int(time.time() * 1000) + next(numbers) % 1000 * 10
            batch = bytes(batches.build([(None, value)], timestamp_ms=later_ms))
            self.send(one, produce_to_all(batch, self.sizes["partitions"]))

        self.in_threads(self.sizes["connections"], lambda _: self.repeat(send))


class DeepPipeline(Attacker):
    """Sends small requests on one connection without waiting for their answers, which it reads."""

    def prepare(self) -> None:
        sides.create_topic(self.address, LOG_TOPIC, 1)

    def attack(self) -> None:
        made, count = metadata_of([LOG_TOPIC]), self.sizes["requests"]
        size = 4 + len(Link(self.address).exchange(made))
        one = open_socket(self.address)
        while not self.is_over:
            sender = threading.Thread(target=one.sendall, args=(made * count,), daemon=True)
            sender.start()
            left = size * count
            while left:
                taken = len(one.recv(min(left, MIB)))
                if not taken:
                    self.saw["connections closed"] += 1
                    return
                left -= taken
            sender.join()
            self.saw["requests"] += count
        one.close()


class ManyPartitions(Attacker):
    """Asks for the offsets, the committed offsets and the metadata of very many partitions, again and again."""

    @property
    def _topics(self) -> list[str]:
        return [f"wide-{number:03}" for number in range(self.sizes["topics"])]

    def prepare(self) -> None:
        one = Link(self.address, timeout_s=240)
        one.wait_for_coordinator("wide")
        for name in self._topics:
            new = new_topic(name, self.sizes["partitions"])
            answer = one.ask(create_topics, 5, topics=[new], timeout_ms=240_000)
            if error := answer.topics[0].error_code:
                raise RuntimeError(f"the broker answered error code {error}")
        for name in self._topics:
            self._commit(one, name)
        one.close()

    def _commit(self, one: Link, name: str) -> None:
        partitions = [
            offset_commit.RequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
            for index in range(self.sizes["partitions"])
        ]
        topic = offset_commit.RequestTopic(name=name, partitions=partitions)
        deadline = time.monotonic() + 60
        while True:
            answer = one.ask(offset_commit, 7, group_id="wide", member_id="", topics=[topic])
            if not any(each.error_code for each in answer.topics[0].partitions):
                return
            if time.monotonic() > deadline:
                raise RuntimeError("offsets could not be committed in a minute")
            time.sleep(0.1)

    def attack(self) -> None:
        indexes = range(self.sizes["partitions"])
        ends = [
            list_offsets.RequestTopic(
                name=name,
                partitions=[list_offsets.RequestPartition(partition_index=index, timestamp=-1) for index in indexes],
            )
            for name in self._topics
        ]
        fetched = [offset_fetch.RequestTopic(name=name, partition_indexes=list(indexes)) for name in self._topics]
        made = {
            "ListOffsets": request(list_offsets, 5, replica_id=-1, topics=ends),
            "OffsetFetch": request(offset_fetch, 5, group_id="wide", topics=fetched),
            "Metadata": metadata_of(None),
        }
        chosen = self.sizes.get("only")
        works = [(name, one) for name, one in made.items() if chosen in (None, name)]
        self.begin()

        def ask(one: Link) -> None:
            for name, each in works:
                self.saw["bytes answered"] += len(one.exchange(each))
                self.saw[name] += 1

        self.in_threads(self.sizes["connections"], lambda _: self.repeat(ask))


class Churn(Attacker):
    """Opens and closes connections as fast as it can, some at a time."""

    def attack(self) -> None:
        host, port = self.address.rsplit(":", 1)
        reset = struct.pack("ii", 1, 0)
        while not self.is_over:
            wave: list[socket.socket] = []
            try:
                for _ in range(self.sizes["at_once"]):
                    wave.append(socket.create_connection((host, int(port)), timeout=10))
                    self.saw["connections"] += 1
            except OSError:
                self.saw["connections refused"] += 1
            for one in wave:
                # A reset leaves no port behind that would have to wait for a minute.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            close_all(wave)


class Garbage(Attacker):
    """Sends random bytes, requests with a random body, and halves of requests."""

    def attack(self) -> None:
        chance = random.Random(self.sizes["seed"])
        whole = wire.produce_request(PROBE_TOPIC, 0, wire.batch(bytes(2000), 1))
        kinds: Sequence[tuple[str, Callable[[], bytes]]] = (
            ("random bytes", lambda: chance.randbytes(chance.randrange(1, 4096))),
            ("random bodies", lambda: random_request(chance)),
            ("half requests", lambda: whole[: chance.randrange(1, len(whole))]),
        )
        while not self.is_over:
            name, make = kinds[chance.randrange(len(kinds))]
            try:
                with contextlib.closing(open_socket(self.address)) as one:
                    one.sendall(make())
                    if chance.random() < 0.1:
                        # Some wait for what the broker makes of it.
                        one.settimeout(0.05)
                        one.recv(4096)
                self.saw[name] += 1
            except LOST:
                self.saw[f"{name}, closed or unanswered"] += 1


def random_request(chance: random.Random) -> bytes:
    """Return a request with a header that could be right and a body that cannot."""
    key, version = chance.randrange(0, 70), chance.randrange(0, 14)
    body = struct.pack(">hhih", key, version, 1, 4) + b"junk" + chance.randbytes(chance.randrange(1, 2000))
    return struct.pack(">i", len(body)) + body


def bomb(codec: int, inflated_bytes: int) -> bytes:
    """Return a batch that decompresses to so many bytes."""
    value = bytes(inflated_bytes - 64)
    batch = batches.build([(None, value)], timestamp_ms=int(time.time() * 1000))
    batch[batches.HEADER_BYTES :] = codecs.compress(codec, bytes(batch[batches.HEADER_BYTES :]))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, columns.crc32c(batch, 21, len(batch) - 21))
    return bytes(batch)


def produce_to_all(batch: bytes, partitions: int) -> bytes:
    """Return a Produce request of the same batch for each of so many partitions."""
    data = [produce.PartitionData(index, memoryview(batch)) for index in range(partitions)]
    body = produce.encode_request(PRODUCE_VERSION, produce.ProduceRequest(None, -1, 30_000, [(LOG_TOPIC, data)]))
    return frames.request_frame(produce.KEY, PRODUCE_VERSION, 1, link.CLIENT, flexible=False, body=body)


def new_topic(name: str, partitions: int) -> create_topics.RequestTopic:
    """Return what CreateTopics says of one topic."""
    return create_topics.RequestTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )


def metadata_of(topics: list[str] | None) -> bytes:
    """Return a Metadata request of some topics or of all."""
    named = None if topics is None else [metadata.RequestTopic(name=name) for name in topics]
    return request(metadata, 5, topics=named, allow_auto_topic_creation=False)


def configs_of(topics: list[str]) -> bytes:
    """Return a DescribeConfigs request."""
    resources = [
        describe_configs.RequestResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
        for name in topics
    ]
    return request(describe_configs, 2, resources=resources)


def lost(one: socket.socket) -> bool:
    """Take what has come, and return whether the connection was closed instead."""
    try:
        return not one.recv(1 << 16)
    except ConnectionError:
        return True


def close_all(opened: Sequence[socket.socket]) -> None:
    """Close connections."""
    for one in opened:
        one.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack as the report names it, and its sizes: in full, for a quick look, and only to see that it runs."""

    name: str
    sentence: str
    attacker: type[Attacker]
    full: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)
    descriptors: int | None = None  # the limit of the broker's process
    has_kafka: bool = True

    def sizes(self, scale: str) -> dict[str, Any]:
        """Return the sizes of a scale; what a smaller one does not say is as in the larger one."""
        return {"full": self.full, "quick": self.full | self.quick, "tiny": self.full | self.quick | self.tiny}[scale]

    def describe(self, scale: str) -> str:
        """Return what the attack does, with its sizes."""
        return self.sentence.format(**self.sizes(scale))


_RECORDS = {"megabytes": 50}
_CODECS = [codecs.GZIP, codecs.LZ4, codecs.ZSTD]
ATTACKS = {
    attack.name: attack
    for attack in (
        Attack(
            name="unread-fetches",
            sentence="One connection pipelines {fetches} fetches of a log of {megabytes} MB and never reads.",
            attacker=UnreadFetches,
            full={"fetches": 100, **_RECORDS},
            tiny={"fetches": 5, "megabytes": 10},
        ),
        Attack(
            name="slow-readers",
            sentence="{readers:,} connections fetch {megabytes} MB each and read {bytes_per_second:,} bytes/s.",
            attacker=SlowReaders,
            full={"readers": 1000, "bytes_per_second": 4096, **_RECORDS},
            quick={"readers": 200},
            tiny={"readers": 10, "megabytes": 10},
        ),
        Attack(
            name="announcements-6",
            sentence="{connections} connections announce a request of {announced_mib} MiB, send 4 bytes and wait.",
            attacker=Announcements,
            full={"connections": 6, "announced_mib": 100},
        ),
        Attack(
            name="announcements-200",
            sentence="{connections} connections announce a request of {announced_mib} MiB, send 4 bytes and wait.",
            attacker=Announcements,
            full={"connections": 200, "announced_mib": 100},
            tiny={"connections": 20},
        ),
        Attack(
            name="slow-senders",
            sentence="{connections} connections send requests of {announced_mib} MiB at {bytes_per_second:,} bytes/s.",
            attacker=SlowSenders,
            full={"connections": 20, "announced_mib": 100, "bytes_per_second": 100_000},
            tiny={"connections": 4},
        ),
        Attack(
            name="idle-connections",
            sentence="{connections:,} connections stay open and send nothing.",
            attacker=IdleConnections,
            full={"connections": 5000},
            quick={"connections": 1000},
            tiny={"connections": 50},
        ),
        Attack(
            name="active-connections",
            sentence="{connections:,} connections send {requests_per_second:,} small requests/s in all.",
            attacker=ActiveConnections,
            full={"connections": 5000, "requests_per_second": 500},
            quick={"connections": 1000},
            tiny={"connections": 50},
        ),
        Attack(
            name="many-topics",
            sentence="{topics:,} topics are created in one request, listed, described and deleted in one request.",
            attacker=ManyTopics,
            full={"topics": 10_000},
            quick={"topics": 1000},
            tiny={"topics": 50},
        ),
        Attack(
            name="topic-churn",
            sentence="{topics:,} topics with {partitions} partitions each are created and deleted again and again.",
            attacker=TopicChurn,
            full={"topics": 1000, "partitions": 10},
            quick={"topics": 200},
            tiny={"topics": 5},
        ),
        Attack(
            name="repeated-names",
            sentence="DescribeConfigs requests that name one topic {names:,} times, one after the other.",
            attacker=RepeatedNames,
            full={"names": 100_000},
            tiny={"names": 1000},
        ),
        Attack(
            name="waiting-fetches",
            sentence="{fetches} fetches wait for {min_bytes:,} bytes in a log of {megabytes} MB that grows.",
            attacker=WaitingFetches,
            full={"fetches": 50, "min_bytes": 1_000_000_000, **_RECORDS},
            tiny={"fetches": 5, "megabytes": 10},
        ),
        Attack(
            name="tailing-fetches",
            sentence="{fetches:,} connections wait for each record of a log that gets {records_per_second} a second.",
            attacker=TailingFetches,
            full={"fetches": 2000, "records_per_second": 100},
            tiny={"fetches": 50},
        ),
        Attack(
            name="large-joins",
            sentence="{clients} clients send JoinGroups with {megabytes} MB of metadata.",
            attacker=LargeJoins,
            full={"clients": 23, "megabytes": 60},
            tiny={"clients": 2, "megabytes": 2},
        ),
        Attack(
            name="members",
            sentence="{members:,} members join one group and send a heartbeat each second.",
            attacker=Members,
            full={"members": 1000, "groups": 1},
            quick={"members": 200},
            tiny={"members": 10},
        ),
        Attack(
            name="groups",
            sentence="{members:,} members join a group each and send a heartbeat each second.",
            attacker=Members,
            full={"members": 1000, "groups": 1000},
            quick={"members": 200, "groups": 200},
            tiny={"members": 10, "groups": 10},
        ),
        Attack(
            name="new-groups",
            sentence="{connections} connections commit, {at_once} requests at a time, each for another group.",
            attacker=NewGroups,
            full={"connections": 4, "at_once": 100},
            tiny={"connections": 1, "at_once": 10},
        ),
        Attack(
            name="bombs",
            sentence="{connections} connections produce small batches that decompress to {inflated_mib} MiB each.",
            attacker=Bombs,
            full={"connections": 3, "partitions": 1, "inflated_mib": 100, "codecs": _CODECS},
            tiny={"inflated_mib": 10},
        ),
        Attack(
            name="bombs-in-one-request",
            sentence="Each request of one connection has {partitions} such batches, for as many partitions.",
            attacker=Bombs,
            full={"connections": 1, "partitions": 100, "inflated_mib": 100, "codecs": [codecs.ZSTD]},
            quick={"partitions": 20},
            tiny={"partitions": 3, "inflated_mib": 10},
        ),
        Attack(
            name="rolled-segments",
            sentence="One connection produces to {partitions} partitions of a topic with a segment for each record.",
            attacker=ExpensiveTopic,
            full={
                "connections": 1, "partitions": 50, "bytes": 1,
                "settings": {"segment.ms": "1", "segment.index.bytes": "24"},
            },
            tiny={"partitions": 3},
        ),
        Attack(
            name="recompression",
            sentence="One connection produces batches of {bytes:,} bytes to a topic that stores gzip of level 9.",
            attacker=ExpensiveTopic,
            full={
                "connections": 1, "partitions": 1, "bytes": 1_000_000,
                "settings": {"compression.type": "gzip", "compression.gzip.level": "9"},
            },
            tiny={"bytes": 100_000},
        ),
        Attack(
            name="deep-pipeline",
            sentence="One connection pipelines {requests:,} small requests at a time.",
            attacker=DeepPipeline,
            full={"requests": 50_000},
            tiny={"requests": 1000},
        ),
        *(
            Attack(
                name=f"partitions-{name}",
                sentence=f"{{connections}} connections send {api} requests of {{topics}} topics with {{partitions:,}} "
                "partitions each, one after the other.",
                attacker=ManyPartitions,
                full={"topics": 10, "partitions": 1000, "connections": 2, "only": api},
                quick={"partitions": 100},
                tiny={"topics": 2, "partitions": 10},
            )
            for name, api in (("ends", "ListOffsets"), ("commits", "OffsetFetch"), ("metadata", "Metadata"))
        ),
        Attack(
            name="churn",
            sentence="Connections are opened and closed as fast as possible, {at_once} at once.",
            attacker=Churn,
            full={"at_once": 10},
        ),
        Attack(
            name="churn-256",
            sentence="The same, {at_once} at once, on a broker whose process may have 256 descriptors.",
            attacker=Churn,
            full={"at_once": 400},
            descriptors=256,
            # A JVM needs more than that for its own files.
            has_kafka=False,
        ),
        Attack(
            name="garbage",
            sentence="Connections send random bytes, random bodies and halves of requests (seed {seed}).",
            attacker=Garbage,
            full={"seed": 7},
        ),
    )
}


def main(step: str, name: str, address: str, seconds: float, sizes: dict[str, Any]) -> None:
    """Prepare or carry out one attack."""
    attacker = ATTACKS[name].attacker(address, seconds, sizes)
    if step == "prepare":
        attacker.prepare()
        return
    os.nice(NICE)
    print(json.dumps(attacker.run()), flush=True)
    # Threads may still wait for an answer.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
