"""Fakes of what the groups' shell stands on: a journal whose syncs obey the test, and timers turned by hand."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

from logmark.clock import ManualClock
from logmark.coordination.internal_log import LogBatch
from logmark.errors import ErrorCode, LogFailed, Refused
from logmark.log import disk_full
from logmark.log.durability_waiters import Callback

Entry = tuple[bytes, bytes | None]


class FakeTimer:
    """A deadline that can be called off."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeTimers:
    """Calls back when the test moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._heap: list[tuple[int, int, FakeTimer]] = []
        self._order = itertools.count()

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        wait_ms = deadline_ms - self.clock.now_ms()
        heapq.heappush(self._heap, (self.clock.monotonic_ms() + wait_ms, next(self._order), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Time passes; whatever comes due on the way happens then."""
        end_ms = self.clock.monotonic_ms() + ms
        while self._heap and self._heap[0][0] <= end_ms:
            deadline_ms, _, timer = heapq.heappop(self._heap)
            self.clock.advance(seconds=max(deadline_ms - self.clock.monotonic_ms(), 0) / 1000)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self.clock.advance(seconds=max(end_ms - self.clock.monotonic_ms(), 0) / 1000)


class FakeInternalLog:
    """An internal partition in memory: written at once, durable when the test says so, broken when it says so."""

    def __init__(self, entries: Sequence[Entry] = (), *, is_held: bool = False) -> None:
        self.entries: list[Entry] = list(entries)
        self.batch_ends: list[int] = []
        self.durable_end = len(self.entries)
        self.is_held = is_held
        self.failure: LogFailed | None = None
        self.fails_next_write = False
        self.fails_reads = False
        self.read_error: Exception | None = None
        self.reads = 0
        self._waiters: list[tuple[int, Callback]] = []

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.entries)

    def append(self, batch: LogBatch, *, now_ms: int) -> int:
        if self.failure is not None or self.fails_next_write:
            self.fail()
            raise LogFailed("no space left on device")
        self.entries.extend(batch.records)  # type: ignore[arg-type]
        self.batch_ends.append(len(self.entries))
        if not self.is_held:
            self.sync()
        return len(self.entries)

    def when_durable(self, next_offset: int, told: Callback) -> bool:
        if self.durable_end >= next_offset:
            return False
        if self.failure is not None:
            asyncio.get_running_loop().call_soon(told, self.failure)
        else:
            self._waiters.append((next_offset, told))
        return True

    def read(self) -> Iterator[LogBatch]:
        self.reads += 1
        if self.fails_reads:
            raise LogFailed("input/output error")
        if self.read_error is not None:
            # As a log does it: the disk's error is the cause of what it raises.
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "cannot be read") from self.read_error
        for at in range(0, self.durable_end, 3):
            yield LogBatch(self.entries[at : min(at + 3, self.durable_end)])

    def may_be_read_later(self, error: BaseException) -> bool:
        return disk_full.is_passing(error)

    # What the test does

    def sync(self, batches: int | None = None) -> None:
        """Everything written, or the next few batches, reach the disk."""
        if self.failure is not None:
            return
        pending = [end for end in self.batch_ends if end > self.durable_end]
        if batches is not None:
            pending = pending[:batches]
        if pending:
            self.durable_end = pending[-1]
        waiting, self._waiters = self._waiters, []
        for next_offset, told in waiting:
            if next_offset > self.durable_end:
                self._waiters.append((next_offset, told))
            else:
                told(None)

    def fail(self) -> None:
        """The disk fails: nothing that waits will ever be durable, and nothing more is written."""
        self.failure = LogFailed("input/output error")
        waiting, self._waiters = self._waiters, []
        for _, told in waiting:
            told(self.failure)

    def heal(self) -> None:
        """The log was written again from the write-ahead log: it takes records, and what was durable can be read."""
        self.failure = None
        self.fails_next_write = self.fails_reads = False
        del self.entries[self.durable_end :]

    def after_power_loss(self, *, surviving_batches: int) -> "FakeInternalLog":
        """What a restart finds: all that was durable, and perhaps some of what was only written."""
        ends = [end for end in self.batch_ends if end > self.durable_end][:surviving_batches]
        return FakeInternalLog(self.entries[: ends[-1] if ends else self.durable_end], is_held=self.is_held)
