"""What an administrator may not do, both brokers refuse with the same code, and what they may, both do."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.harness.brokers import DEADLINE_S, BrokerUnderTest, read
from tests.harness.node import wait_until

pytestmark = pytest.mark.kafka

SETTINGS = [
    ("retention.ms", "soon"),
    ("retention.ms", "-2"),
    ("retention.ms", "-1"),
    ("segment.bytes", "1"),
    ("segment.ms", "0"),
    ("segment.jitter.ms", "-1"),
    ("cleanup.policy", "shred"),
    ("cleanup.policy", "compact,delete"),
    ("no.such.setting", "1"),
    ("min.insync.replicas", "0"),
    ("max.message.bytes", "-1"),
    ("compression.type", "brotli"),
    ("compression.type", "zstd"),
    ("compression.gzip.level", "99"),
    ("message.timestamp.type", "Never"),
    ("message.timestamp.type", "LogAppendTime"),
    ("index.interval.bytes", "-1"),
    ("min.cleanable.dirty.ratio", "2"),
    ("preallocate", "maybe"),
    ("delete.retention.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("remote.storage.enable", "true"),
]


def outcome(action: Callable[[], Any]) -> Any:
    """What came back, or the name of the error."""
    try:
        return action()
    except KafkaException as refused:
        return refused.args[0].name()


def create(broker: BrokerUnderTest, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> Any:
    new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config)
    return outcome(lambda: broker.admin.create_topics([new])[name].result(DEADLINE_S))


def topics(broker: BrokerUnderTest, topic: str) -> dict[str, Any]:
    def grow(name: str, count: int) -> Any:
        return outcome(lambda: broker.admin.create_partitions([NewPartitions(name, count)])[name].result(DEADLINE_S))

    missing = broker.unique("nowhere")
    broker.create_topic("a.b")
    return {
        "exists": create(broker, topic),
        "blank in the name": create(broker, "not a name"),
        "dots": create(broker, ".."),
        "250 letters": create(broker, "x" * 250),
        "collides": create(broker, broker.unique("a_b")),
        "two replicas": create(broker, broker.unique("two"), replicas=2),
        "no replica": create(broker, broker.unique("none"), replicas=0),
        "no partition": create(broker, broker.unique("zero"), partitions=0),
        "the defaults": create(broker, broker.unique("defaults"), partitions=-1, replicas=-1),
        **{
            f"{name}={value}": create(broker, broker.unique(f"setting-{number}"), **{name: value})
            for number, (name, value) in enumerate(SETTINGS)
        },
        "fewer partitions": grow(topic, 1),
        "as many partitions": grow(topic, 2),
        "partitions of no topic": grow(missing, 3),
        "more partitions": grow(topic, 3),
        "delete no topic": outcome(lambda: broker.admin.delete_topics([missing])[missing].result(DEADLINE_S)),
    }


def configs(broker: BrokerUnderTest, topic: str) -> dict[str, Any]:
    def describe(kind: ResourceType, name: str) -> Any:
        resource = ConfigResource(kind, name)
        return outcome(lambda: bool(broker.admin.describe_configs([resource])[resource].result(DEADLINE_S)))

    def alter(name: str, *entries: tuple[str, str | None, AlterConfigOpType]) -> Any:
        changes = [ConfigEntry(key, value, incremental_operation=how) for key, value, how in entries]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        return outcome(lambda: broker.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S))

    how = AlterConfigOpType
    changed = {
        "of the topic": describe(ResourceType.TOPIC, topic),
        "of no topic": describe(ResourceType.TOPIC, broker.unique("nowhere")),
        "of the broker": describe(ResourceType.BROKER, "1"),
        "set": alter(topic, ("retention.ms", "1000000", how.SET)),
        "set to nonsense": alter(topic, ("retention.ms", "soon", how.SET)),
        "set what is not there": alter(topic, ("no.such.setting", "1", how.SET)),
        "set on no topic": alter(broker.unique("nowhere"), ("retention.ms", "1000000", how.SET)),
        "append to a number": alter(topic, ("retention.ms", "1", how.APPEND)),
        "append": alter(topic, ("cleanup.policy", "compact", how.APPEND)),
        "subtract": alter(topic, ("cleanup.policy", "delete", how.SUBTRACT)),
        "twice": alter(topic, ("retention.ms", "1", how.SET), ("retention.ms", "2", how.SET)),
    }
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def entries() -> dict[str, ConfigEntry]:
        return broker.admin.describe_configs([resource])[resource].result(DEADLINE_S)

    # Apache Kafka answers before its broker has heard of the change from its controller.
    wait_until(lambda: "compact" == entries()["cleanup.policy"].value, "the last change is seen")
    for name, entry in entries().items():
        if name != "min.insync.replicas":  # Apache Kafka sets it for the whole cluster when it is formatted
            changed[name] = (entry.value, entry.source, entry.is_default, entry.is_read_only, entry.is_sensitive)
    return changed


def records(broker: BrokerUnderTest, topic: str) -> dict[str, Any]:
    def delete(partition: int, before: int) -> Any:
        at = TopicPartition(topic, partition, before)
        return outcome(lambda: broker.admin.delete_records([at])[at].result(DEADLINE_S).low_watermark)

    broker.produce(topic, ["ORD"] * 10)
    return {
        "behind the end": delete(0, 11),
        "below -1": delete(0, -5),
        "before 5": delete(0, 5),
        "before 3": delete(0, 3),
        "of no partition": delete(9, 3),
        "all": delete(0, -1),
    }


def groups(broker: BrokerUnderTest, topic: str) -> dict[str, Any]:
    nobody, busy, simple = (broker.group(name) for name in ("nobody", "busy", "simple"))

    def describe(group: str) -> Any:
        found = broker.admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        hosts = [(member.host, member.client_id) for member in found.members]
        return str(found.state), found.is_simple_consumer_group, found.partition_assignor, hosts

    def delete(group: str) -> Any:
        return outcome(lambda: broker.admin.delete_consumer_groups([group])[group].result(DEADLINE_S))

    consumer = broker.consumer(busy, client_id="worker")
    consumer.subscribe([topic])
    broker.produce(topic, ["ORD"])
    read(consumer, 1)
    return {
        "commit": outcome(lambda: broker.commit(simple, {(topic, 0): 5000})),
        "commit to a live group": outcome(lambda: broker.commit(busy, {(topic, 0): 1})),
        "commit with much metadata": outcome(lambda: broker.commit(simple, {(topic, 0): (5, "m" * 4097)})),
        "nobody": describe(nobody),
        "simple": describe(simple),
        "busy": describe(busy),
        "delete nobody": delete(nobody),
        "delete a live group": delete(busy),
        "delete": delete(simple),
    }


@pytest.mark.parametrize("deeds", [topics, configs, records, groups])
def test_both_brokers_refuse_and_allow_the_same(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest, deeds: Callable[[BrokerUnderTest, str], dict[str, Any]]
) -> None:
    apache_kafka.share_names(our_broker)
    apache, ours = (deeds(broker, broker.create_topic("orders", partitions=2)) for broker in (apache_kafka, our_broker))
    assert apache == ours
