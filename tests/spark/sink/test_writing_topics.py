"""Topics written by a real Spark, and what kills leave behind, on our broker and on Apache Kafka."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from logmark.client.client import Client
from logmark.names import TopicPartition
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.searches import seed
from tests.spark.kills.processes import python_workers
from tests.spark.sink_driver import ROWS_PER_BATCH, start
from tests.spark.sink_rows import rows, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DEADLINE_S = 240.0
HELD_S = 600  # longer than any test


def test_a_dataframe_and_a_stream_become_records(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, target = (
        broker.create_topic("clicks"),
        broker.create_topic("target", partitions=2, config={"retention.ms": "-1"}),
    )
    frame = spark.sql(
        "SELECT 'k' AS key, CAST('é' AS BINARY) AS value, array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS "
        "headers, timestamp_millis(1700000000123) AS timestamp, 1 AS partition "
        "UNION ALL SELECT NULL, CAST(NULL AS BINARY), NULL, timestamp_millis(1700000000124), 1"
    ).coalesce(1)
    broker.produce(topic, [f"v{number}" for number in range(100)])

    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": target}
    writer = frame.write.format("logmark").mode("append").options(**given)
    if broker.is_ours:
        with pytest.raises(PySparkException, match=r"A topic cannot take the column extra: the columns are key"):
            frame.selectExpr("value", "1 AS extra").write.format("logmark").mode("append").options(**given).save()
        with pytest.raises(PySparkException, match=r"A topic cannot be overwritten\. Nothing was written\."):
            frame.write.format("logmark").mode("overwrite").options(**given).save()
    writer.option("id", broker.unique("backfill")).save()
    writer.option("id", broker.unique("backfill")).save()  # the same job once more
    copied = start(
        spark, broker.bootstrap_servers, topic, broker.group("g"), target, tmp_path / "c", available_now=True
    )
    copied.awaitTermination()

    first, second = rows(broker, target, 1)[:2]
    assert (b"k", "é".encode(), [("h", b"x")], 1_700_000_000_123) == tuple(
        first[name] for name in ("key", "value", "headers", "timestamp")
    )
    assert (None, None, []) == tuple(second[name] for name in ("key", "value", "headers"))
    found = Counter(value for part in (rows(broker, target, 0), rows(broker, target, 1)[2:]) for value in (
        row["value"] for row in part
    ))  # fmt: skip
    assert Counter(f"v{number} seen".encode() for number in range(100)) == found


def ends(broker: BrokerUnderTest, topic: str) -> int:
    """How many records the topic has."""
    partition = TopicPartition(topic, 0)
    with Client(broker.bootstrap_servers) as client:
        return client.latest([partition])[partition]


def expected(count: int) -> Counter[str]:
    return Counter(f"v{number} seen" for number in range(count))


def test_a_worker_that_is_killed_while_it_writes_leaves_nothing_twice_and_nothing_out(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    broker = our_broker
    topic, target = broker.create_topic("clicks"), broker.create_topic("target")
    broker.produce(topic, [f"v{number}" for number in range(100)])
    arguments = (spark, broker.bootstrap_servers, topic, broker.group("g"), target, tmp_path / "c")
    for seen in (10, 60):
        broker.control.delay("Produce", 0.05)
        query = start(*arguments)
        wait_until(lambda: ends(broker, target) >= seen, "a batch is half written", deadline_s=DEADLINE_S)  # noqa: B023
        broker.control.delay("Produce", HELD_S)
        for pid in python_workers(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not query.isActive, "the query has failed", deadline_s=DEADLINE_S)  # noqa: B023
        broker.control.clear_faults()
        assert ends(broker, target) % ROWS_PER_BATCH, "the kill came between two batches"

    start(*arguments, available_now=True).awaitTermination()

    assert expected(100) == Counter(values(broker, target)[0])


def test_a_driver_that_is_killed_in_a_batch_and_before_its_commit_leaves_nothing_twice_and_nothing_out(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    broker = our_broker
    topic, target = broker.create_topic("clicks"), broker.create_topic("target")
    broker.produce(topic, [f"v{number}" for number in range(100)])
    arguments = (broker.bootstrap_servers, topic, broker.group("g"), target, tmp_path / "c")
    broker.control.delay("Produce", 0.05)
    with driver(*map(str, arguments)):
        wait_until(lambda: ends(broker, target) > 10, "a batch is half written", deadline_s=DEADLINE_S)
        broker.control.delay("Produce", HELD_S)
    assert ends(broker, target) < ROWS_PER_BATCH, "the kill came too late"
    broker.control.delay("Produce", 0.05)
    with driver(*map(str, arguments)):
        wait_until(lambda: ends(broker, target) > 20, "the batch is repeated", deadline_s=DEADLINE_S)
        broker.control.delay("OffsetCommit", HELD_S)
        wait_until(lambda: ends(broker, target) >= ROWS_PER_BATCH, "the batch is written", deadline_s=DEADLINE_S)
    assert not Path(tmp_path, "c", "commits", "0").exists(), "the kill came too late"
    broker.control.clear_faults()

    start(spark, *arguments, available_now=True).awaitTermination()

    assert expected(100) == Counter(values(broker, target)[0])


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("rounds", [50])
def test_a_driver_that_is_killed_at_any_moment_leaves_nothing_twice_and_nothing_out(
    broker: BrokerUnderTest,
    spark: "SparkSession",
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    rounds: int,
) -> None:
    topic, target = broker.create_topic("clicks"), broker.create_topic("target")
    arguments = (broker.bootstrap_servers, topic, broker.group("g"), target, tmp_path / "c")
    count = rounds * ROWS_PER_BATCH * 2
    broker.produce(topic, [f"v{number}" for number in range(count)])
    moments = random.Random(seed(7))
    for _ in range(rounds):
        more = ends(broker, target) + moments.randint(1, ROWS_PER_BATCH + 10)
        with driver(*map(str, arguments)):
            wait_until(lambda: ends(broker, target) >= min(more, count), "rows arrive", deadline_s=DEADLINE_S)  # noqa: B023

    start(spark, *arguments, available_now=True).awaitTermination()

    assert expected(count) == Counter(values(broker, target)[0])
    record_property("kills", rounds)
    record_property("rows", count)


@contextlib.contextmanager
def driver(*arguments: str) -> Iterator[None]:
    """A driver in a process of its own, killed in the end with the Java machine and the workers that it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.sink_driver", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield
        assert process.poll() is None, process.communicate()[0]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
