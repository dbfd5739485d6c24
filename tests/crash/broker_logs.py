"""The logs of a broker on any file system, without threads: every run of the same script does the same."""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, TypeVar
from unittest.mock import patch

from logmark.broker.config import BrokerConfig
from logmark.broker.logs import Logs, Topic
from logmark.clock import ManualClock
from logmark.disk.file_system import FileSystem
from logmark.log.directory import DataDirectory
from logmark.log.disk_worker import Done, Job
from logmark.log.group_commit import GroupCommit
from logmark.log.partition import Partition
from logmark.log.wal.log import WalLimits

T = TypeVar("T")


class StillLoop(asyncio.SelectorEventLoop):
    """Nobody turns it: futures are made on it and never awaited, and what is to be called soon is forgotten."""

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        # Kept, it would keep every broker's logs of a search in memory.
        return asyncio.Handle(callback, args, self, context)


class InlineLoop(asyncio.SelectorEventLoop):
    """Runs what a thread would do at once, on the loop itself."""

    def run_in_executor(self, executor: object, call: Callable[..., object], *args: object) -> "asyncio.Future[object]":
        done = self.create_future()
        done.set_result(call(*args))
        return done


LOOP = StillLoop()
# Turned for one change of topics after the other.
CHANGES = InlineLoop()
PATH = "/var/data"
# So small that files are used again all the time, and that a full WAL waits for a flush.
SMALL_WAL = WalLimits(bytes_max=120 * 1024, file_bytes=24 * 1024, first_file_bytes=16 * 1024)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draws salts, ids and names from a seed: the same start on the same disk then leaves the same bytes."""
    draw = random.Random(seed).randbytes
    with patch("secrets.token_bytes", draw), patch("secrets.token_hex", lambda size: draw(size).hex()):
        yield


class SmallConfig(BrokerConfig):
    """A broker whose segments are smaller than a topic could ask for."""

    def topic_defaults(self) -> dict[str, str]:
        return {
            "segment.bytes": "1200",
            "index.interval.bytes": "150",
            "retention.ms": "5000",
            "file.delete.delay.ms": "1000",
        }


class InlineWorker:
    """Runs jobs when it is told to, one operation of the disk after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[tuple[Job, Done]] = deque()

    def run(self, job: Job, done: Done) -> None:
        self._jobs.append((job, done))

    def step(self) -> bool:
        """Run the next operation; returns whether there was one."""
        if not self._jobs:
            return False
        job, done = self._jobs[0]
        try:
            next(job)
            return True
        except StopIteration:
            error = None
        except OSError as failed:
            error = failed
        self._jobs.popleft()
        done(error)
        return True

    def finish(self) -> None:
        while self.step():
            pass

    def close(self) -> None:
        self.finish()


class InlineCommit(GroupCommit):
    """Group commit whose jobs run when they are told to."""

    def __init__(self) -> None:
        self.workers: dict[str, InlineWorker] = {}
        super().__init__(LOOP, worker=self._new_worker, entry_bytes_max=8 * 1024)

    def _new_worker(self, name: str) -> InlineWorker:
        self.workers[name] = InlineWorker(name)
        return self.workers[name]

    def begin(self) -> None:
        """Begin a round of group commit, and a flush if one is due."""
        self._begin()
        self.flusher._begin()

    def step(self, share: int) -> None:
        """Run the next operation of one of the workers."""
        busy = [worker for worker in self.workers.values() if worker._jobs]
        if busy:
            busy[share % len(busy)].step()


class BrokerLogsDriver:
    """One life of the broker's logs, from a start to a stop or a crash."""

    def __init__(self, files: FileSystem, clock: ManualClock, path: str | PurePath = PATH) -> None:
        self.clock = clock
        self.committer = InlineCommit()
        self.directory = DataDirectory.open(
            path, files=files, committer=self.committer, clock=clock, wal_limits=SMALL_WAL
        )  # fmt: skip
        self.logs = Logs(self.directory, SmallConfig(), clock)
        self.logs.open()

    def create_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
        """Create a topic, every operation of the disk in this thread."""
        return self._run(self.logs.create_topic(name, partitions, overrides))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, every operation of the disk in this thread."""
        (deleted,) = self._run(self.logs.delete_topics([lambda: self.logs.find(name)]))
        assert isinstance(deleted, Topic)

    def _run(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change, and a flush if it waits for one."""
        task = CHANGES.create_task(change)
        while not task.done():
            CHANGES.call_soon(CHANGES.stop)
            CHANGES.run_forever()
            if self.committer.flusher.is_awaited:
                self.committer.workers["logmark-flush"].step()
        return task.result()

    def partitions(self) -> list[Partition]:
        """Every open partition."""
        return [partition for topic in self.logs.topics() for partition in topic.partitions]

    def settle(self) -> None:
        """Commits everything that was appended; nothing is flushed that nobody asked for."""
        self.committer.settle()

    def flush(self) -> None:
        """Flushes everything, and makes the changes on disk that wait for that."""
        self.settle()
        for partition in self.partitions():
            self.committer.flusher.mark(partition)
        self.committer.flusher.settle()

    def close(self) -> bool:
        """Stops in good order, and says whether the next start can trust the files."""
        return self.directory.close()
