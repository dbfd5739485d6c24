"""Where the sources of a query stand, as its checkpoint says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.checkpoint import finished_position, read_position, resume_position
from logmark.spark.source.position import Position
from logmark.spark.source.positions import Positions

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)


def position(partition: TopicPartition, first: int, end: int, *, query: str = "q", group: str = "billing") -> Position:
    return Position(group=group, query=query, generation=5, first={partition: first}, next={partition: end})


ONE, OTHER = position(ORDERS, 3, 5, query="one"), position(PAYMENTS, 0, 7, query="other")


def note(folder: Path, *lines: Position) -> None:
    """Spark notes a batch of a query with these sources."""
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("\n".join(["v1", "{}", *(json.dumps(one.to_json()) for one in lines)]))


def test_a_source_that_a_plan_has_several_times_is_one(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0", ONE, ONE, ONE)

    assert ONE == read_position(tmp_path, 0)


def test_sources_of_several_topics_have_all_their_offsets(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0", ONE, OTHER, ONE)

    found = read_position(tmp_path, 0)

    assert Positions(sources=(ONE, OTHER)) == found
    assert "billing" == found.group
    assert {ORDERS: (3, 5), PAYMENTS: (0, 7)} == found.ranges
    assert {ORDERS: 5, PAYMENTS: 7} == found.next
    assert {**ONE.commits(), **OTHER.commits()} == found.commits()


def test_every_source_resumes_at_the_start_of_a_batch_that_was_not_committed(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0", ONE, OTHER)

    resumed = resume_position(tmp_path)

    assert finished_position(tmp_path) is None
    assert resumed is not None
    assert {ORDERS: 3, PAYMENTS: 0} == resumed.next
    note(tmp_path / "commits" / "0")
    assert Positions(sources=(ONE, OTHER)) == finished_position(tmp_path) == resume_position(tmp_path)


def test_a_source_that_repeats_its_line_reads_nothing_in_the_batch(tmp_path: Path) -> None:
    following = position(PAYMENTS, 7, 9, query="other")
    note(tmp_path / "offsets" / "0", ONE, OTHER)
    note(tmp_path / "offsets" / "1", ONE, following)

    assert {PAYMENTS: (7, 9)} == read_position(tmp_path, 1).ranges
    resumed = resume_position(tmp_path)
    assert resumed is not None
    assert {ORDERS: 5, PAYMENTS: 7} == resumed.next
    note(tmp_path / "commits" / "1")
    assert Positions(sources=(ONE, following)) == finished_position(tmp_path)


def test_of_a_partition_in_two_groups_the_lesser_offset_was_read_in_both(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0", ONE, position(ORDERS, 2, 4, group="billing-right"))

    found = read_position(tmp_path, 0)

    assert ({ORDERS: 4}, {ORDERS: (2, 5)}) == (found.next, found.ranges)


def test_two_sources_that_read_a_partition_in_one_group_are_refused(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0", ONE, replace(ONE, query="copy"))

    with pytest.raises(UserError, match=r"read orders-0 in the group billing, .* Nothing was written.* share_source"):
        read_position(tmp_path, 0)


def test_a_query_without_a_source_of_ours_is_refused(tmp_path: Path) -> None:
    note(tmp_path / "offsets" / "0")

    with pytest.raises(UserError, match=r"has no source that is format\(\"logmark\"\)"):
        read_position(tmp_path, 0)
