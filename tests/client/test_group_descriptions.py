"""Consumer groups of both protocols, as coordinators describe and list them."""

from collections.abc import Iterator

import pytest

from logmark.client.answers import GroupDescription
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_a_group_that_nobody_knows_is_described_by_the_brokers_own_words(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic = broker.create_topic("orders")
    known, nobody = broker.group("known"), broker.group("nobody")
    broker.commit(known, {(topic, 0): 0})

    found = client.describe_consumer_groups([nobody, known])
    refused, empty = found[nobody], found[known]

    assert isinstance(refused, RefusedByBroker)
    assert (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {nobody} not found.") == (refused.code, refused.said)
    assert isinstance(empty, GroupDescription)
    assert ("Empty", "classic", None) == (empty.state, empty.type, empty.group_epoch)


def test_groups_are_listed_by_state_and_by_type(broker: BrokerUnderTest, client: Client) -> None:
    topic = broker.create_topic("orders")
    group = broker.group("quiet")
    broker.commit(group, {(topic, 0): 0})

    def listed(**chosen: list[str]) -> bool:
        return group in [one.group for one in client.list_groups(**chosen)]

    assert [True, True, True] == [listed(), listed(states=["Empty"]), listed(types=["Classic"])]
    assert [False, False] == [listed(states=["Stable", "Dead"]), listed(types=["Consumer"])]


@pytest.mark.kafka
def test_a_member_of_the_newer_protocol_has_an_epoch_and_a_target(apache_kafka: BrokerUnderTest) -> None:
    topic = apache_kafka.create_topic("orders", partitions=2)
    group = apache_kafka.group("newer")
    consumer = apache_kafka.consumer(group, group_protocol="consumer")
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2, "both partitions are assigned")

    with Client(apache_kafka.bootstrap_servers) as client:

        def described() -> GroupDescription:
            found = client.describe_consumer_groups([group])[group]
            assert isinstance(found, GroupDescription)
            return found

        wait_until(lambda: described().state == "Stable", "the group is stable")
        found = described()

    (member,) = found.members
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert (both, both, True) == (member.partitions, member.target, member.is_upgraded)
    assert found.group_epoch == found.assignment_epoch == member.member_epoch
