"""ListGroups names every group.

v3  flexible     v4  by state (KIP-518)     v5  by type (KIP-848): all groups here are classic
"""

from typing import TYPE_CHECKING

from logmark.wire.schema import list_groups as schema

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request

KEY = schema.KEY
VERSIONS = range(0, 6)

CLASSIC = "classic"


async def handle(request: schema.Request, at: "Request") -> schema.Response:
    """The groups in the states and of the types that were asked for; no filter means all."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    groups = [] if types and CLASSIC not in types else await at.broker.groups.list_groups()
    return schema.Response(
        groups=[
            schema.ResponseGroup(
                group_id=group.id, protocol_type=group.protocol_type, group_state=group.state, group_type=CLASSIC
            )
            for group in groups
            if not states or group.state.lower() in states
        ]
    )
