"""Topics, writes to them and the health of a cluster as programs read them; `dataclasses.asdict` makes them JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logmark.client.answers import ConfigEntry
from logmark.client.errors import BrokerUnreachable
from logmark.client.health import BrokerHealth, ClusterHealth
from logmark.client.metadata import TopicMetadata
from logmark.errors import ErrorCode
from logmark.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListingView:
    """A topic in a list of topics."""

    topic: str
    partitions: int
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition; `start` and `end` are None if nobody could say them."""

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic with its partitions and the settings that were changed."""

    topic: str
    internal: bool
    config: Mapping[str, str | None]
    partitions: Sequence[PartitionView]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirView:
    """A log directory of a broker; `error` is None or the name of Kafka's error."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker; `details` is what only a Logmark broker reports."""

    id: int
    address: str
    is_up: bool
    failure: str | None
    log_dirs: Sequence[LogDirView]
    details: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErrorView:
    """A partition that no broker leads, or that has an error."""

    topic: str
    partition: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSummaryView:
    """Whether a cluster is healthy, degraded or unreachable, and why."""

    state: str
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView(HealthSummaryView):
    """The health of a cluster that answered."""

    cluster_id: str
    partitions: int
    partition_errors: Sequence[PartitionErrorView]
    brokers: Sequence[BrokerView]


def view_listing(topic: TopicMetadata) -> TopicListingView:
    """Return a topic as a list of topics shows it."""
    return TopicListingView(topic=topic.name, partitions=len(topic.partitions), internal=topic.is_internal)


def view_topic(
    topic: TopicMetadata,
    settings: Iterable[ConfigEntry],
    *,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> TopicView:
    """Return a topic with those of its settings that are not defaults, and what its partitions hold."""
    return TopicView(
        topic=topic.name,
        internal=topic.is_internal,
        config={entry.name: entry.value for entry in settings if not entry.is_default},
        partitions=[
            PartitionView(
                partition=number,
                leader=one.leader,
                replicas=one.replicas,
                in_sync=one.in_sync,
                start=starts.get(TopicPartition(topic.name, number)),
                end=ends.get(TopicPartition(topic.name, number)),
            )
            for number, one in sorted(topic.partitions.items())
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedView:
    """The records that were written to a partition, and the offsets that the broker assigned."""

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int


def view_produced(topic: str, written: Mapping[int, Sequence[int]]) -> list[ProducedView]:
    """Return what was written to a topic, given first offset, last offset and number of records by partition."""
    return [
        ProducedView(topic=topic, partition=partition, records=records, first_offset=first, last_offset=last)
        for partition, (first, last, records) in sorted(written.items())
    ]


def view_health(health: ClusterHealth) -> HealthView:
    """Return the health of a cluster that answered."""
    return HealthView(
        state="healthy" if health.is_healthy else "degraded",
        problems=health.problems,
        cluster_id=health.cluster_id,
        partitions=health.partition_count,
        partition_errors=[
            PartitionErrorView(topic=one.topic, partition=one.partition, error=error)
            for one, error in health.partition_errors.items()
        ],
        brokers=[_view_broker(broker) for broker in health.brokers],
    )


def view_unreachable(error: BrokerUnreachable) -> HealthSummaryView:
    """Return the health of a cluster of which no broker answered."""
    return HealthSummaryView(state="unreachable", problems=[str(error)])


def _view_broker(broker: BrokerHealth) -> BrokerView:
    return BrokerView(
        id=broker.id,
        address=broker.address,
        is_up=broker.is_up,
        failure=broker.failure,
        log_dirs=[
            LogDirView(
                path=one.path,
                error=None if one.error is ErrorCode.NONE else one.error.name,
                total_bytes=one.total_bytes,
                usable_bytes=one.usable_bytes,
            )
            for one in (broker.description.log_dirs if broker.description is not None else ())
        ],
        details=broker.details or None,
    )
