"""Which batches a table takes."""

from pathlib import Path
from typing import Any

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import TableGone, TableReplaced
from logmark.spark.source.position import Position
from logmark.spark.source.positions import Positions
from logmark.spark.tables.ledger import (
    Batch,
    Ledger,
    entries,
    note,
    number_of_name,
    read_ledger,
    summarize_ledger,
    takes,
    transfer_ledger,
)

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


EVERYWHERE = Position(group="billing", query="q", generation=5, first={}, next={P0: 0, P1: 0})


def batch(first: int, end: int, *, generation: int = 5, group: str = "billing", **more: Any) -> Batch:
    return of(Position(group=group, query="q", generation=generation, first={P0: first}, next={P0: end}), **more)


def of(position: Position, **more: Any) -> Batch:
    return Batch(position=position, **{"number": 0, **more})


def after(*batches: Batch) -> Ledger:
    """The ledger of a table that took these batches."""
    numbers: dict[str, int] = {}
    for one in batches:
        numbers |= entries(one, read_ledger(numbers.get, one.position))
    return read_ledger(numbers.get, EVERYWHERE)


def test_a_table_without_batches_takes_the_first_one_of_a_checkpoint_wherever_that_begins() -> None:
    for is_stateful in (False, True):
        assert takes(after(), batch(500, 600, is_stateful=is_stateful), table="t")


def test_a_table_without_batches_takes_the_first_one_after_a_seek() -> None:
    assert takes(after(), batch(0, 100, number=7), table="t")


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        (
            {"number": 7, "is_continued": True},
            r"reset the group billing to where it shall begin, .* the earliest offsets, take the query's "
            r"checkpoint away \(/checkpoints/v1\) and start it again",
        ),
        (
            {"number": 1, "is_stateful": True},
            r"as a new version \(logmark pipelines replay\), or without a pipeline by taking the query's checkpoint "
            r"away \(/checkpoints/v1\) and resetting its group billing to the earliest offsets",
        ),
    ],
)
def test_a_table_that_is_gone_or_has_another_path_is_not_begun_in_the_middle(more: Any, remedy: str) -> None:
    with pytest.raises(TableGone, match=f"t holds nothing of this query, .* Nothing was written.* {remedy}"):
        takes(after(), batch(700, 800, checkpoint=Path("/checkpoints/v1"), **more), table="t")


def test_a_batch_that_begins_where_the_table_stands_is_taken() -> None:
    assert takes(after(batch(0, 100)), batch(100, 200), table="t")


def test_a_batch_that_spark_repeats_is_recognised_by_its_offsets() -> None:
    assert not takes(after(batch(0, 100)), batch(0, 100), table="t")


def test_after_a_seek_a_batch_may_begin_anywhere() -> None:
    for first in (0, 50, 100, 5000):
        assert takes(after(batch(0, 100)), batch(first, first + 10, generation=6), table="t")


def test_after_the_seek_batches_follow_each_other_again() -> None:
    ledger = after(batch(0, 100), batch(20, 30, generation=6))

    assert takes(ledger, batch(30, 40, generation=6), table="t")
    with pytest.raises(UserError, match="ends at offset 30 of clicks-0, but the batch starts at 100"):
        takes(ledger, batch(100, 110, generation=6), table="t")


def test_a_gap_names_the_offset_to_reset_to_and_the_checkpoint_to_take_away() -> None:
    remedy = r"ends at offset 100 of clicks-0, .* Reset group billing to 100 there"
    with pytest.raises(TableReplaced, match=rf"{remedy}, take the query's checkpoint away \(c\)"):
        takes(after(batch(0, 100)), batch(200, 300, checkpoint=Path("c")), table="t")
    with pytest.raises(UserError, match=r"starts at 200.* Build it again as a new version"):
        takes(after(batch(0, 100, is_stateful=True)), batch(200, 300, number=1, is_stateful=True), table="t")


def test_a_repeated_batch_of_a_query_with_state_is_known_by_its_number() -> None:
    ledger = after(*(batch(10 * number, 10 * number + 10, number=number, is_stateful=True) for number in range(3)))

    for number in range(3):
        assert not takes(ledger, batch(10 * number, 10 * number + 10, number=number, is_stateful=True), table="t")


def test_a_seek_and_a_timer_of_a_query_with_state_are_known_by_their_number() -> None:
    begun = batch(0, 10, is_stateful=True)
    seek = batch(500, 500, number=1, generation=6, is_stateful=True)

    assert not takes(after(begun, seek), seek, table="t")
    timer = batch(0, 10, number=1, is_stateful=True)
    assert not takes(after(begun, timer), timer, table="t")


@pytest.mark.parametrize("generation", [5, 6])
@pytest.mark.parametrize("first", [20, 30])
def test_a_batch_of_a_known_number_that_reads_new_records_is_an_error(generation: int, first: int) -> None:
    ledger = after(*(batch(10 * number, 10 * number + 10, number=number, is_stateful=True) for number in range(3)))

    with pytest.raises(
        UserError, match=r"holds batch 2 .* up to offset 50 of clicks-0, .* counted up to 30.* Nothing was"
    ):
        takes(ledger, batch(first, 50, number=2, generation=generation, is_stateful=True), table="t")


def test_a_batch_of_a_known_number_that_reads_a_new_partition_is_an_error() -> None:
    other = Position(group="billing", query="q", generation=5, first={P0: 10, P1: 0}, next={P0: 10, P1: 5})

    with pytest.raises(UserError, match="up to offset 5 of clicks-1, of which the table has counted nothing"):
        takes(after(batch(0, 10, is_stateful=True)), of(other, is_stateful=True), table="t")


def test_a_partition_that_is_new_does_not_make_the_batch_a_repeated_one() -> None:
    grown = of(Position(group="billing", query="q", generation=5, first={P0: 100, P1: 0}, next={P0: 100, P1: 7}))

    assert takes(after(batch(0, 100)), grown, table="t")
    assert not takes(after(batch(0, 100), grown), grown, table="t")


def test_a_seek_of_one_partition_is_remembered_until_that_partition_has_records() -> None:
    before = of(Position(group="billing", query="q", generation=5, first={P0: 0, P1: 0}, next={P0: 100, P1: 100}))
    other_first = of(
        Position(group="billing", query="q", generation=6, first={P0: 100, P1: 40}, next={P0: 110, P1: 40})
    )
    then = of(Position(group="billing", query="q", generation=6, first={P0: 110, P1: 40}, next={P0: 110, P1: 50}))

    assert takes(after(before, other_first), then, table="t")


def test_a_query_that_lost_its_group_writes_nothing() -> None:
    with pytest.raises(UserError, match="A newer query has taken over the group billing"):
        takes(after(batch(0, 100, generation=6)), batch(100, 200, generation=5), table="t")


def test_another_group_writes_nothing() -> None:
    with pytest.raises(UserError, match="holds the rows of another group than fraud"):
        takes(after(batch(0, 100)), batch(100, 200, generation=9, group="fraud"), table="t")


def test_the_commit_tells_people_group_generation_start_and_end() -> None:
    assert {
        "group": "billing",
        "generation": 5,
        "start": {"clicks": {"0": 0}},
        "end": {"clicks": {"0": 100}},
        "query": "q",
        "batch": 7,
        "mode": "replace",
    } == note(batch(0, 100, number=7))


ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)


def joined(
    orders: tuple[int, int],
    payments: tuple[int, int],
    *,
    generations: tuple[int, int] = (5, 7),
    groups: tuple[str, str] = ("billing", "billing"),
    topics: tuple[TopicPartition, TopicPartition] = (ORDERS, PAYMENTS),
    **more: Any,
) -> Batch:
    """A batch of two sources."""
    sources = tuple(
        Position(
            group=groups[number],
            query=f"q{number}",
            generation=generations[number],
            first={topics[number]: first},
            next={topics[number]: end},
        )
        for number, (first, end) in enumerate((orders, payments))
    )
    return Batch(position=Positions(sources=sources), **{"number": 0, **more})


def holds(*batches: Batch) -> dict[str, int]:
    """What is noted in a table that took these batches."""
    numbers: dict[str, int] = {}
    for one in batches:
        numbers |= entries(one, read_ledger(numbers.get, one.position))
    return numbers


def is_taken(numbers: dict[str, int], one: Batch) -> bool:
    return takes(read_ledger(numbers.get, one.position), one, table="t")


@pytest.mark.parametrize("is_stateful", [False, True])
def test_batches_of_two_sources_are_taken_once_and_without_a_gap_in_either(is_stateful: bool) -> None:
    first = joined((0, 10), (0, 4), is_stateful=is_stateful)
    second = joined((10, 20), (4, 4), number=1, is_stateful=is_stateful)

    assert is_taken({}, first)
    assert not is_taken(holds(first), first)
    assert is_taken(holds(first), second)
    assert not is_taken(holds(first, second), second)
    assert is_taken(holds(first, second), joined((20, 20), (4, 9), number=2, is_stateful=is_stateful))
    with pytest.raises(UserError, match="ends at offset 4 of payments-0, but the batch starts at 6"):
        is_taken(holds(first, second), joined((20, 30), (6, 9), number=2, is_stateful=is_stateful))


def test_a_source_that_was_moved_may_begin_anywhere_and_the_other_goes_on() -> None:
    numbers = holds(joined((0, 10), (0, 4)))

    assert is_taken(numbers, joined((2, 10), (4, 4), generations=(8, 7)))
    assert is_taken(numbers, joined((10, 10), (0, 2), generations=(5, 9)))
    with pytest.raises(UserError, match="ends at offset 10 of orders-0, but the batch starts at 2"):
        is_taken(numbers, joined((2, 10), (0, 2), generations=(5, 9)))


def test_a_query_that_lost_one_of_its_sources_to_a_newer_one_is_refused() -> None:
    numbers = holds(joined((0, 10), (0, 4)), joined((10, 10), (4, 6), generations=(5, 9)))

    with pytest.raises(UserError, match=r"newer query .* \(generation 9, this query has 7\)"):
        is_taken(numbers, joined((10, 20), (4, 9)))


def test_state_that_has_counted_a_record_refuses_it_from_any_source() -> None:
    numbers = holds(joined((0, 10), (0, 4), is_stateful=True))
    seek = joined((10, 12), (2, 2), generations=(5, 9), number=1, is_stateful=True)

    assert is_taken(numbers, seek)
    with pytest.raises(UserError, match="moved back: the batch begins at offset 2 of payments-0"):
        is_taken(
            numbers | entries(seek, read_ledger(numbers.get, seek.position)),
            joined((12, 12), (2, 4), generations=(5, 9), number=2, is_stateful=True),
        )
    repeated = joined((0, 10), (0, 6), is_stateful=True)
    with pytest.raises(UserError, match="with other records: up to offset 6 of payments-0"):
        is_taken(numbers, repeated)


def test_a_table_goes_from_one_source_to_two_and_back() -> None:
    alone = of(Position(group="billing", query="q", generation=5, first={ORDERS: 0}, next={ORDERS: 10}))
    both = joined((10, 20), (0, 4), generations=(8, 9))
    again = of(Position(group="billing", query="r", generation=12, first={ORDERS: 20}, next={ORDERS: 30}))

    assert is_taken(holds(alone), both)
    assert is_taken(holds(alone, both), again)
    assert not is_taken(holds(alone, both, again), again)
    with pytest.raises(UserError, match="newer query"):
        is_taken(holds(alone, both, again), both)


def test_two_groups_that_read_a_topic_are_told_apart_where_there_is_state_and_refused_where_there_is_none() -> None:
    more: dict[str, Any] = {"groups": ("left", "right"), "topics": (ORDERS, ORDERS)}
    first = joined((0, 10), (0, 4), is_stateful=True, **more)

    assert is_taken(holds(first), joined((10, 12), (4, 9), number=1, is_stateful=True, **more))
    with pytest.raises(UserError, match="ends at offset 4 of orders-0, but the batch starts at 5"):
        is_taken(holds(first), joined((10, 12), (5, 9), number=1, is_stateful=True, **more))
    with pytest.raises(UserError, match=r"Several sources .* read orders-0, in the groups left, right"):
        is_taken({}, joined((0, 10), (0, 4), **more))
    assert "left, right" == note(first)["group"]


def test_sources_of_a_swapped_version_go_over_to_the_group_of_the_table_one_by_one() -> None:
    built = joined((0, 10), (0, 4), groups=("billing.v2", "billing.v2"), is_stateful=True)
    numbers = transfer_ledger(holds(built), {}, group="billing")

    for groups in (("billing.v2", "billing.v2"), ("billing", "billing.v2"), ("billing", "billing")):
        one = joined((10, 12), (4, 5), groups=groups, number=1, is_stateful=True)
        assert is_taken(numbers, one)
        assert number_of_name("billing") == entries(one, read_ledger(numbers.get, one.position))["logmark/group"]
    with pytest.raises(UserError, match="another group than billing, other"):
        is_taken(numbers, joined((10, 12), (4, 5), groups=("billing", "other"), number=1, is_stateful=True))


def test_what_a_table_has_of_two_sources_is_shown_by_topic() -> None:
    more: dict[str, Any] = {"groups": ("left", "right"), "topics": (ORDERS, ORDERS), "is_stateful": True}

    assert {"orders": {"0": 10}, "payments": {"0": 4}} == summarize_ledger(holds(joined((0, 10), (0, 4))))["end"]
    assert {"orders": {"0": 4}} == summarize_ledger(holds(joined((0, 10), (0, 4), **more)))["end"]
