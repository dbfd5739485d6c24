"""Calls about consumer groups of either protocol, asked in the order in which Kafka's own admin client asks."""

from collections.abc import Sequence

from logmark.client.answers import GroupDescription
from logmark.client.errors import RefusedByBroker, error_code
from logmark.client.groups import GroupCalls, read_description
from logmark.errors import ErrorCode
from logmark.wire.schema import consumer_group_describe, describe_groups

_OF_THE_OTHER_PROTOCOL = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
Described = GroupDescription | RefusedByBroker


class DescribeCalls(GroupCalls):
    """Consumer groups as their coordinators describe them: one request to each coordinator for each protocol."""

    def describe_consumer_groups(self, groups: Sequence[str]) -> dict[str, Described]:
        """Describe the groups; a group that its broker could not describe or does not know has the error instead.

        An old broker gives no error for a group that it does not know, and says that it is Dead.
        """
        found: dict[str, Described] = {}
        for coordinator, members in self._by_coordinator(list(dict.fromkeys(groups)), self._deadline()).items():
            if self._connection(coordinator, self._deadline()).offers(consumer_group_describe.KEY):
                for group, newer in self._newer(coordinator, members).items():
                    found[group] = read_description(newer, coordinator)
            left = [group for group in members if _is_of_the_other_protocol(found.get(group))]
            for group, classic in self._classic(coordinator, left).items():
                answer = read_description(classic, coordinator)
                # Where neither protocol knows the group, the first answer says it in better words.
                if not (_is_not_found(answer) and _is_not_found(found.get(group))):
                    found[group] = answer
        return {group: found[group] for group in groups}

    def _newer(self, coordinator: int, groups: Sequence[str]) -> dict[str, consumer_group_describe.ResponseGroup]:
        request = consumer_group_describe.Request(group_ids=list(groups))
        answer = self._ask(
            consumer_group_describe,
            request,
            consumer_group_describe.Response,
            to=coordinator,
            deadline=self._deadline(),
        )
        return {
            one.group_id: self._at_coordinator(
                one.group_id,
                consumer_group_describe,
                consumer_group_describe.Request(group_ids=[one.group_id]),
                consumer_group_describe.Response,
                lambda again: [each.error_code for each in again.groups],
            ).groups[0]
            if error_code(one.error_code).is_retriable
            else one
            for one in answer.groups
        }

    def _classic(self, coordinator: int, groups: Sequence[str]) -> dict[str, describe_groups.ResponseGroup]:
        if not groups:
            return {}
        request = describe_groups.Request(groups=list(groups))
        answer = self._ask(
            describe_groups, request, describe_groups.Response, to=coordinator, deadline=self._deadline()
        )
        return {
            one.group_id: self._at_coordinator(
                one.group_id,
                describe_groups,
                describe_groups.Request(groups=[one.group_id]),
                describe_groups.Response,
                lambda again: [each.error_code for each in again.groups],
            ).groups[0]
            if error_code(one.error_code).is_retriable
            else one
            for one in answer.groups
        }


def _is_of_the_other_protocol(answer: Described | None) -> bool:
    return answer is None or (isinstance(answer, RefusedByBroker) and answer.code in _OF_THE_OTHER_PROTOCOL)


def _is_not_found(answer: Described | None) -> bool:
    return isinstance(answer, RefusedByBroker) and answer.code == ErrorCode.GROUP_ID_NOT_FOUND
