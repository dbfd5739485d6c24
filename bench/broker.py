"""Logmark's broker side by side with Apache Kafka: `python bench/broker.py [--output json] [--tiny]`.

Every work is done on every side in turn, round after round, and the median of the rounds counts; a first round that
nobody counts warms both sides up. `os` is compared with Kafka's default (neither waits for the disk), `sync` with
Kafka's default (we wait, it does not) and with flush.messages=1 (both wait).

`--works` chooses among: `start` (with the test fixture), `clients` (librdkafka and fetches, 4 partitions), and
`requests`, `batches` and `commits`, which run at every number of `--partitions` (bench/matrix.py). All of it takes
about a quarter of an hour and 20 GB of disk.
"""

import argparse
import resource
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/broker.py` finds its neighbours

from bench import fixture, load, machine, matrix, report, sides
from bench.matrix import DEFAULT, FLUSHED, OS, OS_AND_BARE_SYNC, OS_AND_SYNC, SYNC, Contender, Samples, Work
from bench.report import Row, Shares, middle
from tests.harness import distribution

CLIENT_PARTITIONS = 4
PARTITIONS = (1, 4, 32, 256, 1000)
WORKS = ("start", "clients", *matrix.WORKS)
PAIRS = ((OS, DEFAULT), (SYNC, DEFAULT), (SYNC, FLUSHED))
# What the kernel takes for the same bytes if the server does nothing else: no broker can be far below.
SENDS = {
    "a bare send from memory": machine.send_from_memory,
    "a bare read, check and send": machine.send_checked,
    "a bare sendfile": machine.send_file,
}
FETCHES = ("fetch_batches", "fetch_by_readers")
FIXTURES = {"logmark": "logmark.testing", "mock": "librdkafka's mock"}
# A single connection cannot share a sync, so its goal is another: see OS_AND_SYNC.
GOAL, GOAL_CONNECTIONS = 1.0, 16
SINGLE_CONNECTION_GOAL = 0.8
SIZES = {100: "100 B", 1024: "1 KiB"}
READERS = 3
# The loads of clients: further arguments, and how often the records pass.
CLIENT_WORKS: dict[str, tuple[dict[str, int], int]] = {
    "produce": ({}, 1),
    "consume": ({}, 1),
    "fetch_batches": ({}, load.FETCH_PASSES),
    "fetch_by_readers": ({"readers": READERS}, load.FETCH_PASSES * READERS),
}
FETCH_GOAL, READERS_GOAL, CPU_GOAL = 1.0, 1.2, 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    works: tuple[str, ...]
    partitions: tuple[int, ...]
    seconds: float
    warm_ups: int = 1
    records: dict[int, int]
    connections: tuple[int, ...] = (1, 16, 64, 256)
    commit_connections: tuple[int, ...] = (1, 16, 64)
    starts: int
    sent_bytes: int

    @classmethod
    def full(cls, options: argparse.Namespace) -> "Plan":
        """What `make bench` runs."""
        return cls(
            rounds=options.rounds,
            works=options.works,
            partitions=options.partitions or PARTITIONS,
            seconds=options.seconds,
            records={100: 1_000_000, 1024: 300_000},
            starts=3,
            sent_bytes=2 << 30,
        )

    @classmethod
    def tiny(cls, options: argparse.Namespace) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(
            rounds=1,
            works=options.works,
            partitions=options.partitions or (4, 8),
            seconds=0.2,
            warm_ups=0,
            records={100: 2_000, 1024: 2_000},
            connections=(1, 64),
            commit_connections=(1, 16),
            starts=1,
            sent_bytes=8 << 20,
        )

    @property
    def matrix(self) -> list[Work]:
        """The works that run at every number of partitions."""
        return matrix.list_works(
            self.works,
            self.partitions,
            connections=self.connections,
            commit_connections=self.commit_connections,
            records=self.records,
        )


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> tuple[list[Row], list[Shares]]:
    """Everything that `plan` asks for, as rows, and the tables that belong to them."""
    samples: Samples = defaultdict(list)
    if "start" in plan.works:
        _starts(plan, folder, samples, say)
    if set(plan.works) != {"start"}:
        with (
            sides.logmark(folder / "os", durability="os") as ours_os,
            sides.logmark(folder / "sync", durability="sync") as ours_sync,
            sides.kafka(folder / "kafka") as kafka,
        ):
            contenders = [
                Contender(label=OS, broker=ours_os),
                Contender(label=DEFAULT, broker=kafka),
                Contender(label=SYNC, broker=ours_sync),
                Contender(label=FLUSHED, broker=kafka, topic_config={"flush.messages": "1"}),
            ]
            if "clients" in plan.works:
                _clients(plan, folder, contenders, samples, say)
            if plan.matrix:
                matrix.measure(
                    plan.matrix,
                    contenders,
                    rounds=plan.rounds,
                    warm_ups=plan.warm_ups,
                    seconds=plan.seconds,
                    folder=folder,
                    samples=samples,
                    say=say,
                )
                _sample_memory("memory", contenders, samples)
    rows = _rows(plan, samples)
    return rows, [report.goals(rows), *([_processors(plan, samples)] if plan.matrix else [])]


def _sample_memory(work: str, contenders: list[Contender], samples: Samples) -> None:
    for contender in contenders:
        samples[work, contender.label].append(contender.broker.memory_mb())


def _starts(plan: Plan, folder: Path, samples: Samples, say: Callable[[str], None]) -> None:
    for number in range(plan.starts):
        say(f"start {number + 1} of {plan.starts}")
        for durability in ("os", "sync"):
            with sides.logmark(folder / f"start-{durability}", durability=durability) as ours:
                samples["start", durability].append(ours.start_ms)
        with sides.kafka(folder / "start-kafka") as kafka:
            samples["start", DEFAULT].append(kafka.start_ms)
            samples["start", FLUSHED].append(kafka.start_ms)
        for side in fixture.SIDES:
            for figure, value in fixture.measure(side).items():
                samples[f"fixture {figure}", FIXTURES[side]].append(value)


def _clients(
    plan: Plan, folder: Path, contenders: list[Contender], samples: Samples, say: Callable[[str], None]
) -> None:
    for number in range(1 - plan.warm_ups, plan.rounds + 1):
        is_warm_up = number < 1
        for label, measured in SENDS.items() if not is_warm_up else ():
            cost = measured(folder, plan.sent_bytes)
            for value_bytes in plan.records:
                for work in FETCHES:
                    samples[f"cpu {work} {value_bytes}", label].append(cost)
        for rank, contender in enumerate(contenders):
            say(f"{'warm-up' if is_warm_up else f'round {number} of {plan.rounds}'}: clients, {contender.label}")
            for value_bytes, records in plan.records.items():
                figures = _client_round(contender, f"clients-{number}-{rank}-{value_bytes}", records, value_bytes)
                for work, value in {} if is_warm_up else figures.items():
                    samples[f"{work} {value_bytes}", contender.label].append(value)
    _sample_memory("memory of clients", contenders, samples)


def _client_round(contender: Contender, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """Produce, consume and fetch the same records on one side."""
    broker, figures = contender.broker, dict[str, float]()
    sides.create_topic(broker.address, topic, CLIENT_PARTITIONS, contender.topic_config)
    where: dict[str, object] = {"address": broker.address, "topic": topic, "partitions": CLIENT_PARTITIONS}
    for work, (arguments, passes) in CLIENT_WORKS.items():
        before = broker.cpu_seconds()
        measured = load.run(work, **where, **arguments, records=records, value_bytes=value_bytes)
        figures[work] = measured["records_per_s"]
        figures[f"cpu {work}"] = (broker.cpu_seconds() - before) / (passes * records * value_bytes / 1e9)
    sides.delete_topic(broker.address, topic)
    return figures


class Rows:
    """The rows of the report, made from the samples."""

    def __init__(self, samples: Samples) -> None:
        self.rows: list[Row] = []
        self._samples = samples

    def compare(
        self,
        work: str,
        title: str,
        unit: str,
        kind: str,
        *,
        pairs: tuple[tuple[str, str], ...] = PAIRS,
        is_higher_better: bool = True,
        goal: float | None = None,
    ) -> None:
        """Add a row for each pair of which both sides took part; a goal is one of `sync` beside Kafka's default."""
        for ours, other in pairs:
            if self._samples[work, ours] and self._samples[work, other]:
                self.rows.append(
                    Row(
                        work=title,
                        logmark_as=ours,
                        against=other,
                        unit=unit,
                        logmark=middle(self._samples[work, ours]),
                        other=middle(self._samples[work, other]),
                        kind=kind,
                        is_higher_better=is_higher_better,
                        goal=goal if (ours, other) in ((SYNC, DEFAULT), (SYNC, OS_AND_SYNC)) else None,
                    )
                )


def _rows(plan: Plan, samples: Samples) -> list[Row]:
    made = Rows(samples)
    compare = made.compare
    compare("start", "start to first acknowledged record", "ms", "start", is_higher_better=False)
    title = f"most memory resident, after the clients' loads, {CLIENT_PARTITIONS} partitions"
    compare("memory of clients", title, "MB", "memory", is_higher_better=False)
    title = f"most memory resident, after all loads, topics of up to {max(plan.partitions):,} partitions"
    compare("memory", title, "MB", "memory", is_higher_better=False)
    for value_bytes, size in SIZES.items():
        for work, title, goal in (
            ("produce", "produced", None),
            ("consume", "consumed", CPU_GOAL),
            ("fetch_batches", "fetched", CPU_GOAL),
            ("fetch_by_readers", f"fetched by {READERS} readers", CPU_GOAL),
        ):
            name = f"processor time per GB {title}, {size}"
            pairs = (*PAIRS, *((SYNC, label) for label in SENDS))
            compare(f"cpu {work} {value_bytes}", name, "s", "cpu", pairs=pairs, is_higher_better=False, goal=goal)
    for work, title, goal in (
        ("produce", "produce, librdkafka", None),
        ("consume", "consume, librdkafka", FETCH_GOAL),
        ("fetch_batches", "fetch, bytes only", FETCH_GOAL),
        ("fetch_by_readers", f"fetch by {READERS} readers, bytes only", READERS_GOAL),
    ):
        for value_bytes, size in SIZES.items():
            compare(f"{work} {value_bytes}", f"{title}, {size}", "records/s", "throughput", goal=goal)
    for each in plan.matrix:
        _compare_work(made, each)
    pairs = ((FIXTURES["logmark"], FIXTURES["mock"]),)
    for figure, title in (("after_import_ms", "after import"), ("cold_ms", "from a cold interpreter")):
        work = f"test fixture: first acknowledged record {title}"
        compare(f"fixture {figure}", work, "ms", "start", pairs=pairs, is_higher_better=False)
    return made.rows


def _compare_work(made: Rows, work: Work) -> None:
    title = matrix.describe(work)
    goal = GOAL if work.name == "batches" or work.size >= GOAL_CONNECTIONS else None
    unit, kind = {
        "requests": ("requests/s", "throughput"),
        "batches": ("records/s", "throughput"),
        "commits": ("commits/s", "commit"),
    }[work.name]
    made.compare(f"rate {work.key}", title, unit, kind, goal=goal)
    if work.is_single_connection:
        limits = ((SYNC, OS_AND_SYNC), (SYNC, OS_AND_BARE_SYNC))
        made.compare(f"rate {work.key}", title, unit, "single_connection", pairs=limits, goal=SINGLE_CONNECTION_GOAL)
    made.compare(f"p99 {work.key}", f"p99 of {title}", "ms", "p99", is_higher_better=False)
    name = f"bytes written to the disk per byte produced, {title}"
    pairs = ((SYNC, DEFAULT),)
    made.compare(f"written {work.key}", name, "bytes", "written", pairs=pairs, is_higher_better=False)


def _processors(plan: Plan, samples: Samples) -> Shares:
    """Return how many processors the load generator and the broker kept busy: a reader sees who is the limit."""
    labels = (OS, DEFAULT, SYNC, FLUSHED)
    lines = []
    for work in plan.matrix:
        cells = [
            f"{middle(generator):.2f} / {middle(samples[f'broker {work.key}', label]):.2f}"
            if (generator := samples[f"generator {work.key}", label])
            else ""
            for label in labels
        ]
        lines.append((matrix.describe(work), *cells))
    return Shares(title="Processors busy: load generator / broker", headings=("work", *labels), lines=lines)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in text.split(","))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def main() -> int:
    """Run the bench and print it; return 1 with a message when a side cannot run here."""
    parser = argparse.ArgumentParser(description="Logmark's broker side by side with Apache Kafka.")
    report.add_options(parser)
    report.add_works(parser, WORKS)
    shown = ",".join(map(str, PARTITIONS))
    parser.add_argument("--partitions", type=_numbers, metavar="N,...", help=f"numbers of partitions (default {shown})")
    parser.add_argument("--seconds", type=float, default=0.8, help="seconds of each load at N partitions (default 0.8)")
    options = parser.parse_args()
    if not Path("/proc/self/io").exists():
        print("The bench reads what a process uses from /proc, so it runs on Linux only.", file=sys.stderr)
        return 1
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    # Apache Kafka keeps every partition's files open.
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    plan = Plan.tiny(options) if options.tiny else Plan.full(options)
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        rows, shares = measure(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "seconds": plan.seconds, "kafka": distribution.KAFKA_VERSION}
    title = "Logmark beside Apache Kafka"
    report.show(rows, about=about, title=title, bench="broker", options=options, shares=shares)
    return 0


if __name__ == "__main__":
    sys.exit(main())
