"""JoinGroup makes a client a member of a classic group; the answer comes when the group has a new generation.

v1  rebalance timeout     v4  a member asks for an id first (KIP-394)     v5  static members (KIP-345)
v6  flexible              v7  protocol type     v8  reason     v9  skip assignment (KIP-814)
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from logmark.broker.answers import LARGE, Buffers, LongBody
from logmark.broker.event_loop_turns import Pace
from logmark.broker.memory_budget import SMALL_BYTES
from logmark.coordination.commands import Join, Joined, JoinedMember, Protocol
from logmark.errors import ErrorCode
from logmark.wire.schema import join_group as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(0, 10)
GROUP_FIELD = "group_id"

NULLABLE_PROTOCOL_FROM = 7
# What a request has besides the metadata of its member: ids and names.
NAMES_BYTES_MAX = 256 * 1024
# What a member takes in the answer to the leader without its metadata.
MEMBER_BYTES = 300


def request_bytes_max(broker: "Broker") -> int:
    """Return how large a request may be; the group would refuse the metadata in a larger one."""
    return broker.config.int("group.member.max.bytes") + NAMES_BYTES_MAX


def handle(message: schema.Request, request: "Request") -> Awaitable[schema.Response | Buffers]:
    """Return the member's generation; the leader also gets the list of members."""
    joined = request.broker.groups.join(
        Join(
            group=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            client_id=request.client_id or "",
            client_host=request.client_host,
            protocol_type=message.protocol_type,
            protocols=tuple(Protocol(each.name, each.metadata) for each in message.protocols),
            session_timeout_ms=message.session_timeout_ms,
            rebalance_timeout_ms=message.rebalance_timeout_ms if request.version >= 1 else message.session_timeout_ms,
            must_know_its_id=request.version >= 4,
            can_skip_assignment=request.version >= 9,
        )
    )
    return _answer(joined, request)


async def _answer(waiting: Awaitable[Joined], request: "Request") -> schema.Response | Buffers:
    joined = await waiting
    metadata_bytes = sum(len(each.metadata) for each in joined.members)
    if len(joined.members) > LARGE or metadata_bytes > SMALL_BYTES:
        return await _long_body(joined, metadata_bytes, request)
    return _response(joined, [_member(each) for each in joined.members], request)


async def _long_body(joined: Joined, metadata_bytes: int, request: "Request") -> Buffers:
    size_bytes = metadata_bytes + MEMBER_BYTES * len(joined.members)
    line = request.broker.dispatcher.work_line
    async with line.begin(request.api.name, request.connection, size_bytes) as request.reservation:
        pace = Pace()
        body = LongBody(schema, request)
        for each in joined.members:
            await body.add(_member(each))
            await pace.step()
        return body.finish(_response(joined, [], request))


def _member(member: JoinedMember) -> schema.ResponseMember:
    return schema.ResponseMember(
        member_id=member.id, group_instance_id=member.instance_id, metadata=member.metadata
    )


def _response(joined: Joined, members: list[schema.ResponseMember], request: "Request") -> schema.Response:
    return schema.Response(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=_protocol(joined.protocol, request.version),
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=members,
    )


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the error, with the id that the member came with."""
    return schema.Response(error_code=code, protocol_name=_protocol(None, version), member_id=message.member_id)


def _protocol(name: str | None, version: int) -> str | None:
    return name if version >= NULLABLE_PROTOCOL_FROM else name or ""
