"""Which offsets a batch reads, and how tasks share them: pure arithmetic."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from logmark.names import TopicPartition

RECORDS_PER_TASK_MAX = 500_000  # a task costs Spark tens of milliseconds whatever it reads
# What one task reads of several partitions. The same numbers must make the same tasks of a batch that is repeated after
# a restart, on any machine: a topic knows the rows that it has got already by their task.
PACKED_RECORDS_MAX = 100_000
PACKED_RANGES_MAX = 32  # they are read one after the other
PACKED_TASKS_MIN = 8


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


def pack(pieces: Sequence[Range], *, records_max: int | None, tasks_min: int | None) -> list[tuple[Range, ...]]:
    """Share the pieces among tasks, in order: several small ones in a row become one task.

    A task costs tens of milliseconds, and seconds where Spark ends it early, as for a limit. No packed task has more
    than `records_max` offsets, and there are at least `tasks_min` tasks if there are so many pieces.
    """
    limit = min(records_max or PACKED_RECORDS_MAX, PACKED_RECORDS_MAX)
    room = len(pieces) - (tasks_min or PACKED_TASKS_MIN)  # so many pieces may join the one before them
    total = sum(piece.stop - piece.first for piece in pieces)
    limit = min(limit, -(-total // (tasks_min or PACKED_TASKS_MIN)))
    tasks: list[list[Range]] = []
    filled = 0
    for piece in pieces:
        length = piece.stop - piece.first
        if tasks and room > 0 and filled + length <= limit and len(tasks[-1]) < PACKED_RANGES_MAX:
            tasks[-1].append(piece)
            filled += length
            room -= 1
        else:
            tasks.append([piece])
            filled = length
    return [tuple(task) for task in tasks]


def _cut(one: Range, pieces: int) -> list[Range]:
    length = one.stop - one.first
    edges = [one.first + length * piece // pieces for piece in range(pieces + 1)]
    return [Range(one.partition, first, stop) for first, stop in pairwise(edges)]
