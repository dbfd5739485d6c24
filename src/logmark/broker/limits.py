"""Limits on what clients can make the broker hold: bytes of unfinished requests and connections."""

import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping

from logmark.errors import UserError


class ByteBudget:
    """Bytes of requests in flight over all connections; who finds too few left waits in line."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def used(self) -> int:
        return self._used

    def take(self, size: int, when_free: Callable[[], None]) -> bool:
        """Takes the bytes now, or calls back once they have been taken for the caller."""
        # One request alone is always let in, or a budget smaller than a request would block it for ever.
        if not self._waiting and (self._used == 0 or self._used + size <= self._bytes_max):
            self._used += size
            return True
        self._waiting.append((size, when_free))
        return False

    def give_back(self, size: int) -> None:
        """Returns bytes and lets in who waited."""
        self._used -= size
        while self._waiting and (self._used == 0 or self._used + self._waiting[0][0] <= self._bytes_max):
            size, when_free = self._waiting.popleft()
            self._used += size
            when_free()

    def leave_line(self, when_free: Callable[[], None]) -> None:
        """Takes back a wait, when a connection is lost while it waits."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != when_free)


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
