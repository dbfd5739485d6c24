"""Turns of the event loop: long work does a bounded piece of itself, then others have their turn.

In one turn of the event loop one piece of long work is done, however many requests have such work: they do their pieces
one after another. So the length of a turn does not grow with the number of long requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from logmark.errors import Refused

T = TypeVar("T")
# Work that yields the number of steps it has taken, each of some microseconds, and returns its result.
Steps = Generator[int, None, T]

STEPS_IN_A_TURN = 50


class _Line:
    """The long work of one event loop, in the order in which the next pieces are done."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the next turn in which nobody who came before does a piece of work."""
        turn = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._next)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


def _line() -> _Line:
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line(loop)
    return line


class Pace:
    """Counts the steps of one piece of work, each of which takes some microseconds."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Count a step, or several for what takes longer; let the event loop serve others if there were enough."""
        self._steps += count
        if self._steps >= STEPS_IN_A_TURN:
            self._steps = 0
            await _line().wait()


class _Lines:
    """Reads that wait in several lines: each line has one of them in turn."""

    __slots__ = ("_order", "_reads")

    def __init__(self) -> None:
        self._reads: dict[Hashable, deque[Callable[[], None]]] = {}
        self._order: deque[Hashable] = deque()

    def __bool__(self) -> bool:
        return bool(self._order)

    def add(self, line: Hashable, read: Callable[[], None]) -> None:
        """Add a read at the end of a line."""
        reads = self._reads.get(line)
        if reads is None:
            reads = self._reads[line] = deque()
            self._order.append(line)
        reads.append(read)

    def take(self) -> Callable[[], None]:
        """Take out the first read of the next line."""
        line = self._order.popleft()
        reads = self._reads[line]
        read = reads.popleft()
        if reads:
            self._order.append(line)
        else:
            del self._reads[line]
        return read


class ReadTurns:
    """The records that are read in one turn of the event loop, over all connections; what comes later waits.

    Connections are not limited by each other elsewhere: hundreds of them may send a fetch in the same moment, or wait
    for the same record. Those who read the same partition are one line, so that others do not stand behind all of them.
    """

    BYTES_IN_A_TURN = 4 * 1024 * 1024

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bytes = 0
        self._waiting = _Lines()
        self._waiting_short = _Lines()
        self._has_too_many = False
        self._is_next_turn_due = False
        # What was read for one of those who wait, while others follow in the same turn; None outside of it.
        self.shared: dict[Hashable, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether a read has to wait for a later turn."""
        return self._bytes >= self.BYTES_IN_A_TURN or self._has_waiting

    @property
    def is_contended(self) -> bool:
        """Whether others wait to read, and more than fits into one turn."""
        return self._has_too_many and self._has_waiting

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._waiting_short)

    def count(self, size_bytes: int) -> None:
        """Count records that were read."""
        self._bytes += size_bytes
        if size_bytes:
            self._begin_next_turn()

    def wait(self, read: Callable[[], None], *, line: Hashable, is_short: bool) -> None:
        """Read in a later turn, in the order of the calls, but short reads first: they have half of each turn.

        The lines are served in turn, one read of each.
        """
        if self._bytes >= self.BYTES_IN_A_TURN:
            self._has_too_many = True
        (self._waiting_short if is_short else self._waiting).add(line, read)
        self._begin_next_turn()

    def _begin_next_turn(self) -> None:
        if not self._is_next_turn_due:
            self._is_next_turn_due = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_next_turn_due = False
        self._bytes = 0
        self.shared = {}
        while self._waiting_short and self._bytes < self.BYTES_IN_A_TURN // 2:
            self._waiting_short.take()()
        while self._waiting and self._bytes < self.BYTES_IN_A_TURN:
            self._waiting.take()()
        self.shared = None
        self._has_too_many = self._has_waiting
        if self._has_waiting:
            self._begin_next_turn()


def run_at_once(steps: Steps[T]) -> T:
    """Return the result of work that is short."""
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_in_turns(steps: Steps[T], pace: Pace | None = None) -> T:
    """Return the result of work that is long."""
    pace = pace or Pace()
    try:
        while True:
            await pace.step(next(steps))
    except StopIteration as stop:
        result: T = stop.value
        return result


async def decide_each(decisions: Iterable[Callable[[], T]], pace: Pace) -> list[T | Refused]:
    """Make calls one after another; return what each returns, or how it refuses."""
    decided: list[T | Refused] = []
    for decide in decisions:
        try:
            decided.append(decide())
        except Refused as refused:
            decided.append(refused)
        await pace.step()
    return decided
