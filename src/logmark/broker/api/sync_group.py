"""SyncGroup hands out the assignments of a generation; the answer comes when the leader has brought them.

v3  static members (KIP-345)     v4  flexible     v5  protocol type and name, both required (KIP-559)
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from logmark.broker.answers import Buffers, encode_long
from logmark.broker.memory_budget import SMALL_BYTES
from logmark.coordination.commands import Sync, Synced
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import sync_group as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)
GROUP_FIELD = "group_id"


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response | Buffers]:
    """Return the member's assignment in this generation."""
    if request.version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    synced = request.broker.groups.sync(
        Sync(
            group=message.group_id,
            generation=message.generation_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
            assignments={each.member_id: each.assignment for each in message.assignments},
        )
    )
    return _answer(synced, request)


async def _answer(waiting: Awaitable[Synced], request: "Request") -> schema.Response | Buffers:
    synced = await waiting
    response = schema.Response(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )
    # A long assignment is sent as the group has it, and counted: a client may ask for it many times at once.
    return await encode_long(schema, request, response) if len(synced.assignment) > SMALL_BYTES else response
