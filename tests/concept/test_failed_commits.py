"""What clients do when a commit fails: who tries again, and whether an older commit can overtake a newer one."""

import asyncio
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import KafkaError
from kafka import KafkaConsumer
from kafka.errors import CoordinatorLoadInProgressError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.harness.brokers import BrokerUnderTest, at, read
from tests.harness.node import wait_until

LOADING = "COORDINATOR_LOAD_IN_PROGRESS"  # an error that a client may try again after


@pytest.fixture
def messages(failing_broker: BrokerUnderTest) -> str:
    """Sixty messages, of which the group has processed 0 to 49."""
    topic = failing_broker.create_topic("messages")
    failing_broker.produce(topic, [f"msg {number}" for number in range(60)])
    failing_broker.commit(failing_broker.group("readers"), {(topic, 0): 50})
    return topic


@pytest.fixture
def python(failing_broker: BrokerUnderTest, messages: str) -> KafkaConsumer:
    """kafka-python, whose commit() and commit_async() follow Java's commitSync and commitAsync."""
    consumer = KafkaConsumer(
        bootstrap_servers=failing_broker.bootstrap_servers,
        group_id=failing_broker.group("readers"),
        enable_auto_commit=False,
    )
    consumer.assign([KafkaPythonPartition(messages, 0)])
    return failing_broker.closing(consumer)


def offset_map(topic: str, offset: int) -> dict[KafkaPythonPartition, OffsetAndMetadata]:
    return {KafkaPythonPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}


def test_a_commit_that_waits_tries_again_until_it_is_done(
    failing_broker: BrokerUnderTest, messages: str, python: KafkaConsumer
) -> None:
    failing_broker.control.fail_next("OffsetCommit", LOADING, times=2)
    python.commit(offset_map(messages, 53))
    assert {(messages, 0): 53} == failing_broker.committed(failing_broker.group("readers"))


def test_a_commit_that_does_not_wait_is_not_tried_again(
    failing_broker: BrokerUnderTest, messages: str, python: KafkaConsumer
) -> None:
    failing_broker.control.fail_next("OffsetCommit", LOADING)
    told: list[Any] = []
    python.commit_async(offset_map(messages, 53), callback=lambda _, answer: told.append(answer))
    wait_until(lambda: told or python.poll(timeout_ms=20) is None, "the callback is called")

    assert [CoordinatorLoadInProgressError] == [type(answer) for answer in told]
    assert {(messages, 0): 50} == failing_broker.committed(failing_broker.group("readers"))


def test_an_older_commit_that_failed_never_overtakes_a_newer_one(
    failing_broker: BrokerUnderTest, messages: str, python: KafkaConsumer
) -> None:
    failing_broker.control.fail_next("OffsetCommit", LOADING)
    told: dict[int, Any] = {}
    for offset in (51, 53):
        python.commit_async(
            offset_map(messages, offset), callback=lambda offsets, answer: told.update({_offset(offsets): answer})
        )
    wait_until(lambda: len(told) == 2 or python.poll(timeout_ms=20) is None, "both callbacks are called")

    assert isinstance(told[51], CoordinatorLoadInProgressError)
    assert not isinstance(told[53], Exception)
    assert {(messages, 0): 53} == failing_broker.committed(failing_broker.group("readers"))


def _offset(offsets: dict[KafkaPythonPartition, OffsetAndMetadata]) -> int:
    (only,) = offsets.values()
    return only.offset


def test_commits_that_do_not_wait_are_applied_in_their_order(
    failing_broker: BrokerUnderTest, messages: str, python: KafkaConsumer
) -> None:
    told: list[int] = []
    for offset in range(51, 55):  # as many as kafka-python lets fly at once
        python.commit_async(offset_map(messages, offset), callback=lambda offsets, _: told.append(_offset(offsets)))
    wait_until(lambda: len(told) == 4 or python.poll(timeout_ms=20) is None, "every callback is called")

    assert {(messages, 0): 54} == failing_broker.committed(failing_broker.group("readers"))


def test_aiokafkas_commit_tries_again_until_it_is_done(failing_broker: BrokerUnderTest, messages: str) -> None:
    group = failing_broker.group("readers")
    failing_broker.control.fail_next("OffsetCommit", LOADING)

    async def commit() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=failing_broker.bootstrap_servers, group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([AiokafkaPartition(messages, 0)])
        await consumer.commit({AiokafkaPartition(messages, 0): 53})
        await consumer.stop()

    asyncio.run(commit())
    assert {(messages, 0): 53} == failing_broker.committed(group)


def test_librdkafka_tries_both_kinds_again_so_there_an_older_commit_can_overtake_a_newer_one(
    failing_broker: BrokerUnderTest, messages: str
) -> None:
    group = failing_broker.group("readers")
    told: list[int] = []

    def on_commit(error: KafkaError | None, partitions: list[Any]) -> None:
        assert error is None, error
        told.append(partitions[0].offset)

    for backoff_ms in (100, 200, 400, 800, 1600):
        told.clear()
        backoff = {"retry_backoff_ms": backoff_ms, "retry_backoff_max_ms": backoff_ms}
        consumer = failing_broker.consumer(group, on_commit=on_commit, **backoff)
        consumer.assign(at((messages, 0, 50)))
        read(consumer, 3)
        failing_broker.control.fail_next("OffsetCommit", LOADING)
        consumer.commit(offsets=at((messages, 0, 51)), asynchronous=True)
        consumer.commit(offsets=at((messages, 0, 53)), asynchronous=True)
        poll = partial(consumer.poll, 0.02)
        wait_until(lambda poll=poll: len(told) == 2 or poll() is True, "both callbacks are called")
        if told != [51, 53]:  # else the retry came before a busy machine had sent the second commit
            break

    # The retry of 51 comes after 53 was done: the group stands at 51. A last commit that waits puts it right.
    assert [53, 51] == told
    assert {(messages, 0): 51} == failing_broker.committed(group)

    failing_broker.control.fail_next("OffsetCommit", LOADING)
    consumer.commit(offsets=at((messages, 0, 53)), asynchronous=False)
    assert {(messages, 0): 53} == failing_broker.committed(group)
