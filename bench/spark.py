"""`format("logmark")` side by side with Spark's own Kafka connector: `python bench/spark.py [--output json] [--tiny]`.

Both read the same topics of the same broker in the same Spark session, in turn, all columns into a sink that drops
them; the first round is not counted. The brokers are Apache Kafka and Logmark.
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

from bench import connector, load, report, sides
from bench.report import Row, middle
from tests.harness import distribution

PARTITIONS = 4
SIZES = {100: "100 B", 1024: "1 KiB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    warm_ups: int = 1
    records: dict[int, int]
    brokers: tuple[str, ...] = ("Apache Kafka", "Logmark")

    @classmethod
    def full(cls, rounds: int) -> "Plan":
        """What `make bench` runs."""
        return cls(rounds=rounds, records={100: 4_000_000, 1024: 800_000})

    @classmethod
    def tiny(cls) -> "Plan":
        """Only enough to see that everything runs; its figures mean nothing."""
        return cls(rounds=1, warm_ups=0, records={100: 4_000}, brokers=("Logmark",))


def session() -> Any:
    """A Spark on two cores of this machine, with the connector on its class path."""
    from logmark.spark.sessions import session

    jars = ",".join(map(str, connector.jars()))
    return session("logmark-bench", master="local[2]", memory="2g", config={"spark.jars": jars})


def options(source: str, address: str, topic: str, *, is_stream: bool) -> dict[str, str]:
    """What each source needs to read a topic from its beginning."""
    if source == "kafka":
        return {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    where = {"bootstrap.servers": address, "subscribe": topic}
    if not is_stream:
        return {**where, "startingOffsets": "earliest"}
    return {**where, "group.id": f"bench-{uuid.uuid4().hex[:8]}", "auto.offset.reset": "earliest"}


def scan_batch(spark: Any, source: str, address: str, topic: str, folder: Path) -> None:
    """Reads the whole topic as a batch."""
    frame = spark.read.format(source).options(**options(source, address, topic, is_stream=False)).load()
    frame.write.format("noop").mode("overwrite").save()


def scan_stream(spark: Any, source: str, address: str, topic: str, folder: Path) -> None:
    """Reads the whole topic as a stream that ends when it has caught up."""
    frame = spark.readStream.format(source).options(**options(source, address, topic, is_stream=True)).load()
    checkpoint = folder / f"checkpoint-{uuid.uuid4().hex[:8]}"
    query = (
        frame.writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.awaitTermination()


SCANS = {"batch": scan_batch, "availableNow": scan_stream}
Samples = dict[tuple[str, int, str, str], list[float]]


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Every scan of every topic of every broker by both sources."""
    samples: Samples = defaultdict(list)
    spark = session()
    try:
        for broker in plan.brokers:
            data = folder / "broker"
            with sides.logmark(data, durability="os") if broker == "Logmark" else sides.kafka(data) as side:
                _scans(plan, spark, broker, side.address, folder, samples, say)
    finally:
        spark.stop()
    return [
        Row(
            work=f"{scan} of {SIZES[size]} records from {broker}",
            logmark_as='format("logmark")',
            against=f"connector {connector.VERSION}",
            unit="records/s",
            logmark=middle(samples[broker, size, scan, "logmark"]),
            other=middle(samples[broker, size, scan, "kafka"]),
            kind="scan",
        )
        for broker in plan.brokers
        for size in plan.records
        for scan in SCANS
    ]


def _scans(
    plan: Plan, spark: Any, broker: str, address: str, folder: Path, samples: Samples, say: Callable[[str], None]
) -> None:
    for size, records in plan.records.items():
        topic = f"scan-{size}"
        sides.create_topic(address, topic, PARTITIONS)
        load.run("produce", address=address, topic=topic, partitions=PARTITIONS, records=records, value_bytes=size)
        for source in ("kafka", "logmark"):
            seen = spark.read.format(source).options(**options(source, address, topic, is_stream=False)).load().count()
            if seen != records:
                raise RuntimeError(f"{source} read {seen} of {records} records from {broker}")
        for number in range(1 - plan.warm_ups, plan.rounds + 1):
            say(f"{broker}, {SIZES[size]}: {'warm-up' if number < 1 else f'round {number} of {plan.rounds}'}")
            for scan, work in SCANS.items():
                for source in ("kafka", "logmark"):
                    begin = time.perf_counter()
                    work(spark, source, address, topic, folder)
                    if number >= 1:
                        samples[broker, size, scan, source].append(records / (time.perf_counter() - begin))


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
        rows, about=about, title="Logmark's Spark source beside Spark's connector", bench="spark", options=chosen
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
