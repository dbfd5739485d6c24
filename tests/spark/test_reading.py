"""What an executor reads of a range, on our broker and on Apache Kafka."""

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.options import Options, parse
from logmark.spark.ranges import Range
from logmark.spark.reading import read_range
from tests.harness.brokers import BrokerUnderTest


def options(broker: BrokerUnderTest, topic: str, reset: str | None = None) -> Options:
    given = {"bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "group.id": "g"}
    return parse(given | ({"auto.offset.reset": reset} if reset else {}), is_stream=True)


def offsets(wanted: Options, topic: str, first: int, stop: int) -> list[int]:
    return [
        offset
        for batch in read_range(wanted, Range(TopicPartition(topic, 0), first, stop))
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_range_inside_of_a_batch_is_read_exactly(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks")
    for _ in range(3):
        broker.produce(topic, ["click"] * 100, linger_ms=100)

    for first, stop in ((0, 300), (50, 51), (99, 101), (150, 250), (299, 300), (10, 10)):
        assert list(range(first, stop)) == offsets(options(broker, topic), topic, first, stop)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_records_that_expired_after_the_batch_was_planned_are_skipped_if_that_was_said(
    broker: BrokerUnderTest, reset: str
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["click"] * 100)
    broker.delete_records(topic, 40)
    wanted = options(broker, topic, reset)

    assert list(range(40, 60)) == offsets(wanted, topic, 10, 60)
    assert [] == offsets(wanted, topic, 10, 30)


@pytest.mark.parametrize("reset", ["none", None])
def test_records_that_expired_after_the_batch_was_planned_are_a_sentence_otherwise(
    broker: BrokerUnderTest, reset: str | None
) -> None:
    topic = broker.create_topic("clicks")
    broker.produce(topic, ["click"] * 100)
    broker.delete_records(topic, 40)

    with pytest.raises(UserError, match=r"At most 30 records were deleted .* have expired since\. Nothing was skipped"):
        offsets(options(broker, topic, reset), topic, 10, 60)
