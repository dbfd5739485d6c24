"""What a process shows in a terminal, and whether a descriptor has anything to read.

By `poll`: `select` refuses descriptors above 1023, and a process that has run thousands of tests may have as many.
"""

import os
import select
import time

DEADLINE_S = 120


def is_readable(descriptor: int, *, wait_ms: int = 0) -> bool:
    """Whether something can be read, or the other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_ms))


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Read what a process shows until it has shown this."""
    found = b""
    deadline = time.monotonic() + DEADLINE_S
    while wanted not in found:
        assert time.monotonic() < deadline, found
        if is_readable(terminal, wait_ms=100):
            found += os.read(terminal, 4096)
    return found
