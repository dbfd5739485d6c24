"""Pipelines on a real Spark, each on our broker and on Apache Kafka."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark import Pipeline, Table, read_table
from logmark.spark.pipelines.declaration import Version
from logmark.spark.pipelines.home import Home, default_root
from logmark.spark.pipelines.query import Brokers, read_records
from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import call_tool
from tests.harness.node import wait_until
from tests.harness.restartable_broker import RestartableBroker
from tests.harness.tools import CONSUMER_GROUPS, run_logmark
from tests.spark.kept_rows_driver import NAME, keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST = {"auto.offset.reset": "earliest"}
DEADLINE_S = 120.0
FIRST = 259_000_000_000


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines are remembered below the folder of the test."""
    monkeypatch.setenv("LOGMARK_PIPELINES", str(tmp_path / "pipelines"))


def pipeline(broker: BrokerUnderTest, topic: str, folder: Path, **more: Any) -> Pipeline:
    settings: dict[str, Any] = {"group": broker.group("billing"), "transform": keep, "options": EARLIEST, **more}
    sink = Table(folder / "table")
    return Pipeline(name=NAME, bootstrap_servers=broker.bootstrap_servers, topics=topic, sink=sink, **settings)


def table_of(of: Pipeline) -> Path:
    assert isinstance(of.sink, Table)
    return Path(of.sink.path)


def rows(table: str | Path) -> Counter[tuple[int, int, str]]:
    """How often the table holds each (partition, offset, value)."""
    columns = read_table(table, ["partition", "offset", "value"]).to_pydict()
    return Counter(zip(columns["partition"], columns["offset"], columns["value"], strict=True))


def once(**partitions: list[str]) -> Counter[tuple[int, int, str]]:
    """Each of these values at its offset, once: p0=["a", "b"] are offsets 0 and 1 of partition 0."""
    return Counter(
        (int(name[1:]), offset, value) for name, values in partitions.items() for offset, value in enumerate(values)
    )


def numbers(count: int, start: int = 0) -> list[str]:
    return [f"v{number}" for number in range(start, start + count)]


def wait_for(query: "StreamingQuery", condition: Callable[[], bool], what: str) -> None:
    """Waits for a running query; one that stopped is not waited for."""

    def holds() -> bool:
        failure = query.exception()
        assert failure is None, failure
        return condition()

    wait_until(holds, what, deadline_s=DEADLINE_S)


def stands_at(broker: BrokerUnderTest, group: str, topic: str, *offsets: int) -> Callable[[], bool]:
    """Whether the group's committed offsets are these, partition by partition."""
    wanted = {(topic, partition): offset for partition, offset in enumerate(offsets)}
    return lambda: wanted == broker.committed(group)


def described(broker: BrokerUnderTest, group: str) -> list[tuple[int, int, int, int]]:
    """Partition, current offset, log end offset and lag, as Apache's own tool prints them."""
    printed = call_tool(CONSUMER_GROUPS, "--describe", "--group", group, broker=broker).check().stdout
    found = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return [(int(row[2]), int(row[3]), int(row[4]), int(row[5])) for row in found]


def produced(broker: BrokerUnderTest, topic: str) -> list[dict[str, Any]]:
    """Records in every codec, with and without keys, values and headers, as a reader must see them."""
    expected = []
    for partition, codec in enumerate(CODECS):
        producer = broker.producer(compression_type=codec)
        for number in range(60):
            key = None if number % 3 == 0 else f"key-{number}".encode()
            value = None if number % 5 == 0 else f"{codec}-{number}-".encode() * (number + 1)
            headers = [("trace", f"{number}".encode()), ("empty", b""), ("none", None)] if number % 2 else []
            producer.produce(
                topic, value, key, partition=partition, headers=headers, timestamp=1_700_000_000_000 + number
            )
            expected.append(
                {
                    "key": key,
                    "value": value,
                    "topic": topic,
                    "partition": partition,
                    "offset": number,
                    "timestamp": 1_700_000_000_000 + number,
                    "timestampType": 0,
                    "headers": [{"key": name, "value": content} for name, content in headers] or None,
                }
            )
        assert 0 == producer.flush(60)
    return expected


def seen(table: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table in order, with times as milliseconds."""
    found = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [row | {"timestamp": round(row["timestamp"].timestamp() * 1000)} for row in found]


def test_what_is_read_is_what_was_produced(broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path) -> None:
    topic = broker.create_topic("mixed", partitions=len(CODECS), config={"retention.ms": "-1"})
    expected = produced(broker, topic)
    options = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}

    batch = spark.read.format("logmark").options(**options, minPartitions="8").load()
    everything = pipeline(
        broker, topic, tmp_path, transform=lambda frame: frame, options=EARLIEST | {"includeHeaders": "true"}
    )
    everything.run(spark)

    assert expected == seen(batch.toArrow())
    assert expected == seen(read_table(table_of(everything)))


def test_a_batch_read_takes_a_range_of_offsets_and_leaves_no_trace(
    broker: BrokerUnderTest, spark: "SparkSession"
) -> None:
    topic, group = broker.create_topic("clicks", partitions=2), broker.group("analytics")
    broker.produce(topic, numbers(50))
    broker.commit(group, {(topic, 0): 45})

    def reader() -> "DataFrameReader":
        return spark.read.format("logmark").option("kafka.bootstrap.servers", broker.bootstrap_servers)

    some = (
        reader()
        .options(
            assign=f'{{"{topic}": [0]}}',
            startingOffsets=f'{{"{topic}": {{"0": 10}}}}',
            endingOffsets=f'{{"{topic}": {{"0": 30}}}}',
            maxRecordsPerPartition="7",
        )
        .load()
    )
    rest = reader().options(subscribe=topic, startingOffsets="committed", **{"kafka.group.id": group}).load()

    assert [(offset, f"v{offset}".encode()) for offset in range(10, 30)] == [
        (row.offset, bytes(row.value)) for row in some.select("offset", "value").orderBy("offset").collect()
    ]
    assert list(range(45, 50)) == sorted(row.offset for row in rest.select("offset").collect())
    assert {(topic, 0): 45} == broker.committed(group)


@pytest.mark.kafka
def test_the_lag_of_a_running_query_is_seen_and_its_group_is_reset_by_apaches_tool_and_by_ours(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks", partitions=2)
    broker.produce(topic, numbers(100))
    broker.produce(topic, numbers(50), partition=1)
    made = [0]

    def counted(frame: "DataFrame") -> "DataFrame":
        return keep(frame).selectExpr("topic", "partition", "offset", f"concat(value, '-{made[0]}') AS value")

    def values(version: int, count: int) -> list[str]:
        return [f"v{number}-{version}" for number in range(count)]

    billing = pipeline(broker, topic, tmp_path, transform=counted)
    group = billing.group
    query = billing.start(spark)
    wait_for(query, stands_at(broker, group, topic, 100, 50), "the query has caught up")
    assert [(0, 100, 100, 0), (1, 50, 50, 0)] == described(broker, group)

    # While it runs: the rows stay what they are, and are made again.
    before = len(_commits(billing))
    reset = ("--reset-offsets", "--group", group, "--execute")
    call_tool(CONSUMER_GROUPS, *reset, "--topic", f"{topic}:0", "--to-offset", "30", broker=broker).check()
    wait_for(query, lambda: len(_commits(billing)) > before, "the running query reads again")
    wait_for(query, stands_at(broker, group, topic, 100, 50), "the query has caught up again")
    assert {topic: {"0": 30, "1": 50}} == _commits(billing)[0]["start"]
    run_logmark("offsets", "reset", group, "--topic", f"{topic}:1", "--to-offset", "20", "--yes", broker=broker)
    wait_for(query, lambda: {topic: {"0": 100, "1": 20}} == _commits(billing)[0]["start"], "it reads again")
    wait_for(query, stands_at(broker, group, topic, 100, 50), "the query has caught up again")
    query.stop()
    assert once(p0=values(0, 100), p1=values(0, 50)) == rows(table_of(billing))

    # While it is stopped: a fixed version reads the days again, and its rows replace the old ones.
    broker.produce(topic, numbers(10, start=100))
    assert [(0, 100, 110, 10), (1, 50, 50, 0)] == described(broker, group)
    call_tool(CONSUMER_GROUPS, *reset, "--topic", f"{topic}:0", "--to-offset", "60", broker=broker).check()
    made[0] = 1
    billing.run(spark)
    assert once(p0=values(0, 60) + values(1, 110)[60:], p1=values(0, 50)) == rows(table_of(billing))
    assert [(0, 110, 110, 0), (1, 50, 50, 0)] == described(broker, group)


def _commits(of: Pipeline) -> list[dict[str, Any]]:
    """The batches in the table's history, the last one first."""
    from deltalake import DeltaTable

    return [commit["logmark"] for commit in DeltaTable(str(table_of(of))).history() if "logmark" in commit]


def test_a_driver_that_is_killed_loses_nothing_and_writes_nothing_twice(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    kill_and_finish(broker, spark, tmp_path, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_writes_nothing_twice(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    kill_and_finish(broker, spark, tmp_path, rounds=10)


def kill_and_finish(broker: BrokerUnderTest, spark: "SparkSession", folder: Path, *, rounds: int) -> None:
    """Kills a driver in mid-stream, as often as told, and lets another one finish its work."""
    count = 2000 * rounds
    topic = broker.create_topic("clicks", partitions=2)
    for partition in (0, 1):
        broker.produce(topic, numbers(count), partition=partition)
    billing = pipeline(broker, topic, folder)
    for _ in range(rounds):
        _kill_in_mid_stream(billing)
    assert _batches(billing) < 100 * rounds, "all was read before the last kill"

    billing.run(spark)

    assert once(p0=numbers(count), p1=numbers(count)) == rows(table_of(billing))
    assert stands_at(broker, billing.group, topic, count, count)()


def _kill_in_mid_stream(of: Pipeline) -> None:
    """Runs the pipeline in a process of its own and kills it after two batches."""
    enough = _batches(of) + 2
    arguments = [str(of.bootstrap_servers), str(of.topics), of.group, str(table_of(of)), str(default_root())]
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.kept_rows_driver", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: driver.poll() is not None or _batches(of) >= enough, "two batches", deadline_s=240)
        assert driver.poll() is None, driver.communicate()[0]
    finally:
        # The whole session: Python, the Java machine that it started, and the workers.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def _batches(of: Pipeline) -> int:
    """How many batches the table has taken."""
    return len(list(Path(table_of(of), "_delta_log").glob("*.json")))


def test_a_deleted_checkpoint_is_no_loss_and_no_repetition(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks", partitions=2)
    # So many that the query is in mid-stream though whoever looks for that is held up for seconds.
    for partition in (0, 1):
        broker.produce(topic, numbers(1000), partition=partition)
    slowly = EARLIEST | {"maxOffsetsPerTrigger": "40"}
    billing = pipeline(broker, topic, tmp_path, options=slowly)
    query = billing.start(spark)
    wait_for(query, lambda: _batches(billing) >= 2, "the query is in mid-stream")
    query.stop()
    assert len(rows(table_of(billing))) < 2000
    shutil.rmtree(Home(default_root(), NAME).checkpoint(1))
    # As if the driver had died before it could commit its last batch: the group is behind the table.
    first = _commits(billing)[-1]["end"][topic]
    written = _commits(billing)[0]["end"][topic]
    broker.commit(billing.group, {(topic, int(number)): offset for number, offset in first.items()})

    query = billing.start(spark)
    wait_for(query, lambda: broker.committed(billing.group)[topic, 0] > written["0"], "the query repeats and goes on")
    query.stop()
    pipeline(broker, topic, tmp_path).run(spark)  # the rest, in one batch

    assert once(p0=numbers(1000), p1=numbers(1000)) == rows(table_of(billing))
    assert stands_at(broker, billing.group, topic, 1000, 1000)()


def test_a_query_whose_group_was_taken_over_stops_and_names_the_new_owner(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, numbers(20))
    old = pipeline(broker, topic, tmp_path / "old")
    new = pipeline(broker, topic, tmp_path / "new")
    query = old.start(spark)
    wait_for(query, stands_at(broker, old.group, topic, 20), "the old query has caught up")

    version = Version(number=1, group=new.group, checkpoint=tmp_path, sink=new.sink)
    brokers = Brokers(bootstrap_servers=broker.bootstrap_servers)
    stream = read_records(new, version, spark, brokers, options={"takeover": "true"})
    owner = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    wait_until(lambda: query.exception() is not None, "the old query stops", deadline_s=DEADLINE_S)
    broker.produce(topic, numbers(5))
    wait_for(owner, stands_at(broker, new.group, topic, 25), "the new query owns the group")
    owner.stop()

    with Client(broker.bootstrap_servers) as client:
        mark = CommitMetadata.parse(client.committed(old.group)[TopicPartition(topic, 0)].metadata)
    assert mark is not None
    assert f"Group {old.group} was taken over by the query {mark.query}" in str(query.exception())
    assert once(p0=numbers(20)) == rows(table_of(old))


def test_what_stops_a_pipeline_is_an_error(broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^There is no topic nowhere at .* Nothing was read"):
        pipeline(broker, "nowhere", tmp_path).run(spark)
    with pytest.raises(UserError, match=r"^The rows have no column offset of the type"):
        pipeline(broker, "nowhere", tmp_path, transform=lambda frame: frame.drop("offset")).run(spark)


def test_a_pipeline_reads_and_commits_offsets_near_259_billion(
    start_own: Callable[..., RestartableBroker], spark: "SparkSession", tmp_path: Path
) -> None:
    own = start_own()
    topic = own.clients.create_topic("clicks", config={"retention.ms": "-1"})
    own.begin_at(topic, FIRST)
    broker = own.start()
    broker.produce(topic, numbers(30))
    billing = pipeline(broker, topic, tmp_path)
    options = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}

    batch = spark.read.format("logmark").options(**options).load().select("offset").collect()
    billing.run(spark)
    broker.commit(billing.group, {(topic, 0): FIRST + 10})
    broker.produce(topic, numbers(5, start=30))
    billing.run(spark)

    assert list(range(FIRST, FIRST + 30)) == sorted(row.offset for row in batch)
    assert Counter((0, FIRST + number, f"v{number}") for number in range(35)) == rows(table_of(billing))
    assert {(topic, 0): FIRST + 35} == broker.committed(billing.group)
