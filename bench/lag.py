"""One full sample of a large cluster, on Logmark and on Apache Kafka, beside Kafka's own tool describing every group.

    python bench/lag.py [--output json] [--rounds N] [--tiny] [--record]

100 topics of 100 partitions, 1,000 groups with 100 commits each. A sample is every group's state and commits, every log
start and end, and the age of every lag from stored samples; it runs in a process of its own, whose peak memory is
reported. While it runs, another connection asks the broker for the simplest thing it can: how long the slowest of those
answers takes says how long a sample holds a broker up.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import report
from bench.load import REPOSITORY, connect, receive
from bench.report import Row, middle
from bench.sides import TOPIC_OF_START, Running, kafka, logmark
from bench.wire import metadata_request
from logmark.client.answers import NewTopic
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.lag.ages import Method, compute_ages
from logmark.offsets.lag.history import History
from logmark.offsets.lag.sample import Sample, take_sample
from tests.harness import distribution
from tests.harness.tools import CONSUMER_GROUPS, java_command

RECORDS = 20
EVERY_MS = 10_000
TOOL_JVM = ("-Xmx512M", "-server", "-XX:+UseG1GC")  # as kafka-run-class.sh starts a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large the cluster is, and how much past its history has."""

    topics: int
    partitions: int
    groups: int
    samples: int
    rounds: int

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        return cls(topics=100, partitions=100, groups=1_000, samples=360, rounds=rounds)

    @classmethod
    def tiny(cls) -> "Plan":
        return cls(topics=2, partitions=3, groups=5, samples=5, rounds=1)

    @property
    def pairs(self) -> int:
        return self.groups * self.partitions


def topic_name(number: int) -> str:
    """A topic's name."""
    return f"lag-{number:03}"


def fill(address: str, plan: Plan, tell: Callable[[str], None]) -> None:
    """Makes the topics, writes a few records to every partition, and commits for every group."""
    from confluent_kafka import Producer

    chance = random.Random(7)
    with Client(address, timeout_s=120) as client:
        names = [topic_name(number) for number in range(plan.topics)]
        for at in range(0, len(names), 10):
            new = [NewTopic(name=name, partitions=plan.partitions) for name in names[at : at + 10]]
            if failures := client.create_topics(new):
                raise RuntimeError(f"topics were not made: {failures}")
        tell(f"  {len(names)} topics made")
        producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "log_level": 0})
        for name in names:
            for number in range(RECORDS * plan.partitions):
                producer.produce(name, b"." * 50, partition=number % plan.partitions)
            if producer.flush(300):
                raise RuntimeError("records without an answer")
        tell("  records written")
        for number in range(plan.groups):
            name = topic_name(number % plan.topics)
            offsets = {TopicPartition(name, one): chance.randrange(RECORDS) for one in range(plan.partitions)}
            client.commit(f"group-{number:04}", dict(offsets))
        tell(f"  {plan.pairs:,} offsets committed")


def make_history(path: Path, sample: Sample, plan: Plan) -> None:
    """A past for this sample: every partition's end grew evenly to where it is, a sample every ten seconds."""
    with History(path, cluster_id=sample.cluster_id) as history:
        for index in range(plan.samples):
            part = index / plan.samples
            ends = {one: int(end * part) for one, end in sample.ends.items()}
            at_ms = sample.at_ms - (plan.samples - index) * EVERY_MS
            history.add(replace(sample, at_ms=at_ms, ends=ends))


def look(address: str, history: Path) -> dict[str, float]:
    """One full sample with ages from history, as a fresh process takes it; what it took and what it used."""
    began, cpu_began = time.perf_counter(), time.process_time()
    with Client(address, timeout_s=60) as client:
        sample = take_sample(client)
    sampled = time.perf_counter()
    with History(history, cluster_id=sample.cluster_id, read_only=True) as past:
        ages = compute_ages(sample, history=past)
    ended = time.perf_counter()
    methods = {age.method for age in ages.found.values()}
    assert methods <= {Method.SAMPLES}, methods
    return {
        "sample_s": sampled - began,
        "ages_s": ended - sampled,
        "total_s": ended - began,
        "cpu_s": time.process_time() - cpu_began,
        "requests": sample.requests,
        "pairs": sample.pairs,
        "partitions": len(sample.ends),
        "aged": len(ages.found),
        "lag": sample.total().records,
        "memory_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """The most memory that this process ever had; what the kernel counts otherwise has that of its parent too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def looked(address: str, history: Path) -> dict[str, float]:
    """`look` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.lag", "--look", address, str(history)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class Beside:
    """Asks a broker for nothing much, again and again, and remembers the slowest answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_over = threading.Event()
        self.slowest_ms = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        buffer = bytearray(1 << 20)
        with connect(self._address) as connection:
            while not self._is_over.wait(0.005):
                began = time.perf_counter()
                connection.sendall(metadata_request(TOPIC_OF_START))
                receive(connection, buffer)
                self.slowest_ms = max(self.slowest_ms, 1000 * (time.perf_counter() - began))


def described(address: str, plan: Plan) -> float:
    """Seconds that Kafka's own tool takes to describe every group; it tells neither seconds nor log starts."""
    command = java_command(
        CONSUMER_GROUPS,
        ["--bootstrap-server", address, "--describe", "--all-groups", "--timeout", "300000"],
        jvm=TOOL_JVM,
    )
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - began
    lines = sum(line.startswith("group-") for line in done.stdout.splitlines())
    if lines != plan.pairs:
        raise RuntimeError(
            f"the tool described {lines} partitions of {plan.pairs}: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return took_s


@dataclass(slots=True)
class Seen:
    """What the rounds on one side brought."""

    looks: list[dict[str, float]]
    slowest_ms: list[float]
    tool_s: list[float]
    broker_s: list[float]

    def of(self, name: str) -> float:
        return middle(look[name] for look in self.looks)


def side(running: Running, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Seen:
    """Fills one broker and measures it."""
    tell(f"{running.name}: {plan.topics * plan.partitions:,} partitions, {plan.groups:,} groups")
    fill(running.address, plan, tell)
    with Client(running.address, timeout_s=60) as client:
        sample = take_sample(client)
    assert sample.pairs == plan.pairs, f"{sample.pairs} of {plan.pairs} pairs, {sample.notes}"
    history = folder / f"{running.name.split()[0]}.sqlite"
    make_history(history, sample, plan)
    tell(f"  history of {plan.samples} samples: {history.stat().st_size / 1e6:.1f} MB")
    seen = Seen([], [], [], [])
    for number in range(plan.rounds):
        used_s = running.cpu_seconds()
        with Beside(running.address) as beside:
            seen.looks.append(looked(running.address, history))
        seen.broker_s.append(running.cpu_seconds() - used_s)
        seen.slowest_ms.append(beside.slowest_ms)
        seen.tool_s.append(described(running.address, plan))
        tell(f"  round {number + 1}: {seen.looks[-1]}, tool {seen.tool_s[-1]:.2f} s, beside {beside.slowest_ms:.1f} ms")
    return seen


def measure(plan: Plan, folder: Path, tell: Callable[[str], None]) -> tuple[list[Row], list[str]]:
    """Both sides, one after the other."""
    load = os.getloadavg()[0]
    with logmark(folder / "logmark", durability="sync") as ours:
        on_ours = side(ours, plan, folder, tell)
        memory_mb = ours.memory_mb()
    with kafka(folder / "kafka") as theirs:
        on_kafka = side(theirs, plan, folder, tell)
    return rows(on_ours, on_kafka), notes(on_ours, on_kafka, memory_mb, load, plan)


def rows(on_ours: Seen, on_kafka: Seen) -> list[Row]:
    """A sample beside Kafka's tool on each broker, and our sample on the one beside the other."""

    def row(work: str, as_: str, against: str, unit: str, logmark: float, other: float, kind: str) -> Row:
        return Row(
            work=work, logmark_as=as_, against=against, unit=unit, logmark=logmark, other=other, kind=kind,
            is_higher_better=False,
        )  # fmt: skip

    sample, tool = "one full sample, with seconds from history", "kafka-consumer-groups --describe --all-groups"
    ours_s, kafka_s = on_ours.of("total_s"), on_kafka.of("total_s")
    stalls = median(on_ours.slowest_ms), median(on_kafka.slowest_ms)
    return [
        row(sample, "sampler, on Logmark", f"{tool}, on Logmark", "s", ours_s, middle(on_ours.tool_s), "time"),
        row(sample, "sampler, on Kafka", f"{tool}, on Kafka", "s", kafka_s, middle(on_kafka.tool_s), "time"),
        row(sample, "sampler, on Logmark", "sampler, on Kafka", "s", ours_s, kafka_s, "time"),
        row("slowest answer to others meanwhile", "Logmark", "Apache Kafka", "ms", *stalls, "stall"),
    ]


def notes(on_ours: Seen, on_kafka: Seen, broker_mb: float, load: float, plan: Plan) -> list[str]:
    """What the table has no room for."""
    return [
        f"{plan.topics * plan.partitions:,} partitions, {plan.groups:,} groups, {plan.pairs:,} pairs; "
        f"{on_ours.of('aged'):,.0f} ages from a history of {plan.samples} samples.",
        f"On Logmark: {on_ours.of('sample_s'):.2f} s for commits, starts and ends in "
        f"{on_ours.of('requests'):.0f} requests, {on_ours.of('ages_s'):.2f} s for the ages; "
        f"on Kafka {on_kafka.of('sample_s'):.2f} s in "
        f"{on_kafka.of('requests'):.0f} requests, {on_kafka.of('ages_s'):.2f} s.",
        f"Processor time of one sample on Logmark: {on_ours.of('cpu_s'):.2f} s of the sampler and "
        f"{middle(on_ours.broker_s):.2f} s of the broker; on Kafka {on_kafka.of('cpu_s'):.2f} s and "
        f"{middle(on_kafka.broker_s):.2f} s. The machine's load was {load:.1f} on {os.cpu_count()} cores at the start.",
        f"Peak memory of the sampling process: {on_ours.of('memory_mb'):.0f} MB on Logmark, "
        f"{on_kafka.of('memory_mb'):.0f} MB on Kafka; of Logmark's broker {broker_mb:.0f} MB.",
        f"One full sample on Logmark: at most 5 s was the goal, {on_ours.of('total_s'):.2f} s is the figure: "
        f"{'met' if on_ours.of('total_s') <= 5 else 'MISSED'}.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and print it; return 1 with an error message when a side cannot run here."""
    parser = argparse.ArgumentParser(description="One lag sample of a large cluster beside Kafka's own tool.")
    parser.add_argument("--look", nargs=2, metavar=("ADDRESS", "HISTORY"), help=argparse.SUPPRESS)
    report.add_options(parser)
    options = parser.parse_args(arguments)
    if options.look:
        print(json.dumps(look(options.look[0], Path(options.look[1]))))
        return 0
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    plan = Plan.tiny() if options.tiny else Plan.full(options.rounds)
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        found, said = measure(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "kafka": distribution.KAFKA_VERSION}
    title = "One lag sample of a large cluster, beside Kafka's own tool"
    report.show(found, about=about, title=title, bench="lag", options=options, notes=said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
