"""Groups with members: nobody else may move them, so they are named, or waited for."""

import time
from collections.abc import Callable

from logmark.client.answers import GroupDescription, GroupMember
from logmark.client.client import Client
from logmark.offsets.errors import OffsetsError

_LOOK_EVERY_S = 0.5
_NAMED_MAX = 10


class GroupActive(OffsetsError):
    """A group has members, which would overwrite what is set; `description` says who they are."""

    def __init__(self, description: GroupDescription) -> None:
        members = "; ".join(_named(member) for member in description.members[:_NAMED_MAX])
        more = f"; and {len(description.members) - _NAMED_MAX} more" if len(description.members) > _NAMED_MAX else ""
        super().__init__(
            f"Group {description.group} is active (state {description.state}"
            f"{f'; its members: {members}{more}' if members else ''}), and its members would overwrite what is set. "
            "Nothing was changed",
            "stop them and try again, or call wait_until_empty",
        )
        self.description = description


def check_inactive(description: GroupDescription) -> None:
    """Raise GroupActive if the group has members."""
    if description.is_active:
        raise GroupActive(description)


def wait_until_empty(
    client: Client,
    group: str,
    *,
    timeout_s: float,
    on_wait: Callable[[GroupDescription], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the group has no members; raises GroupActive if it still has some after `timeout_s`."""
    waited_s = 0.0
    while True:
        description = client.describe_groups([group])[group]
        if not description.is_active:
            return
        if waited_s >= timeout_s:
            raise GroupActive(description)
        on_wait(description)
        sleep(_LOOK_EVERY_S)
        waited_s += _LOOK_EVERY_S


def _named(member: GroupMember) -> str:
    partitions = f" with {', '.join(str(one) for one in member.partitions)}" if member.partitions else ""
    return f"{member.client_id or member.member_id} on {member.host.lstrip('/')}{partitions}"
