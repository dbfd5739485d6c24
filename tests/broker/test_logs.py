"""Topics as the broker keeps them: made in one write, kept over a crash, gone with their folders."""

import errno
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from logmark.broker.api import find_coordinator, incremental_alter_configs
from logmark.disk.file_system import RealFileSystem
from logmark.errors import ErrorCode
from logmark.testing import Broker, FaultyFileSystem
from tests.coordination.wire import Wire
from tests.harness.node import wait_until


def send(broker: Broker, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value)
    assert 0 == producer.flush(60)


def test_a_topic_that_a_full_disk_refused_can_be_made_once_there_is_space() -> None:
    files = FaultyFileSystem(RealFileSystem(sync=True))
    with Broker(files=files, durability="sync") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        files.fail_writes("logmark.catalog", errno.ENOSPC)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("t", 3, 1)])["t"].result(60)

        files.heal()

        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(60)
        send(broker, "t", "now it fits")


def test_groups_work_once_a_full_disk_has_space_again() -> None:
    files = FaultyFileSystem(RealFileSystem(sync=True))
    with Broker(files=files, durability="sync") as broker:
        broker.create_topic("t")
        send(broker, "t", "v")
        files.fail_writes("logmark.catalog", errno.ENOSPC)
        # librdkafka looks for the coordinator of a commit for as long as a session lasts.
        patience = {"session.timeout.ms": 500, "heartbeat.interval.ms": 100}
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", **patience})
        with pytest.raises(KafkaException):
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)

        files.heal()

        # Half a second is little for the fifty partitions of the offsets on a busy machine.
        wait_until(lambda: is_committed(consumer, TopicPartition("t", 0, 1)), "a commit is taken")
        consumer.close()


def is_committed(consumer: Consumer, partition: TopicPartition) -> bool:
    """Whether a commit was taken."""
    try:
        consumer.commit(offsets=[partition], asynchronous=False)
    except KafkaException as failure:
        assert failure.args[0].code() == KafkaError._WAIT_COORD, failure
        return False
    return True


def test_deleted_records_stay_deleted_after_a_kill() -> None:
    with Broker(subprocess=True, durability="sync") as broker:
        broker.create_topic("t")
        for number in range(5):
            send(broker, "t", str(number))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_records([TopicPartition("t", 0, 3)])[TopicPartition("t", 0)].result(60)

        broker.kill()
        broker.start()

        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert (3, 5) == consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
        consumer.close()


def test_records_whose_deletion_the_disk_refused_stay() -> None:
    files = FaultyFileSystem(RealFileSystem(sync=True))
    with Broker(files=files, durability="sync") as broker:
        broker.create_topic("t")
        for number in range(5):
            send(broker, "t", str(number))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        files.fail_writes("log-starts", errno.EPERM)
        with pytest.raises(KafkaException):
            admin.delete_records([TopicPartition("t", 0, 3)])[TopicPartition("t", 0)].result(60)
        files.heal()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert (0, 5) == consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
        consumer.close()


def test_topics_with_and_without_records_are_there_again_after_a_kill() -> None:
    with Broker(subprocess=True, durability="sync") as broker:
        broker.create_topic("empty", 3)
        broker.create_topic("full", 2, {"retention.ms": "-1"})
        send(broker, "full", "v")

        broker.kill()
        broker.start()

        topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=60).topics
        assert {"empty": 3, "full": 2} == {name: len(topic.partitions) for name, topic in topics.items()}


def test_a_deleted_topics_folders_are_out_of_use_at_once_and_a_new_one_begins_at_0() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        send(broker, "t", "old")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["t"])["t"].result(60)
        assert not (Path(broker.data_dir) / "t-0").exists()

        broker.create_topic("t")
        send(broker, "t", "new")

        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert (0, 1) == consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
        consumer.close()


@pytest.mark.parametrize("change", ["delete", "compact,delete", None])
def test_nobody_makes_retention_delete_committed_offsets(change: str | None) -> None:
    with Broker() as broker:
        wire = Wire(broker)
        wire.ask(find_coordinator, 2, key="group")
        schema = incremental_alter_configs.schema
        config = schema.RequestConfig(name="cleanup.policy", config_operation=0 if change else 1, value=change)
        resource = schema.RequestResource(resource_type=2, resource_name="__consumer_offsets", configs=[config])

        (answer,) = wire.ask(incremental_alter_configs, 1, resources=[resource], validate_only=False).responses

        assert ErrorCode.INVALID_CONFIG == answer.error_code
        assert "committed offsets" in answer.error_message
        wire.close()
