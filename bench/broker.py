"""Logmark's broker side by side with Apache Kafka: `python bench/broker.py [--output json] [--tiny]`.

Every work is done on every side in turn, round after round, and the median of the rounds counts; a first round that
nobody counts warms both sides up. `os` is compared with Kafka's default (neither waits for the disk), `sync` with
Kafka's default (we wait, it does not) and with flush.messages=1 (both wait).
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/broker.py` finds its neighbours

from bench import fixture, load, report, sides
from bench.report import Row, middle
from tests.harness import distribution

PARTITIONS = 4
DEFAULT, FLUSHED = "kafka default", "kafka flush.messages=1"
PAIRS = (("os", DEFAULT), ("sync", DEFAULT), ("sync", FLUSHED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    warm_ups: int = 1
    seconds: float
    records: dict[int, int]
    connections: tuple[int, ...] = (1, 16, 64)
    starts: int

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        """What `make bench` runs."""
        return cls(rounds=rounds, seconds=3.0, records={100: 1_000_000, 1024: 300_000}, starts=3)

    @classmethod
    def tiny(cls) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(rounds=1, warm_ups=0, seconds=0.2, records={100: 2_000, 1024: 2_000}, starts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A broker and the topic settings with which it takes part."""

    label: str
    broker: sides.Running
    topic_config: dict[str, str]


Samples = dict[tuple[str, str], list[float]]


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Everything that `plan` asks for, as rows."""
    samples: Samples = defaultdict(list)
    _starts(plan, folder, samples, say)
    with (
        sides.logmark(folder / "os", durability="os") as ours_os,
        sides.logmark(folder / "sync", durability="sync") as ours_sync,
        sides.kafka(folder / "kafka") as kafka,
    ):
        contenders = [
            Contender(label="os", broker=ours_os, topic_config={}),
            Contender(label=DEFAULT, broker=kafka, topic_config={}),
            Contender(label="sync", broker=ours_sync, topic_config={}),
            Contender(label=FLUSHED, broker=kafka, topic_config={"flush.messages": "1"}),
        ]
        for number in range(1 - plan.warm_ups, plan.rounds + 1):
            is_warm_up = number < 1
            for contender in contenders:
                say(f"{'warm-up' if is_warm_up else f'round {number} of {plan.rounds}'}: {contender.label}")
                figures = _round(plan, contender, f"bench-{number}-{contenders.index(contender)}")
                if not is_warm_up:
                    for work, value in figures.items():
                        samples[work, contender.label].append(value)
        for contender in contenders:
            samples["memory", contender.label].append(contender.broker.memory_mb())
    return _rows(plan, samples)


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
                samples[f"fixture {figure}", side].append(value)


def _round(plan: Plan, contender: Contender, topic: str) -> dict[str, float]:
    """One pass through all works on one side."""
    broker, figures = contender.broker, dict[str, float]()

    def with_topic(name: str, work: Callable[[dict[str, object]], None]) -> None:
        sides.create_topic(broker.address, name, PARTITIONS, contender.topic_config)
        work({"address": broker.address, "topic": name, "partitions": PARTITIONS})
        sides.delete_topic(broker.address, name)

    def one_record_requests(where: dict[str, object]) -> None:
        for connections in plan.connections:
            seen = load.run("requests", **where, connections=connections, seconds=plan.seconds, value_bytes=100)
            figures[f"requests {connections}"] = seen["requests_per_s"]
            figures[f"p99 {connections}"] = seen["p99_ms"]

    with_topic(f"{topic}-requests", one_record_requests)
    for value_bytes, records in plan.records.items():
        size: dict[str, object] = {"records": records, "value_bytes": value_bytes}

        def client_work(where: dict[str, object], size: dict[str, object] = size) -> None:
            gigabytes = int(str(size["records"])) * int(str(size["value_bytes"])) / 1e9
            for work in ("produce", "consume", "fetch_batches"):
                before = broker.cpu_seconds()
                figures[f"{work} {size['value_bytes']}"] = load.run(work, **where, **size)["records_per_s"]
                figures[f"cpu {work} {size['value_bytes']}"] = (broker.cpu_seconds() - before) / gigabytes

        def batches_work(where: dict[str, object], size: dict[str, object] = size) -> None:
            figures[f"send_batches {size['value_bytes']}"] = load.run("send_batches", **where, **size)["records_per_s"]

        with_topic(f"{topic}-{value_bytes}", client_work)
        with_topic(f"{topic}-{value_bytes}-batches", batches_work)
    return figures


def _rows(plan: Plan, samples: Samples) -> list[Row]:
    rows: list[Row] = []

    def compare(work: str, title: str, unit: str, kind: str, *, is_higher_better: bool = True) -> None:
        for durability, other in PAIRS:
            rows.append(
                Row(
                    work=title,
                    logmark_as=durability,
                    against=other,
                    unit=unit,
                    logmark=middle(samples[work, durability]),
                    other=middle(samples[work, other]),
                    kind=kind,
                    is_higher_better=is_higher_better,
                )
            )

    sizes = {100: "100 B", 1024: "1 KiB"}
    compare("start", "start to first acknowledged record", "ms", "start", is_higher_better=False)
    compare("memory", "most memory resident, after all loads", "MB", "memory", is_higher_better=False)
    for value_bytes in plan.records:
        size = sizes[value_bytes]
        for work, title in (("produce", "produced"), ("consume", "consumed")):
            name = f"processor time per GB {title}, {size}"
            compare(f"cpu {work} {value_bytes}", name, "s", "cpu", is_higher_better=False)
    for work, title in (
        ("produce", "produce, librdkafka"),
        ("consume", "consume, librdkafka"),
        ("send_batches", "produce, ready-made batches"),
        ("fetch_batches", "fetch, bytes only"),
    ):
        for value_bytes in plan.records:
            compare(f"{work} {value_bytes}", f"{title}, {sizes[value_bytes]}", "records/s", "throughput")
    for connections in plan.connections:
        noun = "connection" if connections == 1 else "connections"
        compare(f"requests {connections}", f"one-record requests, {connections} {noun}", "requests/s", "throughput")
        title = f"their p99, {connections} {noun}"
        compare(f"p99 {connections}", title, "ms", "p99", is_higher_better=False)
    for figure, title in (("after_import_ms", "after import"), ("cold_ms", "from a cold interpreter")):
        rows.append(
            Row(
                work=f"test fixture: first acknowledged record {title}",
                logmark_as="logmark.testing",
                against="librdkafka's mock",
                unit="ms",
                logmark=middle(samples[f"fixture {figure}", "logmark"]),
                other=middle(samples[f"fixture {figure}", "mock"]),
                kind="start",
                is_higher_better=False,
            )
        )
    return rows


def main() -> int:
    """Runs the bench and prints it; 1 with a sentence when a side cannot run here."""
    parser = argparse.ArgumentParser(description="Logmark's broker side by side with Apache Kafka.")
    report.add_options(parser)
    options = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        print("The bench reads memory and processor time from /proc, so it runs on Linux only.", file=sys.stderr)
        return 1
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    plan = Plan.tiny() if options.tiny else Plan.full(options.rounds)
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        rows = measure(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "partitions": PARTITIONS, "kafka": distribution.KAFKA_VERSION}
    report.show(rows, about=about, title="Logmark beside Apache Kafka", bench="broker", options=options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
