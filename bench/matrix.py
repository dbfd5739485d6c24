"""Works that are measured at several numbers of partitions, on every broker in turn.

`bench/broker.py` plans and reports them. Each contender has one topic for each number of partitions. The topics are
created once and are used in every round, because Apache Kafka takes seconds to create 1,000 partitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import load, machine, sides

OS, SYNC = "os", "sync"
DEFAULT, FLUSHED = "kafka default", "kafka flush.messages=1"
OS_AND_SYNC = "os + one sync of a recycled file"
OS_AND_BARE_SYNC = "os + what a sync adds to a bare server's request"
# The `os` durability is measured in full where it always was; elsewhere only the single connection needs it.
OS_PARTITIONS = 4
WORKS = ("requests", "batches", "commits")
# Enough that every partition of __consumer_offsets is likely to hold some: Apache Kafka has 50 of them.
GROUPS = 256
REQUEST_VALUE_BYTES = 100
SYNCED_BYTES = 4096
# The warm-up only compiles code and touches every partition, so it takes less time than a round that counts.
WARM_UP_SHARE = 0.5

Samples = dict[tuple[str, str], list[float]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A broker and the topic settings with which it takes part."""

    label: str
    broker: sides.Running
    topic_config: dict[str, str] = field(default_factory=dict)

    @property
    def is_kafka(self) -> bool:
        """Whether the broker is Apache Kafka."""
        return self.label in (DEFAULT, FLUSHED)

    def topic(self, partitions: int) -> str:
        """Return the name of the contender's topic with so many partitions."""
        return f"bench-{partitions}-flushed" if self.topic_config else f"bench-{partitions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One load at one number of partitions; `size` is its connections or the bytes of its records."""

    name: str
    size: int
    partitions: int
    records: int = 0

    @property
    def key(self) -> str:
        """Return the name under which the work's samples are kept."""
        return f"{self.name} {self.size} {self.partitions}"

    @property
    def is_single_connection(self) -> bool:
        """Whether the work sends one-record requests one after the other."""
        return self.name == "requests" and self.size == 1

    def has(self, contender: Contender) -> bool:
        """Whether a contender takes part."""
        return contender.label != OS or self.partitions == OS_PARTITIONS or self.is_single_connection

    def run(self, contender: Contender, seconds: float) -> load.Result:
        """Run the load against one contender."""
        where: dict[str, object] = {
            "address": contender.broker.address,
            "pid": contender.broker.pid,
            "topic": contender.topic(self.partitions),
            "partitions": self.partitions,
            "seconds": seconds,
        }
        match self.name:
            case "requests":
                return load.run("requests", **where, connections=self.size, value_bytes=REQUEST_VALUE_BYTES)
            case "batches":
                return load.run("send_batches", **where, records=self.records, value_bytes=self.size)
            case _:
                return load.run("commits", **where, connections=self.size, groups=GROUPS)


def list_works(
    names: Sequence[str],
    partitions: Sequence[int],
    *,
    connections: Sequence[int],
    commit_connections: Sequence[int],
    records: dict[int, int],
) -> list[Work]:
    """Return the chosen works at every number of partitions, in the order in which they run."""
    works: list[Work] = []
    for count in partitions:
        if "requests" in names:
            works += [Work(name="requests", size=size, partitions=count) for size in connections]
        if "batches" in names:
            works += [Work(name="batches", size=size, partitions=count, records=n) for size, n in records.items()]
        if "commits" in names:
            works += [Work(name="commits", size=size, partitions=count) for size in commit_connections]
    return works


def measure(
    works: Sequence[Work],
    contenders: Sequence[Contender],
    *,
    rounds: int,
    warm_ups: int,
    seconds: float,
    folder: Path,
    samples: Samples,
    say: Say,
) -> None:
    """Run every work on every contender in turn, round after round, and add what counts to the samples."""
    _create_topics(works, contenders, say)
    for number in range(1 - warm_ups, rounds + 1):
        is_warm_up = number < 1
        # Nobody always goes first: whoever follows a heavy load may find a disk that is still busy.
        first = number % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        for work in works:
            say(f"{'warm-up' if is_warm_up else f'round {number} of {rounds}'}: {describe(work)}")
            seen = {}
            for contender in order:
                if work.has(contender):
                    share = WARM_UP_SHARE if is_warm_up else 1
                    seen[contender.label] = _run(work, contender, share * seconds)
            if is_warm_up:
                continue
            for label, figures in seen.items():
                for figure, value in figures.items():
                    samples[f"{figure} {work.key}", label].append(value)
            if work.is_single_connection:
                os_s = 1 / seen[OS]["rate"]
                for label, measured in (
                    (OS_AND_SYNC, machine.recycled_sync),
                    (OS_AND_BARE_SYNC, machine.sync_in_request),
                ):
                    samples[f"rate {work.key}", label].append(1 / (os_s + measured(folder, SYNCED_BYTES, seconds / 2)))


def _create_topics(works: Sequence[Work], contenders: Sequence[Contender], say: Say) -> None:
    for count in dict.fromkeys(work.partitions for work in works):
        for contender in contenders:
            say(f"a topic with {count:,} partitions: {contender.label}")
            address = contender.broker.address
            sides.create_topic(address, contender.topic(count), count, contender.topic_config)
    commits = next((work for work in works if work.name == "commits"), None)
    for contender in contenders:
        if commits and contender.is_kafka:
            # The first commit makes Apache Kafka create __consumer_offsets, whose settings are changed later on.
            commits.run(contender, 0.01)


def _run(work: Work, contender: Contender, seconds: float) -> dict[str, float]:
    """Run one work on one contender and return its figures."""
    if work.name == "commits" and contender.is_kafka:
        sides.flush_commits(contender.broker.address, is_on=contender.label == FLUSHED)
    seen = work.run(contender, seconds)
    figures = {"generator": seen["generator_processors"], "broker": seen["broker_processors"]}
    match work.name:
        case "requests":
            figures |= {
                "rate": seen["requests_per_s"],
                "p99": seen["p99_ms"],
                "written": seen["written_bytes"] / seen["bytes"],
            }
        case "batches":
            figures |= {"rate": seen["records_per_s"], "written": seen["written_bytes"] / seen["bytes"]}
        case _:
            figures["rate"] = seen["requests_per_s"]
    return figures


def describe(work: Work) -> str:
    """Return a work's title, as the report has it."""
    noun = "connection" if work.size == 1 else "connections"
    size = {100: "100 B", 1024: "1 KiB"}.get(work.size, f"{work.size} B")
    title = {
        "requests": f"one-record requests, {work.size} {noun}",
        "batches": f"produce, ready-made batches, {size}",
        "commits": f"OffsetCommits, {work.size} {noun}",
    }[work.name]
    return f"{title}, {work.partitions:,} {'partition' if work.partitions == 1 else 'partitions'}"
