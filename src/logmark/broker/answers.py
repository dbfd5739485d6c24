"""Answers that come later, without the cost of a future.

A future tells its callbacks in a later turn of the event loop and keeps a context for each. The answer to a request
that only waits for the disk needs neither: it is completed on the loop, and the connection only queues it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logmark.broker.event_loop_turns import Steps, run_at_once, run_in_turns
from logmark.log.file_range import FileRange
from logmark.wire.messages import Message, encode, encode_response, is_flexible
from logmark.wire.primitives import write_varint

if TYPE_CHECKING:
    from logmark.broker.memory_budget import MemoryBudget



class SharedBody:
    """The body of a response that many connections send: the memory budget counts it once, as long as one needs it."""

    __slots__ = ("_budget", "data")

    def __init__(self, data: bytes, budget: "MemoryBudget") -> None:
        self.data = memoryview(data)
        self._budget = budget
        budget.hold(len(data))

    def __del__(self) -> None:
        self._budget.hold(-len(self.data))


class SharedBytes:
    """What one connection has not sent yet of a shared body."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: SharedBody) -> None:
        self._body = body
        self._at = 0

    def __len__(self) -> int:
        return len(self._body.data) - self._at

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes are held for this connection alone."""
        return 0

    def drop_bytes(self) -> None:
        """Keep the bytes: others need them, too."""

    def take(self, size: int) -> memoryview:
        """Return the next bytes, at most so many, and advance behind them."""
        taken = self._body.data[self._at : self._at + size]
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


class LongBody:
    """The body of a response with an array of thousands of messages, encoded one by one.

    As one message it would keep the event loop, or in a thread the interpreter's lock, for a tenth of a second.
    """

    _PIECES_IN_A_BUFFER = 50

    def __init__(self, schema: ModuleType, version: int) -> None:
        self._schema = schema
        self._version = version
        self._is_flexible = is_flexible(schema, version)
        self._count = 0
        self._pieces: list[bytes] = []
        self._buffers: Buffers = []

    def add(self, element: Message) -> None:
        """Encode the next element of the array."""
        self._pieces.append(encode(type(element), self._version, element, flexible=self._is_flexible))
        self._count += 1
        if len(self._pieces) == self._PIECES_IN_A_BUFFER:
            self._join()

    def _join(self) -> None:
        self._buffers.append(b"".join(self._pieces))
        self._pieces.clear()

    def finish(self, response: Message) -> Buffers:
        """Return the body of a response whose array is empty and its last field, with the elements in it."""
        self._join()
        body = encode_response(self._schema, self._version, response)
        end = len(body) - self._is_flexible
        if self._is_flexible:
            head = body[: end - 1] + write_varint(self._count + 1)
        else:
            head = body[: end - 4] + self._count.to_bytes(4, "big")
        return [head, *self._buffers, body[end:]]


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
    encodes the message that the work returns in a thread.
    """

    __slots__ = ("is_in_line", "work")

    def __init__(self, work: "Coroutine[Any, Any, Message | Answer | LongWork]", *, is_in_line: bool = True) -> None:
        """Take the work; it does not queue if it only waits for other work, which does."""
        self.work = work
        self.is_in_line = is_in_line


# So many topics or partitions take a fraction of a millisecond; more are looked at in turns.
LARGE = 100


def answer_in_turns(steps: Steps[Message], count: int) -> Message | LongWork:
    """Return the answer that takes so many steps, one for each topic or partition: at once if they are few."""
    return LongWork(run_in_turns(steps)) if count > LARGE else run_at_once(steps)
