"""The metrics of the two exporters that dashboards are made for, with their names, labels and formulas.

kafka_exporter (danielqsj): lag = end - committed, as it is, also below zero; -1 where a group has committed elsewhere
in the topic but not in this partition. kafka-lag-exporter (seglo): lag = end - committed, at least zero; NaN where
nothing is committed; seconds from a table of the ends that were seen.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logmark.client.metadata import ClusterMetadata, PartitionMetadata
from logmark.names import TopicPartition
from logmark.offsets.lag.sample import GroupSample
from logmark.offsets.monitor.lookup_table import LookupTable
from logmark.offsets.monitor.prometheus_text import MetricFamily

_UNKNOWN = ("unknown", "unknown", "unknown")
_BY_PARTITION = ("topic", "partition")
_BY_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_BY_GROUP_TOPIC = ("consumergroup", "topic")
_BY_MEMBER = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")

Series = Iterable[tuple[Sequence[str], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSample:
    """One look at a cluster as the exporters have it: with the bounds of all partitions, also where nobody reads."""

    at_ms: int
    took_ms: int
    cluster_name: str
    metadata: ClusterMetadata
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    groups: Sequence[GroupSample]


def kafka_exporter(seen: ExporterSample) -> Iterator[MetricFamily]:
    """Yield the metrics of kafka_exporter with its default settings, without those about itself."""
    brokers = seen.metadata.brokers
    yield MetricFamily(name="kafka_brokers", help="Brokers in the cluster.", series=[((), len(brokers))])
    yield MetricFamily(
        name="kafka_broker_info",
        help="1 for each broker, with its id and address.",
        labels=("id", "address"),
        series=[((str(id), str(address)), 1) for id, address in brokers.items()],
    )
    yield MetricFamily(
        name="kafka_topic_partitions",
        help="Partitions of a topic.",
        labels=("topic",),
        series=[((name,), len(topic.partitions)) for name, topic in seen.metadata.topics.items()],
    )
    for name, help, offsets in (
        ("current", "The end of a partition: the next offset to be written.", seen.ends),
        ("oldest", "The log start of a partition.", seen.starts),
    ):
        series = [((one.topic, str(one.partition)), offset) for one, offset in offsets.items()]
        yield MetricFamily(name=f"kafka_topic_partition_{name}_offset", help=help, labels=_BY_PARTITION, series=series)
    yield from _replicas(seen.metadata)
    yield from _group_offsets(seen)
    yield MetricFamily(
        name="kafka_consumergroup_members",
        help="Members of a group.",
        labels=("consumergroup",),
        series=[((one.group,), len(one.members)) for one in seen.groups],
    )


_REPLICAS: tuple[tuple[str, str, Callable[[PartitionMetadata], int]], ...] = (
    ("leader", "The id of the broker that leads a partition.", lambda one: one.leader),
    ("replicas", "Replicas of a partition.", lambda one: len(one.replicas)),
    ("in_sync_replica", "Replicas of a partition that are in sync.", lambda one: len(one.in_sync)),
    (
        "leader_is_preferred",
        "1 where the first replica leads, else 0.",
        lambda one: int(bool(one.replicas) and one.leader == one.replicas[0]),
    ),
    (
        "under_replicated_partition",
        "1 where a replica is out of sync, else 0.",
        lambda one: int(len(one.in_sync) < len(one.replicas)),
    ),
)


def _replicas(metadata: ClusterMetadata) -> Iterator[MetricFamily]:
    led = [
        ((name, str(number)), partition)
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader in metadata.brokers
    ]
    for name, help, value in _REPLICAS:
        series = [(labels, value(partition)) for labels, partition in led]
        yield MetricFamily(name=f"kafka_topic_partition_{name}", help=help, labels=_BY_PARTITION, series=series)


def _group_offsets(seen: ExporterSample) -> Iterator[MetricFamily]:
    for name, help, value in (
        ("current_offset", "The committed offset of a group in a partition, -1 where it has none.", _offset),
        ("lag", "The end of a partition less the committed offset of a group, -1 where it has none.", _lag),
    ):
        name = f"kafka_consumergroup_{name}"
        yield MetricFamily(name=name, help=help, labels=_BY_GROUP_PARTITION, series=_each(seen, value))
        yield MetricFamily(
            name=f"{name}_sum",
            help=f"The sum of {name} over the partitions of a topic that have a commit.",
            labels=_BY_GROUP_TOPIC,
            series=_sums(seen, value),
        )


def _offset(seen: ExporterSample, one: GroupSample, partition: TopicPartition) -> int:
    committed = one.committed.get(partition)
    return -1 if committed is None else committed.offset


def _lag(seen: ExporterSample, one: GroupSample, partition: TopicPartition) -> int:
    committed = one.committed.get(partition)
    return -1 if committed is None else seen.ends[partition] - committed.offset


def _each(seen: ExporterSample, value: Callable[[ExporterSample, GroupSample, TopicPartition], int]) -> Series:
    for one, topic, partitions in _consumed(seen):
        for partition in partitions:
            yield (one.group, topic, str(partition.partition)), value(seen, one, partition)


def _sums(seen: ExporterSample, value: Callable[[ExporterSample, GroupSample, TopicPartition], int]) -> Series:
    for one, topic, partitions in _consumed(seen):
        yield (one.group, topic), sum(value(seen, one, each) for each in partitions if each in one.committed)


def _consumed(seen: ExporterSample) -> Iterator[tuple[GroupSample, str, list[TopicPartition]]]:
    """Each group with each topic in which it has committed, and all partitions of that topic."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in seen.ends:
        by_topic.setdefault(partition.topic, []).append(partition)
    for one in seen.groups:
        for topic in dict.fromkeys(partition.topic for partition in one.committed if partition in seen.ends):
            yield one, topic, by_topic[topic]


class LagExporter:
    """What kafka-lag-exporter serves; it remembers the ends that it was shown."""

    def __init__(self) -> None:
        self._tables: dict[TopicPartition, LookupTable] = {}

    def learn(self, seen: ExporterSample) -> None:
        """Add the ends of the partitions that groups read to the tables, and drop the other partitions."""
        read = {partition for one in seen.groups for partition, _ in _read_partitions(one)}
        self._tables = {
            partition: self._tables.get(partition) or LookupTable() for partition in read if partition in seen.ends
        }
        for partition, table in self._tables.items():
            table.add(seen.ends[partition], seen.at_ms)

    def measure(self, seen: ExporterSample) -> "LagExporterValues":
        """Everything that is served of one look, after it was learned."""
        rows = []
        for one in seen.groups:
            for partition, member in _read_partitions(one):
                if partition not in seen.ends:
                    continue
                committed = one.committed.get(partition)
                offset = lag = seconds = math.nan
                if committed is not None:
                    offset, lag = committed.offset, max(0, seen.ends[partition] - committed.offset)
                    seconds = self._tables[partition].lag_seconds(committed.offset, seen.at_ms)
                rows.append((one.group, partition, member, offset, lag, seconds))
        return LagExporterValues(seen=seen, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagExporterValues:
    """One look as kafka-lag-exporter sees it: rows of (group, partition, member's labels, offset, lag, seconds)."""

    seen: ExporterSample
    rows: Sequence[tuple[str, TopicPartition, Sequence[str], float, float, float]]

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metrics under that exporter's names."""
        cluster, seen = self.seen.cluster_name, self.seen
        partitions = {row[1] for row in self.rows}
        for name, help, offsets in (
            ("latest", "The end of a partition that a group reads.", seen.ends),
            ("earliest", "The log start of a partition that a group reads.", seen.starts),
        ):
            yield MetricFamily(
                name=f"kafka_partition_{name}_offset",
                help=help,
                labels=("cluster_name", *_BY_PARTITION),
                series=[
                    ((cluster, one.topic, str(one.partition)), offsets[one]) for one in partitions if one in offsets
                ],
            )
        for name, help, column in (
            ("offset", "The committed offset of a group in a partition, NaN where it has none.", 3),
            ("lag", "Records between the committed offset of a group and the end, NaN without a commit.", 4),
            ("lag_seconds", "Seconds since the end passed the committed offset, estimated from earlier ends.", 5),
        ):
            yield MetricFamily(
                name=f"kafka_consumergroup_group_{name}", help=help, labels=_BY_MEMBER, series=self._series(column)
            )
        yield from self._sums()
        yield MetricFamily(
            name="kafka_consumergroup_poll_time_ms",
            help="Milliseconds that the last look at the cluster took.",
            labels=("cluster_name",),
            series=[((cluster,), seen.took_ms)],
        )

    def _series(self, column: int) -> Series:
        for row in self.rows:
            number = row[column]
            assert isinstance(number, int | float)
            yield (self.seen.cluster_name, row[0], row[1].topic, str(row[1].partition), *row[2]), number

    def _sums(self) -> Iterator[MetricFamily]:
        cluster = self.seen.cluster_name
        groups: dict[str, list[tuple[float, float]]] = {}
        topics: dict[tuple[str, str], float] = {}
        for group, partition, _, _, lag, seconds in self.rows:
            groups.setdefault(group, []).append((lag, seconds))
            key = (group, partition.topic)
            topics[key] = topics.get(key, 0) + (0 if math.isnan(lag) else lag)
        for name, help, of in (
            ("max_lag", "The largest lag of a group in records.", lambda pairs: _largest(lag for lag, _ in pairs)),
            ("max_lag_seconds", "The largest lag of a group in seconds.", lambda pairs: _largest(s for _, s in pairs)),
            ("sum_lag", "The lag of a group in records.", lambda pairs: sum(n for n, _ in pairs if not math.isnan(n))),
        ):
            yield MetricFamily(
                name=f"kafka_consumergroup_group_{name}",
                help=help,
                labels=("cluster_name", "group"),
                series=[((cluster, group), of(pairs)) for group, pairs in groups.items()],
            )
        yield MetricFamily(
            name="kafka_consumergroup_group_topic_sum_lag",
            help="The lag of a group in a topic in records.",
            labels=("cluster_name", "group", "topic"),
            series=[((cluster, *key), total) for key, total in topics.items()],
        )


def _largest(values: Iterable[float]) -> float:
    # That exporter lets a NaN win or lose by the order of a hash map; here a number wins.
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _read_partitions(one: GroupSample) -> Iterator[tuple[TopicPartition, Sequence[str]]]:
    """Yield the partitions of a group: those assigned to its members, or without members those with a commit."""
    if not one.members:
        for partition in one.committed:
            yield partition, _UNKNOWN
        return
    for member in one.members:
        for partition in member.partitions:
            yield partition, (member.host, member.member_id, member.client_id)
