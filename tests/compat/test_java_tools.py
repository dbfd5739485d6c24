"""Kafka's own Java tools, on its Java clients, against our broker."""

import json
from pathlib import Path

import pytest

from tests.compat.clients import CODECS
from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import call_tool
from tests.harness.tools import (
    CLIENT_COMPATIBILITY,
    CONFIGS,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_GROUPS,
    DELETE_RECORDS,
    GET_OFFSETS,
    TOPICS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    run_tool,
)

pytestmark = pytest.mark.kafka


def test_topic_command_creates_lists_describes_alters_and_deletes(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.unique("orders")
    named = ("--topic", topic)
    made = call_tool(
        *(TOPICS, "--create", *named, "--partitions", "3", "--replication-factor", "1"),
        *("--config", "retention.ms=86400000"),
        broker=our_broker,
    ).check()
    assert f"Created topic {topic}.\n" == made.stdout

    assert topic in call_tool(TOPICS, "--list", broker=our_broker).check().stdout.split()
    call_tool(TOPICS, "--alter", *named, "--partitions", "4", broker=our_broker).check()
    described = call_tool(TOPICS, "--describe", *named, broker=our_broker).check().stdout.splitlines()
    head = dict(part.split(": ", 1) for part in described[0].split("\t"))
    assert (topic, "4", "1", "retention.ms=86400000") == (
        head["Topic"],
        head["PartitionCount"],
        head["ReplicationFactor"],
        head["Configs"],
    )
    assert [
        f"\tTopic: {topic}\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for number in range(4)
    ] == [line.replace("N/A", "") for line in described[1:]]

    again = call_tool(TOPICS, "--create", *named, broker=our_broker)
    assert 1 == again.exit_code
    assert f"Topic '{topic}' already exists." in again.stdout
    assert "" == call_tool(TOPICS, "--delete", *named, broker=our_broker).check().stdout
    missing = call_tool(TOPICS, "--describe", *named, broker=our_broker)
    assert 1 == missing.exit_code
    assert f"Error while executing topic command : Topic '{topic}' does not exist as expected" in missing.stdout


def test_console_producer_writes_every_codec_and_console_consumer_reads_it(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    expected = []
    for codec in CODECS:
        lines = f"h:{codec}\tkey\tORD-1001 {codec}\nh:{codec}\tkey\tNULL\n"
        run_tool(
            *(CONSOLE_PRODUCER, "--topic", topic, "--compression-codec", codec, "--timeout", "5"),
            *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
            *("--reader-property", "null.marker=NULL"),
            broker=our_broker,
            stdin=lines,
        ).check()
        for value in (f"ORD-1001 {codec}", "null"):
            expected.append(f"Partition:0\tOffset:{len(expected)}\th:{codec}\tkey\t{value}")

    shown = ("print.partition", "print.offset", "print.headers", "print.key")
    properties = [part for name in shown for part in ("--formatter-property", f"{name}=true")]
    group = our_broker.group("readers")
    for how in (("--partition", "0", "--offset", "earliest"), ("--group", group, "--from-beginning")):
        read = run_tool(
            *(CONSOLE_CONSUMER, "--topic", topic, "--max-messages", str(len(expected)), "--timeout-ms", "60000"),
            *(*how, *properties),
            broker=our_broker,
        ).check()
        assert expected == read.stdout.splitlines()
        assert f"Processed a total of {len(expected)} messages" in read.stderr
    assert {(topic, 0): len(expected)} == our_broker.committed(group)


def test_get_offset_shell_answers_by_end_start_and_time(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders", partitions=2, config={"retention.ms": "-1"})
    for number in range(5):
        our_broker.produce(topic, ["order"] * 10, timestamp_ms=1_700_000_000_000 + 1000 * number)
    our_broker.delete_records(topic, 5)

    for when, offsets in {
        "latest": (50, 0),
        "earliest": (5, 0),
        "max-timestamp": (40,),
        "1700000002000": (20,),
        "1700000001001": (20,),
        "1800000000000": (),
    }.items():
        printed = call_tool(GET_OFFSETS, "--topic", topic, "--time", when, broker=our_broker).check().stdout
        if len(offsets) < 2:  # a partition without an answer is left out or shown without an offset
            printed = "".join(line + "\n" for line in printed.splitlines() if not line.endswith(":"))
        assert [f"{topic}:{at}:{offset}" for at, offset in enumerate(offsets)] == printed.split(), when


def test_delete_records_command_moves_the_log_start(our_broker: BrokerUnderTest, tmp_path: Path) -> None:
    topic = our_broker.create_topic("orders", partitions=2)
    our_broker.produce(topic, ["order"] * 10)
    wanted = [{"topic": topic, "partition": 0, "offset": 4}, {"topic": topic, "partition": 1, "offset": -1}]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))

    printed = call_tool(DELETE_RECORDS, "--offset-json-file", str(file), broker=our_broker).check().stdout
    assert {f"partition: {topic}-0\tlow_watermark: 4", f"partition: {topic}-1\tlow_watermark: 0"} <= set(
        printed.splitlines()
    )
    assert (4, 10) == (our_broker.start_offset(topic), our_broker.end_offset(topic))


def test_config_command_describes_and_alters_a_topic_and_describes_the_broker(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def dynamic() -> list[str]:
        printed = call_tool(CONFIGS, "--describe", *entity, broker=our_broker).check().stdout.splitlines()
        assert f"Dynamic configs for topic {topic} are:" == printed[0]
        return [line.split()[0] for line in printed[1:]]

    change = ("--add-config", "retention.ms=1000000,cleanup.policy=[compact,delete]")
    done = call_tool(CONFIGS, "--alter", *entity, *change, broker=our_broker).check().stdout
    assert f"Completed updating config for topic {topic}.\n" == done
    assert {"retention.ms=1000000", "cleanup.policy=compact,delete"} == set(dynamic())
    call_tool(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms", broker=our_broker).check()
    assert ["cleanup.policy=compact,delete"] == dynamic()

    refused = call_tool(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=soon", broker=our_broker)
    assert 1 == refused.exit_code
    assert "retention.ms" in refused.stderr + refused.stdout
    everything = call_tool(
        *(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1"), broker=our_broker
    ).check()
    assert "offsets.retention.minutes=10080" in everything.stdout


def test_verifiable_producer_and_consumer_agree_on_every_record(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders", partitions=3)
    group = our_broker.group("verifiers")
    run = run_tool(
        *(VERIFIABLE_PRODUCER, "--topic", topic, "--max-messages", "300", "--acks", "-1"), broker=our_broker
    ).check()
    sent = [event for event in events(run.stdout) if event["name"] == "producer_send_success"]
    assert 300 == len({(event["partition"], event["offset"]) for event in sent})
    assert 300 == sum(our_broker.end_offset(topic, partition) for partition in range(3))

    run = run_tool(
        *(VERIFIABLE_CONSUMER, "--topic", topic, "--group-id", group, "--max-messages", "300", "--reset-policy"),
        *("earliest", "--session-timeout", "45000"),
        broker=our_broker,
    ).check()
    read = [event for event in events(run.stdout) if event["name"] == "records_consumed"]
    assert 300 == sum(event["count"] for event in read)
    assert all(event["success"] for event in events(run.stdout) if event["name"] == "offsets_committed")
    assert 300 == sum(our_broker.committed(group).values())


def events(printed: str) -> list[dict[str, object]]:
    """The JSON lines of a verifiable tool."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def test_kafkas_own_client_compatibility_test_passes(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("compatibility")
    supported = ("offsets-for-times", "cluster-id", "create-topics", "describe-configs", "idempotent-producer")
    run = run_tool(
        *(CLIENT_COMPATIBILITY, "--topic", topic, "--num-cluster-nodes", "1"),
        *(part for name in supported for part in (f"--{name}-supported", "True")),
        *("--describe-acls-supported", "False", "--expect-record-too-large-exception", "False"),
        broker=our_broker,
    ).check()
    assert "SUCCESS" in run.stdout.upper() or 0 == run.exit_code


def test_a_tool_that_fails_is_seen_to_fail_also_after_pyspark_has_hooked_into_py4j(
    our_broker: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tests of a process share its py4j, and a Spark that was started in it changes how exceptions come back."""
    from py4j import protocol
    from pyspark.errors.exceptions.captured import capture_sql_exception

    monkeypatch.setattr("py4j.java_gateway.get_return_value", capture_sql_exception(protocol.get_return_value))

    assert 1 == call_tool(CONSUMER_GROUPS, "--describe", broker=our_broker).exit_code
