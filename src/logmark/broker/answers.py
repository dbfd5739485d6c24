"""Answers that come later, without the cost of a future.

A future tells its callbacks in a later turn of the event loop and keeps a context for each. The answer to a request
that only waits for the disk needs neither: it is completed on the loop, and the connection only queues it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Pace, Steps, run_at_once, run_in_turns
from logmark.log.file_range import FileRange
from logmark.wire.message_compiler import ENCODED_AT_ONCE
from logmark.wire.messages import Message, encode_in_portions, encode_response, is_flexible
from logmark.wire.primitives import write_varint

if TYPE_CHECKING:
    from logmark.broker.dispatch import Request
    from logmark.broker.memory_budget import MemoryBudget


class SharedBody:
    """A body that many connections send, or a part of one: the memory budget counts it once while one needs it."""

    __slots__ = ("_budget", "data")

    def __init__(self, data: bytes, budget: "MemoryBudget") -> None:
        self.data = memoryview(data)
        self._budget = budget
        budget.hold(len(data))

    def __del__(self) -> None:
        self._budget.hold(-len(self.data))


class SharedBytes:
    """What one connection has not sent yet of a shared body."""

    __slots__ = ("_at", "body")

    def __init__(self, body: SharedBody) -> None:
        self.body = body
        self._at = 0

    def __len__(self) -> int:
        return len(self.body.data) - self._at

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes the connection has to count: none, as the body is counted by itself."""
        return 0

    def drop_bytes(self) -> None:
        """Keep the bytes: others need them, too."""

    def take(self, size: int) -> memoryview:
        """Return the next bytes, at most so many, and advance behind them."""
        taken = self.body.data[self._at : self._at + size]
        self._at += len(taken)
        return taken


Buffer = bytes | memoryview | FileRange | SharedBytes
Buffers = list[Buffer]


class LateAnswer:
    """A response that a connection waits for; what a connection asks of a future it can ask of this."""

    __slots__ = ("_callback", "_error", "_is_cancelled", "_is_done", "_result")

    def __init__(self) -> None:
        self._callback: Callable[[Any], object] | None = None
        self._error: Exception | None = None
        self._is_cancelled = False
        self._is_done = False
        self._result: Buffers | None = None

    def complete(self, result: Buffers | None) -> None:
        """Set the response and tell the connection at once."""
        if self._is_done:
            return
        self._result = result
        self._is_done = True
        if self._callback is not None:
            self._callback(self)

    def fail(self, error: Exception) -> None:
        """Tell the connection that there is no response; it logs the error and is closed."""
        if self._is_done:
            return
        self._error = error
        self._is_done = True
        if self._callback is not None:
            self._callback(self)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Set the one callback, which is called at once if the answer is complete."""
        self._callback = callback
        if self._is_done:
            callback(self)

    def cancel(self) -> bool:
        """Take note that nobody waits any more."""
        self._is_cancelled = self._is_done = True
        return True

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Buffers | None:
        return self._result


# A whole response: there, later, or never (a Produce request with acks=0).
Answer = Buffers | asyncio.Future[Buffers | None] | LateAnswer | None


class LongParts:
    """The bytes of a long answer while it is encoded: the memory budget counts them until the client has taken them.

    They replace the memory that was reserved for the answer.
    """

    # Shorter bytes are joined to pieces of about this size, longer ones stay as they are: a group has them, too.
    _PIECE_BYTES = 64 * 1024
    _LONG_BYTES = 16 * 1024

    def __init__(self, request: "Request") -> None:
        self._request = request
        self._pieces: Buffers = []
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    async def encode(self, message: Message, pace: Pace, *, flexible: bool) -> None:
        """Encode a message, with others' turns in between."""
        for parts in encode_in_portions(message, self._request.version, flexible=flexible):
            for part in parts:
                if len(part) >= self._LONG_BYTES:
                    self._join()
                    self._keep(part)
                else:
                    self._parts.append(part)
                    self._parts_bytes += len(part)
            if self._parts_bytes >= self._PIECE_BYTES:
                self._join()
            # Messages that have few parts take some of a turn.
            await pace.step(1 + STEPS_IN_A_TURN * len(parts) // ENCODED_AT_ONCE)

    def finish(self) -> Buffers:
        """Return the bytes: the usual short answer in one piece that is not counted."""
        if not self._pieces:
            return [b"".join(self._parts)]
        self._join()
        return self._pieces

    def _join(self) -> None:
        if self._parts:
            self._keep(b"".join(self._parts))
            self._parts.clear()
            self._parts_bytes = 0

    def _keep(self, data: bytes) -> None:
        request = self._request
        self._pieces.append(SharedBytes(SharedBody(data, request.broker.budget)))
        if request.reservation is not None:
            request.reservation.replace(len(data))


class LongBody:
    """The body of a response with an array of thousands of messages, made and encoded one by one.

    As one message it would keep the event loop for a tenth of a second, and its objects take much more memory than its
    bytes.
    """

    def __init__(self, schema: ModuleType, request: "Request") -> None:
        self._schema = schema
        self._version = request.version
        self._is_flexible = is_flexible(schema, request.version)
        self._count = 0
        self._pace = Pace()
        self._parts = LongParts(request)

    async def add(self, element: Message) -> None:
        """Encode the next element of the array, with others' turns in between."""
        self._count += 1
        await self._parts.encode(element, self._pace, flexible=self._is_flexible)

    def finish(self, response: Message) -> Buffers:
        """Return the body of a response whose array is empty and its last field, with the elements in it."""
        body = encode_response(self._schema, self._version, response)
        end = len(body) - self._is_flexible
        if self._is_flexible:
            head = body[: end - 1] + write_varint(self._count + 1)
        else:
            head = body[: end - 4] + self._count.to_bytes(4, "big")
        buffers = self._parts.finish()
        if len(buffers) == 1 and isinstance(only := buffers[0], bytes):
            return [b"".join((head, only, body[end:]))]
        return [head, *buffers, body[end:]]


async def encode_long(schema: ModuleType, request: "Request", response: Message) -> Buffers:
    """Return the body of a long response, which is encoded with others' turns in between."""
    parts = LongParts(request)
    await parts.encode(response, Pace(), flexible=is_flexible(schema, request.version))
    return parts.finish()


async def share_long(schema: ModuleType, request: "Request", response: Message) -> list[SharedBody]:
    """Return the body of a long response as `encode_long` does, in parts that many connections may send."""
    bodies: list[SharedBody] = []
    for each in await encode_long(schema, request, response):
        if isinstance(each, SharedBytes):
            bodies.append(each.body)
        else:
            assert isinstance(each, bytes)
            bodies.append(SharedBody(each, request.broker.budget))
    return bodies


class LateReply:
    """A message that a handler completes later; the dispatcher makes the response of it."""

    __slots__ = ("_callback", "_message")

    def __init__(self) -> None:
        self._callback: Callable[[Message], None] | None = None
        self._message: Message | None = None

    def complete(self, message: Message) -> None:
        """Set the message, once."""
        self._message = message
        if self._callback is not None:
            self._callback(message)

    def when_complete(self, callback: Callable[[Message], None]) -> None:
        """Make a call with the message, now if it is there."""
        self._callback = callback
        if self._message is not None:
            callback(self._message)


class LongWork:
    """A handler's answer that takes many turns of the event loop to find, or to encode.

    Its connection is held until the work is done, so that no later request of it is handled before. The dispatcher
    encodes the message that the work returns in turns.
    """

    __slots__ = ("_source", "is_in_line", "memory_bytes", "work")

    def __init__(
        self,
        work: "Coroutine[Any, Any, Message | Answer | LongWork]",
        *,
        is_in_line: bool = True,
        memory_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Take the work; it does not queue if it only waits for other work, which does.

        `memory_bytes` returns how much its answer may take, and what it is made of; it is asked before the work queues.
        """
        self._source = self.work = work
        self.is_in_line = is_in_line
        self.memory_bytes = memory_bytes

    def wrap(self, work: "Coroutine[Any, Any, Answer]") -> None:
        """Let other work take the place of this, which it awaits."""
        self.work = work

    def close(self) -> None:
        """Give up the work, also if it was never begun."""
        self.work.close()
        self._source.close()


# So many topics or partitions take a fraction of a millisecond; more are looked at in turns.
LARGE = 100


def answer_in_turns(steps: Steps[Message], count: int) -> Message | LongWork:
    """Return the answer that takes so many steps, one for each topic or partition: at once if they are few."""
    return LongWork(run_in_turns(steps)) if count > LARGE else run_at_once(steps)
