"""Heartbeat keeps a member of a classic group alive.

v3  static members (KIP-345)     v4  flexible
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from logmark.coordination.commands import Heartbeat, HeartbeatAccepted
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import heartbeat as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 5)


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response]:
    """Keep the member for another session timeout; the response may tell it to rejoin.

    A heartbeat waits behind no request that changes its group, on another connection: it changes no more than the end
    of a session, and members must not lose theirs because somebody sends large commits.
    """
    beaten = request.broker.groups.heartbeat(
        Heartbeat(
            group=message.group_id,
            generation=message.generation_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
        )
    )
    return _answer(beaten)


async def _answer(waiting: Awaitable[HeartbeatAccepted]) -> schema.Response:
    try:
        beaten = await waiting
    except Refused as refused:
        if refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The load ends with a fresh session for every member, so this one lost nothing by waiting.
            return schema.Response()
        raise
    return schema.Response(error_code=beaten.error)
