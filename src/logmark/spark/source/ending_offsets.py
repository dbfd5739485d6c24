"""Where a bounded stream ends: offsets that are known at once, or a time that may still lie ahead."""

from collections.abc import Mapping

from logmark.names import TopicPartition
from logmark.spark.source.offset_specs import Ago, AtTime, Edge, LookUp, named_in, places_of
from logmark.spark.source.options import Options
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds


class Stops:
    """The ends that the options set, each found once; lives as long as the query runs."""

    def __init__(self, options: Options) -> None:
        self._edge: Edge | None = options.ending
        self._name = options.ending_name
        self._found: dict[TopicPartition, int] = {}

    def bounded(
        self, ends: Offsets, bounds: Mapping[TopicPartition, Bounds], *, look_up: LookUp, now_ms: int
    ) -> dict[TopicPartition, int]:
        """The ends, none beyond its stop.

        `bounds` were asked before: a record that is as young as the stop and came since is then found by the look-up,
        and one that comes later lies beyond the bounds.
        """
        if self._edge is None:
            return dict(ends)
        if isinstance(self._edge, Ago):
            self._edge = AtTime(max(0, now_ms - self._edge.milliseconds))
        named = named_in(self._edge)
        wanted = {
            place: bounds[place] for place in ends if place not in self._found and (named is None or place in named)
        }
        found = places_of(self._edge, wanted, look_up=look_up, now_ms=now_ms, name=self._name)
        self._found |= {place: offset for place, offset in found.items() if offset is not None}
        unread = set() if named is None else set(ends) - set(named)
        return {place: 0 if place in unread else min(end, self._found.get(place, end)) for place, end in ends.items()}
