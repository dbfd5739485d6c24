"""Single settings of topics and brokers, also where some of them cannot be looked at."""

from collections.abc import Iterator

import pytest

from logmark.client.client import Client
from tests.harness.brokers import BrokerUnderTest


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_settings_of_topics_are_told_and_a_topic_that_is_not_there_is_left_out(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic = broker.create_topic("kept", config={"retention.ms": "123000"})

    found = client.topic_settings([topic, broker.unique("no")], ["retention.ms", "cleanup.policy"])

    assert {topic: {"retention.ms": "123000", "cleanup.policy": "delete"}} == found


def test_a_setting_of_a_broker_is_told(client: Client) -> None:
    node = next(iter(client.metadata([]).brokers))

    assert {"offsets.retention.minutes": "10080"} == client.broker_settings(node, ["offsets.retention.minutes"])
