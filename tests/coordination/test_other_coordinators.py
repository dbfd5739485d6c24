"""The runtime knows no record type: a coordinator with facts and control batches of its own plugs in."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from logmark.broker.internal_partition import PartitionLog
from logmark.clock import ManualClock
from logmark.coordination.internal_log import LogBatch
from logmark.coordination.outcome import Outcome, Reply, Ticket
from logmark.coordination.runtime import TRANSITIONS, CoordinatorRuntime, CoordinatorState
from logmark.errors import ErrorCode, Refused
from logmark.log.partition import Partition
from logmark.names import TopicPartition
from tests.coordination.fakes import FakeInternalLog, FakeTimers
from tests.log.conftest import driver as driver
from tests.log.directory_driver import LogDriver

KEY = TopicPartition("__counters", 0)
PRODUCER_ID, PRODUCER_EPOCH = 2**40 + 1, 3


class CounterAdded(NamedTuple):
    """A counter has grown."""

    name: str
    number: int


class CounterEnded(NamedTuple):
    """Nothing is counted any more; a control batch says so."""


class CounterCoordinator:
    """Counts, until it is ended."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.is_ended = False
        self.deadline_ms: int | None = None

    @property
    def memory_bytes(self) -> int:
        return 100 * len(self.counts)

    def add(self, name: str, number: int, ticket: Ticket) -> Outcome["CounterAdded | CounterEnded"]:
        if self.is_ended:
            raise Refused(ErrorCode.INVALID_REQUEST)
        return Outcome(facts=[CounterAdded(name, number)], replies=[Reply(ticket, self.counts.get(name, 0) + number)])

    def encode(self, facts: Sequence["CounterAdded | CounterEnded"]) -> LogBatch:
        records = [(fact.name.encode(), b"%d" % fact.number) for fact in facts if isinstance(fact, CounterAdded)]
        if records:
            return LogBatch(records)
        return LogBatch([(b"end", b"")], PRODUCER_ID, PRODUCER_EPOCH, is_transactional=True, is_control=True)

    def decode(self, batch: LogBatch) -> Iterable["CounterAdded | CounterEnded"]:
        if batch.is_control:
            assert (PRODUCER_ID, PRODUCER_EPOCH, True) == (*batch[1:3], batch.is_transactional)
            return [CounterEnded()]
        return [CounterAdded((key or b"").decode(), int(value or b"0")) for key, value in batch.records]

    def apply(self, fact: "CounterAdded | CounterEnded") -> None:
        if isinstance(fact, CounterAdded):
            self.counts[fact.name] = self.counts.get(fact.name, 0) + fact.number
        else:
            self.is_ended = True

    def leaves_no_trace(self, facts: Sequence["CounterAdded | CounterEnded"]) -> bool:
        return True

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def expire(self, *, now_ms: int) -> Outcome["CounterAdded | CounterEnded"]:
        self.deadline_ms = None
        return Outcome(facts=[CounterEnded()])

    def move_deadlines(self, by_ms: int) -> None:
        if self.deadline_ms is not None:
            self.deadline_ms += by_ms


Runtime = CoordinatorRuntime[CounterCoordinator, CounterAdded | CounterEnded]


def new_runtime(log: PartitionLog | FakeInternalLog, timers: FakeTimers) -> Runtime:
    made: Runtime = CoordinatorRuntime(
        KEY, log, new_coordinator=CounterCoordinator, begin=lambda coordinator: (), clock=timers.clock, timers=timers
    )
    made.load_now()
    return made


def on_a_loop(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))


def test_another_coordinator_decides_writes_answers_and_loads() -> None:
    async def work() -> None:
        timers, log = FakeTimers(ManualClock()), FakeInternalLog()
        runtime = new_runtime(log, timers)
        assert 2 == await runtime.ask(lambda at, ticket, now_ms: at.add("clicks", 2, ticket))
        assert 5 == await runtime.ask(lambda at, ticket, now_ms: at.add("clicks", 3, ticket))

        again = new_runtime(log, timers)

        assert {"clicks": 5} == await again.read(lambda at: dict(at.counts))

    on_a_loop(work)


def test_its_control_batches_are_written_to_a_real_partition_and_read_again(driver: LogDriver) -> None:
    partition: Partition = driver.create()
    log, timers = PartitionLog(partition), FakeTimers(ManualClock())
    runtime = new_runtime(log, timers)
    coordinator = runtime.coordinator
    assert coordinator is not None
    for number in range(3):
        runtime.run(lambda now_ms, number=number: Outcome(facts=[CounterAdded(f"counter {number}", number)]))
    coordinator.deadline_ms = timers.clock.now_ms() + 1000
    runtime.run(lambda now_ms: Outcome(facts=[CounterAdded("last", 9)]))
    timers.advance(1000)
    driver.settle(partition)
    assert coordinator.is_ended, "its deadline has passed"

    loaded = new_runtime(log, timers).coordinator

    assert loaded is not None
    assert (coordinator.counts, True) == (loaded.counts, loaded.is_ended)
    assert {"counter 0": 0, "counter 1": 1, "counter 2": 2, "last": 9} == loaded.counts


def test_a_damaged_control_batch_makes_the_coordinator_unreadable(driver: LogDriver, tmp_path: Path) -> None:
    partition = driver.create()
    runtime = new_runtime(PartitionLog(partition), FakeTimers(ManualClock()))
    runtime.run(lambda now_ms: Outcome(facts=[CounterEnded()]))
    driver.settle(partition)
    (path,) = driver.folder().glob("*.log")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    loaded = new_runtime(PartitionLog(partition), FakeTimers(ManualClock()))

    assert CoordinatorState.UNREADABLE is loaded.state[0]


def test_a_runtime_takes_only_the_steps_of_its_table() -> None:
    for state, following in TRANSITIONS.items():
        for wanted in CoordinatorState:
            runtime: Runtime = CoordinatorRuntime(
                KEY, FakeInternalLog(), new_coordinator=CounterCoordinator, begin=lambda coordinator: (),
                clock=ManualClock(), timers=FakeTimers(ManualClock()),
            )  # fmt: skip
            runtime._state = state
            if wanted in following:
                runtime._move_to(wanted)
            else:
                with pytest.raises(AssertionError):
                    runtime._move_to(wanted)
