"""The health of a cluster, by what any Kafka answers and by what a Logmark broker adds to it.

| asked                       | of                  | a problem is                                                  |
|-----------------------------|---------------------|---------------------------------------------------------------|
| Metadata                    | any broker          | a partition without a leader or with an error (Apache Kafka)  |
| DescribeLogDirs             | each broker         | a broker that does not answer; a directory with an error      |
| its field for health        | brokers of Logmark  | refused writes, disk, logs, compaction, coordinators, memory  |

DescribeLogDirs comes first: a Logmark broker without a connection left for this client answers nothing else. It also
tells of its partitions there. Metadata of all topics would wait in line behind the long requests of others, so a
Logmark broker is asked for the brokers only.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logmark.client.errors import BrokerUnreachable, ClientError, RefusedByBroker
from logmark.client.metadata import ClusterMetadata
from logmark.client.router import ANY
from logmark.errors import ErrorCode
from logmark.names import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from logmark.client.client import Client
    from logmark.client.log_dirs import BrokerDescription

# Problems of one kind that are named one by one.
NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """One broker: what it says of itself, or why it says nothing."""

    id: int
    address: str
    description: "BrokerDescription | None"
    failure: str | None = None
    is_up: bool = True

    @property
    def details(self) -> Mapping[str, Any]:
        """What only a Logmark broker reports; empty for any other."""
        found = self.description.health if self.description is not None else None
        return found if found is not None else {}

    @property
    def is_without_connections(self) -> bool:
        """The broker has no connection left for this client, but has reported its health."""
        return bool(self.details.get("connections", {}).get("is_in_reserve"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """A cluster that answered, and everything that is not as it should be."""

    cluster_id: str
    brokers: Sequence[BrokerHealth]
    partition_count: int
    # Partitions that no broker leads, or that have an error, by the name of the error.
    partition_errors: Mapping[TopicPartition, str]
    problems: Sequence[str]

    @property
    def is_healthy(self) -> bool:
        return not self.problems


def check_health(client: "Client") -> ClusterHealth:
    """Ask a cluster how it is. Raises BrokerUnreachable if no broker answers."""
    with contextlib.suppress(RefusedByBroker):
        first = BrokerHealth(id=ANY, address=client.bootstrap_servers, description=client.describe_broker(ANY))
        if first.is_without_connections:
            return _health_of_one(first)
        if first.details:
            return _health_of_ours(client, first)
    metadata = client.metadata()
    errors = dict(_partition_errors(metadata))
    brokers = [_ask(client, node, str(address)) for node, address in sorted(metadata.brokers.items())]
    return ClusterHealth(
        cluster_id=metadata.cluster_id,
        brokers=brokers,
        partition_count=sum(len(topic.partitions) for topic in metadata.topics.values()),
        partition_errors=errors,
        problems=list(_problems(brokers, errors)),
    )


def _health_of_ours(client: "Client", first: BrokerHealth) -> ClusterHealth:
    """Return the health of Logmark brokers, each by what it says of itself at the address that clients are told."""
    try:
        metadata = client.metadata([])
    except BrokerUnreachable as error:
        slow = f"Broker {first.details['node_id']} tells its health, but is slow to answer clients: {error}"
        return _health_of_one(first, slow)
    brokers = [_ask(client, node, str(address)) for node, address in sorted(metadata.brokers.items())]
    errors = {
        TopicPartition(one["topic"], one["partition"]): ErrorCode.KAFKA_STORAGE_ERROR.name
        for broker in brokers
        for one in _troubled(broker, "partitions")
        # The others are led and read as ever.
        if one["state"] not in ("full", "damaged")
    }
    return ClusterHealth(
        cluster_id=metadata.cluster_id,
        brokers=brokers,
        partition_count=sum(broker.details.get("partitions", {}).get("total", 0) for broker in brokers),
        partition_errors=errors,
        problems=list(_problems(brokers, errors)),
    )


def _health_of_one(broker: BrokerHealth, *problems: str) -> ClusterHealth:
    """Return the health of a cluster of one broker, by what that broker says of itself, with further problems."""
    details = broker.details
    broker = replace(broker, id=details["node_id"])
    return ClusterHealth(
        cluster_id=details["cluster_id"],
        brokers=[broker],
        partition_count=details["partitions"]["total"],
        partition_errors={},
        problems=[*problems, *_problems([broker], {})],
    )


def _ask(client: "Client", node: int, address: str) -> BrokerHealth:
    try:
        return BrokerHealth(id=node, address=address, description=client.describe_broker(node))
    except RefusedByBroker as error:
        # An administrator may have forbidden it, which says nothing of the broker.
        return BrokerHealth(id=node, address=address, description=None, failure=str(error))
    except ClientError as error:
        return BrokerHealth(id=node, address=address, description=None, failure=str(error), is_up=False)


def _partition_errors(metadata: ClusterMetadata) -> Iterator[tuple[TopicPartition, str]]:
    for name, topic in sorted(metadata.topics.items()):
        for index, partition in sorted(topic.partitions.items()):
            if partition.error is not ErrorCode.NONE:
                yield TopicPartition(name, index), partition.error.name
            elif partition.leader not in metadata.brokers:
                yield TopicPartition(name, index), ErrorCode.LEADER_NOT_AVAILABLE.name


def _problems(brokers: Sequence[BrokerHealth], errors: Mapping[TopicPartition, str]) -> Iterator[str]:
    explained: set[TopicPartition] = set()
    for broker in brokers:
        if not broker.is_up:
            yield f"Broker {broker.id} does not answer: {broker.failure}"
            continue
        yield from _broker_problems(broker)
        explained |= {TopicPartition(one["topic"], one["partition"]) for one in _troubled(broker, "partitions")}
    left = [partition for partition in errors if partition not in explained]
    # A broker of ours says why; where it named as many as it could, the rest have the same reasons.
    if not any(broker.details.get("partitions", {}).get("left_out") for broker in brokers):
        for partition in left[:NAMED_MAX]:
            yield f"Partition {partition}: {errors[partition]}."
        if len(left) > NAMED_MAX:
            yield f"{len(left) - NAMED_MAX} more partitions have an error."


def _broker_problems(broker: BrokerHealth) -> Iterator[str]:
    details, name = broker.details, f"Broker {broker.id}"
    if details.get("accepts_writes") is False:
        yield f"{name} takes no records until it is restarted: {details.get('wal', {}).get('reason')}"
    elif broker.description is not None:
        for log_dir in broker.description.log_dirs:
            if log_dir.error is not ErrorCode.NONE:
                yield f"{name}: log directory {log_dir.path} has failed ({log_dir.error.name})."
    yield from _disk_problems(name, broker)
    yield from _compaction_problems(name, broker)
    partitions = _troubled(broker, "partitions")
    for one in partitions[:NAMED_MAX]:
        yield f"Partition {one['topic']}-{one['partition']} is {one['state']}: {one['reason']}"
    left_out = details.get("partitions", {}).get("left_out", 0) + max(0, len(partitions) - NAMED_MAX)
    if left_out:
        yield f"{left_out} more partitions of broker {broker.id} are not open."
    coordinators = _troubled(broker, "coordinators")
    for one in coordinators[:NAMED_MAX]:
        reason = f": {one['reason']}" if one["reason"] else "."
        yield f"The coordinator of {OFFSETS_TOPIC}-{one['partition']} is {one['state']}{reason}"
    if len(coordinators) > NAMED_MAX:
        yield f"{len(coordinators) - NAMED_MAX} more coordinators of broker {broker.id} are not ready."
    yield from _deletion_problems(details.get("failed_deletions", ()), name)
    yield from _memory_problems(details.get("memory", {}), name)
    connections = details.get("connections", {})
    if connections and connections["used"] >= connections["max"]:
        yield f"{name} has no connection left ({connections['used']} of {connections['max']}, max.connections)."
    elif broker.is_without_connections:
        yield f"{name} has no connection left for clients of this address (max.connections.per.ip)."


def _deletion_problems(reasons: Sequence[str], name: str) -> Iterator[str]:
    for reason in reasons[:NAMED_MAX]:
        yield (
            f"{name}: the disk keeps the folder of a deleted partition ({reason}). Nobody is shown its records; until "
            "it is away it takes space, and the topic may not be created again. The broker tries again by itself."
        )
    if len(reasons) > NAMED_MAX:
        yield f"{len(reasons) - NAMED_MAX} more folders of deleted partitions of {name} are kept by the disk."


def _memory_problems(memory: Mapping[str, Any], name: str) -> Iterator[str]:
    if memory.get("has_waiting"):
        yield f"{name}: requests wait for memory (client.memory.max.bytes)."
    if not memory.get("has_room_for_groups", True):
        yield (
            f"{name}: groups take half of the memory of clients (client.memory.max.bytes), so new groups, members and "
            "offsets are refused. Delete groups, or raise the setting."
        )


_DISK_PROBLEMS = {
    "full": "is full{why}. The broker takes no records until there is space. Free some.",
    "read-only": "takes no writes{why}. What was acknowledged can be read. Repair the disk, then restart the broker.",
    "failed": "has failed{why}. Repair the disk, then restart the broker.",
    "silent": "does not answer{why}. Writes wait for it.",
}


def _disk_problems(name: str, broker: BrokerHealth) -> Iterator[str]:
    disk = broker.details.get("disk", {})
    problem = _DISK_PROBLEMS.get(disk.get("state", ""))
    if problem is not None:
        why = f" ({disk['reason']})" if disk["reason"] else ""
        yield f"{name}: the disk of the data directory {problem.format(why=why)}"


def _compaction_problems(name: str, broker: BrokerHealth) -> Iterator[str]:
    compaction = broker.details.get("compaction") or {}
    if compaction.get("is_stalled"):
        remedy = f": kill process {compaction['pid']}, and the broker starts another" if compaction["pid"] else ""
        yield (
            f"{name}: the compaction of {compaction['log']} has made no progress for "
            f"{compaction['seconds_without_progress']} s. Clients are served, but the log is not cleaned{remedy}."
        )


def _troubled(broker: BrokerHealth, kind: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = broker.details.get(kind, {}).get("troubled", ())
    return found
