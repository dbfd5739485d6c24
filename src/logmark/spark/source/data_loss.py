"""Records that were gone before they were read: how many, and what is said about them."""

from collections.abc import Mapping
from dataclasses import dataclass

from logmark.names import TopicPartition
from logmark.spark.source.offset_specs import Ago, Edge, Word
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds

BEYOND_GRACE_MS = 30_000  # a new leader may show an older end for a moment, and metadata may miss a topic
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A position that its log does not hold."""

    place: TopicPartition
    offset: int
    bounds: Bounds
    is_anew: bool = False  # its topic was deleted and made again

    @property
    def count(self) -> int:
        """How many records were deleted unread, at most: offsets are counted, and not each has a record."""
        return 0 if self.is_anew else max(0, self.bounds.start - self.offset)

    def __str__(self) -> str:
        start, end = self.bounds
        if self.is_anew:
            return (
                f"offset {self.offset} of {self.place} belongs to a topic of that name that was deleted; the one that "
                f"is there now holds {start} to {end}"
            )
        if self.count:
            records = "1 record" if self.count == 1 else f"{self.count:,} records"
            return f"{records} of {self.place} (offsets {self.offset} to {start - 1}; the log holds {start} to {end})"
        return f"offset {self.offset} of {self.place} lies beyond the log, which holds {start} to {end} (made anew?)"


def losses(offsets: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> list[Loss]:
    """The positions from which nothing can be read: below the log start, or beyond the end."""
    return [
        Loss(place=place, offset=offset, bounds=bounds[place])
        for place, offset in sorted(offsets.items())
        if place in bounds and not bounds[place].start <= offset <= bounds[place].end
    ]


def told(lost: list[Loss]) -> str:
    """What is gone, in one sentence without its full stop."""
    total = sum(one.count for one in lost)
    shown = "; ".join(str(one) for one in lost[:_SHOWN_MAX])
    more = f"; and {len(lost) - _SHOWN_MAX} more partitions" if len(lost) > _SHOWN_MAX else ""
    if not total:
        return f"Positions are not in their logs: {shown}{more}"
    every = "1 record was" if total == 1 else f"{total:,} records were"
    return f"At most {every} deleted before this query read them: {shown}{more}"


def refusal(lost: list[Loss], group: str) -> str:
    """What ends a query that was not told to go on."""
    numbers: dict[str, list[str]] = {}
    for one in lost:
        numbers.setdefault(one.place.topic, []).append(str(one.place.partition))
    topics = " ".join(f"--topic {topic}:{','.join(partitions)}" for topic, partitions in numbers.items())
    return (
        f"{told(lost)}. Nothing was skipped: group {group} stays where it is. To go on without them, set "
        "failOnDataLoss to false, or auto.offset.reset to earliest or latest, or move the group: "
        f"logmark offsets reset {group} {topics} --to-earliest."
    )


def shown_edge(edge: Edge) -> str:
    """Where reading goes on, in words."""
    match edge:
        case Word(word):
            return f"the {'first record left' if word == 'earliest' else 'end'}"
        case Ago(milliseconds):
            return f"the first record of the last {milliseconds // 1000} s"
    return "the given start"


class Grace:
    """Remembers since when something has been so; lives as long as the query runs."""

    def __init__(self) -> None:
        self._since_ms: dict[TopicPartition, int] = {}

    @property
    def places(self) -> set[TopicPartition]:
        """Those that were named last."""
        return set(self._since_ms)

    def outlasted(self, places: set[TopicPartition], *, now_ms: int) -> set[TopicPartition]:
        """Those of the places that have been named without a break for the whole grace."""
        self._since_ms = {place: self._since_ms.get(place, now_ms) for place in places}
        return {place for place, since in self._since_ms.items() if now_ms - since >= BEYOND_GRACE_MS}
