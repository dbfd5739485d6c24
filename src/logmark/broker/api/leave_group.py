"""LeaveGroup ends memberships of a classic group.

v3  several members, static ones by instance id alone (KIP-345)     v4  flexible     v5  reason
"""

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.coordination.commands import Leave, Leaver, Left
from logmark.errors import ErrorCode
from logmark.wire.schema import leave_group as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)
GROUP_FIELD = "group_id"

LEAVERS_AT_ONCE = 500


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response] | LongWork:
    """Remove the members and return an error code for each."""
    if request.version < 3:
        return _answer_alone(_leave(message, request, [Leaver(message.member_id)]))
    if len(message.members) > LARGE:
        return LongWork(_leave_in_portions(message, request))
    return _answer(_leave_together(message, request, message.members))


def _leave(message: schema.Request, request: "Request", leavers: Iterable[Leaver]) -> Awaitable[Left]:
    """Remove the members now; without any, the answer still tells whether there is such a group."""
    return request.broker.groups.leave(Leave(group=message.group_id, leavers=tuple(leavers)))


def _leave_together(
    message: schema.Request, request: "Request", members: Iterable[schema.RequestMember]
) -> Awaitable[Left]:
    return _leave(message, request, (Leaver(each.member_id, each.group_instance_id) for each in members))


async def _answer_alone(left: Awaitable[Left]) -> schema.Response:
    return schema.Response(error_code=(await left).errors[0][1])


async def _answer(left: Awaitable[Left]) -> schema.Response:
    return schema.Response(members=[_member(*each) for each in (await left).errors])


async def _leave_in_portions(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    members = []
    for begin in range(0, len(message.members), LEAVERS_AT_ONCE):
        left = await _leave_together(message, request, message.members[begin : begin + LEAVERS_AT_ONCE])
        for each in left.errors:
            members.append(_member(*each))
            await pace.step()
    return schema.Response(members=members)


def _member(leaver: Leaver, error: ErrorCode) -> schema.ResponseMember:
    return schema.ResponseMember(
        member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error
    )
