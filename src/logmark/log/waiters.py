"""Those who wait until an offset is durable."""

import asyncio

from logmark.errors import LogFailed


class Waiters:
    """Futures, each with the end that it waits for."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait_for(self, end: int) -> asyncio.Future[None]:
        """A future that is done when the end is reached."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((end, future))
        return future

    def refuse(self, failure: LogFailed) -> asyncio.Future[None]:
        """A future that has failed already."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.set_exception(LogFailed(str(failure)))
        return future

    def release(self, end: int) -> None:
        """Tells those whose end is reached."""
        waiting = self._waiting
        self._waiting = [waiter for waiter in waiting if waiter[0] > end]
        for wanted, future in waiting:
            if wanted <= end and not future.done():
                future.set_result(None)

    def fail(self, failure: LogFailed) -> None:
        """Tells everybody that it will never come; each gets an exception of its own."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(LogFailed(str(failure)))
