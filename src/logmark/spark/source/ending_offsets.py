"""Where a bounded stream ends: offsets that are known at once, or a time that may still lie ahead."""

from collections.abc import Mapping

from logmark.names import TopicPartition
from logmark.spark.source.offset_specs import AtTime, OffsetSpec, TimeAgo, TimeLookup, named_partitions, resolve_spec
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds


class EndingOffsets:
    """The ends that the options set, each found once; lives as long as the query runs."""

    def __init__(self, options: SourceOptions) -> None:
        self._edge: OffsetSpec | None = options.ending
        self._name = options.ending_name
        self._found: dict[TopicPartition, int] = {}

    def limit(
        self, ends: Offsets, bounds: Mapping[TopicPartition, Bounds], *, look_up: TimeLookup, now_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the ends, each limited to its ending offset.

        `bounds` were asked before: a record that is as young as the stop and came since is then found by the look-up,
        and one that comes later lies beyond the bounds.
        """
        if self._edge is None:
            return dict(ends)
        if isinstance(self._edge, TimeAgo):
            self._edge = AtTime(max(0, now_ms - self._edge.milliseconds))
        named = named_partitions(self._edge)
        wanted = {
            partition: bounds[partition]
            for partition in ends
            if partition not in self._found and (named is None or partition in named)
        }
        found = resolve_spec(self._edge, wanted, look_up=look_up, now_ms=now_ms, name=self._name)
        self._found |= {partition: offset for partition, offset in found.items() if offset is not None}
        unread = set() if named is None else set(ends) - set(named)
        return {
            partition: 0 if partition in unread else min(end, self._found.get(partition, end))
            for partition, end in ends.items()
        }
