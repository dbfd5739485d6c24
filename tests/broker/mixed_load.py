"""A broker under mixed load for a long time: what its clients saw, and how much it used.

    python -m tests.broker.mixed_load --seconds 60 --seed 7 --samples samples.csv

Idempotent producers write to three topics: one that retention shortens by size, one that it shortens by age, and one
that is compacted. A reader follows all of them. Two consumer groups read two of them with members that come and go and
commit what they have read. An administrator creates and deletes topics and groups, and lists everything. The seed
decides who comes when, and what is written. Nobody is killed.

`run` returns what was seen. `Seen.problems` has what should not have been: an error of a client, an acknowledged record
that was not read, a second read that Kafka does not allow (see `group_reads`), a partition with two owners, a figure
that grows, an unclean stop, a finding of `logmark verify`. `Seen.counts` has the second reads that Kafka allows.
"""

import argparse
import csv
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tests.broker.group_reads import CommitOutcome, GroupReads, Member, Partition

SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "100",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.segment.bytes": str(1 << 20),
}
_SMALL = {"segment.bytes": str(1 << 20)}
BY_SIZE, BY_AGE, COMPACTED = "orders", "clicks", "prices"
TOPICS: Mapping[str, tuple[int, dict[str, str]]] = {
    BY_SIZE: (4, {**_SMALL, "retention.bytes": str(16 << 20), "retention.ms": "-1"}),
    # Long enough that nobody who is away for a moment misses a record.
    BY_AGE: (2, {**_SMALL, "retention.ms": "120000"}),
    COMPACTED: (2, {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1",
                    "delete.retention.ms": "10000"}),
}  # fmt: skip
PARTITIONS = [(topic, index) for topic, (count, _) in TOPICS.items() for index in range(count)]
GROUPS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "billing": ((BY_SIZE,), "range"),
    "fraud": ((BY_SIZE, BY_AGE), "cooperative-sticky"),
}
MEMBERS = 3
PRODUCERS = 3
RECORDS_PER_SECOND = 200  # of each producer
KEYS = 500
TOMBSTONES = 0.02
CLIENT = {"connections.max.idle.ms": 60_000, "log_level": 0}
SESSION_TIMEOUT_S = 45.0
DEADLINE_S = 120.0
# The group does not take these commits: the member is in a rebalance, or it is not a member any more.
REFUSALS = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)
NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT)
# A shorter run has not come to rest: segments and caches still fill.
FLAT_SECONDS_MIN = 600.0
GAPS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the broker used at one moment."""

    seconds: float
    memory_mb: float
    cleaner_mb: float
    descriptors: int
    threads: int
    files: int
    disk_mb: float


# How much the median of the last third may be above that of the second: a factor, and an amount.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "memory_mb": (1.05, 4),
    "cleaner_mb": (1.1, 8),
    "descriptors": (1.1, 10),
    "threads": (1.0, 2),
    "files": (1.1, 20),
    "disk_mb": (1.1, 32),
}


class Records:
    """The checksum of the record at each offset of each partition: of those acknowledged, or of those read."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._tags: dict[tuple[str, int], array[int]] = {}
        self.count = 0
        self.repeated: list[str] = []

    def add(self, message: Message) -> None:
        """Note a record; one whose offset was noted before is kept in `repeated`."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        with self._guard:
            tags = self._tags.setdefault((topic, partition), array("L"))
            if offset >= len(tags):
                tags.extend([0] * (offset + 1 - len(tags)))
            if tags[offset]:
                self.repeated.append(f"{topic}-{partition} offset {offset}")
            tags[offset] = tag_of(message)
            self.count += 1

    def of(self, topics: Sequence[str]) -> "dict[tuple[str, int], array[int]]":
        """Return what was noted of some topics."""
        with self._guard:
            return {key: tags[:] for key, tags in self._tags.items() if key[0] in topics}

    def covers(self, written: "Records", topics: Sequence[str]) -> bool:
        """Tell if every partition has been noted as far as in `written`."""
        mine = self.of(topics)
        return all(len(mine.get(key, ())) >= len(tags) for key, tags in written.of(topics).items())


def tag_of(message: Message) -> int:
    """Return a number that is not zero for the content of a record."""
    return zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b"")) + 1


@dataclass
class LoadReport:
    """What a run saw."""

    seed: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count; threads may add at the same time."""
        with _COUNTING:
            self.counts[what] += number

    def fail(self, who: str, what: object) -> None:
        """Note that something went wrong, and when."""
        self.errors.append(f"{who}: {what}")

    def thirds(self, figure: str) -> list[float]:
        """Return the median of a figure in each third of the run."""
        values = [float(getattr(sample, figure)) for sample in self.samples]
        size = max(1, len(values) // 3)
        parts = values[:size], values[size : 2 * size], values[2 * size :]
        return [statistics.median(part) for part in parts if part]

    @property
    def problems(self) -> list[str]:
        """Return everything that should not have been."""
        # A run that failed ended early.
        return self.errors or (self.growth() if self.seconds >= FLAT_SECONDS_MIN else [])

    def growth(self) -> list[str]:
        """Return the figures whose last third is above the second by more than the tolerance."""
        found = []
        for figure, (factor, amount) in TOLERANCES.items():
            _, second, last = self.thirds(figure)
            if last > factor * second + amount:
                found.append(f"{figure} grows: {second:,.1f} in the second third, {last:,.1f} in the last")
        return found

    def table(self, lines: int = 12) -> str:
        """Return samples from the whole run, evenly spread, as a table."""
        names = [each.name for each in fields(Sample)]
        step = max(1, len(self.samples) // lines)
        rows = [names, ["---"] * len(names)]
        rows += [[f"{getattr(sample, name):,.0f}" for name in names] for sample in self.samples[::step]]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


_COUNTING = threading.Lock()


class ServeProcess:
    """`logmark serve` on a fresh directory, with its log."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self._output = folder / "output"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "logmark", "serve", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0",
             *(f"--set={name}={value}" for name, value in SETTINGS.items())],
            stdout=subprocess.PIPE, stderr=self._output.open("w"), text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        found = re.search(r"listening on (\S+:\d+)", self.process.stdout.readline())
        assert found, self.output()
        self.address = found[1].rstrip(",")

    def output(self) -> str:
        """Return what the broker has logged."""
        return self._output.read_text()

    def sample(self, seconds: float) -> Sample:
        """Return what the broker uses now."""
        status = _status(self.process.pid)
        sizes = [_size(Path(folder, name)) for folder, _, names in os.walk(self.data_dir) for name in names]
        return Sample(
            seconds=round(seconds, 1),
            memory_mb=_memory_mb(status),
            cleaner_mb=sum(_memory_mb(_status(child)) for child in _children(self.process.pid)),
            descriptors=len(os.listdir(f"/proc/{self.process.pid}/fd")),
            threads=int(status["Threads"]),
            files=len(sizes),
            disk_mb=sum(sizes) / 1e6,
        )

    def stop(self) -> int:
        """Stop cleanly and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _memory_mb(status: Mapping[str, str]) -> float:
    return int(status.get("VmRSS", "0 kB").split()[0]) * 1024 / 1e6


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was deleted meanwhile
        return 0


class Load:
    """The clients of one run, each in a thread of its own, with random numbers of its own."""

    def __init__(self, address: str, seen: LoadReport) -> None:
        self.address = address
        self.seen = seen
        self.written = Records()
        self.last_of_key: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.read = {name: Records() for name in ("reader", *GROUPS)}
        self.groups = {
            name: GroupReads(name, session_timeout_s=SESSION_TIMEOUT_S, fail=seen.fail, count=seen.count)
            for name in GROUPS
        }
        # First the producers and the administrator end, then whoever reads may finish, then everybody ends.
        self.is_written = threading.Event()
        self.is_over = threading.Event()

    # Producers

    def produce(self, number: int, chance: random.Random) -> None:
        """Write at a steady rate; from time to time another producer, with a new producer id, goes on."""
        sent = 0
        due = time.monotonic()
        while not self.is_written.is_set():
            producer = Producer({**self._client("producer"), "enable.idempotence": True, "linger.ms": 5})
            self.seen.count("producers")
            for _ in range(int(RECORDS_PER_SECOND * chance.uniform(*self._spell(10, 60)))):
                if self.is_written.is_set():
                    break
                self._produce_one(producer, chance, f"{number}-{sent} ".encode())
                sent += 1
                due = max(due + 1 / RECORDS_PER_SECOND, time.monotonic() - 1)
                producer.poll(0)
                self.is_written.wait(max(0.0, due - time.monotonic()))
            if left := producer.flush(DEADLINE_S):
                self.seen.fail("producer", f"{left} records without an answer")

    def _produce_one(self, producer: Producer, chance: random.Random, head: bytes) -> None:
        topic = chance.choice((BY_SIZE, BY_SIZE, BY_AGE, COMPACTED))
        value: bytes | None = head + b"x" * chance.randrange(100, 2000)
        key = b"%d" % chance.randrange(KEYS)
        if topic == COMPACTED and chance.random() < TOMBSTONES:
            value = None
        producer.produce(topic, value, key=key, on_delivery=self._acknowledged)

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.seen.fail("producer", error)
            return
        self.written.add(message)
        if message.topic() == COMPACTED:
            key = message.partition(), message.key()
            offset = message.offset(), tag_of(message) if message.value() is not None else 0
            with _COUNTING:
                self.last_of_key[key] = max(offset, self.last_of_key.get(key, offset))  # type: ignore[index,type-var]

    # Readers

    def follow(self, _: int, chance: random.Random) -> None:
        """Read all topics from their beginning, without a group, and commit now and then."""
        consumer = Consumer({**self._client("reader"), "group.id": "reader", **self._reading})
        consumer.assign([TopicPartition(*key, 0) for key in PARTITIONS])
        positions: dict[Partition, int] = {}
        commits_at = 0.0
        try:
            while not self.is_over.is_set():
                if (message := self._poll(consumer, "reader")) is not None:
                    positions[_key(message)] = message.offset() + 1  # type: ignore[operator]
                if time.monotonic() >= commits_at and positions:
                    commits_at = time.monotonic() + chance.uniform(0.1, 2)
                    if self._commit(consumer, positions) is CommitOutcome.REFUSED:
                        self.seen.fail("reader", f"the broker refused the commit of {positions}")
        finally:
            consumer.close()

    def be_member(self, number: int, chance: random.Random) -> None:
        """Be a member of a group for a while, stay away for a while, and come back as another member."""
        group = list(GROUPS)[number % len(GROUPS)]
        topics, strategy = GROUPS[group]
        reads = self.groups[group]
        times = 0
        while not self.is_over.is_set():
            times += 1
            member = Member(f"member {number}.{times}")
            consumer = Consumer(
                {**self._client(group), "group.id": group, "partition.assignment.strategy": strategy, **self._reading}
            )

            def assign(_: Consumer, added: list[TopicPartition], member: Member = member) -> None:
                reads.assign(member, map(_key, added))

            def revoke(consumer: Consumer, revoked: list[TopicPartition], member: Member = member) -> None:
                keys = set(map(_key, revoked))
                mine = {key: position for key, position in member.positions.items() if key in keys}
                reads.give_up(member, keys, self._commit_as(reads, member, consumer, mine))

            def lose(_: Consumer, lost: list[TopicPartition], member: Member = member) -> None:
                self.seen.count("members that lost their partitions")
                reads.give_up(member, map(_key, lost), CommitOutcome.REFUSED)

            consumer.subscribe(list(topics), on_assign=assign, on_revoke=revoke, on_lost=lose)
            self.seen.count("members that joined")
            try:
                self._read_as(member, consumer, group, chance)
            finally:
                # Else the group would wait for a member that never comes back.
                consumer.close()
            if not self.is_written.is_set():
                self.is_written.wait(chance.uniform(*self._spell(1, 8)))

    def _read_as(self, member: Member, consumer: Consumer, group: str, chance: random.Random) -> None:
        """Read for a while, or if nothing more is written, until everybody has read everything; then commit.

        A member that leaves in a rebalance cannot commit, so it takes part until the rebalance is over.
        """
        reads = self.groups[group]
        until = time.monotonic() + chance.uniform(*self._spell(10, 60))
        commits_at = 0.0
        while not self.is_over.is_set() and (time.monotonic() < until or self.is_written.is_set()):
            self._read_one(member, consumer, group)
            if time.monotonic() >= commits_at:
                commits_at = time.monotonic() + chance.uniform(0.1, 2)
                self._commit_as(reads, member, consumer, member.positions)
        deadline = time.monotonic() + DEADLINE_S
        while self._commit_as(reads, member, consumer, member.positions) is not CommitOutcome.ACKNOWLEDGED:
            if time.monotonic() > deadline:
                self.seen.fail(group, f"a rebalance was not over after {DEADLINE_S:g} s")
                return
            self._read_one(member, consumer, group)
        member.positions.clear()

    def _read_one(self, member: Member, consumer: Consumer, group: str) -> None:
        if (message := self._poll(consumer, group)) is not None:
            self.groups[group].read(member, _key(message), message.offset())  # type: ignore[arg-type]

    def _poll(self, consumer: Consumer, name: str) -> Message | None:
        message = consumer.poll(0.1)
        if message is None:
            return None
        if message.error():
            self.seen.fail(name, message.error())
            return None
        self.read[name].add(message)
        return message

    def _commit_as(
        self, reads: GroupReads, member: Member, consumer: Consumer, positions: Mapping[Partition, int]
    ) -> CommitOutcome:
        positions = dict(positions)
        return reads.commit(member, positions, lambda: self._commit(consumer, positions))

    def _commit(self, consumer: Consumer, positions: Mapping[Partition, int]) -> CommitOutcome:
        """Commit positions.

        A member that goes on reading in a rebalance, as with cooperative-sticky, is told to commit later: between the
        answers to JoinGroup and SyncGroup, or with the generation before. Apache Kafka does the same.
        """
        try:
            offsets = [TopicPartition(*key, offset) for key, offset in positions.items()]
            committed = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            code = error.args[0].code()
            if code in REFUSALS:
                self.seen.count("commits that the group refused")
                return CommitOutcome.REFUSED
            if code in NO_ANSWER:
                self.seen.count("commits without an answer")
                return CommitOutcome.UNKNOWN
            raise
        for each in committed or ():
            if each.error is not None:
                raise KafkaException(each.error)
        self.seen.count("commits")
        return CommitOutcome.ACKNOWLEDGED

    # The administrator

    def administer(self, _: int, chance: random.Random) -> None:
        """Create a topic, use it, list everything, and delete the topic."""
        number = 0
        while not self.is_written.is_set():
            admin = AdminClient(self._client("administrator"))
            for _ in range(20):
                if self.is_written.is_set():
                    break
                self._use_a_topic(admin, f"short-{number:05}", chance.randrange(1, 5))
                self._list(admin)
                number += 1

    def _use_a_topic(self, admin: AdminClient, topic: str, partitions: int) -> None:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
        producer = Producer({**self._client("administrator"), "enable.idempotence": True})
        for index in range(partitions):
            producer.produce(topic, b"x" * 100, partition=index)
        if left := producer.flush(DEADLINE_S):
            self.seen.fail("administrator", f"{left} records of {topic} without an answer")
        group = f"group-of-{topic}"
        consumer = Consumer({**self._client("administrator"), "group.id": group, **self._reading})
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found = consumer.consume(partitions, DEADLINE_S)
        if len(found) != partitions or any(message.error() for message in found):
            self.seen.fail("administrator", f"{len(found)} of {partitions} records of {topic} were read")
        consumer.commit(offsets=[TopicPartition(topic, index, 1) for index in range(partitions)], asynchronous=False)
        consumer.close()
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
        admin.delete_topics([topic])[topic].result(DEADLINE_S)
        self.seen.count("topics created and deleted")

    def _list(self, admin: AdminClient) -> None:
        topics = admin.list_topics(timeout=DEADLINE_S).topics
        if missing := TOPICS.keys() - topics.keys():
            self.seen.fail("administrator", f"{missing} were not listed")
        admin.list_consumer_groups().result(DEADLINE_S)
        for described in admin.describe_consumer_groups(list(GROUPS)).values():
            group = described.result(DEADLINE_S)
            owned = Counter(_key(each) for member in group.members for each in member.assignment.topic_partitions)
            if twice := [key for key, owners in owned.items() if owners > 1]:
                self.seen.fail(group.group_id, f"{twice} have two owners in one generation")
        for config in admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in TOPICS]).values():
            config.result(DEADLINE_S)
        for offset in admin.list_offsets({TopicPartition(*key): OffsetSpec.latest() for key in PARTITIONS}).values():
            offset.result(DEADLINE_S)
        self.seen.count("listings")

    # All of them

    @property
    def _reading(self) -> dict[str, Any]:
        return {
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": int(SESSION_TIMEOUT_S * 1000),
        }

    def _client(self, who: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "error_cb": lambda error: self.seen.fail(who, error),
            "client.id": who,
            **CLIENT,
        }

    def _spell(self, low: float, high: float) -> tuple[float, float]:
        """Return the bounds of how long somebody comes or goes: shorter in a short run."""
        share = min(1.0, self.seen.seconds / 120)
        return low * share, high * share

    def start(self) -> list[threading.Thread]:
        """Commit where the groups begin, and start everybody."""
        for group, (topics, _) in GROUPS.items():
            consumer = Consumer({**self._client(group), "group.id": group, **self._reading})
            self._commit(consumer, {(topic, each): 0 for topic in topics for each in range(TOPICS[topic][0])})
            consumer.close()
        works: list[tuple[Callable[[int, random.Random], None], int]] = [
            (self.follow, 1),
            (self.be_member, MEMBERS * len(GROUPS)),
            (self.produce, PRODUCERS),
            (self.administer, 1),
        ]
        threads = []
        for work, count in works:
            for number in range(count):
                chance = random.Random(f"{self.seen.seed} {work.__name__} {number}")
                name = f"{work.__name__} {number}"
                threads.append(threading.Thread(name=name, target=self._run, args=(work, number, chance), daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _run(self, work: Callable[[int, random.Random], None], number: int, chance: random.Random) -> None:
        try:
            work(number, chance)
        except (KafkaException, AssertionError, KeyError, TypeError, ValueError) as error:
            self.seen.fail(f"{work.__name__} {number}", f"{type(error).__name__}: {error}")

    def has_read_all(self) -> bool:
        """Tell if every reader has come to the end of what it reads."""
        topics = {"reader": (BY_SIZE, BY_AGE), **{group: names for group, (names, _) in GROUPS.items()}}
        return all(self.read[name].covers(self.written, topics[name]) for name in topics)

    def check(self) -> None:
        """Note every acknowledged record that a reader has not read, what nobody wrote, and what was read twice.

        A group may read some records twice. Its `GroupReads` has checked which.
        """
        for name, (topics, _) in {"reader": ((BY_SIZE, BY_AGE), ""), **GROUPS}.items():
            found = self.read[name]
            if name not in GROUPS:
                for repeated in found.repeated[:GAPS_SHOWN]:
                    self.seen.fail(name, f"{repeated} was read more than once")
            tags = found.of(topics)
            for key, wanted in self.written.of(topics).items():
                _compare(self.seen, name, key, wanted, tags.get(key, array("L")))
        for repeated in self.written.repeated[:GAPS_SHOWN]:
            self.seen.fail("producer", f"{repeated} was acknowledged twice")
        self._check_compacted()

    def _check_compacted(self) -> None:
        """Read the compacted topic from its beginning: it has the last record of each key, and nothing else."""
        reading = {**self._reading, "enable.partition.eof": True}
        consumer = Consumer({**self._client("check"), "group.id": "check", **reading})
        count = TOPICS[COMPACTED][0]
        consumer.assign([TopicPartition(COMPACTED, index, 0) for index in range(count)])
        wanted, ended, last = self.written.of([COMPACTED]), set[int](), dict[tuple[int, bytes], tuple[int, int]]()
        read = 0
        while len(ended) < count:
            message = consumer.poll(DEADLINE_S)
            if message is None:
                self.seen.fail("check", f"{COMPACTED} could not be read")
                break
            if message.error():
                if message.error().code() != KafkaError._PARTITION_EOF:
                    self.seen.fail("check", message.error())
                    break
                ended.add(message.partition())
                continue
            read += 1
            if wanted[_key(message)][message.offset()] != tag_of(message):
                self.seen.fail("check", f"{_key(message)} offset {message.offset()} is not what was acknowledged")
            newest = message.offset(), tag_of(message) if message.value() is not None else 0
            last[message.partition(), message.key()] = newest
        consumer.close()
        for key, (offset, tag) in self.last_of_key.items():
            # A tombstone is removed itself some time later.
            if last.get(key) != (offset, tag) and (tag or key in last):
                self.seen.fail("check", f"the last record of key {key} is {last.get(key)}, not {(offset, tag)}")
        self.seen.count("records left in the compacted topic", read)


def _key(source: Any) -> tuple[str, int]:
    """Return topic and partition of a message or of a TopicPartition."""
    if isinstance(source, TopicPartition):
        return source.topic, source.partition
    return source.topic(), source.partition()


def _compare(seen: LoadReport, name: str, key: tuple[str, int], wanted: "array[int]", found: "array[int]") -> None:
    if wanted == found:
        return
    found.extend([0] * (len(wanted) - len(found)))
    wanted = wanted + array("L", [0] * (len(found) - len(wanted)))
    wrong = [offset for offset, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1]]
    shown = ", ".join(map(str, wrong[:GAPS_SHOWN]))
    seen.fail(name, f"{len(wrong)} records of {key[0]}-{key[1]} are missing or others, the first at {shown}")


def run(folder: Path, *, seconds: float, seed: int, say: Callable[[str], None] = lambda _: None) -> LoadReport:
    """Load a fresh broker for so many seconds, stop it, verify its directory, and return what was seen."""
    seen = LoadReport(seed=seed, seconds=seconds)
    broker = ServeProcess(folder)
    try:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        new = [NewTopic(name, partitions, 1, config=config) for name, (partitions, config) in TOPICS.items()]
        for created in admin.create_topics(new).values():
            created.result(DEADLINE_S)
        load = Load(broker.address, seen)
        threads = load.start()
        began = time.monotonic()
        _sample(broker, load, began, say)
        load.is_written.set()
        _wait(lambda: not any(thread.is_alive() for thread in threads if _writes(thread)) and load.has_read_all())
        load.is_over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        if any(thread.is_alive() for thread in threads):
            seen.fail("run", "a client did not end")
        load.check()
        seen.count("records acknowledged", load.written.count)
        for name, records in load.read.items():
            seen.count(f"records read by {name}", records.count)
    finally:
        exit_code = broker.stop()
    if exit_code:
        seen.fail("broker", f"it stopped with exit code {exit_code}: {broker.output()[-2000:]}")
    if "Traceback" in broker.output():
        seen.fail("broker", f"it logged a traceback: {broker.output()[-2000:]}")
    verified = subprocess.run(
        [sys.executable, "-m", "logmark", "verify", str(broker.data_dir)], capture_output=True, text=True, check=False
    )
    if verified.returncode:
        seen.fail("verify", verified.stdout[-2000:] + verified.stderr[-2000:])
    return seen


def _writes(thread: threading.Thread) -> bool:
    """Tell if a thread writes: its work ends when nothing more is to be written."""
    return thread.name.startswith(("produce", "administer"))


def _sample(broker: ServeProcess, load: Load, began: float, say: Callable[[str], None]) -> None:
    """Take samples until the time is over; end at once when something has gone wrong."""
    seen = load.seen
    every_s = min(5.0, max(0.5, seen.seconds / 60))
    while (elapsed := time.monotonic() - began) < seen.seconds and not seen.errors:
        seen.samples.append(broker.sample(elapsed))
        if len(seen.samples) % 12 == 1:
            said = ", ".join(f"{each.name} {getattr(seen.samples[-1], each.name):,.0f}" for each in fields(Sample))
            say(f"{said}, records {load.written.count:,}")
        time.sleep(max(0.0, min(every_s, seen.seconds - elapsed)))


def _wait(is_true: Callable[[], bool]) -> None:
    """Wait until something is true, for a while at most: what is missing then is told by the check."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> int:
    """Run it and print what was seen; return 1 if something should not have been."""
    parser = argparse.ArgumentParser(description="A broker under mixed load for a long time.")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--samples", type=Path, metavar="FILE", help="write all samples here, as CSV")
    options = parser.parse_args()
    print(f"Seed {options.seed}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="logmark-mixed-") as folder:
        seen = run(Path(folder), seconds=options.seconds, seed=options.seed, say=lambda line: print(line, flush=True))
    if options.samples is not None:
        with options.samples.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([each.name for each in fields(Sample)])
            writer.writerows([getattr(sample, each.name) for each in fields(Sample)] for sample in seen.samples)
    print(seen.table())
    for what, count in seen.counts.items():
        print(f"{what}: {count:,}")
    for problem in seen.problems:
        print(f"PROBLEM: {problem}")
    return 1 if seen.problems else 0


if __name__ == "__main__":
    sys.exit(main())
