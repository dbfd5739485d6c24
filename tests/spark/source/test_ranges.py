"""How a batch is limited and cut into tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmark.names import TopicPartition
from logmark.spark.source.data_loss import Loss, describe_losses, find_losses
from logmark.spark.source.limits import Limits, share_records
from logmark.spark.source.ranges import PACKED_RANGES_MAX, RECORDS_PER_TASK_MAX, Bounds, Range, pack, split

P0, P1, P2 = (TopicPartition("clicks", number) for number in range(3))
ranges = st.dictionaries(
    st.sampled_from([P0, P1, P2]),
    st.tuples(st.integers(0, 10**12), st.integers(0, 2000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
)


def test_without_a_limit_a_batch_reads_everything() -> None:
    assert {P0: 10, P1: 30} == share_records({P0: 0, P1: 20}, {P0: 10, P1: 30}, records_max=None)


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    assert {P0: 75, P1: 25} == share_records({P0: 0, P1: 0}, {P0: 300, P1: 100}, records_max=100)


def test_a_small_partition_is_never_starved() -> None:
    assert {P0: 9, P1: 1} == share_records({P0: 0, P1: 0}, {P0: 10**6, P1: 1}, records_max=10)


def test_a_partition_that_stands_at_its_end_stays() -> None:
    assert {P0: 10, P1: 7} == share_records({P0: 0, P1: 7}, {P0: 100, P1: 7}, records_max=10)


@given(ranges, st.integers(1, 10_000))
def test_a_limited_batch_moves_on_and_never_beyond_the_ends(
    whole: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    first = {partition: one for partition, (one, _) in whole.items()}
    ends = {partition: end for partition, (_, end) in whole.items()}

    stops = share_records(first, ends, records_max=most)

    assert all(first[partition] <= stops[partition] <= ends[partition] for partition in whole)
    assert (first == ends) == (first == stops)
    assert sum(stops.values()) - sum(first.values()) <= most + len(whole)


@given(ranges, st.none() | st.integers(1, 3000), st.none() | st.integers(1, 50))
def test_tasks_cover_the_ranges_exactly_once(
    whole: dict[TopicPartition, tuple[int, int]], most: int | None, pieces_min: int | None
) -> None:
    pieces = split(whole, records_max=most, pieces_min=pieces_min)

    for partition, (first, stop) in whole.items():
        mine = [piece for piece in pieces if piece.partition == partition]
        edges = [first, *(piece.stop for piece in mine)]
        assert (stop if mine else first) == edges[-1]
        assert edges[:-1] == [piece.first for piece in mine]
    assert all(0 < piece.stop - piece.first <= (most or RECORDS_PER_TASK_MAX) for piece in pieces)
    total = sum(stop - first for first, stop in whole.values())
    assert len(pieces) >= min(pieces_min or 0, total)


@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=60),
    st.none() | st.integers(1, 400_000),
    st.none() | st.integers(1, 80),
)
def test_packed_tasks_read_the_pieces_in_order_and_keep_both_options(
    lengths: list[int], most: int | None, tasks_min: int | None
) -> None:
    whole = {TopicPartition("clicks", number): (7, 7 + length) for number, length in enumerate(lengths)}
    pieces = split(whole, records_max=most, pieces_min=tasks_min)

    tasks = pack(pieces, records_max=most, tasks_min=tasks_min)

    assert pieces == [piece for task in tasks for piece in task]
    assert len(tasks) >= min(tasks_min or 8, len(pieces))
    assert all(sum(piece.stop - piece.first for piece in task) <= (most or RECORDS_PER_TASK_MAX) for task in tasks)
    assert all(len(task) <= PACKED_RANGES_MAX for task in tasks)


def test_many_small_partitions_become_few_tasks() -> None:
    small = {TopicPartition("clicks", number): (0, 500) for number in range(200)}
    pieces = split(small, records_max=None, pieces_min=None)

    assert 8 == len(pack(pieces, records_max=None, tasks_min=None))
    assert 100 == len(pack(pieces, records_max=1000, tasks_min=None))
    assert 200 == len(pack(pieces, records_max=None, tasks_min=200))
    assert 200 == len(pack(pieces, records_max=None, tasks_min=1000))


def test_partitions_that_are_worth_a_task_keep_one_each() -> None:
    large = {TopicPartition("clicks", number): (0, 60_000) for number in range(20)}
    few = {TopicPartition("clicks", number): (0, 5) for number in range(8)}

    for whole, tasks in ((large, 20), (few, 8)):
        assert tasks == len(pack(split(whole, records_max=None, pieces_min=None), records_max=None, tasks_min=None))


def test_a_large_range_is_split_without_being_asked() -> None:
    assert [Range(P0, 0, 400_000), Range(P0, 400_000, 800_000)] == split(
        {P0: (0, 800_000)}, records_max=None, pieces_min=None
    )


@pytest.mark.parametrize(("offset", "is_lost"), [(9, True), (10, False), (20, False), (21, True)])
def test_a_position_outside_of_the_log_is_noticed(offset: int, is_lost: bool) -> None:
    assert ([offset] if is_lost else []) == [one.offset for one in find_losses({P0: offset}, {P0: Bounds(10, 20)})]


def test_what_is_lost_is_counted_partition_by_partition() -> None:
    lost = find_losses({P0: 3, P1: 0, P2: 50}, {P0: Bounds(10, 20), P1: Bounds(2_000, 9_000), P2: Bounds(0, 30)})

    assert (
        "At most 2,007 records were deleted before this query read them: 7 records of clicks-0 (offsets 3 to 9; the "
        "log holds 10 to 20); 2,000 records of clicks-1 (offsets 0 to 1999; the log holds 2000 to 9000); offset 50 of "
        "clicks-2 lies beyond the log, which holds 0 to 30 (was the topic deleted and created again?)"
        == describe_losses(lost)
    )


def test_records_of_a_topic_that_was_deleted_are_not_counted_by_the_offsets_of_the_new_one() -> None:
    lost = [Loss(partition=P0, offset=5, bounds=Bounds(20, 30), is_recreated=True)]

    assert describe_losses(lost).startswith(
        "Positions are not in their logs: offset 5 of clicks-0 belongs to a topic of that"
    )


def test_bytes_are_shared_in_proportion_to_what_waits_there_in_bytes() -> None:
    large = {P0: 1000.0, P1: 10.0}

    assert {P0: 50, P1: 50} == share_records(
        {P0: 0, P1: 0}, {P0: 100, P1: 100}, records_max=None, bytes_max=50_500, record_bytes=large
    )
    assert {P0: 100, P1: 100} == share_records(
        {P0: 0, P1: 0}, {P0: 100, P1: 100}, records_max=None, bytes_max=101_000, record_bytes=large
    )


def test_of_two_limits_the_tighter_one_counts() -> None:
    first, ends, sizes = {P0: 0}, {P0: 1000}, {P0: 10.0}

    assert {P0: 30} == share_records(first, ends, records_max=30, bytes_max=5000, record_bytes=sizes)
    assert {P0: 20} == share_records(first, ends, records_max=30, bytes_max=200, record_bytes=sizes)


@pytest.mark.parametrize(
    ("waiting", "since_ms", "is_met"),
    [(99, None, True), (99, 10_000, False), (100, 10_000, True), (1, 60_000, True)],
)
def test_a_batch_waits_for_enough_records_or_for_long_enough(waiting: int, since_ms: int | None, is_met: bool) -> None:
    assert is_met == Limits(records_min=100, delay_max_ms=60_000).are_met(waiting, since_batch_ms=since_ms)
