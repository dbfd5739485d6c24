"""The logs of a broker on any file system, without threads: every run of the same script does the same."""

import asyncio
from pathlib import PurePath

from logmark.broker.config import BrokerConfig
from logmark.broker.logs import Logs
from logmark.clock import ManualClock
from logmark.disk.files import FileSystem
from logmark.log.directory import DataDirectory
from logmark.log.groupcommit import GroupCommit, Round, Syncable
from logmark.log.partition import Partition

# Nobody turns it: futures are made on it and never awaited.
LOOP = asyncio.new_event_loop()
PATH = "/var/data"


class SmallConfig(BrokerConfig):
    """A broker whose segments are smaller than a topic could ask for."""

    def topic_defaults(self) -> dict[str, str]:
        return {
            "segment.bytes": "1200",
            "index.interval.bytes": "150",
            "retention.ms": "5000",
            "file.delete.delay.ms": "1000",
        }


class InlineCommit(GroupCommit):
    """Group commit whose rounds run when they are told to, one sync after the other."""

    def __init__(self) -> None:
        super().__init__(LOOP)
        self._rounds: dict[Syncable, tuple[Round, list]] = {}

    def mark(self, log: Syncable) -> None:
        self._marked[log] = None

    def begin(self, log: Syncable) -> None:
        """Begins a round, if there is something to do and none is under way."""
        if log in self._marked and log not in self._rounds:
            del self._marked[log]
            if (round_ := log.begin_round()) is not None:
                self._rounds[log] = round_, list(round_.syncs)

    def step(self, log: Syncable) -> bool:
        """Runs the next sync of the round under way; says whether there is one left."""
        if log not in self._rounds:
            return False
        round_, left = self._rounds[log]
        try:
            if left:
                left.pop(0)()
        except OSError as error:
            round_.error = error
            left.clear()
        if not left:
            del self._rounds[log]
            log.end_round(round_)
        return bool(left)

    def settle(self, log: Syncable) -> None:
        """Runs rounds until the log wishes for none."""
        while log in self._rounds or log in self._marked:
            self.begin(log)
            while self.step(log):
                pass

    def finish(self, log: Syncable) -> None:
        while self.step(log):
            pass
        self._marked.pop(log, None)


class Site:
    """One life of the broker's logs, from a start to a stop or a crash."""

    def __init__(self, files: FileSystem, clock: ManualClock, path: str | PurePath = PATH) -> None:
        self.clock = clock
        self.committer = InlineCommit()
        self.directory = DataDirectory.open(path, files=files, committer=self.committer, clock=clock)
        self.logs = Logs(self.directory, SmallConfig(), clock)
        self.logs.open()
        self.settle()

    def partitions(self) -> list[Partition]:
        """Every open partition."""
        return [partition for topic in self.logs.topics() for partition in topic.partitions]

    def settle(self) -> None:
        """Makes everything durable that was written."""
        for partition in self.partitions():
            self.committer.settle(partition)

    def close(self) -> bool:
        """Stops in good order, and says whether the next start can trust the files."""
        return self.directory.close()
