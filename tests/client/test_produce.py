"""What the client writes itself: a batch at a time."""

import pytest

from logmark.client.client import Client
from logmark.client.errors import ReadOnly
from logmark.names import TopicPartition
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest


def test_a_batch_gets_the_next_offset_of_its_partition(broker: BrokerUnderTest) -> None:
    partition = TopicPartition(broker.create_topic("orders", config={"retention.ms": "-1"}), 0)
    with Client(broker.bootstrap_servers) as client:
        first = client.produce(partition, batches.build([(b"k", b"1"), (b"k", b"2")], timestamp_ms=1000))
        second = client.produce(partition, batches.build([(b"k", b"3")], timestamp_ms=1000))

    assert (0, 2) == (first, second)


def test_a_batch_with_a_producer_that_is_sent_again_is_written_once(broker: BrokerUnderTest) -> None:
    partition = TopicPartition(broker.create_topic("orders", config={"retention.ms": "-1"}), 0)
    with Client(broker.bootstrap_servers) as client:
        producer_id, epoch = client.init_producer_id()
        batch = batches.build(
            [(b"k", b"1")], timestamp_ms=1000, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
        )
        offsets = [client.produce(partition, bytearray(batch)) for _ in range(2)]

        assert ([0, 0], 1) == (offsets, client.latest([partition])[partition])


def test_a_client_that_may_only_look_changes_nothing(broker: BrokerUnderTest) -> None:
    partition = TopicPartition(broker.create_topic("orders", config={"retention.ms": "-1"}), 0)
    group = broker.group("billing")
    broker.commit(group, {(partition.topic, 0): 0})
    with Client(broker.bootstrap_servers, read_only=True) as client:
        for change in (
            lambda: client.produce(partition, batches.build([(b"k", b"1")], timestamp_ms=1000)),
            client.init_producer_id,
            lambda: client.commit(group, {partition: 0}),
            lambda: client.delete_offsets(group, [partition]),
            lambda: client.delete_groups([group]),
            lambda: client.create_topic("other"),
            lambda: client.delete_topics([partition.topic]),
            lambda: client.create_partitions({partition.topic: 2}),
            lambda: client.alter_configs(partition.topic, {"retention.ms": "1"}),
            lambda: client.delete_records({partition: 0}),
        ):
            with pytest.raises(ReadOnly, match="Nothing was changed"):
                change()

        assert [partition] == client.metadata([partition.topic]).partitions(partition.topic)
        assert [partition] == list(client.committed(group))
