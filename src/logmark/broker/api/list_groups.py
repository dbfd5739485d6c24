"""ListGroups names every group.

v3  flexible     v4  by state (KIP-518)     v5  by type (KIP-848): all groups here are classic
"""

from typing import TYPE_CHECKING

from logmark.broker.answers import LongWork
from logmark.broker.event_loop_turns import Pace
from logmark.wire.schema import list_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)

CLASSIC = "classic"


def handle(message: schema.Request, request: "Request") -> LongWork:
    """Return the groups in the requested states and of the requested types; no filter means all."""
    return LongWork(_answer(message, request))


async def _answer(message: schema.Request, request: "Request") -> schema.Response:
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    pace = Pace()
    listed = []
    for group in [] if types and CLASSIC not in types else await request.broker.groups.list_groups(pace):
        if not states or group.state.lower() in states:
            listed.append(
                schema.ResponseGroup(
                    group_id=group.id, protocol_type=group.protocol_type, group_state=group.state, group_type=CLASSIC
                )
            )
        await pace.step()
    return schema.Response(groups=listed)
