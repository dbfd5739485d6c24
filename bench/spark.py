"""`format("logmark")` beside Spark's Kafka connector: `python bench/spark.py [--output json] [--quick]`.

Both read the same topics of the same broker in the same Spark session, in turn, all columns into a sink that drops
them; a first round of each kind of work is not counted. The brokers are Apache Kafka and Logmark. JSON: values as typed
columns, here by `value.format=json`, there by `from_json`. Trickle: one record at a time, until Spark has written the
batch's commit. Pipelines: the functions of examples/clicks into Parquet. At the end it says where the time goes:
processor time by process, and by step of reading without Spark.
"""

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/spark.py` finds its neighbours

from bench import load, phases, pipelines, report, sides, topics
from bench.report import Row, Shares, middle
from tests.harness import distribution, spark_connector

PARTITIONS = 4
SIZES = {100: "100 B", 1024: "1 KiB"}
SOURCES = ("kafka", "logmark")
CODECS = ("gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    records: dict[int, int]
    packed: dict[int, int]
    clicks: int
    examples: int
    trickled: int
    long: dict[int, int] = field(default_factory=dict)
    codecs: tuple[str, ...] = CODECS
    pipelines: tuple[str, ...] = pipelines.NAMES
    brokers: tuple[str, ...] = ("Apache Kafka", "Logmark")
    settings: Mapping[str, str] = field(default_factory=dict)
    is_warmed_up: bool = True

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        """What `make bench` runs."""
        return cls(
            rounds=rounds,
            records={100: 5_000_000, 1024: 1_000_000},
            packed={100: 1_600_000, 1024: 320_000},
            long={100: 20_000_000, 1024: 4_000_000},
            clicks=800_000,
            examples=150_000,
            trickled=10,
        )

    @classmethod
    def quick(cls) -> "Plan":
        """A few minutes: one round, one codec, smaller topics."""
        return cls(
            rounds=1,
            records={100: 3_000_000, 1024: 600_000},
            packed={100: 1_000_000, 1024: 200_000},
            clicks=500_000,
            examples=50_000,
            trickled=5,
            codecs=("zstd",),
        )

    @classmethod
    def tiny(cls) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(
            rounds=1,
            records={100: 4_000},
            packed={100: 4_000},
            clicks=4_000,
            examples=1_000,
            trickled=1,
            codecs=("zstd",),
            pipelines=("billing",),
            brokers=("Logmark",),
            is_warmed_up=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One work that both sources do on one topic; what it measures is records a second unless it says milliseconds."""

    work: str
    topic: str
    records: int
    run: Callable[["Bench", str, str], float]
    kind: str = "scan"
    unit: str = "records/s"
    value_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Row):
    """A row of the bench, with the size of its values where all are of one."""

    value_bytes: int | None = None

    def shown(self, value: float) -> str:
        plain = Row.shown(self, value)
        return plain if self.value_bytes is None else f"{plain}, {value * self.value_bytes / 1e6:,.0f} MB/s"

    def as_json(self) -> dict[str, object]:
        fields = Row.as_json(self)
        size = fields.pop("value_bytes")
        if self.value_bytes is not None:
            speeds = {"logmark_mb_s": self.logmark, "other_mb_s": self.other}
            fields |= {name: round(value * self.value_bytes / 1e6, 1) for name, value in speeds.items()}
            fields["value_bytes"] = size
        return fields


def session(settings: Mapping[str, str]) -> Any:
    """A Spark on two cores of this machine, with the connector on its class path."""
    from logmark.spark.sessions import session

    # Where Python may not keep what it compiles, each process that Spark starts compiles what was edited last.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    jars = ",".join(map(str, spark_connector.jars()))
    return session("logmark-bench", master="local[2]", memory="2g", config={"spark.jars": jars, **settings})


class Bench:
    """One Spark beside one broker."""

    def __init__(self, spark: Any, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder

    def options(self, source: str, topic: str, *, is_stream: bool) -> dict[str, str]:
        """What each source needs to read a topic from its beginning."""
        if source == "kafka":
            return {"kafka.bootstrap.servers": self.address, "subscribe": topic, "startingOffsets": "earliest"}
        where = {"bootstrap.servers": self.address, "subscribe": topic}
        if not is_stream:
            return {**where, "startingOffsets": "earliest"}
        return {**where, "group.id": f"bench-{uuid.uuid4().hex[:8]}", "auto.offset.reset": "earliest"}

    def batch(self, source: str, topic: str, **more: str) -> Any:
        """The whole topic as a data frame."""
        return self.spark.read.format(source).options(**self.options(source, topic, is_stream=False), **more).load()

    def stream(self, source: str, topic: str, **more: str) -> Any:
        """The topic as a stream from its beginning."""
        options = self.options(source, topic, is_stream=True)
        return self.spark.readStream.format(source).options(**options, **more).load()

    def new_folder(self) -> str:
        """A folder that is not there yet."""
        return str(self.folder / uuid.uuid4().hex[:8])


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def scan_batch(bench: Bench, source: str, topic: str) -> float:
    """Seconds to read the whole topic as a batch."""
    frame = bench.batch(source, topic)
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def scan_stream(bench: Bench, source: str, topic: str) -> float:
    """Seconds to read the whole topic as a stream that ends when it has caught up."""
    writer = bench.stream(source, topic).writeStream.format("noop").trigger(availableNow=True)
    return timed(lambda: writer.option("checkpointLocation", bench.new_folder()).start().awaitTermination())


def start_stream(bench: Bench, source: str, topic: str) -> float:
    """Seconds that a stream takes which has next to nothing to read."""
    return scan_stream(bench, source, topic)


def scan_json(bench: Bench, source: str, topic: str) -> float:
    """Seconds to read the whole topic as typed columns."""
    records = typed(bench.batch, source, topic, topics.CLICKS_SCHEMA)
    rows = records.select("topic", "partition", "offset", "value.*")
    return timed(lambda: rows.write.format("noop").mode("overwrite").save())


def typed(read: Callable[..., Any], source: str, topic: str, schema: str) -> Any:
    """Records whose values are structs of a schema."""
    if source == "logmark":
        return read(source, topic, **{"value.format": "json", "value.schema": schema})
    from pyspark.sql.functions import col, from_json

    return read(source, topic).withColumn("value", from_json(col("value").cast("string"), schema))


def piped(name: str) -> Callable[[Bench, str, str], float]:
    """Seconds that a pipeline of examples/clicks takes for the whole topic, into Parquet."""

    def run(bench: Bench, source: str, topic: str) -> float:
        records = typed(bench.stream, source, topic, str(pipelines.pipeline(name).schema))
        return timed(lambda: pipelines.start(name, records, folder=bench.new_folder).awaitTermination())

    return run


def trickle(trickled: int) -> Callable[[Bench, str, str], float]:
    """Seconds, in the middle, from a record's acknowledgement to the commit of the micro-batch that has it."""

    def run(bench: Bench, source: str, topic: str) -> float:
        checkpoint = bench.new_folder()
        query = bench.stream(source, topic).writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        commits = Path(checkpoint, "commits")
        samples = []
        try:
            for number in range(trickled + 2):
                done = _commits(commits)
                topics.fill(bench.address, topic, [b"{}"], partitions=1, records=1, codec="none")
                begin = time.perf_counter()
                while _commits(commits) == done:
                    if query.exception() is not None or time.perf_counter() - begin > 60:
                        raise RuntimeError(f"the query of {source} did not see a record: {query.exception()}")
                    time.sleep(0.002)
                if number >= 2:  # the first batches of a query set it up
                    samples.append(time.perf_counter() - begin)
        finally:
            query.stop()
        return middle(samples)

    return run


def _commits(folder: Path) -> int:
    return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0


def cases(plan: Plan, bench: Bench) -> list[Case]:
    """Makes the topics and says what is measured on them."""
    found = []
    for size, records in plan.records.items():
        topic = f"scan-{size}"
        _load(bench, topic, records, size)
        found += scans(topic, records, size, "")
        for codec in plan.codecs:
            packed = f"{topic}-{codec}"
            _fill(bench, packed, topics.lines(size), plan.packed[size], codec)
            found += scans(packed, plan.packed[size], size, f" in {codec}")
    for size, records in plan.long.items():
        _load(bench, f"long-{size}", records, size)
        found += [
            replace(one, work=f"{one.work}, {records // 1_000_000} million of them")
            for one in scans(f"long-{size}", records, size, "")
            if one.kind == "available_now"
        ]
    _fill(bench, "clicks", topics.clicks(), plan.clicks, "none")
    found.append(
        Case(work="JSON clicks to typed columns", topic="clicks", records=plan.clicks, run=scan_json, kind="json")
    )
    _fill(bench, "examples", pipelines.clicks(plan.examples), plan.examples, "lz4")
    for name in plan.pipelines:
        work = f"{name}, availableNow into Parquet"
        found.append(Case(work=work, topic="examples", records=plan.examples, run=piped(name), kind="pipeline"))
    _fill(bench, "start", topics.lines(100), PARTITIONS, "none")
    work = "a stream of four records, from its start to its end"
    found.append(Case(work=work, topic="start", records=PARTITIONS, run=start_stream, kind="start", unit="ms"))
    sides.create_topic(bench.address, "trickle", 1)
    run = trickle(plan.trickled)
    found.append(Case(work="micro-batch of one record", topic="trickle", records=1, run=run, kind="latency", unit="ms"))
    return found


def scans(topic: str, records: int, size: int, packed: str) -> list[Case]:
    """The topic read as a batch and as a stream."""
    ways = (("batch", scan_batch, "scan"), ("availableNow", scan_stream, "available_now"))
    return [
        Case(
            work=f"{name} of {SIZES[size]} records{packed}",
            topic=topic,
            records=records,
            run=run,
            kind=kind,
            value_bytes=size,
        )
        for name, run, kind in ways
    ]


def _load(bench: Bench, topic: str, records: int, size: int) -> None:
    sides.create_topic(bench.address, topic, PARTITIONS)
    load.run("produce", address=bench.address, topic=topic, partitions=PARTITIONS, records=records, value_bytes=size)


def _fill(bench: Bench, topic: str, values: Sequence[bytes | tuple[bytes, bytes]], records: int, codec: str) -> None:
    sides.create_topic(bench.address, topic, PARTITIONS)
    topics.fill(bench.address, topic, values, partitions=PARTITIONS, records=records, codec=codec)


class Measuring:
    """The rows of one broker, and what its scans used of the processors."""

    def __init__(self, plan: Plan, bench: Bench, broker: sides.Running, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._bench = bench
        self._name = "Logmark" if broker.name.startswith("logmark") else "Apache Kafka"
        self._say = say
        self._warm: set[object] = set()
        self._processors = phases.Processors(broker.pid)
        self.by_process: list[list[str]] = []
        self.by_step: list[list[str]] = []

    def rows(self) -> list[Compared]:
        """Every case by both sources; the small ones first, because the first of a kind is done once for nothing."""
        made = cases(self._plan, self._bench)
        _check(self._bench, made, self._name)
        # The start of a stream comes last, because it is not to be measured with what the JVM does once.
        ordered = sorted(made, key=lambda case: (case.kind == "start", case.records))
        done = {case.work: self._row(case) for case in ordered}
        self.by_step = [self._steps(size) for size in self._plan.records]
        return [done[case.work] for case in made]

    def _row(self, case: Case) -> Compared:
        plan = self._plan
        samples: dict[str, list[float]] = defaultdict(list)
        used: dict[str, list[dict[str, float]]] = defaultdict(list)
        is_cold = plan.is_warmed_up and case.kind != "latency" and case.run not in self._warm
        self._warm.add(case.run)
        for number in range(0 if is_cold else 1, plan.rounds + 1):
            self._say(f"{self._name}, {case.work}: {f'round {number} of {plan.rounds}' if number else 'warm-up'}")
            for source in SOURCES if number % 2 else SOURCES[::-1]:
                before = self._processors.seconds()
                seconds = case.run(self._bench, source, case.topic)
                after = self._processors.seconds()
                if number:
                    samples[source].append(seconds * 1000 if case.unit == "ms" else case.records / seconds)
                    used[source].append({name: after[name] - before[name] for name in after})
        if case.kind in ("scan", "available_now") and case.topic in {f"scan-{size}" for size in plan.records}:
            self.by_process += [self._used(case, source, used[source]) for source in SOURCES[::-1]]
        return Compared(
            work=f"{case.work} from {self._name}",
            logmark_as='format("logmark")',
            against=f"connector {spark_connector.VERSION}",
            unit=case.unit,
            logmark=middle(samples["logmark"]),
            other=middle(samples["kafka"]),
            kind=case.kind,
            is_higher_better=case.unit != "ms",
            value_bytes=case.value_bytes,
        )

    def _used(self, case: Case, source: str, used: list[dict[str, float]]) -> list[str]:
        spent = [1e6 * median(one[name] for one in used) / case.records for name in phases.PROCESSES]
        what = 'format("logmark")' if source == "logmark" else "connector"
        return [f"{case.work} from {self._name}", what, *(f"{one:.2f} s" for one in (*spent, sum(spent)))]

    def _steps(self, size: int) -> list[str]:
        steps = phases.steps_of(self._bench.address, f"scan-{size}")
        figures = (f"{steps.per_million(name):.0f} ms" for name in phases.PHASES)
        return [f"{SIZES[size]} records from {self._name}", *figures]


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> tuple[list[Row], list[Shares]]:
    """Every case on every broker by both sources, and where the time went."""
    rows: list[Row] = []
    by_process: list[list[str]] = []
    by_step: list[list[str]] = []
    spark = session(plan.settings)
    try:
        for broker in plan.brokers:
            data = folder / "broker"
            with sides.logmark(data, durability="os") if broker == "Logmark" else sides.kafka(data) as side:
                measuring = Measuring(plan, Bench(spark, side.address, folder), side, say)
                rows += measuring.rows()
                by_process += measuring.by_process
                by_step += measuring.by_step
    finally:
        spark.stop()
    processes = Shares(
        title="Processor time for a million records, by process",
        headings=("work", "source", *phases.PROCESSES, "all"),
        lines=by_process,
    )
    steps = Shares(
        title="Processor time for a million records from a broker into Arrow, in one Python process without Spark",
        headings=("work", *phases.PHASES),
        lines=by_step,
    )
    return rows, [processes, steps]


def _check(bench: Bench, made: list[Case], broker: str) -> None:
    """Both sources see every record."""
    for topic, records in {case.topic: case.records for case in made if case.kind != "latency"}.items():
        for source in SOURCES:
            seen = bench.batch(source, topic).count()
            if seen != records:
                raise RuntimeError(f"{source} read {seen} of {records} records of {topic} from {broker}")


def main() -> int:
    """Run the bench and print it; return 1 with an error message when a side cannot run here."""
    parser = argparse.ArgumentParser(description="Logmark's Spark source side by side with Spark's Kafka connector.")
    report.add_options(parser, rounds=2)
    parser.add_argument("--quick", action="store_true", help="one round of less, in a few minutes")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark, for both sources"
    )
    chosen = parser.parse_args()
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    try:
        spark_connector.jars()
    except distribution.KafkaUnavailable as missing:
        print(missing, file=sys.stderr)
        return 1
    import pyspark

    plan = Plan.tiny() if chosen.tiny else Plan.quick() if chosen.quick else Plan.full(chosen.rounds)
    plan = replace(plan, settings=dict(one.split("=", 1) for one in chosen.conf))
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        rows, shares = measure(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "partitions": PARTITIONS, "pyspark": pyspark.__version__, "master": "local[2]"}
    report.show(
        rows,
        about=about,
        title="Logmark's Spark source beside Spark's connector",
        bench="spark",
        options=chosen,
        shares=shares,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
