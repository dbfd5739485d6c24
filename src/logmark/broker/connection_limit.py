"""The limit on connections, and the few above it that may only ask how the broker is."""

import socket
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from logmark.errors import UserError
from logmark.wire.schema import api_versions, describe_log_dirs

# The connections above the limits. `logmark health` needs one, for some milliseconds.
RESERVE_MAX = 4
TOO_MANY = "there are too many, and this one may only ask for the broker's health"

# What a connection above the limits may ask for: `logmark health` sends these requests.
HEALTH_KEYS = frozenset({api_versions.KEY, describe_log_dirs.KEY})


def read_overrides(text: str) -> dict[str, int]:
    """Return the limits by address in the text of max.connections.per.ip.overrides: HOST:COUNT, several with commas.

    As in Kafka, a host may be a name, which is resolved now. Raises UserError if the text means nothing.
    """
    found: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = entry.rpartition(":")
        host = host.strip().removeprefix("[").removesuffix("]")
        if not host or not count.strip().isdecimal():
            raise _impossible(entry, "is not HOST:COUNT")
        try:
            addresses = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError):
            raise _impossible(entry, "names a host that is not known") from None
        found.update(dict.fromkeys(addresses, int(count)))
    return found


def _impossible(entry: str, reason: str) -> UserError:
    return UserError(
        f"Setting max.connections.per.ip.overrides: {entry!r} {reason}. Nothing was started; correct it.", exit_code=2
    )


class ConnectionLimit:
    """How many connections there are, over all and by address."""

    def __init__(self, *, total_max: int, per_address_max: int, overrides: Mapping[str, int] | None = None) -> None:
        """Take the limits; `overrides` has that of single addresses."""
        self.total_max = total_max
        self._per_address_max = per_address_max
        self._overrides = dict(overrides or {})
        self._by_address: Counter[str] = Counter()
        self._total = 0

    @property
    def used(self) -> int:
        """How many connections there are."""
        return self._total

    def enter(self, address: str) -> bool:
        """Count a connection in, or return False if there are too many."""
        address_max = self._overrides.get(address, self._per_address_max)
        if self._total >= self.total_max or self._by_address[address] >= address_max:
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection out."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class Refusable(Protocol):
    """A connection that can be closed."""

    def refuse(self, reason: str) -> None: ...


class HealthReserve:
    """The connections above the limits.

    An operator needs `logmark health` just when no connection is left. A client that keeps such a connection open, or
    opens many of them, does not keep others from it: a new connection closes the oldest one.
    """

    def __init__(self) -> None:
        self._connections: dict[Refusable, None] = {}

    def enter(self, connection: Refusable) -> None:
        """Add a connection, and close the oldest one if there are too many."""
        if len(self._connections) >= RESERVE_MAX:
            oldest = next(iter(self._connections))
            self.leave(oldest)
            oldest.refuse(TOO_MANY)
        self._connections[connection] = None

    def leave(self, connection: Refusable) -> None:
        """Forget a connection that was closed."""
        self._connections.pop(connection, None)
