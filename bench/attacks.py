"""What an attack costs a broker and its other clients: `python -m bench.attacks [--quick] [--no-kafka] [--record]`.

For each attack a fresh broker is prepared and restarted. A producer, a consumer and a group member work beside it, each
in a process of its own (bench/attacks_probes.py): first alone, then while another process attacks
(bench/attacks_list.py), then alone again. The report has the most memory that was resident during the attack, and how
long the three waited, on Logmark with its default durability and on Apache Kafka with its own defaults.

`--works` chooses among the attacks. `--keep FOLDER` keeps every latency that was measured, one file for each attack and
broker. All of it takes about half an hour.
"""

import argparse
import contextlib
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/attacks.py` finds its neighbours

from bench import report, sides
from bench.attacks_link import PROBE_TOPIC, Link
from bench.attacks_list import ATTACKS, Attack
from bench.attacks_probes import GROUP, PROBES
from bench.load import REPOSITORY
from bench.report import Shares
from logmark.broker.memory_budget import default_bytes_max
from tests.harness import distribution
from tests.harness.node import free_ports

PAGE = REPOSITORY / "docs" / "attacks.md"
LOGMARK, KAFKA = "Logmark", "Apache Kafka"
PHASES = ("quiet", "attack", "after")
# Beside what clients may take: freed memory that the process keeps (64 MiB, logmark/memory.py), and as much again for
# the write-ahead log's next entries and what the interpreter adds.
OVERHEAD_MB = 128 * (1 << 20) / 1e6
P99_GOAL_MS = 50.0
ATTACK_TIMEOUT_S = 600.0
PROBE_TIMEOUT_S = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    scale: str
    attacks: tuple[str, ...]
    brokers: tuple[str, ...]
    rounds: int
    quiet_s: float
    attack_s: float
    after_s: float

    @classmethod
    def full(cls, options: argparse.Namespace, brokers: tuple[str, ...]) -> "Plan":
        """What is recorded."""
        return cls(
            scale="full",
            attacks=options.works,
            brokers=brokers,
            rounds=options.rounds,
            quiet_s=5,
            attack_s=15,
            after_s=3,
        )

    @classmethod
    def quick(cls, options: argparse.Namespace, brokers: tuple[str, ...]) -> "Plan":
        """Smaller attacks, in a few minutes."""
        return replace(cls.full(options, brokers), scale="quick", rounds=1, quiet_s=2, attack_s=4, after_s=1)

    @classmethod
    def tiny(cls, options: argparse.Namespace, brokers: tuple[str, ...]) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return replace(cls.full(options, brokers), scale="tiny", rounds=1, quiet_s=0.5, attack_s=0.5, after_s=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long the requests of one client took in one phase."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Latency":
        """Return the figures of some latencies in milliseconds; without any, nothing was served."""
        if not samples:
            return cls(count=0, p50_ms=math.inf, p99_ms=math.inf, max_ms=math.inf)
        found = sorted(samples)
        return cls(
            count=len(found),
            p50_ms=found[len(found) // 2],
            p99_ms=found[int(0.99 * (len(found) - 1))],
            max_ms=found[-1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one attack did to one broker."""

    attack: str
    broker: str
    sizes: dict[str, Any]
    idle_mb: float  # resident before any client came
    most_mb: float  # most resident from the first client to the end
    limit_mb: float | None
    latencies: dict[str, dict[str, Latency]]  # by client, then by phase
    errors: dict[str, dict[str, int]]  # of the well-behaved clients
    saw: dict[str, float]  # by the attacker
    attack_s: float
    broker_processors: float
    exit_code: int | None
    tracebacks: int

    @property
    def misses(self) -> list[str]:
        """Return the goals that were missed; only Logmark has goals."""
        if self.limit_mb is None:
            return []
        missed = [] if self.most_mb <= self.limit_mb else ["memory"]
        missed += [name for name in PROBES if self.latencies[name]["attack"].p99_ms > P99_GOAL_MS]
        missed += [f"{name}: errors" for name in PROBES if self.errors[name]]
        missed += [] if self.exit_code == 0 else [f"exit code {self.exit_code}"]
        return missed + (["tracebacks"] if self.tracebacks else [])

    def as_json(self) -> dict[str, object]:
        """Return every figure; a client that was not served at all in a phase has none there."""
        latencies = {
            name: {phase: asdict(latency) if latency.count else None for phase, latency in phases.items()}
            for name, phases in self.latencies.items()
        }
        return asdict(self) | {"latencies": latencies, "misses": self.misses}


class Broker(sides.Running):
    """A broker under attack."""

    def exit_code(self) -> int | None:
        """Return the exit code of a broker that was stopped; -9 if it had to be killed."""
        return self._process.poll()

    def resident_mb(self) -> float:
        """Return how much memory is resident now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6

    def forget_most_memory(self) -> None:
        """Begin to measure the most memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def start(name: str, folder: Path, descriptors: int | None) -> Broker:
    """Start a broker on what lies in a folder, with a limit of descriptors if one is given."""
    if name == KAFKA:
        properties = folder / "server.properties"
        listeners = next(
            line for line in properties.read_text().splitlines() if line.startswith("advertised.listeners=")
        )
        address = listeners.rpartition("//")[2]
        java = [distribution.java(), *sides.KAFKA_JVM, "-cp", distribution.class_path()]
        command = [*java, "kafka.Kafka", str(properties)]
    else:
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        command = [str(Path(sys.executable).with_name("logmark")), "serve", "--data-dir", str(folder / "data")]
        command += ["--listen", address]
    if descriptors is not None:
        command = ["/bin/sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
    return Broker(name, command, folder=folder, address=address)


@contextlib.contextmanager
def prepared(name: str, folder: Path, attack: Attack, plan: Plan) -> Iterator[Broker]:
    """Yield a broker that has what an attack needs and was restarted since; remove everything afterwards."""
    if name == KAFKA:
        sides.format_kafka(folder)
    else:
        folder.mkdir(parents=True)
    broker = start(name, folder, None)
    try:
        sides.create_topic(broker.address, PROBE_TOPIC, 1)
        coordinator = Link(broker.address)
        coordinator.wait_for_coordinator(GROUP)
        coordinator.close()
        _run_attacker("prepare", attack, broker.address, plan)
        broker.stop()
        broker = start(name, folder, attack.descriptors)
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _run_attacker(step: str, attack: Attack, address: str, plan: Plan) -> dict[str, Any]:
    arguments = {"address": address, "seconds": plan.attack_s, "sizes": attack.sizes(plan.scale)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.attacks_list", step, attack.name, json.dumps(arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=ATTACK_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{step} of {attack.name} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout)) if done.stdout else {}


@contextlib.contextmanager
def probing(address: str) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """Run the well-behaved clients, each in a process of its own; yield when all of them are served."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "bench.attacks_probes", name, json.dumps({"address": address})],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in PROBES
    }
    try:
        for name, process in running.items():
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the {name} beside the attack was not served")
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def measure_one(name: str, attack: Attack, plan: Plan, folder: Path, keep: Path | None) -> Outcome:
    """Carry out one attack on one broker."""
    with prepared(name, folder, attack, plan) as broker:
        time.sleep(min(1.0, plan.quiet_s))
        idle_mb = broker.resident_mb()
        with probing(broker.address) as probes:
            broker.forget_most_memory()
            began = time.monotonic()
            time.sleep(plan.quiet_s)
            cpu_s = broker.cpu_seconds()
            seen = _run_attacker("attack", attack, broker.address, plan)
            cpu_s = broker.cpu_seconds() - cpu_s
            most_mb = broker.memory_mb()
            time.sleep(plan.after_s)
            marks = [began, seen["began"], seen["ended"], time.monotonic()]
            found = {each: _finish(each, process) for each, process in probes.items()}
        broker.stop()
        if keep is not None:
            kept = {"attack": attack.name, "broker": name, "marks": marks, "clients": found}
            (keep / f"{attack.name}-{'kafka' if name == KAFKA else 'logmark'}.json").write_text(json.dumps(kept))
        attack_s = marks[2] - marks[1]
        return Outcome(
            attack=attack.name,
            broker=name,
            sizes=attack.sizes(plan.scale),
            idle_mb=idle_mb,
            most_mb=most_mb,
            limit_mb=idle_mb + default_bytes_max() / 1e6 + OVERHEAD_MB if name == LOGMARK else None,
            latencies={each: _by_phase(samples["samples"], marks) for each, samples in found.items()},
            errors={each: dict(samples["errors"]) for each, samples in found.items()},
            saw=seen["saw"],
            attack_s=attack_s,
            broker_processors=cpu_s / attack_s,
            exit_code=broker.exit_code(),
            tracebacks=(folder / "output").read_text(errors="replace").count("Traceback") if name == LOGMARK else 0,
        )


def _finish(name: str, process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Let a client end, and return what it measured."""
    try:
        said, _ = process.communicate(timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the {name} beside the attack did not end in {PROBE_TIMEOUT_S:g} s") from None
    return dict(json.loads(said))


def _by_phase(samples: Sequence[tuple[float, float]], marks: Sequence[float]) -> dict[str, Latency]:
    return {
        phase: Latency.of([ms for at, ms in samples if marks[number] <= at < marks[number + 1]])
        for number, phase in enumerate(PHASES)
    }


def measure(plan: Plan, folder: Path, keep: Path | None, say: Say) -> tuple[list[Outcome], list[str]]:
    """Carry out every attack on every broker; of several rounds the one with the longest waits counts.

    Return the outcomes, and what could not be measured: an attack may end a broker.
    """
    outcomes: list[Outcome] = []
    failures: list[str] = []
    for name in plan.attacks:
        attack = ATTACKS[name]
        for broker in plan.brokers:
            if broker == KAFKA and not attack.has_kafka:
                continue
            found = []
            for number in range(plan.rounds):
                part = f", round {number + 1} of {plan.rounds}" if plan.rounds > 1 else ""
                say(f"{name} on {broker}{part}: {attack.describe(plan.scale)}")
                try:
                    found.append(measure_one(broker, attack, plan, folder / "broker", keep))
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    failures.append(f"{name} on {broker} could not be measured: {str(error).strip()}")
                    say(f"  {failures[-1]}")
            if found:
                outcomes.append(max(found, key=_longest_wait))
                say(f"  {_summary(outcomes[-1])}")
    return outcomes, failures


def _longest_wait(outcome: Outcome) -> float:
    return max(outcome.latencies[name]["attack"].p99_ms for name in PROBES)


def _summary(outcome: Outcome) -> str:
    waits = ", ".join(f"{name} {outcome.latencies[name]['attack'].p99_ms:.1f}" for name in PROBES)
    missed = f"; missed: {', '.join(outcome.misses)}" if outcome.misses else ""
    return f"most memory {outcome.most_mb:,.0f} MB; p99 in ms: {waits}{missed}"


# The report

HEADINGS = (
    "attack",
    "broker",
    "memory idle",
    "most memory",
    "limit",
    "producer p99 (max), quiet",
    "under attack",
    "consumer p99 (max), quiet",
    "under attack",
    "member p99 (max), quiet",
    "under attack",
    "goals",
)


def tables(outcomes: Sequence[Outcome], plan: Plan) -> list[Shares]:
    """Return the tables of the report."""
    described = [(name, ATTACKS[name].describe(plan.scale)) for name in plan.attacks]
    seen = [(each.attack, each.broker, f"{each.attack_s:.0f} s", _saw(each), _errors(each)) for each in outcomes]
    return [
        Shares(
            title="Memory, and how long the others waited, in ms",
            headings=HEADINGS,
            lines=[_line(each) for each in outcomes],
        ),
        Shares(title="The attacks", headings=("attack", "what it does"), lines=described),
        Shares(
            title="What the attackers saw, and errors of the others",
            headings=("attack", "broker", "time", "attackers", "errors of producer, consumer and member"),
            lines=seen,
        ),
    ]


def _line(outcome: Outcome) -> list[str]:
    waits = [
        f"{latency.p99_ms:,.1f} ({latency.max_ms:,.0f})"
        for name in PROBES
        for latency in (outcome.latencies[name]["quiet"], outcome.latencies[name]["attack"])
    ]
    has_goals = outcome.limit_mb is not None
    verdict = f"MISSED: {', '.join(outcome.misses)}" if outcome.misses else "met" if has_goals else ""
    limit = f"{outcome.limit_mb:,.0f} MB" if outcome.limit_mb is not None else ""
    memory = [f"{outcome.idle_mb:,.0f} MB", f"{outcome.most_mb:,.0f} MB", limit]
    return [outcome.attack, outcome.broker, *memory, *waits, verdict]


def _saw(outcome: Outcome) -> str:
    counts = [f"{name}: {count:,}" for name, count in outcome.saw.items()]
    return ", ".join([*counts, f"processors of the broker: {outcome.broker_processors:.2f}"])


def _errors(outcome: Outcome) -> str:
    said = [
        f"{name}: {count} × {error}" for name, errors in outcome.errors.items() for error, count in errors.items()
    ]
    return "; ".join(said).replace("|", "/") or "none"


def notes(plan: Plan) -> list[str]:
    """Return how to read the tables."""
    return [
        f"The limit is the memory of the idle broker, plus client.memory.max.bytes ({default_bytes_max() / 1e6:,.0f} "
        f"MB), plus {OVERHEAD_MB:,.0f} MB: freed memory that the process keeps, the write-ahead log's entries, the "
        "interpreter.",
        f"The goals are memory under the limit, p99 under {P99_GOAL_MS:g} ms for each of the others, none of their "
        "requests refused, no traceback in the broker's log, and a clean stop.",
        "The producer's and the member's figures are those of a request; the consumer's go from the sending of a "
        "record to its arrival. A request that is due while the one before it waits counts as waiting, too.",
        f"{plan.quiet_s:g} s of quiet, then the attack, for {plan.attack_s:g} s or until it is through. "
        "Attackers have a low priority.",
    ]


def markdown(outcomes: Sequence[Outcome], failures: Sequence[str], plan: Plan, about: dict[str, object]) -> str:
    """Return the whole report."""
    lines = ["### What attacks cost", "", ", ".join(f"{name}: {value}" for name, value in about.items()), ""]
    lines += [f"- {note}" for note in notes(plan)]
    lines += [f"- **{failure.splitlines()[0]}**" for failure in failures]
    lines += [line for table in tables(outcomes, plan) for line in table.markdown()]
    return "\n".join(lines) + "\n"


def record(text: str) -> None:
    """Replace what docs/attacks.md has between the marks of this bench."""
    before, begin, rest = PAGE.read_text().partition("<!-- bench:attacks:begin -->\n")
    _, end, after = rest.partition("<!-- bench:attacks:end -->")
    if not (begin and end):
        raise RuntimeError(f"{PAGE} has lost the marks of the bench")
    PAGE.write_text(before + begin + text + end + after)


def main() -> int:
    """Run the bench and print it; return 1 when a side cannot run here, or could not be measured."""
    parser = argparse.ArgumentParser(description="What attacks cost a broker and its other clients.")
    report.add_options(parser, rounds=1)
    report.add_works(parser, tuple(ATTACKS))
    parser.add_argument("--quick", action="store_true", help="smaller attacks, in a few minutes")
    parser.add_argument(
        "--kafka", action=argparse.BooleanOptionalAction, default=True, help="attack Apache Kafka, too (default)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every latency here")
    options = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        print("The bench reads what a process uses from /proc, so it runs on Linux only.", file=sys.stderr)
        return 1
    if options.kafka and (reason := distribution.why_not()):
        print(f"{reason} To attack only Logmark, add --no-kafka.", file=sys.stderr)
        return 1
    # Thousands of connections, and Apache Kafka keeps every partition's files open.
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    brokers = (LOGMARK, KAFKA) if options.kafka else (LOGMARK,)
    make = Plan.tiny if options.tiny else Plan.quick if options.quick else Plan.full
    plan = make(options, brokers)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="logmark-attacks-") as folder:
        say = partial(print, file=sys.stderr, flush=True)
        outcomes, failures = measure(plan, Path(folder), options.keep, say)
    about = report.machine() | {"command": " ".join(["python -m bench.attacks", *sys.argv[1:]])}
    about |= {"scale": plan.scale, "rounds": plan.rounds, "load": round(os.getloadavg()[0], 1)}
    about |= {"kafka": distribution.KAFKA_VERSION} if options.kafka else {}
    if options.record:
        record(markdown(outcomes, failures, plan, about))
    if options.output == "json":
        rows = [each.as_json() for each in outcomes]
        print(json.dumps(about | {"notes": notes(plan), "failures": failures, "rows": rows}, indent=2))
    else:
        print(markdown(outcomes, failures, plan, about))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
