"""An offset numbers a record within its partition; the broker gives it out and nobody else can."""

from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest, at, offsets_of, read, values_of

INVALID_RECORD = 87


def test_offset_5_of_partition_0_and_offset_5_of_partition_1_are_two_messages(broker: BrokerUnderTest) -> None:
    orders = broker.create_topic("orders", partitions=2)
    for partition in (0, 1):
        broker.produce(orders, [f"p{partition}-m{number}" for number in range(8)], partition=partition)

    seen = []
    for partition in (0, 1):
        consumer = broker.consumer()
        consumer.assign(at((orders, partition, 5)))
        seen += read(consumer, 1)

    assert [5, 5] == offsets_of(seen)
    assert ["p0-m5", "p1-m5"] == values_of(seen)


def test_orders_1001_to_1003_are_at_0_to_2_and_order_1004_gets_3(broker: BrokerUnderTest) -> None:
    orders = broker.create_topic("orders")
    assert [0, 1, 2] == broker.produce(orders, ["ORD-1001", "ORD-1002", "ORD-1003"])
    assert 3 == broker.end_offset(orders)
    assert [3] == broker.produce(orders, ["ORD-1004"])

    consumer = broker.consumer()
    consumer.assign(at((orders, 0, 0)))
    messages = read(consumer, 4)
    assert [0, 1, 2, 3] == offsets_of(messages)
    assert ["ORD-1001", "ORD-1002", "ORD-1003", "ORD-1004"] == values_of(messages)


def test_two_producers_get_offsets_that_the_broker_gives_out_without_a_gap(broker: BrokerUnderTest) -> None:
    orders = broker.create_topic("orders")
    first, second = broker.producer(), broker.producer()
    told: list[int] = []
    for number in range(50):
        for producer in (first, second):
            producer.produce(
                orders, f"{number}", partition=0, on_delivery=lambda _, message: told.append(message.offset())
            )
            producer.poll(0)
    assert 0 == first.flush(60) + second.flush(60)
    assert list(range(100)) == sorted(told)


def test_a_producer_cannot_choose_the_offset(broker: BrokerUnderTest) -> None:
    orders = broker.create_topic("orders")

    refused = wire.produce(broker.bootstrap_servers, orders, wire.batch([b"ORD-1001"], base_offset=1000))
    assert INVALID_RECORD == refused.error_code
    assert -1 == refused.base_offset
    assert 0 == broker.end_offset(orders)

    accepted = wire.produce(broker.bootstrap_servers, orders, wire.batch([b"ORD-1001"]))
    assert (0, 0, None) == accepted
    assert 1 == broker.end_offset(orders)
