"""The flusher: makes the partitions' own files durable in the background, so that the WAL can be used again.

A flush of a log syncs what it wrote since the last one. After that, and after its new recovery point is durable, the
files of the WAL below all recovery points are free, and the log may change data below its own: rename, delete, swap.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from logmark.log.disk_worker import Job, Worker
from logmark.log.wal.files import WalFile
from logmark.log.wal.log import WriteAheadLog
from logmark.log.wal.recovery_points import RecoveryPoint

logger = logging.getLogger(__name__)


class Flush:
    """What one log has to sync, the recovery point that this proves, and what it may change after that."""

    __slots__ = (
        "change_count", "changes", "error", "is_held_up", "is_proved", "log", "point", "sync_count", "syncs"
    )  # fmt: skip

    def __init__(
        self,
        log: "FlushedLog",
        syncs: Sequence[Callable[[], None]],
        point: RecoveryPoint,
        changes: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.log = log
        self.syncs = syncs
        self.point = point
        self.changes = changes
        # How many of each have been done, which matters when one fails.
        self.sync_count = 0
        self.change_count = 0
        self.error: Exception | None = None
        # Every sync has been done: the recovery point is true.
        self.is_proved = False
        # The recovery points could not be written: nothing of this log failed, and the rest waits.
        self.is_held_up = False

    @property
    def is_point_durable(self) -> bool:
        """Whether the recovery point counts from now on, also if the disk then failed one of the changes."""
        return self.is_proved and not self.is_held_up


class FlushedLog(Protocol):
    """A log as the flusher sees it; every call is on the event loop."""

    key: bytes

    def begin_flush(self) -> Flush | None:
        """Return what there is to flush, or None."""

    def end_flush(self, flush: Flush) -> None:
        """Take note of how a flush ended."""

    async def recover(self) -> None:
        """Resume writes after a full disk or a failed flush, if the disk allows it."""


class Flusher:
    """Flushes logs, many in one cycle, one cycle at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
        self.wal: WriteAheadLog | None = None
        self.durable_number = 0
        # Called after each cycle: files of the WAL may be free again.
        self.on_end: Callable[[], None] = lambda: None
        # Where every log with records can be recovered from without the WAL; durable after a cycle.
        self.points: dict[bytes, RecoveryPoint] = {}
        # Logs that a full disk has stopped or holds up, and suspect ones: the broker calls `recover` now and then.
        self.troubled: set[FlushedLog] = set()
        self._loop = loop
        self._worker = worker
        # The first entry that each log needs.
        self._dirty: dict[FlushedLog, int] = {}
        self._marked: dict[FlushedLog, None] = {}
        # The logs with batches in the entry that is being written.
        self._in_entry: dict[FlushedLog, None] = {}
        # The first entry that each log needs if its flush fails.
        self._under_way: dict[FlushedLog, int] = {}
        self._is_all_due = False
        self._is_scheduled = False
        # Files of the WAL that are not needed any more and could not be removed.
        self._undiscarded: list[WalFile] = []
        # For those who wait for the end of the cycle that is under way.
        self._cycle_end: asyncio.Future[None] | None = None

    def begin_entry(self, number: int, logs: Iterable[FlushedLog]) -> None:
        """Note that an entry with batches of these logs is being written."""
        self._in_entry = dict.fromkeys(logs)
        for log in self._in_entry:
            self._dirty.setdefault(log, number)

    def end_entry(self, number: int) -> None:
        """Note that the entry is durable: a flush that begins now covers it."""
        self.durable_number = number
        self._in_entry = {}

    def give_up_entry(self) -> None:
        """Note that the entry which was being written will never be durable."""
        self._in_entry = {}

    def mark(self, log: FlushedLog) -> None:
        """Flush a log soon: something waits for it."""
        self._marked[log] = None
        self._schedule()

    def flush_all(self) -> None:
        """Flush every log soon that has batches in the WAL."""
        if self._dirty and not self._is_all_due:
            self._is_all_due = True
            self._schedule()

    def forget(self, log: FlushedLog) -> None:
        """Leave a log out from now on: it is closed."""
        self._dirty.pop(log, None)
        self._marked.pop(log, None)
        self.troubled.discard(log)
        # Else the points of deleted partitions would add up for as long as the broker runs.
        self.points.pop(log.key, None)

    def release(self, log: FlushedLog) -> None:
        """Let the WAL be used again without a log: its entries are saved aside."""
        self._dirty.pop(log, None)

    @property
    def is_busy(self) -> bool:
        """Whether a cycle is under way or soon will be."""
        return bool(self._under_way or self._marked or self._is_all_due or self._is_scheduled)

    def is_busy_with(self, log: FlushedLog) -> bool:
        """Return whether a flush of this log is under way."""
        return log in self._under_way

    async def wait_for(self, log: FlushedLog) -> None:
        """Wait until no flush of this log is under way."""
        while self.is_busy_with(log):
            if self._cycle_end is None:
                self._cycle_end = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._cycle_end)

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the end of the cycle."""
        return self._cycle_end is not None

    def finish(self) -> None:
        """Block until no cycle is under way; begin none."""
        self._worker.finish()

    def settle(self) -> None:
        """Block until everything is flushed that was marked."""
        while self._marked or self._is_all_due or self._under_way:
            self._begin()
            self._worker.finish()

    def close(self) -> None:
        """End the thread; the cycle under way is finished first."""
        self._marked.clear()
        self._worker.close()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._under_way:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._under_way:
            return
        logs = self._marked | (dict.fromkeys(self._dirty) if self._is_all_due else {})
        self._marked = {}
        self._is_all_due = False
        flushes = [flush for log in logs if (flush := log.begin_flush()) is not None]
        if not flushes:
            self.on_end()
            return
        following = self.durable_number + 1
        for flush in flushes:
            self._under_way[flush.log] = self._dirty.pop(flush.log, following)
            if self.wal is None:
                # The WAL may be made before this cycle ends, and its points must name no segment that the changes take.
                self.points[flush.log.key] = flush.point
            if flush.log in self._in_entry:
                # The entry under way is not covered: this log needs it after the flush too.
                self._dirty[flush.log] = following
        first_of_others = min(self._dirty.values(), default=following)
        cycle = _Cycle(flushes, dict(self._under_way), dict(self.points), min(first_of_others, following), self.wal)
        self._worker.run(cycle.run(), partial(self._end, cycle))

    def _end(self, cycle: "_Cycle", error: Exception | None) -> None:
        under_way, self._under_way = self._under_way, {}
        for flush in cycle.flushes:
            if error is not None and flush.error is None:
                flush.error, flush.is_held_up = error, True
            if flush.is_point_durable:
                self.points[flush.log.key] = flush.point
            else:
                number = under_way[flush.log]
                self._dirty[flush.log] = min(number, self._dirty.get(flush.log, number))
            flush.log.end_flush(flush)
        if error is not None:
            logger.error("the recovery points could not be written: %s", error)
        elif self.wal is not None:
            dropped = [*self._undiscarded, *self.wal.release(cycle.first_entry)]
            self._undiscarded = []
            if dropped:
                self._worker.run(_discard(self.wal, dropped), partial(self._end_discard, dropped))
        self.on_end()
        cycle_end, self._cycle_end = self._cycle_end, None
        if cycle_end is not None:
            cycle_end.set_result(None)
        if self._marked or self._is_all_due:
            self._schedule()

    def _end_discard(self, dropped: list[WalFile], error: Exception | None) -> None:
        if error is not None:
            # They take space for longer; the next cycle tries again.
            self._undiscarded += dropped


class _Cycle:
    """The flushes that one job does, and the recovery points that they prove together."""

    def __init__(
        self,
        flushes: Sequence[Flush],
        needed: Mapping[FlushedLog, int],
        points: dict[bytes, RecoveryPoint],
        first_entry: int,
        wal: WriteAheadLog | None,
    ) -> None:
        self.flushes = flushes
        self.first_entry = first_entry
        self._needed = needed
        self._points = points
        self._wal = wal

    def run(self) -> Job:
        """Sync each log, make the recovery points durable, then make the changes that waited for them."""
        for flush in self.flushes:
            try:
                for sync in flush.syncs:
                    sync()
                    flush.sync_count += 1
                    yield
                flush.is_proved = True
            except Exception as error:  # noqa: BLE001 - a log's failure is its own: the others continue
                flush.error = error
                self.first_entry = min(self.first_entry, self._needed[flush.log])
        if self._wal is not None:
            proved = {flush.log.key: flush.point for flush in self.flushes if flush.is_proved}
            self._wal.write_points(self.first_entry, self._points | proved)
            yield
        for flush in self.flushes:
            try:
                for change in flush.changes if flush.is_proved else ():
                    change()
                    flush.change_count += 1
                    yield
            except Exception as error:  # noqa: BLE001 - as above
                flush.error = error


def _discard(wal: WriteAheadLog, dropped: list[WalFile]) -> Job:
    wal.discard(dropped)
    yield
