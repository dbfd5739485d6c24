"""Auto-commit moves the group's committed offset at intervals; what a crash costs depends on the client."""

import pytest

from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.worker import Received, Worker

INTERVAL_S = 0.5


@pytest.fixture
def messages(broker: BrokerUnderTest) -> str:
    """A hundred messages that were read long ago and twenty that were not."""
    topic = broker.create_topic("messages")
    broker.produce(topic, [f"msg {number}" for number in range(120)])
    return topic


def auto_committing(broker: BrokerUnderTest, group: str, topic: str, *, interval_s: float, client: str) -> Worker:
    return broker.worker(
        group, topic, client=client, enable_auto_commit=True, auto_commit_interval_ms=round(interval_s * 1000)
    )


def committed_offset(broker: BrokerUnderTest, group: str) -> int:
    (offset,) = broker.committed(group).values()
    return offset


def offsets(received: list[Received]) -> list[int]:
    return [message.offset for message in received]


def resumes_at(broker: BrokerUnderTest, group: str, topic: str) -> int:
    """Where a worker that starts now takes the group up."""
    return broker.surviving_worker(group, topic).read(1)[0].offset


@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka"])
def test_a_crash_after_the_second_interval_resumes_at_111(broker: BrokerUnderTest, messages: str, client: str) -> None:
    group = broker.group("readers")
    broker.commit(group, {(messages, 0): 100})
    worker = auto_committing(broker, group, messages, interval_s=0.1, client=client)
    assert list(range(100, 108)) == offsets(worker.read(8))
    wait_until(lambda: 108 == committed_offset(broker, group), "the first interval has committed 108")
    assert list(range(108, 111)) == offsets(worker.read(3))
    wait_until(lambda: 111 == committed_offset(broker, group), "the second interval has committed 111")
    worker.crash()

    assert 111 == resumes_at(broker, group, messages)


def test_a_crash_before_the_second_interval_resumes_at_108(broker: BrokerUnderTest, messages: str) -> None:
    for attempt in range(5):
        group = broker.group(f"readers-{attempt}")
        broker.commit(group, {(messages, 0): 100})
        interval_s = INTERVAL_S * 2**attempt
        worker = auto_committing(broker, group, messages, interval_s=interval_s, client="confluent-kafka")
        assert list(range(100, 108)) == offsets(worker.read(8))
        wait_until(lambda group=group: 108 == committed_offset(broker, group), "the first interval has committed 108")
        assert list(range(108, 111)) == offsets(worker.read(3))
        worker.crash()
        resumed_at = resumes_at(broker, group, messages)
        assert resumed_at == committed_offset(broker, group)
        if resumed_at != 111:  # else the second interval was over on a busy machine
            assert 108 == resumed_at
            return
    pytest.fail("the machine was too busy to crash a worker within eight seconds")


def test_kafka_python_commits_inside_poll_what_earlier_polls_returned(broker: BrokerUnderTest, messages: str) -> None:
    group = broker.group("readers")
    broker.commit(group, {(messages, 0): 100})
    worker = auto_committing(broker, group, messages, interval_s=0.001, client="kafka-python")
    assert list(range(100, 108)) == offsets(worker.read(8))
    assert 100 == committed_offset(broker, group)  # the interval is long over, but nobody has polled since
    assert list(range(108, 111)) == offsets(worker.read(3))
    wait_until(lambda: 108 == committed_offset(broker, group), "the second poll has committed what the first returned")
    worker.crash()

    assert 108 == resumes_at(broker, group, messages)


@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka"])
def test_a_crash_in_processing_loses_a_message_whose_offset_was_stored_at_hand_over(
    broker: BrokerUnderTest, messages: str, client: str
) -> None:
    group = broker.group("readers")
    broker.commit(group, {(messages, 0): 100})
    worker = auto_committing(broker, group, messages, interval_s=0.05, client=client)
    assert [100] == offsets(worker.read(1))
    # msg 100 is being processed: the client commits it meanwhile as if it were done.
    wait_until(lambda: 101 == committed_offset(broker, group), "101 is committed during the processing of 100")
    worker.crash()

    assert 101 == resumes_at(broker, group, messages)


def test_a_crash_in_processing_loses_nothing_when_offsets_are_stored_by_hand(
    broker: BrokerUnderTest, messages: str
) -> None:
    group = broker.group("readers")
    broker.commit(group, {(messages, 0): 100})
    worker = broker.worker(
        group, messages, enable_auto_commit=True, auto_commit_interval_ms=50, enable_auto_offset_store=False
    )
    assert [100] == offsets(worker.read(1))
    worker.store(0, 101)  # 100 is processed
    assert [101] == offsets(worker.read(1))
    wait_until(lambda: 101 == committed_offset(broker, group), "101 is committed")
    worker.crash()  # in the middle of 101

    assert 101 == resumes_at(broker, group, messages)
