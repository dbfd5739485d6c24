"""The log is asked once for the age of a record, however often it is sampled."""

from collections.abc import Iterator

import pytest

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.clock import ManualClock, SystemClock
from logmark.names import TopicPartition
from logmark.offsets.lag import age_cache
from logmark.offsets.lag.age_cache import AgeCache
from logmark.offsets.lag.ages import Ages
from logmark.offsets.lag.sample import GroupSample, Sample, take_sample
from tests.harness.brokers import BrokerUnderTest


@pytest.fixture
def client(our_broker: BrokerUnderTest) -> Iterator[Client]:
    with Client(our_broker.bootstrap_servers) as client:
        yield client


def test_a_record_is_looked_up_once_and_ages_from_then_on(our_broker: BrokerUnderTest, client: Client) -> None:
    clock = ManualClock(SystemClock().now_ms())
    topic, group, other = our_broker.create_topic("t"), our_broker.group("g"), our_broker.group("h")
    our_broker.produce(topic, ["a"], timestamp_ms=clock.now_ms() - 60_000)
    our_broker.produce(topic, ["b"], timestamp_ms=clock.now_ms() - 20_000)
    at = TopicPartition(topic, 0)
    ages = AgeCache()

    def taken(first: int, second: int) -> Sample:
        our_broker.commit(group, {(topic, 0): first})
        our_broker.commit(other, {(topic, 0): second})
        return take_sample(client, [group, other], now_ms=clock.now_ms)

    first = ages.of(taken(0, 1), None, client)
    assert (60_000, 20_000) == (first.of(group, at).ms, first.of(other, at).ms)
    assert 2 == first.records_read

    clock.advance(seconds=5)
    again = ages.of(taken(0, 1), None, client)
    assert (65_000, 25_000) == (again.of(group, at).ms, again.of(other, at).ms)
    assert (0, 0) == (again.records_read, again.requests)

    moved = ages.of(taken(1, 2), None, client)
    assert (25_000, 0) == (moved.of(group, at).ms, moved.of(other, at).ms)
    assert (0, 0) == (moved.records_read, moved.requests), "another group has stood there before"


def test_what_nobody_could_tell_is_asked_again_after_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def nobody_knows(sample: Sample, *, client: Client | None = None, **_: object) -> Ages:
        if client is not None:
            asked.append(sample.at_ms)
        return Ages(sample=sample)

    monkeypatch.setattr(age_cache, "compute_ages", nobody_knows)
    at, ages = TopicPartition("t", 0), AgeCache()
    group = GroupSample(group="g", state="Empty", committed={at: Committed(offset=0)})

    for now_ms in (0, 10_000, 299_999, 300_000, 310_000):
        sample = Sample(at_ms=now_ms, cluster_id="c", groups={"g": group}, starts={at: 0}, ends={at: 5})
        assert ages.of(sample, None, Client("127.0.0.1:9")).of("g", at).ms is None

    assert [0, 300_000] == asked


def test_of_very_many_offsets_the_deepest_are_looked_up_first_and_the_others_in_turn(
    our_broker: BrokerUnderTest, client: Client
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    topic = our_broker.create_topic("t")
    our_broker.produce(topic, ["a", "b", "c"], timestamp_ms=clock.now_ms() - 60_000)
    groups = [our_broker.group(f"g{offset}") for offset in range(3)]
    for offset, group in enumerate(groups):
        our_broker.commit(group, {(topic, 0): offset})
    ages = AgeCache(searched_max=1)
    known = []

    for _ in range(3):
        found = ages.of(take_sample(client, groups, now_ms=clock.now_ms), None, client)
        known.append([found.of(group, TopicPartition(topic, 0)).ms is not None for group in groups])

    assert [[True, False, False], [True, True, False], [True, True, True]] == known
