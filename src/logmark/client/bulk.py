"""Calls about very many groups and partitions: bounded requests, several on their way, one failure never all."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

from logmark.client.answers import GroupDescription, GroupListing
from logmark.client.connection import Address, Connection, seconds_left
from logmark.client.errors import BrokerUnreachable, ClientError, RefusedByBroker, error_code
from logmark.client.groups import (
    FIRST_WITH_GROUPS,
    LAST_WITH_NAMES,
    Commits,
    PartitionNames,
    read_commits,
    read_description,
    read_listing,
)
from logmark.client.logs import by_topic, offsets_request, partition_refusal
from logmark.client.router import ANY, FIRST_WITH_KEYS, Answer, Router, group_refusal, no_leader
from logmark.errors import ErrorCode, Malformed
from logmark.names import TopicPartition
from logmark.wire.messages import Message, decode_response, encode_request
from logmark.wire.schema import (
    consumer_group_describe,
    describe_groups,
    find_coordinator,
    list_groups,
    list_offsets,
    offset_fetch,
)

# Large enough that a request's own cost is small, small enough that no broker is held up by one.
GROUPS_MAX = 50
PARTITIONS_MAX = 2_500
IN_FLIGHT_MAX = 2  # one is answered while the other is read

_ROUNDS = 3
_PAUSE_S = 0.2
_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

T = TypeVar("T")
_Grouped = Mapping[int, Sequence[str]]


class BulkCalls(Router):
    """What a monitor asks of a whole cluster; an answer that failed is the error itself."""

    def try_list_groups(self) -> tuple[list[GroupListing], list[str]]:
        """Return every group by name, and messages about brokers whose list may not be complete."""
        deadline = self._deadline()
        self._metadata([], deadline)
        found: dict[str, GroupListing] = {}
        missing: list[str] = []
        for broker in list(self._brokers):
            problem = ""
            for _ in range(_ROUNDS):
                answer = self._ask(
                    list_groups, list_groups.Request(), list_groups.Response, to=broker, deadline=deadline
                )
                for one in answer.groups:
                    found[one.group_id] = read_listing(one)
                code = error_code(answer.error_code)
                if code not in (ErrorCode.NONE, *_MOVED):
                    raise RefusedByBroker(code, f"The groups cannot be listed: the broker answered {code.name}.")
                problem = "" if code == ErrorCode.NONE else f"Broker {broker} is still loading groups ({code.name})."
                if not problem or not self._pause(deadline):
                    break
            missing += [f"{problem} Some may be missing here."] if problem else []
        return [found[group] for group in sorted(found)], missing

    def try_describe_groups(
        self, groups: Sequence[str], *, types: Mapping[str, str] | None = None
    ) -> dict[str, GroupDescription | ClientError]:
        """Return the state and the members of these groups, each asked by its own type if `types` has it."""
        known = types or {}
        found: dict[str, GroupDescription | ClientError] = {}
        newer = [group for group in groups if known.get(group, "").lower() == "consumer"]
        classic = [group for group in groups if group not in set(newer)]
        for group, answer in self._at_coordinators(classic, self._describe_classic).items():
            found[group] = answer
            if isinstance(answer, RefusedByBroker) and answer.code == ErrorCode.GROUP_ID_NOT_FOUND:
                newer.append(group)
        for group, answer in self._at_coordinators(newer, self._describe_newer).items():
            is_missing = isinstance(answer, RefusedByBroker) and answer.code == ErrorCode.GROUP_ID_NOT_FOUND
            found[group] = GroupDescription(group=group, state="Dead") if is_missing else answer
        return {group: found[group] for group in groups}

    def try_committed_of(self, groups: Sequence[str]) -> dict[str, Commits | ClientError]:
        """Return the committed offsets of these groups; an unknown group has none."""
        names: PartitionNames = {}
        return self._at_coordinators(groups, lambda grouped, deadline: self._fetch_committed(grouped, deadline, names))

    def try_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int] | RefusedByBroker]:
        """Return offset and timestamp for a time in each partition, as ListOffsets has them; wait for no leader."""
        deadline = self._deadline()
        found: dict[TopicPartition, tuple[int, int] | RefusedByBroker] = {}
        left_over = list(wanted)
        for round_number in range(_ROUNDS):
            grouped, failures = self._leaders_now(left_over, deadline)
            found |= failures
            timeout_ms = max(int(seconds_left(deadline) * 1000), 1)
            requests = [
                (leader, offsets_request(chunk, wanted, read_committed=read_committed, timeout_ms=timeout_ms))
                for leader, partitions in grouped.items()
                for chunk in chunks(partitions, PARTITIONS_MAX)
            ]
            for answer in self._ask_all(list_offsets, requests, list_offsets.Response, deadline=deadline):
                if isinstance(answer, ClientError):
                    continue
                for topic in answer.topics:
                    for one in topic.partitions:
                        where = TopicPartition(topic.name, one.partition_index)
                        if one.error_code:
                            found[where] = partition_refusal(where, error_code(one.error_code))
                        else:
                            found[where] = (one.offset, one.timestamp)
            left_over = [one for one in left_over if one not in failures and _is_open(found.get(one))]
            if not left_over or round_number == _ROUNDS - 1 or not self._pause(deadline):
                break
            self.forget_leaders(left_over)
        for partition in wanted:
            if partition not in found:
                found[partition] = RefusedByBroker(
                    ErrorCode.NETWORK_EXCEPTION, f"The leader of {partition} cannot be reached at the moment."
                )
        return found

    def _leaders_now(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, RefusedByBroker]]:
        """Return the partitions by leader, and why the others have none at this moment."""
        failures: dict[TopicPartition, RefusedByBroker] = {}
        for missing in _by_whole_topics(self._without_leader(partitions)):
            metadata = self._metadata(sorted({one.topic for one in missing}), deadline)
            failures |= {one: no_leader(metadata, one) for one in self._without_leader(missing)}
        return self._group_by_leader(one for one in partitions if one not in failures), failures

    def _at_coordinators(
        self, groups: Sequence[str], ask: "Callable[[_Grouped, float], dict[str, T | ClientError]]"
    ) -> "dict[str, T | ClientError]":
        """Ask each group's coordinator, and the next one if it has moved."""
        deadline = self._deadline()
        found: dict[str, T | ClientError] = {}
        left_over = list(groups)
        for round_number in range(_ROUNDS):
            grouped, failures = self._coordinators_now(left_over, deadline)
            answers: dict[str, T | ClientError] = {**failures}
            answers |= ask(grouped, deadline)
            found |= answers
            left_over = [
                group
                for group in left_over
                if group not in answers
                or isinstance(answers[group], BrokerUnreachable)
                or (isinstance(one := answers[group], RefusedByBroker) and one.code in _MOVED)
            ]
            if not left_over or round_number == _ROUNDS - 1 or not self._pause(deadline):
                break
            for group in left_over:
                self._forget_coordinator(group)
        for group in left_over:
            if group not in found:
                found[group] = BrokerUnreachable(f"The coordinator of group {group} did not answer for it.")
        return {group: found[group] for group in groups}

    def _coordinators_now(
        self, groups: Sequence[str], deadline: float
    ) -> tuple[dict[int, list[str]], dict[str, RefusedByBroker]]:
        failures: dict[str, RefusedByBroker] = {}
        unknown = [group for group in groups if self._coordinators.get(group) not in self._brokers]
        if unknown and self._highest(find_coordinator, deadline) < FIRST_WITH_KEYS:
            for group in unknown:
                try:
                    self._coordinator(group, deadline)
                except RefusedByBroker as refused:
                    failures[group] = refused
            unknown = []
        for chunk in chunks(unknown, PARTITIONS_MAX):
            request = find_coordinator.Request(key_type=0, coordinator_keys=chunk)
            answer = self._ask(find_coordinator, request, find_coordinator.Response, to=ANY, deadline=deadline)
            for one in answer.coordinators:
                if one.error_code:
                    failures[one.key] = group_refusal(one.key, error_code(one.error_code))
                    continue
                if one.node_id not in self._brokers:
                    self._brokers = {**self._brokers, one.node_id: Address(one.host, one.port)}
                self._coordinators[one.key] = one.node_id
        grouped: dict[int, list[str]] = {}
        for group in groups:
            if group not in failures:
                grouped.setdefault(self._coordinators[group], []).append(group)
        return grouped, failures

    def _describe_classic(self, grouped: _Grouped, deadline: float) -> dict[str, GroupDescription | ClientError]:
        asked = [(broker, chunk) for broker, groups in grouped.items() for chunk in chunks(groups, GROUPS_MAX)]
        requests = [(broker, describe_groups.Request(groups=list(chunk))) for broker, chunk in asked]
        answers = self._ask_all(describe_groups, requests, describe_groups.Response, deadline=deadline)
        return _read_descriptions(asked, answers)

    def _describe_newer(self, grouped: _Grouped, deadline: float) -> dict[str, GroupDescription | ClientError]:
        found: dict[str, GroupDescription | ClientError] = {}
        asked = []
        for broker, groups in grouped.items():
            if self._connection(broker, deadline).offers(consumer_group_describe.KEY):
                asked += [(broker, chunk) for chunk in chunks(groups, GROUPS_MAX)]
                continue
            found |= {group: _not_found(group) for group in groups}
        requests = [(broker, consumer_group_describe.Request(group_ids=list(chunk))) for broker, chunk in asked]
        answers = self._ask_all(consumer_group_describe, requests, consumer_group_describe.Response, deadline=deadline)
        return found | _read_descriptions(asked, answers)

    def _fetch_committed(
        self, grouped: _Grouped, deadline: float, names: PartitionNames
    ) -> dict[str, Commits | ClientError]:
        found: dict[str, Commits | ClientError] = {}
        asked: list[tuple[int, Sequence[str]]] = []
        for broker, groups in grouped.items():
            try:
                highest = self._connection(broker, deadline).version_of(offset_fetch.KEY, offset_fetch.VERSIONS)
            except BrokerUnreachable as error:
                found |= dict.fromkeys(groups, error)
                continue
            asked += [(broker, c) for c in chunks(groups, GROUPS_MAX if highest >= FIRST_WITH_GROUPS else 1)]
        requests = [
            (
                broker,
                offset_fetch.Request(
                    group_id=chunk[0],
                    topics=None,
                    groups=[offset_fetch.RequestGroup(group_id=group, topics=None) for group in chunk],
                ),
            )
            for broker, chunk in asked
        ]
        answers = self._ask_all(
            offset_fetch, requests, offset_fetch.Response, deadline=deadline, at_most=LAST_WITH_NAMES
        )
        for (_, chunk), answer in zip(asked, answers, strict=True):
            if isinstance(answer, ClientError):
                found |= dict.fromkeys(chunk, answer)
            elif answer.groups:
                found |= {one.group_id: read_commits(one.group_id, one, names) for one in answer.groups}
            else:
                found[chunk[0]] = read_commits(chunk[0], answer, names)
        return found

    def connection_to(self, broker: int, deadline: float) -> Connection:
        """Return the connection to a broker, opened if need be."""
        return self._connection(broker, deadline)

    def _pause(self, deadline: float) -> bool:
        """Wait a moment for an election or a load to end; return False if there is no time for it."""
        if seconds_left(deadline) < _PAUSE_S * 2:
            return False
        time.sleep(_PAUSE_S)
        return True

    def _ask_all(
        self, schema: ModuleType, requests: Sequence[tuple[int, Message]], answer: type[Answer], *, deadline: float,
        at_most: int | None = None,
    ) -> list[Answer | ClientError]:  # fmt: skip
        """Return one response for each request, in their order; every broker has a few of them at a time."""
        found: dict[int, Answer | ClientError] = {}
        waiting: dict[int, deque[int]] = {}
        for index, (broker, _) in enumerate(requests):
            waiting.setdefault(broker, deque()).append(index)
        lines = [_Line(self, schema, broker, queue, requests, at_most) for broker, queue in waiting.items()]
        while any(line.is_busy for line in lines):
            for line in lines:
                line.fill(deadline)
            for line in lines:
                for index, message in line.take(deadline).items():
                    assert isinstance(message, answer)
                    found[index] = message
        for index, (broker, request) in enumerate(requests):
            if index not in found:
                # Its connection broke, or could not be opened: once more, alone and with all patience.
                try:
                    found[index] = self._ask(schema, request, answer, to=broker, deadline=deadline, at_most=at_most)
                except ClientError as error:
                    found[index] = error
        return [found[index] for index in range(len(requests))]


class _Line:
    """The requests that go to one broker, a few of them on their way."""

    def __init__(
        self, router: BulkCalls, schema: ModuleType, broker: int, queue: deque[int],
        requests: Sequence[tuple[int, Message]], at_most: int | None,
    ) -> None:  # fmt: skip
        self._router = router
        self._schema = schema
        self._broker = broker
        self._queue = queue
        self._requests = requests
        self._at_most = at_most
        self._sent: deque[int] = deque()
        self._connection: Connection | None = None
        self._version = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._queue or self._sent)

    def fill(self, deadline: float) -> None:
        """Send until enough is on its way; the caller handles what cannot be sent."""
        try:
            while self._queue and len(self._sent) < IN_FLIGHT_MAX:
                if self._connection is None:
                    self._connection = self._router.connection_to(self._broker, deadline)
                    self._version = self._connection.version_of(
                        self._schema.KEY, self._schema.VERSIONS, at_most=self._at_most
                    )
                _, request = self._requests[self._queue[0]]
                body = encode_request(self._schema, self._version, request)
                first = self._schema.FLEXIBLE_FROM
                flexible = first is not None and self._version >= first
                self._connection.send(self._schema.KEY, self._version, body, flexible=flexible, deadline=deadline)
                self._router.requests_sent += 1
                self._sent.append(self._queue.popleft())
        except ClientError:
            self._give_up()

    def take(self, deadline: float) -> dict[int, Message]:
        """Return the next response, if one is on its way."""
        if not self._sent:
            return {}
        assert self._connection is not None
        try:
            body = self._connection.receive(deadline)
            return {self._sent.popleft(): decode_response(self._schema, self._version, body)}
        except (ClientError, Malformed):
            self._connection.close()
            self._give_up()
            return {}

    def _give_up(self) -> None:
        self._queue.clear()
        self._sent.clear()


def _read_descriptions(
    asked: Sequence[tuple[int, Sequence[str]]],
    answers: Sequence[describe_groups.Response | consumer_group_describe.Response | ClientError],
) -> dict[str, GroupDescription | ClientError]:
    found: dict[str, GroupDescription | ClientError] = {}
    for (broker, chunk), answer in zip(asked, answers, strict=True):
        if isinstance(answer, ClientError):
            found |= dict.fromkeys(chunk, answer)
            continue
        for one in answer.groups:
            # An old broker gives no error for a classic group that it does not know, and says that it is Dead.
            is_unknown = isinstance(one, describe_groups.ResponseGroup) and one.group_state == "Dead"
            found[one.group_id] = _not_found(one.group_id) if is_unknown else read_description(one, broker)
    return found


def _not_found(group: str) -> RefusedByBroker:
    return group_refusal(group, ErrorCode.GROUP_ID_NOT_FOUND)


def _is_open(answer: tuple[int, int] | RefusedByBroker | None) -> bool:
    return answer is None or (isinstance(answer, RefusedByBroker) and answer.code.is_retriable)


def _by_whole_topics(partitions: Sequence[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Return the partitions in lists of about the largest size, none of which divides a topic."""
    found: list[TopicPartition] = []
    for topic, numbers in by_topic(partitions).items():
        found += [TopicPartition(topic, number) for number in numbers]
        if len(found) >= PARTITIONS_MAX:
            yield found
            found = []
    if found:
        yield found


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Yield the items in order, in lists of at most this size."""
    for at in range(0, len(items), size):
        yield list(items[at : at + size])
