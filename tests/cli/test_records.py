"""produce and consume."""

import json

import pytest

from logmark.client.client import Client
from logmark.names import TopicPartition
from tests.cli.conftest import Logmark
from tests.harness.brokers import BrokerUnderTest


def test_lines_become_records_and_the_offsets_are_told(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders")

    first = logmark("produce", topic, stdin="ORD-1001\nORD-1002\nORD-1003\n")
    assert [f"Wrote 3 records to {topic}, partition 0: offsets 0 to 2."] == first.lines

    fourth = logmark("produce", topic, stdin="ORD-1004")
    assert [f"Wrote 1 record to {topic}, partition 0: offset 3."] == fourth.lines

    assert ["ORD-1001", "ORD-1002", "ORD-1003", "ORD-1004"] == logmark("consume", topic).lines


def test_what_was_written_is_told_in_json_too(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders", partitions=2)

    written = logmark("produce", topic, "--partition", "1", "--output", "json", stdin="a\nb\n")

    assert [{"topic": topic, "partition": 1, "records": 2, "first_offset": 0, "last_offset": 1}] == written.json


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_can_be_written(our_broker: BrokerUnderTest, logmark: Logmark, codec: str) -> None:
    topic = our_broker.create_topic("orders")

    logmark("produce", topic, "--compression", codec, stdin="x" * 500 + "\n")

    assert ["x" * 500] == logmark("consume", topic).lines


def test_keys_stand_before_the_separator(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders")

    logmark("produce", topic, "--key-separator", ":", stdin="k1:v1\nk2:v:2\n")

    records = [json.loads(line) for line in logmark("consume", topic, "--output", "json").lines]
    assert [("k1", "v1", 0), ("k2", "v:2", 1)] == [(one["key"], one["value"], one["offset"]) for one in records]


def test_a_line_without_a_key_ends_it_and_says_what_was_kept(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders")

    stopped = logmark("produce", topic, "--key-separator", ":", stdin="k1:v1\nno key\nk3:v3\n")

    assert 1 == stopped.exit_code
    assert "Line 2 has no key: ':' is not in it. 1 record was written before it." in stopped.error
    assert ["v1"] == logmark("consume", topic).lines


def test_producing_never_creates_a_topic_by_a_typo(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    topic = our_broker.unique("typo")

    refused = logmark("produce", topic, stdin="x\n")

    assert 1 == refused.exit_code
    assert f"Topic {topic} does not exist. Create it first: logmark topics create {topic}" in refused.error
    assert topic not in client.metadata().topics


def test_a_record_that_is_too_large_is_refused_with_the_reason(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders", config={"max.message.bytes": "500"})

    refused = logmark("produce", topic, stdin="x" * 1000 + "\n")

    assert 1 == refused.exit_code
    assert f"0 records were written to {topic}, and then one was refused" in refused.error
    assert "too large" in refused.error.lower()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", ["0", "1", "2", "3"]),
        ("0", ["0", "1", "2", "3"]),
        ("2", ["2", "3"]),
        ("4", []),
        ("-1", ["3"]),
        ("-100", ["0", "1", "2", "3"]),
        ("@2024-03-05T12:00:01.000", ["1", "2", "3"]),
        ("@2024-03-05T12:00:02.500Z", ["3"]),
        ("@-2h", []),
        ("@2030-01-01", []),
    ],
)
def test_reading_begins_where_it_is_told(
    our_broker: BrokerUnderTest, logmark: Logmark, start: str, expected: list[str]
) -> None:
    topic = our_broker.create_topic("clicks", config={"retention.ms": "-1"})
    for second in range(4):
        our_broker.produce(topic, [str(second)], timestamp_ms=1_709_640_000_000 + second * 1000)

    done = logmark("consume", topic, "--from", start)

    assert (0, expected) == (done.exit_code, done.lines)


def test_reading_stops_after_so_many(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, [str(number) for number in range(1000)])

    assert ["0", "1", "2"] == logmark("consume", topic, "--max", "3").lines


def test_only_the_partitions_that_were_named_are_read(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("clicks", partitions=3)
    for partition in range(3):
        our_broker.produce(topic, [f"p{partition}"], partition=partition)

    assert {"p0", "p2"} == set(logmark("consume", topic, "--partition", "0", "--partition", "2").lines)
    assert ["partition 1\toffset 0\t-\tp1"] == logmark("consume", topic, "--partition", "1", "--with-offsets").lines


def test_bytes_that_are_no_text_survive_in_json(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, [b"\xff\x00", None])

    records = [json.loads(line) for line in logmark("consume", topic, "-o", "json").lines]

    assert [{"base64": "/wA="}, None] == [record["value"] for record in records]


def test_an_offset_out_of_range_is_an_error_with_the_range(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("clicks")
    our_broker.produce(topic, ["a", "b"])

    refused = logmark("consume", topic, "--from", "7")

    assert 1 == refused.exit_code
    assert "Offset 7 is not in partition 0" in refused.error
    assert "it holds offsets 0 to 2" in refused.error


def test_a_group_goes_on_where_it_stands_and_commits_what_was_shown(
    our_broker: BrokerUnderTest, logmark: Logmark, client: Client
) -> None:
    topic, group = our_broker.create_topic("orders"), our_broker.group("email")
    our_broker.produce(topic, [str(number) for number in range(5)])

    assert ["0", "1"] == logmark("consume", topic, "--group", group, "--max", "2").lines
    assert 2 == client.committed(group)[TopicPartition(topic, 0)].offset
    assert ["2", "3", "4"] == logmark("consume", topic, "--group", group).lines
    assert [] == logmark("consume", topic, "--group", group).lines
    assert 5 == client.committed(group)[TopicPartition(topic, 0)].offset


def test_a_group_may_read_one_partition_only(our_broker: BrokerUnderTest, logmark: Logmark, client: Client) -> None:
    topic, group = our_broker.create_topic("orders", partitions=2), our_broker.group("email")
    our_broker.produce(topic, ["a", "b"], partition=1)

    assert ["b"] == logmark("consume", topic, "--group", group, "--partition", "1", "--from", "-1").lines
    assert {TopicPartition(topic, 1): 2} == {one: stored.offset for one, stored in client.committed(group).items()}


def test_reading_without_a_group_leaves_no_trace(our_broker: BrokerUnderTest, logmark: Logmark, client: Client) -> None:
    topic = our_broker.create_topic("orders")
    our_broker.produce(topic, ["a"])

    logmark("consume", topic)

    assert {} == client.committed("logmark-consume")


def test_damaged_records_are_an_error_and_never_data(our_broker: BrokerUnderTest, logmark: Logmark) -> None:
    topic = our_broker.create_topic("orders")
    our_broker.produce(topic, ["a"])
    our_broker.control.fail_next("Fetch", "CORRUPT_MESSAGE", times=50)
    try:
        refused = logmark("consume", topic)
    finally:
        our_broker.control.clear_faults()

    assert (1, "") == (refused.exit_code, refused.out)
    assert f"Partition 0 of topic {topic} cannot be read on" in refused.error
