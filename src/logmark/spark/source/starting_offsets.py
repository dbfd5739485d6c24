"""Where a query starts to read: at its group's committed offsets, and where there are none, as the options say."""

from collections.abc import Iterable, Mapping, Sequence

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.source.cluster import format_partitions
from logmark.spark.source.offset_specs import TimeLookup, resolve_starts
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.position import GroupCommit
from logmark.spark.source.ranges import Bounds


def choose_starting_offsets(
    options: SourceOptions,
    group: str,
    partitions: Sequence[TopicPartition],
    found: Mapping[TopicPartition, GroupCommit],
    bounds: Mapping[TopicPartition, Bounds],
    *,
    look_up: TimeLookup,
    now_ms: int,
) -> dict[TopicPartition, int]:
    """Return where a query with a new checkpoint starts; `found` are the commits of its group.

    Raises UserError if the group has no committed offset for a partition and the options allow no other start.
    """
    starts = {partition: commit.offset for partition, commit in found.items()}
    missing = [partition for partition in partitions if partition not in starts]
    if missing and options.starting is None:
        raise UserError(
            f"Group {group} has no committed offset for {format_partitions(missing)}, and auto.offset.reset "
            "is none. Nothing was read. Commit one (logmark offsets reset), or set auto.offset.reset to earliest "
            "or latest."
        )
    known = {partition.topic for partition in found}
    # Younger than the group: nothing of it was read.
    young = {partition for partition in missing if not options.starting_name and partition.topic in known}
    starts |= {partition: bounds[partition].start for partition in missing if partition in young}
    if options.starting is not None:
        old = {partition: bounds[partition] for partition in missing if partition not in young}
        starts |= resolve_starts(options.starting, old, look_up=look_up, now_ms=now_ms, name=options.starting_name)
    return starts


def choose_offsets_of_new_partitions(
    partitions: Iterable[TopicPartition],
    found: Mapping[TopicPartition, GroupCommit],
    bounds: Mapping[TopicPartition, Bounds],
) -> dict[TopicPartition, int]:
    """Return where partitions younger than the query start: at the group's offset, else at the log start."""
    return {
        partition: found[partition].offset if partition in found else bounds[partition].start
        for partition in partitions
    }
