"""Spark's side of the source, without Spark."""

import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from logmark.client.answers import FetchedPartition
from logmark.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    NoCoordinator,
    OffsetOutOfRange,
    RefusedByBroker,
)
from logmark.client.metadata import ClusterMetadata
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.spark.errors import PermanentlyRefused
from logmark.spark.source import data_source as source
from logmark.spark.source.data_source import DefaultSource, StreamReader
from logmark.spark.source.options import SourceOptions, parse_source_options
from logmark.spark.source.position import Position
from logmark.spark.source.ranges import Range
from logmark.spark.source.schemas import SCHEMA
from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest
from tests.harness.clocks import start_on_first_pause, turn_clock
from tests.harness.node import wait_until
from tests.spark.source.test_group_follower import FakeCluster

P0 = TopicPartition("clicks", 0)
STREAM = {"bootstrap.servers": "b:1", "subscribe": "clicks", "group.id": "billing"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster(p0=(0, 100))
    monkeypatch.setattr(source, "connect_source", lambda options, timeout_s: cluster)
    return cluster


def next_offsets(offset: dict[str, Any]) -> dict[str, Any]:
    """What people read in an offset: topics and partitions, as of Spark's own connector."""
    return {topic: offsets for topic, offsets in offset.items() if topic != "~logmark"}


def reader(**more: str) -> StreamReader:
    return StreamReader(parse_source_options(STREAM | more, is_stream=True))


def test_a_process_of_spark_loads_no_more_than_the_source_needs() -> None:
    modules = "import logmark.spark.source.data_source, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", modules], capture_output=True, text=True, check=True)

    loaded = set(ran.stdout.split())
    assert "logmark.spark.source.data_source" in loaded
    assert not {"logmark.spark.tables.table", "logmark.spark.pipelines", "deltalake", "pyarrow.compute"} & loaded, (
        "Spark starts a Python process for every stream, which waits for these imports"
    )


def test_a_new_process_of_spark_reads_its_first_rows_without_pandas(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, ["a", "b"])
    read = (
        "import sys; from logmark.spark.source.data_source import BatchReader; "
        "from logmark.spark.source.options import parse_source_options; "
        f"given = {{'bootstrap.servers': {our_broker.bootstrap_servers!r}, 'subscribe': {topic!r}}}; "
        "reader = BatchReader(parse_source_options(given, is_stream=False)); "
        "rows = [batch.num_rows for task in reader.partitions() for batch in reader.read(task)]; "
        "print(rows, 'pandas' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)

    assert "[2] False" == ran.stdout.strip(), "a process whose task ended early is not used again"


def test_spark_is_told_the_same_start_twice_though_the_end_moves_in_between(cluster: FakeCluster) -> None:
    stream = reader()

    first = stream.initialOffset()
    cluster.logs[P0] = (0, 500)

    assert first == stream.initialOffset()
    assert {"clicks": {"0": 100}} == next_offsets(first)
    assert {"clicks": {"0": 100}} == first["~logmark"]["first"]
    assert 100 == cluster.offsets[P0].offset


def test_an_idle_stream_answers_with_the_start_that_it_was_given(cluster: FakeCluster) -> None:
    stream = reader()
    start = stream.initialOffset()

    assert start is stream.latestOffset(start, ReadAllAvailable())


def test_a_batch_is_limited_as_spark_says(cluster: FakeCluster) -> None:
    stream = reader(**{"auto.offset.reset": "earliest", "maxOffsetsPerTrigger": "30"})
    start = stream.initialOffset()

    assert ReadMaxRows(30) == stream.getDefaultReadLimit()
    assert {"clicks": {"0": 30}} == next_offsets(stream.latestOffset(start, stream.getDefaultReadLimit()))
    assert {"clicks": {"0": 100}} == next_offsets(stream.latestOffset(start, ReadAllAvailable()))


def test_the_progress_shows_the_ends_of_the_logs(cluster: FakeCluster) -> None:
    stream = reader()
    assert stream.reportLatestOffset() is None
    stream.initialOffset()

    assert {"clicks": {"0": 100}} == stream.reportLatestOffset()


def test_a_batch_becomes_tasks_and_a_seek_becomes_none() -> None:
    start = Position(group="billing", query="q", generation=1, first={P0: 0}, next={P0: 10})
    end = start.batch(first={P0: 10}, next={P0: 30}, held={})
    stream = reader(maxRecordsPerPartition="10")

    assert [(Range(P0, 10, 20),), (Range(P0, 20, 30),)] == [
        task.value for task in stream.partitions(start.to_json(), end.to_json())
    ]
    assert [] == stream.partitions(start.to_json(), start.seek({P0: 5}, now_ms=1).to_json())


def test_a_batch_that_an_earlier_version_planned_is_repeated_with_the_tasks_of_then() -> None:
    topics = [TopicPartition("clicks", number) for number in range(40)]
    of_then: dict[str, Any] = {"group": "billing", "q": "q", "g": 1}
    of_then |= {"f": {"clicks": {str(one.partition): 0 for one in topics}}}
    of_then |= {"t": {"clicks": {str(one.partition): 10 for one in topics}}}
    of_now = Position.from_json(of_then).to_json()

    repeated, planned = (reader().partitions({}, end) for end in (of_then, of_now))

    assert [1] * 40 == [len(task.value) for task in repeated]
    assert 8 == len(planned)
    assert [Range(one, 0, 10) for one in topics] == sorted(part for task in planned for part in task.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"startingOffsets": "sometime"}, "startingOffsets is 'sometime'"),
        ({"maxOffsetsPerTrigger": "-5"}, "maxOffsetsPerTrigger must be a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"kafka.ssl.ca.locaton": "x"}, "ssl.ca.locaton"),
        ({"columns": "offset,vlaue"}, "there is no such column. Did you mean value?"),
        ({"colums": "offset"}, "has no option colums. Did you mean columns?"),
        ({"subscribe": "my topic"}, "no topic can be called that"),
    ],
)
def test_a_wrong_value_is_an_error_at_load_before_there_is_a_query(given: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        DefaultSource(STREAM | given).schema()


def test_what_a_batch_read_takes_is_no_error_at_load_where_it_is_not_known_to_be_one() -> None:
    for given in ({"startingOffsets": "latest"}, {"maxOffsetsPerTrigger": "5"}, {"endingOffsets": "latest"}):
        assert SCHEMA == DefaultSource(STREAM | given).schema()


def test_a_stream_that_cannot_be_read_says_why_at_the_first_question_and_not_before() -> None:
    refused = DefaultSource(STREAM).streamReader(StructType([StructField("id", StringType())]))
    refused.stop()

    asks = (refused.initialOffset, refused.getDefaultReadLimit, lambda: refused.latestOffset({}, ReadAllAvailable()))
    for ask in asks:
        with pytest.raises(UserError, match=r"Leave out \.schema"):
            ask()


def test_a_read_has_the_columns_that_were_asked_for_and_makes_no_others() -> None:
    some = DefaultSource(STREAM | {"columns": "offset, TimestampType,headers"})
    typed = DefaultSource(
        STREAM | {"columns": "partition,value", "value.format": "json", "value.schema": "id STRING"}
    )

    assert ["offset", "timestampType", "headers"] == some.schema().names
    assert ["partition", "value", "error", "raw"] == typed.schema().names
    assert typed.schema()["value"].dataType == StructType([StructField("id", StringType())])


def test_a_reader_travels_to_the_executors_without_its_connection(cluster: FakeCluster) -> None:
    stream = reader()
    stream.initialOffset()

    there = pickle.loads(pickle.dumps(stream))

    assert isinstance(there, StreamReader)
    assert there.reportLatestOffset() is None


def test_a_stream_survives_a_broker_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker:
        broker.create_topic("clicks")
        stream = StreamReader(
            parse_source_options(STREAM | {"bootstrap.servers": broker.bootstrap_servers}, is_stream=True)
        )
        start = stream.initialOffset()
        broker.stop()
        # It comes back when the source waits for it, which has failed to reach it.
        start_on_first_pause(monkeypatch, broker.start)

        assert start == stream.latestOffset(start, ReadAllAvailable())
        assert broker.is_running
        stream.stop()


def test_an_unknown_option_is_an_error_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"has no option subscribePatern\. Did you mean subscribePattern"):
        DefaultSource({"subscribePatern": "c.*"}).schema()


def test_a_schema_of_the_users_own_is_an_error() -> None:
    other = StructType([StructField("value", StructType([]))])

    with pytest.raises(UserError, match="always gives the columns key, value, topic"):
        DefaultSource(STREAM).streamReader(other).initialOffset()
    with pytest.raises(UserError, match="always gives the columns"):
        DefaultSource(STREAM | {"includeHeaders": "true"}).reader(SCHEMA)


def away(cluster: FakeCluster) -> None:
    cluster.failure, cluster.is_away = BrokerUnreachable("The broker at b:1 did not answer."), True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the source sees; it moves when the source sleeps, and when a test says so."""
    return turn_clock(monkeypatch)


def test_an_idle_stream_looks_again_soon_after_a_batch_and_less_often_later(
    cluster: FakeCluster, seconds: list[float]
) -> None:
    stream = reader()
    start = stream.initialOffset()

    def looks_in(duration_s: float) -> int:
        looks, until = 0, seconds[0] + duration_s
        while seconds[0] < until:
            assert start is stream.latestOffset(start, ReadAllAvailable())
            looks += 1
        return looks

    assert 4 <= looks_in(0.1), "a record that follows at once waits"
    assert 11 >= looks_in(1), "an idle query keeps its broker busy"
    cluster.logs[P0] = (0, 130)
    start = stream.latestOffset(start, ReadAllAvailable())
    assert 4 <= looks_in(0.1), "a batch does not bring the short pauses back"


def test_a_broker_that_is_away_for_ten_minutes_does_not_end_a_query(cluster: FakeCluster, seconds: list[float]) -> None:
    stream = reader()
    start = stream.initialOffset()
    away(cluster)
    while seconds[0] < 600:
        assert start is stream.latestOffset(start, ReadAllAvailable())
        seconds[0] += 1
    cluster.failure = None
    cluster.logs[P0] = (0, 130)

    assert {"clicks": {"0": 130}} == next_offsets(stream.latestOffset(start, ReadAllAvailable()))


def test_a_broker_that_stays_away_ends_the_query_with_its_error(cluster: FakeCluster, seconds: list[float]) -> None:
    stream = reader(waitForBroker="5m")
    start = stream.initialOffset()
    away(cluster)
    stream.latestOffset(start, ReadAllAvailable())
    seconds[0] += 301

    with pytest.raises(BrokerUnreachable, match="did not answer"):
        stream.latestOffset(start, ReadAllAvailable())


def test_two_short_absences_are_not_one_long_one(cluster: FakeCluster, seconds: list[float]) -> None:
    stream = reader(waitForBroker="5m")
    start = stream.initialOffset()
    for _ in range(2):
        away(cluster)
        stream.latestOffset(start, ReadAllAvailable())
        seconds[0] += 200
        assert start is stream.latestOffset(start, ReadAllAvailable())
        cluster.failure = None
        assert start is stream.latestOffset(start, ReadAllAvailable())


class UnreachableCluster(FakeCluster):
    """A cluster that nobody reaches for a while, and how many clients asked for it."""

    connections = 0

    def metadata(self, topics: list[str] | None = None) -> ClusterMetadata:
        if self.failure is not None and self.is_away:
            raise self.failure
        return super().metadata(topics)


DEAD_LETTERS = {"value.format": "json", "value.schema": "a INT", "deadLetters.topic": "dead"}


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> UnreachableCluster:
    cluster = UnreachableCluster(p0=(0, 100))
    cluster.logs[TopicPartition("dead", 0)] = (0, 0)
    away(cluster)

    def connect(options: SourceOptions, timeout_s: float) -> UnreachableCluster:
        cluster.connections += 1
        return cluster

    monkeypatch.setattr(source, "connect_source", connect)
    return cluster


STANDS = Position(group="billing", query="q", generation=1, first={P0: 5}, next={P0: 5}).to_json()


@pytest.mark.parametrize("given", [{}, DEAD_LETTERS])
def test_a_query_that_continues_from_its_checkpoint_waits_for_a_broker_that_is_away(
    unreachable: UnreachableCluster, seconds: list[float], given: dict[str, str]
) -> None:
    stream = reader(**given)
    while seconds[0] < 600:
        assert STANDS is stream.latestOffset(STANDS, ReadAllAvailable())
        seconds[0] += 10
    unreachable.failure = None

    assert {"clicks": {"0": 100}} == next_offsets(stream.latestOffset(STANDS, ReadAllAvailable()))
    assert 1 == unreachable.connections, "a client for each try stays open"


@pytest.mark.parametrize("given", [{}, DEAD_LETTERS])
def test_available_now_continues_from_its_checkpoint_when_its_broker_is_back(
    unreachable: UnreachableCluster, seconds: list[float], given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(length: float) -> None:
        seconds[0] += length
        if seconds[0] > 60:
            unreachable.failure = None

    monkeypatch.setattr("time.sleep", pause)
    stream = reader(**given)
    stream.prepareForTriggerAvailableNow()

    there = stream.latestOffset(STANDS, ReadAllAvailable())
    assert {"clicks": {"0": 100}} == next_offsets(there)
    unreachable.logs[P0] = (0, 200)
    assert there == stream.latestOffset(there, ReadAllAvailable()), "what came later is left for the next run"


def test_a_new_query_does_not_wait_for_its_first_contact(unreachable: UnreachableCluster, seconds: list[float]) -> None:
    stream = reader(**DEAD_LETTERS)
    stream.prepareForTriggerAvailableNow()

    with pytest.raises(BrokerUnreachable):
        stream.initialOffset()
    assert 0.0 == seconds[0]


@pytest.mark.parametrize("moves", [1, 2])
def test_a_log_start_that_moves_while_a_batch_is_measured_does_not_end_the_query(
    cluster: FakeCluster, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cluster.fetch

    def fetch(partition: TopicPartition, offset: int, **more: int) -> FetchedPartition:
        start = 20 * moves
        if offset >= start:
            return found(partition, offset, **more)
        cluster.logs[partition] = (min(start, offset + 20), 100)
        raise OffsetOutOfRange(partition, offset, log_start=cluster.logs[partition][0], log_end=100)

    stream = reader(**{"auto.offset.reset": "earliest", "failOnDataLoss": "false", "maxBytesPerTrigger": "1000"})
    start = stream.initialOffset()
    monkeypatch.setattr(cluster, "fetch", fetch)

    there = stream.latestOffset(start, ReadAllAvailable())
    assert (moves == 1) == (there["clicks"]["0"] < 20), "what is left says how large records are"
    while there["clicks"]["0"] < 100:
        before, there = there, stream.latestOffset(there, ReadAllAvailable())
        assert before != there

    assert 20 * moves == cluster.logs[P0][0]


def test_available_now_waits_for_its_broker_and_does_not_end_early(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, seconds: list[float]
) -> None:
    stream = reader(**{"auto.offset.reset": "earliest"})
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    away(cluster)

    def pause(length: float) -> None:
        seconds[0] += length
        if seconds[0] > 5:
            cluster.failure = None

    monkeypatch.setattr("time.sleep", pause)

    assert {"clicks": {"0": 100}} == next_offsets(stream.latestOffset(start, ReadAllAvailable()))


@pytest.mark.parametrize(
    "failure", [AuthenticationFailed("no"), RefusedByBroker(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")]
)
def test_what_does_not_pass_ends_the_query_at_once(cluster: FakeCluster, failure: ClientError) -> None:
    stream = reader()
    start = stream.initialOffset()
    cluster.failure, cluster.is_away = failure, True

    with pytest.raises(PermanentlyRefused):
        stream.latestOffset(start, ReadAllAvailable())


def test_a_group_that_may_not_be_used_ends_a_new_query_for_good(cluster: FakeCluster) -> None:
    cluster.failure = NoCoordinator("billing", ErrorCode.GROUP_AUTHORIZATION_FAILED, "not yours")

    with pytest.raises(PermanentlyRefused, match="not yours"):
        reader().initialOffset()


def error_of(broker: BrokerUnderTest, topic: str, **given: str) -> str:
    """What ends a stream before it has begun."""
    named = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": broker.group("g"), **given}
    with pytest.raises(UserError) as failure:
        StreamReader(parse_source_options(named, is_stream=True)).initialOffset()
    return str(failure.value)


def test_bad_input_is_an_error_and_commits_nothing(broker: BrokerUnderTest) -> None:
    topic, other = broker.create_topic("clicks"), broker.create_topic("orders")
    broker.produce(topic, ["a"] * 50)
    broker.delete_records(topic, 30)
    broker.commit(broker.group("g"), {(topic, 0): 20})
    broker.commit(broker.group("far"), {(topic, 0): 70})
    none = {"auto.offset.reset": "none"}
    messages = {
        "There is no topic nowhere at": error_of(broker, "nowhere"),
        "There is no partition": error_of(broker, topic, **{"subscribe": "", "assign": f'{{"{topic}": [3]}}'}),
        f"At most 10 records were deleted before this query read them: 10 records of {topic}-0 (": error_of(
            broker, topic
        ),
        f"Positions are not in their logs: offset 70 of {topic}-0 lies beyond": error_of(
            broker, topic, **{"group.id": broker.group("far")}
        ),
        f"Group {broker.group('g')} has no committed offset for {other}-0": error_of(broker, other, **none),
        "The option startingOffsets must say something": error_of(broker, other, startingOffsets='{"x": {"0": 1}}'),
        "startingTimestamp asks for 2096-10-02": error_of(broker, other, startingTimestamp="4000000000000"),
    }

    assert [] == [(begin, text) for begin, text in messages.items() if not text.startswith(begin)]
    assert {(topic, 0): 20} == broker.committed(broker.group("g"))


def test_a_topic_that_was_recreated_behind_a_running_stream_is_noticed(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["old"] * 5)
    named = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": broker.group("g")}
    stream = StreamReader(parse_source_options(named | {"partition.metadata.cache.ttl.ms": "1"}, is_stream=True))
    start = stream.initialOffset()
    broker.admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in broker.admin.list_topics(timeout=60).topics, "the topic is gone")
    broker.create_topic("clicks")
    broker.produce(topic, ["new"] * 9)

    with pytest.raises(UserError, match=f"offset 5 of {topic}-0 belongs to a topic of that name that was deleted"):
        stream.latestOffset(start, ReadAllAvailable())
    stream.stop()


def test_a_broker_that_was_never_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(source, "FIRST_CONTACT_S", 0.2)

    with pytest.raises(BrokerUnreachable, match=r"The broker at 127\.0\.0\.1:1 refused the connection"):
        StreamReader(
            parse_source_options(STREAM | {"bootstrap.servers": "127.0.0.1:1"}, is_stream=True)
        ).initialOffset()
