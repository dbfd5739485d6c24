"""Committed offsets are records of `__consumer_offsets`, as Apache Kafka's own formatter prints them."""

import json
import time
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.harness.brokers import BrokerUnderTest
from tests.harness.tools import CONSOLE_CONSUMER, run_tool

FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


def home_of(group: str) -> int:
    """The partition of the offsets topic that keeps this group: abs(javaHash(group)) mod 50."""
    java_hash = 0
    for unit in group.encode("utf-16-be")[1::2]:  # the names here are ASCII
        java_hash = (31 * java_hash + unit) & 0xFFFFFFFF
    signed = java_hash - (1 << 32) if java_hash >= 1 << 31 else java_hash
    return abs(signed) % 50


def entries_of(broker: BrokerUnderTest, group: str) -> list[dict[str, Any]]:
    """What Apache's formatter prints of this group, oldest first."""
    partition = home_of(group)
    printed = run_tool(
        CONSOLE_CONSUMER,
        *("--topic", "__consumer_offsets", "--partition", str(partition), "--offset", "earliest"),
        *("--max-messages", str(broker.end_offset("__consumer_offsets", partition)), "--timeout-ms", "60000"),
        *("--formatter", FORMATTER),
        broker=broker,
    ).check()
    entries, rest = [], printed.stdout.strip()
    while rest:  # the formatter puts no separator between entries
        entry, end = json.JSONDecoder().raw_decode(rest)
        entries.append(entry)
        rest = rest[end:].lstrip()
    return [entry for entry in entries if entry["key"]["data"]["group"] == group]


def commit(broker: BrokerUnderTest, group: str, topic: str, offsets: dict[int, tuple[int, str]]) -> None:
    """Commits with metadata; librdkafka's own call for it ends the string with a zero byte."""
    client = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=group, enable_auto_commit=False)
    client.assign([KafkaPythonPartition(topic, partition) for partition in offsets])
    client.commit(
        {KafkaPythonPartition(topic, at): OffsetAndMetadata(offset, note, -1) for at, (offset, note) in offsets.items()}
    )
    client.close()


@pytest.mark.kafka
def test_entries_of_analytics_team_and_email_service_as_apaches_formatter_prints_them(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("orders", partitions=2)
    analytics, email = broker.group("analytics-team"), broker.group("email-service")
    before_ms = time.time_ns() // 1_000_000
    commit(broker, analytics, topic, {0: (142, "processed by worker-1"), 1: (89, "")})
    commit(broker, email, topic, {0: (141, "")})
    after_ms = time.time_ns() // 1_000_000

    printed = entries_of(broker, analytics) + entries_of(broker, email)

    assert [
        (analytics, topic, 0, 142, "processed by worker-1"),
        (analytics, topic, 1, 89, ""),
        (email, topic, 0, 141, ""),
    ] == [
        (key["group"], key["topic"], key["partition"], value["offset"], value["metadata"])
        for key, value in ((entry["key"]["data"], entry["value"]["data"]) for entry in printed)
    ]
    for entry in printed:
        assert 1 == entry["key"]["type"]
        assert before_ms <= entry["value"]["data"]["commitTimestamp"] <= after_ms


@pytest.mark.kafka
def test_every_commit_is_an_entry_and_the_last_one_counts(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("orders")
    group = broker.group("email-service")
    for offset in (140, 141, 139):
        broker.commit(group, {(topic, 0): offset})

    assert [140, 141, 139] == [entry["value"]["data"]["offset"] for entry in entries_of(broker, group)]
    assert {(topic, 0): 139} == broker.committed(group)
