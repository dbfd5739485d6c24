"""Calls about groups: their members, and the offsets that they have committed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import ModuleType

from logmark.client.answers import Committed, GroupDescription, GroupListing, GroupMember
from logmark.client.errors import BrokerUnreachable, CommitRefused, RefusedByBroker, error_code
from logmark.client.logs import by_topic
from logmark.client.router import Answer, Router, group_refusal
from logmark.errors import ErrorCode
from logmark.names import TopicPartition
from logmark.wire.messages import Message
from logmark.wire.schema import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from logmark.wire.schema import list_groups as list_groups_schema

LAST_WITH_NAMES = 9  # From version 10 on OffsetCommit and OffsetFetch have topic ids in place of names.
FIRST_WITH_GROUPS = 8  # of OffsetFetch
_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)

Commits = dict[TopicPartition, Committed]
# One object for each topic-partition of all groups: there are many more commits than partitions.
PartitionNames = dict[tuple[str, int], TopicPartition]


class GroupCalls(Router):
    """Groups, their members and their committed offsets, each asked of its coordinator."""

    def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Return every group that any broker of the cluster coordinates, by name; of these states and types, if any.

        A broker too old to know states or types does not choose.
        """
        deadline = self._deadline()
        request = list_groups_schema.Request(states_filter=list(states), types_filter=list(types))
        self._metadata([], deadline)
        found: dict[str, GroupListing] = {}
        for broker in list(self._brokers):
            answer = self._list_groups_of(broker, request, deadline)
            for one in answer.groups:
                found[one.group_id] = read_listing(one)
        return [found[group] for group in sorted(found)]

    def _list_groups_of(
        self, broker: int, request: list_groups_schema.Request, deadline: float
    ) -> list_groups_schema.Response:
        code = ErrorCode.NONE
        for _ in self._tries(deadline):
            answer = self._ask(list_groups_schema, request, list_groups_schema.Response, to=broker, deadline=deadline)
            code = error_code(answer.error_code)
            if code == ErrorCode.NONE:
                return answer
            if code not in _MOVED:
                break
        raise RefusedByBroker(code, f"The groups cannot be listed: the broker answered {code.name}.")

    def describe_groups(self, groups: Sequence[str]) -> dict[str, GroupDescription]:
        """Return the state and the members of these groups; an unknown group is Dead."""
        deadline = self._deadline()
        found: dict[str, GroupDescription] = {}
        for coordinator, members in self._by_coordinator(groups, deadline).items():
            answer = self._ask(
                describe_groups,
                describe_groups.Request(groups=members),
                describe_groups.Response,
                to=coordinator,
                deadline=deadline,
            )
            for one in answer.groups:
                if not one.error_code and one.group_state != "Dead":
                    found[one.group_id] = read_classic(one, coordinator)
        # What is left is asked alone: its coordinator moved meanwhile, or it is no classic group.
        return {group: found.get(group) or self._describe_group(group) for group in groups}

    def _describe_group(self, group: str) -> GroupDescription:
        answer = self._at_coordinator(
            group,
            describe_groups,
            describe_groups.Request(groups=[group]),
            describe_groups.Response,
            lambda response: [one.error_code for one in response.groups],
        )
        one = answer.groups[0]
        code = error_code(one.error_code)
        if code == ErrorCode.GROUP_ID_NOT_FOUND or one.group_state == "Dead":
            return self._describe_other(group)
        if code != ErrorCode.NONE:
            raise group_refusal(group, code)
        return read_classic(one, self._coordinators.get(group, -1))

    def _describe_other(self, group: str) -> GroupDescription:
        """Describe a group of the newer protocol; of any other type, by the list; else as unknown."""
        coordinator = self._coordinator(group, self._deadline())
        if self._connection(coordinator, self._deadline()).offers(consumer_group_describe.KEY):
            answer = self._at_coordinator(
                group,
                consumer_group_describe,
                consumer_group_describe.Request(group_ids=[group]),
                consumer_group_describe.Response,
                lambda response: [one.error_code for one in response.groups],
            )
            if not answer.groups[0].error_code:
                return read_newer(answer.groups[0], coordinator)
        for listing in self.list_groups():
            if listing.group == group and listing.type.lower() not in ("", "classic"):
                return GroupDescription(
                    group=group,
                    state=listing.state,
                    type=listing.type.lower(),
                    protocol_type=listing.protocol_type,
                    coordinator=self._coordinators.get(group, -1),
                )
        return GroupDescription(group=group, state="Dead")

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> Commits:
        """Return the committed offsets of a group, of these partitions or of all; leave out partitions without one."""
        wanted = None if partitions is None else by_topic(partitions)
        if wanted == {}:
            return {}
        request = offset_fetch.Request(
            group_id=group,
            topics=None
            if wanted is None
            else [offset_fetch.RequestTopic(name=name, partition_indexes=numbers) for name, numbers in wanted.items()],
            groups=[
                offset_fetch.RequestGroup(
                    group_id=group,
                    topics=None
                    if wanted is None
                    else [
                        offset_fetch.RequestGroupTopic(name=name, partition_indexes=numbers)
                        for name, numbers in wanted.items()
                    ],
                )
            ],
            require_stable=require_stable,
        )
        answer = self._at_coordinator(
            group, offset_fetch, request, offset_fetch.Response, _fetch_codes, at_most=LAST_WITH_NAMES
        )
        return _sorted_commits(group, answer.groups[0] if answer.groups else answer)

    def committed_of(self, groups: Sequence[str]) -> dict[str, Commits]:
        """Return the committed offsets of several groups, by one request to each coordinator if brokers allow it."""
        deadline = self._deadline()
        found: dict[str, Commits] = {}
        for coordinator, members in self._by_coordinator(groups, deadline).items():
            highest = self._connection(coordinator, deadline).version_of(offset_fetch.KEY, offset_fetch.VERSIONS)
            if highest < FIRST_WITH_GROUPS:
                continue
            request = offset_fetch.Request(
                groups=[offset_fetch.RequestGroup(group_id=group, topics=None) for group in members]
            )
            answer = self._ask(
                offset_fetch,
                request,
                offset_fetch.Response,
                to=coordinator,
                deadline=deadline,
                at_most=LAST_WITH_NAMES,
            )
            for one in answer.groups:
                if not one.error_code and not any(p.error_code for topic in one.topics for p in topic.partitions):
                    found[one.group_id] = _sorted_commits(one.group_id, one)
        # What is left is asked alone: of an old broker, or because its coordinator moved meanwhile.
        return {group: found[group] if group in found else self.committed(group) for group in groups}

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed | int]) -> None:
        """Commit offsets to a group without members; raise CommitRefused with the partitions that were refused."""
        left = {one: Committed(offset=to) if isinstance(to, int) else to for one, to in offsets.items()}
        deadline = self._deadline()
        refused: dict[TopicPartition, ErrorCode] = {}
        for _ in self._tries(deadline):
            answer = self._commit_once(group, left, deadline)
            refused = {
                TopicPartition(topic.name, one.partition_index): error_code(one.error_code)
                for topic in answer.topics
                for one in topic.partitions
                if one.error_code
            }
            left = {one: left[one] for one in refused}
            if not any(code.is_retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for code in refused.values()):
                break
            # On a young cluster the internal topic is being made: its coordinator says so, and is right a moment later.
            self._forget_coordinator(group)
        if refused:
            raise CommitRefused(group, refused)

    def _commit_once(
        self, group: str, offsets: Mapping[TopicPartition, Committed], deadline: float
    ) -> offset_commit.Response:
        request = offset_commit.Request(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                offset_commit.RequestTopic(
                    name=name,
                    partitions=[
                        offset_commit.RequestPartition(
                            partition_index=number,
                            committed_offset=(to := offsets[TopicPartition(name, number)]).offset,
                            committed_leader_epoch=to.leader_epoch,
                            committed_metadata=to.metadata,
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(offsets).items()
            ],
        )
        return self._at_coordinator(
            group, offset_commit, request, offset_commit.Response, lambda _: [], at_most=LAST_WITH_NAMES,
            deadline=deadline,
        )  # fmt: skip

    def delete_groups(self, groups: Sequence[str]) -> dict[str, RefusedByBroker]:
        """Delete groups with their offsets; return those that were not deleted, with the reason."""
        failures: dict[str, RefusedByBroker] = {}
        for group in groups:
            answer = self._at_coordinator(
                group,
                delete_groups,
                delete_groups.Request(groups_names=[group]),
                delete_groups.Response,
                lambda response: [one.error_code for one in response.results],
            )
            for one in answer.results:
                if one.error_code:
                    failures[one.group_id] = group_refusal(group, error_code(one.error_code))
        return failures

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, RefusedByBroker]:
        """Delete committed offsets of a group; return the partitions that were refused, with the reason."""
        request = offset_delete.Request(
            group_id=group,
            topics=[
                offset_delete.RequestTopic(
                    name=name, partitions=[offset_delete.RequestPartition(partition_index=one) for one in numbers]
                )
                for name, numbers in by_topic(partitions).items()
            ],
        )
        answer = self._at_coordinator(
            group, offset_delete, request, offset_delete.Response, lambda response: [response.error_code]
        )
        if answer.error_code:
            raise group_refusal(group, error_code(answer.error_code))
        return {
            TopicPartition(topic.name, one.partition_index): group_refusal(group, error_code(one.error_code))
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code
        }

    def _at_coordinator(
        self, group: str, schema: ModuleType, request: Message, answer: type[Answer],
        codes: Callable[[Answer], list[int]], *, at_most: int | None = None, deadline: float | None = None,
    ) -> Answer:  # fmt: skip
        """Ask the group's coordinator, and the next one if it has moved."""
        deadline = deadline or self._deadline()
        response: Answer | None = None
        failure: BrokerUnreachable | None = None
        for _ in self._tries(deadline):
            coordinator = self._coordinator(group, deadline)
            try:
                response = self._ask(schema, request, answer, to=coordinator, deadline=deadline, at_most=at_most)
            except BrokerUnreachable as error:
                failure = error
                self._forget_coordinator(group)
                continue
            if not any(error_code(code) in _MOVED for code in codes(response)):
                return response
            self._forget_coordinator(group)
        if response is None:
            assert failure is not None
            raise failure
        return response


def read_listing(group: list_groups_schema.ResponseGroup) -> GroupListing:
    """Return what ListGroups says about one group."""
    return GroupListing(
        group=group.group_id, protocol_type=group.protocol_type, state=group.group_state, type=group.group_type
    )


def read_description(
    group: describe_groups.ResponseGroup | consumer_group_describe.ResponseGroup, coordinator: int
) -> GroupDescription | RefusedByBroker:
    """Return what either protocol says about one group, or its error."""
    code = error_code(group.error_code)
    if code:
        return group_refusal(group.group_id, code, said=group.error_message)
    if isinstance(group, describe_groups.ResponseGroup):
        return read_classic(group, coordinator)
    return read_newer(group, coordinator)


def read_classic(group: describe_groups.ResponseGroup, coordinator: int) -> GroupDescription:
    """Return what DescribeGroups says about one group."""
    return GroupDescription(
        group=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        coordinator=coordinator,
        members=[
            GroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                partitions=read_assignment(member.member_assignment),
            )
            for member in group.members
        ],
    )


def read_newer(group: consumer_group_describe.ResponseGroup, coordinator: int) -> GroupDescription:
    """Return what ConsumerGroupDescribe says about one group."""
    return GroupDescription(
        group=group.group_id,
        state=group.group_state,
        type="consumer",
        protocol_type="consumer",
        assignor=group.assignor_name,
        coordinator=coordinator,
        members=[
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                partitions=_read_partitions(member.assignment),
                member_epoch=member.member_epoch,
                target=_read_partitions(member.target_assignment),
                is_upgraded=None if member.member_type < 0 else member.member_type == 1,
            )
            for member in group.members
        ],
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _read_partitions(assignment: consumer_group_describe.ResponseAssignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )


def _fetch_codes(answer: offset_fetch.Response) -> list[int]:
    groups: Sequence[offset_fetch.ResponseGroup | offset_fetch.Response] = answer.groups or [answer]
    found = [one.error_code for one in groups]
    return found + [partition.error_code for one in groups for topic in one.topics for partition in topic.partitions]


def _sorted_commits(group: str, answer: offset_fetch.Response | offset_fetch.ResponseGroup) -> Commits:
    found = read_commits(group, answer, {})
    if isinstance(found, RefusedByBroker):
        raise found
    return dict(sorted(found.items()))


def read_commits(
    group: str, answer: offset_fetch.Response | offset_fetch.ResponseGroup, names: PartitionNames
) -> Commits | RefusedByBroker:
    """Return what OffsetFetch says about one group, or the first error in it; an unknown group has no commits."""
    code = error_code(answer.error_code)
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}
    if code:
        return group_refusal(group, code)
    found = {}
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                return group_refusal(group, error_code(one.error_code))
            if one.committed_offset >= 0:
                key = (topic.name, one.partition_index)
                where = names.get(key) or names.setdefault(key, TopicPartition(*key))
                found[where] = Committed(
                    offset=one.committed_offset,
                    leader_epoch=one.committed_leader_epoch,
                    metadata=one.metadata or "",
                )
    return found


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions in a consumer's assignment; none if it is of another kind of group."""
    try:
        found: list[TopicPartition] = []
        at = 2
        count, at = _int(data, at, 4)
        for _ in range(count):
            size, at = _int(data, at, 2)
            topic, at = data[at : at + size].decode(), at + size
            partitions, at = _int(data, at, 4)
            for _ in range(partitions):
                number, at = _int(data, at, 4)
                found.append(TopicPartition(topic, number))
    except (IndexError, UnicodeDecodeError):
        return []
    return sorted(found)


def _int(data: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], "big", signed=True), at + size
