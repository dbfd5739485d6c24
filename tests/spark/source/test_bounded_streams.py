"""Where streams start and end, what limits their batches, and what they say when records are gone."""

import logging

import pytest

from logmark.client.answers import Committed
from logmark.client.errors import BrokerUnreachable
from logmark.clock import ManualClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.group_follower import GroupFollower
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import Position
from tests.spark.source.test_group_follower import EARLY, FakeCluster, follow, step

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
Q0 = TopicPartition("clicks-eu", 0)


def at_second(seconds: float) -> ManualClock:
    return ManualClock(round(seconds * 1000))


STARTS = [
    ({"startingOffsets": "earliest"}, {P0: 10, P1: 0}),
    ({"startingOffsets": "latest"}, {P0: 100, P1: 50}),
    ({"startingOffsets": '{"clicks": {"0": 42, "1": -2}}'}, {P0: 42, P1: 0}),
    ({"startingOffsets": "-1000"}, {P0: 10, P1: 0}),
    ({"startingOffsets": "-20"}, {P0: 80, P1: 30}),
    ({"startingOffsets": "-2m"}, {P0: 80, P1: 50}),
    ({"startingOffsets": "-3m"}, {P0: 20, P1: 20}),
    ({"startingTimestamp": "30500"}, {P0: 31, P1: 31}),
    ({"startingTimestamp": "70000", "startingOffsetsByTimestampStrategy": "latest"}, {P0: 70, P1: 50}),
    ({"startingOffsetsByTimestamp": '{"clicks": {"0": 12000, "1": 49000}}'}, {P0: 12, P1: 49}),
    ({"auto.offset.reset": "by_duration:PT2M"}, {P0: 80, P1: 50}),
]


@pytest.mark.parametrize(("given", "starts"), STARTS)
def test_a_group_without_commits_starts_where_it_is_told(
    given: dict[str, str], starts: dict[TopicPartition, int]
) -> None:
    cluster = FakeCluster(p0=(10, 100), p1=(0, 50))

    assert starts == follow(cluster, at_second(200), **given).start().next
    assert [starts] == cluster.commits


BAD_STARTS = [
    (
        {"startingTimestamp": "70000"},
        r"startingTimestamp asks for 1970-01-01T00:01:10\.000Z, but clicks-1 has no record",
    ),
    ({"startingOffsets": '{"clicks": {"0": 42}}'}, r"must say something for each partition .*: clicks-0, clicks-1\."),
    ({"startingOffsets": '{"clicks": {"0": 1, "1": 1, "2": 1}}'}, "and for no other"),
    ({"endingOffsets": '{"clicks": {"0": 42}}'}, "endingOffsets must say something for each partition"),
    ({"startingOffsets": '{"clicks": {"0": 4, "1": 0}}'}, r"6 records of clicks-0 \(offsets 4 to 9; the log holds 10"),
    ({"startingOffsets": '{"clicks": {"0": 101, "1": 0}}'}, "offset 101 of clicks-0 lies beyond the log"),
]


@pytest.mark.parametrize(("given", "message"), BAD_STARTS)
def test_a_start_that_cannot_be_is_an_error_and_nothing_is_committed(given: dict[str, str], message: str) -> None:
    cluster = FakeCluster(p0=(10, 100), p1=(0, 50))

    with pytest.raises(UserError, match=message):
        follow(cluster, **given).start()
    assert [] == cluster.commits


def test_the_group_wins_over_a_start_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(p0=(0, 100), p1=(0, 50))
    cluster.reset(p0=42)

    with caplog.at_level(logging.WARNING):
        position = follow(cluster, startingOffsets="earliest").start()

    assert {P0: 42, P1: 0} == position.next
    assert "group billing has committed offsets and resumes there; startingOffsets counts only for" in caplog.text


def test_a_partition_that_is_younger_than_its_group_loses_nothing_where_no_start_was_given() -> None:
    for given, start in (({}, 5), ({"auto.offset.reset": "latest"}, 50)):
        cluster = FakeCluster(p0=(0, 100), p1=(5, 50))
        cluster.reset(p0=42)

        assert {P0: 42, P1: start} == follow(cluster, **given).start().next


def test_without_a_name_a_group_is_made_whose_name_the_checkpoint_keeps() -> None:
    cluster = FakeCluster(p0=(0, 100))
    options = parse_source_options(
        {"bootstrap.servers": "b:1", "subscribe": "clicks", "groupIdPrefix": "etl"}, is_stream=True
    )

    begun = GroupFollower(options, cluster, ManualClock()).start()
    cluster.logs[P0] = (0, 130)
    after_restart = step(GroupFollower(options, cluster, ManualClock()), begun)

    assert begun.group.startswith("etl-")
    assert (begun.group, {P0: (100, 130)}) == (after_restart.group, after_restart.ranges)


def read_out(
    follower: GroupFollower, at: Position, limit: int | None = None
) -> list[dict[TopicPartition, tuple[int, int]]]:
    """The batches until there is nothing more to read."""
    batches = []
    while (after := step(follower, at, limit)) is not at:
        batches.append(after.ranges)
        at = after
    return batches


ENDS = [
    ({"endingOffsets": '{"clicks": {"0": 30, "1": -1}}'}, {P0: (10, 30), P1: (0, 50)}),
    ({"endingOffsets": "-40"}, {P0: (10, 60), P1: (0, 10)}),
    ({"endingTimestamp": "20000"}, {P0: (10, 20), P1: (0, 20)}),
    ({"endingTimestamp": "3m ago"}, {P0: (10, 20), P1: (0, 20)}),
    ({"endingOffsetsByTimestamp": '{"clicks": {"0": 20000, "1": 0}}'}, {P0: (10, 20)}),
]


@pytest.mark.parametrize(("given", "ranges"), ENDS)
def test_a_bounded_stream_reads_to_its_end_and_idles_there(
    given: dict[str, str], ranges: dict[TopicPartition, tuple[int, int]]
) -> None:
    cluster, clock = FakeCluster(p0=(10, 100), p1=(0, 50)), at_second(200)
    follower = follow(cluster, clock, startingOffsets="earliest", **given)
    end = step(follower, follower.start())
    assert ranges == end.ranges
    cluster.logs |= {P0: (10, 1000), P1: (0, 1000)}

    assert end is step(follower, end)
    stops = {partition: stop for partition, (_, stop) in ranges.items()}
    assert {P0: 10, P1: 0} | stops == {partition: one.offset for partition, one in cluster.offsets.items()}


def test_an_end_in_the_future_is_reached_when_it_comes() -> None:
    cluster = FakeCluster(p0=(0, 10))
    follower = follow(cluster, startingOffsets="earliest", endingTimestamp="25000")
    first = step(follower, follower.start())
    cluster.logs[P0] = (0, 20)
    second = step(follower, first)
    cluster.logs[P0] = (0, 40)

    assert [{P0: (0, 10)}, {P0: (10, 20)}] == [first.ranges, second.ranges]
    assert [{P0: (20, 25)}] == read_out(follower, second)


def test_a_bounded_replay_ends_with_available_now_and_again_after_a_restart() -> None:
    cluster = FakeCluster(p0=(0, 100))
    given = {"startingTimestamp": "20000", "endingTimestamp": "60000"}
    follower = follow(cluster, **given)
    follower.fix_end()
    half = step(follower, follower.start(), 25)
    again = follow(cluster, **given)
    again.fix_end()

    assert {P0: (20, 45)} == half.ranges
    assert [{P0: (45, 60)}] == read_out(again, half, 25)
    assert 60 == cluster.offsets[P0].offset


def test_a_partition_that_the_end_does_not_name_is_not_read() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, startingOffsets="earliest", endingOffsets='{"clicks": {"0": 30}}')
    end = step(follower, follower.start())
    cluster.logs[P1] = (0, 9)
    clock.advance(seconds=60)

    assert {} == step(follower, end).ranges


def test_topics_that_a_pattern_fits_are_followed_as_they_come() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    cluster.logs[TopicPartition("__clicks", 0)] = (0, 9)
    given = {"bootstrap.servers": "b:1", "group.id": "billing", "subscribePattern": ".*clicks.*"}
    follower = GroupFollower(parse_source_options(given, is_stream=True), cluster, clock)
    begun = follower.start()
    assert ({}, begun) == (begun.next, step(follower, begun))
    cluster.logs[P0] = (5, 20)
    clock.advance(seconds=10)
    first = step(follower, begun)
    cluster.logs[Q0] = (0, 7)
    cluster.logs[TopicPartition("orders", 0)] = (0, 7)
    clock.advance(seconds=10)
    second = step(follower, first)

    assert [{P0: (5, 20)}, {Q0: (0, 7)}] == [first.ranges, second.ranges]
    assert second is step(follower, second)
    assert {P0: 20, Q0: 7} == {partition: one.offset for partition, one in cluster.offsets.items()}


def test_a_new_partition_is_not_read_before_it_is_known_where_the_group_stands_in_it() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock)
    end = step(follower, follower.start())
    cluster.logs[P1] = (0, 9)
    cluster.reset(p1=6)
    clock.advance(seconds=60)
    cluster.failure = BrokerUnreachable("The coordinator is away.")
    assert end is step(follower, end)
    cluster.failure = None

    assert {P1: (6, 9)} == step(follower, end).ranges


def test_how_soon_a_new_partition_is_seen_can_be_set() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, **{"partition.metadata.cache.ttl.ms": "60000"})
    end = step(follower, follower.start())
    cluster.logs[P1] = (0, 9)
    clock.advance(seconds=59)
    assert end is step(follower, end)
    clock.advance(seconds=1)

    assert {P1: (0, 9)} == step(follower, end).ranges


def test_a_small_backlog_waits_for_more_or_for_long_enough() -> None:
    cluster, clock = FakeCluster(p0=(0, 10)), ManualClock()
    follower = follow(cluster, clock, **EARLY, minOffsetsPerTrigger="50", maxTriggerDelay="5m")
    first = step(follower, follower.start())
    assert {P0: (0, 10)} == first.ranges, "the first batch of a run does not wait"
    cluster.logs[P0] = (0, 40)
    assert first is step(follower, first)
    assert 10 == cluster.offsets[P0].offset, "the commit does not wait"
    cluster.logs[P0] = (0, 60)
    second = step(follower, first)
    cluster.logs[P0] = (0, 61)
    clock.advance(seconds=299)
    assert second is step(follower, second)
    clock.advance(seconds=1)

    assert [{P0: (10, 60)}, {P0: (60, 61)}] == [second.ranges, step(follower, second).ranges]


def test_available_now_reads_a_small_backlog_too() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY, minOffsetsPerTrigger="50")
    follower.fix_end()

    assert [{P0: (0, 90)}, {P0: (90, 100)}] == read_out(follower, follower.start(), 90)


def test_a_batch_is_limited_in_bytes_by_the_size_of_the_records_where_it_begins() -> None:
    cluster = FakeCluster(p0=(0, 1000))
    follower = follow(cluster, **EARLY, maxBytesPerTrigger="20000")
    first = step(follower, follower.start())
    cluster.value_bytes = 1000
    second = step(follower, first)

    (start, stop), (_, end) = first.ranges[P0], second.ranges[P0]
    assert 170 <= stop - start <= 190, "about 110 bytes each"
    assert 18 <= end - stop <= 20, "about 1,010 bytes each"
    assert [(P0, 0), (P0, stop)] == cluster.fetches


def test_open_transactions_are_not_read_and_a_commit_behind_them_is_no_loss() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.stable[P0] = 60
    read = {"isolation.level": "read_committed"}
    end = step(follower := follow(cluster, clock, **EARLY, **read), follower.start())
    assert {P0: (0, 60)} == end.ranges
    step(follower, end)
    cluster.reset(p0=80)
    seek = step(follower, end)
    for _ in range(2):
        assert seek is step(follower, seek)
        clock.advance(seconds=60)
    del cluster.stable[P0]

    assert {P0: (80, 100)} == step(follower, seek).ranges


POLICIES = [
    ({"auto.offset.reset": "earliest"}, 40, "the first record left"),
    ({"auto.offset.reset": "latest"}, 100, "the end"),
    ({"auto.offset.reset": "by_duration:PT2M"}, 80, "the first record of the last 120 s"),
    ({"failOnDataLoss": "false"}, 40, "the first record left"),
]


@pytest.mark.parametrize(("given", "goes_on_at", "words"), POLICIES)
def test_what_was_deleted_unread_is_counted_and_never_skipped_in_silence(
    given: dict[str, str], goes_on_at: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), at_second(200)
    cluster.reset(p0=0)
    follower = follow(cluster, clock, **given)
    end = step(follower, follower.start(), 10)
    cluster.logs[P0] = (40, 100)

    with caplog.at_level(logging.WARNING):
        seek = step(follower, end)

    assert {P0: goes_on_at} == seek.next
    cluster.logs[P0] = (40, 130)
    after = step(follower, seek)
    assert (seek.generation, {P0: (goes_on_at, 130)}) == (after.generation, after.ranges), "one seek is enough"
    assert {P0: (goes_on_at, 130)} == step(follow(cluster, clock, **given), seek).ranges, "also after a restart"
    died = follow(cluster, clock, **given)
    assert {P0: (goes_on_at, 130)} == step(died, step(died, end)).ranges, "also if Spark never knew of the seek"
    assert "At most 30 records were deleted before this query read them: 30 records of clicks-0" in caplog.text
    assert f"Group billing continues at {words}" in caplog.text


def test_available_now_waits_for_the_coordinator_and_does_not_end_without_it() -> None:
    cluster = FakeCluster(p0=(0, 100))
    follower = follow(cluster, **EARLY)
    follower.fix_end()
    begun = follower.start()
    cluster.failure = BrokerUnreachable("The coordinator is away.")

    with pytest.raises(BrokerUnreachable):
        step(follower, begun)
    cluster.failure = None
    assert {P0: (0, 100)} == step(follower, begun).ranges


def test_a_loss_is_judged_only_when_it_is_known_where_the_group_stands() -> None:
    cluster = FakeCluster(p0=(0, 100))
    end = step(follower := follow(cluster, **EARLY), follower.start(), 10)
    cluster.logs[P0] = (40, 100)
    again = follow(cluster)
    cluster.failure = BrokerUnreachable("The coordinator is away.")
    assert end is step(again, end)
    cluster.failure = None
    cluster.reset(p0=50)

    assert {P0: (50, 100)} == step(again, step(again, end)).ranges


@pytest.mark.parametrize("given", [{}, {"failOnDataLoss": "true", "auto.offset.reset": "earliest"}])
def test_a_commit_below_the_log_start_ends_a_query_that_was_not_told_to_continue(given: dict[str, str]) -> None:
    cluster = FakeCluster(p0=(0, 100))
    cluster.logs[P0] = (40, 100)
    cluster.reset(p0=15)

    with pytest.raises(UserError, match=r"At most 25 records were deleted .* group billing was not moved"):
        follow(cluster, **given).start()
    assert {P0: Committed(offset=15)} == cluster.offsets


def test_a_new_partition_whose_commit_lies_below_the_log_start_is_not_skipped_in_silence() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock)
    end = step(follower, follower.start())
    cluster.logs[P1] = (40, 50)
    cluster.reset(p1=3)
    clock.advance(seconds=60)

    with pytest.raises(UserError, match="37 records of clicks-1"):
        step(follower, step(follower, end))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(restarted: bool) -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    follower = follow(cluster, clock, startingOffsets="earliest")
    end = step(follower, follower.start(), 60)
    cluster.logs[P0], cluster.topic_id = (0, 500), b"\2" * 16
    cluster.offsets.clear()
    clock.advance(seconds=10)
    again = Position.from_json(end.to_json())
    follower = follow(cluster, clock) if restarted else follower

    with pytest.raises(UserError, match=r"offset 60 of clicks-0 belongs to a topic of that name that was deleted"):
        step(follower, again)
    # A reset gives it the new topic, and so does the leave to lose records.
    cluster.reset(p0=7)
    seek = step(follower, again)
    assert {P0: (7, 500)} == step(follower, seek).ranges
    cluster.offsets.clear()
    lenient = follow(cluster, clock, failOnDataLoss="false")
    assert {P0: (0, 500)} == step(lenient, step(lenient, again)).ranges


def test_brokers_that_give_no_ids_are_believed() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.topic_id = bytes(16)
    follower = follow(cluster, clock, **EARLY)
    end = step(follower, follower.start(), 60)

    assert "i" not in end.to_json()
    assert {P0: (60, 100)} == step(follower, end).ranges


def test_a_deleted_topic_is_left_out_where_losses_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    cluster.logs[Q0] = (0, 5)
    given = {"bootstrap.servers": "b:1", "group.id": "billing", "subscribe": "clicks,clicks-eu"}
    options = parse_source_options(given | {"failOnDataLoss": "false", **EARLY}, is_stream=True)
    follower = GroupFollower(options, cluster, clock)
    end = step(follower, follower.start())
    del cluster.logs[Q0]
    for _ in range(2):
        clock.advance(seconds=30)
        with caplog.at_level(logging.WARNING):
            after = step(follower, end)

    assert ({P0: 100}, {}) == (after.next, after.ranges)
    assert "clicks-eu-0 is not there any more and is left out" in caplog.text


def test_a_weekly_run_whose_commits_expired_continues_from_its_checkpoint_and_commits_again() -> None:
    cluster, clock = FakeCluster(p0=(0, 100)), ManualClock()
    first = follow(cluster, clock, **EARLY)
    first.fix_end()
    end = step(first, first.start())
    step(first, end)
    cluster.offsets.clear()
    cluster.logs[P0] = (0, 150)
    clock.advance(seconds=8 * 86_400)
    second = follow(cluster, clock, **EARLY)
    second.fix_end()

    assert [{P0: (100, 150)}] == read_out(second, end)
    assert 150 == cluster.offsets[P0].offset
