"""DeleteGroups removes empty groups with their committed offsets.

v2  flexible
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Pace
from logmark.errors import ErrorCode, Refused
from logmark.wire.schema import delete_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 3)
GROUP_FIELD = "groups_names"

GROUPS_AT_ONCE = 50


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Return an error code for every group, once."""
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    pace = Pace()
    results: list[schema.ResponseGroup] = []
    # Those of a portion wait for the disk together.
    for portion in _portions(dict.fromkeys(message.groups_names)):
        results += await asyncio.gather(*(_deleted(group_id, request) for group_id in portion))
        await pace.step(STEPS_IN_A_TURN)
    return schema.Response(results=results)


def _portions(groups: Iterable[str]) -> Iterable[list[str]]:
    names = list(groups)
    return (names[at : at + GROUPS_AT_ONCE] for at in range(0, len(names), GROUPS_AT_ONCE))


def refuse(message: schema.Request, code: ErrorCode, version: int) -> schema.Response:
    """Return the same error for every group."""
    return schema.Response(results=[_result(group_id, code) for group_id in message.groups_names])


async def _deleted(group_id: str, request: "Request") -> schema.ResponseGroup:
    try:
        await request.broker.groups.delete_group(group_id)
    except Refused as refused:
        return _result(group_id, refused.code)
    return _result(group_id, ErrorCode.NONE)


def _result(group_id: str, code: ErrorCode) -> schema.ResponseGroup:
    return schema.ResponseGroup(group_id=group_id, error_code=code)
