"""`read_topic`: what its arguments mean as options, its mistakes, and the bounds that it looks up at once."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from logmark.errors import UserError
from logmark.spark.source import topic_frame
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.topic_frame import read_topic
from tests.harness.brokers import BrokerUnderTest
from tests.spark.test_pipelines import numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON_MS = 1_763_208_000_000  # 2025-11-15T12:00:00Z


def options(topics: Any = "clicks", **given: Any) -> dict[str, str]:
    arguments = {"start": "earliest", "end": "latest", "partitions": None, "columns": None, "schema": None} | given
    found = topic_frame._source_options(topics, servers="b:1", options=arguments.pop("options", {}), **arguments)
    parse_source_options(found, is_stream=False)
    return found


STARTS: list[tuple[Any, dict[str, str]]] = [
    ("earliest", {"startingOffsets": "earliest"}),
    ("-3d", {"startingOffsets": "-3d"}),
    ("2h ago", {"startingOffsets": "2h ago"}),
    (timedelta(days=3), {"startingTimestamp": "-259200000ms"}),
    ("2025-11-15T12:00", {"startingTimestamp": str(NOON_MS)}),
    ("2025-11-15T13:00+01:00", {"startingTimestamp": str(NOON_MS)}),
    (str(NOON_MS), {"startingTimestamp": str(NOON_MS)}),
    (datetime(2025, 11, 15, 12), {"startingTimestamp": str(NOON_MS)}),
    (datetime(2025, 11, 15, 12, tzinfo=UTC), {"startingTimestamp": str(NOON_MS)}),
    (datetime(2025, 11, 15, 13, tzinfo=timezone(timedelta(hours=1))), {"startingTimestamp": str(NOON_MS)}),
    ("-1000 records", {"startingOffsets": "-1000 records"}),
    (-1000, {"startingOffsets": "-1000 records"}),
    (-1, {"startingOffsets": "-1 records"}),
]


@pytest.mark.parametrize(("start", "expected"), STARTS)
def test_a_start_can_be_a_word_a_time_a_time_before_now_or_a_number_of_records(
    start: Any, expected: dict[str, str]
) -> None:
    found = options(start=start)

    starts = ("startingOffsets", "startingTimestamp")
    assert expected == {name: value for name, value in found.items() if name in starts}
    assert "clicks" == found["subscribe"]


def test_offsets_say_which_partitions_are_read() -> None:
    by_partition = options(start={0: 100, 2: 5}, end=datetime(2025, 11, 15, 12, tzinfo=UTC))
    by_topic = options(["clicks", "orders"], start={"orders": {1: 7}}, end={"orders": {1: 9}})
    same = options(start=250, end=300, partitions=[3, 1, 3])

    assert ({"clicks": [0, 2]}, {"clicks": {"0": 100, "2": 5}}) == (
        json.loads(by_partition["assign"]),
        json.loads(by_partition["startingOffsets"]),
    )
    assert str(NOON_MS) == by_partition["endingTimestamp"]
    assert ({"orders": [1]}, {"orders": {"1": 9}}) == (
        json.loads(by_topic["assign"]),
        json.loads(by_topic["endingOffsets"]),
    )
    assert {"clicks": {"1": 250, "3": 250}} == json.loads(same["startingOffsets"])
    assert {"clicks": {"1": 300, "3": 300}} == json.loads(same["endingOffsets"])


def test_columns_schema_and_further_options_are_those_of_the_format() -> None:
    found = options(columns=["offset", "value"], schema="id STRING", options={"minPartitions": "4"})

    assert ("offset,value", "json", "id STRING", "4") == tuple(
        found[name] for name in ("columns", "value.format", "value.schema", "minPartitions")
    )


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"start": "yesterday"}, "start of read_topic is 'yesterday'. Nothing was read. Write earliest, a time such as"),
    ({"end": "tomorrow"}, "end of read_topic is 'tomorrow'. Nothing was read. Write latest, a time such as"),
    ({"start": "latest"}, "a batch read would always be empty"),
    ({"end": "earliest"}, "must be latest, offsets"),
    ({"start": 100}, "offsets differ from partition to partition"),
    ({"start": 1.5}, "of type float"),
    ({"start": True}, "of type bool"),
    ({"start": timedelta(hours=-1)}, "lies ahead"),
    ({"start": {0: -1}}, "a whole number from 0 on"),
    ({"start": {}}, "names no offset"),
    ({"start": {"orders": {0: 1}}}, "names the topic orders, which is not read"),
    ({"start": {0: 1}, "end": {1: 2}}, "start and end of read_topic name different partitions"),
    ({"start": {0: 1}, "partitions": [0, 1]}, "start and partitions of read_topic name different partitions"),
    ({"topics": ["clicks", "orders"], "start": {0: 1}}, "is for one topic, and 2 are read"),
    ({"topics": ["clicks", "orders"], "partitions": [0]}, "is for one topic, and 2 are read"),
    ({"partitions": []}, "names no partition"),
    ({"partitions": [-1]}, "a whole number from 0 on"),
    ({"partitions": {"orders": [0]}}, "names the topic orders, which is not read"),
    ({"columns": "offset,vale"}, "there is no such column. Did you mean value?"),
    ({"columns": []}, "there is no such column"),
    ({"options": {"startingOffsets": "earliest"}}, "says by its own arguments what the option startingOffsets says"),
    ({"options": {"minPartition": "4"}}, "Did you mean minPartitions?"),
    ({"topics": "my topic"}, "no topic can be called that"),
    ({"schema": "id TEXT"}, "it has no type TEXT"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_a_mistake_is_an_error_before_a_broker_is_asked(given: dict[str, Any], message: str) -> None:
    class Asked:
        """A session of which only the tests of values may know."""

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the session was asked for {name}")

    given = {"topics": "clicks"} | given
    with pytest.raises(UserError) as refused:
        read_topic(Asked(), given.pop("topics"), bootstrap_servers="127.0.0.1:1", **given)  # type: ignore[arg-type]

    assert message in str(refused.value)


@pytest.mark.spark
def test_a_topic_is_one_call_and_the_frame_has_the_same_rows_whenever_it_is_used(
    our_broker: BrokerUnderTest, spark: "SparkSession"
) -> None:
    topic = our_broker.create_topic("clicks", partitions=3, config={"retention.ms": "-1"})
    for partition in (0, 1):
        our_broker.produce(topic, numbers(50), partition=partition, timestamp_ms=NOON_MS)
        our_broker.produce(topic, numbers(50), partition=partition, timestamp_ms=NOON_MS + 60_000)
    servers = our_broker.bootstrap_servers

    def read(**given: Any) -> Any:
        return read_topic(spark, topic, bootstrap_servers=servers, **given)

    late = read(start="2025-11-15T12:01", columns="offset, partition")
    last = read(start=-10, columns=["partition"])
    some = read(start={0: 20}, end={0: 25}, columns="key,offset")
    our_broker.produce(topic, numbers(5), partition=0, timestamp_ms=NOON_MS + 120_000)

    assert ["offset", "partition"] == late.columns
    assert [(100, 50, 99)] == late.selectExpr("count(*)", "min(offset)", "max(offset)").collect()
    assert {(0, 10), (1, 10)} == set(last.groupBy("partition").count().collect())
    assert [20, 21, 22, 23, 24] == sorted(row.offset for row in some.collect())
    assert 205 == read().count()
    with pytest.raises(UserError, match="There is no topic"):
        read_topic(spark, f"{topic}-x", bootstrap_servers=servers)
    with pytest.raises(UserError, match=f"There is no partition {topic}-7"):
        read(partitions=[7])
    with pytest.raises(UserError, match="asks for offset 900"):
        read(start=0, end=900, partitions=[0])
