"""The line of long work: what many connections ask for at once begins in a fair order, and few at a time.

Work that takes up to 1 MiB of memory has a line of its own, so that a change of one topic does not wait behind answers
of a hundred megabytes. Of these one is made at a time. In each line the APIs have their turn one after another, and
within an API the connection that has had the least work there of late: a client with many long requests waits for its
own, and not the others for it. This is start-time fair queueing: a connection that was not there before is next.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from weakref import WeakKeyDictionary

from logmark.broker.memory_budget import LARGE_BYTES, MemoryBudget

# Work that is under way at one time.
SHORT_AT_ONCE, HEAVY_AT_ONCE = 4, 1


class Reservation:
    """Memory that is reserved for an answer; its parts are counted one by one as they are made."""

    __slots__ = ("_budget", "_left", "_size")

    def __init__(self, size_bytes: int, budget: MemoryBudget) -> None:
        self._size = self._left = size_bytes
        self._budget = budget

    def replace(self, size_bytes: int) -> None:
        """Give back what a part takes that is counted by itself from now on."""
        size_bytes = min(size_bytes, self._left)
        self._left -= size_bytes
        self._budget.hold(-size_bytes)

    def end(self) -> None:
        """Give back the rest: the work is done."""
        self._budget.end_work(self._size, self._left)


class WorkLine:
    """Lets long work begin, and reserves its memory."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.short, self.heavy = _Lane(SHORT_AT_ONCE), _Lane(HEAVY_AT_ONCE)

    @asynccontextmanager
    async def begin(self, api: str, owner: object, memory_bytes: int) -> AsyncIterator[Reservation | None]:
        """Wait until work may begin that takes about so much memory; `owner` is who has asked for it.

        0 reserves nothing: the work does so itself, if it has to.
        """
        lane = self.heavy if memory_bytes > LARGE_BYTES else self.short
        await lane.acquire(api, owner, memory_bytes)
        try:
            if not memory_bytes:
                yield None
                return
            async with self.reserve(memory_bytes) as reservation:
                yield reservation
        finally:
            lane.release()

    @asynccontextmanager
    async def reserve(self, memory_bytes: int) -> AsyncIterator[Reservation]:
        """Wait until there is memory for work."""
        begun = asyncio.Event()
        if self._budget.begin_work(memory_bytes, begun.set):
            begun.set()
        reservation = Reservation(memory_bytes, self._budget)
        try:
            await begun.wait()
            yield reservation
        finally:
            # Who is cancelled while it waits may have been granted the memory in the same turn.
            if begun.is_set():
                reservation.end()
            else:
                self._budget.withdraw_work(begun.set)


class _Lane:
    """Work of one size: how many are under way, and who waits."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.under_way = 0
        self._apis: dict[str, _Queue] = {}
        # The APIs that somebody waits for, the next one first.
        self._order: deque[str] = deque()

    async def acquire(self, api: str, owner: object, cost: int) -> None:
        """Wait for the turn of this work."""
        queue = self._apis.get(api)
        if queue is None:
            queue = self._apis[api] = _Queue()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not queue:
            self._order.append(api)
        queue.add(turn, owner, cost)
        self.begin_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """End work; others begin."""
        self.under_way -= 1
        self.begin_next()

    def begin_next(self) -> None:
        """Let as many begin as may be under way."""
        while self._order and self.under_way < self.at_once:
            api = self._order.popleft()
            queue = self._apis[api]
            turn = queue.take()
            if queue:
                self._order.append(api)
            if not turn.done():  # else it was cancelled
                self.under_way += 1
                turn.set_result(None)


class _Queue:
    """Who waits for work of one API, in the order in which they begin."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        # How far the work has come, and how far each connection will have when its work is done, by what it costs.
        self._now = 0
        self._ends: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, turn: "asyncio.Future[None]", owner: object, cost: int) -> None:
        start = max(self._now, self._ends.get(owner, 0))
        self._ends[owner] = start + cost
        heappush(self._waiting, (start, next(self._numbers), turn))

    def take(self) -> "asyncio.Future[None]":
        self._now, _, turn = heappop(self._waiting)
        return turn
