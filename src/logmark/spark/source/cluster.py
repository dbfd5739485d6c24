"""What a reader asks of a cluster: which partitions there are, what they hold, and where a time lies."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from logmark.client.answers import EARLIEST, LATEST
from logmark.client.client import Client
from logmark.client.errors import RefusedByBroker
from logmark.client.metadata import ClusterMetadata
from logmark.errors import ErrorCode, UserError
from logmark.names import TopicPartition
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.ranges import Bounds


class KnownPartitions(NamedTuple):
    """The partitions to read, and the ids of their topics where brokers give them."""

    partitions: list[TopicPartition]
    ids: dict[str, str]


def find_partitions(cluster: Client, options: SourceOptions, *, is_strict: bool = True) -> KnownPartitions:
    """Return the partitions that the options name; if `is_strict`, raises UserError for one that does not exist."""
    if options.pattern is not None:
        metadata = cluster.metadata()
        topics = sorted(name for name, topic in metadata.topics.items() if not topic.is_internal)
        return _known(metadata, topics, options)
    metadata = cluster.metadata(list(options.topics))
    missing = [topic for topic in options.topics if not metadata.partitions(topic)]
    for topic in missing:
        code = metadata.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code.is_retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise RefusedByBroker(code, f"Topic {topic} cannot be read at the moment: the broker answered {code.name}.")
    if missing and is_strict:
        raise UserError(
            f"There is no topic {' and no topic '.join(missing)} at {options.bootstrap_servers}, or you may not see "
            "it. Nothing was read. `logmark topics list` shows the topics that are there."
        )
    known = _known(metadata, options.topics, options)
    absent = sorted(options.assigned - set(known.partitions))
    if absent and is_strict:
        raise UserError(f"There is no partition {format_partitions(absent)}. Nothing was read.")
    return known


def _known(metadata: ClusterMetadata, topics: Iterable[str], options: SourceOptions) -> KnownPartitions:
    partitions = [partition for topic in topics for partition in metadata.partitions(topic) if options.wants(partition)]
    ids = {partition.topic: metadata.topics[partition.topic].topic_id for partition in partitions}
    return KnownPartitions(partitions, {topic: number.hex() for topic, number in ids.items() if any(number)})


def read_bounds(
    cluster: Client, partitions: Iterable[TopicPartition], *, read_committed: bool
) -> dict[TopicPartition, Bounds]:
    """Return what each partition has to read: up to the oldest open transaction if only committed ones count."""
    wanted = list(partitions)
    # The end is asked last: a log start that moves in between then never lies beyond it.
    starts = cluster.list_offsets(dict.fromkeys(wanted, EARLIEST)) if wanted else {}
    ends = cluster.list_offsets(dict.fromkeys(wanted, LATEST), read_committed=read_committed) if wanted else {}
    return {partition: Bounds(starts[partition].offset, ends[partition].offset) for partition in wanted}


def look_up_times(
    cluster: Client, times: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, int]:
    """Return the first offset at or after each time, -1 where no record is that young."""
    if not times:
        return {}
    found = cluster.list_offsets(times, read_committed=read_committed)
    return {partition: one.offset for partition, one in found.items()}


def format_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as text for a message."""
    return ", ".join(str(partition) for partition in sorted(partitions))
