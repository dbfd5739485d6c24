"""One client's connection: frames in, answers out in the order of their requests.

Small requests are read many at a time through a scratch buffer. A request that does not fit in what has come gets a
buffer of its announced size, is received straight into it and is not copied again.

A client that does not take its responses, has many requests under way, has asked for something that takes many turns of
the event loop or has had its share of this turn is held: the broker neither reads nor handles further requests of it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, cast

from logmark.broker.answers import Buffers, LateAnswer
from logmark.broker.corrupt_fetch import Complaints
from logmark.broker.loop_watchdog import NOTED_SECONDS, SENDING
from logmark.broker.outbox import (
    CHUNK_BYTES,
    FEW_CONNECTIONS,
    UNSENT_BYTES_OF_FEW,
    Outbox,
    drop_bytes,
    limit_unsent_bytes,
    memory_of,
    shared_bytes_of,
)  # fmt: skip
from logmark.disk.file_system import OpenFile
from logmark.errors import Malformed
from logmark.memory import anonymous_memory

if TYPE_CHECKING:
    from logmark.broker.server import Broker, Listener

log = logging.getLogger(__name__)

# Kafka's name for a client that has not said who it is.
ANONYMOUS = "User:ANONYMOUS"
SCRATCH_BYTES = 8192
LARGE_FRAME_BYTES = 1 << 20
PIPELINE_MAX = 128
# A connection that has cost more in one turn of the event loop goes on in the next turn. The unit is a byte of records,
# sent or received; a byte of any other response takes as long as many of them, and every request takes a while.
TURN_COST_MAX = CHUNK_BYTES
REQUEST_COST = TURN_COST_MAX // 64
RESPONSE_BYTE_COST = 32
# Responses of all connections that wait for the end of the turn; more are sent at once.
UNSENT_BYTES_MAX = 4 << 20
# Ready responses that wait for the one before them.
READY_BYTES_MAX = 1 << 20
# What a connection costs by itself, about.
CONNECTION_BYTES = 12 * 1024
FRAME_SECONDS_MIN = 30.0
FRAME_BYTES_PER_SECOND_MIN = 64 * 1024
# How long a request may come more slowly than that, or responses be taken, while others wait for memory.
SLOW_SECONDS_MAX = 10.0
# A client that has taken nothing for longer does not take its responses.
TAKING_SECONDS_MAX = 1.0


class Connection(asyncio.BufferedProtocol):
    """Reads requests, starts each at once, answers in order."""

    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self._broker = broker
        self._now = broker.watchdog.now
        self.listener = listener
        self.peer_host = ""
        # Nobody is authenticated yet.
        self.principal = ANONYMOUS
        # The connection is above the limits, and the client may only ask how the broker is.
        self.is_in_reserve = False
        self.complaints = Complaints()
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._have = 0
        self._frame: memoryview | None = None
        self._filled = 0
        self._budget_taken = 0
        self._is_waiting_for_budget = False
        self._announced = 0
        self._pending: deque[asyncio.Future[Buffers | None] | LateAnswer] = deque()
        self._ready_bytes = 0
        self._unsent: Buffers = []
        self._outbox: Outbox | None = None
        # What the requests of this turn of the event loop have cost.
        self._turn_cost = 0
        self._is_sending_soon = False
        self._is_held = False
        self._has_had_its_turn = False
        self._long_work: asyncio.Task[Any] | None = None
        self._has_ended = False
        # What the responses take that the client has not taken.
        self.held_bytes = 0
        self.frame_began_at: float | None = None
        self._rate_since: tuple[float, int] = (0.0, 0)
        self.active_at = 0.0
        # Since when the client does not take its responses.
        self.blocked_at: float | None = None
        # The line in which its fetches wait for their turn, and how many wait there that are not decoded yet.
        self.fetch_line: Hashable = None
        self.undecoded_fetches = 0

    # -- the transport's side ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = peer[0] if peer else ""
        self.is_in_reserve = not self._broker.connection_limit.enter(self.peer_host)
        if self.is_in_reserve:
            self._broker.health_reserve.enter(self)
        self._outbox = Outbox(transport)
        if len(self._broker.connections) < FEW_CONNECTIONS:
            limit_unsent_bytes(transport.get_extra_info("socket"), UNSENT_BYTES_OF_FEW)
        self.active_at = self._broker.loop.time()
        self._broker.connections.add(self)
        self._broker.budget.hold(CONNECTION_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._broker.connections.discard(self)
        if self.is_in_reserve:
            self._broker.health_reserve.leave(self)
        else:
            self._broker.connection_limit.leave(self.peer_host)
        self._broker.budget.hold(-CONNECTION_BYTES)
        self._broker.blocked.pop(self, None)
        if self._outbox is not None:
            self._outbox.clear()
            self._outbox = None
            self._count_held()
        if self._is_waiting_for_budget:
            self._broker.budget.withdraw(self._budget_is_there)
        self._release_frame()
        self._count_ready(-self._ready_bytes)
        pending, self._pending = self._pending, deque()
        for answer in pending:
            answer.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled : self._filled + TURN_COST_MAX]
        return self._scratch[self._have :]

    def buffer_updated(self, size: int) -> None:
        self.active_at = began = self._now()
        if self._frame is None:
            self._have += size
            # The event loop goes on reading in the same turn as long as there is more than fits.
            self._take_from_scratch(began, is_followed=self._have == SCRATCH_BYTES)
            return
        self._filled += size
        self._turn_cost += size
        if self._filled == len(self._frame):
            frame = self._frame
            self._frame = None
            self._announced = 0
            self.frame_began_at = None
            self._handle(frame)
            self._release_frame()
            ended = self._now()
            if ended - began > NOTED_SECONDS:
                self._broker.watchdog.note_requests([frame], began, ended)
            self._turn_cost += REQUEST_COST
        if self._turn_cost >= TURN_COST_MAX and self._transport is not None:
            self._end_turn()

    def eof_received(self) -> bool:
        """Keep the connection until the client has taken the responses that are ready."""
        self._has_ended = bool(self._outbox) or self.blocked_at is not None
        return self._has_ended

    def pause_writing(self) -> None:
        assert self._outbox is not None
        self._outbox.is_blocked = True
        if self.blocked_at is None:
            self.blocked_at = self._broker.loop.time()
            self._broker.blocked[self] = None

    def resume_writing(self) -> None:
        if self._outbox is None:
            return
        self._outbox.is_blocked = False
        self.active_at = began = self._now()
        self.send()
        ended = self._now()
        if ended - began > NOTED_SECONDS:
            self._broker.watchdog.note(SENDING, began, ended)

    # -- frames --------------------------------------------------------------------------------

    def _take_from_scratch(self, began: float, *, is_followed: bool) -> None:
        """Handle the requests that have come whole, until this connection is held.

        `began` is now; more may follow in this turn.
        """
        scratch = self._scratch
        at = 0
        while self._have - at >= 4 and not self._is_held:
            size = int.from_bytes(scratch[at : at + 4], "big", signed=True)
            if not 0 < size <= self._broker.request_bytes_max:
                self.refuse(f"a request of {size} bytes was announced, the limit is {self._broker.request_bytes_max}")
                return
            if self._have - at - 4 < size:
                if size > SCRATCH_BYTES - 4:
                    self._begin_frame(size, scratch[at + 4 : self._have])
                    return
                break
            self._handle(memoryview(bytearray(scratch[at + 4 : at + 4 + size])))
            if self._transport is None:
                return
            at += 4 + size
            self._turn_cost += REQUEST_COST + size
            if self._turn_cost >= TURN_COST_MAX and (is_followed or self._have > at):
                self._end_turn()
        # Once for all of them: a look at the clock for each would cost more than it tells.
        ended = self._now()
        if ended - began > NOTED_SECONDS:
            self._broker.watchdog.note_requests(_frames_in(scratch[:at]), began, ended)
        rest = self._have - at
        if at and rest:
            scratch[:rest] = bytes(scratch[at : self._have])
        self._have = rest
        if rest and not self._is_held:
            self.frame_began_at = self.frame_began_at or self.active_at
        else:
            self.frame_began_at = None
        if not is_followed:
            self._turn_cost = 0

    def _begin_frame(self, size: int, head: memoryview) -> None:
        self._announced = size
        self._scratch[: len(head)] = bytes(head)
        self._have = len(head)
        if self._broker.budget.reserve(size, self._budget_is_there):
            self._receive_frame()
        else:
            self._is_waiting_for_budget = True
            # It is the broker that waits, not the client that is slow.
            self.frame_began_at = None
            self._hold_or_go_on()

    def _budget_is_there(self) -> None:
        self._is_waiting_for_budget = False
        self._receive_frame()
        self._hold_or_go_on()

    def _receive_frame(self) -> None:
        size = self._budget_taken = self._announced
        # A claim of 100 MiB that never comes true takes no page.
        self._frame = anonymous_memory(size) if size >= LARGE_FRAME_BYTES else memoryview(bytearray(size))
        self._frame[: self._have] = self._scratch[: self._have]
        self._filled = self._have
        self._have = 0
        self.frame_began_at = self._broker.loop.time()
        self._rate_since = self.frame_began_at, self._filled

    def _release_frame(self) -> None:
        self._frame = None
        # The request counts as long as work on it is under way or in line.
        if self._budget_taken and self._long_work is None:
            size, self._budget_taken = self._budget_taken, 0
            self._broker.budget.release(size)

    # -- answers -------------------------------------------------------------------------------

    def _handle(self, frame: memoryview) -> None:
        try:
            answer = self._broker.dispatcher.answer(frame, self)
        except Malformed as error:
            self.refuse(str(error))
            return
        except Exception:
            log.exception("a request failed; its connection is closed", extra={"peer": self.peer_host})
            self.refuse("the request could not be handled")
            return
        if isinstance(answer, list):
            self._turn_cost += len(answer[0]) * RESPONSE_BYTE_COST
            if not self._pending:
                self._send(answer)
                return
            drop_bytes(answer)
            self._count_ready(memory_of(answer))
            ready: asyncio.Future[Buffers | None] = self._broker.loop.create_future()
            ready.set_result(answer)
            self._pending.append(ready)
        elif answer is not None:
            self._pending.append(answer)
            answer.add_done_callback(self._flush)
        if len(self._pending) >= PIPELINE_MAX or self._ready_bytes >= READY_BYTES_MAX:
            self._hold_or_go_on()

    def _flush(self, completed: object = None) -> None:
        pending = self._pending
        while pending and pending[0].done() and self._transport is not None:
            answer = pending.popleft()
            if answer.cancelled():
                self.refuse("the request was abandoned")
                return
            if answer.exception() is not None:
                log.error("a request failed; its connection is closed", exc_info=answer.exception())
                self.refuse("the request could not be handled")
                return
            buffers = answer.result()
            if buffers is not None:
                self._send(buffers)
        if not pending:
            self._count_ready(-self._ready_bytes)
        elif isinstance(completed, asyncio.Future) and not completed.cancelled() and completed.exception() is None:
            # It waits for the ones before it.
            drop_bytes(completed.result() or ())
        if self._is_held:
            self._hold_or_go_on()

    def _send(self, buffers: Buffers) -> None:
        """Send at the end of the turn: a send wakes its reader, who would take time from the requests that wait."""
        self._unsent += buffers
        if not self._is_sending_soon:
            self._is_sending_soon = True
            self._broker.send_soon(self)
        if len(buffers) > 1:
            size = sum(map(len, buffers))
            self._turn_cost += size
            self._broker.unsent_bytes += size
            if self._broker.unsent_bytes > UNSENT_BYTES_MAX:
                self._broker.send_now()

    def send(self) -> None:
        """Hand over to the socket what it takes of the responses."""
        self._is_sending_soon = False
        outbox = self._outbox
        if outbox is None:
            return
        buffers, self._unsent = self._unsent, []
        outbox.chunk_bytes = self._broker.chunk_bytes
        try:
            outbox.send(buffers, self._broker.room_for_responses + self.held_bytes)
        except (OSError, EOFError) as error:
            outbox.clear()
            self.refuse(f"records could not be read while they were sent: {error}")
            return
        if self.blocked_at is not None or outbox.is_blocked:
            self._note_blocked(outbox)

    def _note_blocked(self, outbox: Outbox) -> None:
        """Hold the connection while the client does not take its responses, and count what they take."""
        if not outbox.is_blocked:
            self.blocked_at = None
            self._broker.blocked.pop(self, None)
        self._count_held()
        if self._has_ended and not outbox and self._transport is not None:
            self._transport.close()
        else:
            self._hold_or_go_on()

    def _count_ready(self, size_bytes: int) -> None:
        """Count what ready responses take that wait for the one before them."""
        if size_bytes:
            self._ready_bytes += size_bytes
            self._broker.budget.hold(size_bytes)

    def _count_held(self) -> None:
        """Count what the responses that wait take of the memory budget."""
        held = 0 if self._outbox is None else self._outbox.memory_bytes
        if held != self.held_bytes:
            self._broker.hold_responses(held - self.held_bytes)
            self.held_bytes = held

    def is_fast_reader(self, now: float) -> bool:
        """Return whether the client is taking its responses, and has had little time for them; ask if others wait."""
        began = now if self.blocked_at is None else self.blocked_at
        return now - self.active_at < TAKING_SECONDS_MAX and now - began < SLOW_SECONDS_MAX

    @property
    def response_bytes(self) -> int:
        """How much memory its responses take, also those that wait for the one before them and those that it shares."""
        waiting = [] if self._outbox is None else [self._outbox.shared_bytes]
        for answer in self._pending:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                waiting.append(shared_bytes_of(answer.result() or ()))
        return self.held_bytes + self._ready_bytes + sum(waiting)

    def drop_bytes(self) -> None:
        """Free the memory of records that wait: they are read again when the client takes them."""
        if self._outbox is not None:
            self._outbox.drop_bytes()
            self._count_held()

    def add_cost(self, requests: int) -> None:
        """Count the request that is handled now as so many."""
        self._turn_cost += (requests - 1) * REQUEST_COST

    def end_turn_soon(self) -> None:
        """Handle no further request in this turn after the one that is handled now."""
        self._turn_cost = TURN_COST_MAX

    def _end_turn(self) -> None:
        """Send what there is, and let the others have their turn before the next request is handled."""
        self._has_had_its_turn = True
        self._turn_cost = 0
        self._hold_or_go_on()
        self.send()
        self._broker.loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._has_had_its_turn = False
        self._hold_or_go_on()

    def hold_during(self, work: "asyncio.Task[Any]") -> None:
        """Handle no further request until a task is done that answers one."""
        self._long_work = work
        work.add_done_callback(self._end_long_work)
        self._hold_or_go_on()

    def _end_long_work(self, _: object) -> None:
        self._long_work = None
        self._release_frame()
        self._hold_or_go_on()

    def _hold_or_go_on(self) -> None:
        """Read and handle no more while this connection is held, and go on when it is not."""
        hold = (
            self._has_had_its_turn
            or (self._outbox is not None and self._outbox.is_blocked)
            or self._is_waiting_for_budget
            or self._long_work is not None
            or len(self._pending) >= PIPELINE_MAX
            or self._ready_bytes >= READY_BYTES_MAX
        )
        if self._transport is None or hold is self._is_held:
            return
        self._is_held = hold
        if hold:
            self._transport.pause_reading()
        else:
            # Not now: this may be called while the requests of another connection are handled.
            self._broker.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle the requests that have come already, and read further ones, unless this is held again."""
        if self._transport is not None and not self._is_held and self._have and self._frame is None:
            self._take_from_scratch(self._now(), is_followed=True)
        if self._transport is not None and not self._is_held:
            self._transport.resume_reading()

    def refuse(self, reason: str) -> None:
        """Close this connection and say why in the log."""
        self._log_end(f"connection closed: {reason}")
        self.abort()

    def _log_end(self, event: str) -> None:
        left_out = self._broker.ended_connections.take()
        if left_out is not None:
            log.warning("%s", event, extra={"peer": self.peer_host, "left_out": left_out})

    def abort(self) -> None:
        """Close this connection after sending the responses that are ready."""
        if self._outbox is not None and not self._outbox.is_blocked:
            buffers, self._unsent = self._unsent, []
            with contextlib.suppress(OSError, EOFError):
                self._outbox.send(buffers)
        if self._transport is not None:
            self._transport.abort()

    def is_slow_sender(self, now: float) -> bool:
        """Return whether the request under way has come too slowly for too long; ask while others wait for memory."""
        if self._frame is None:
            return False
        since, filled = self._rate_since
        if now - since < SLOW_SECONDS_MAX:
            return False
        self._rate_since = now, self._filled
        return self._filled - filled < FRAME_BYTES_PER_SECOND_MIN * (now - since)

    def held_files(self) -> Iterator[OpenFile]:
        """Yield the files that its responses keep open."""
        return (piece.file for piece in self._outbox.ranges()) if self._outbox is not None else iter(())

    @property
    def frame_seconds_max(self) -> float:
        """How long the request that has begun may take to come: a while, and longer for a large one."""
        return FRAME_SECONDS_MIN + self._announced / FRAME_BYTES_PER_SECOND_MIN

    @property
    def is_busy(self) -> bool:
        """A request is waiting for its answer."""
        return bool(self._pending)


def _frames_in(requests: memoryview) -> Iterator[memoryview]:
    """Yield the frames of requests that lie behind one another, each with its length in front."""
    at = 0
    while at < len(requests):
        size = int.from_bytes(requests[at : at + 4], "big")
        yield requests[at + 4 : at + 4 + size]
        at += 4 + size
