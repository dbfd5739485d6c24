"""Which offsets a batch reads, and how tasks share them: pure arithmetic."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from logmark.names import TopicPartition

RECORDS_PER_TASK_MAX = 500_000  # a task costs Spark tens of milliseconds whatever it reads


class Bounds(NamedTuple):
    """What a partition has to read: [start, end)."""

    start: int
    end: int


class Range(NamedTuple):
    """What one task reads: [first, stop) of one partition."""

    partition: TopicPartition
    first: int
    stop: int


def split(
    ranges: Mapping[TopicPartition, tuple[int, int]], *, records_max: int | None, pieces_min: int | None
) -> list[Range]:
    """Cut the ranges into tasks of at most `records_max` offsets, and into at least `pieces_min` where possible."""
    limit = records_max or RECORDS_PER_TASK_MAX
    whole = [Range(partition, first, stop) for partition, (first, stop) in sorted(ranges.items()) if first < stop]
    pieces = [piece for one in whole for piece in _cut(one, -(-(one.stop - one.first) // limit))]
    if not pieces_min or len(pieces) >= pieces_min:
        return pieces
    total = sum(one.stop - one.first for one in whole)
    size = max(1, total // pieces_min)
    return [piece for one in whole for piece in _cut(one, -(-(one.stop - one.first) // min(size, limit)))]


def _cut(one: Range, pieces: int) -> list[Range]:
    length = one.stop - one.first
    edges = [one.first + length * piece // pieces for piece in range(pieces + 1)]
    return [Range(one.partition, first, stop) for first, stop in pairwise(edges)]
