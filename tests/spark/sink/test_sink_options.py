"""The options and columns of the sink, and what Spark does with its writers, without Spark."""

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.spark.sink import writer as sink
from logmark.spark.sink.options import parse_sink_options
from logmark.spark.sink.outbox import Attempt
from logmark.spark.sink.writer import BatchWriter, StreamWriter, check_columns
from logmark.spark.source.data_source import DefaultSource
from logmark.wire import codecs
from tests.harness.brokers import BrokerUnderTest
from tests.spark.sink_rows import arrow, values

GIVEN = {"bootstrap.servers": "b:1", "topic": "alerts", "checkpointLocation": "/c/alerts"}
TEXT, BINARY, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


VALUE = of(value=TEXT)
PAIR = of(key=TEXT, value=BINARY)


def test_code_for_sparks_connector_moves_by_one_word() -> None:
    given = {
        "kafka.bootstrap.servers": "b:1", "topic": "alerts", "checkpointLocation": "/c", "kafka.acks": "all",
        "kafka.compression.type": "zstd", "kafka.linger.ms": "5", "kafka.security.protocol": "SSL",
    }  # fmt: skip

    options = parse_sink_options({name.lower(): value for name, value in given.items()}, is_stream=True)

    assert ("b:1", "alerts", codecs.ZSTD) == (options.bootstrap_servers, options.topic, options.codec)
    assert {"security.protocol": "SSL"} == options.client


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"topci": "x"}, r'format\("logmark"\) has no option topci for writing\. Did you mean topic\? Nothing was'),
        ({"subscribe": "x"}, r"has no option subscribe for writing\. It knows bootstrap\.servers"),
        ({"kafka.bootstrap.servers": "other:1"}, "say different things"),
        ({"bootstrap.servers": ""}, "bootstrap.servers is missing"),
        ({"delivery": "twice"}, "The option delivery must be exactly-once or at-least-once, not 'twice'"),
        ({"compression.type": "brotli"}, "compression.type must be none or gzip"),
        ({"batch.size": "much"}, "batch.size must be a number of bytes"),
        ({"waitForBroker": "long"}, "The option waitForBroker: .* Nothing was written"),
        ({"id": "a b"}, "The option id must be letters, digits"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set: a batch is written once without"),
        ({"kafka.partitioner.class": "x"}, "a column partition names another one"),
        ({"checkpointLocation": ""}, "needs the option checkpointLocation or the option id"),
        ({"kafka.sasl.mechanism": "GSSAPI", "kafka.security.protocol": "SASL_SSL"}, "GSSAPI"),
    ],
)
def test_a_mistaken_option_is_an_error(more: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_sink_options(GIVEN | more, is_stream=True)


def test_a_checkpoint_names_its_query_however_it_is_spelt() -> None:
    def id_of(partition: str) -> str | None:
        return parse_sink_options(GIVEN | {"checkpointLocation": partition}, is_stream=True).id

    assert id_of("/c/alerts") == id_of("file:///c/alerts/") == id_of("file:/c/alerts") == id_of("/c/../c/alerts")
    assert 4 == len({id_of(partition) for partition in ("/c/alerts", "/d/alerts", "s3a://c/alerts", "s3a://d/alerts")})
    assert "mine" == parse_sink_options(GIVEN | {"id": "mine"}, is_stream=True).id


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (of(value=TEXT, offset=LONG, timestampType=INT), "cannot take the column offset and timestampType"),
        (of(key=TEXT), "The rows have no column value"),
        (of(value=INT), "The column value must be a string or binary, and is int"),
        (of(value=TEXT, partition=LONG), "The column partition must be an int, and is bigint"),
        (of(value=TEXT, headers=MapType(TEXT, BINARY)), "The column headers must be array<struct"),
        (of(value=TEXT, headers=ArrayType(TEXT)), "The column headers must be array<struct"),
        (of(value=TEXT, timestamp=DateType()), "timestamp must be a timestamp, or milliseconds as a long, and is date"),
    ],
)
def test_rows_that_do_not_fit_a_topic_are_an_error(columns: StructType, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_columns(columns, "alerts")


def test_rows_without_a_topic_are_an_error_and_every_column_fits() -> None:
    with pytest.raises(UserError, match="not said which topic"):
        check_columns(VALUE, None)
    check_columns(of(value=BINARY, topic=TEXT), None)
    every = of(
        key=BINARY, value=TEXT, headers=ArrayType(PAIR), topic=TEXT, partition=INT, timestamp=TimestampType(), id=TEXT
    )
    check_columns(every, None)


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(UserError, match="A topic cannot be overwritten"):
        DefaultSource(GIVEN).writer(VALUE, True)


def sent(writer: Any) -> Any:
    """The writer as it arrives at a task."""
    return pickle.loads(pickle.dumps(writer))


def test_a_stream_is_planned_once_a_batch_and_committed_by_another_writer(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("alerts")
    given = GIVEN | {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "id": broker.unique("alerts")}
    group = f"logmark-sink-{broker.unique('alerts')}"
    attempt = Attempt(query="q-1", batch=0, task=0)
    monkeypatch.setattr(sink, "_attempt", lambda *of: attempt)
    rows = [{"value": "a"}, {"value": "b"}]

    def planned() -> StreamWriter:
        there = sent(DefaultSource(given).streamWriter(VALUE, False))
        assert isinstance(there, StreamWriter)
        return there

    first = planned().write(arrow(rows))
    assert {(topic, 0): 0} == broker.committed(group)
    planned().write(arrow(rows))  # as if the driver had died before the commit
    DefaultSource(given).streamWriter(VALUE, False).commit([first, None], 0)
    planned().write(arrow(rows))  # as if it had died right after it

    assert [["a", "b"]] == values(broker, topic)
    assert {(topic, 0): 2} == broker.committed(group)
    with Client(broker.bootstrap_servers) as client:
        assert ["q-1 0 2 15a76ae3c"] == [one.metadata for one in client.committed(group).values()]


def test_a_job_with_an_id_writes_once_and_one_without_writes_again(
    broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("alerts")
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    rows = [{"value": "a"}, {"value": "b"}]
    monkeypatch.setattr(sink, "_attempt", lambda query, batch: Attempt(query=query, batch=batch, task=0))

    def run(**more: str) -> None:
        there = sent(DefaultSource(given | more).writer(VALUE, False))
        assert isinstance(there, BatchWriter)
        there.commit([there.write(arrow(rows)), there.write(arrow(rows))])  # the second is a retried task

    run(id=broker.unique("backfill"))
    run(id=broker.unique("backfill"))
    assert [["a", "b"]] == values(broker, topic)

    run()
    run()
    assert [["a", "b"] * 3] == values(broker, topic)
