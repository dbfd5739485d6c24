"""One look at a whole cluster, on our broker and on Apache Kafka."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from logmark.client import bulk
from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker, UnknownTopic
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.offsets.lag.sample import Sample, Total, matches, take_sample
from logmark.offsets.partitions import inspect_groups
from tests.harness.brokers import BrokerUnderTest, read
from tests.harness.node import wait_until


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def test_a_sample_says_what_each_group_says_of_itself(broker: BrokerUnderTest, client: Client) -> None:
    orders, clicks = broker.create_topic("orders", partitions=3), broker.create_topic("clicks")
    broker.produce(orders, ["x"] * 5)
    broker.produce(clicks, ["x"] * 4)
    broker.delete_records(clicks, 2)
    idle, live = broker.group("idle"), broker.group("live")
    client.commit(idle, {TopicPartition(orders, 0): 2, TopicPartition(clicks, 0): 1})
    consumer = broker.consumer(live)
    consumer.subscribe([orders])
    read(consumer, 5)
    consumer.commit(asynchronous=False)

    sample = take_sample(client, [idle, live])

    assert {one.description.group: list(one.partitions) for one in inspect_groups(client, [idle, live])} == {
        name: list(sample.group_partitions(name)) for name in (idle, live)
    }
    assert ("Empty", 0) == (sample.groups[idle].state, len(sample.groups[idle].members))
    assert ("Stable", 1) == (sample.groups[live].state, len(sample.groups[live].members))
    assert Total(records=5, lost=1, partitions=2) == sample.total(idle)
    assert Total(records=2, lost=1, partitions=1) == sample.total(idle, clicks)
    assert 2 == sample.total(live).uncommitted, "partitions that are assigned and have no commit are shown as such"
    assert client.metadata([]).cluster_id == sample.cluster_id
    assert sample.requests <= 12


@pytest.mark.kafka
def test_a_group_of_the_newer_protocol_is_sampled_with_its_members(apache_kafka: BrokerUnderTest) -> None:
    topic, group = apache_kafka.create_topic("orders", partitions=2), apache_kafka.group("newer")
    apache_kafka.produce(topic, ["x"] * 3)
    consumer = apache_kafka.consumer(group, group_protocol="consumer")
    consumer.subscribe([topic])
    read(consumer, 2)
    consumer.commit(asynchronous=False)
    with Client(apache_kafka.bootstrap_servers) as client:
        wait_until(lambda: len(take_sample(client, [group]).groups[group].owners) == 2, "both are assigned")
        sample = take_sample(client, [group])

    assert ("consumer", "Stable", 1) == (sample.groups[group].type, sample.groups[group].state, sample.total().records)


def test_groups_and_topics_may_be_named_by_patterns(broker: BrokerUnderTest, client: Client) -> None:
    one, other = broker.create_topic("one"), broker.create_topic("other")
    names = [broker.group(name) for name in ("billing-a", "billing-b", "fraud")]
    for name in names:
        client.commit(name, {TopicPartition(one, 0): 0, TopicPartition(other, 0): 0})
    ending = names[0].removeprefix("billing-a")

    sample = take_sample(client, [f"billing-*{ending}"], [f"on?{ending}"])

    assert names[:2] == list(sample.groups)
    assert {TopicPartition(one, 0)} == set(sample.ends)
    assert [] == list(take_sample(client, [f"nothing-*{ending}"]).groups)


def test_a_group_that_is_named_and_not_there_is_dead(broker: BrokerUnderTest, client: Client) -> None:
    group = broker.group("nobody")

    sample = take_sample(client, [group])

    assert sample.groups[group].is_unknown
    assert sample.only([group, "another"], None).groups["another"].is_unknown


def test_commits_are_read_before_starts_and_starts_before_ends(
    broker: BrokerUnderTest, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a group that reads while we look seems a little further behind than it is, and never ahead of the end."""
    topic, group = broker.create_topic("moving"), broker.group("moving")
    broker.produce(topic, ["x"] * 3)
    partition = TopicPartition(topic, 0)
    client.commit(group, {partition: 3})
    seen: list[int] = []
    ask = Client.try_offsets

    def moving(self: Client, wanted: dict[TopicPartition, int], **how: bool) -> object:
        seen.extend(set(wanted.values()))
        # A producer and the group go on meanwhile.
        broker.produce(topic, ["x"])
        self.commit(group, {partition: 4})
        return ask(self, wanted, **how)

    monkeypatch.setattr(Client, "try_offsets", moving)
    sample = take_sample(client, [group])

    assert [-2, -1] == seen
    lag = sample.lag(group, partition)
    assert lag is not None and (3, 2) == (sample.groups[group].committed[partition].offset, lag.records)


def test_one_group_that_cannot_be_read_spoils_no_other(
    broker: BrokerUnderTest, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("orders")
    good, bad = broker.group("good"), broker.group("bad")
    for group in (good, bad):
        client.commit(group, {TopicPartition(topic, 0): 0})
    ask = Client.try_committed_of

    def refusing(self: Client, groups: Sequence[str]) -> object:
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return ask(self, groups) | {bad: RefusedByBroker(code, f"Group {bad}: you are not allowed to use it.")}

    monkeypatch.setattr(Client, "try_committed_of", refusing)
    sample = take_sample(client, [good, bad])

    assert 1 == len(sample.groups[good].committed)
    assert f"Group {bad}: you are not allowed to use it." == sample.groups[bad].problem
    assert not sample.groups[bad].is_unknown


def test_a_partition_that_is_gone_is_a_problem_of_its_own_and_is_not_waited_for(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic = broker.create_topic("orders")
    there, beyond, gone = TopicPartition(topic, 0), TopicPartition(topic, 7), TopicPartition(broker.unique("gone"), 0)
    began = time.monotonic()

    answers = client.try_offsets(dict.fromkeys((there, beyond, gone), -1))

    assert (0, -1) == answers[there]
    assert isinstance(answers[beyond], UnknownTopic) and "has no partition 7" in str(answers[beyond])
    assert isinstance(answers[gone], UnknownTopic) and "does not exist" in str(answers[gone])
    assert time.monotonic() - began < client.timeout_s


def test_many_groups_are_asked_in_bounded_requests_with_the_same_answers(
    broker: BrokerUnderTest, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("many", partitions=5)
    names = [broker.group(f"g{number}") for number in range(7)]
    for number, name in enumerate(names):
        client.commit(name, {TopicPartition(topic, one): number for one in range(5)})
    whole = take_sample(client, names)
    monkeypatch.setattr(bulk, "GROUPS_MAX", 2)
    monkeypatch.setattr(bulk, "PARTITIONS_MAX", 2)

    parts = take_sample(client, names)

    assert (whole.groups, whole.starts, whole.ends) == (parts.groups, parts.starts, parts.ends)
    # A list of groups needs the brokers first; then 4 requests for commits and 3 each for starts and ends.
    assert 2 + 4 + 3 + 3 == parts.requests


def test_names_of_partitions_are_shared_by_all_groups(broker: BrokerUnderTest, client: Client) -> None:
    topic = broker.create_topic("shared")
    names = [broker.group(name) for name in ("a", "b")]
    for name in names:
        client.commit(name, {TopicPartition(topic, 0): 0})

    one, other = (next(iter(take_sample(client, names).groups[name].committed)) for name in names)
    sample = take_sample(client, names)
    one, other = (next(iter(sample.groups[name].committed)) for name in names)

    assert one is other, "a hundred thousand commits have ten thousand names"


def test_a_total_counts_each_partition_once() -> None:
    partitions = [TopicPartition("t", number) for number in range(4)]
    sample = Sample(
        at_ms=0, cluster_id="c", groups={}, starts={partitions[0]: 5, partitions[1]: 0},
        ends={partitions[0]: 9, partitions[1]: 3},
        problems={partitions[2]: "no leader"},
    )  # fmt: skip
    from logmark.offsets.lag.sample import GroupSample

    group = GroupSample(
        group="g", state="Empty", committed={partitions[0]: Committed(offset=1), partitions[1]: Committed(offset=2),
                                             partitions[2]: Committed(offset=2)},
    )  # fmt: skip
    sample = replace(sample, groups={"g": group})

    assert Total(records=5, lost=4, partitions=3, unknown=1) == sample.total()
    assert (5, 2, None) == tuple(sample.unread("g", one) for one in partitions[:3])


@pytest.mark.parametrize(
    ("name", "patterns", "fits"),
    [
        ("billing", None, True),
        ("billing", [], False),
        ("billing", ["billing"], True),
        ("billing", ["bill*"], True),
        ("billing", ["Bill*"], False),
        ("billing", ["fraud", "?illing"], True),
        ("a[1]", ["a[1]"], True),
    ],
)
def test_what_a_pattern_fits(name: str, patterns: Sequence[str] | None, fits: bool) -> None:
    assert fits == matches(name, patterns)
