"""Queries on Spark's own Kafka connector, moved by `logmark offsets spark` and started again by a real Spark."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.client.client import Client
from logmark.offsets.reset.targets import ToEarliest
from logmark.offsets.spark_checkpoints.checkpoint import read_checkpoint
from logmark.offsets.spark_checkpoints.folder import LocalFolder
from logmark.offsets.spark_checkpoints.rewind import build_rewind, plan_moves
from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The connector comes by Maven, as Apache Kafka does.
pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DEADLINE_S = 60.0
MOVED = ("--sink", "foreachBatch", "--i-stopped-it", "--yes")


class Query:
    """A query that reads a topic of two partitions and keeps what it saw, batch by batch."""

    def __init__(self, broker: BrokerUnderTest, spark: "SparkSession", folder: Path) -> None:
        self.broker = broker
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.topic = broker.create_topic("clicks", partitions=2)
        self.batches: list[tuple[int, list[tuple[int, int]]]] = []

    def produce(self, count: int) -> None:
        """The same number of records for each partition."""
        for partition in (0, 1):
            self.broker.produce(self.topic, map(str, range(count)), partition=partition)

    def stream(self, **options: str) -> "DataFrame":
        known = {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
        }
        return self.spark.readStream.format("kafka").options(**known, **options).load()

    def start(self, stream: "DataFrame", checkpoint: Path, **trigger: Any) -> Any:
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, **options: str) -> list[list[tuple[int, int]]]:
        """Runs until everything is read, and returns what each batch saw: partitions and offsets."""
        self.batches.clear()
        self.start(self.stream(**options), self.checkpoint, availableNow=True).awaitTermination()
        return [rows for _, rows in self.batches]

    def _keep(self, frame: "DataFrame", batch_id: int) -> None:
        rows = frame.select("partition", "offset").collect()
        self.batches.append((batch_id, sorted((row.partition, row.offset) for row in rows)))

    def logmark(self, *arguments: str) -> CommandResult:
        return run(*arguments, servers=self.broker.bootstrap_servers)

    def offsets_spark(self, *arguments: str) -> CommandResult:
        done = self.logmark("offsets", "spark", str(self.checkpoint), *arguments)
        assert 0 == done.exit_code, done.error
        return done

    def moved(self, *arguments: str) -> str:
        """Moves the query and returns the change's id."""
        return self.offsets_spark(*arguments, *MOVED, "--output", "json").json["change"]


def both(*offsets: int) -> list[tuple[int, int]]:
    """These offsets in both partitions."""
    return [(partition, offset) for partition in (0, 1) for offset in offsets]


@contextmanager
def settings(spark: "SparkSession", **given: str) -> Iterator[None]:
    """Settings for the queries that are started meanwhile; a name has underscores for its dots."""
    names = {name: name.replace("_", ".") for name in given}
    for name, value in given.items():
        spark.conf.set(f"spark.sql.streaming.{names[name]}", value)
    try:
        yield
    finally:
        for name in names.values():
            spark.conf.unset(f"spark.sql.streaming.{name}")


@pytest.fixture
def query(broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path) -> Query:
    return Query(broker, spark, tmp_path)


@pytest.fixture
def ours(our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path) -> Query:
    """The same where it does not matter which broker it is."""
    return Query(our_broker, spark, tmp_path)


def test_a_rewound_query_reads_again_from_there_and_after_an_undo_continues_where_it_was(query: Query) -> None:
    query.produce(16)
    with settings(query.spark, minBatchesToRetain="3"):
        assert [both(*range(16))] == query.run()
        shown = query.offsets_spark("--output", "json").json
        assert ([16, 16], 0) == ([partition["committed"] for partition in shown["partitions"]], shown["lag"])

        query.moved("--to-offset", "4")
        again = query.run(maxOffsetsPerTrigger="2")

        # Twelve batches, in which Spark purged its logs behind the batch that was added.
        assert [both(offset) for offset in range(4, 16)] == again
        assert list(range(2, 14)) == [id for id, _ in query.batches]
        assert not (query.checkpoint / "offsets" / "1").exists()

        query.produce(2)
        change = query.moved("--to-earliest")
        undone = query.logmark("offsets", "undo", change, "--yes")
        assert 0 == undone.exit_code, undone.error
        assert [both(16, 17)] == query.run()
        assert [] == query.run()


def test_a_group_seeded_from_a_checkpoint_continues_with_logmark_and_nothing_is_lost_or_read_twice(
    query: Query, tmp_path: Path
) -> None:
    query.produce(10)
    before = query.run(maxOffsetsPerTrigger="8")
    query.produce(5)
    group = query.broker.group("clicks")

    query.offsets_spark("--to-group", group, "--i-stopped-it", "--yes")

    query.batches.clear()
    where = {"bootstrap.servers": query.broker.bootstrap_servers, "subscribe": query.topic, "group.id": group}
    stream = query.spark.readStream.format("logmark").options(**where).load()
    query.start(stream, tmp_path / "next", availableNow=True).awaitTermination()
    after = [row for _, rows in query.batches for row in rows]
    assert both(*range(10, 15)) == sorted(after)
    assert both(*range(15)) == sorted([*(row for rows in before for row in rows), *after])
    assert {(query.topic, 0): 15, (query.topic, 1): 15} == query.broker.committed(group)


def test_a_query_with_a_file_sink_is_refused_and_would_have_failed(ours: Query, tmp_path: Path) -> None:
    def written() -> None:
        writer = ours.stream().writeStream.format("parquet").option("path", str(tmp_path / "table"))
        writer = writer.option("checkpointLocation", str(ours.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    ours.produce(2)
    with settings(ours.spark, fileSink_log_compactInterval="3"):
        written()
        beside = ours.logmark("offsets", "spark", str(ours.checkpoint), "--to-earliest", *MOVED)
        named = ours.logmark(
            "offsets", "spark", str(ours.checkpoint), "--to-earliest", "--yes", "--sink", str(tmp_path / "table")
        )
        assert (1, 1) == (beside.exit_code, named.exit_code)
        assert f"writes files to {tmp_path / 'table'} (its _spark_metadata was written batch by batch" in beside.error
        assert "the manifest of a file sink needs every batch" in named.error

        folder = LocalFolder(ours.checkpoint)
        with Client(ours.broker.bootstrap_servers) as client:
            checkpoint = read_checkpoint(folder)
            plan = plan_moves(client, checkpoint, ToEarliest(), None, clamp=False)
        for file in build_rewind(checkpoint, plan, sink="", now_ms=1_800_000_000_000).addition.files:
            folder.create(*file)
        with pytest.raises(Exception, match=r"_spark_metadata/1"):
            written()


def test_newer_formats_of_the_logs_are_moved_as_well(ours: Query) -> None:
    ours.produce(6)
    with settings(ours.spark, offsetLog_formatVersion="2", stateStore_checkpointFormatVersion="2"):
        ours.run()
        assert b"v2\n" == (ours.checkpoint / "offsets" / "0").read_bytes()[:3]
        assert b"v2\n" == (ours.checkpoint / "commits" / "0").read_bytes()[:3]

        ours.moved("--shift-by", "-2", "--topic", f"{ours.topic}:1")

        assert [[(1, 4), (1, 5)]] == ours.run()
        ours.produce(2)
        ours.moved("--to-latest")
        assert [] == ours.run()


def test_spark_stops_at_a_move_that_was_killed_half_way_and_continues_when_it_is_finished(ours: Query) -> None:
    ours.produce(6)
    ours.run()
    change = ours.moved("--to-offset", "4")
    (ours.checkpoint / "commits" / "1").unlink()

    with pytest.raises(Exception, match="offset was changed from 6 to 4"):
        ours.run()
    assert [] == ours.batches

    (ours.checkpoint / "commits" / "1").write_bytes((ours.checkpoint / "commits" / "0").read_bytes())
    assert [both(4, 5)] == ours.run()
    refused = ours.logmark("offsets", "undo", change, "--yes")
    assert (1, True) == (refused.exit_code, f"ran since change {change}" in refused.error)


def test_a_query_that_was_not_stopped_ends_at_its_next_batch_and_then_continues_from_there(ours: Query) -> None:
    ours.produce(6)
    running = ours.start(ours.stream(), ours.checkpoint)
    try:
        wait_until(_is_idle(ours, running), "the query has read everything", deadline_s=DEADLINE_S)
        ours.moved("--to-offset", "4")
        ours.produce(1)
        with pytest.raises(Exception, match="CONCURRENT_STREAM_LOG_UPDATE"):
            running.awaitTermination(DEADLINE_S)
    finally:
        running.stop()

    assert [(0, both(*range(6)))] == ours.batches
    assert [both(4, 5, 6)] == ours.run()


def _is_idle(query: Query, running: Any) -> Callable[[], bool]:
    def holds() -> bool:
        assert running.exception() is None, running.exception()
        return (query.checkpoint / "commits" / "0").exists() and "Waiting" in running.status["message"]

    return holds
