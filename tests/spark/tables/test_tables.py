"""Tables that Spark writes: aggregations, windows and changes, exactly once, and read again by Spark."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.errors import UserError
from logmark.spark import read_table
from logmark.spark.errors import find_message
from logmark.spark.tables.table import load_table, write_table
from logmark.spark.tables.versions import swap_in_version, version_path
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.spark.table_batches import rows
from tests.spark.totals_driver import totals, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def stream(spark: "SparkSession", broker: BrokerUnderTest, topic: str, group: str, per_batch: int = 80) -> "DataFrame":
    """The stream of a topic, from its beginning; a value is campaign, price and second of the day."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": group}
    more = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": str(per_batch)}
    frame = spark.readStream.format("logmark").options(**options, **more).load()
    parts = "split(CAST(value AS STRING), ',')"
    columns = [f"{parts}[0] AS campaign", f"CAST({parts}[1] AS BIGINT) AS price"]
    time = f"CAST(CAST({parts}[2] AS BIGINT) AS TIMESTAMP) AS time"
    return frame.selectExpr("topic", "partition", "offset", *columns, time)


def owed(frame: "DataFrame") -> "DataFrame":
    return frame.groupBy("campaign").agg({"price": "sum"}).withColumnRenamed("sum(price)", "owed")


def clicks(first: int, end: int) -> list[str]:
    return [f"c{number % 3},{number},{number * 10}" for number in range(first, end)]


def truth(numbers: Iterable[int]) -> list[tuple[str, int]]:
    totals: Counter[str] = Counter()
    for number in numbers:
        totals[f"c{number % 3}"] += number
    return sorted(totals.items())


def finish(query: "StreamingQuery") -> None:
    """Waits for the end of a query; raises the error that stopped it."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise UserError(find_message(str(error)) or str(error)) from None


def forget_last_batch(checkpoint: Path) -> None:
    """As if the driver had died when the table held the last batch and the checkpoint did not say so yet."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def test_upserted_totals_are_exact_through_repeated_batches(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, clicks(0, 100))

    def run() -> None:
        result = owed(stream(spark, our_broker, topic, group))
        finish(write_table(result, tmp_path, mode="upsert", keys="campaign", available_now=True))

    run()
    assert truth(range(100)) == rows(tmp_path)
    forget_last_batch(tmp_path / "_checkpoint")
    our_broker.produce(topic, clicks(100, 101))
    run()
    assert truth(range(101)) == rows(tmp_path)


def test_complete_totals_are_exact_through_repeated_batches_a_lost_checkpoint_and_a_new_version(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, clicks(0, 120))
    table = tmp_path / "table"
    how: dict[str, Any] = {"mode": "complete", "available_now": True}

    def run(**more: Any) -> None:
        finish(write_table(owed(stream(spark, our_broker, topic, group, per_batch=200)), table, **how, **more))

    run()
    forget_last_batch(table / "_checkpoint")
    run()
    assert truth(range(120)) == rows(table)

    # The state is lost with the checkpoint: nothing is written, and a new version takes over.
    shutil.rmtree(table / "_checkpoint")
    our_broker.produce(topic, clicks(120, 130))
    with pytest.raises(UserError, match=r"began without it: its checkpoint is new.* Nothing was written"):
        run()
    assert truth(range(120)) == rows(table)
    group = our_broker.group("billing-v2")
    beside = version_path(table, 2)
    finish(write_table(owed(stream(spark, our_broker, topic, group)), beside, **how))
    assert truth(range(120)) == rows(table)
    swap_in_version(table, 2)
    assert truth(range(130)) == rows(table)
    our_broker.produce(topic, clicks(130, 140))
    run(checkpoint=beside / "_checkpoint")
    assert truth(range(140)) == rows(table)


def test_a_table_that_is_gone_is_built_again_by_following_the_error_and_not_begun_in_the_middle(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"

    def run() -> None:
        frame = stream(spark, our_broker, topic, group, per_batch=200)
        finish(write_table(frame, table, checkpoint=checkpoint, available_now=True))

    our_broker.produce(topic, clicks(0, 20))
    run()
    shutil.rmtree(table)
    our_broker.produce(topic, clicks(20, 30))
    with pytest.raises(UserError, match=rf"holds nothing of this query.* checkpoint away \({checkpoint}\)"):
        run()
    assert not table.exists()

    our_broker.commit(group, {(topic, 0): 0})
    shutil.rmtree(checkpoint)
    run()
    assert [(number,) for number in range(30)] == rows(table, "price")

    # Where no batch was planned in between, the reset alone is enough.
    shutil.rmtree(table)
    our_broker.commit(group, {(topic, 0): 0})
    run()
    assert [(number,) for number in range(30)] == rows(table, "price")


def test_windows_are_appended_once_also_by_batches_that_read_nothing(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, clicks(0, 100))

    def run() -> None:
        from pyspark.sql.functions import window

        late = stream(spark, our_broker, topic, group).withWatermark("time", "0 seconds")
        windows = late.groupBy(window("time", "100 seconds")).count().selectExpr("window.start AS start", "count")
        finish(write_table(windows, tmp_path / "table", mode="append", available_now=True))

    def counts() -> list[tuple[int, int]]:
        return [(int(start.timestamp()), count) for start, count in rows(tmp_path / "table")]

    run()
    closed = [(second, 10) for second in range(0, 900, 100)]
    assert closed == counts()
    forget_last_batch(tmp_path / "table" / "_checkpoint")
    our_broker.produce(topic, clicks(100, 111))
    run()
    assert [*closed, (900, 10), (1000, 10)] == counts()


@pytest.mark.parametrize("mode", ["append", pytest.param("replace", marks=pytest.mark.soak)])
def test_a_stream_writes_a_table_without_foreach_batch(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path, mode: str
) -> None:
    topic, group = our_broker.create_topic("clicks", partitions=2), our_broker.group("billing")
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"

    def run() -> None:
        writer = stream(spark, our_broker, topic, group).writeStream.format("logmark.delta").option("mode", mode)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        finish(writer.start(str(table)))

    our_broker.produce(topic, clicks(0, 50))
    our_broker.produce(topic, clicks(50, 60), partition=1)
    run()
    forget_last_batch(checkpoint)
    our_broker.produce(topic, clicks(60, 70), partition=1)
    run()
    shutil.rmtree(checkpoint)
    our_broker.commit(group, {(topic, 0): 20, (topic, 1): 5})
    our_broker.produce(topic, clicks(70, 80))
    run()

    expected = [(0, number) for number in (*range(50), *range(70, 80))] + [(1, number) for number in range(50, 70)]
    assert sorted(expected) == rows(table, "partition", "price")
    assert len(expected) == len(set(rows(table, "topic", "partition", "offset")))
    assert [] == list(table.rglob("*.staged"))
    frame = load_table(spark, table)
    assert read_table(table).sort_by("price").to_pylist() == frame.orderBy("price").toArrow().to_pylist()


def test_a_complete_result_is_written_without_foreach_batch_and_what_does_not_fit_is_an_error(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = our_broker.create_topic("clicks"), our_broker.group("billing")
    our_broker.produce(topic, clicks(0, 50))
    frame = stream(spark, our_broker, topic, group)

    def run(result: "DataFrame", output: str, **options: str) -> None:
        where = {"path": str(tmp_path / "table"), "checkpointLocation": str(tmp_path / "checkpoint")}
        writer = result.writeStream.format("logmark.delta").outputMode(output).options(**where, **options)
        finish(writer.trigger(availableNow=True).start())

    run(owed(frame), "complete")
    assert truth(range(50)) == rows(tmp_path / "table")
    our_broker.produce(topic, clicks(50, 60))
    with pytest.raises(UserError, match=r"does not go with Spark's outputMode\(\"complete\"\).* Nothing was written"):
        run(owed(frame), "complete", mode="upsert", keys="campaign")
    with pytest.raises(UserError, match="There is no mode 'merge'"):
        write_table(frame, tmp_path, mode="merge")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["complete", "upsert"])
def test_totals_are_exact_however_often_the_driver_is_killed(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path, mode: str
) -> None:
    rounds, table = 6, tmp_path / "table"
    topic, group = broker.create_topic("numbers", partitions=2), broker.group("totals")
    for partition in (0, 1):
        broker.produce(topic, [str(number) for number in range(1000)], partition=partition)
    for number in range(rounds):
        arguments = [broker.bootstrap_servers, topic, group, str(table), mode]
        killed_after(commits=1 + number % 3, table=table, arguments=arguments)

    finish(write(totals(spark, broker.bootstrap_servers, topic, group), str(table), mode, available_now=True))

    sums: Counter[int] = Counter()
    for number in range(1000):
        sums[number % 7] += 2 * number
    assert sorted(sums.items()) == rows(table)


def killed_after(
    *, commits: int, table: Path, arguments: list[str], driver_module: str = "tests.spark.totals_driver"
) -> None:
    """Runs a driver in a process of its own and kills it when the table has got so many commits more."""

    def seen() -> int:
        return len(list((table / "_delta_log").glob("*.json")))

    enough = seen() + commits
    driver = subprocess.Popen(
        [sys.executable, "-m", driver_module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: driver.poll() is not None or seen() >= enough, "a few commits", deadline_s=240)
        assert driver.poll() is None, driver.communicate()[0]
    finally:
        # The whole session: Python, the Java machine that it started, and the workers.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
