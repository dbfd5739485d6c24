"""Which batches a table takes."""

from typing import Any

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.position import Position
from logmark.spark.tables.ledger import Batch, Ledger, entries, note, read_ledger, takes

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


EVERYWHERE = Position(group="billing", query="q", generation=5, first={}, next={P0: 0, P1: 0})


def batch(first: int, end: int, *, generation: int = 5, group: str = "billing", **more: Any) -> Batch:
    return of(Position(group=group, query="q", generation=generation, first={P0: first}, next={P0: end}), **more)


def of(position: Position, *, number: int = 0, is_stateful: bool = False, mode: str = "replace") -> Batch:
    return Batch(position=position, number=number, is_stateful=is_stateful, mode=mode)


def after(*batches: Batch) -> Ledger:
    """The ledger of a table that took these batches."""
    numbers: dict[str, int] = {}
    for one in batches:
        numbers |= entries(one, read_ledger(numbers.get, one.position))
    return read_ledger(numbers.get, EVERYWHERE)


def test_a_table_without_batches_takes_any() -> None:
    assert takes(after(), batch(500, 600), table="t")


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
    with pytest.raises(UserError, match="stands at offset 30 of clicks-0, but the batch begins at 100"):
        takes(ledger, batch(100, 110, generation=6), table="t")


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
