"""One internal partition at work: its coordinator, its journal, its clock and whoever waits for an answer.

A command is decided against state that includes every fact already written; its facts are written as one batch and
applied; its replies, and every later reply, wait until all that was written before them is durable. When a write or a
sync fails, the coordinator of that internal partition is thrown away and loaded again from what is durable; only when
the disk was too full for a commit is that commit refused and nothing else.
"""

import asyncio
import enum
import itertools
import logging
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from logmark.broker.pace import STEPS_IN_A_TURN, Steps
from logmark.coordination import journal as records
from logmark.coordination.commands import Outcome, Reply, Ticket
from logmark.coordination.coordinator import Coordinator
from logmark.coordination.facts import Fact, GroupRecorded
from logmark.coordination.rebalance import GroupSettings
from logmark.errors import ErrorCode, LogFailed, LogmarkError, Malformed, Refused
from logmark.log import disk_full
from logmark.log.waiters import Callback
from logmark.log.write_recovery import Backoff
from logmark.names import OFFSETS_TOPIC
from logmark.wire import batches, columns

if TYPE_CHECKING:
    from logmark.clock import Clock
    from logmark.log.partition import Partition

log = logging.getLogger(__name__)

T = TypeVar("T")
Record = tuple[bytes, bytes | None]
Decide = Callable[[Coordinator, Ticket, int], Outcome]
# Gets the answer, or the `Refused` that stands for it. Called once, on the event loop.
Answered = Callable[[Any], None]

LOAD_BYTES = 128 * 1024  # read at once while loading: some milliseconds of the event loop
# Applied at once while loading: as many as the usual read has, because groups are refused until all is loaded and every
# turn may have to wait for the interpreter. Only larger batches are applied in several turns.
LOAD_RECORDS = 4000
# How many committed offsets are looked at, and forgotten, at once.
PLACES_AT_ONCE, FORGOTTEN_AT_ONCE = 5000, 1000


class CoordinatorState(enum.Enum):
    """What the coordinator of an internal partition can do now."""

    # Groups can commit and rebalance.
    READY = "ready"
    # It reads its log, or will when the disk lets it: clients are told to ask again.
    LOADING = "loading"
    # Its log takes no records: groups can be looked at only.
    READ_ONLY = "read-only"
    # Its log is damaged: nobody knows what its groups have committed.
    UNREADABLE = "unreadable"

    @property
    def is_ready(self) -> bool:
        return self is CoordinatorState.READY


class Timer(Protocol):
    """A deadline that can be called off."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls back when the broker's clock reaches a deadline."""

    def at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer: ...


class OffsetsJournal(Protocol):
    """One internal partition as its coordinator sees it."""

    @property
    def failure(self) -> LogFailed | None: ...
    @property
    def size_bytes(self) -> int: ...
    def append(self, entries: Sequence[Record], *, now_ms: int) -> int: ...
    def when_durable(self, next_offset: int, callback: Callback) -> bool: ...
    def read(self) -> Iterator[Sequence[tuple[bytes | None, bytes | None]]]: ...


class PartitionJournal:
    """A partition of `__consumer_offsets`."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition

    @property
    def failure(self) -> LogFailed | None:
        """Why this log takes no more facts: the disk failed it or the write-ahead log; None while it does."""
        return self._partition.write_failure

    @property
    def size_bytes(self) -> int:
        """What a load has to read, about."""
        partition = self._partition
        return partition.size_bytes if partition.high_watermark > partition.log_start_offset else 0

    def append(self, entries: Sequence[Record], *, now_ms: int) -> int:
        """Writes one batch; everything is durable once the log is durable up to the offset returned."""
        batch = batches.own(batches.build(entries, timestamp_ms=now_ms))
        return self._partition.append(batch, now_ms=now_ms, from_client=False).last_offset + 1

    def when_durable(self, next_offset: int, callback: Callback) -> bool:
        """Make a call when every offset below is on disk, or the log has failed; return False if it is there."""
        return self._partition.when_durable(next_offset, callback)

    def read(self) -> Iterator[Sequence[tuple[bytes | None, bytes | None]]]:
        """Everything durable, from the log start on, in portions."""
        offset, end = self._partition.log_start_offset, self._partition.high_watermark
        while offset < end:
            data = self._partition.read(offset, bytes_max=LOAD_BYTES)
            portion = columns.decode(data, start=offset, stop=end, decompressed_bytes_max=2**31 - 1)
            if portion.next_offset <= offset:
                raise Malformed(f"{OFFSETS_TOPIC} cannot be read at offset {offset} below its end {end}")
            yield list(zip(portion.keys(), portion.values(), strict=True))
            offset = portion.next_offset


class _NotWritten(LogFailed):
    """The log did not take these facts."""

    def __init__(self, facts: Sequence[Fact], failed: LogFailed) -> None:
        super().__init__(str(failed))
        self.facts = facts


class Shard:
    """The coordinator of one internal partition with everything it needs to act."""

    def __init__(
        self,
        index: int,
        journal: OffsetsJournal,
        *,
        settings: GroupSettings,
        clock: "Clock",
        timers: Timers,
        has_topic: Callable[[str], bool],
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        has_room: Callable[[int], bool] = lambda size: True,
        hold_memory: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Take what the groups need to act; the last two ask for memory, and tell how much more or less they take."""
        self.index = index
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._has_topic = has_topic
        self._new_id = new_id
        self._has_room = has_room
        self._hold_memory = hold_memory
        self._memory_bytes = 0  # of which the holder knows
        self._coordinator: Coordinator | None = None  # None while it loads
        self._loading: asyncio.Task[None] | None = None
        self._is_unreadable = False
        # Why the last load ended early, and when the next one may begin if the disk has failed it.
        self._load_failure: str | None = None
        self._load_backoff = Backoff(clock)
        self._is_closed = False
        self._is_asleep = False  # loaded while its log took no facts: its groups can be looked at only
        self._written_to = 0  # the next offset after the last fact written
        self._tickets = itertools.count(1)
        self._parked: set[Ticket] = set()  # not decided yet
        self._unanswered: dict[Ticket, Answered] = {}
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._topics_gone: set[str] = set()  # deleted while this shard loaded

    # Asking

    @property
    def _has_failed(self) -> bool:
        return self._journal.failure is not None

    @property
    def is_available(self) -> bool:
        """Groups of this shard can be worked with, now or after the load."""
        return not (self._is_unreadable or self._is_closed or self._has_failed)

    @property
    def state(self) -> tuple[CoordinatorState, str]:
        """What can be done with its groups now, and why not more."""
        if self._is_unreadable:
            return CoordinatorState.UNREADABLE, self._load_failure or ""
        if self._coordinator is None:
            return CoordinatorState.LOADING, self._load_failure or ""
        if self._journal.failure is not None:
            return CoordinatorState.READ_ONLY, str(self._journal.failure)
        return CoordinatorState.READY, ""

    @property
    def is_loaded(self) -> bool:
        """The journal has been read, or never can be."""
        return self._coordinator is not None or self._is_unreadable or self._is_closed

    def ask(self, decide: Decide) -> "asyncio.Future[Any]":
        """Return the answer to a command, once it is decided and what it rests on is durable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(decide, partial(_settle, future))
        return future

    def submit(self, decide: Decide, answered: Answered) -> None:
        """Run a command and make a call with its answer, as `ask` does without the cost of a future.

        Raises Refused if the command cannot even be decided here.
        """
        coordinator = self._at_work()
        if self._has_failed:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if self._is_asleep:
            self._wake(coordinator)
            coordinator = self._at_work()
        ticket = self._new_ticket(answered)
        self._parked.add(ticket)
        self._run(lambda now_ms: decide(coordinator, ticket, now_ms), ticket)

    def read(self, look: Callable[[Coordinator], T]) -> "asyncio.Future[T]":
        """Return what the coordinator knows now, once all of that is durable."""
        found = look(self._at_work())
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answer_when_durable([(self._new_ticket(partial(_settle, future)), found)])
        return future

    def _new_ticket(self, answered: Answered) -> Ticket:
        ticket = Ticket(next(self._tickets))
        self._unanswered[ticket] = answered
        return ticket

    def forget_topics(self, topics: Set[str]) -> Steps[None]:
        """Forget the offsets of groups in topics that were deleted, some at a time."""
        coordinator = self._coordinator
        if coordinator is not None and coordinator.has_offsets:
            yield from self._change_portions(
                lambda groups, now_ms: coordinator.forget_topics(
                    topics.__contains__, groups, facts_max=FORGOTTEN_AT_ONCE
                )
            )
        if self._coordinator is None:
            # The load forgets them.
            self._topics_gone |= topics

    def expire_offsets(self) -> Steps[None]:
        """Forget the offsets that were kept for longer than the retention, some at a time."""
        coordinator = self._coordinator
        if coordinator is not None:
            yield from self._change_portions(
                lambda groups, now_ms: coordinator.expire_offsets(
                    now_ms=now_ms, groups=groups, facts_max=FORGOTTEN_AT_ONCE
                )
            )

    def _change_portions(self, decide: Callable[[Sequence[str], int], Outcome]) -> Steps[None]:
        """Change the offsets of all groups, as long as this coordinator is at work."""
        coordinator = self._coordinator
        assert coordinator is not None
        for groups in coordinator.portions(PLACES_AT_ONCE):
            count = FORGOTTEN_AT_ONCE

            def counted(now_ms: int, groups: Sequence[str] = groups) -> Outcome:
                nonlocal count
                outcome = decide(groups, now_ms)
                count = len(outcome.facts)
                return outcome

            while count >= FORGOTTEN_AT_ONCE:
                if self._coordinator is not coordinator or self._has_failed:
                    return
                self._run(counted)
                yield STEPS_IN_A_TURN

    def _at_work(self) -> Coordinator:
        if self._is_closed:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._is_unreadable:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if self._coordinator is None:
            if self._load_backoff.is_over:
                self.load()
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._coordinator

    # Deciding, writing, applying

    def _run(self, decide: Callable[[int], Outcome], ticket: Ticket | None = None) -> None:
        """Decides, writes, applies: one step, never interrupted."""
        coordinator = self._coordinator
        assert coordinator is not None
        now_ms = self._clock.now_ms()
        while True:
            try:
                outcome = decide(now_ms)
                self._write(outcome.facts, now_ms=now_ms)
            except Refused as refused:
                assert ticket is not None
                # Its traceback holds this frame, and so itself and the whole request, until the garbage is collected.
                outcome = Outcome(replies=[Reply(ticket, refused.with_traceback(None))])
            except _NotWritten as error:
                if self._has_failed or any(isinstance(fact, GroupRecorded) for fact in error.facts):
                    # The log has said what happened, once for all who wrote to it.
                    self._stop()
                    return
                # The disk was full. Offsets are decided without a trace, so it is as if nobody had asked.
                if ticket is None:
                    return
                outcome = Outcome(replies=[Reply(ticket, Refused(ErrorCode.NOT_COORDINATOR))])
            except Exception:
                # Deciding may have got half way, so nothing here can be trusted any more.
                log.exception(
                    "A group command failed. Nothing of it was kept; the groups of this partition are loaded again, "
                    "and their clients ask again.",
                    extra={"topic": OFFSETS_TOPIC, "partition": self.index},
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
        """Tell how much memory the groups take now."""
        now = 0 if self._coordinator is None else self._coordinator.memory_bytes
        if now != self._memory_bytes:
            self._hold_memory(now - self._memory_bytes)
            self._memory_bytes = now

    def _write(self, facts: Sequence[Fact], *, now_ms: int) -> None:
        if not facts:
            return
        entries = [records.encode(fact) for fact in facts]
        try:
            self._written_to = self._journal.append(entries, now_ms=now_ms)
        except LogFailed as failed:
            raise _NotWritten(facts, failed) from failed
        except Refused as refused:
            # The log's refusal is not the client's fault, and the decision behind it cannot stand.
            raise Malformed(str(refused)) from refused

    def _reply(self, outcome: Outcome) -> None:
        answers = []
        for reply in outcome.replies:
            if reply.ticket in self._parked:
                self._parked.discard(reply.ticket)
                answers.append((reply.ticket, reply.answer))
        if answers or outcome.facts:
            self._answer_when_durable(answers)

    def _answer_when_durable(self, answers: Sequence[tuple[Ticket, object]]) -> None:
        coordinator = self._coordinator

        def told(failure: LogFailed | None) -> None:
            if failure is None:
                self._answer(answers)
            elif self._coordinator is coordinator:
                self._stop()

        if not self._journal.when_durable(self._written_to, told):
            self._answer(answers)

    def _answer(self, answers: Sequence[tuple[Ticket, object]]) -> None:
        for ticket, answer in answers:
            # Nobody is left whose answer was refused when the shard stopped.
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
        if coordinator is None or self._is_closed:
            return
        while self._coordinator is coordinator and coordinator.is_due(now_ms=self._clock.now_ms()):
            self._run(lambda now_ms: coordinator.expire(now_ms=now_ms))
        if self._coordinator is coordinator:
            self._watch_deadlines()

    # Loading and stopping

    @property
    def size_bytes(self) -> int:
        """What a load has to read, about."""
        return self._journal.size_bytes

    def load(self) -> "asyncio.Task[None]":
        """Loads the journal in the background, yielding often; asked again, it is the same load."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
        return self._loading

    def load_now(self) -> None:
        """Loads the journal before anything else happens."""
        for _ in self._portions():
            pass

    async def _load(self) -> None:
        for _ in self._portions():
            await asyncio.sleep(0)

    def _portions(self) -> Generator[None, None, None]:
        if self._coordinator is not None:
            return
        coordinator = Coordinator(self._settings, new_id=self._new_id, has_room=self._has_room)
        try:
            for portion in self._journal.read():
                # A batch of many records is read as a whole.
                for begin in range(0, len(portion), LOAD_RECORDS):
                    for key, value in portion[begin : begin + LOAD_RECORDS]:
                        fact = records.decode(key, value)
                        if fact is not None:
                            coordinator.apply(fact)
                    yield
                    if self._is_closed:
                        return
        except (LogmarkError, OSError) as error:
            self._end_failed_load(error)
            return
        self._begin(coordinator)

    def _end_failed_load(self, error: LogmarkError | OSError) -> None:
        """Let a later request load again if the disk may allow it then; if the log is damaged, none can."""
        cause = error.__cause__ or error
        is_first, self._load_failure = self._load_failure is None, str(error)
        self._loading = None
        place = {"topic": OFFSETS_TOPIC, "partition": self.index}
        if not self._has_failed and not isinstance(cause, OSError):
            self._is_unreadable = True
            log.error(
                "The groups of one internal partition cannot be loaded, because its log is damaged. They stay "
                "unavailable; all others are served. Stop the broker and run `logmark verify`.",
                extra={**place, "error": str(error)},
            )
            return
        if not self._has_failed and not disk_full.is_passing(cause):
            # Reading what cannot be read takes long on a broken disk.
            self._load_backoff.begin_attempt()
        if is_first:
            log.warning(
                "The groups of one internal partition cannot be loaded now: its log could not be read. Nothing is "
                "lost; they are loaded when the disk works again.",
                extra={**place, "error": str(error)},
            )

    def _begin(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._loading = None
        self._load_failure = None
        self._load_backoff.reset()
        self._written_to = 0
        self._is_asleep = self._has_failed
        self._count_memory()
        if not self._is_asleep:
            self._wake(coordinator)

    def _wake(self, coordinator: Coordinator) -> None:
        """From here on groups can change."""
        self._is_asleep = False
        gone, self._topics_gone = self._topics_gone, set()
        # A stop may have come between the deletion of a topic and the forgetting of its offsets.
        self._run(lambda now_ms: coordinator.forget_topics(lambda name: name in gone or not self._has_topic(name)))
        if self._coordinator is coordinator:
            self._run(lambda now_ms: coordinator.resume(now_ms=now_ms))

    def _stop(self) -> None:
        """Nobody is answered from a state that did not reach the disk; it is loaded again from what did."""
        self._coordinator = None
        self._count_memory()
        self._refuse_everybody(ErrorCode.NOT_COORDINATOR)
        if not self._is_closed:
            self.load()

    def _refuse_everybody(self, code: ErrorCode) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parked.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for answered in unanswered.values():
            answered(Refused(code))

    def close(self) -> None:
        """Whoever waits for other members is sent away; what was decided is still answered once it is durable."""
        self._is_closed = True
        if self._loading is not None:
            self._loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parked, self._parked = self._parked, set()
        self._answer([(ticket, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)) for ticket in parked])


def _settle(future: "asyncio.Future[Any]", answer: object) -> None:
    if future.done():
        return  # its connection is gone
    if isinstance(answer, Refused):
        future.set_exception(answer)
    else:
        future.set_result(answer)
