"""The current offset lives in the client, the committed offset in the broker; a crash forgets the first."""

from tests.harness.brokers import BrokerUnderTest, at, read
from tests.harness.worker import Received


def test_current_4_committed_3_and_a_crash_read_message_3_again_and_message_4_for_the_first_time(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic("messages")
    broker.produce(topic, [f"msg {number}" for number in range(6)])
    group = broker.group("readers")

    worker = broker.worker(group, topic)
    assert [0, 1, 2] == [message.offset for message in worker.read(3)]
    worker.commit({0: 3})
    assert [Received(0, 3, "msg 3")] == worker.read(1)
    assert 4 == worker.position(0)
    assert {(topic, 0): 3} == broker.committed(group)
    worker.crash()

    successor = broker.surviving_worker(group, topic)
    assert [Received(0, 3, "msg 3"), Received(0, 4, "msg 4")] == successor.read(2)


def test_the_broker_knows_nothing_of_the_current_offset_until_the_commit(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("messages")
    broker.produce(topic, [f"msg {number}" for number in range(6)])
    group = broker.group("readers")
    consumer = broker.consumer(group)
    consumer.assign(at((topic, 0, 0)))

    for current in (1, 2, 3):
        read(consumer, 1)
        assert current == consumer.position(at((topic, 0)))[0].offset
        assert {} == broker.committed(group)
    consumer.commit(asynchronous=False)
    assert {(topic, 0): 3} == broker.committed(group)


def test_poll_returns_each_message_with_its_own_offset(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("messages")
    broker.produce(topic, [f"before {number}" for number in range(10)])
    assert [10, 11, 12] == broker.produce(topic, ["M1", "M2", "M3"])
    consumer = broker.consumer()
    consumer.assign(at((topic, 0, 10)))

    polled = [(message.partition(), message.offset(), message.value()) for message in read(consumer, 3)]
    assert [(0, 10, b"M1"), (0, 11, b"M2"), (0, 12, b"M3")] == polled
