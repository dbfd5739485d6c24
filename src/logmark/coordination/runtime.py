"""The runtime of a coordinator: one internal partition with its state, its log, its clock and who waits for an answer.

It knows no record type: a `Coordinator` decides, encodes and applies facts of its own. Today that is the coordinator of
groups; one of transactions plugs in the same way.

A command is decided against state that includes every fact already written. Its facts are written as one batch and
applied. Its replies, and every later reply, wait until all that was written before them is durable. If a write or a
sync fails, the runtime drops the coordinator and loads another one from what is durable. Only if the disk was too full
for facts that were decided without a trace, it refuses that command and nothing else.
"""

import asyncio
import enum
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from logmark.backoff import Backoff
from logmark.clock import Clock
from logmark.coordination.internal_log import InternalLog, LogBatch
from logmark.coordination.outcome import FactT, Outcome, Reply, Ticket
from logmark.errors import ErrorCode, LogFailed, LogmarkError, Malformed, Refused
from logmark.names import TopicPartition

log = logging.getLogger(__name__)

# Facts that the runtime applies in one turn of a load: as many as the usual read has, because requests are refused
# until all is loaded, and every turn may have to wait for the interpreter. Only larger batches take several turns.
LOAD_FACTS = 4000
# A time of day that is further from the monotonic time than before was set, and has not only drifted.
CLOCK_STEP_MS = 1000

T = TypeVar("T")
# Gets the answer, or the `Refused` in its place. Called once, on the event loop.
Answered = Callable[[Any], None]


class Coordinator(Protocol[FactT]):
    """The state of one internal partition: pure but for what only this process knows (who waits, since when)."""

    @property
    def memory_bytes(self) -> int:
        """How much memory the state takes, about."""
        ...

    def encode(self, facts: Sequence[FactT]) -> LogBatch:
        """Return the batch that keeps facts; raise Malformed if none can."""
        ...

    def decode(self, batch: LogBatch) -> Iterable[FactT]:
        """Yield the facts that a batch keeps, in order; raise Malformed if it cannot be read."""
        ...

    def apply(self, fact: FactT) -> None:
        """Make one written fact true, live and at load."""
        ...

    def leaves_no_trace(self, facts: Sequence[FactT]) -> bool:
        """Return whether these facts were decided without a change of state, so that they can be dropped."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when time alone will change something; None if nothing is awaited."""
        ...

    def expire(self, *, now_ms: int) -> Outcome[FactT]:
        """Decide one deadline that has passed; an outcome without effect if none has."""
        ...

    def move_deadlines(self, by_ms: int) -> None:
        """Move every deadline by so much, back if it is negative: somebody has set the clock."""
        ...


CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator[Any])


class CoordinatorState(enum.Enum):
    """What the coordinator of an internal partition can do now."""

    # It reads its log, or will when the disk lets it: clients are told to ask again.
    LOADING = "loading"
    # It decides commands.
    READY = "ready"
    # Its log takes no records: its state can be read only.
    READ_ONLY = "read-only"
    # Its log is damaged: nobody knows its state.
    UNREADABLE = "unreadable"
    # The broker stops.
    CLOSED = "closed"

    @property
    def is_ready(self) -> bool:
        return self is CoordinatorState.READY


TRANSITIONS = {
    CoordinatorState.LOADING: {
        CoordinatorState.READY, CoordinatorState.READ_ONLY, CoordinatorState.UNREADABLE, CoordinatorState.CLOSED
    },
    CoordinatorState.READY: {CoordinatorState.LOADING, CoordinatorState.CLOSED},
    CoordinatorState.READ_ONLY: {CoordinatorState.READY, CoordinatorState.LOADING, CoordinatorState.CLOSED},
    CoordinatorState.UNREADABLE: {CoordinatorState.CLOSED},
    CoordinatorState.CLOSED: set[CoordinatorState](),
}  # fmt: skip


class Timer(Protocol):
    """A deadline that can be cancelled."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls back when the broker's clock reaches a deadline."""

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer: ...


class _NotWritten(LogFailed, Generic[FactT]):
    """The log did not take these facts."""

    def __init__(self, facts: Sequence[FactT], failed: LogFailed) -> None:
        super().__init__(str(failed))
        self.facts = facts


class CoordinatorRuntime(Generic[CoordinatorT, FactT]):
    """Runs the coordinator of one internal partition; to be used on the event loop."""

    def __init__(
        self,
        key: TopicPartition,
        internal_log: InternalLog,
        *,
        new_coordinator: Callable[[], CoordinatorT],
        begin: Callable[[CoordinatorT], Iterable[Callable[[int], Outcome[FactT]]]],
        clock: Clock,
        timers: Timers,
        hold_memory: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Take an internal partition; `load` must be called before anything can be decided.

        `begin` returns what must be decided when a loaded coordinator may change for the first time; each decision
        gets the time. `hold_memory` is told how much more or less memory the state takes.
        """
        self.key = key
        self._log = internal_log
        self._new_coordinator = new_coordinator
        self._begin_decisions = begin
        self._clock = clock
        self._timers = timers
        self._hold_memory = hold_memory
        self._memory_bytes = 0  # of which the holder knows
        self._state = CoordinatorState.LOADING
        # There is none while it loads, or if its log is unreadable.
        self._coordinator: CoordinatorT | None = None
        self._loading: asyncio.Task[None] | None = None
        # Why the last load ended early, and when the next one may begin if the disk has failed it.
        self._load_failure: str | None = None
        self._load_backoff = Backoff(clock)
        self._written_to = 0  # the next offset after the last fact written
        self._tickets = itertools.count(1)
        self._undecided: set[Ticket] = set()
        self._unanswered: dict[Ticket, Answered] = {}
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        # How far the time of day is ahead of the monotonic time; the deadlines were set by that.
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()

    # Asking

    @property
    def has_failed(self) -> bool:
        """Whether the log takes no more facts."""
        return self._log.failure is not None

    @property
    def is_available(self) -> bool:
        """Whether commands can be decided, now or after the load."""
        return self._state not in (CoordinatorState.UNREADABLE, CoordinatorState.CLOSED) and not self.has_failed

    @property
    def state(self) -> tuple[CoordinatorState, str]:
        """Return what can be done now, and why not more."""
        if self._state in (CoordinatorState.READY, CoordinatorState.READ_ONLY):
            # The log may have failed, or may take records again, since the last command.
            failure = self._log.failure
            return (CoordinatorState.READY, "") if failure is None else (CoordinatorState.READ_ONLY, str(failure))
        return self._state, self._load_failure or ""

    @property
    def is_loaded(self) -> bool:
        """Whether the log was read, or never can be."""
        return self._state is not CoordinatorState.LOADING

    @property
    def coordinator(self) -> CoordinatorT | None:
        """Return the coordinator; None while it loads, or if its log is unreadable."""
        return self._coordinator

    def ask(self, decide: Callable[[CoordinatorT, Ticket, int], Outcome[FactT]]) -> "asyncio.Future[Any]":
        """Return the answer to a command, once it is decided and what it rests on is durable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(decide, partial(_complete, future))
        return future

    def submit(self, decide: Callable[[CoordinatorT, Ticket, int], Outcome[FactT]], answered: Answered) -> None:
        """Run a command and make a call with its answer, as `ask` does without the cost of a future.

        Raises Refused if the command cannot even be decided here.
        """
        coordinator = self._require_loaded()
        if self.has_failed:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if self._state is CoordinatorState.READ_ONLY:
            self._begin(coordinator)
            coordinator = self._require_loaded()
        ticket = self._new_ticket(answered)
        self._undecided.add(ticket)
        self.run(lambda now_ms: decide(coordinator, ticket, now_ms), ticket)

    def read(self, look: Callable[[CoordinatorT], T]) -> "asyncio.Future[T]":
        """Return what the coordinator knows now, once all of that is durable."""
        found = look(self._require_loaded())
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answer_when_durable([(self._new_ticket(partial(_complete, future)), found)])
        return future

    def _new_ticket(self, answered: Answered) -> Ticket:
        ticket = Ticket(next(self._tickets))
        self._unanswered[ticket] = answered
        return ticket

    def _require_loaded(self) -> CoordinatorT:
        if self._state is CoordinatorState.CLOSED:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._state is CoordinatorState.UNREADABLE:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if self._coordinator is None:
            if self._load_backoff.is_over:
                self.load()
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._coordinator

    # Deciding, writing, applying

    def run(self, decide: Callable[[int], Outcome[FactT]], ticket: Ticket | None = None) -> None:
        """Decide, write and apply: one step, never interrupted. The coordinator must be loaded."""
        coordinator = self._coordinator
        assert coordinator is not None
        now_ms = self._read_clock()
        while True:
            try:
                outcome = decide(now_ms)
                self._write(coordinator, outcome.facts, now_ms=now_ms)
            except Refused as refused:
                assert ticket is not None
                # Its traceback holds this frame, and so itself and the whole request, until the garbage is collected.
                outcome = Outcome(replies=[Reply(ticket, refused.with_traceback(None))])
            except _NotWritten as error:
                if self.has_failed or not coordinator.leaves_no_trace(error.facts):
                    # The log has said what happened, once for all who wrote to it.
                    self._stop()
                    return
                # The disk was full. It is as if nobody had asked.
                if ticket is None:
                    return
                outcome = Outcome(replies=[Reply(ticket, Refused(ErrorCode.NOT_COORDINATOR))])
            except Exception:
                # Deciding may have got half way, so nothing here can be trusted any more.
                log.exception(
                    "A command of a coordinator failed. Nothing of it was kept; the coordinator is loaded again, and "
                    "its clients ask again.",
                    extra={"topic": self.key.topic, "partition": self.key.partition},
                )
                self._stop()
                return
            for fact in outcome.facts:
                coordinator.apply(fact)
            self._reply(outcome)
            if not outcome.again:
                break
        self._count_memory()
        self._watch_deadlines()

    def _count_memory(self) -> None:
        """Tell how much memory the state takes now."""
        now = 0 if self._coordinator is None else self._coordinator.memory_bytes
        if now != self._memory_bytes:
            self._hold_memory(now - self._memory_bytes)
            self._memory_bytes = now

    def _write(self, coordinator: CoordinatorT, facts: Sequence[FactT], *, now_ms: int) -> None:
        if not facts:
            return
        batch = coordinator.encode(facts)
        try:
            self._written_to = self._log.append(batch, now_ms=now_ms)
        except LogFailed as failed:
            raise _NotWritten(facts, failed) from failed
        except Refused as refused:
            # The log's refusal is not the client's fault, and the decision behind it cannot stand.
            raise Malformed(str(refused)) from refused

    def _reply(self, outcome: Outcome[FactT]) -> None:
        answers = []
        for reply in outcome.replies:
            if reply.ticket in self._undecided:
                self._undecided.discard(reply.ticket)
                answers.append((reply.ticket, reply.answer))
        if answers or outcome.facts:
            self._answer_when_durable(answers)

    def _answer_when_durable(self, answers: Sequence[tuple[Ticket, object]]) -> None:
        coordinator = self._coordinator

        def end_wait(failure: LogFailed | None) -> None:
            if failure is None:
                self._answer(answers)
            elif self._coordinator is coordinator:
                self._stop()

        if not self._log.when_durable(self._written_to, end_wait):
            self._answer(answers)

    def _answer(self, answers: Sequence[tuple[Ticket, object]]) -> None:
        for ticket, answer in answers:
            # A stop of the coordinator has refused those that are missing here.
            answered = self._unanswered.pop(ticket, None)
            if answered is not None:
                answered(answer)

    # Time

    def _watch_deadlines(self) -> None:
        assert self._coordinator is not None
        deadline_ms = self._coordinator.next_deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return  # an early call finds nothing due and asks again
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._timers.at(deadline_ms, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        coordinator = self._coordinator
        if coordinator is None or self._state is CoordinatorState.CLOSED:
            return
        while self._coordinator is coordinator and self._is_due(coordinator):
            self.run(lambda now_ms: coordinator.expire(now_ms=now_ms))
        if self._coordinator is coordinator:
            self._watch_deadlines()

    def _is_due(self, coordinator: CoordinatorT) -> bool:
        now_ms = self._read_clock()
        deadline_ms = coordinator.next_deadline_ms()
        return deadline_ms is not None and deadline_ms <= now_ms

    def _read_clock(self) -> int:
        """Return the time of day, and move the deadlines along if somebody has set it since they were set.

        Facts need the time of day. But a deadline comes when so much time has passed: a clock that is set must
        neither end the sessions of all members nor keep those of the dead ones.
        """
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms - self._clock.monotonic_ms()
        step_ms = ahead_ms - self._ahead_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            self._ahead_ms = ahead_ms
            self._timer_at_ms += step_ms
            if self._coordinator is not None:
                self._coordinator.move_deadlines(step_ms)
        return now_ms

    # Loading and stopping

    @property
    def size_bytes(self) -> int:
        """How much a load has to read, about."""
        return self._log.size_bytes

    def load(self) -> "asyncio.Task[None]":
        """Load the log in the background, with many turns for others; return the load that is under way if one is."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
        return self._loading

    def load_now(self) -> None:
        """Load the log before anything else happens."""
        for _ in self._load_portions():
            pass

    async def _load(self) -> None:
        for _ in self._load_portions():
            await asyncio.sleep(0)

    def _load_portions(self) -> Generator[None, None, None]:
        if self._coordinator is not None:
            return
        coordinator = self._new_coordinator()
        try:
            for batch in self._log.read():
                facts = iter(coordinator.decode(batch))
                is_more = True
                while is_more:
                    portion = list(islice(facts, LOAD_FACTS))
                    for fact in portion:
                        coordinator.apply(fact)
                    yield
                    if self._state is CoordinatorState.CLOSED:
                        return
                    is_more = len(portion) == LOAD_FACTS
        except (LogmarkError, OSError) as error:
            self._end_failed_load(error)
            return
        self._end_load(coordinator)

    def _end_failed_load(self, error: LogmarkError | OSError) -> None:
        """Let a later request load again if the disk may allow it then; if the log is damaged, none can."""
        cause = error.__cause__ or error
        is_first, self._load_failure = self._load_failure is None, str(error)
        self._loading = None
        extra = {"topic": self.key.topic, "partition": self.key.partition, "error": str(error)}
        if not self.has_failed and not isinstance(cause, OSError):
            self._move_to(CoordinatorState.UNREADABLE)
            log.error(
                "The coordinator of one internal partition cannot be loaded, because its log is damaged. What it "
                "keeps stays unavailable; all others are served. Stop the broker and run `logmark verify`.",
                extra=extra,
            )
            return
        if not self.has_failed and not self._log.may_be_read_later(cause):
            # Reading what cannot be read takes long on a broken disk.
            self._load_backoff.begin_attempt()
        if is_first:
            log.warning(
                "The coordinator of one internal partition cannot be loaded now: its log could not be read. Nothing "
                "is lost; it is loaded when the disk works again.",
                extra=extra,
            )

    def _end_load(self, coordinator: CoordinatorT) -> None:
        self._coordinator = coordinator
        self._loading = None
        self._load_failure = None
        self._load_backoff.reset()
        self._written_to = 0
        self._count_memory()
        if self.has_failed:
            self._move_to(CoordinatorState.READ_ONLY)
        else:
            self._begin(coordinator)

    def _begin(self, coordinator: CoordinatorT) -> None:
        """Let the state change from here on."""
        self._move_to(CoordinatorState.READY)
        for decide in self._begin_decisions(coordinator):
            if self._coordinator is coordinator:
                self.run(decide)

    def _move_to(self, state: CoordinatorState) -> None:
        assert state in TRANSITIONS[self._state], f"the coordinator of {self.key} cannot become {state} now"
        self._state = state

    def _stop(self) -> None:
        """Answer nobody from a state that did not reach the disk, and load it again from what did."""
        self._coordinator = None
        self._count_memory()
        self._refuse_everybody(ErrorCode.NOT_COORDINATOR)
        if self._state is CoordinatorState.CLOSED:
            return
        # A log that fails in a write tells those who wait for it first, and they have stopped the coordinator.
        if self._state is not CoordinatorState.LOADING:
            self._move_to(CoordinatorState.LOADING)
        self.load()

    def _refuse_everybody(self, code: ErrorCode) -> None:
        self._cancel_timer()
        self._undecided.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for answered in unanswered.values():
            answered(Refused(code))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Refuse commands that are not decided yet; what was decided is still answered once it is durable."""
        if self._state is CoordinatorState.CLOSED:
            return
        self._move_to(CoordinatorState.CLOSED)
        if self._loading is not None:
            self._loading.cancel()
        self._cancel_timer()
        undecided, self._undecided = self._undecided, set()
        self._answer([(ticket, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)) for ticket in undecided])


def _complete(future: "asyncio.Future[Any]", answer: object) -> None:
    if future.done():
        return  # its connection is gone
    if isinstance(answer, Refused):
        future.set_exception(answer)
    else:
        future.set_result(answer)
