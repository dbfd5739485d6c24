"""Logmark's log beside this machine's limits, and beside Apache Kafka: `python bench/log.py [--output json] [--tiny]`.

Every work is done in turn with the machine's own limit for it (a plain write, a plain write with its sync, a plain
read, a copy in memory, a copy by pyarrow), round after round, and the median of the rounds counts. Both brokers are
killed under the same load, and timed from their start to the first fetch that every partition answers (`--works
crashes` measures this alone).
"""

import argparse
import math
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/log.py` finds its neighbours

from bench import crashed, inside, machine, partitions, report, stall
from bench.report import Row, middle
from logmark.memory import keep_freed_buffers
from logmark.wire import codecs
from tests.harness import distribution

KIB, MIB = 1024, 1 << 20
WORKS = ("limits", "crashes")
SIZES = {16 * KIB: "16 KiB", MIB: "1 MiB"}
PLAIN_WRITE, PLAIN_SYNC, PLAIN_READ = "plain write", "plain write + fdatasync", "plain read"
# Two ways to make a large round durable, without a broker: see machine.rounds.
CONFIRMED, WRITTEN_AHEAD = "segments synced, small entry", "one entry, segments synced later"
ROUND_SEGMENTS = (1, 4, 32)
MEMCPY, ARROW = "memcpy", "pyarrow copy"
# Kafka's start after a kill is measured without its wait for the old session: see bench/crashed.py.
KAFKA_RESTARTED = "kafka default, without the wait for its old session"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPlan:
    """How much is acknowledged but not flushed when a broker is killed, and in how many partitions."""

    size: int
    partitions: int
    is_scan_shown: bool = False

    @property
    def title(self) -> str:
        """Return what the report calls it."""
        noun = "partition" if self.partitions == 1 else "partitions"
        size = f"{self.size / 1e9:g} GB" if self.size >= 1e9 else f"{self.size / 1e6:g} MB"
        return f"kill -9 under load of {size}, {self.partitions:,} {noun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    appended_bytes: int
    synced_batches: int
    decode_times: int
    recovered_bytes: int
    compacted_records: int
    topics: int
    crashes: tuple["CrashPlan", ...]
    stall_seconds: float

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        """What `make bench` runs."""
        return cls(
            rounds=rounds,
            appended_bytes=512 * MIB,
            synced_batches=300,
            decode_times=200,
            recovered_bytes=1 << 30,
            compacted_records=2_000_000,
            topics=100,
            crashes=(
                *(CrashPlan(size=size * 1_000_000, partitions=100) for size in (16, 128, 512)),
                *(CrashPlan(size=128_000_000, partitions=partitions) for partitions in (1, 1000)),
                CrashPlan(size=2_000_000_000, partitions=4, is_scan_shown=True),
            ),
            stall_seconds=10.0,
        )

    @classmethod
    def tiny(cls) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(
            rounds=1,
            appended_bytes=4 * MIB,
            synced_batches=3,
            decode_times=2,
            recovered_bytes=4 * MIB,
            compacted_records=20_000,
            topics=1,
            crashes=(CrashPlan(size=2_000_000, partitions=8, is_scan_shown=True),),
            stall_seconds=0.5,
        )


Samples = dict[tuple[str, str], list[float]]
Say = Callable[[str], None]


def measure(plan: Plan, works: tuple[str, ...], folder: Path, say: Say) -> tuple[list[Row], dict[str, object]]:
    """Everything that `plan` asks for, as rows, and what was seen besides."""
    samples: Samples = defaultdict(list)
    if "limits" in works:
        _limits(plan, folder, samples, say)
    seen = _crashes(plan, folder, samples, say) if "crashes" in works else {}
    return _rows(plan, samples), seen


def _limits(plan: Plan, folder: Path, samples: Samples, say: Say) -> None:
    # As `logmark serve` does at its start.
    keep_freed_buffers()
    for number in range(1, plan.rounds + 1):
        say(f"round {number} of {plan.rounds}: append")
        _appends(plan, folder, samples)
        say(f"round {number} of {plan.rounds}: rounds of 1 MiB")
        _rounds(plan, folder, samples)
        say(f"round {number} of {plan.rounds}: read and recover")
        _reads(plan, folder, samples)
        say(f"round {number} of {plan.rounds}: decode")
        _decodes(plan, samples)
        say(f"round {number} of {plan.rounds}: compact")
        _compactions(plan, folder, samples)
    say("the event loop while compacting")
    _stalls(plan, folder, samples)
    say(f"a start with {plan.topics * partitions.PARTITIONS_PER_TOPIC} partitions")
    _many(plan, folder, samples)


def _rounds(plan: Plan, folder: Path, samples: Samples) -> None:
    for segments in ROUND_SEGMENTS:
        for side, is_confirmed in ((CONFIRMED, True), (WRITTEN_AHEAD, False)):
            speed = machine.rounds(folder, MIB, segments, plan.appended_bytes, is_confirmed=is_confirmed)
            samples[f"rounds {segments}", side].append(speed / 1e6)


def _appends(plan: Plan, folder: Path, samples: Samples) -> None:
    for size, title in SIZES.items():
        batch = inside.batch_of(size)
        data, count = bytes(batch), plan.appended_bytes // size
        megabytes = len(batch) * count / 1e6
        plain_s = machine.plain_write(folder, data, count, sync=False)
        samples[f"append {title}", PLAIN_WRITE].append(megabytes / plain_s)
        samples[f"per batch {title}", PLAIN_WRITE].append(1e6 * plain_s / count)
        ours_s = inside.append(folder / "append", batch, count, durability="os")
        samples[f"append {title}", "os"].append(megabytes / ours_s)
        samples[f"per batch {title}", "os"].append(1e6 * ours_s / count)
        ours_s = inside.check_and_append(folder / "append", bytearray(batch), count)
        samples[f"check and append {title}", "os"].append(megabytes / ours_s)
        samples[f"check and append {title}", PLAIN_WRITE].append(megabytes / plain_s)
        synced = plan.synced_batches
        plain_s = machine.plain_write(folder, data, synced, sync=True)
        ours_s = inside.append(folder / "append", batch, synced, durability="sync")
        for side, took_s in ((PLAIN_SYNC, plain_s), ("sync", ours_s)):
            samples[f"append {title}", side].append(len(batch) * synced / took_s / 1e6)
            samples[f"per batch {title}", side].append(1e6 * took_s / synced)


def _reads(plan: Plan, folder: Path, samples: Samples) -> None:
    path, batch = folder / "recovered", inside.batch_of(16 * KIB)
    made = inside.Opened(path, durability="os")
    inside.fill(made.partition, batch, plan.recovered_bytes // len(batch))
    size = made.partition.size_bytes
    segments = [Path(segment.path) for segment in made.partition.segments]
    for work in ("read", "recover"):
        plain_s = sum(machine.plain_read(segment, MIB) for segment in segments)
        samples[work, PLAIN_READ].append(size / plain_s / 1e6)
    samples["read", "os"].append(size / inside.read(made.partition, MIB) / 1e6)
    made.close(clean=False)
    checked, took_s = inside.recover(path)
    if checked != size:
        raise RuntimeError(f"{checked} of {size} bytes were recovered")
    samples["recover", "os"].append(size / took_s / 1e6)
    shutil.rmtree(path)


def _decodes(plan: Plan, samples: Samples) -> None:
    for codec, name in enumerate(codecs.NAMES):
        data = bytes(inside.batch_of(MIB, codec=codec))
        times = plan.decode_times if codec == codecs.NONE else max(2, plan.decode_times // 5)
        count, took_s = inside.decode(data, times)
        plain = count * (inside.RECORD_BYTES + 2)
        samples[f"decode {name} records", "columns"].append(count / took_s)
        samples[f"decode {name}", "columns"].append(plain / took_s / 1e6)
        samples[f"decode {name}", MEMCPY].append(plain / machine.memcpy(plain, times) / 1e6)
        if codec == codecs.NONE:
            copied_s = machine.arrow_copy([bytes(inside.VALUE_BYTES)] * count, times)
        else:
            copied_s = inside.decompress(data, codec, times)
        samples[f"decode {name} records", _limit_of(name)].append(count / copied_s)


def _limit_of(codec: str) -> str:
    return ARROW if codec == codecs.NAMES[codecs.NONE] else f"{codec} alone"


def _compactions(plan: Plan, folder: Path, samples: Samples) -> None:
    done = inside.compact(folder / "compacted", plan.compacted_records, plan.compacted_records // 4)
    samples["compact", "one process"].append(done.records_read / done.seconds)
    values = [bytes(inside.VALUE_BYTES)] * 100_000
    samples["compact", ARROW].append(len(values) / machine.arrow_copy(values, 3))


def _stalls(plan: Plan, folder: Path, samples: Samples) -> None:
    for number in range(plan.rounds):
        seen = stall.measure(folder / f"stall-{number}", seconds=plan.stall_seconds)
        for work, (compacting_ms, idle_ms) in seen.items():
            samples[work, "while compacting"].append(compacting_ms)
            samples[work, "without"].append(idle_ms)


def _many(plan: Plan, folder: Path, samples: Samples) -> None:
    for number in range(plan.rounds):
        seen = partitions.measure(folder / f"many-{number}", plan.topics)
        samples["open many", "sync"].append(seen.opened.first_fetch_s)
        samples["fetch many", "sync"].append(seen.opened.all_fetched_s)
        samples["open many", "plain Python"].append(seen.plain_s)
        samples["fetch many", "plain Python"].append(seen.plain_s)


def _crashes(plan: Plan, folder: Path, samples: Samples, say: Say) -> dict[str, object]:
    points: dict[str, object] = {}
    for number in range(1, plan.rounds + 1):
        for crash in plan.crashes:
            count, path = crash.partitions, folder / "crash"
            sides: dict[str, Callable[[], crashed.Crash]] = {
                "os": partial(crashed.logmark, path, crash.size, partitions=count, durability="os"),
                "sync": partial(crashed.logmark, path, crash.size, partitions=count, durability="sync"),
                KAFKA_RESTARTED: partial(crashed.kafka, path, crash.size, partitions=count),
            }
            for side, kill in sides.items():
                say(f"round {number} of {plan.rounds}: {crash.title}: {side}")
                seen = kill()
                samples[f"first fetch {crash.title}", side].append(seen.first_fetch_s)
                if crash.is_scan_shown:
                    samples[f"scan {crash.title}", side].append(seen.scanned_mb_per_s)
                    points[f"recovery points of {side}"] = f"{seen.recovery_points} of {seen.scanned_bytes:,} bytes"
    return points


def _rows(plan: Plan, samples: Samples) -> list[Row]:
    rows: list[Row] = []

    def compare(work: str, title: str, ours: str, other: str, unit: str, *, is_higher_better: bool = True) -> None:
        if not samples[work, ours]:
            return
        rows.append(
            Row(
                work=title,
                logmark_as=ours,
                against=other,
                unit=unit,
                logmark=middle(samples[work, ours]),
                other=middle(samples[work, other]),
                kind="log",
                is_higher_better=is_higher_better,
            )
        )

    for size in SIZES.values():
        for ours, other in (("os", PLAIN_WRITE), ("sync", PLAIN_SYNC)):
            compare(f"append {size}", f"append, batches of {size}", ours, other, "MB/s")
            title = f"one append, batch of {size}"
            compare(f"per batch {size}", title, ours, other, "µs", is_higher_better=False)
        title = f"check and append, batches of {size}"
        compare(f"check and append {size}", title, "os", PLAIN_WRITE, "MB/s")
    for segments in ROUND_SEGMENTS:
        title = f"bare rounds of 1 MiB in {segments} segment{'s' * (segments > 1)}"
        compare(f"rounds {segments}", title, CONFIRMED, WRITTEN_AHEAD, "MB/s")
    compare("read", "sequential read with the CRC check", "os", PLAIN_READ, "MB/s")
    for name in codecs.NAMES:
        title = f"decode 100 B records to columns, {name}"
        compare(f"decode {name}", title, "columns", MEMCPY, "MB/s")
        compare(f"decode {name} records", title, "columns", _limit_of(name), "records/s")
    compare("recover", "recovery, bytes scanned", "os", PLAIN_READ, "MB/s")
    compare("compact", "compaction, 100 B records with keys", "one process", ARROW, "records/s")
    for work, title in stall.WORKS.items():
        compare(work, title, "while compacting", "without", "ms", is_higher_better=False)
    count = f"{plan.topics * partitions.PARTITIONS_PER_TOPIC:,} partitions, ulimit -n {partitions.DESCRIPTORS}"
    title = f"start to the first answered fetch, {count}"
    compare("open many", title, "sync", "plain Python", "s", is_higher_better=False)
    title = f"start to a fetch of every partition, {count}"
    compare("fetch many", title, "sync", "plain Python", "s", is_higher_better=False)
    for crash in plan.crashes:
        compare(f"scan {crash.title}", f"recovery after {crash.title}", "os", KAFKA_RESTARTED, "MB/s")
        for ours in ("os", "sync"):
            title = f"start to the first answered fetch after {crash.title}"
            compare(f"first fetch {crash.title}", title, ours, KAFKA_RESTARTED, "s", is_higher_better=False)
    return rows


APPEND, UNCOMPRESSED = "append, batches of 1 MiB", "decode 100 B records to columns, uncompressed"
# The row's work and unit, whether its ratio counts or its figure, and between which limits that was meant to be.
GOALS: tuple[tuple[str, str, bool, float, float], ...] = (
    (APPEND, "os MB/s", True, 0.6, math.inf),
    (UNCOMPRESSED, "columns records/s", False, 40e6, math.inf),
    (UNCOMPRESSED, "columns MB/s", False, 5000, math.inf),
    ("recovery, bytes scanned", "os MB/s", False, 1000, math.inf),
    ("compaction, 100 B records with keys", "one process records/s", False, 2e6, math.inf),
    (stall.WORKS["stall"], "while compacting ms", False, 0, 5),
    (stall.WORKS["cleaner"], "while compacting ms", False, 0, 5),
    ("start to the first answered fetch, 10,000 partitions", "sync s", False, 0, 5),
    ("start to the first answered fetch after kill -9", "os s", True, 0, 1),
    ("start to the first answered fetch after kill -9", "sync s", True, 0, 1),
)


def goals(rows: list[Row]) -> list[str]:
    """Each goal with its figure, one sentence each."""
    said = []
    for work, unit, is_ratio, least, most in GOALS:
        for row in rows:
            if row.work.startswith(work) and f"{row.logmark_as} {row.unit}" == unit:
                figure = row.ratio if is_ratio else row.logmark
                wanted = f"at least {least:,g}" if least else f"at most {most:,g}"
                verdict = "met" if least <= figure <= most else "MISSED"
                of = f"times {row.against}" if is_ratio else row.unit
                said.append(
                    f"{row.work}, {row.logmark_as}: {wanted} {of} was the goal, {figure:,.4g} is the figure: {verdict}."
                )
    return said


def main() -> int:
    """Run the bench and print it; return 1 with an error message when a side cannot run here."""
    parser = argparse.ArgumentParser(description="Logmark's log beside this machine's limits and Apache Kafka.")
    report.add_options(parser)
    report.add_works(parser, WORKS)
    options = parser.parse_args()
    if not Path("/proc/self/io").exists():
        print("The bench reads what a process has read from /proc, so it runs on Linux only.", file=sys.stderr)
        return 1
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    plan = Plan.tiny() if options.tiny else Plan.full(options.rounds)
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        rows, seen = measure(plan, options.works, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "kafka": distribution.KAFKA_VERSION, **seen}
    title = "Logmark's log beside the machine, and beside Apache Kafka"
    report.show(rows, about=about, title=title, bench="log", options=options, notes=goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
