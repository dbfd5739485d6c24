"""The limit on connections."""

from collections import Counter


class ConnectionLimit:
    """How many connections there are, over all and by address."""

    def __init__(self, *, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._by_address: Counter[str] = Counter()
        self._total = 0

    def enter(self, address: str) -> bool:
        """Counts a connection in, or says that there is no place for it."""
        if self._total >= self._total_max or self._by_address[address] >= self._per_address_max:
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
