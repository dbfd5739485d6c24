"""One client's connection: frames in, answers out in the order of their requests.

Small requests are read many at a time through a scratch buffer. A request that does not fit in what has come gets a
buffer of its announced size, is received straight into it and is not copied again.
"""

import asyncio
import logging
import mmap
from collections import deque
from typing import TYPE_CHECKING, cast

from logmark.broker.answers import Buffers, LateAnswer
from logmark.broker.unreadable import Complaints
from logmark.errors import Malformed

if TYPE_CHECKING:
    from logmark.broker.server import Broker, Listener

log = logging.getLogger(__name__)

SCRATCH_BYTES = 8192
LARGE_FRAME_BYTES = 1 << 20
PIPELINE_MAX = 128
WRITE_BUFFER_BYTES = 4 << 20
FRAME_SECONDS_MIN = 30.0
FRAME_BYTES_PER_SECOND_MIN = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """Reads requests, starts each at once, answers in order."""

    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self._broker = broker
        self.listener = listener
        self.peer_host = ""
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
        self._unsent: Buffers = []
        self._is_held = False
        self._is_write_blocked = False
        self._is_counted = False
        self.frame_began_at: float | None = None
        self.active_at = 0.0

    # -- the transport's side ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = peer[0] if peer else ""
        if not self._broker.connection_limit.enter(self.peer_host):
            log.warning("connection refused: too many", extra={"peer": self.peer_host})
            transport.abort()
            return
        self._is_counted = True
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.active_at = self._broker.loop.time()
        self._broker.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._broker.connections.discard(self)
        if self._is_counted:
            self._broker.connection_limit.leave(self.peer_host)
            self._is_counted = False
        if self._is_waiting_for_budget:
            self._broker.budget.leave_line(self._budget_is_there)
        self._release_frame()
        pending, self._pending = self._pending, deque()
        for answer in pending:
            answer.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch[self._have :]

    def buffer_updated(self, size: int) -> None:
        self.active_at = self._broker.loop.time()
        if self._frame is None:
            self._have += size
            self._take_from_scratch()
            return
        self._filled += size
        if self._filled == len(self._frame):
            frame = self._frame
            self._frame = None
            self._announced = 0
            self.frame_began_at = None
            self._handle(frame)
            self._release_frame()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_blocked = True
        self._hold_or_go_on()

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._hold_or_go_on()

    # -- frames --------------------------------------------------------------------------------

    def _take_from_scratch(self) -> None:
        scratch = self._scratch
        at = 0
        while self._have - at >= 4:
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
        rest = self._have - at
        if at and rest:
            scratch[:rest] = bytes(scratch[at : self._have])
        self._have = rest
        if rest:
            self.frame_began_at = self.frame_began_at or self.active_at
        else:
            self.frame_began_at = None

    def _begin_frame(self, size: int, head: memoryview) -> None:
        self._announced = size
        self._scratch[: len(head)] = bytes(head)
        self._have = len(head)
        if self._broker.budget.take(size, self._budget_is_there):
            self._receive_frame()
        else:
            self._is_waiting_for_budget = True
            self._hold_or_go_on()

    def _budget_is_there(self) -> None:
        self._is_waiting_for_budget = False
        self._receive_frame()
        self._hold_or_go_on()

    def _receive_frame(self) -> None:
        size = self._budget_taken = self._announced
        # Anonymous memory costs nothing until it is written to: a claim of 100 MiB that never
        # comes true takes no page.
        buffer = mmap.mmap(-1, size) if size >= LARGE_FRAME_BYTES else bytearray(size)
        self._frame = memoryview(buffer)
        self._frame[: self._have] = self._scratch[: self._have]
        self._filled = self._have
        self._have = 0
        self.frame_began_at = self._broker.loop.time()

    def _release_frame(self) -> None:
        if self._budget_taken:
            self._broker.budget.give_back(self._budget_taken)
            self._budget_taken = 0
        self._frame = None

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
            if not self._pending:
                self._send(answer)
                return
            ready: asyncio.Future[Buffers | None] = self._broker.loop.create_future()
            ready.set_result(answer)
            self._pending.append(ready)
        elif answer is not None:
            self._pending.append(answer)
            answer.add_done_callback(self._flush)
            if len(self._pending) >= PIPELINE_MAX:
                self._hold_or_go_on()

    def _flush(self, _: object = None) -> None:
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
        if self._is_held:
            self._hold_or_go_on()

    def _send(self, buffers: Buffers) -> None:
        """Sends at the end of the turn: a send wakes its reader, who would take time from the requests that wait."""
        if not self._unsent:
            self._broker.send_soon(self)
        self._unsent += buffers

    def send(self) -> None:
        """Hands over what was answered in this turn of the loop."""
        buffers, self._unsent = self._unsent, []
        if self._transport is None:
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        elif buffers:
            self._transport.writelines(buffers)

    def _hold_or_go_on(self) -> None:
        """Reads no more while the client does not take its answers, or while there is no room for its requests."""
        hold = self._is_write_blocked or self._is_waiting_for_budget or len(self._pending) >= PIPELINE_MAX
        if self._transport is not None and hold is not self._is_held:
            self._is_held = hold
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def refuse(self, reason: str) -> None:
        """Closes this connection and says why in the log."""
        log.warning("connection closed: %s", reason, extra={"peer": self.peer_host})
        self.abort()

    def abort(self) -> None:
        """Closes this connection; what was answered before is handed over first."""
        self.send()
        if self._transport is not None:
            self._transport.abort()

    @property
    def frame_seconds_max(self) -> float:
        """How long the request that has begun may take to come: a while, and longer for a large one."""
        return FRAME_SECONDS_MIN + self._announced / FRAME_BYTES_PER_SECOND_MIN

    @property
    def is_busy(self) -> bool:
        """A request is waiting for its answer."""
        return bool(self._pending)
