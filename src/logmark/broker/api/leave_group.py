"""LeaveGroup ends memberships of a classic group.

v3  several members, static ones by instance id alone (KIP-345)     v4  flexible     v5  reason
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, LongWork
from logmark.broker.pace import Pace
from logmark.coordination.commands import Leave, Leaver
from logmark.wire.schema import leave_group as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)

LEAVERS_AT_ONCE = 500


def handle(request: schema.Request, at: "Request") -> Awaitable[schema.Response] | LongWork:
    """What became of each leaver."""
    if at.version < 3:
        return _leave_alone(request, at)
    answer = _leave_together(request, at)
    return LongWork(answer) if len(request.members) > LARGE else answer


async def _leave_alone(request: schema.Request, at: "Request") -> schema.Response:
    left = await at.broker.groups.leave(Leave(group=request.group_id, leavers=(Leaver(request.member_id),)))
    return schema.Response(error_code=left.errors[0][1])


async def _leave_together(request: schema.Request, at: "Request") -> schema.Response:
    """Let the leavers out in portions; even none is a portion, which tells whether there is such a group."""
    pace = Pace()
    members = []
    for begin in range(0, len(request.members) or 1, LEAVERS_AT_ONCE):
        portion = request.members[begin : begin + LEAVERS_AT_ONCE]
        leavers = tuple(Leaver(each.member_id, each.group_instance_id) for each in portion)
        left = await at.broker.groups.leave(Leave(group=request.group_id, leavers=leavers))
        for leaver, error in left.errors:
            members.append(
                schema.ResponseMember(
                    member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error
                )
            )
            await pace.step()
    return schema.Response(members=members)
