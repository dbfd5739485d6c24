"""Clicks of the last month, in a log whose retention is a week by default."""

import time

from confluent_kafka import Consumer

from examples.clicks import topic
from examples.clicks.generator import DAY_MS, generate
from examples.clicks.truth import Truth
from examples.clicks.world import PARTITIONS, TOPIC
from logmark.client import Client
from logmark.names import TopicPartition
from logmark.testing import Broker

TOPIC_PARTITIONS = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def publish_a_month(broker: Broker, count: int = 2_000) -> Truth:
    truth, now_ms = Truth(), time.time_ns() // 1_000_000
    made = generate(count, seed=3, start_ms=now_ms - 30 * DAY_MS, end_ms=now_ms)
    assert count == topic.publish(broker.bootstrap_servers, truth.noting(made))
    return truth


def starts_and_ends(broker: Broker) -> tuple[dict[int, int], dict[int, int]]:
    with Client(broker.bootstrap_servers) as client:
        starts, ends = client.earliest(TOPIC_PARTITIONS), client.latest(TOPIC_PARTITIONS)
    return {one.partition: at for one, at in starts.items()}, {one.partition: at for one, at in ends.items()}


def test_every_click_gets_the_offset_that_the_truth_says(logmark_broker: Broker) -> None:
    topic.create(logmark_broker.bootstrap_servers)
    made = list(generate(500, seed=4, start_ms=0, end_ms=30 * DAY_MS))
    topic.publish(logmark_broker.bootstrap_servers, made)
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for click in made:
        expected[click.partition].append(click.value)

    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    settings = {"bootstrap.servers": logmark_broker.bootstrap_servers, "group.id": "check"}
    reader = Consumer({**settings, "auto.offset.reset": "earliest"})
    reader.subscribe([TOPIC])
    while sum(map(len, found.values())) < len(made):
        message = reader.poll(30)
        assert message is not None and message.error() is None
        assert len(found[message.partition()]) == message.offset()
        found[message.partition()].append(message.value())
    reader.close()

    assert expected == found


def test_clicks_of_the_last_month_survive_retention(logmark_broker: Broker) -> None:
    topic.create(logmark_broker.bootstrap_servers)
    truth = publish_a_month(logmark_broker)

    logmark_broker.advance(60 * 24 * 3600)
    logmark_broker.apply_retention()

    assert (dict.fromkeys(range(PARTITIONS), 0), truth.ends) == starts_and_ends(logmark_broker)


def test_without_the_topics_own_retention_they_would_not(logmark_broker: Broker) -> None:
    logmark_broker.create_topic(TOPIC, PARTITIONS)
    truth = publish_a_month(logmark_broker)

    logmark_broker.advance(60 * 24 * 3600)
    logmark_broker.apply_retention()

    assert (truth.ends, truth.ends) == starts_and_ends(logmark_broker)
