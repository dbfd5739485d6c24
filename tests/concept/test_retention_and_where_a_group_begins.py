"""Old records go, offsets stay; without a committed offset that is in the log, a group begins where its policy says."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read, values_of
from tests.harness.node import wait_until
from tests.harness.restartable_broker import RestartableBroker

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def clicks_of_which_200_have_expired(broker: BrokerUnderTest, now_ms: int) -> str:
    """A thousand clicks: 200 are ten days old and gone, 300 two hours old, 500 one hour old."""
    config = {"retention.ms": str(7 * DAY_MS), "segment.ms": str(DAY_MS)}
    topic = broker.create_topic("clicks", config=config)
    for first, last, timestamp_ms in (
        (0, 200, now_ms - 10 * DAY_MS),
        (200, 500, now_ms - 2 * HOUR_MS),
        (500, 1000, now_ms - HOUR_MS),
    ):
        values = [f"click-{number}" for number in range(first, last)]
        assert list(range(first, last)) == broker.produce(topic, values, timestamp_ms=timestamp_ms)
    wait_until(lambda: 200 == broker.start_offset(topic), "the first 200 clicks have expired")
    return topic


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def clicks(broker: BrokerUnderTest, now_ms: int) -> str:
    return clicks_of_which_200_have_expired(broker, now_ms)


def test_of_1000_messages_200_expired_and_earliest_is_200_and_latest_the_end(
    broker: BrokerUnderTest, clicks: str
) -> None:
    consumer = broker.consumer()
    assert (200, 1000) == consumer.get_watermark_offsets(TopicPartition(clicks, 0), timeout=60)

    consumer.assign(at((clicks, 0, OFFSET_BEGINNING)))
    assert (200, b"click-200") == next((message.offset(), message.value()) for message in read(consumer, 1))

    consumer.assign(at((clicks, 0, OFFSET_END)))
    assert 1000 == first_offset_while_producing(broker, consumer, clicks)


def test_a_consumer_seeks_to_500_and_to_a_timestamp(broker: BrokerUnderTest, clicks: str, now_ms: int) -> None:
    consumer = broker.consumer()
    consumer.assign(at((clicks, 0, OFFSET_BEGINNING)))
    read(consumer, 1)

    consumer.seek(TopicPartition(clicks, 0, 500))
    assert [500, 501] == offsets_of(read(consumer, 2))

    for hours_ago, offset in ((3, 200), (2, 200), (1.5, 500), (1, 500)):
        wanted = TopicPartition(clicks, 0, now_ms - round(hours_ago * HOUR_MS))
        (found,) = consumer.offsets_for_times([wanted], timeout=60)
        assert offset == found.offset
    consumer.seek(found)
    assert ["click-500"] == values_of(read(consumer, 1))


def first_offset_while_producing(broker: BrokerUnderTest, consumer: Consumer, topic: str) -> int:
    """The first offset that comes to a consumer at the end, while new records come in."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            return message.offset()
        broker.produce(topic, ["new"])
    raise AssertionError("no record came in 60 s")


COMMITS = pytest.mark.parametrize("commit", [None, 100], ids=["without a commit", "with an expired commit"])


@COMMITS
def test_a_group_begins_at_the_earliest_message_when_its_policy_says_so(
    broker: BrokerUnderTest, clicks: str, commit: int | None
) -> None:
    group = group_with(broker, clicks, commit)
    consumer = broker.consumer(group, auto_offset_reset="earliest")
    consumer.subscribe([clicks])
    assert [200, 201] == offsets_of(read(consumer, 2))


@COMMITS
def test_a_group_begins_at_the_end_when_its_policy_says_latest(
    broker: BrokerUnderTest, clicks: str, commit: int | None
) -> None:
    group = group_with(broker, clicks, commit)
    consumer = broker.consumer(group, auto_offset_reset="latest")
    consumer.subscribe([clicks])
    assert 1000 <= first_offset_while_producing(broker, consumer, clicks)


@COMMITS
def test_a_group_gets_an_error_when_its_policy_is_none(
    broker: BrokerUnderTest, clicks: str, commit: int | None
) -> None:
    group = group_with(broker, clicks, commit)
    consumer = broker.consumer(group, auto_offset_reset="error")
    consumer.subscribe([clicks])
    with pytest.raises(KafkaException) as refused:
        read(consumer, 1)
    assert KafkaError._AUTO_OFFSET_RESET == refused.value.args[0].code()

    python = broker.closing(
        KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id=broker.group("python"),
            auto_offset_reset="none",
            enable_auto_commit=False,
        )
    )
    partition = KafkaPythonPartition(clicks, 0)
    python.assign([partition])
    if commit is not None:
        python.seek(partition, commit)
    with pytest.raises(NoOffsetForPartitionError if commit is None else OffsetOutOfRangeError):
        wait_until(lambda: python.poll(timeout_ms=100), "the client gives up")


def group_with(broker: BrokerUnderTest, topic: str, commit: int | None) -> str:
    group = broker.group("readers")
    if commit is not None:
        broker.commit(group, {(topic, 0): commit})
    return group


def run_weekly_job(broker: BrokerUnderTest, topic: str, count: int, **config: object) -> list[int]:
    """One run: joins, reads `count` messages, commits, leaves."""
    consumer = broker.consumer(broker.group("weekly-job"), **config)
    consumer.subscribe([topic])
    messages = read(consumer, count)
    consumer.commit(asynchronous=False)
    consumer.close()
    return offsets_of(messages)


def test_a_weekly_job_back_after_8_idle_days_falls_back_to_its_policy(
    start_own: Callable[..., RestartableBroker],
) -> None:
    own = start_own()
    broker = own.clients
    topic = broker.create_topic("clicks", config={"retention.ms": "-1"})
    broker.produce(topic, [f"click-{number}" for number in range(10)])
    weekly = broker.group("weekly-job")
    assert [0, 1, 2, 3, 4] == run_weekly_job(broker, topic, 5)

    own.advance(days=6)
    assert {(topic, 0): 5} == broker.committed(weekly)
    own.advance(days=2)
    wait_until(lambda: {} == broker.committed(weekly), "the offset of the weekly job has expired")

    assert [0, 1, 2] == run_weekly_job(broker, topic, 3, auto_offset_reset="earliest")

    own.advance(days=8)
    wait_until(lambda: {} == broker.committed(weekly), "the offset of the weekly job has expired")
    consumer = broker.consumer(weekly, auto_offset_reset="latest")
    consumer.subscribe([topic])
    assert 10 <= first_offset_while_producing(broker, consumer, topic)


def test_a_weekly_job_keeps_its_committed_offset_with_a_longer_retention_of_offsets(
    start_own: Callable[..., RestartableBroker],
) -> None:
    own = start_own({"offsets.retention.minutes": str(30 * 24 * 60)})
    broker = own.clients
    topic = broker.create_topic("clicks", config={"retention.ms": "-1"})
    broker.produce(topic, [f"click-{number}" for number in range(10)])
    monthly = broker.group("monthly-job")
    broker.commit(monthly, {(topic, 0): 7})
    own.advance(days=25)
    assert [0, 1, 2, 3, 4] == run_weekly_job(broker, topic, 5)

    own.advance(days=8)
    wait_until(lambda: {} == broker.committed(monthly), "an offset that is 33 days old has expired")
    assert [5, 6] == run_weekly_job(broker, topic, 2)


def test_offsets_never_change_through_retention_deletion_and_restart(
    start_own: Callable[..., RestartableBroker],
) -> None:
    own = start_own()
    broker = own.clients
    now_ms = time.time_ns() // 1_000_000
    topic = clicks_of_which_200_have_expired(broker, now_ms)
    group = broker.group("readers")
    broker.commit(group, {(topic, 0): 600})

    def check(broker: BrokerUnderTest, start: int) -> None:
        assert (start, 1000) == (broker.start_offset(topic), broker.end_offset(topic))
        consumer = broker.consumer(group)
        consumer.assign(at((topic, 0, start)))
        expected = [(number, f"click-{number}") for number in range(start, 1000)]
        messages = read(consumer, len(expected))
        assert expected == list(zip(offsets_of(messages), values_of(messages), strict=True))
        assert {(topic, 0): 600} == broker.committed(group)

    check(broker, 200)
    broker.delete_records(topic, 350)
    check(broker, 350)
    own.stop()
    broker = own.start()
    check(broker, 350)
    assert [1000] == broker.produce(topic, ["click-1000"])
