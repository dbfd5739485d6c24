"""Dead letters of pipelines on a real Spark: what a schema refuses, what a pipeline marks, and what it fails on."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from logmark.errors import UserError
from logmark.spark import read_table
from logmark.spark.pipelines.declaration import Sink, Table, Topic, Version
from logmark.spark.pipelines.failed_record import describe_failed_record
from logmark.spark.pipelines.failures import classify_failure
from logmark.spark.pipelines.pipeline import Pipeline
from logmark.spark.pipelines.query import Brokers, start_query
from logmark.spark.tables import table as tables
from tests.harness.brokers import BrokerUnderTest
from tests.spark.sink_rows import values
from tests.spark.test_dead_letters import dead_letters_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EARLIEST = {"auto.offset.reset": "earliest"}
CLICKS = [b'{"price": 5, "user": "a"}', b'{"price": -1, "user": "b"}', b"{", b'{"price": 7, "user": "c"}']


def marked(clicks: "DataFrame") -> "DataFrame":
    return clicks.selectExpr(
        "topic", "partition", "offset", "value.user", "value.price", "timestamp",
        "CASE WHEN value.price < 0 THEN concat('price ', value.price) END AS error",
    )  # fmt: skip


def alerts(clicks: "DataFrame") -> "DataFrame":
    return marked(clicks).selectExpr("user AS key", "user AS value", "topic", "partition", "offset", "error")


def of(broker: BrokerUnderTest, topic: str, sink: Sink, **more: Any) -> Pipeline:
    settings: dict[str, Any] = {"transform": marked, "schema": "price INT, user STRING", "options": EARLIEST, **more}
    return Pipeline(name="billing", group=broker.group("billing"), topics=topic, sink=sink, **settings)


def version_of(pipeline: Pipeline, folder: Path) -> Version:
    return Version(number=1, group=pipeline.group, checkpoint=folder / "v1", sink=pipeline.sink)


def run(pipeline: Pipeline, spark: "SparkSession", broker: BrokerUnderTest, folder: Path) -> None:
    brokers = Brokers(bootstrap_servers=broker.bootstrap_servers)
    query = start_query(pipeline, version_of(pipeline, folder), spark, brokers, available_now=True)
    query.awaitTermination()


def test_what_the_schema_refuses_and_what_the_pipeline_marks_are_dead_letters_and_the_rest_are_rows(
    spark: "SparkSession", broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic, dead = broker.create_topic("clicks", 2), broker.create_topic("dead", 2)
    broker.produce(topic, CLICKS)
    broker.produce(topic, [b"[]", b'{"price": -2, "user": "d"}'], partition=1)
    pipeline = of(broker, topic, Table(tmp_path / "table"), dead_letters=dead)

    run(pipeline, spark, broker, tmp_path)

    found = read_table(tmp_path / "table").sort_by("offset").to_pydict()
    assert ([0, 3], ["a", "c"], [5, 7]) == (found["offset"], found["user"], found["price"])
    assert "error" not in found
    pairs = dead_letters_in(broker, dead, 2)
    dead_letters = sorted((letter for _, letter in pairs), key=lambda one: (one.partition, one.offset))
    assert [
        (0, 1, CLICKS[1], "price -1"),
        (0, 2, CLICKS[2], "no name where one must be, at byte 1"),
        (1, 0, b"[]", "an array where STRUCT is wanted, at byte 0"),
        (1, 1, b'{"price": -2, "user": "d"}', "price -2"),
    ] == [(one.partition.partition, one.offset, one.value, one.error) for one in dead_letters]
    assert {"billing"} == {one.pipeline for one in dead_letters}


def test_rows_for_a_topic_are_marked_too_and_a_marked_output_without_dead_letters_is_refused(
    spark: "SparkSession", our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic, dead, target = (our_broker.create_topic(name) for name in ("clicks", "dead", "alerts"))
    our_broker.produce(topic, CLICKS)
    pipeline = of(our_broker, topic, Topic(target), transform=alerts, dead_letters=dead)

    run(pipeline, spark, our_broker, tmp_path)

    assert [["a", "c"]] == values(our_broker, target)
    assert [1, 2] == [letter.offset for _, letter in dead_letters_in(our_broker, dead)]
    refused = {
        "declares no dead-letter topic": of(our_broker, topic, Topic(target)),
        "There is no dead-letter topic none": of(our_broker, topic, Topic(target), dead_letters="none"),
        "must be a string, and is int": of(
            our_broker, topic, Topic(target), dead_letters=dead, transform=lambda rows: rows.selectExpr("1 AS error")
        ),
        "the rows lack partition INT, offset BIGINT": of(
            our_broker, topic, Topic(target), dead_letters=dead,
            transform=lambda rows: rows.selectExpr("topic", "'x' AS error"),
        ),
    }  # fmt: skip
    for why, bad in refused.items():
        with pytest.raises(UserError, match=why):
            run(bad, spark, our_broker, tmp_path / "refused")


def test_the_record_that_a_pipelines_code_fails_on_is_named(
    spark: "SparkSession", our_broker: BrokerUnderTest, tmp_path: Path
) -> None:
    topic = our_broker.create_topic("clicks", 2)
    for partition in (0, 1):
        our_broker.produce(topic, [b'{"price": %d}' % (number + 1) for number in range(40)], partition=partition)
    our_broker.produce(topic, [b'{"price": 0}'], partition=1)
    from pyspark.sql.functions import udf

    share = udf(lambda price: 100 // price, "int")

    def shares(clicks: "DataFrame") -> "DataFrame":
        return clicks.select("topic", "partition", "offset", share("value.price").alias("share"))

    pipeline = of(our_broker, topic, Table(tmp_path / "table"), transform=shares)
    brokers = Brokers(bootstrap_servers=our_broker.bootstrap_servers)

    with pytest.raises(StreamingQueryException, match="ZeroDivisionError") as failed:
        run(pipeline, spark, our_broker, tmp_path)

    failure = classify_failure(str(failed.value)).message
    said = describe_failed_record(pipeline, version_of(pipeline, tmp_path), spark, brokers, failure=failure)
    assert failure.startswith(
        f"The pipeline's own code failed: ZeroDivisionError: integer division or modulo by zero ({__file__}"
    )
    assert f"It fails on the record {topic}-1 offset 40." == said


def test_after_a_killed_worker_and_a_batch_that_was_not_committed_dead_letters_are_there_and_rows_are_there_once(
    spark: "SparkSession", our_broker: BrokerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.functions import udf

    topic, dead = our_broker.create_topic("clicks"), our_broker.create_topic("dead")
    our_broker.produce(topic, CLICKS)
    killed = tmp_path / "killed"

    def kill_once(user: str) -> str:
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return user

    def deadly(clicks: "DataFrame") -> "DataFrame":
        return marked(clicks).withColumn("user", udf(kill_once)("user"))

    put, tries = tables.write_batch, [0]

    def fail_once(path: Path, batch: Any, schema: str, stage: Any, rules: Any) -> bool:
        tries[0] += 1
        if tries[0] == 2:
            stage(tmp_path / "staged")
            raise RuntimeError("the driver is gone")
        return put(path, batch, schema, stage, rules)

    monkeypatch.setattr(tables, "write_batch", fail_once)
    pipeline = of(our_broker, topic, Table(tmp_path / "table"), dead_letters=dead, transform=deadly)

    with pytest.raises(StreamingQueryException, match="Python worker exited"):
        run(pipeline, spark, our_broker, tmp_path)
    after_kill = [letter.offset for _, letter in dead_letters_in(our_broker, dead)]
    with pytest.raises(StreamingQueryException, match="the driver is gone"):
        run(pipeline, spark, our_broker, tmp_path)
    run(pipeline, spark, our_broker, tmp_path)

    assert [2] == after_kill, "what the schema refused is in the log before a row goes on"
    assert [0, 3] == sorted(read_table(tmp_path / "table", ["offset"]).to_pydict()["offset"])
    dead_letters = dead_letters_in(our_broker, dead)
    assert {1: 2, 2: 3} == Counter(letter.offset for _, letter in dead_letters)
    assert 2 == len({key for key, _ in dead_letters}), "dead letters about one record have one key"
