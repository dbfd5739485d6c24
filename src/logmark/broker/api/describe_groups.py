"""DescribeGroups tells the state and the members of classic groups.

v3  authorized operations     v4  static members (KIP-345)     v5  flexible
v6  a group that does not exist is an error (KIP-1043); before, its state is Dead
"""

from typing import TYPE_CHECKING

from logmark.broker.answers import Buffers, LongBody, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.coordination.group import GroupDescription, GroupState
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import describe_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.server import Broker

KEY = schema.KEY
VERSIONS = range(0, 7)

NOT_FOUND_FROM = 6
GROUP_STEPS = 5
# What a group takes in an answer without its members, and what it is made of.
GROUP_BYTES = 500
NO_OPERATIONS = -(2**31)  # "nobody asked"
# Without authentication everybody may do everything that can be done to a group:
# read (3), delete (6), describe (8), describe configs (10), alter configs (11).
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Describe every requested group as it stands, once."""
    return LongWork(_answer(message, request), memory_bytes=lambda: _answer_bytes(message, request))


def answer_bytes_max(broker: "Broker", request_bytes: int) -> int:
    """Return how much memory an answer can take: all groups, and those that are named."""
    return broker.budget.groups + request_bytes // 2 * GROUP_BYTES


def _answer_bytes(message: schema.Request, request: "Request") -> int:
    groups = request.broker.groups
    return sum(GROUP_BYTES + groups.members_bytes(group_id) for group_id in set(message.groups))


async def _answer(message: schema.Request, request: "Request") -> Buffers:
    operations = ALL_OPERATIONS if message.include_authorized_operations else NO_OPERATIONS
    pace = Pace()
    body = LongBody(schema, request)
    for group_id in dict.fromkeys(message.groups):
        group = await _group(group_id, operations, request)
        await body.add(group)
        await pace.step(GROUP_STEPS + len(group.members))
    return body.finish(schema.Response(groups=[]))


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the same error for every group."""
    return schema.Response(groups=[_refused(group_id, code) for group_id in message.groups])


async def _group(group_id: str, operations: int, request: "Request") -> schema.ResponseGroup:
    try:
        found = await request.broker.groups.describe(group_id)
    except Refused as refused:
        return _refused(group_id, refused.code)
    if found is not None:
        return _described(found, operations)
    if request.version >= NOT_FOUND_FROM:
        return schema.ResponseGroup(
            group_id=group_id,
            group_state=GroupState.DEAD,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found.",
        )
    return schema.ResponseGroup(group_id=group_id, group_state=GroupState.DEAD, authorized_operations=operations)


def _described(group: GroupDescription, operations: int) -> schema.ResponseGroup:
    return schema.ResponseGroup(
        group_id=group.id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            schema.ResponseMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


def _refused(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)
