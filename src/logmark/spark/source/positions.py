"""Where all sources of a query stand: one position for each.

Spark writes a line into the checkpoint for each time that a source occurs in the plan of a query. A source that is used
several times, as in a union of two filters, has several equal lines: it is read once, and is one source here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logmark.client.answers import Committed
from logmark.names import TopicPartition
from logmark.spark.source.position import Offsets, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a query with several sources, in the order of Spark's plan.

    Its offsets are those of all sources. Of a partition that two groups read they are the lesser ones, up to which the
    query has read it in both.
    """

    sources: tuple[Position, ...]

    @property
    def group(self) -> str:
        """The groups of the sources as one name, which is the group's where they share one."""
        return ", ".join(sorted({source.group for source in self.sources}))

    @property
    def query(self) -> str:
        """The tokens of the sources as one name."""
        return ", ".join(sorted({source.query for source in self.sources}))

    @property
    def generation(self) -> int:
        """The greatest generation of the sources."""
        return max(source.generation for source in self.sources)

    @property
    def first(self) -> Offsets:
        """The first offset of the batch, per partition."""
        return _merge_offsets(source.first for source in self.sources)

    @property
    def next(self) -> Offsets:
        """The next offset after the batch, per partition."""
        return _merge_offsets(source.next for source in self.sources)

    @property
    def ids(self) -> Mapping[str, str]:
        """The ids of the topics."""
        return {topic: number for source in self.sources for topic, number in source.ids.items()}

    @property
    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets that the batch reads, [first, next), without partitions where it reads none."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for source in self.sources:
            for partition, (first, end) in source.ranges.items():
                known = found.get(partition, (first, end))
                found[partition] = min(first, known[0]), max(end, known[1])
        return found

    def commits(self, *, is_stateful: bool | None = None) -> dict[TopicPartition, Committed]:
        """Return the commits of the next offsets of sources that share a group, with the marks of their queries."""
        each = (source.commits(is_stateful=is_stateful) for source in self.sources)
        return {partition: one for commits in each for partition, one in commits.items()}


# What the checkpoint of a query says: of one source, or of several.
QueryPosition = Position | Positions


def merge_positions(lines: Iterable[Position]) -> QueryPosition:
    """Return the position of a query from those of its plan's sources, each of which may occur several times."""
    sources = tuple(_distinct(lines))
    return sources[0] if len(sources) == 1 else Positions(sources=sources)


def find_shared_partitions(position: QueryPosition, *, in_one_group: bool) -> list[TopicPartition]:
    """Return the partitions that more than one source reads; with `in_one_group` those that one group reads twice."""
    seen: set[tuple[str, TopicPartition]] = set()
    shared: set[TopicPartition] = set()
    for source in position.sources:
        keys = {(source.group if in_one_group else "", partition) for partition in source.next}
        shared |= {partition for _, partition in keys & seen}
        seen |= keys
    return sorted(shared)


def _distinct(lines: Iterable[Position]) -> list[Position]:
    found: list[Position] = []
    for line in lines:
        if line not in found:
            found.append(line)
    return found


def _merge_offsets(each: Iterable[Offsets]) -> dict[TopicPartition, int]:
    merged: dict[TopicPartition, int] = {}
    for offsets in each:
        for partition, offset in offsets.items():
            merged[partition] = min(offset, merged.get(partition, offset))
    return merged
