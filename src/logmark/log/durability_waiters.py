"""Callbacks and futures that wait until an offset is durable."""

import asyncio
from collections.abc import Callable

from logmark.errors import LogFailed

# Called once, with None or with the failure that ended the wait.
Callback = Callable[[LogFailed | None], None]


class DurabilityWaiters:
    """Callbacks, each with the end offset that it waits for."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, Callback]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def call_at(self, end: int, callback: Callback) -> None:
        """Call back when the end is reached, or with the failure if the log stops before that."""
        self._waiting.append((end, callback))

    def wait_for(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the end is reached."""
        future: asyncio.Future[None] = self._loop.create_future()

        def complete(failure: LogFailed | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self._waiting.append((end, complete))
        return future

    def refuse(self, failure: LogFailed) -> asyncio.Future[None]:
        """Return a future that has failed already."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.set_exception(LogFailed(str(failure)))
        return future

    def release(self, end: int) -> None:
        """Call those back whose end is reached."""
        waiting = self._waiting
        self._waiting = [waiter for waiter in waiting if waiter[0] > end]
        for wanted, callback in waiting:
            if wanted <= end:
                callback(None)

    def fail(self, failure: LogFailed) -> None:
        """Call all waiters back with the failure; each gets an exception of its own."""
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(LogFailed(str(failure)))
