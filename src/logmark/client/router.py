"""Finds the broker that a request belongs to, and sends it again when brokers move, within a deadline."""

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Self, TypeVar

from logmark.client.connection import Address, Connection, as_addresses, seconds_left
from logmark.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NoCoordinator,
    ReadOnly,
    RefusedByBroker,
    UnknownTopic,
    error_code,
)
from logmark.client.metadata import ClusterMetadata, read_metadata
from logmark.client.properties import Security
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.wire import produce
from logmark.wire.messages import Message
from logmark.wire.schema import (
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    offset_commit,
    offset_delete,
)
from logmark.wire.schema import metadata as metadata_schema

ANY = -1  # any broker will do
CONTROLLER = -2
FIRST_WITH_KEYS = 4  # From here on FindCoordinator takes several groups.
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.05, 1.0
# A new topic reaches all brokers a moment after its creation was answered.
_UNKNOWN_TOPIC_PATIENCE_S = 1.0

# What no client does that may only look; here and not in each call, so that none can forget it.
_WRITING = frozenset(
    {
        produce.KEY,
        offset_commit.KEY,
        offset_delete.KEY,
        delete_groups.KEY,
        create_topics.KEY,
        delete_topics.KEY,
        create_partitions.KEY,
        incremental_alter_configs.KEY,
        delete_records.KEY,
        init_producer_id.KEY,
    }
)

Answer = TypeVar("Answer", bound=Message)


class Router:
    """Connections to a cluster's brokers, who leads what, and who coordinates which group."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        config: Mapping[str, str] | None = None,
        client_id: str = "logmark",
        timeout_s: float = 30.0,
        connect_timeout_s: float = 6.0,
        patience_s: float = 6.0,
        read_only: bool = False,
    ) -> None:
        """Read the properties; connect at the first call.

        A call takes at most `timeout_s`; one round over the addresses at most `connect_timeout_s`; rounds without
        an answer are repeated for `patience_s`, or for the whole call if that broker has answered before: it may be
        restarting. With `read_only` every call that would change the cluster raises ReadOnly.
        """
        self.bootstrap_servers = bootstrap_servers
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.is_read_only = read_only
        self._connect_timeout_s = connect_timeout_s
        self._patience_s = patience_s
        self._bootstrap = as_addresses(bootstrap_servers)
        self._security = Security.of(config or {})
        self._tls = self._security.tls_context() if self._security.is_tls else None
        self._connections: dict[Address, Connection] = {}
        self._brokers: Mapping[int, Address] = {}
        self._controller = -1
        self._reached: set[Address] = set()
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, int] = {}
        self.requests_sent = 0
        self.cluster_id = ""  # as the last metadata said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the next call would open them again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Return what the cluster says now about these topics, or about all; asking never creates a topic."""
        return self._metadata(topics, self._deadline())

    def _metadata(self, topics: Sequence[str] | None, deadline: float) -> ClusterMetadata:
        wanted = None if topics is None else [metadata_schema.RequestTopic(name=name) for name in topics]
        request = metadata_schema.Request(topics=wanted, allow_auto_topic_creation=False)
        response = self._ask(metadata_schema, request, metadata_schema.Response, to=ANY, deadline=deadline)
        found = read_metadata(response)
        self._brokers, self._controller = found.brokers, found.controller
        self.cluster_id = found.cluster_id
        for topic in found.topics.values():
            for number, partition in topic.partitions.items():
                self._leaders[TopicPartition(topic.name, number)] = partition.leader
        return found

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_s

    def _tries(self, deadline: float) -> Iterator[int]:
        """Count tries, with growing pauses in between, until the deadline."""
        count, pause = 0, _BACKOFF_FIRST_S
        while True:
            yield count
            pause = min(pause * 2, _BACKOFF_MAX_S)
            if time.monotonic() + pause >= deadline:
                return
            time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
            count += 1

    def _ask(
        self, schema: ModuleType, request: Message, answer: type[Answer], *, to: int, deadline: float,
        at_most: int | None = None, is_repeatable: bool = True,
    ) -> Answer:  # fmt: skip
        """Send one request to one broker, and again over a new connection if the old one broke."""
        self._refuse_if_read_only(schema.KEY)
        failure: BrokerUnreachable | None = None
        give_up_at = deadline
        for _ in self._tries(deadline):
            was_sent = False
            try:
                connection = self._connection(to, deadline)
                version = connection.version_of(schema.KEY, schema.VERSIONS, at_most=at_most)
                was_sent = True
                self.requests_sent += 1
                response = connection.call(schema, request, timeout_s=seconds_left(deadline), version=version)
            except BrokerUnreachable as error:
                if was_sent and not is_repeatable:
                    raise BrokerUnreachable(f"{error} Whether it did what was asked is not known.") from None
                if failure is None:
                    # The first failure says most: later ones may only tell that the time is up.
                    failure = error
                    give_up_at = deadline if self._was_reached(to) else time.monotonic() + self._patience_s
                if time.monotonic() >= give_up_at:
                    break
                continue
            assert isinstance(response, answer)
            return response
        assert failure is not None
        raise failure

    def _refuse_if_read_only(self, key: int) -> None:
        if self.is_read_only and key in _WRITING:
            raise ReadOnly("This would change the cluster, and the client is read-only. Nothing was changed.")

    def _was_reached(self, to: int) -> bool:
        return bool(self._reached) if to < 0 else self._brokers.get(to) in self._reached

    def _connection(self, to: int, deadline: float) -> Connection:
        if to == CONTROLLER:
            to = self._controller if self._controller in self._brokers else ANY
        if to == ANY:
            return self._any_connection(deadline)
        address = self._brokers[to]
        known = self._connections.get(address)
        if known is not None and not known.is_stale:
            return known
        try:
            return self._open(address, min(seconds_left(deadline), self._connect_timeout_s))
        except BrokerUnreachable as error:
            if address in self._bootstrap:
                raise
            raise BrokerUnreachable(
                f"The cluster at {self.bootstrap_servers} sends its clients to {address}: {error} "
                "If this address is wrong, correct the broker's advertised listeners."
            ) from None

    def _any_connection(self, deadline: float) -> Connection:
        for connection in list(self._connections.values()):
            if not connection.is_stale:
                return connection
        failure = BrokerUnreachable("")
        addresses = list(dict.fromkeys([*self._bootstrap, *self._brokers.values()]))
        round_end = min(deadline, time.monotonic() + self._connect_timeout_s)
        for index, address in enumerate(addresses):
            try:
                return self._open(address, max(seconds_left(round_end) / (len(addresses) - index), 0.1))
            except BrokerUnreachable as error:
                failure = error
        if len(addresses) == 1:
            raise failure
        raise BrokerUnreachable(f"None of the brokers {self.bootstrap_servers} can be reached; the last one: {failure}")

    def _open(self, address: Address, timeout_s: float) -> Connection:
        connection = Connection(
            address, security=self._security, tls=self._tls, client_id=self.client_id, timeout_s=timeout_s
        )
        self._connections[address] = connection
        self._reached.add(address)
        return connection

    def dedicated(self, partition: TopicPartition, *, timeout_s: float) -> Connection:
        """Return a connection of its own to the partition's present leader; the caller closes it."""
        deadline = time.monotonic() + timeout_s
        failure: Exception | None = None
        for _ in self._tries(deadline):
            try:
                leader = next(iter(self._by_leader([partition], deadline)))
                return Connection(
                    self._brokers[leader], security=self._security, tls=self._tls, client_id=self.client_id,
                    timeout_s=min(seconds_left(deadline), self._connect_timeout_s),
                )  # fmt: skip
            except AuthenticationFailed:
                raise
            except BrokerUnreachable as error:
                failure = error
                self.forget_leaders([partition])
        assert failure is not None
        raise failure

    def _by_leader(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[int, list[TopicPartition]]:
        """Return the partitions by leader; refuse what does not exist or has no leader."""
        grouped, failures = self._located(partitions, deadline)
        for failure in failures.values():
            raise failure
        return grouped

    def _located(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, RefusedByBroker]]:
        """Return the partitions by leader, and why the others have none; wait for an election."""
        wanted = list(partitions)
        failures: dict[TopicPartition, RefusedByBroker] = {}
        missing = self._without_leader(wanted)
        began = time.monotonic()
        for _ in self._tries(deadline) if missing else ():
            found = self._metadata(sorted({one.topic for one in missing}), deadline)
            missing = self._without_leader(wanted)
            failures = {one: no_leader(found, one) for one in missing}
            is_patient = time.monotonic() - began < _UNKNOWN_TOPIC_PATIENCE_S
            if not any(
                is_patient if isinstance(failure, UnknownTopic) else failure.code.is_retriable
                for failure in failures.values()
            ):
                break
        return self._group_by_leader(one for one in wanted if one not in failures), failures

    def _group_by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        grouped: dict[int, list[TopicPartition]] = {}
        for one in partitions:
            grouped.setdefault(self._leaders[one], []).append(one)
        return grouped

    def _without_leader(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [one for one in partitions if self._leaders.get(one, -1) not in self._brokers]

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask again who leads these partitions before the next request to them."""
        for partition in partitions:
            self._leaders.pop(partition, None)

    def _coordinator(self, group: str, deadline: float) -> int:
        """Return the id of the broker that coordinates this group."""
        known = self._coordinators.get(group)
        if known is not None and known in self._brokers:
            return known
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in self._tries(deadline):
            request = find_coordinator.Request(key=group, key_type=0, coordinator_keys=[group])
            response = self._ask(find_coordinator, request, find_coordinator.Response, to=ANY, deadline=deadline)
            found = response.coordinators[0] if response.coordinators else response
            code = error_code(found.error_code)
            if code == ErrorCode.NONE:
                self._brokers = {**self._brokers, found.node_id: Address(found.host, found.port)}
                self._coordinators[group] = found.node_id
                return found.node_id
            if not code.is_retriable:
                break
        raise NoCoordinator(group, code, _describe_group_error(group, code))

    def _by_coordinator(self, groups: Sequence[str], deadline: float) -> dict[int, list[str]]:
        """Return the groups by coordinator, found in one request if brokers allow it."""
        unknown = [group for group in groups if self._coordinators.get(group) not in self._brokers]
        if len(unknown) > 1 and self._highest(find_coordinator, deadline) >= FIRST_WITH_KEYS:
            request = find_coordinator.Request(key_type=0, coordinator_keys=unknown)
            response = self._ask(find_coordinator, request, find_coordinator.Response, to=ANY, deadline=deadline)
            for found in response.coordinators:
                if not found.error_code:
                    self._brokers = {**self._brokers, found.node_id: Address(found.host, found.port)}
                    self._coordinators[found.key] = found.node_id
        grouped: dict[int, list[str]] = {}
        for group in groups:
            grouped.setdefault(self._coordinator(group, deadline), []).append(group)
        return grouped

    def _highest(self, schema: ModuleType, deadline: float) -> int:
        return self._connection(ANY, deadline).version_of(schema.KEY, schema.VERSIONS)

    def _forget_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)


def no_leader(found: ClusterMetadata, partition: TopicPartition) -> RefusedByBroker:
    """Return the error for a partition without a leader that could be asked."""
    code = found.errors.get(partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return RefusedByBroker(code, f"You are not allowed to see topic {partition.topic}.")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return RefusedByBroker(code, f"{partition.topic!r} is not a legal topic name.")
    topic = found.topics.get(partition.topic)
    if topic is None:
        return UnknownTopic(f"Topic {partition.topic} does not exist; `logmark topics list` shows those that do.")
    if partition.partition in topic.partitions:
        return RefusedByBroker(
            ErrorCode.LEADER_NOT_AVAILABLE, f"Partition {partition} has no leader; is one of its brokers down?"
        )
    count = len(topic.partitions)
    return UnknownTopic(
        f"Topic {partition.topic} has no partition {partition.partition}: "
        f"it has {count} partition{'s' if count != 1 else ''}, numbered from 0."
    )


_GROUP_REASONS = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "you are not allowed to use it",
    ErrorCode.INVALID_GROUP_ID: "its name is not allowed",
    ErrorCode.NON_EMPTY_GROUP: "it has active members; stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "it does not exist",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator is not available; try again in a moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading; try again in a moment",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "it is subscribed to the topic",
}


def group_refusal(group: str, code: ErrorCode, *, said: str | None = None) -> RefusedByBroker:
    """Return the error for a group with which nothing was done."""
    return RefusedByBroker(code, _describe_group_error(group, code), said=said)


def _describe_group_error(group: str, code: ErrorCode) -> str:
    return f"Group {group}: {_GROUP_REASONS.get(code, f'the broker answered {code.name}')}."
