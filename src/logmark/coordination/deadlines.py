"""Deadlines by key: set, moved and cancelled often, due rarely."""

import heapq
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Deadlines(Generic[Key]):
    """Remembers one deadline per key and hands out those that have passed, earliest first."""

    __slots__ = ("_count", "_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        # A heartbeat moves its deadline later far more often than any deadline passes, so a key keeps the
        # heap entry it has and is queued again only when that entry comes up too early.
        self._heap: list[tuple[int, int, Key]] = []
        self._queued: dict[Key, int] = {}
        self._count = 0

    def set(self, key: Key, at_ms: int) -> None:
        """Give the key this deadline instead of any earlier one."""
        self._due[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: Key) -> None:
        """Remove the key's deadline."""
        self._due.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def next_ms(self) -> int | None:
        """Return the earliest deadline, None if there is none."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop(self, now_ms: int) -> Key | None:
        """Remove and return one key whose deadline has passed, None if there is none."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._due[key]
        return key

    def move(self, by_ms: int) -> None:
        """Move every deadline by so much, back if it is negative: the clock was set."""
        self._due = {key: at_ms + by_ms for key, at_ms in self._due.items()}
        self._queued = {key: at_ms + by_ms for key, at_ms in self._queued.items()}
        # All by the same, so the heap stays one.
        self._heap = [(at_ms + by_ms, count, key) for at_ms, count, key in self._heap]

    def _push(self, key: Key, at_ms: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ms, self._count, key))
        self._queued[key] = at_ms

    def _settle(self) -> None:
        """Bring a true deadline to the top of the heap."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._queued.get(key) == at_ms:
                due = self._due.get(key)
                if due == at_ms:
                    return
                heapq.heappop(self._heap)
                del self._queued[key]
                if due is not None:
                    self._push(key, due)
            else:
                heapq.heappop(self._heap)  # the key was queued again, earlier
