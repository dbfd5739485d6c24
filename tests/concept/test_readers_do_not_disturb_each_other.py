"""Many groups read one log, each at its own position; reading removes nothing and nothing is pushed."""

from collections.abc import Iterable

from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read, values_of


def clicks_topic(broker: BrokerUnderTest, count: int) -> str:
    topic = broker.create_topic("clicks")
    assert count == len(broker.produce(topic, clicks(range(count))))
    return topic


def clicks(numbers: Iterable[int]) -> list[str]:
    return [f"click-{number}" for number in numbers]


def test_billing_at_1000_fraud_at_850_and_ml_at_0_read_one_log_of_1000_clicks(broker: BrokerUnderTest) -> None:
    topic = clicks_topic(broker, 1000)
    read_by = {"billing": 1000, "fraud": 850, "ml": 0}

    for name, count in read_by.items():
        consumer = broker.consumer(broker.group(name))
        consumer.subscribe([topic])
        assert clicks(range(count)) == values_of(read(consumer, count))
        consumer.commit(offsets=at((topic, 0, count)), asynchronous=False)

    for name, count in read_by.items():
        assert {(topic, 0): count} == broker.committed(broker.group(name))
    assert (0, 1000) == (broker.start_offset(topic), broker.end_offset(topic))


def test_reading_removes_nothing(broker: BrokerUnderTest) -> None:
    topic = clicks_topic(broker, 100)
    for _ in range(3):
        consumer = broker.consumer()
        consumer.assign(at((topic, 0, 0)))
        assert list(range(100)) == offsets_of(read(consumer, 100))
    assert (0, 100) == (broker.start_offset(topic), broker.end_offset(topic))


def test_one_groups_commit_moves_no_other_group(broker: BrokerUnderTest) -> None:
    topic = clicks_topic(broker, 100)
    billing, fraud = broker.group("billing"), broker.group("fraud")
    broker.commit(billing, {(topic, 0): 90})
    broker.commit(fraud, {(topic, 0): 10})
    broker.commit(billing, {(topic, 0): 20})
    assert {(topic, 0): 20} == broker.committed(billing)
    assert {(topic, 0): 10} == broker.committed(fraud)


def test_a_consumer_that_does_not_poll_gets_nothing_and_stands_where_it_was(broker: BrokerUnderTest) -> None:
    topic = clicks_topic(broker, 10)
    consumer = broker.consumer()
    consumer.assign(at((topic, 0, 0)))
    assert [0, 1, 2] == offsets_of(read(consumer, 3))

    broker.produce(topic, clicks(range(10, 20)))  # nobody polls while these come in

    assert 3 == consumer.position(at((topic, 0)))[0].offset
    assert list(range(3, 20)) == offsets_of(read(consumer, 17))


def test_a_paused_consumer_gets_nothing_and_goes_on_where_it_was(broker: BrokerUnderTest) -> None:
    topic = clicks_topic(broker, 10)
    consumer = broker.consumer()
    consumer.assign(at((topic, 0, 0)))
    assert [0, 1, 2] == offsets_of(read(consumer, 3))

    consumer.pause(at((topic, 0)))
    broker.produce(topic, clicks(range(10, 20)))
    assert all(consumer.poll(0.02) is None for _ in range(10))
    assert 3 == consumer.position(at((topic, 0)))[0].offset

    consumer.resume(at((topic, 0)))
    assert list(range(3, 20)) == offsets_of(read(consumer, 17))
