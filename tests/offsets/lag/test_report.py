"""A group's past and present together, on our broker and on Apache Kafka."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change
from logmark.offsets.lag.annotations import annotations_from_changes
from logmark.offsets.lag.history import History
from logmark.offsets.lag.report import GroupLag, build_lag_report
from logmark.offsets.lag.sample import take_sample
from logmark.offsets.lag.trend import Direction
from logmark.offsets.lag.verdicts import Verdict
from tests.harness.brokers import BrokerUnderTest, read

T0 = 1_700_000_000_000
EVERY_MS = 30_000


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as client:
        yield client


class WatchedGroup:
    """One group in one partition, looked at every half minute by a clock of our own."""

    def __init__(self, broker: BrokerUnderTest, client: Client, history: History) -> None:
        self.broker, self.client, self.history = broker, client, history
        self.topic, self.group = broker.create_topic("watched"), broker.group("watched")
        self.partition = TopicPartition(self.topic, 0)
        self.now_ms = T0
        self.changes: list[Change] = []
        self.asked = 0

    def step(self, *, written: int = 0, committed: int | None = None) -> GroupLag:
        if written:
            self.broker.produce(self.topic, ["x"] * written)
        if committed is not None:
            self.client.commit(self.group, {self.partition: committed})
        return self.look()

    def look(self) -> GroupLag:
        sample = take_sample(self.client, [self.group], now_ms=lambda: self.now_ms)
        standing = build_lag_report(sample, history=self.history, own_changes=self._own)
        self.history.add(sample)
        self.now_ms += EVERY_MS
        return standing.groups[0]

    def _own(self, since_ms: int) -> list[object]:
        self.asked += 1
        return list(annotations_from_changes(one for one in self.changes if one.at_ms >= since_ms))


@pytest.fixture
def watched(broker: BrokerUnderTest, client: Client) -> Iterator[WatchedGroup]:
    with History(None) as history:
        yield WatchedGroup(broker, client, history)


def _verdict(one: GroupLag) -> Verdict:
    assert one.finding is not None
    return one.finding.verdict


def test_a_groups_life_from_well_to_stopped(watched: WatchedGroup) -> None:
    assert Verdict.OK == _verdict(watched.step(written=10, committed=10))
    assert Verdict.UNKNOWN == _verdict(watched.step(written=10, committed=15)), "two samples say too little"
    for committed in range(16, 42):
        falling = watched.step(written=10, committed=committed)
    assert Verdict.SLOW == _verdict(falling)
    assert falling.trend is not None and Direction.GROWING == falling.trend.direction
    for _ in range(4):
        stopped = watched.look()

    assert Verdict.STOPPED == _verdict(stopped)
    assert (
        stopped.finding is not None and "at 41 for at least 1 min 30 s, 239 records behind" in stopped.finding.evidence
    )
    assert watched.asked == 0, "the journal is not asked without need"


def test_a_group_with_members_that_stands_still_is_stalled(watched: WatchedGroup) -> None:
    watched.step(written=10)
    consumer = watched.broker.consumer(watched.group)
    consumer.subscribe([watched.topic])
    message = read(consumer, 4)[-1]
    consumer.commit(message, asynchronous=False)
    for _ in range(4):
        stalled = watched.look()

    assert Verdict.STALLED == _verdict(stalled)
    assert stalled.finding is not None and "although the group has 1 member" in stalled.finding.evidence


def test_who_was_rewound_by_somebody_is_told_and_by_our_own_tools_is_not(watched: WatchedGroup) -> None:
    watched.step(written=30, committed=20)
    for committed in (21, 22, 23):
        watched.step(committed=committed)
    change = Change(
        id="c1", at_ms=watched.now_ms - 1_000, cluster_id="c", name=watched.group, action="reset", how="to offset 5",
        who="ann", before={watched.partition: Committed(offset=23)}, after={watched.partition: Committed(offset=5)},
        state="done",
    )  # fmt: skip

    foreign = watched.step(committed=5)
    watched.changes.append(change)
    own = [watched.step(committed=offset) for offset in (6, 7, 8)]

    assert Verdict.REWOUND == _verdict(foreign), "nobody has said that it was us"
    assert not any(_verdict(one).is_bad for one in own)
    assert own[-1].finding is not None and "reset to offset 5 by ann" in own[-1].finding.note


def test_without_a_history_there_is_neither_verdict_nor_trend(broker: BrokerUnderTest, client: Client) -> None:
    topic, group = broker.create_topic("alone"), broker.group("alone")
    client.commit(group, {TopicPartition(topic, 0): 0})

    (alone,) = build_lag_report(take_sample(client, [group])).groups

    assert (None, None) == (alone.finding, alone.trend)


def test_a_history_may_be_a_file_that_was_just_made(broker: BrokerUnderTest, client: Client, tmp_path: Path) -> None:
    topic, group = broker.create_topic("young"), broker.group("young")
    broker.produce(topic, ["x"])
    client.commit(group, {TopicPartition(topic, 0): 0})
    sample = take_sample(client, [group])
    with History(tmp_path / "h.sqlite", cluster_id=sample.cluster_id) as history:
        (young,) = build_lag_report(sample, history=history).groups

    assert Verdict.UNKNOWN == _verdict(young)
    assert young.finding is not None and "not enough samples" in young.finding.evidence
