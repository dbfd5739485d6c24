"""Each partition of a topic has one worker per group; the committed offset belongs to the group, not to the worker."""

import pytest

from tests.harness.brokers import BrokerUnderTest
from tests.harness.node import wait_until
from tests.harness.tools import run_logmark
from tests.harness.worker import Received, Worker


@pytest.fixture
def orders(broker: BrokerUnderTest) -> str:
    """Five orders in partition 0, from ORD-1001 on, and twelve in partition 1."""
    topic = broker.create_topic("orders", partitions=2)
    broker.produce(topic, [f"ORD-{1001 + number}" for number in range(5)], partition=0)
    broker.produce(topic, [f"ORD-{2001 + number}" for number in range(12)], partition=1)
    return topic


def wait_until_each_has_one_partition(worker_1: Worker, worker_2: Worker) -> None:
    """Poll both until the group has settled: one that lost its session joins again only if it polls."""
    wait_until(
        lambda: ([0], [1]) == (worker_1.assignment(), worker_2.assignment()), "each worker has one partition"
    )


def test_a_worker_polls_the_next_order_and_its_commit_moves_the_groups_committed_offset(
    broker: BrokerUnderTest, orders: str
) -> None:
    email, analytics = broker.group("email-service"), broker.group("analytics-service")
    broker.commit(email, {(orders, 0): 2, (orders, 1): 1})  # processed up to 1 and up to 0
    broker.commit(analytics, {(orders, 0): 2, (orders, 1): 10})

    worker_1 = broker.surviving_worker(email, orders, client_id="worker-1")
    worker_2 = broker.surviving_worker(email, orders, client_id="worker-2")
    wait_until_each_has_one_partition(worker_1, worker_2)

    assert [Received(0, 2, "ORD-1003")] == worker_1.read(1)
    assert {(orders, 0): 2, (orders, 1): 1} == broker.committed(email)
    worker_1.commit({0: 3})

    # Kafka stores the second of the two notations; our command line shows both.
    assert {(orders, 0): 3, (orders, 1): 1} == broker.committed(email)
    processed_up_to_and_next = [
        (row["last_processed"], row["committed"]) for row in run_logmark("lag", email, broker=broker)
    ]
    assert [(2, 3), (0, 1)] == processed_up_to_and_next
    assert {(orders, 0): 2, (orders, 1): 10} == broker.committed(analytics)


def test_analytics_service_stands_at_2_of_5_and_10_of_12_whatever_email_service_does(
    broker: BrokerUnderTest, orders: str
) -> None:
    email, analytics = broker.group("email-service"), broker.group("analytics-service")
    broker.commit(analytics, {(orders, 0): 2, (orders, 1): 10})
    worker = broker.surviving_worker(email, orders)
    assert 17 == len(worker.read(17))
    worker.commit({0: 5, 1: 12})

    assert {(orders, 0): 2, (orders, 1): 10} == broker.committed(analytics)
    assert (5, 12) == (broker.end_offset(orders, 0), broker.end_offset(orders, 1))


def test_a_worker_dies_and_the_other_re_reads_exactly_what_was_not_committed(
    broker: BrokerUnderTest, orders: str
) -> None:
    email = broker.group("email-service")
    broker.commit(email, {(orders, 0): 5, (orders, 1): 1})
    worker_1 = broker.surviving_worker(email, orders, client_id="worker-1")
    worker_2 = broker.worker(email, orders, client_id="worker-2")
    wait_until_each_has_one_partition(worker_1, worker_2)

    assert [1, 2, 3, 4] == [message.offset for message in worker_2.read(4)]
    worker_2.commit({1: 3})
    worker_2.crash()

    # worker-2 had read 3 and 4 and told nobody: they come again, 1 and 2 do not.
    inherited = worker_1.read(9)
    assert [(1, offset) for offset in range(3, 12)] == [(message.partition, message.offset) for message in inherited]
    assert {(orders, 0): 5, (orders, 1): 3} == broker.committed(email)
