"""Which offsets a batch read takes."""

import logging

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.cluster import Cluster, bounds_of, look_up, partitions_of
from logmark.spark.source.data_loss import losses, told
from logmark.spark.source.offset_specs import LATEST, check_covers, places_of, start_offsets
from logmark.spark.source.options import Options
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds

log = logging.getLogger(__name__)


def ranges_of(cluster: Cluster, options: Options, *, now_ms: int) -> dict[TopicPartition, tuple[int, int]]:
    """From the starting to the ending offset of every partition; leaves no trace in any group."""
    places = partitions_of(cluster, options).places
    if options.pattern is not None and not places:
        raise UserError(
            f"No topic at {options.bootstrap_servers} has a name that fits {options.pattern.pattern!r}, or you may not "
            "see it. Nothing was read. `logmark topics list` shows the topics that are there."
        )
    check_covers(options.starting, places, name=options.starting_name)
    ending = options.ending or LATEST
    check_covers(ending, places, name=options.ending_name)
    bounds = bounds_of(cluster, places, read_committed=options.read_committed)

    def find(times: Offsets) -> dict[TopicPartition, int]:
        return look_up(cluster, times, read_committed=options.read_committed)

    starts = _committed(cluster, options, places)
    missing = {place: bound for place, bound in bounds.items() if place not in starts}
    if missing and options.starting is None:
        raise UserError(
            f"Group {options.group} has no committed offset for {', '.join(map(str, sorted(missing)))}, and "
            "auto.offset.reset is none. Nothing was read."
        )
    if options.starting is not None:
        starts |= start_offsets(options.starting, missing, look_up=find, now_ms=now_ms, name=options.starting_name)
    starts = _in_range(starts, bounds, options)
    found = places_of(ending, bounds, look_up=find, now_ms=now_ms, name=options.ending_name)
    ends = {place: bounds[place].end if offset is None else offset for place, offset in found.items()}
    for place, end in sorted(ends.items()):
        if end > bounds[place].end and options.ending_name == "endingOffsets":
            raise UserError(
                f"endingOffsets asks for offset {end} of {place}, but the log holds {bounds[place].start} to "
                f"{bounds[place].end} (the end is the next offset to be written). Nothing was read."
            )
    return {place: (starts[place], max(starts[place], min(ends[place], bounds[place].end))) for place in places}


def _committed(cluster: Cluster, options: Options, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    if not options.from_group or options.group is None:
        return {}
    return {place: one.offset for place, one in cluster.committed(options.group, places).items()}


def _in_range(starts: Offsets, bounds: dict[TopicPartition, Bounds], options: Options) -> dict[TopicPartition, int]:
    """The starts, each in its log; one that is gone is a sentence, or the first record left if that was said."""
    lost = losses(starts, bounds)
    gone = [one for one in lost if one.count]
    for one in lost:
        # A look-up by time may find a record that came after the end was asked for: there is nothing to read yet.
        if one.count == 0 and options.starting_name in ("", "startingOffsets"):
            raise UserError(
                f"startingOffsets asks for offset {one.offset} of {one.place}, but the log holds {one.bounds.start} to "
                f"{one.bounds.end} (the end is the next offset to be written). Nothing was read."
            )
    if gone and options.lost is None:
        raise UserError(
            f"{told(gone)}. Nothing was read. To read what is left, set failOnDataLoss to false, or begin at earliest."
        )
    if gone:
        log.warning("%s. The read begins at the first records left, as failOnDataLoss=false says.", told(gone))
    return {place: max(offset, bounds[place].start) for place, offset in starts.items()}
