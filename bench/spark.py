"""`format("logmark")` side by side with Spark's own Kafka connector: `python bench/spark.py [--output json] [--tiny]`.

Both read the same topics of the same broker in the same Spark session, in turn, all columns into a sink that drops
them; the first round is not counted. The brokers are Apache Kafka and Logmark. JSON: values as typed columns, here by
`value.format=json`, there by `from_json`. Trickle: one record at a time, until Spark has written the batch's commit.
Pipelines: the functions of examples/clicks into Parquet.
"""

import argparse
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/spark.py` finds its neighbours

from bench import connector, load, report, sides, topics
from bench.report import Row, middle
from tests.harness import distribution

PARTITIONS = 4
SIZES = {100: "100 B", 1024: "1 KiB"}
SOURCES = ("kafka", "logmark")
CODECS = ("gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    warm_ups: int = 1
    records: dict[int, int]
    clicks: int
    trickled: int
    codecs: tuple[str, ...] = CODECS
    pipelines: tuple[str, ...] = ("billing", "fraud", "features")
    brokers: tuple[str, ...] = ("Apache Kafka", "Logmark")

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        """What `make bench` runs."""
        return cls(rounds=rounds, records={100: 4_000_000, 1024: 800_000}, clicks=2_000_000, trickled=15)

    @classmethod
    def tiny(cls) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(
            rounds=1,
            warm_ups=0,
            records={100: 4_000},
            clicks=4_000,
            trickled=1,
            codecs=("zstd",),
            pipelines=("billing",),
            brokers=("Logmark",),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One work that both sources do on one topic; what it measures is records a second unless it says seconds."""

    work: str
    topic: str
    records: int
    run: Callable[["Bench", str, str], float]
    kind: str = "scan"
    unit: str = "records/s"


def session() -> Any:
    """A Spark on two cores of this machine, with the connector on its class path."""
    from logmark.spark.sessions import session

    jars = ",".join(map(str, connector.jars()))
    return session("logmark-bench", master="local[2]", memory="2g", config={"spark.jars": jars})


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

    def stream(self, source: str, topic: str) -> Any:
        """The topic as a stream from its beginning."""
        return self.spark.readStream.format(source).options(**self.options(source, topic, is_stream=True)).load()

    def place(self) -> str:
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
    return timed(lambda: writer.option("checkpointLocation", bench.place()).start().awaitTermination())


def scan_json(bench: Bench, source: str, topic: str) -> float:
    """Seconds to read the whole topic as typed columns."""
    if source == "kafka":
        text = f"from_json(cast(value as string), '{topics.CLICKS_SCHEMA}') as value"
        frame = bench.batch(source, topic).selectExpr("topic", "partition", "offset", text)
    else:
        frame = bench.batch(source, topic, **{"value.format": "json", "value.schema": topics.CLICKS_SCHEMA})
    typed = frame.select("topic", "partition", "offset", "value.*")
    return timed(lambda: typed.write.format("noop").mode("overwrite").save())


def piped(name: str) -> Callable[[Bench, str, str], float]:
    """Seconds that a pipeline of examples/clicks takes for the whole topic, into Parquet."""

    def run(bench: Bench, source: str, topic: str) -> float:
        from examples.clicks import billing, features, fraud

        work = {"billing": billing.charges, "fraud": fraud.alerts, "features": features.observations}[name]
        writer = work(bench.stream(source, topic)).writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("path", bench.place()).option("checkpointLocation", bench.place())
        return timed(lambda: writer.start().awaitTermination())

    return run


def trickle(trickled: int) -> Callable[[Bench, str, str], float]:
    """Seconds, in the middle, from a record's acknowledgement to the commit of the micro-batch that has it."""

    def run(bench: Bench, source: str, topic: str) -> float:
        checkpoint = bench.place()
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
        sides.create_topic(bench.address, topic, PARTITIONS)
        load.run(
            "produce", address=bench.address, topic=topic, partitions=PARTITIONS, records=records, value_bytes=size
        )
        for name, scan in (("batch", scan_batch), ("availableNow", scan_stream)):
            found.append(Case(work=f"{name} of {SIZES[size]} records", topic=topic, records=records, run=scan))
        for codec in plan.codecs:
            packed = f"scan-{size}-{codec}"
            part = records // 4
            _fill(bench, packed, topics.lines(size), part, codec)
            work = f"batch of {SIZES[size]} records in {codec}"
            found.append(Case(work=work, topic=packed, records=part, run=scan_batch))
    _fill(bench, "clicks", topics.clicks(), plan.clicks, "none")
    found.append(
        Case(work="JSON clicks to typed columns", topic="clicks", records=plan.clicks, run=scan_json, kind="json")
    )
    _fill(bench, "examples", topics.example_clicks(), plan.clicks, "lz4")
    for name in plan.pipelines:
        work = f"{name}, availableNow into Parquet"
        found.append(Case(work=work, topic="examples", records=plan.clicks, run=piped(name), kind="pipeline"))
    sides.create_topic(bench.address, "trickle", 1)
    run = trickle(plan.trickled)
    found.append(Case(work="micro-batch of one record", topic="trickle", records=1, run=run, kind="latency", unit="ms"))
    return found


def _fill(bench: Bench, topic: str, values: list[bytes], records: int, codec: str) -> None:
    sides.create_topic(bench.address, topic, PARTITIONS)
    topics.fill(bench.address, topic, values, partitions=PARTITIONS, records=records, codec=codec)


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Every case on every broker by both sources."""
    rows: list[Row] = []
    spark = session()
    try:
        for broker in plan.brokers:
            data = folder / "broker"
            with sides.logmark(data, durability="os") if broker == "Logmark" else sides.kafka(data) as side:
                bench = Bench(spark, side.address, folder)
                made = cases(plan, bench)
                _check(bench, made, broker)
                rows += [_row(plan, bench, broker, case, say) for case in made]
    finally:
        spark.stop()
    return rows


def _check(bench: Bench, made: list[Case], broker: str) -> None:
    """Both sources see every record."""
    for topic, records in {case.topic: case.records for case in made if case.kind != "latency"}.items():
        for source in SOURCES:
            seen = bench.batch(source, topic).count()
            if seen != records:
                raise RuntimeError(f"{source} read {seen} of {records} records of {topic} from {broker}")


def _row(plan: Plan, bench: Bench, broker: str, case: Case, say: Callable[[str], None]) -> Row:
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(1 - plan.warm_ups, plan.rounds + 1):
        say(f"{broker}, {case.work}: {'warm-up' if number < 1 else f'round {number} of {plan.rounds}'}")
        for source in SOURCES if number % 2 else SOURCES[::-1]:
            seconds = case.run(bench, source, case.topic)
            if number >= 1:
                samples[source].append(seconds * 1000 if case.unit == "ms" else case.records / seconds)
    return Row(
        work=f"{case.work} from {broker}",
        logmark_as='format("logmark")',
        against=f"connector {connector.VERSION}",
        unit=case.unit,
        logmark=middle(samples["logmark"]),
        other=middle(samples["kafka"]),
        kind=case.kind,
        is_higher_better=case.unit != "ms",
    )


def megabytes(rows: list[Row]) -> list[str]:
    """The plain scans in megabytes of values a second."""
    sizes = {text: size for size, text in SIZES.items()}
    plain = [row for row in rows if row.kind == "scan" and " in " not in row.work]
    return [
        f"{row.work}: {row.logmark * size / 1e6:,.0f} MB/s beside {row.other * size / 1e6:,.0f} MB/s"
        for row in plain
        for text, size in sizes.items()
        if text in row.work
    ]


def main() -> int:
    """Runs the bench and prints it; 1 with a sentence when a side cannot run here."""
    parser = argparse.ArgumentParser(description="Logmark's Spark source side by side with Spark's Kafka connector.")
    report.add_options(parser)
    chosen = parser.parse_args()
    if reason := distribution.why_not():
        print(reason, file=sys.stderr)
        return 1
    try:
        connector.jars()
    except distribution.KafkaUnavailable as missing:
        print(missing, file=sys.stderr)
        return 1
    import pyspark

    plan = Plan.tiny() if chosen.tiny else Plan.full(chosen.rounds)
    with tempfile.TemporaryDirectory(prefix="logmark-bench-") as folder:
        rows = measure(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    about = {"rounds": plan.rounds, "partitions": PARTITIONS, "pyspark": pyspark.__version__, "master": "local[2]"}
    report.show(
        rows,
        about=about,
        title="Logmark's Spark source beside Spark's connector",
        bench="spark",
        options=chosen,
        notes=megabytes(rows),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
