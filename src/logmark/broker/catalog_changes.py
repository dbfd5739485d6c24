"""The changes of the catalogue, one after another: each is decided on a draft, written in a thread, then applied.

This is the only owner of the catalogue while the broker runs. A request brings all of its changes as one, so that it
costs one write and one sync. Readers see the old state until the new one is durable.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from logmark.errors import ErrorCode, Refused
from logmark.log.catalog import Catalog

T = TypeVar("T")


class CatalogChanges:
    """The current catalogue, and the line of those who want to change it."""

    def __init__(self, catalog: Catalog, write: Callable[[bytes], None]) -> None:
        """Take the catalogue as the file has it; `write` replaces the file durably, in any thread."""
        self.catalog = catalog
        self._write = write
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a change after all that came before it, and return what it returns.

        A change that has begun goes on if its caller is cancelled: what it wrote has to be applied. Raises Refused if
        the broker stops before the change begins.
        """
        task = asyncio.get_running_loop().create_task(self._run_alone(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _run_alone(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # Waiting tasks get the lock in the order in which they asked for it.
        async with self._turn:
            if self._is_closed:
                raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, "The broker stops.")
            return await change()

    async def commit(self, draft: Catalog) -> None:
        """Write a draft in a thread, and make it the current catalogue; part of a change.

        Raises OSError if the disk refuses it; the catalogue is then as it was.
        """
        await asyncio.get_running_loop().run_in_executor(None, lambda: self._write(draft.encode()))
        self.catalog = draft

    def commit_now(self, draft: Catalog) -> None:
        """Do the same at a start, when no loop serves anybody yet."""
        self._write(draft.encode())
        self.catalog = draft

    async def close(self) -> None:
        """Wait for the change that is under way; those behind it are refused."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
