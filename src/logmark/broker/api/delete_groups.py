"""DeleteGroups removes empty groups with their committed offsets.

v2  flexible
"""

from typing import TYPE_CHECKING

from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import delete_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 3)


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """An error code for every group, once."""
    return schema.Response(results=[await _deleted(group_id, at) for group_id in dict.fromkeys(request.groups_names)])


def refuse(request: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """The same error for every group."""
    return schema.Response(results=[_result(group_id, code) for group_id in request.groups_names])


async def _deleted(group_id: str, at: "Request") -> schema.ResponseGroup:
    try:
        await at.broker.groups.delete_group(group_id)
    except Refused as refused:
        return _result(group_id, refused.code)
    return _result(group_id, ErrorCode.NONE)


def _result(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)
