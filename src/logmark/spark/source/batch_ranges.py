"""Which offsets a batch read takes."""

import logging

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.cluster import find_partitions, look_up_times, read_bounds
from logmark.spark.source.data_loss import describe_losses, find_losses
from logmark.spark.source.offset_specs import LATEST, check_spec_covers, resolve_spec, resolve_starts
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds

log = logging.getLogger(__name__)


def plan_batch_ranges(
    cluster: Client, options: SourceOptions, *, now_ms: int
) -> dict[TopicPartition, tuple[int, int]]:
    """Return from the starting to the ending offset of every partition; leaves no trace in any group."""
    partitions = find_partitions(cluster, options).partitions
    if options.pattern is not None and not partitions:
        raise UserError(
            f"No topic at {options.bootstrap_servers} has a name that fits {options.pattern.pattern!r}, or you may not "
            "see it. Nothing was read. `logmark topics list` shows the topics that are there."
        )
    check_spec_covers(options.starting, partitions, name=options.starting_name)
    ending = options.ending or LATEST
    check_spec_covers(ending, partitions, name=options.ending_name)
    bounds = read_bounds(cluster, partitions, read_committed=options.read_committed)

    def find(times: Offsets) -> dict[TopicPartition, int]:
        return look_up_times(cluster, times, read_committed=options.read_committed)

    starts = _committed(cluster, options, partitions)
    missing = {partition: bound for partition, bound in bounds.items() if partition not in starts}
    if missing and options.starting is None:
        raise UserError(
            f"Group {options.group} has no committed offset for {', '.join(map(str, sorted(missing)))}, and "
            "auto.offset.reset is none. Nothing was read."
        )
    if options.starting is not None:
        starts |= resolve_starts(options.starting, missing, look_up=find, now_ms=now_ms, name=options.starting_name)
    starts = _in_range(starts, bounds, options)
    found = resolve_spec(ending, bounds, look_up=find, now_ms=now_ms, name=options.ending_name)
    ends = {partition: bounds[partition].end if offset is None else offset for partition, offset in found.items()}
    for partition, end in sorted(ends.items()):
        if end > bounds[partition].end and options.ending_name == "endingOffsets":
            raise UserError(
                f"endingOffsets asks for offset {end} of {partition}, but the log holds {bounds[partition].start} to "
                f"{bounds[partition].end} (the end is the next offset to be written). Nothing was read."
            )
    return {
        partition: (starts[partition], max(starts[partition], min(ends[partition], bounds[partition].end)))
        for partition in partitions
    }


def _committed(cluster: Client, options: SourceOptions, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    if not options.from_group or options.group is None:
        return {}
    return {partition: one.offset for partition, one in cluster.committed(options.group, partitions).items()}


def _in_range(
    starts: Offsets, bounds: dict[TopicPartition, Bounds], options: SourceOptions
) -> dict[TopicPartition, int]:
    """Return the starts inside of their logs; raises UserError for a lost one unless the options allow to skip it."""
    lost = find_losses(starts, bounds)
    gone = [one for one in lost if one.count]
    for one in lost:
        # A look-up by time may find a record that came after the end was asked for: there is nothing to read yet.
        if one.count == 0 and options.starting_name in ("", "startingOffsets"):
            raise UserError(
                f"startingOffsets asks for offset {one.offset} of {one.partition}, but the log holds "
                f"{one.bounds.start} to {one.bounds.end} (the end is the next offset to be written). Nothing was read."
            )
    if gone and options.lost is None:
        raise UserError(
            f"{describe_losses(gone)}. Nothing was read. To read what is left, set failOnDataLoss to false, or begin "
            "at earliest."
        )
    if gone:
        log.warning(
            "%s. The read begins at the first records left, as failOnDataLoss=false says.", describe_losses(gone)
        )
    return {partition: max(offset, bounds[partition].start) for partition, offset in starts.items()}
