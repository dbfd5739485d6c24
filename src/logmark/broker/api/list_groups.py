"""ListGroups names every group.

v3  flexible     v4  by state (KIP-518)     v5  by type (KIP-848): all groups here are classic
"""

from typing import TYPE_CHECKING

from logmark.broker.answers import Buffers, LongBody, LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.wire.schema import list_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)

CLASSIC = "classic"


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Return the groups in the requested states and of the requested types; no filter means all."""
    # Names and states are part of what the groups take.
    return LongWork(_answer(message, request), memory_bytes=lambda: request.broker.budget.groups)


async def _answer(message: schema.Request, request: "Request") -> Buffers:
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    pace = Pace()
    body = LongBody(schema, request)
    for group in [] if types and CLASSIC not in types else await request.broker.groups.list_groups(pace):
        if not states or group.state.lower() in states:
            await body.add(
                schema.ResponseGroup(
                    group_id=group.id, protocol_type=group.protocol_type, group_state=group.state, group_type=CLASSIC
                )
            )
        await pace.step()
    return body.finish(schema.Response(groups=[]))
