"""What a cluster says about itself: its brokers, its topics, and who leads each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logmark.client.connection import Address
from logmark.client.errors import error_code
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.wire.schema import metadata as schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Who leads a partition (-1: nobody at the moment) and where its replicas are."""

    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic's id and its partitions by number."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The brokers' addresses, and the topics that were asked for; `errors` has those that could not be described."""

    cluster_id: str
    controller: int
    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicMetadata]
    errors: Mapping[str, ErrorCode]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions in order; none if the topic is not there."""
        known = self.topics.get(topic)
        return [TopicPartition(topic, number) for number in sorted(known.partitions)] if known else []

    def leader(self, partition: TopicPartition) -> int:
        """Return the id of the partition's leader, or -1."""
        topic = self.topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic else None
        return found.leader if found and found.leader in self.brokers else -1


def read_metadata(response: schema.Response) -> ClusterMetadata:
    """Return what a Metadata response says."""
    topics, errors = {}, {}
    for topic in response.topics:
        name = topic.name or ""
        if topic.error_code:
            errors[name] = error_code(topic.error_code)
            continue
        topics[name] = TopicMetadata(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions={
                partition.partition_index: PartitionMetadata(
                    leader=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=tuple(partition.replica_nodes),
                    in_sync=tuple(partition.isr_nodes),
                    error=error_code(partition.error_code),
                )
                for partition in topic.partitions
            },
        )
    return ClusterMetadata(
        cluster_id=response.cluster_id or "",
        controller=response.controller_id,
        brokers={broker.node_id: Address(broker.host, broker.port) for broker in response.brokers},
        topics=topics,
        errors=errors,
    )
