"""The tools see the records that a reader sees: without markers, and without what was aborted when asked so."""

from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.records import first_record, read_records
from logmark.wire import batches
from tests.harness.brokers import BrokerUnderTest


def test_a_range_is_read_in_order_across_batches_and_codecs(broker: BrokerUnderTest) -> None:
    partition = TopicPartition(broker.create_topic("orders", config={"retention.ms": "-1"}), 0)
    with Client(broker.bootstrap_servers) as client:
        for codec in range(5):
            records, headers = [(b"k", b"a"), (None, None)], [[("n", b"%d" % codec)], []]
            client.produce(partition, batches.build(records, timestamp_ms=1000 + codec, codec=codec, headers=headers))
        found = list(read_records(client, partition, 3, 8))

        assert [3, 4, 5, 6, 7] == [record.offset for record in found]
        assert (1002, b"k", b"a", [(b"n", b"2")]) == (
            found[1].timestamp_ms, found[1].key, found[1].value, list(found[1].headers)
        )  # fmt: skip
        assert (7, 1003) == (found[-1].offset, found[-1].timestamp_ms)


def test_the_first_record_at_an_offset_is_found_or_there_is_none(broker: BrokerUnderTest) -> None:
    partition = TopicPartition(broker.create_topic("orders", config={"retention.ms": "-1"}), 0)
    with Client(broker.bootstrap_servers) as client:
        client.produce(partition, batches.build([(b"k", b"a"), (b"k", b"b")], timestamp_ms=[5, 6]))
        one, none = first_record(client, partition, 1), first_record(client, partition, 2)

    assert (1, 6) == (one.offset, one.timestamp_ms) if one else None
    assert none is None
