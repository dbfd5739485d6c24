"""Four unmodified client libraries write to our broker and read what each other wrote."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from tests.compat.clients import CLIENTS, CODECS, Confluent, Record
from tests.harness import wire
from tests.harness.brokers import BrokerUnderTest, at, read

MESSAGE_TOO_LARGE = 10
MESSAGE_BYTES_MAX = 1_048_588  # Kafka's default: a MiB and the twelve bytes before a batch
RECORD_BYTES = 61 + 11  # a batch header and the fields around one value of this size


def records_of(client: str, codec: str) -> list[Record]:
    """Keys, no keys, headers, a tombstone, text that compresses and text beyond ASCII."""
    return [
        Record(f"{client}-{codec}".encode(), b"ORD-1001"),
        Record(None, b"no key"),
        Record(b"tombstone", None),
        Record(b"headers", b"with headers", (("trace", b"7f3a"), ("trace", b"7f3b"))),
        Record("schlüssel".encode(), "größe".encode()),
        *(Record(b"user-%d" % number, b"click " * 40 + b"%d" % number) for number in range(30)),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_each_client_writes_with_a_codec_every_client_reads(our_broker: BrokerUnderTest, codec: str) -> None:
    topic = our_broker.create_topic("clicks")
    written: list[Record] = []
    for name, client in CLIENTS.items():
        records = records_of(name, codec)
        if name == "kcat":  # it writes the records of one call with the same headers, so those come last
            records.sort(key=lambda record: bool(record.headers))
        told = client.write(our_broker, topic, records, codec)
        assert list(range(len(written), len(written) + len(records))) == told
        written += records

    for name, client in CLIENTS.items():
        assert written == client.read(our_broker, topic, len(written)), f"{name} reads by assign"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_subscribes_reads_all_and_commits_its_offset(our_broker: BrokerUnderTest, name: str) -> None:
    topic = our_broker.create_topic("clicks")
    written = records_of(name, "lz4")
    Confluent.write(our_broker, topic, written, "lz4")
    group = our_broker.group("readers")

    assert written == CLIENTS[name].read(our_broker, topic, len(written), group=group)
    assert {(topic, 0): len(written)} == our_broker.committed(group)


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "aiokafka"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_a_producer_with_any_acks_reaches_the_log(our_broker: BrokerUnderTest, name: str, acks: int | str) -> None:
    topic = our_broker.create_topic("clicks")
    written = records_of(name, "none")
    extra = {"enable_idempotence": False} if name == "kafka-python" else {}
    CLIENTS[name].write(our_broker, topic, written, "none", acks=acks, **extra)
    assert written == Confluent.read(our_broker, topic, len(written))


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_an_idempotent_producer_writes_each_record_once(our_broker: BrokerUnderTest, name: str) -> None:
    topic = our_broker.create_topic("clicks")
    written = records_of(name, "zstd") * 10
    told = CLIENTS[name].write(our_broker, topic, written, "zstd", enable_idempotence=True)
    assert list(range(len(written))) == told
    assert written == Confluent.read(our_broker, topic, len(written))


def test_the_largest_message_of_the_default_limits_is_taken_and_one_byte_more_refused(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic("large")
    largest = b"x" * (MESSAGE_BYTES_MAX - RECORD_BYTES)

    assert MESSAGE_BYTES_MAX == len(wire.batch([largest]))
    assert (0, 0, None) == wire.produce(broker.bootstrap_servers, topic, wire.batch([largest]))
    refused = wire.produce(broker.bootstrap_servers, topic, wire.batch([largest + b"x"]))
    assert (MESSAGE_TOO_LARGE, -1) == refused[:2]

    raised = 2 * MESSAGE_BYTES_MAX
    assert [1] == broker.produce(topic, [largest], message_max_bytes=raised)
    with pytest.raises(AssertionError) as told:
        broker.produce(topic, [largest + b"x"], message_max_bytes=raised)
    assert f"KafkaError{{code=MSG_SIZE_TOO_LARGE,val={MESSAGE_TOO_LARGE}" in str(told.value)

    python = broker.closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_request_size=raised))
    assert 2 == python.send(topic, largest, partition=0).get(60).offset
    with pytest.raises(MessageSizeTooLargeError):
        python.send(topic, largest + b"x", partition=0).get(60)

    assert 3 == broker.end_offset(topic)
    for name in ("confluent-kafka", "kafka-python", "aiokafka"):
        assert [Record(None, largest)] * 3 == CLIENTS[name].read(broker, topic, 3), f"{name} reads it by default"


def test_a_message_of_10_mib_passes_with_raised_limits(our_broker: BrokerUnderTest) -> None:
    size = 10 * 1024 * 1024
    topic = our_broker.create_topic("huge", config={"max.message.bytes": str(size + 1000)})
    value = bytes(range(256)) * (size // 256)

    assert [0] == our_broker.produce(topic, [value], message_max_bytes=size + 1000)
    python = our_broker.closing(
        KafkaProducer(bootstrap_servers=our_broker.bootstrap_servers, max_request_size=2 * size)
    )
    assert 1 == python.send(topic, value, partition=0).get(60).offset
    for name in ("confluent-kafka", "kafka-python", "aiokafka"):
        assert [Record(None, value)] * 2 == CLIENTS[name].read(our_broker, topic, 2), f"{name} reads it by default"


def test_a_topic_that_is_not_there_is_an_error_to_every_client(our_broker: BrokerUnderTest) -> None:
    with pytest.raises(AssertionError, match=r"UNKNOWN_TOPIC_OR_PART|_UNKNOWN_TOPIC|_UNKNOWN_PARTITION"):
        our_broker.produce(our_broker.unique("nowhere"), ["x"], topic_metadata_propagation_max_ms=10)
    consumer = our_broker.consumer()
    consumer.subscribe([our_broker.unique("nowhere")])
    with pytest.raises(KafkaException) as told:
        read(consumer, 1)
    assert KafkaError.UNKNOWN_TOPIC_OR_PART == told.value.args[0].code()


def test_a_reader_at_the_end_gets_the_next_record_at_once(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("clicks")
    # A fetch may wait for ten minutes: only the new record can end it within the deadline.
    consumer = our_broker.consumer(fetch_wait_max_ms=300_000, socket_timeout_ms=300_000)
    consumer.assign(at((topic, 0, 0)))
    assert consumer.poll(0.2) is None
    our_broker.produce(topic, ["click-0"])
    assert [b"click-0"] == [message.value() for message in read(consumer, 1)]
