"""A key goes where Java's producer would put it."""

import random

import pytest

from logmark.offsets.partitioner import murmur2, partition_for_key
from tests.harness.brokers import BrokerUnderTest, read


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From Kafka's own tests of its hash, as numbers with a sign.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_the_one_of_kafkas_partitioner(key: bytes, expected: int) -> None:
    assert expected % 2**32 == murmur2(key)


def test_keys_of_any_length_get_the_partition_that_another_producer_gives_them(our_broker: BrokerUnderTest) -> None:
    chance = random.Random(7)
    keys = [chance.randbytes(size) for size in range(1, 40)]
    topic = our_broker.create_topic("orders", partitions=7)
    producer = our_broker.producer(partitioner="murmur2_random")
    for key in keys:
        producer.produce(topic, b"", key=key)
    producer.flush()
    consumer = our_broker.consumer()
    consumer.subscribe([topic])

    placed = {message.key(): message.partition() for message in read(consumer, len(keys))}

    assert placed == {key: partition_for_key(key, 7) for key in keys}
