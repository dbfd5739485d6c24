"""Reads and streams of a real Spark beside what a plain Kafka consumer sees, on our broker and on Apache Kafka."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import NewPartitions

from logmark.log.checkpoints import CLEANED, read_offsets
from logmark.spark.errors import find_message
from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.restartable_broker import RestartableBroker
from tests.spark.test_pipelines import CODECS, DEADLINE_S, numbers, produced, stands_at, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

Row = tuple[str, int, int, int, bytes | None, bytes | None]
COMPACTED = {
    "cleanup.policy": "compact", "segment.index.bytes": "60", "index.interval.bytes": "1", "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0",
}  # fmt: skip


def consumed(broker: BrokerUnderTest, *topics: str, isolation: str = "read_uncommitted") -> Counter[Row]:
    """Every record of the topics as librdkafka reads them."""
    consumer = broker.consumer(isolation_level=isolation, enable_partition_eof=True)
    known = consumer.list_topics(timeout=60).topics
    partitions = [
        ClientPartition(topic, number, broker.start_offset(topic, number))
        for topic in topics
        for number in known[topic].partitions
    ]
    consumer.assign(partitions)
    found: Counter[Row] = Counter()
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(60)
        assert message is not None, f"{len(partitions) - len(ended)} partitions did not end"
        if message.error():
            ended.add((message.topic(), message.partition()))
            continue
        where = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        found[(*where, message.key(), message.value())] += 1
    consumer.close()
    return found


def rows(frame: "DataFrame") -> Counter[Row]:
    """The same of a data frame."""
    table = frame.select("topic", "partition", "offset", "timestamp", "key", "value").toArrow().to_pydict()
    times = [round(moment.timestamp() * 1000) for moment in table["timestamp"]]
    return Counter(
        zip(table["topic"], table["partition"], table["offset"], times, table["key"], table["value"], strict=True)
    )


def compacted(own: RestartableBroker) -> str:
    """A topic of which the cleaner has taken away all the records that it ever will."""
    broker = own.clients
    topic = broker.create_topic("all-compacted", config=COMPACTED)
    producer = broker.producer(linger_ms=0)
    for number in range(120):
        producer.produce(topic, f"v{number}", f"k{number % 7}", partition=0)
        producer.flush(60)
    active = max(int(log.stem) for log in (own.log_dir / f"{topic}-0").glob("*.log"))
    checkpoint = own.log_dir / CLEANED

    def is_done() -> bool:
        return checkpoint.exists() and read_offsets(checkpoint.read_bytes()).get((topic, 0)) == active

    wait_until(is_done, "the cleaner has come to the active segment", deadline_s=120)
    assert sum(consumed(broker, topic).values()) < 100
    return topic


def transactional(broker: BrokerUnderTest) -> str:
    """A topic with committed and aborted transactions that interleave, and one that stays open."""
    topic = broker.create_topic("all-transactions")
    for_long = {"transaction_timeout_ms": 900_000, "linger_ms": 0}
    producers = [broker.producer(transactional_id=f"{topic}-{number}", **for_long) for number in range(3)]
    for producer in producers:
        producer.init_transactions(120)
    for turn in range(6):
        for producer in producers[:2]:
            producer.begin_transaction()
        for number in range(10):
            for index, producer in enumerate(producers[:2]):
                producer.produce(topic, f"{turn}-{index}-{number}", partition=0)
                producer.flush(60)
        for index, producer in enumerate(producers[:2]):
            (producer.abort_transaction if (turn + index) % 2 else producer.commit_transaction)(120)
    producers[2].begin_transaction()
    producers[2].produce(topic, "open", partition=0)
    producers[2].flush(60)
    return topic


def test_streams_and_batches_read_what_a_consumer_reads(
    start_own: Callable[..., RestartableBroker], spark: "SparkSession", tmp_path: Path
) -> None:
    own = start_own({"log.cleaner.backoff.ms": "100"})
    broker = own.clients
    mixed = broker.create_topic("all-codecs", partitions=len(CODECS), config={"retention.ms": "-1"})
    produced(broker, mixed)
    expired = broker.create_topic("all-expired")
    broker.produce(expired, numbers(100))
    broker.delete_records(expired, 40)
    topics = [mixed, expired, compacted(own)]
    if not broker.is_ours:
        topics.append(transactional(broker))
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribePattern": f"all-.*{topics[0][-8:]}",
        "startingOffsets": "earliest",
        "kafka.group.id": broker.group("reader"),
        "kafka.isolation.level": "read_committed",
        "partition.metadata.cache.ttl.ms": "500",
        "maxOffsetsPerTrigger": "300",
        "minPartitions": "3",
    }
    stream = spark.readStream.format("logmark").options(**options).load()
    to = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = to.start(str(tmp_path / "rows"))
    wait_for(query, _has_read(broker, options["kafka.group.id"], topics), "the stream has caught up")

    # Partitions and topics that come while it runs.
    broker.admin.create_partitions([NewPartitions(mixed, len(CODECS) + 1)])[mixed].result(60)
    wait_until(lambda: _can_produce(broker, mixed, len(CODECS)), "the new partition takes records")
    broker.produce(mixed, numbers(20), partition=len(CODECS))
    topics.append(broker.create_topic("all-late", partitions=2))
    broker.produce(topics[-1], numbers(20), partition=1)
    wait_for(query, _has_read(broker, options["kafka.group.id"], topics), "the stream has caught up again")
    query.stop()

    expected = consumed(broker, *topics, isolation="read_committed")
    for name in ("maxOffsetsPerTrigger", "kafka.group.id"):
        del options[name]
    assert expected == rows(spark.read.parquet(str(tmp_path / "rows")))
    assert expected == rows(spark.read.format("logmark").options(**options).load())
    if not broker.is_ours:
        everything = spark.read.format("logmark").options(**options | {"kafka.isolation.level": "read_uncommitted"})
        assert consumed(broker, *topics) == rows(everything.load()) != expected


def _can_produce(broker: BrokerUnderTest, topic: str, partition: int) -> bool:
    return len(broker.admin.list_topics(topic, timeout=60).topics[topic].partitions) > partition


def _has_read(broker: BrokerUnderTest, group: str, topics: list[str]) -> Callable[[], bool]:
    """Whether the group stands at the end of all that is committed."""
    reader = broker.consumer(isolation_level="read_committed")

    def stands_at_the_ends() -> bool:
        committed = broker.committed(group)
        known = reader.list_topics(timeout=60).topics
        partitions = [(topic, number) for topic in topics for number in known[topic].partitions]
        ends = {one: reader.get_watermark_offsets(ClientPartition(*one), timeout=60)[1] for one in partitions}
        return ends == {partition: committed.get(partition) for partition in partitions}

    return stands_at_the_ends


class StreamRun:
    """A stream to nowhere, with a checkpoint that outlives it."""

    def __init__(
        self, spark: "SparkSession", broker: BrokerUnderTest, topic: str, checkpoint: Path, **options: str
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        servers = {
            "bootstrap.servers": broker.bootstrap_servers,
            "subscribe": topic,
            "group.id": broker.group("weekly"),
        }
        self._options = servers | options

    def start(self, **trigger: Any) -> "StreamingQuery":
        stream = self._spark.readStream.format("logmark").options(**self._options).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def to_the_end(self) -> int:
        """Reads all there is; how many batches had records."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(DEADLINE_S), "the run does not end"
        return sum(1 for progress in query.recentProgress if progress["numInputRows"])


def test_commits_appear_after_every_batch_at_idle_at_the_end_and_after_a_restart_without_data(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, numbers(100))
    group = broker.group("weekly")
    given = {"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "30"}
    run = StreamRun(spark, broker, topic, tmp_path / "checkpoint", **given)

    # At the end of availableNow.
    assert 4 == run.to_the_end()
    assert {(topic, 0): 100} == broker.committed(group)
    # Each batch, seen from outside: a batch is planned only when the one before it was committed.
    committed = [_first_offset(tmp_path / "checkpoint", number, topic) for number in range(4)]
    assert [0, 30, 60, 90] == committed
    # The commits expire, and a later run without data commits again; one with data goes on from its checkpoint.
    _forget(broker, group)
    assert 0 == run.to_the_end()
    assert {(topic, 0): 100} == broker.committed(group)
    _forget(broker, group)
    broker.produce(topic, numbers(10))
    assert 1 == run.to_the_end()
    assert {(topic, 0): 110} == broker.committed(group)
    # At idle: the last batch is committed though no other follows.
    query = run.start()
    broker.produce(topic, numbers(5))
    wait_for(query, stands_at(broker, group, topic, 115), "the idle query has committed")
    query.stop()


def _first_offset(checkpoint: Path, batch: int, topic: str) -> int:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    offset: int = json.loads(lines[-1])["~logmark"]["first"][topic]["0"]
    return offset


def _forget(broker: BrokerUnderTest, group: str) -> None:
    broker.admin.delete_consumer_groups([group])[group].result(60)
    assert {} == broker.committed(group)


def test_a_bounded_replay_reads_two_hours_of_the_past_and_ends(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks", config={"retention.ms": "-1"})
    now_ms = round(time.time() * 1000)
    for hours in range(6, 0, -1):
        broker.produce(topic, numbers(10), timestamp_ms=now_ms - hours * 3_600_000)
    bounds = {"startingTimestamp": "-4h30m", "endingTimestamp": str(now_ms - 9_000_000), "maxOffsetsPerTrigger": "7"}

    assert 3 == StreamRun(spark, broker, topic, tmp_path / "checkpoint", **bounds).to_the_end()
    assert {(topic, 0): 40} == broker.committed(broker.group("weekly"))


def test_what_stops_a_stream_is_one_error_and_commits_nothing(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, numbers(50))
    broker.delete_records(topic, 30)
    group = broker.group("weekly")
    broker.commit(group, {(topic, 0): 20})

    query = StreamRun(spark, broker, topic, tmp_path / "checkpoint").start(availableNow=True)
    wait_until(lambda: query.exception() is not None, "the query fails", deadline_s=DEADLINE_S)
    said = find_message(str(query.exception()))
    with pytest.raises(Exception, match=r"(?i)has no option startOffsets\. Did you mean startingOffsets\?"):
        spark.readStream.format("logmark").options(startOffsets="earliest").load()

    assert said is not None
    assert said.startswith(f"At most 10 records were deleted before this query read them: 10 records of {topic}-0 ")
    assert {(topic, 0): 20} == broker.committed(group)


def test_a_stream_that_may_lose_records_continues_at_the_first_that_is_left(
    broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = broker.create_topic("clicks")
    run = StreamRun(spark, broker, topic, tmp_path / "checkpoint", startingOffsets="earliest", failOnDataLoss="false")
    broker.produce(topic, numbers(50))
    assert 1 == run.to_the_end()
    broker.produce(topic, numbers(50))
    broker.delete_records(topic, 80)

    assert 1 == run.to_the_end()
    assert {(topic, 0): 100} == broker.committed(broker.group("weekly"))
    assert 80 == _first_offset(tmp_path / "checkpoint", _last_batch(tmp_path / "checkpoint"), topic)


def test_a_query_continues_from_a_checkpoint_of_the_first_form(
    our_broker: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, checkpoint = our_broker.create_topic("clicks"), tmp_path / "checkpoint"
    run = StreamRun(spark, our_broker, topic, checkpoint, startingOffsets="earliest")
    our_broker.produce(topic, numbers(50))
    assert 1 == run.to_the_end()
    written = checkpoint / "offsets" / "0"
    *head, line = written.read_text().splitlines()
    offset = json.loads(line)
    ours = offset.pop("~logmark")
    first_form = {"f": ours["first"], "g": ours["generation"], "group": ours["group"], "i": ours["topic_ids"]}
    written.write_text("\n".join([*head, json.dumps(first_form | {"q": ours["query"], "t": offset})]))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    our_broker.produce(topic, numbers(10))

    assert 1 == run.to_the_end()
    assert {(topic, 0): 60} == our_broker.committed(our_broker.group("weekly"))
    assert 50 == _first_offset(checkpoint, 1, topic)


def _last_batch(checkpoint: Path) -> int:
    return max(int(file.name) for file in (checkpoint / "offsets").iterdir() if file.name.isdecimal())


@pytest.mark.kafka
def test_code_for_sparks_connector_moves_by_one_word(
    apache_kafka: BrokerUnderTest, spark: "SparkSession", tmp_path: Path
) -> None:
    broker = apache_kafka
    topic = broker.create_topic("clicks", partitions=2, config={"retention.ms": "-1"})
    for number in range(50):
        broker.produce(topic, numbers(1, start=number), partition=number % 2, timestamp_ms=1_700_000_000_000 + number)
    common = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": "60000",
        "fetchOffset.numRetries": "3",
        "kafka.max.poll.records": "500",
        "kafka.isolation.level": "read_committed",
    }
    reads = [
        {
            "startingOffsets": f'{{"{topic}": {{"0": 3, "1": -2}}}}',
            "endingOffsets": f'{{"{topic}": {{"0": -1, "1": 9}}}}',
        },
        {"startingTimestamp": "1700000000010", "endingTimestamp": "1700000000040", "minPartitions": "5"},
        {
            "startingOffsetsByTimestamp": f'{{"{topic}": {{"0": 1700000000011, "1": 1700000009999}}}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "maxRecordsPerPartition": "4",
            "includeHeaders": "true",
        },
    ]

    def stream(word: str) -> Counter[Row]:
        options = common | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", "groupIdPrefix": "moved"}
        to = spark.readStream.format(word).options(**options).load().writeStream.format("parquet")
        to = to.option("checkpointLocation", str(tmp_path / word / "checkpoint"))
        assert to.trigger(availableNow=True).start(str(tmp_path / word / "rows")).awaitTermination(DEADLINE_S)
        return rows(spark.read.parquet(str(tmp_path / word / "rows")))

    for more in reads:
        theirs, ours = (spark.read.format(word).options(**common, **more).load() for word in ("kafka", "logmark"))
        assert theirs.schema == ours.schema
        assert rows(theirs) == rows(ours) != Counter()
    assert stream("kafka") == stream("logmark")


@pytest.mark.parametrize("away_s", [0, pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_a_running_query_outlives_the_absence_of_its_broker(spark: "SparkSession", tmp_path: Path, away_s: int) -> None:
    with Broker(subprocess=True) as own:
        broker = BrokerUnderTest("logmark", own.bootstrap_servers, own)
        topic, group = broker.create_topic("clicks"), broker.group("weekly")
        broker.produce(topic, numbers(10))
        query = StreamRun(spark, broker, topic, tmp_path / "checkpoint", startingOffsets="earliest").start()
        wait_for(query, stands_at(broker, group, topic, 10), "the query has caught up")
        own.stop()
        time.sleep(away_s)
        assert query.isActive, query.exception()
        own.start()
        # A request that librdkafka sent into the old connection may be waited for until it times out.
        again = BrokerUnderTest("logmark", own.bootstrap_servers, own)
        again.produce(topic, numbers(10))
        wait_for(query, stands_at(again, group, topic, 20), "the query has caught up again")
        query.stop()
        again.close()
        broker.close()
