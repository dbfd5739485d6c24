"""Transactions and the new group protocol are refused in words, and no client waits for what does not come."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.tools import CONSOLE_CONSUMER, PRODUCER_PERFORMANCE, VERIFIABLE_CONSUMER, run_tool

SENTENCE = "Transactions are not served here: produce without transactional.id"


def test_librdkafkas_transactional_producer_gets_an_error(our_broker: BrokerUnderTest) -> None:
    producer = our_broker.producer(transactional_id="billing")
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(30)
    error = refused.value.args[0]
    assert error.fatal()
    assert SENTENCE in error.str()


def test_kafka_pythons_transactional_producer_gets_an_error(our_broker: BrokerUnderTest) -> None:
    producer = our_broker.closing(
        KafkaProducer(bootstrap_servers=our_broker.bootstrap_servers, transactional_id="billing")
    )
    with pytest.raises(KafkaPythonError, match="Could not find a coordinator with type 1"):
        producer.init_transactions()


def test_aiokafkas_transactional_producer_gets_an_error(our_broker: BrokerUnderTest) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=our_broker.bootstrap_servers, transactional_id="billing")
        try:
            await asyncio.wait_for(producer.start(), 30)
        finally:
            await producer.stop()

    with pytest.raises(AiokafkaError, match="ClusterAuthorizationFailed"):
        asyncio.run(start())


@pytest.mark.kafka
def test_javas_transactional_producer_gets_an_error(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    run = run_tool(
        *(PRODUCER_PERFORMANCE, "--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1"),
        *("--transactional-id", "billing", "--command-property", f"bootstrap.servers={our_broker.bootstrap_servers}"),
    )
    assert 1 == run.exit_code
    assert SENTENCE in run.stderr
    assert 0 == our_broker.end_offset(topic)


def test_librdkafkas_new_group_protocol_gets_an_error(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    our_broker.produce(topic, ["ORD-1001"])
    consumer = our_broker.consumer(our_broker.group("modern"), group_protocol="consumer")
    consumer.subscribe([topic])
    with pytest.raises(KafkaException) as refused:
        read(consumer, 1)
    assert KafkaError._FATAL == refused.value.args[0].code()
    assert "API version not supported" in refused.value.args[0].str()


@pytest.mark.kafka
def test_javas_new_group_protocol_ends_at_once(our_broker: BrokerUnderTest) -> None:
    topic = our_broker.create_topic("orders")
    our_broker.produce(topic, ["ORD-1001"])
    named = ("--topic", topic, "--max-messages", "1")
    # Both tools give the reason to their log; what shows without one is that they end without a message.
    run = run_tool(
        *(CONSOLE_CONSUMER, *named, "--from-beginning", "--command-property", "group.protocol=consumer"),
        broker=our_broker,
    )
    assert "Processed a total of 0 messages" in run.stderr
    run = run_tool(
        *(VERIFIABLE_CONSUMER, *named, "--group-id", our_broker.group("modern"), "--group-protocol", "consumer"),
        broker=our_broker,
    )
    assert "shutdown_complete" in run.stdout
    assert "records_consumed" not in run.stdout
