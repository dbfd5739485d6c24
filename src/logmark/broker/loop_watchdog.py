"""The watchdog of the event loop: which work held the loop for long, and for how long.

Everything that the broker does on the event loop holds up every client until it returns. The watchdog measures

    requests                     `Connection` measures those that came together, and reports them if they took long
    steps of tasks               `TimedCoroutine`, which the loop makes of each coroutine (`watch_loop`)
    callbacks and timers         `run`, through `WatchedLoop` and `Timers`
    garbage collections          Python's own callbacks
    everything else              a heartbeat that comes late, without one of the above to explain it

A turn above 5 ms is kept if it is the longest of its kind. A turn above 50 ms is logged, at most once in ten seconds
for each kind of work. Work inside other work, such as a collection within a request, counts once: as the inner one.
"""

import asyncio
import collections.abc
import functools
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from logmark.clock import Clock, SystemClock

log = logging.getLogger(__name__)

T = TypeVar("T")

# Turns above this are kept: fewer calls than that would cost more to look at than they take.
NOTED_SECONDS = 0.005
# Turns above this are logged.
LONG_SECONDS = 0.050
# The heartbeat is quick while the loop works, and slow while it has nothing to do: that wakes the processor.
BEAT_SECONDS, IDLE_BEAT_SECONDS = 0.025, 0.4
# A loop that works for less than this share of the time has nothing to do.
IDLE_SHARE = 0.05
EVENT_SECONDS = 10.0
# A client that sends many requests at once may mix them.
_NAMES_MAX = 3
# Turns of late that may lie inside a longer one.
_INNER_MAX = 64

GARBAGE_COLLECTION = "garbage collection"
SENDING = "sending of responses"
# The loop was late, and the processor worked for others, or it waited for the disk.
NOT_RUNNING = "not running"
# The loop was late, and the processor worked for it, but no single piece of work took long.
MANY_SHORT = "many short turns"

_API_MODULES = "logmark.broker.api."


@dataclass(slots=True)
class WorkTurns:
    """The turns of one kind of work."""

    longest_seconds: float = 0.0
    longest_at_ms: int = 0
    # How many took longer than 50 ms.
    long_count: int = 0
    # How many of these were not logged since the last event, and when that was.
    left_out: int = 0
    logged_at: float | None = None


class LoopWatchdog:
    """Keeps the longest turns of the event loop by work; every method but `_on_collection` is for the loop's thread."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
        clock: Clock | None = None,
        api_name: Callable[[int], str] = str,
    ) -> None:
        """Take the clocks: of the machine, of this thread's processor time, and of the day; and the names of APIs."""
        self.now = now
        self.api_name = api_name
        self.turns: dict[str, WorkTurns] = {}
        self._processor = processor
        self._clock: Clock = clock or SystemClock()
        # What was noted of late, by its begin and end: work around it leaves it out.
        self._inner: deque[tuple[float, float]] = deque(maxlen=_INNER_MAX)
        self._collection_began = 0.0
        # Collections that are not counted yet: they may end in any thread, and inside anything.
        self._collections: deque[float] = deque(maxlen=_INNER_MAX)
        self._due = 0.0
        self._interval = BEAT_SECONDS
        self._processor_at_beat = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task_factory: Any = None

    # Measuring

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Make a call and note it if it takes long."""
        began = self.now()
        try:
            callback(*args)
        finally:
            ended = self.now()
            if ended - began > NOTED_SECONDS:
                self.note(describe_work(callback), began, ended)

    def measure(self, work: str, call: Callable[[], None]) -> None:
        """Make a call and note it under a name if it takes long."""
        began = self.now()
        try:
            call()
        finally:
            ended = self.now()
            if ended - began > NOTED_SECONDS:
                self.note(work, began, ended)

    def note_requests(self, frames: Iterable[memoryview], began: float, ended: float) -> None:
        """Note requests that took long together; each frame begins with the key of its API."""
        names = sorted({self.api_name(int.from_bytes(frame[:2], "big")) for frame in frames})
        if len(names) > _NAMES_MAX:
            names[_NAMES_MAX:] = ["another API"]
        self.note(" or ".join(names), began, ended)

    def note(self, work: str, began: float, ended: float) -> None:
        """Note a turn that took long, without what was noted inside it."""
        seconds = ended - began - self._noted_between(began, ended)
        self._inner.append((began, ended))
        if seconds > NOTED_SECONDS:
            self._count(work, seconds)

    def _noted_between(self, began: float, ended: float) -> float:
        """Return how much of a time was noted already. Turns are nested or apart, and inner ones end first."""
        total, covered_from = 0.0, ended
        for inner_began, inner_ended in reversed(self._inner.copy()):
            inner_began, inner_ended = max(inner_began, began), min(inner_ended, covered_from)
            if inner_began < inner_ended:
                total += inner_ended - inner_began
                covered_from = inner_began
        return total

    def _count(self, work: str, seconds: float) -> None:
        turns = self.turns.setdefault(work, WorkTurns())
        if seconds > turns.longest_seconds:
            turns.longest_seconds = seconds
            turns.longest_at_ms = self._clock.now_ms()
        if seconds > LONG_SECONDS:
            turns.long_count += 1
            self._report(work, turns, seconds)

    def _report(self, work: str, turns: WorkTurns, seconds: float) -> None:
        now = self.now()
        if turns.logged_at is not None and now - turns.logged_at < EVENT_SECONDS:
            turns.left_out += 1
            return
        left_out, turns.left_out, turns.logged_at = turns.left_out, 0, now
        # The processor time since the last heartbeat is the most that this turn can have had.
        processor_ms = round(max(0.0, self._processor() - self._processor_at_beat) * 1000)
        log.warning(
            "The event loop was held for %d ms, and every client waited: %s.",
            round(seconds * 1000), _explain(work),
            extra={"work": work, "ms": round(seconds * 1000), "processor_ms_max": processor_ms, "left_out": left_out},
        )  # fmt: skip

    # Watching a loop

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """Watch a loop until `stop`: its tasks, and what is scheduled through the loop that is returned."""
        self._loop = loop
        self._task_factory = loop.get_task_factory()
        loop.set_task_factory(self._new_task)
        gc.callbacks.append(self._on_collection)
        self._processor_at_beat = -BEAT_SECONDS
        self._begin_beat()
        return cast(asyncio.AbstractEventLoop, WatchedLoop(loop, self))

    def stop(self) -> None:
        """Watch no more."""
        if self._loop is None:
            return
        gc.callbacks.remove(self._on_collection)
        self._loop.set_task_factory(self._task_factory)
        if self._beat is not None:
            self._beat.cancel()
        self._loop = None

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if isinstance(coroutine, collections.abc.Coroutine) and not isinstance(coroutine, TimedCoroutine):
            coroutine = TimedCoroutine(self, describe_work(coroutine), coroutine)
        if self._task_factory is not None:
            return self._task_factory(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)

    def _begin_beat(self) -> None:
        assert self._loop is not None
        before, self._processor_at_beat = self._processor_at_beat, self._processor()
        is_idle = self._processor_at_beat - before < self._interval * IDLE_SHARE
        self._interval = min(self._interval * 2, IDLE_BEAT_SECONDS) if is_idle else BEAT_SECONDS
        self._due = self.now() + self._interval
        self._beat = self._loop.call_later(self._interval, self.beat)

    def beat(self) -> None:
        """Count what has kept the loop from coming here in time, and come again."""
        now = self.now()
        while self._collections:
            self._count(GARBAGE_COLLECTION, self._collections.popleft())
        late = now - self._due
        if late > NOTED_SECONDS:
            unexplained = late - self._noted_between(self._due, now)
            if unexplained > LONG_SECONDS:
                worked = self._processor() - self._processor_at_beat
                self._count(MANY_SHORT if worked > unexplained / 2 else NOT_RUNNING, unexplained)
        if self._loop is not None:
            self._begin_beat()

    def _on_collection(self, phase: str, info: object) -> None:
        """Note a garbage collection: it stops every thread, whichever one does it. Nothing is logged inside it."""
        if phase == "start":
            self._collection_began = self.now()
            return
        began, ended = self._collection_began, self.now()
        if ended - began > NOTED_SECONDS:
            self._inner.append((began, ended))
            self._collections.append(ended - began)


class TimedCoroutine(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine whose steps are measured, each from where it goes on to where it waits again."""

    __slots__ = ("__name__", "__qualname__", "_coroutine", "_watchdog", "_work")

    def __init__(self, watchdog: LoopWatchdog, work: str, coroutine: Coroutine[Any, Any, T]) -> None:
        self._watchdog = watchdog
        self._work = work
        self._coroutine = coroutine
        self.__name__ = self.__qualname__ = work

    def send(self, value: Any) -> Any:
        watchdog = self._watchdog
        began = watchdog.now()
        try:
            return self._coroutine.send(value)
        finally:
            ended = watchdog.now()
            if ended - began > NOTED_SECONDS:
                watchdog.note(self._work, began, ended)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


class WatchedLoop:
    """An event loop whose callbacks are measured; everything else is the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdog: LoopWatchdog) -> None:
        self._loop = loop
        self._run = watchdog.run
        # The loop's own methods, without a call in between: every request makes these.
        self.time = loop.time
        self.create_future = loop.create_future

    def call_soon(self, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        return self._loop.call_soon(self._run, callback, *args, **options)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        return self._loop.call_soon_threadsafe(self._run, callback, *args, **options)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **options: Any) -> object:
        return self._loop.call_later(delay, self._run, callback, *args, **options)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **options: Any) -> object:
        return self._loop.call_at(when, self._run, callback, *args, **options)

    def add_reader(self, descriptor: Any, callback: Callable[..., object], *args: Any) -> None:
        self._loop.add_reader(descriptor, self._run, callback, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def describe_work(call: object) -> str:
    """Return the name of the API that a callback or coroutine belongs to, or its own."""
    while True:
        if isinstance(call, functools.partial):
            call = call.func
        elif hasattr(call, "__wrapped__"):
            call = call.__wrapped__
        else:
            break
    frame = getattr(call, "cr_frame", None)
    module = frame.f_globals.get("__name__", "") if frame is not None else getattr(call, "__module__", None) or ""
    if module.startswith(_API_MODULES):
        return "".join(word.capitalize() for word in module.removeprefix(_API_MODULES).split("_"))
    name: str = getattr(call, "__qualname__", type(call).__qualname__)
    owner = getattr(getattr(call, "__self__", None), "name", None)
    return f"{name} ({owner})" if isinstance(owner, str) else name


def _explain(work: str) -> str:
    if work == NOT_RUNNING:
        return "the machine gave the broker no processor time, or its disk did not answer"
    if work == MANY_SHORT:
        return "there were many requests, and none of them took long"
    return work
