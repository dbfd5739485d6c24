"""A worker: does the disk's work of group commit and flushes in a thread, and reports to the event loop.

A job is an iterator that does one operation of the disk after the other. Tests step through it and stop anywhere.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

Job = Iterator[None]
Done = Callable[[Exception | None], None]


class Worker(Protocol):
    """Runs jobs, one after the other."""

    def run(self, job: Job, done: Done) -> None:
        """Run a job elsewhere, then `done` on the event loop with the error that ended it, if one did."""

    def finish(self) -> None:
        """Block until every job has been run and reported."""

    def close(self) -> None:
        """Finish, and take no more jobs."""


class ThreadWorker:
    """Runs jobs in one thread, which starts with the first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._reports: SimpleQueue[tuple[Done, Exception | None]] = SimpleQueue()
        self._under_way = 0
        self._is_woken = False

    def run(self, job: Job, done: Done) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_jobs, name=self.name, daemon=True)
            self._thread.start()
        self._under_way += 1
        self._jobs.put((job, done))

    def finish(self) -> None:
        while self._under_way:
            self._report(*self._reports.get())

    def close(self) -> None:
        self.finish()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run_jobs(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, done = given
            error: Exception | None = None
            try:
                for _ in job:
                    pass
            except Exception as caught:  # noqa: BLE001 - a thread that died would leave its waiters waiting for ever
                error = caught
            self._reports.put((done, error))
            # Until the next job comes, this thread would hold the logs of the last one.
            del given, job, done, error
            if not self._is_woken:
                self._is_woken = True
                # The loop may be closed already: then nobody waits any more.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._report_all)

    def _report_all(self) -> None:
        # Before the queue is emptied: a job that ends from here on wakes the loop again.
        self._is_woken = False
        with suppress(Empty):
            while True:
                self._report(*self._reports.get_nowait())

    def _report(self, done: Done, error: Exception | None) -> None:
        self._under_way -= 1
        done(error)
