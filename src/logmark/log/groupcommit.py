"""Group commit: many appends, one sync, off the event loop.

Each log has at most one round under way. A round takes everything that the log has written so far; what is written
meanwhile joins the next round, which begins as soon as this one has ended.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

from logmark.errors import LogmarkError

Durability = Literal["sync", "os"]
THREADS_MAX = 4


class Round:
    """The syncs that make a log durable up to some point; what that point is only the log knows."""

    __slots__ = ("error", "log", "point", "sync_count", "syncs")

    def __init__(self, log: "Syncable", syncs: Sequence[Callable[[], None]], point: object) -> None:
        self.log = log
        self.syncs = syncs
        self.point = point
        # How many have been done, which matters when one fails.
        self.sync_count = 0
        self.error: Exception | None = None


class Syncable(Protocol):
    """A log as group commit sees it; every call is on the event loop."""

    def begin_round(self) -> Round | None: ...

    def end_round(self, done: Round) -> None: ...

    async def recover(self) -> None: ...


class GroupCommit:
    """Syncs what was marked, in a few threads, and tells each log when it is done."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, durability: Durability = "sync", threads_max: int = THREADS_MAX
    ) -> None:
        if durability not in ("sync", "os"):
            raise LogmarkError(f"durability is sync or os, not {durability!r}")
        self.loop = loop
        self.is_sync = durability == "sync"
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[Round | None] = SimpleQueue()
        self._done: SimpleQueue[Round] = SimpleQueue()
        # Logs that a full disk has stopped or holds up: somebody must ask them now and then to try again.
        self.troubled: set[Syncable] = set()
        self._marked: dict[Syncable, None] = {}
        self._under_way: set[Syncable] = set()
        self._is_scheduled = False
        self._is_woken = False

    @property
    def durability(self) -> Durability:
        return "sync" if self.is_sync else "os"

    def mark(self, log: Syncable) -> None:
        """Sees to it that what the log has written by the end of this turn of the loop is synced soon."""
        if log in self._marked:
            return
        self._marked[log] = None
        if not self._is_scheduled and log not in self._under_way:
            self._is_scheduled = True
            # At the end of the turn, so that all appends that arrived together share the round.
            self.loop.call_soon(self._begin_rounds)

    def is_busy_with(self, log: Syncable) -> bool:
        """A round of this log is under way."""
        return log in self._under_way

    def finish(self, log: Syncable) -> None:
        """Waits, blocking, until no round of this log is under way, and drops its mark."""
        while log in self._under_way:
            self._end(self._done.get())
        self._marked.pop(log, None)

    def close(self) -> None:
        """Ends the threads; rounds under way are finished first."""
        while self._under_way:
            self._end(self._done.get())
        self._marked.clear()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _begin_rounds(self) -> None:
        self._is_scheduled = False
        for log in [log for log in self._marked if log not in self._under_way]:
            self._begin(log)

    def _begin(self, log: Syncable) -> None:
        del self._marked[log]
        round_ = log.begin_round()
        if round_ is None:
            return
        self._under_way.add(log)
        if len(self._threads) < min(len(self._under_way), self._threads_max):
            thread = threading.Thread(target=self._sync_for_ever, name="logmark-sync", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(round_)

    def _sync_for_ever(self) -> None:
        while (round_ := self._jobs.get()) is not None:
            try:
                for sync in round_.syncs:
                    sync()
                    round_.sync_count += 1
            except Exception as error:  # noqa: BLE001 - a thread that died would leave its waiters waiting for ever
                round_.error = error
            self._done.put(round_)
            if not self._is_woken:
                self._is_woken = True
                # The loop may be closed already: then nobody waits any more.
                with suppress(RuntimeError):
                    self.loop.call_soon_threadsafe(self._end_rounds)

    def _end_rounds(self) -> None:
        # Before the queue is emptied: a thread that finishes from here on wakes the loop again.
        self._is_woken = False
        with suppress(Empty):
            while True:
                self._end(self._done.get_nowait())

    def _end(self, done: Round) -> None:
        self._under_way.discard(done.log)
        done.log.end_round(done)
        if done.log in self._marked:
            self._begin(done.log)
