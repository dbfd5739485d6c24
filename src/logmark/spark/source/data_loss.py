"""Records that were gone before they were read: how many, and what is said about them."""

from collections.abc import Mapping
from dataclasses import dataclass

from logmark.names import TopicPartition
from logmark.spark.errors import RecordsLost
from logmark.spark.source.offset_specs import LogEdge, OffsetSpec, TimeAgo
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds

BEYOND_GRACE_MS = 30_000  # a new leader may show an older end for a moment, and metadata may miss a topic
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A position that its log does not hold."""

    partition: TopicPartition
    offset: int
    bounds: Bounds
    is_recreated: bool = False  # its topic was deleted and created again

    @property
    def count(self) -> int:
        """How many records were deleted unread, at most: offsets are counted, and not each has a record."""
        return 0 if self.is_recreated else max(0, self.bounds.start - self.offset)

    def __str__(self) -> str:
        start, end = self.bounds
        if self.is_recreated:
            return (
                f"offset {self.offset} of {self.partition} belongs to a topic of that name that was deleted; the one "
                f"that is there now holds {start} to {end}"
            )
        if self.count:
            records = "1 record" if self.count == 1 else f"{self.count:,} records"
            return (
                f"{records} of {self.partition} (offsets {self.offset} to {start - 1}; the log holds {start} to {end})"
            )
        return (
            f"offset {self.offset} of {self.partition} lies beyond the log, which holds {start} to {end} (was the "
            "topic deleted and created again?)"
        )


def find_losses(offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
    """Return the positions from which nothing can be read: below the log start, or beyond the end."""
    return [
        Loss(partition=partition, offset=offset, bounds=bounds[partition])
        for partition, offset in sorted(offsets.items())
        if partition in bounds and not bounds[partition].start <= offset <= bounds[partition].end
    ]


def describe_losses(lost: list[Loss]) -> str:
    """Return what is lost, as text without a full stop."""
    total = sum(one.count for one in lost)
    shown = "; ".join(str(one) for one in lost[:_SHOWN_MAX])
    more = f"; and {len(lost) - _SHOWN_MAX} more partitions" if len(lost) > _SHOWN_MAX else ""
    if not total:
        return f"Positions are not in their logs: {shown}{more}"
    every = "1 record was" if total == 1 else f"{total:,} records were"
    return f"At most {every} deleted before this query read them: {shown}{more}"


def refuse_losses(lost: list[Loss], group: str) -> RecordsLost:
    """Return the error that ends a query which may not skip lost records."""
    return RecordsLost(
        f"{describe_losses(lost)}. Nothing was skipped: group {group} was not moved. To continue without them, set "
        "failOnDataLoss to false, or auto.offset.reset to earliest or latest, or move the group."
    )


def describe_spec(edge: OffsetSpec) -> str:
    """Return where reading continues, in words."""
    match edge:
        case LogEdge(word):
            return f"the {'first record left' if word == 'earliest' else 'end'}"
        case TimeAgo(milliseconds):
            return f"the first record of the last {milliseconds // 1000} s"
    return "the given start"


class GracePeriod:
    """Remembers since when something has been so; lives as long as the query runs."""

    def __init__(self) -> None:
        self._since_ms: dict[TopicPartition, int] = {}

    @property
    def partitions(self) -> set[TopicPartition]:
        """Those that were named last."""
        return set(self._since_ms)

    def select_expired(self, partitions: set[TopicPartition], *, now_ms: int) -> set[TopicPartition]:
        """Return the partitions that were named without a break for the whole grace period."""
        self._since_ms = {partition: self._since_ms.get(partition, now_ms) for partition in partitions}
        return {partition for partition, since in self._since_ms.items() if now_ms - since >= BEYOND_GRACE_MS}
