"""What a plan tells about the records that it touches, and the offsets of keys."""

from collections.abc import Iterator

import pytest

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.reset.key_search import find_key
from logmark.offsets.reset.plan import AffectedRecords
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.preview import add_preview
from logmark.offsets.reset.targets import FoundRecord, Target, ToEarliest, ToLatest, ToOffset
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until

NOON = 1_709_640_000_000
FOREVER = {"retention.ms": "-1"}


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def write(client: Client, partition: TopicPartition, keys: list[bytes], *, at_ms: int, size: int = 10) -> int:
    """Appends one batch and returns its size on the wire."""
    batch = batches.build(
        [(key, b"x" * size) for key in keys], timestamp_ms=[at_ms + number for number in range(len(keys))]
    )
    client.produce(partition, batch)
    return len(batch)


def span_of(client: Client, group: str, topic: str, target: Target) -> AffectedRecords | None:
    (move,) = plan_reset(client, group, {topic: None}, target, with_preview=True).moves
    return move.span


def test_a_plan_tells_when_what_it_touches_was_written_and_about_how_large_it_is(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic, group = broker.create_topic("clicks", config=FOREVER), broker.group("fraud")
    here = TopicPartition(topic, 0)
    sizes = [write(client, here, [b"k"] * 10, at_ms=NOON + hour * 3_600_000) for hour in range(6)]
    client.commit(group, {here: 35})

    back = span_of(client, group, topic, ToOffset(12))
    assert back is not None
    assert (NOON + 3_600_002, NOON + 3 * 3_600_000 + 4, False) == (back.first_ms, back.last_ms, back.is_upper_bound)
    assert back.size_bytes == pytest.approx(sizes[0] * 2.3, rel=0.01)
    forward = span_of(client, group, topic, ToLatest())
    assert forward is not None
    assert (NOON + 3 * 3_600_000 + 5, NOON + 5 * 3_600_000 + 9) == (forward.first_ms, forward.last_ms)
    assert span_of(client, group, topic, ToOffset(35)) is None


def test_the_size_of_a_long_way_is_estimated_from_both_ends(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("clicks", config=FOREVER), broker.group("fraud")
    here = TopicPartition(topic, 0)
    written = sum(write(client, here, [b"k"] * 20, at_ms=NOON + number, size=500) for number in range(60))
    client.commit(group, {here: 1200})

    span = span_of(client, group, topic, ToEarliest())
    assert span is not None and span.size_bytes == pytest.approx(written, rel=0.02)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_counts_on_a_compacted_topic_are_upper_bounds(broker: BrokerUnderTest, client: Client, policy: str) -> None:
    topic, group = broker.create_topic("state", config={"cleanup.policy": policy, **FOREVER}), broker.group("fraud")
    write(client, TopicPartition(topic, 0), [b"a", b"b", b"a"], at_ms=NOON)
    client.commit(group, {TopicPartition(topic, 0): 3})

    plan = plan_reset(client, group, {topic: None}, ToEarliest(), with_preview=True)
    assert plan.is_upper_bound and 3 == plan.read_again


@pytest.mark.kafka
def test_counts_on_a_transactional_topic_are_upper_bounds_and_markers_have_no_time(
    apache_kafka: BrokerUnderTest,
) -> None:
    topic, group = apache_kafka.create_topic("money", config=FOREVER), apache_kafka.group("fraud")
    producer = apache_kafka.producer(transactional_id=apache_kafka.unique("till"))
    producer.init_transactions(120)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, "x", timestamp=NOON)
        producer.flush(60)
        ends(120)
    with Client(apache_kafka.bootstrap_servers) as client:
        here = TopicPartition(topic, 0)
        wait_until(lambda: 4 == client.latest([here])[here], "the last marker is written")
        client.commit(group, {here: 4})
        span = span_of(client, group, topic, ToEarliest())
        only_a_marker = span_of(client, group, topic, ToOffset(3))
    assert span is not None and (NOON, NOON, True) == (span.first_ms, span.last_ms, span.is_upper_bound)
    assert only_a_marker is not None and (None, None, True) == (
        only_a_marker.first_ms, only_a_marker.last_ms, only_a_marker.is_upper_bound,
    )  # fmt: skip


def test_a_wide_plan_looks_where_most_is_touched(our_broker: BrokerUnderTest) -> None:
    topic, group = our_broker.create_topic("clicks", partitions=3, config=FOREVER), our_broker.group("fraud")
    with Client(our_broker.bootstrap_servers) as client:
        for number, count in enumerate((2, 9, 5)):
            write(client, TopicPartition(topic, number), [b"k"] * count, at_ms=NOON)
            client.commit(group, {TopicPartition(topic, number): count})
        told: list[tuple[int, int]] = []
        plan = plan_reset(client, group, {topic: None}, ToEarliest())
        spans = add_preview(client, plan, looks_max=2, looked=lambda *count: told.append(count)).moves
    assert [None, NOON, NOON] == [move.span.first_ms for move in spans if move.span]
    assert [(1, 2), (2, 2)] == told


def test_the_first_record_with_a_key_is_found_in_each_partition(broker: BrokerUnderTest, client: Client) -> None:
    topic = broker.create_topic("clicks", partitions=3, config=FOREVER)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    for day in range(3):
        write(client, partitions[0], [b"bob", b"ann", b"ann"], at_ms=NOON + day * 86_400_000)
    write(client, partitions[1], [b"carl", b"\xff\x00"], at_ms=NOON)
    seen: list[int] = []
    expected: list[int] = []

    found = find_key(client, partitions, b"ann", expect=expected.append, advance=seen.append)
    assert {partitions[0]: FoundRecord(offset=1, timestamp_ms=NOON + 1)} == found.found
    assert ([11], 11) == (expected, sum(seen))

    later = find_key(client, partitions, b"ann", since_ms=NOON + 3, until_ms=NOON + 86_400_002, is_after=True)
    assert ({partitions[0]: FoundRecord(offset=4, timestamp_ms=NOON + 86_400_001)}, True) == (
        later.found,
        later.is_after,
    )
    assert {partitions[1]: FoundRecord(offset=1, timestamp_ms=NOON + 1)} == (
        find_key(client, partitions, b"\xff\x00").found
    )


def test_a_key_that_is_not_there_is_an_error(broker: BrokerUnderTest, client: Client) -> None:
    topic = broker.create_topic("clicks", config=FOREVER)
    here = TopicPartition(topic, 0)
    write(client, here, [b"ann"], at_ms=NOON)

    with pytest.raises(UserError, match=r"No record with key 'an' was found in 1 partition. Nothing was changed"):
        find_key(client, [here], b"an")
    with pytest.raises(UserError, match=r"found at or after 2024-03-05T12:00:00.001Z before 2024-03-05T12:00:00.009Z"):
        find_key(client, [here], b"ann", since_ms=NOON + 1, until_ms=NOON + 9)
