"""Lag is the end of the log minus the group's committed offset, per partition, however large the numbers are."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read
from tests.harness.gateway import call_tool
from tests.harness.restartable_broker import RestartableBroker
from tests.harness.tools import CONSUMER_GROUPS, GET_OFFSETS, run_logmark

FIRST = 259_000_000_000


def described(broker: BrokerUnderTest, group: str) -> list[tuple[int, int, int, int]]:
    """Partition, current offset, log end offset and lag, as Apache's own tool prints them."""
    printed = call_tool(CONSUMER_GROUPS, "--describe", "--group", group, broker=broker).check().stdout
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return [(int(row[2]), int(row[3]), int(row[4]), int(row[5])) for row in rows]


def log_of(broker: BrokerUnderTest, *sizes: int) -> str:
    """A topic whose partitions hold that many records."""
    topic = broker.create_topic("clicks", partitions=len(sizes))
    for partition, size in enumerate(sizes):
        assert size == len(broker.produce(topic, ["click"] * size, partition=partition))
    return topic


@pytest.mark.kafka
def test_a_lag_of_742_and_one_of_10_are_752_in_all(broker: BrokerUnderTest) -> None:
    topic = log_of(broker, 1000, 500)
    group = broker.group("fraud")
    broker.commit(group, {(topic, 0): 258, (topic, 1): 490})

    rows = described(broker, group)
    assert [(0, 258, 1000, 742), (1, 490, 500, 10)] == rows
    assert 752 == sum(lag for *_, lag in rows)

    ours = run_logmark("lag", group, broker=broker)
    assert [742, 10] == [row["lag"] for row in ours]
    assert [(258, 257), (490, 489)] == [(row["committed"], row["last_processed"]) for row in ours]


@pytest.mark.kafka
def test_describe_shows_142_of_142_and_89_of_101_and_201_of_201(broker: BrokerUnderTest) -> None:
    topic = log_of(broker, 142, 101, 201)
    group = broker.group("analytics-team")
    broker.commit(group, {(topic, 0): 142, (topic, 1): 89, (topic, 2): 201})

    assert [(0, 142, 142, 0), (1, 89, 101, 12), (2, 201, 201, 0)] == described(broker, group)


@pytest.mark.kafka
def test_a_partition_near_259_billion_works_like_any_other(start_own: Callable[..., RestartableBroker]) -> None:
    own = start_own()
    topic = own.clients.create_topic("clicks", config={"index.interval.bytes": "0", "retention.ms": "-1"})
    own.begin_at(topic, FIRST)
    broker = own.start()
    assert (FIRST, FIRST) == (broker.start_offset(topic), broker.end_offset(topic))

    # Fifty batches with their own timestamps, so that look-ups by offset and by time go through the indexes.
    then_ms = time.time_ns() // 1_000_000 - 100_000
    for number in range(50):
        told = broker.produce(topic, [f"click-{number}"] * 20, timestamp_ms=then_ms + 1000 * number)
        assert list(range(FIRST + 20 * number, FIRST + 20 * number + 20)) == told

    consumer = broker.consumer()
    consumer.assign(at((topic, 0, FIRST + 987)))
    assert [FIRST + 987, FIRST + 988] == offsets_of(read(consumer, 2))
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, then_ms + 30_500)], timeout=60)
    assert FIRST + 620 == found.offset

    group = broker.group("billing")
    broker.commit(group, {(topic, 0): FIRST + 258})
    assert {(topic, 0): FIRST + 258} == broker.committed(group)
    assert [(0, FIRST + 258, FIRST + 1000, 742)] == described(broker, group)
    (ours,) = run_logmark("lag", group, broker=broker)
    assert (FIRST + 258, FIRST, FIRST + 1000, 742) == (ours["committed"], ours["start"], ours["end"], ours["lag"])
    assert f"{topic}:0:{FIRST + 1000}" in call_tool(GET_OFFSETS, "--topic", topic, broker=broker).check().stdout

    broker.delete_records(topic, FIRST + 500)
    own.stop()
    broker = own.start()
    assert (FIRST + 500, FIRST + 1000) == (broker.start_offset(topic), broker.end_offset(topic))
    assert {(topic, 0): FIRST + 258} == broker.committed(group)
