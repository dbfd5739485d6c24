"""Which offsets a batch read takes, and the errors for those that it cannot."""

import logging
import re

import pytest

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.batch_ranges import plan_batch_ranges
from logmark.spark.source.options import parse_source_options
from tests.spark.source.test_group_follower import FakeCluster

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
Ranges = dict[TopicPartition, tuple[int, int]]


def ranges(cluster: FakeCluster, **given: str) -> Ranges:
    named = {"bootstrap.servers": "b:1", "subscribe": "clicks"} | given
    if "subscribePattern" in given:
        del named["subscribe"]
    return plan_batch_ranges(cluster, parse_source_options(named, is_stream=False), now_ms=200_000)


def logs() -> FakeCluster:
    """The record of offset n is of second n; now is second 200."""
    return FakeCluster(p0=(10, 100), p1=(0, 50))


READS: list[tuple[dict[str, str], Ranges]] = [
    ({}, {P0: (10, 100), P1: (0, 50)}),
    ({"startingOffsets": '{"clicks": {"0": 20, "1": -1}}'}, {P0: (20, 100), P1: (50, 50)}),
    ({"endingOffsets": '{"clicks": {"0": 20, "1": -1}}'}, {P0: (10, 20), P1: (0, 50)}),
    ({"startingOffsets": "-5"}, {P0: (95, 100), P1: (45, 50)}),
    ({"startingOffsets": "-2m", "endingOffsets": "-110s"}, {P0: (80, 90), P1: (50, 50)}),
    ({"startingTimestamp": "40000", "endingTimestamp": "60000"}, {P0: (40, 60), P1: (40, 50)}),
    ({"endingTimestamp": "20000", "startingTimestamp": "30000"}, {P0: (30, 30), P1: (30, 30)}),
    ({"endingOffsetsByTimestamp": '{"clicks": {"0": 0, "1": 9000}}'}, {P0: (10, 10), P1: (0, 9)}),
    ({"group.id": "billing", "startingOffsets": "committed"}, {P0: (42, 100), P1: (0, 50)}),
    (
        {"group.id": "billing", "startingOffsets": "committed", "auto.offset.reset": "latest"},
        {P0: (42, 100), P1: (50, 50)},
    ),
    ({"group.id": "billing"}, {P0: (10, 100), P1: (0, 50)}),
    ({"subscribePattern": "cli.*"}, {P0: (10, 100), P1: (0, 50)}),
]


@pytest.mark.parametrize(("given", "wanted"), READS)
def test_a_batch_read_takes(given: dict[str, str], wanted: Ranges) -> None:
    cluster = logs()
    cluster.reset(p0=42)

    assert wanted == ranges(cluster, **given)
    assert [] == cluster.commits


MISTAKES = [
    ({"startingOffsets": '{"clicks": {"0": 4, "1": 0}}'}, "6 records of clicks-0 (offsets 4 to 9; the log holds 10 to"),
    ({"startingOffsets": '{"clicks": {"0": 400, "1": 0}}'}, "startingOffsets asks for offset 400 of clicks-0"),
    ({"endingOffsets": '{"clicks": {"0": 400, "1": 0}}'}, "endingOffsets asks for offset 400 of clicks-0, but the log"),
    ({"startingTimestamp": "70000"}, "clicks-1 has no record of that time or later"),
    ({"subscribePattern": "orders.*"}, "No topic at b:1 has a name that fits 'orders.*'"),
    ({"subscribe": "orders"}, "There is no topic orders at b:1"),
    (
        {"group.id": "nobody", "startingOffsets": "committed", "auto.offset.reset": "none"},
        "Group nobody has no committed offset for clicks-0, clicks-1, and auto.offset.reset is none",
    ),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_a_batch_read_that_cannot_be_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        ranges(logs(), **given)


def test_a_read_that_may_lose_records_begins_at_the_first_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = ranges(logs(), startingOffsets='{"clicks": {"0": 4, "1": 0}}', failOnDataLoss="false")

    assert {P0: (10, 100), P1: (0, 50)} == found
    assert "At most 6 records were deleted" in caplog.text


def test_committed_transactions_are_read_up_to_the_oldest_open_one() -> None:
    cluster = logs()
    cluster.stable[P0] = 70

    assert {P0: (10, 70), P1: (0, 50)} == ranges(cluster, **{"kafka.isolation.level": "read_committed"})
