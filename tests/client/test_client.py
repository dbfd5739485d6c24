"""Every call of the client, on our broker and on Apache Kafka."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from logmark.client.answers import EARLIEST, LATEST, MAX_TIMESTAMP, Committed, NewTopic, OffsetAndTimestamp
from logmark.client.client import Client
from logmark.client.errors import CommitRefused, OffsetOutOfRange, RefusedByBroker, UnknownTopic
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.testing import Broker
from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.node import wait_until

NOON = 1_709_640_000_000


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_topics_are_created_described_grown_configured_and_deleted(broker: BrokerUnderTest, client: Client) -> None:
    name = broker.unique("orders")

    client.create_topic(name, partitions=2, config={"retention.ms": "1000"})
    assert {} == client.create_partitions({name: 3})
    client.alter_configs(name, {"retention.ms": None, "segment.bytes": "2097152"})

    def changed() -> dict[str, str | None]:
        return {entry.name: entry.value for entry in client.describe_configs([name])[name] if not entry.is_default}

    assert 3 == len(client.metadata([name]).partitions(name))
    # A controller's answer is a moment ahead of what its brokers know.
    wait_until(lambda: changed() == {"segment.bytes": "2097152"}, "the settings are known")
    assert name in client.metadata().topics

    assert {} == client.delete_topics([name])
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == client.delete_topics([name])[name].code


def test_a_new_topic_is_there_when_it_is_said_to_be_though_brokers_hear_of_it_later(
    our_broker: BrokerUnderTest,
) -> None:
    name = our_broker.unique("orders")
    with Client(our_broker.bootstrap_servers) as client:
        client.metadata([])
        our_broker.control.fail_next("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", times=2)

        client.create_topic(name)

        assert [TopicPartition(name, 0)] == client.metadata([name]).partitions(name)


def test_a_topic_that_cannot_be_created_says_why_and_the_others_are(broker: BrokerUnderTest, client: Client) -> None:
    there, new = broker.create_topic("orders"), broker.unique("new")

    failures = client.create_topics(
        [
            NewTopic(name=there),
            NewTopic(name="a b"),
            NewTopic(name=broker.unique("bad"), config={"no.such": "1"}),
            NewTopic(name=new),
        ]
    )

    assert {
        there: "TOPIC_ALREADY_EXISTS",
        "a b": "INVALID_TOPIC_EXCEPTION",
        broker.unique("bad"): "INVALID_CONFIG",
    } == {name: failure.code.name for name, failure in failures.items()}
    wait_until(lambda: client.metadata([new]).partitions(new), "the new topic is known")


def test_asking_about_a_topic_never_creates_it(broker: BrokerUnderTest, client: Client) -> None:
    name = broker.unique("typo")

    assert {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} == client.metadata([name]).errors
    with pytest.raises(UnknownTopic, match=f"Topic {name} does not exist"):
        client.latest([TopicPartition(name, 0)])
    assert name not in client.metadata().topics


def test_the_cluster_has_an_id_a_controller_and_brokers(broker: BrokerUnderTest, client: Client) -> None:
    cluster = client.metadata([])

    assert 22 == len(cluster.cluster_id)
    assert [broker.bootstrap_servers] == [str(address) for address in cluster.brokers.values()]
    assert cluster.controller in cluster.brokers


def test_offsets_are_found_by_end_start_and_time(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks", config={"retention.ms": "-1"}), 0)
    for second in range(4):
        broker.produce(here.topic, ["x"], timestamp_ms=NOON + second * 1000)

    def found(timestamp: int) -> tuple[int, int]:
        answer = client.list_offsets({here: timestamp})[here]
        return answer.offset, answer.timestamp_ms

    assert (4, -1) == found(LATEST)
    assert (0, -1) == found(EARLIEST)
    assert (3, NOON + 3000) == found(MAX_TIMESTAMP)
    assert (2, NOON + 2000) == found(NOON + 1001)
    assert (-1, -1) == found(NOON + 3001)


def test_one_partition_that_is_not_there_does_not_hide_the_others(broker: BrokerUnderTest, client: Client) -> None:
    topic = broker.create_topic("clicks")
    good, bad, gone = TopicPartition(topic, 0), TopicPartition(topic, 5), TopicPartition(broker.unique("no"), 0)

    found = client.try_list_offsets({good: LATEST, bad: LATEST, gone: EARLIEST})

    assert isinstance(found[good], OffsetAndTimestamp)
    assert "has no partition 5: it has 1 partition, numbered from 0" in str(found[bad])
    assert "does not exist" in str(found[gone])


def test_records_are_deleted_below_an_offset_and_never_beyond_the_end(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("clicks"), 0)
    broker.produce(here.topic, [str(number) for number in range(10)])

    assert {here: 4} == client.delete_records({here: 4})
    assert {here: 4} == client.earliest([here])
    with pytest.raises(OffsetOutOfRange) as refused:
        client.delete_records({here: 11})
    assert (4, 10) == (refused.value.log_start, refused.value.log_end)
    assert {here: 10} == client.delete_records({here: -1})


def test_a_group_without_members_keeps_offset_epoch_and_metadata(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("orders", partitions=2), broker.group("email")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    client.commit(group, {first: Committed(offset=142, leader_epoch=0, metadata="worker-1"), second: 89})

    assert {
        first: Committed(offset=142, leader_epoch=0, metadata="worker-1"),
        second: Committed(offset=89),
    } == client.committed(group)
    assert {second: Committed(offset=89)} == client.committed(group, [second])
    assert "Empty" == client.describe_groups([group])[group].state


def test_many_groups_are_asked_at_once(broker: BrokerUnderTest, client: Client) -> None:
    here = TopicPartition(broker.create_topic("orders"), 0)
    groups = [broker.group(f"g{number}") for number in range(5)]
    for number, group in enumerate(groups[:4]):
        client.commit(group, {here: number})

    expected = {group: {here: Committed(offset=number)} for number, group in enumerate(groups[:4])}
    assert expected | {groups[4]: {}} == client.committed_of(groups)


def test_a_group_that_nobody_knows_is_dead_and_has_no_offsets(broker: BrokerUnderTest, client: Client) -> None:
    group = broker.group("nobody")

    assert client.describe_groups([group])[group].is_unknown
    assert {} == client.committed(group)
    assert group not in [listing.group for listing in client.list_groups()]
    assert ErrorCode.GROUP_ID_NOT_FOUND == client.delete_groups([group])[group].code


def test_offsets_and_groups_are_deleted(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("orders", partitions=2), broker.group("email")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    client.commit(group, {first: 1, second: 2})

    assert {} == client.delete_offsets(group, [first])
    assert {second: Committed(offset=2)} == client.committed(group)
    assert {} == client.delete_groups([group])
    assert {} == client.committed(group)


def test_an_active_group_shows_its_members_and_refuses_commits_from_outside(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic, group = broker.create_topic("orders", partitions=2), broker.group("email")
    broker.produce(topic, ["ORD-1001"])
    consumer = broker.consumer(group, client_id="worker-1")
    consumer.subscribe([topic])
    read(consumer, 1)

    described = client.describe_groups([group])[group]
    assert ("Stable", True) == (described.state, described.is_active)
    (member,) = described.members
    assert "worker-1" == member.client_id
    assert [TopicPartition(topic, 0), TopicPartition(topic, 1)] == list(member.partitions)
    with pytest.raises(CommitRefused, match="it has active members; stop them and try again") as refused:
        client.commit(group, {TopicPartition(topic, 0): 0})
    assert {TopicPartition(topic, 0): ErrorCode.UNKNOWN_MEMBER_ID} == refused.value.errors
    assert ErrorCode.NON_EMPTY_GROUP == client.delete_groups([group])[group].code


def test_settings_of_a_topic_that_is_not_there_are_refused(broker: BrokerUnderTest, client: Client) -> None:
    with pytest.raises(RefusedByBroker, match="does not exist"):
        client.describe_configs([broker.unique("no")])


def test_a_call_outlasts_a_restart_of_the_broker() -> None:
    with Broker() as restarted:
        topic = restarted.create_topic("orders")
        with Client(restarted.bootstrap_servers, patience_s=0) as client:
            client.commit("email", {TopicPartition(topic, 0): 0})
            restarted.stop()
            again = threading.Timer(0.3, restarted.start)
            again.start()

            assert {TopicPartition(topic, 0): 0} == client.latest([TopicPartition(topic, 0)])
            assert {TopicPartition(topic, 0): Committed(offset=0)} == client.committed("email")
            again.join()


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_a_commit_is_sent_again_while_its_coordinator_moves(our_broker: BrokerUnderTest, error: str) -> None:
    here, group = TopicPartition(our_broker.create_topic("orders"), 0), our_broker.group("email")
    our_broker.control.fail_next("OffsetCommit", error, times=2)

    with Client(our_broker.bootstrap_servers) as client:
        client.commit(group, {here: 7})

        assert {here: Committed(offset=7)} == client.committed(group)


def test_a_commit_for_a_topic_that_is_not_there_is_refused_at_once(broker: BrokerUnderTest, client: Client) -> None:
    nowhere = TopicPartition(broker.unique("no"), 0)

    with pytest.raises(CommitRefused, match="the topic or the partition does not exist") as refused:
        client.commit(broker.group("email"), {nowhere: 7})
    assert {nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} == refused.value.errors


@pytest.mark.kafka
def test_a_group_of_the_newer_protocol_is_described_with_its_members(apache_kafka: BrokerUnderTest) -> None:
    topic, group = apache_kafka.create_topic("orders"), apache_kafka.group("email")
    apache_kafka.produce(topic, ["ORD-1001"])
    consumer = Consumer(
        {
            "bootstrap.servers": apache_kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "worker-1",
            "auto.offset.reset": "earliest",
        }
    )
    apache_kafka.closing(consumer).subscribe([topic])
    read(consumer, 1)

    with Client(apache_kafka.bootstrap_servers) as client:
        described = client.describe_groups([group])[group]

        assert ("consumer", "Stable", True) == (described.type, described.state, described.is_active)
        assert [("worker-1", [TopicPartition(topic, 0)])] == [
            (member.client_id, list(member.partitions)) for member in described.members
        ]
        with pytest.raises(CommitRefused, match="stop them and try again"):
            client.commit(group, {TopicPartition(topic, 0): 0})
