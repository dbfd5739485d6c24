"""Looking at groups and moving them, on our broker and on Apache Kafka."""

from collections.abc import Iterator

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.offsets.errors import StatefulGroup
from logmark.offsets.lag.sample import take_sample
from logmark.offsets.partitions import Lag, inspect_groups
from logmark.offsets.reset.executor import AppliedReset, PlanOutdated, WatchTimeouts, apply_plan
from logmark.offsets.reset.plan import ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ShiftBy, Target, ToCurrent, ToEarliest, ToLatest, ToOffset, ToTime
from tests.harness.brokers import BrokerUnderTest, read

NOON = 1_709_640_000_000


def apply_now(client: Client, plan: ResetPlan) -> AppliedReset:
    """Applies a plan and reads it back once: nobody else is in these groups."""
    return apply_plan(client, plan, timeouts=WatchTimeouts(watch_s=0, quiet_watch_s=0))


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


def a_topic(broker: BrokerUnderTest, *, partitions: int = 1, records: int = 10) -> str:
    topic = broker.create_topic("clicks", partitions=partitions, config={"retention.ms": "-1"})
    for partition in range(partitions):
        broker.produce(topic, [str(number) for number in range(records)], partition=partition)
    return topic


def test_the_lag_of_a_group_is_the_sum_over_its_partitions(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("clicks", partitions=2), broker.group("analytics")
    broker.produce(topic, ["x"] * 1000, partition=0)
    broker.produce(topic, ["x"] * 20, partition=1)
    client.commit(group, {TopicPartition(topic, 0): 258, TopicPartition(topic, 1): 10})

    (view,) = inspect_groups(client, [group])

    assert [742, 10] == [one.lag.records for one in view.partitions if one.lag]
    assert 752 == view.lag
    assert group in take_sample(client).groups


def test_what_expired_unread_is_lost_and_no_lag(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("slow")
    client.commit(group, {TopicPartition(topic, 0): 2})
    broker.delete_records(topic, 6)

    (view,) = inspect_groups(client, [group])

    assert [Lag(records=4, lost=4)] == [one.lag for one in view.partitions]


def test_a_partition_that_is_owned_and_never_committed_has_an_offset_without_a_lag(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic, group = a_topic(broker), broker.group("new")
    consumer = broker.consumer(group, client_id="worker-1")
    consumer.subscribe([topic])
    read(consumer, 1)

    (view,) = inspect_groups(client, [group])

    (partition,) = view.partitions
    assert (None, None, 10) == (partition.committed, partition.lag, partition.end)
    assert partition.member is not None and "worker-1" == partition.member.client_id


def test_a_reset_moves_every_partition_and_is_read_back(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker, partitions=2), broker.group("fraud")
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    client.commit(group, {partitions[0]: 8, partitions[1]: 3})

    plan = plan_reset(client, group, {topic: None}, ToOffset(5))
    assert (3, 2) == (plan.read_again, plan.skipped)
    assert {partitions[0]: Committed(offset=8), partitions[1]: Committed(offset=3)} == client.committed(group)

    apply_now(client, plan)
    assert {partitions[0]: Committed(offset=5), partitions[1]: Committed(offset=5)} == client.committed(group)


def test_a_reset_of_one_partition_leaves_the_others(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker, partitions=2), broker.group("fraud")
    client.commit(group, {TopicPartition(topic, 0): 8, TopicPartition(topic, 1): 3})

    apply_now(client, plan_reset(client, group, {topic: [1]}, ToLatest()))

    assert [8, 10] == [stored.offset for stored in client.committed(group).values()]


def test_a_reset_to_a_time_finds_the_first_record_at_or_after_it(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("clicks", config={"retention.ms": "-1"}), broker.group("fraud")
    for hour in range(4):
        broker.produce(topic, ["x"], timestamp_ms=NOON + hour * 3_600_000)
    client.commit(group, {TopicPartition(topic, 0): 4})

    def goes_to(timestamp_ms: int) -> int:
        return plan_reset(client, group, {topic: None}, ToTime(timestamp_ms)).moves[0].to

    assert [0, 0, 2, 4] == [goes_to(NOON - 1), goes_to(NOON), goes_to(NOON + 3_600_001), goes_to(NOON * 2)]


def test_the_metadata_of_an_offset_survives_a_reset(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("streams")
    here = TopicPartition(topic, 0)
    client.commit(group, {here: Committed(offset=7, leader_epoch=0, metadata="state")})

    apply_now(client, plan_reset(client, group, {topic: None}, ShiftBy(-2)))

    assert {here: Committed(offset=5, leader_epoch=-1, metadata="state")} == client.committed(group)


def test_an_unknown_group_is_created_only_when_that_is_wanted(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("fruad")
    client.commit(broker.group("fraud"), {TopicPartition(topic, 0): 1})

    likely = broker.group("fraud")
    with pytest.raises(UserError, match=rf"{group} does not exist\. Did you mean {likely}\?.*create_group=True"):
        plan_reset(client, group, {topic: None}, ToEarliest())
    assert {} == client.committed(group)

    plan = plan_reset(client, group, {topic: None}, ToEarliest(), create_group=True)
    assert plan.creates_group
    apply_now(client, plan)
    assert [0] == [stored.offset for stored in client.committed(group).values()]


def test_an_unknown_topic_or_partition_is_refused(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("fraud")
    client.commit(group, {TopicPartition(topic, 0): 1})

    with pytest.raises(UserError, match=r"does not exist.* Nothing was changed"):
        plan_reset(client, group, {broker.unique("typo"): None}, ToEarliest())
    with pytest.raises(UserError, match=r"has no partition 7: it has 1"):
        plan_reset(client, group, {topic: [0, 7]}, ToEarliest())


def test_an_active_group_is_refused_and_its_members_are_named(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("fraud")
    consumer = broker.consumer(group, client_id="worker-1")
    consumer.subscribe([topic])
    read(consumer, 1)

    with pytest.raises(UserError, match=r"is active .*worker-1 on .*Nothing was changed; stop them"):
        plan_reset(client, group, {topic: None}, ToEarliest())


def test_a_group_that_wakes_up_after_the_plan_is_not_moved(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("fraud")
    client.commit(group, {TopicPartition(topic, 0): 4})
    plan = plan_reset(client, group, {topic: None}, ToEarliest())
    consumer = broker.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 1)

    with pytest.raises(UserError, match="is active"):
        apply_now(client, plan)
    assert [4] == [stored.offset for stored in client.committed(group).values()]


def test_a_group_that_has_only_moved_forward_goes_to_an_absolute_offset_all_the_same(
    broker: BrokerUnderTest, client: Client
) -> None:
    topic, group = a_topic(broker), broker.group("fraud")
    client.commit(group, {TopicPartition(topic, 0): 4})
    plan = plan_reset(client, group, {topic: None}, ToOffset(2))
    client.commit(group, {TopicPartition(topic, 0): 6})

    applied = apply_now(client, plan)

    assert (2, 4) == (plan.read_again, applied.plan.read_again)
    assert [2] == [stored.offset for stored in client.committed(group).values()]
    assert {TopicPartition(topic, 0): Committed(offset=6)} == applied.change.before


@pytest.mark.parametrize(
    ("target", "moved_to", "then"), [(ShiftBy(-2), 6, 4), (ToCurrent(), 6, 6), (ToOffset(2), 3, 2)]
)
def test_a_plan_that_is_not_what_was_agreed_to_is_shown_again(
    broker: BrokerUnderTest, client: Client, target: Target, moved_to: int, then: int
) -> None:
    topic, group = a_topic(broker), broker.group("fraud")
    here = TopicPartition(topic, 0)
    client.commit(group, {here: 4})
    plan = plan_reset(client, group, {topic: None}, target)
    client.commit(group, {here: moved_to})

    with pytest.raises(
        PlanOutdated, match=r"has moved since the plan was made, by somebody. Nothing was changed"
    ) as it:
        apply_now(client, plan)
    assert moved_to == client.committed(group)[here].offset

    apply_now(client, it.value.plan)
    assert then == client.committed(group)[here].offset


def test_offsets_far_beyond_32_bits_are_moved_and_counted(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("far")
    client.commit(group, {TopicPartition(topic, 0): 259_000_000_000})

    plan = plan_reset(client, group, {topic: None}, ToLatest())

    assert (259_000_000_000, 10, 0, 0) == (
        plan.moves[0].committed.offset if plan.moves[0].committed else None,
        plan.moves[0].to,
        plan.read_again,
        plan.skipped,
    )


def commit_as_query(client: Client, group: str, topic: str, *, is_stateful: bool | None) -> None:
    """Commit offset 8 as a query of Logmark does."""
    mark = CommitMetadata(query="q7", generation=5, offset=8, is_stateful=is_stateful)
    client.commit(group, {TopicPartition(topic, 0): Committed(offset=8, metadata=mark.to_text())})


def test_a_group_whose_query_keeps_state_is_not_reset(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("sessions")
    commit_as_query(client, group, topic, is_stateful=True)

    with pytest.raises(StatefulGroup, match=f"Group {group} belongs to the query q7, which keeps state"):
        plan_reset(client, group, {topic: None}, ToEarliest())

    assert 8 == client.committed(group)[TopicPartition(topic, 0)].offset
    assert plan_reset(client, group, {topic: None}, ToCurrent()).changes, "it moves nothing"
    plan = plan_reset(client, group, {topic: None}, ToEarliest(), allow_stateful=True)
    assert (8, []) == (plan.read_again, list(plan.cautions))


@pytest.mark.parametrize(("is_stateful", "count"), [(False, 0), (None, 1)])
def test_a_query_of_which_nobody_knows_whether_it_keeps_state_is_told_with_the_plan(
    broker: BrokerUnderTest, client: Client, is_stateful: bool | None, count: int
) -> None:
    topic, group = a_topic(broker), broker.group("sessions")
    commit_as_query(client, group, topic, is_stateful=is_stateful)

    plan = plan_reset(client, group, {topic: None}, ToEarliest())

    assert count == len(plan.cautions)
    assert all("It is unknown whether the query q7 keeps state" in one for one in plan.cautions)
    assert [] == list(plan.warnings), "the group was not seen to move"


def test_a_restored_offset_ends_the_watch_of_a_reset_at_once(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = a_topic(broker), broker.group("sessions")
    commit_as_query(client, group, topic, is_stateful=True)
    plan = plan_reset(client, group, {topic: None}, ToEarliest(), allow_stateful=True)
    restored = CommitMetadata(query="q7", generation=5, offset=8, is_stateful=True, restored_ms=1)
    commits = {TopicPartition(topic, 0): Committed(offset=8, metadata=restored.to_text())}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        client.commit(group, commits)

    with pytest.raises(UserError, match=r"the query q7 has written over it .* has restored its offsets"):
        apply_plan(client, plan, timeouts=WatchTimeouts(watch_s=5, quiet_watch_s=5, sleep=sleep))

    assert 1 == len(slept), "it is not set again and again"
    assert 8 == client.committed(group)[TopicPartition(topic, 0)].offset
