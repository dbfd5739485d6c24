"""The limit on connections."""

import socket
from collections import Counter
from collections.abc import Mapping

from logmark.errors import UserError


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
        """Counts a connection in, or says that there is no place for it."""
        address_max = self._overrides.get(address, self._per_address_max)
        if self._total >= self.total_max or self._by_address[address] >= address_max:
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Counts a connection out."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
