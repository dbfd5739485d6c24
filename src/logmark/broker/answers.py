"""An answer that comes later, without the cost of a future.

A future tells its callbacks in a later turn of the event loop and keeps a context for each. The answer to a small
Produce request needs neither: it is completed on the loop, and the connection only queues it.
"""

from collections.abc import Callable
from typing import Any

Buffers = list[bytes | memoryview]


class LateAnswer:
    """A response that a connection waits for; what a connection asks of a future it can ask of this."""

    __slots__ = ("_callback", "_is_cancelled", "_is_done", "_result")

    def __init__(self) -> None:
        self._callback: Callable[[Any], object] | None = None
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
