"""Kafka's own tool and kafka-python read the sizes of partitions and the data directory from our broker."""

import json

import pytest
from kafka import KafkaAdminClient

from tests.harness.brokers import BrokerUnderTest
from tests.harness.gateway import call_tool

LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
RECORD = b"x" * 1000


def topic_with_records(broker: BrokerUnderTest) -> str:
    topic = broker.create_topic("sized", 2)
    producer = broker.producer()
    producer.produce(topic, RECORD, partition=1)
    producer.flush(30)
    return topic


@pytest.mark.kafka
def test_kafkas_log_dirs_command_shows_sizes_and_no_error(our_broker: BrokerUnderTest) -> None:
    topic = topic_with_records(our_broker)

    done = call_tool(LOG_DIRS, "--describe", "--topic-list", topic, broker=our_broker).check()

    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    ((log_dir,),) = [broker["logDirs"] for broker in json.loads(line)["brokers"]]
    sizes = {one["partition"]: one["size"] for one in log_dir["partitions"]}
    assert log_dir["error"] is None
    assert 0 == sizes[f"{topic}-0"]
    assert len(RECORD) < sizes[f"{topic}-1"] < 2 * len(RECORD)


def test_kafka_python_shows_sizes_and_no_error(our_broker: BrokerUnderTest) -> None:
    topic = topic_with_records(our_broker)
    admin = our_broker.closing(KafkaAdminClient(bootstrap_servers=our_broker.bootstrap_servers))

    (broker,) = admin.describe_log_dirs({topic: [0, 1]})

    (log_dir,) = broker["log_dirs"]
    assert 0 == log_dir["error_code"]
    ((name, partitions),) = [(one["name"], one["partitions"]) for one in log_dir["topics"]]
    assert topic == name
    assert [0, 1] == sorted(one["partition_index"] for one in partitions)
