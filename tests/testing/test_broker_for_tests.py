"""The broker for users' tests: a real one, with faults and a clock, alone and under pytest."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from logmark.errors import ErrorCode
from logmark.testing import Broker

pytest_plugins = ["pytester"]


def send(broker: Broker, topic: str, *values: str, **settings: object) -> list[int]:
    """Produces and returns the offsets that the broker told."""
    told: list[int] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        if error is not None:
            raise KafkaException(error)
        told.append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    producer.flush(60)
    return told


def read(broker: Broker, topic: str, count: int) -> list[str]:
    """The first values of partition 0."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value().decode() for message in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


@pytest.mark.parametrize("in_subprocess", [False, True], ids=["in process", "in a process of its own"])
def test_a_broker_keeps_port_and_records_over_a_restart(in_subprocess: bool) -> None:
    with Broker(subprocess=in_subprocess) as broker:
        broker.create_topic("t")
        where = broker.bootstrap_servers
        assert [0, 1] == send(broker, "t", "a", "b")

        broker.restart()

        assert where == broker.bootstrap_servers
        assert [2] == send(broker, "t", "c")
        assert ["a", "b", "c"] == read(broker, "t", 3)


def test_a_killed_broker_has_what_it_acknowledged() -> None:
    with Broker(subprocess=True, durability="sync") as broker:
        broker.create_topic("t")
        send(broker, "t", "a", "b")

        broker.kill()
        broker.start()

        assert ["a", "b"] == read(broker, "t", 2)


def test_only_a_process_can_be_killed() -> None:
    with Broker() as broker, pytest.raises(ValueError, match="subprocess=True"):
        broker.kill()


def test_the_next_answers_of_an_api_can_be_made_to_fail(logmark_broker: Broker) -> None:
    logmark_broker.create_topic("t")
    logmark_broker.fail_next("Produce", ErrorCode.KAFKA_STORAGE_ERROR, times=2)

    told = send(logmark_broker, "t", "a", retries=5, **{"retry.backoff.ms": 1})

    assert [0] == told, "a client that retries gets through after the planned failures"


def test_a_planned_failure_names_an_api_that_exists(logmark_broker: Broker) -> None:
    with pytest.raises(ValueError, match="Produce"):
        logmark_broker.fail_next("Prodcue", "KAFKA_STORAGE_ERROR")


def test_turning_the_clock_expires_records(logmark_broker: Broker) -> None:
    logmark_broker.create_topic("t", config={"retention.ms": "3600000"})
    send(logmark_broker, "t", "old")

    logmark_broker.advance(seconds=7200)

    consumer = Consumer({"bootstrap.servers": logmark_broker.bootstrap_servers, "group.id": "g"})
    assert (1, 1) == consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
    consumer.close()


def test_the_plugin_gives_fixtures_to_users_and_runs_in_parallel(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        textwrap.dedent(
            """
            import pytest
            from confluent_kafka.admin import AdminClient

            @pytest.mark.parametrize("turn", range(4))
            def test_own(logmark_broker, turn):
                logmark_broker.create_topic("only-mine")
                admin = AdminClient({"bootstrap.servers": logmark_broker.bootstrap_servers})
                assert {"only-mine"} == set(admin.list_topics(timeout=60).topics)

            def test_shared(logmark_broker_session):
                assert logmark_broker_session.bootstrap_servers.startswith("127.0.0.1:")
            """
        )
    )

    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=5)


def test_the_brokers_of_the_plugin_take_the_settings_of_a_project(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        textwrap.dedent(
            """
            import pytest
            from confluent_kafka.admin import AdminClient, NewTopic

            def partitions(broker):
                admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
                admin.create_topics([NewTopic("t", num_partitions=-1, replication_factor=-1)])["t"].result(60)
                return len(admin.list_topics(timeout=60).topics["t"].partitions)

            @pytest.fixture
            def logmark_broker_config():
                return {"num.partitions": "3"}

            @pytest.fixture(scope="session")
            def logmark_broker_session_config():
                return {"num.partitions": "4"}

            def test_configured(logmark_broker):
                assert 3 == partitions(logmark_broker)

            def test_configured_for_the_session(logmark_broker_session):
                assert 4 == partitions(logmark_broker_session)

            def test_made(logmark_broker_factory):
                one, two = logmark_broker_factory(), logmark_broker_factory({"num.partitions": "5"}, durability="sync")
                assert [1, 5] == [partitions(one), partitions(two)]
            """
        )
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=3)


def test_the_plugin_imports_nothing_before_it_is_used() -> None:
    code = "import sys, logmark.testing.plugin; print([name for name in sys.modules if name.startswith('logmark.')])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "['logmark.testing', 'logmark.testing.plugin']" == loaded.strip()


def test_a_broker_of_its_own_removes_its_directory() -> None:
    with Broker() as broker:
        directory = Path(broker.data_dir)
        assert directory.is_dir()

    assert not directory.exists()
