"""Those who wait until an offset is durable."""

import asyncio
from collections.abc import Callable

from logmark.errors import LogFailed

# Called once, with None or with the failure that ended the wait.
Told = Callable[[LogFailed | None], None]


class Waiters:
    """Calls to be made, each with the end that it waits for."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, Told]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def call_at(self, end: int, told: Told) -> None:
        """Make a call when the end is reached, or when it never will be."""
        self._waiting.append((end, told))

    def wait_for(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the end is reached."""
        future: asyncio.Future[None] = self._loop.create_future()

        def told(failure: LogFailed | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self._waiting.append((end, told))
        return future

    def refuse(self, failure: LogFailed) -> asyncio.Future[None]:
        """Return a future that has failed already."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.set_exception(LogFailed(str(failure)))
        return future

    def release(self, end: int) -> None:
        """Tell those whose end is reached."""
        waiting = self._waiting
        self._waiting = [waiter for waiter in waiting if waiter[0] > end]
        for wanted, told in waiting:
            if wanted <= end:
                told(None)

    def fail(self, failure: LogFailed) -> None:
        """Tell everybody that it will never come; each gets an exception of its own."""
        waiting, self._waiting = self._waiting, []
        for _, told in waiting:
            told(LogFailed(str(failure)))
