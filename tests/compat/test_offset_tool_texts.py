"""Apache's own consumer-group tool prints against our broker what it prints against Apache Kafka."""

import re
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer

from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.gateway import call_tool
from tests.harness.node import wait_until
from tests.harness.tools import CONSUMER_GROUPS, ToolResult

pytestmark = pytest.mark.kafka

MARCH_5 = round(datetime(2024, 3, 5, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _same_names(our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest) -> None:
    """Rows come in the order of a hash of the names."""
    apache_kafka.share_names(our_broker)


def prepare(broker: BrokerUnderTest) -> str:
    """Orders of March 2024: partition 0 has 6000 of which 3000 are of the 4th, partition 1 has ten of the 4th."""
    orders = broker.create_topic("orders", partitions=2, config={"retention.ms": "-1"})
    broker.produce(orders, ["order"] * 3000, timestamp_ms=MARCH_5 - HOUR_MS)
    broker.produce(orders, ["order"] * 3000, timestamp_ms=MARCH_5 + HOUR_MS)
    broker.produce(orders, ["order"] * 10, partition=1, timestamp_ms=MARCH_5 - HOUR_MS)
    broker.commit(broker.group("email-service"), {(orders, 0): 4242, (orders, 1): 7})
    return orders


def normal(printed: ToolResult) -> tuple[int, str, str]:
    """What a tool printed, without what must differ: member ids, addresses and lines of the tool's own code."""
    text = [printed.stdout, printed.stderr]
    for pattern, name in (
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"ADDRESS +\(", "ADDRESS ("),  # the width of the column follows the port
        (r"^\s+at .*\n", ""),
    ):
        text = [re.sub(pattern, name, each, flags=re.MULTILINE) for each in text]
    return printed.exit_code, text[0], text[1]


def both(
    ours: BrokerUnderTest, theirs: BrokerUnderTest, group: str, *args: str
) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
    """The same command on both brokers."""
    apache, logmark = (
        normal(call_tool(CONSUMER_GROUPS, *args, "--group", broker.group(group), broker=broker))
        for broker in (theirs, ours)
    )
    return apache, logmark


RESETS = {
    "--to-earliest": (("--to-earliest",), {0: 0, 1: 0}),
    "--to-offset 5000": (("--to-offset", "5000"), {0: 5000, 1: 10}),
    "--to-datetime": (("--to-datetime", "2024-03-05T00:00:00.000"), {0: 3000, 1: 10}),
}


def test_the_three_resets_and_describe_print_the_same_and_move_the_group(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> None:
    topics = {broker: prepare(broker) for broker in (apache_kafka, our_broker)}
    describe = ("--describe",)
    apache, logmark = both(our_broker, apache_kafka, "email-service", *describe)
    assert apache == logmark
    assert re.search(r"0 +4242 +6000 +1758 ", logmark[1])
    assert "has no active members" in logmark[2]

    for args, expected in RESETS.values():
        texts = {}
        for broker, topic in topics.items():
            group = ("--group", broker.group("email-service"))
            reset = ("--reset-offsets", "--topic", topic, *args, "--execute")
            texts[broker.kind] = normal(call_tool(CONSUMER_GROUPS, *group, *reset, broker=broker))
            placed = broker.committed(broker.group("email-service"))
            assert {(topic, partition): offset for partition, offset in expected.items()} == placed
        assert texts["kafka"] == texts["logmark"]
        assert "NEW-OFFSET" in texts["logmark"][1]

    apache, logmark = both(our_broker, apache_kafka, "email-service", *describe)
    assert apache == logmark
    assert re.search(r"0 +3000 +6000 +3000 ", logmark[1])


def test_an_active_group_is_described_and_refuses_a_reset_with_the_same_words(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> None:
    members: dict[str, list[Consumer]] = {}
    for broker in (apache_kafka, our_broker):
        topic = prepare(broker)
        group = broker.group("email-service")
        members[broker.kind] = [broker.consumer(group, client_id=f"worker-{number}") for number in (1, 2)]
        for worker in members[broker.kind]:
            worker.subscribe([topic])

        def both_have_one(workers: list[Consumer] = members[broker.kind]) -> bool:
            # Both are polled while the second joins.
            for each in workers:
                each.poll(0.02)
            return [1, 1] == [len(each.assignment()) for each in workers]

        wait_until(both_have_one, "each worker has one partition")

    for args in (
        ("--describe",),
        ("--describe", "--members", "--verbose"),
        ("--describe", "--state"),
        ("--reset-offsets", "--all-topics", "--to-earliest", "--execute"),
    ):
        apache, logmark = both(our_broker, apache_kafka, "email-service", *args)
        # Members come in the order of a hash of their ids, which are random.
        assert sorted(apache[1].splitlines()) == sorted(logmark[1].splitlines()), args
        assert (apache[0], apache[2]) == (logmark[0], logmark[2]), args


def test_dry_runs_missing_groups_and_deletions_print_the_same(
    our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest
) -> None:
    topics = {broker: prepare(broker) for broker in (apache_kafka, our_broker)}
    for args in (
        ("--reset-offsets", "--all-topics", "--shift-by", "-100", "--dry-run"),
        ("--reset-offsets", "--all-topics", "--to-current", "--dry-run", "--export"),
    ):
        apache, logmark = both(our_broker, apache_kafka, "email-service", *args)
        assert apache == logmark, args
    assert 4242 == our_broker.committed(our_broker.group("email-service"))[topics[our_broker], 0]

    apache, logmark = both(our_broker, apache_kafka, "nobody", "--delete")
    assert apache == logmark
    texts = {}
    for broker, topic in topics.items():
        args = ("--delete-offsets", "--group", broker.group("email-service"), "--topic", f"{topic}:1")
        texts[broker.kind] = normal(call_tool(CONSUMER_GROUPS, *args, broker=broker))
        assert {(topic, 0): 4242} == broker.committed(broker.group("email-service"))
    assert texts["kafka"] == texts["logmark"]
    apache, logmark = both(our_broker, apache_kafka, "email-service", "--delete")
    assert apache == logmark
    assert {} == our_broker.committed(our_broker.group("email-service"))


def test_the_list_of_groups_names_types_and_states(our_broker: BrokerUnderTest, apache_kafka: BrokerUnderTest) -> None:
    lines = {}
    for broker in (apache_kafka, our_broker):
        topic = prepare(broker)
        consumer = broker.consumer(broker.group("busy"))
        consumer.subscribe([topic])
        read(consumer, 1)
        printed = call_tool(CONSUMER_GROUPS, "--list", "--state", broker=broker).check()
        lines[broker.kind] = sorted(line.split() for line in printed.stdout.splitlines() if broker.unique("") in line)
    busy, email = our_broker.group("busy"), our_broker.group("email-service")
    assert [[busy, "Stable"], [email, "Empty"]] == lines["logmark"]
    assert lines["kafka"] == lines["logmark"]
