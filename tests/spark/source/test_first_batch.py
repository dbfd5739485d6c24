"""A driver that dies in the first batch of a query: Spark asks where it starts once more, and repeats the batch."""

from logmark.clock import ManualClock
from logmark.spark.source.data_source import StreamReader
from logmark.spark.source.group_follower import GroupFollower
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import Position
from tests.spark.source.test_group_follower import P0, FakeCluster

OPTIONS = {"bootstrap.servers": "h:1", "subscribe": "clicks", "group.id": "billing", "auto.offset.reset": "earliest"}


def planned_first_batch(cluster: FakeCluster, clock: ManualClock) -> Position:
    """The first batch, as the driver has planned it that dies now."""
    follower = GroupFollower(parse_source_options(OPTIONS, is_stream=True), cluster, clock)
    planned = follower.advance(follower.start(), records_max=100)
    clock.advance(seconds=5)
    return planned


def test_the_query_continues_under_its_first_token() -> None:
    cluster, clock = FakeCluster(p0=(0, 150)), ManualClock()
    planned = planned_first_batch(cluster, clock)
    follower = GroupFollower(parse_source_options(OPTIONS, is_stream=True), cluster, clock)
    follower.start()

    following = follower.advance(planned, records_max=100)

    assert (planned.query, planned.generation) == (following.query, following.generation)
    assert ({P0: 100}, {P0: 150}) == (following.first, following.next)
    assert 100 == cluster.offsets[P0].offset
    assert following == follower.advance(following, records_max=100)


def test_a_query_that_died_twice_in_its_first_batch_is_not_taken_for_another() -> None:
    cluster, clock = FakeCluster(p0=(0, 150)), ManualClock()
    planned = planned_first_batch(cluster, clock)
    GroupFollower(
        parse_source_options(OPTIONS, is_stream=True), cluster, clock
    ).start()  # repeats the batch, and dies at its end
    clock.advance(seconds=5)
    third = GroupFollower(parse_source_options(OPTIONS, is_stream=True), cluster, clock)

    following = third.advance(planned, records_max=100)

    assert (planned.query, {P0: (100, 150)}) == (following.query, following.ranges)


def test_a_reset_before_the_second_beginning_is_honoured() -> None:
    cluster, clock = FakeCluster(p0=(0, 150)), ManualClock()
    planned = planned_first_batch(cluster, clock)
    cluster.reset(p0=40)
    follower = GroupFollower(parse_source_options(OPTIONS, is_stream=True), cluster, clock)
    follower.start()

    moved = follower.advance(planned, records_max=100)

    assert ({P0: 40}, {P0: 40}) == (moved.first, moved.next)
    assert moved.generation > planned.generation


def test_the_repeated_batch_reads_what_was_planned() -> None:
    cluster, clock = FakeCluster(p0=(0, 150)), ManualClock()
    planned = planned_first_batch(cluster, clock)
    options = parse_source_options(OPTIONS, is_stream=True)
    recreated = GroupFollower(options, cluster, clock).start()

    tasks = StreamReader(options).partitions(recreated.to_json(), planned.to_json())

    assert [[(0, 100)]] == [[(part.first, part.stop) for part in task.value] for task in tasks]
    assert [] == StreamReader(options).partitions(planned.to_json(), planned.seek({P0: 3}, now_ms=9).to_json())
