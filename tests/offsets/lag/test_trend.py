"""Rates, trends and the time to catch up."""

import math
from collections.abc import Sequence

import pytest

from logmark.names import TopicPartition
from logmark.offsets.lag.history import PartitionSample
from logmark.offsets.lag.trend import Direction, compute_trend

PARTITION, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def series(committed: Sequence[int], ends: Sequence[int], *, since_s: int = 0) -> list[PartitionSample]:
    """One partition, seen every ten seconds."""
    return [
        PartitionSample(1_000_000 + (since_s + 10 * index) * 1_000, at, 0, end)
        for index, (at, end) in enumerate(zip(committed, ends, strict=True))
    ]


@pytest.mark.parametrize(
    ("claim", "committed", "ends", "direction", "in_per_s", "out_per_s", "catch_up"),
    [
        ("caught up", [0, 100, 200], [0, 100, 200], "steady", 10, 10, "now"),
        ("catching up", [0, 200, 400], [1000, 1100, 1200], "shrinking", 10, 20, "1 min 20 s"),
        ("an idle topic is read", [0, 100, 200], [1000, 1000, 1000], "shrinking", 0, 10, "1 min 20 s"),
        ("falling behind", [0, 50, 100], [0, 100, 200], "growing", 10, 5, "never at this rate"),
        ("as far behind as before", [0, 100, 200], [500, 600, 700], "steady", 10, 10, "never at this rate"),
        ("nobody reads", [5, 5, 5], [10, 20, 30], "growing", 1, 0, "never at this rate"),
        (
            "noise is no trend",
            [0, 90, 210, 290, 390],
            [500, 600, 700, 800, 900],
            "steady",
            10,
            9.75,
            "never at this rate",
        ),
        ("a trend in noise", [0, 90, 150, 260, 300], [0, 200, 400, 600, 800], "growing", 20, 7.5, "never at this rate"),
        ("a rewind is no reading", [900, 100, 150, 200], [1000] * 4, "shrinking", 0, 5, "2 min 40 s"),
        ("a recreated topic", [900, 0, 50, 100], [1000, 100, 200, 300], "growing", 10, 5, "never at this rate"),
    ],
)
def test_where_the_lag_goes(
    claim: str, committed: Sequence[int], ends: Sequence[int], direction: str, in_per_s: float, out_per_s: float,
    catch_up: str,
) -> None:  # fmt: skip
    trend = compute_trend({PARTITION: series(committed, ends)})

    assert (direction, in_per_s, out_per_s, catch_up) == (
        trend.direction, trend.in_per_s, trend.out_per_s, trend.catch_up
    ), claim  # fmt: skip


def test_a_group_is_the_sum_of_its_partitions() -> None:
    trend = compute_trend({PARTITION: series([0, 100], [0, 300]), OTHER: series([0, 400], [1000, 1000])})

    assert (30, 50, 8) == (trend.in_per_s, trend.out_per_s, round((trend.catch_up_ms or 0) / 5_000))
    assert Direction.SHRINKING == trend.direction


def test_a_partition_that_turned_up_late_is_no_sudden_lag() -> None:
    late = series([0, 0], [5_000, 5_000], since_s=20)
    trend = compute_trend({PARTITION: series([0, 100, 200, 300], [0, 100, 200, 300]), OTHER: late})

    assert (Direction.STEADY, 10) == (trend.direction, trend.in_per_s)


@pytest.mark.parametrize(
    "seen", [{}, {PARTITION: []}, {PARTITION: series([1], [5])}, {PARTITION: series([1], [2]), OTHER: []}]
)
def test_too_little_is_not_known(seen: dict[TopicPartition, list[PartitionSample]]) -> None:
    trend = compute_trend(seen)

    assert (Direction.UNKNOWN, None, "unknown") == (trend.direction, trend.in_per_s, trend.catch_up)


def test_never_is_infinite() -> None:
    assert math.inf == compute_trend({PARTITION: series([0, 0], [0, 10])}).catch_up_ms
