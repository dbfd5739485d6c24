"""Records are fetched again by their offsets, and rows that are marked become dead letters with them."""

import random

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as ClientPartition

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.dead_letters import DeadLetterSender, DeadLetterTarget
from logmark.spark.pipelines.error_column import send_marked_rows
from logmark.spark.record_lookup import GAP_MAX, group_offsets, read_by_offset
from tests.harness.brokers import BrokerUnderTest
from tests.spark.test_dead_letters import dead_letters_in


def test_offsets_that_are_near_are_read_together() -> None:
    assert [(3, 4)] == group_offsets([3])
    assert [(3, 6), (300, 302)] == group_offsets([3, 5, 300, 301])
    assert [(0, GAP_MAX + 2)] == group_offsets([0, GAP_MAX + 1])
    assert [(0, 1), (GAP_MAX + 2, GAP_MAX + 3)] == group_offsets([0, GAP_MAX + 2])


def test_each_offset_comes_once_with_its_record_wherever_it_lies(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("clicks")
    chance = random.Random(1)
    for codec in ("none", "zstd"):
        broker.produce(topic, [f"v{number}" for number in range(2000)], compression_type=codec)
    broker.admin.delete_records([ClientPartition(topic, 0, 150)])[ClientPartition(topic, 0, 150)].result(60)
    offsets = sorted({*chance.sample(range(4000), 40), 0, 149, 150, 1999, 2000, 3999})

    with Client(broker.bootstrap_servers) as client:
        found = list(read_by_offset(client, TopicPartition(topic, 0), offsets))

    assert offsets == [offset for offset, _ in found]
    assert [None if offset < 150 else b"v%d" % (offset % 2000) for offset in offsets] == [
        None if record is None else record.value for _, record in found
    ]


def rows(*marked: tuple[str | None, int | None, int | None, str | None]) -> pa.RecordBatch:
    names = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "error": pa.string()}
    columns = [pa.array([row[index] for row in marked], kind) for index, kind in enumerate(names.values())]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def test_a_marked_row_is_a_dead_letter_with_its_record_or_one_that_says_that_it_is_gone(
    broker: BrokerUnderTest,
) -> None:
    topic, dead = broker.create_topic("clicks"), broker.create_topic("dead")
    broker.produce(topic, ["a", "b", "c", "d"])
    broker.admin.delete_records([ClientPartition(topic, 0, 1)])[ClientPartition(topic, 0, 1)].result(60)
    box = DeadLetterTarget(bootstrap_servers=broker.bootstrap_servers, topic=dead, pipeline="billing")
    marked = rows((topic, 0, 0, "w"), (topic, 0, 1, None), (topic, 0, 3, "x"), (topic, 0, 2, "y"), (topic, 0, 3, "z"))

    with DeadLetterSender(box) as sender:
        left = send_marked_rows(marked, ["offset"], sender)
        nothing = send_marked_rows(marked.slice(1, 1), ["offset", "topic"], sender)

    assert {"offset": [1]} == left.to_pydict()
    assert ["offset", "topic"] == nothing.schema.names
    assert [(0, None, "w"), (2, b"c", "y"), (3, b"d", "x; z")] == [
        (letter.offset, letter.value, letter.error) for _, letter in dead_letters_in(broker, dead)
    ]
    assert "The record was deleted before its dead letter was written." == dead_letters_in(broker, dead)[0][1].missing


def test_a_marked_row_that_names_no_record_is_an_error(our_broker: BrokerUnderTest) -> None:
    box = DeadLetterTarget(bootstrap_servers=our_broker.bootstrap_servers, topic="dead")

    with DeadLetterSender(box) as sender, pytest.raises(UserError, match="does not say which record it came from"):
        send_marked_rows(rows(("clicks", None, 3, "x")), ["offset"], sender)
