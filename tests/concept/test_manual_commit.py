"""A commit by hand says what is done; what was not committed is read again after a crash."""

import pytest

from tests.harness.brokers import BrokerUnderTest
from tests.harness.worker import Received, Worker


@pytest.fixture
def messages(broker: BrokerUnderTest) -> str:
    """Sixty messages, of which 0 to 49 were processed before."""
    topic = broker.create_topic("messages")
    broker.produce(topic, [f"msg {number}" for number in range(60)])
    broker.commit(broker.group("readers"), {(topic, 0): 50})
    return topic


def worker_at_50(broker: BrokerUnderTest, topic: str) -> Worker:
    """A worker that has been handed 50, 51 and 52."""
    worker = broker.worker(broker.group("readers"), topic)
    assert [Received(0, number, f"msg {number}") for number in (50, 51, 52)] == worker.read(3)
    return worker


def test_50_to_52_are_committed_as_53_and_never_read_again(broker: BrokerUnderTest, messages: str) -> None:
    worker = worker_at_50(broker, messages)
    worker.commit({0: 53})
    assert {(messages, 0): 53} == broker.committed(broker.group("readers"))
    worker.crash()

    assert 53 == broker.surviving_worker(broker.group("readers"), messages).read(1)[0].offset


def test_a_crash_before_the_commit_reads_50_to_52_again(broker: BrokerUnderTest, messages: str) -> None:
    worker_at_50(broker, messages).crash()

    again = broker.surviving_worker(broker.group("readers"), messages).read(3)
    assert [50, 51, 52] == [message.offset for message in again]


def test_a_crash_in_the_middle_of_51_reads_50_again_though_it_was_done(broker: BrokerUnderTest, messages: str) -> None:
    worker = broker.worker(broker.group("readers"), messages)
    done = worker.read(1)
    in_work = worker.read(1)
    worker.crash()

    again = broker.surviving_worker(broker.group("readers"), messages).read(2)
    assert [*done, *in_work] == again
    assert [50, 51] == [message.offset for message in again]


def test_a_crash_in_the_middle_of_51_reads_only_51_again_when_each_message_is_committed(
    broker: BrokerUnderTest, messages: str
) -> None:
    worker = broker.worker(broker.group("readers"), messages)
    assert 50 == worker.read(1)[0].offset
    worker.commit({0: 51})
    assert 51 == worker.read(1)[0].offset
    worker.crash()

    assert 51 == broker.surviving_worker(broker.group("readers"), messages).read(1)[0].offset
