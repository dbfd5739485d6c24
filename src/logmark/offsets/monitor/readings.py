"""What one sample says about every group, put together for alerts and metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logmark.names import TopicPartition


class PartitionReading(NamedTuple):
    """A group in one partition.

    `lag` is None where nothing is committed (`is_uncommitted`) or the log could not be asked. `seconds` is the age of
    the oldest unread record, as far as `method` could tell. `left_s` is how long that record will still be there, at
    worst; None if nobody can say.
    """

    partition: TopicPartition
    lag: int | None
    lost: int = 0
    seconds: float | None = None
    method: str = ""
    verdict: str = ""
    evidence: str = ""
    is_uncommitted: bool = False
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group with its partitions.

    `problem` says why it could not be read. `verdict` is that of the worst partition, empty while there are too few
    samples. `catch_up_s` is infinite where the group will never catch up at the present rate. `reset_at_ms` is when
    our own tools last moved it. `expires_in_s` is how long an idle group still has, as far as we have watched it.
    """

    group: str
    state: str
    members: int
    partitions: Sequence[PartitionReading]
    verdict: str = ""
    evidence: str = ""
    catch_up_s: float | None = None
    problem: str = ""
    reset_at_ms: int | None = None
    expires_in_s: float | None = None

    def slices(self, per: str) -> "Iterator[tuple[str | None, int | None, Sequence[PartitionReading]]]":
        """Yield the group as a whole, or split by topic or by partition, as (topic, partition, readings)."""
        if per == "group":
            yield None, None, self.partitions
        elif per == "partition":
            for one in self.partitions:
                yield one.partition.topic, one.partition.partition, (one,)
        else:
            topics: dict[str, list[PartitionReading]] = {}
            for one in self.partitions:
                topics.setdefault(one.partition.topic, []).append(one)
            for topic, partitions in topics.items():
                yield topic, None, partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One sample of a cluster; `is_complete` tells that no group can have been left out of it."""

    at_ms: int
    groups: Sequence[GroupReading]
    is_complete: bool = True
