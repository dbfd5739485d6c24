"""LeaveGroup ends memberships of a classic group.

v3  several members, static ones by instance id alone (KIP-345)     v4  flexible     v5  reason
"""

from typing import TYPE_CHECKING

from logmark.coordination.commands import Leave, Leaver
from logmark.wire.schema import leave_group as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """What became of each leaver."""
    is_single = at.version < 3
    leavers = (
        (Leaver(request.member_id),)
        if is_single
        else tuple(Leaver(each.member_id, each.group_instance_id) for each in request.members)
    )
    left = await at.broker.groups.leave(Leave(group=request.group_id, leavers=leavers))
    if is_single:
        return schema.Response(error_code=left.errors[0][1])
    return schema.Response(
        members=[
            schema.ResponseMember(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error
            )
            for leaver, error in left.errors
        ]
    )
