"""Answers that come later, without the cost of a future.

A future tells its callbacks in a later turn of the event loop and keeps a context for each. The answer to a request
that only waits for the disk needs neither: it is completed on the loop, and the connection only queues it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from logmark.log.file_range import FileRange
from logmark.wire.messages import Message

Buffers = list[bytes | memoryview | FileRange]


class LateAnswer:
    """A response that a connection waits for; what a connection asks of a future it can ask of this."""

    __slots__ = ("_callback", "_convert", "_is_cancelled", "_is_done", "_result")

    def __init__(self) -> None:
        self._callback: Callable[[Any], object] | None = None
        self._convert: Callable[[Buffers], Buffers] | None = None
        self._is_cancelled = False
        self._is_done = False
        self._result: Buffers | None = None

    def complete(self, result: Buffers | None) -> None:
        """Set the response and tell the connection at once."""
        if self._is_done:
            return
        self._result = result if self._convert is None or result is None else self._convert(result)
        self._is_done = True
        if self._callback is not None:
            self._callback(self)

    def convert(self, convert: Callable[[Buffers], Buffers]) -> None:
        """Convert the response when it is complete; now if it is."""
        if self._is_done:
            self._result = None if self._result is None else convert(self._result)
        else:
            self._convert = convert

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Set the one callback; the answer cannot be complete yet."""
        self._callback = callback

    def cancel(self) -> bool:
        """Take note that nobody waits any more."""
        self._is_cancelled = self._is_done = True
        return True

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> None:
        return None

    def result(self) -> Buffers | None:
        return self._result


# A response, or its body: there, later, or never (a Produce request with acks=0).
Body = Buffers | asyncio.Future[Buffers | None] | LateAnswer | None


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
