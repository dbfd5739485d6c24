"""The memory that clients may make the broker hold: one budget over all connections.

Requests reserve memory before they are received. Large ones may not use all of it, so that the requests of other
clients are served while they come in:

    up to 64 KiB       all of the budget: heartbeats and commits find memory when others do not
    up to 1 MiB        seven eighths of it
    larger             a half of it, together; one alone is always let in, or it could never be served

Groups and their committed offsets may take a half of it. They are kept longer than any request: what a start finds
above their half is served, and does not take from the others' half.

What is held beside requests (connections, responses, waiting fetches, groups) counts too, and cannot be refused
afterwards. Work that may take much more memory than its request (the objects of a large request, a long answer, the
records of a compressed batch) begins when there is room for it. Work that needs more than 1 MiB waits in a line of its
own and leaves an eighth of the budget to the rest. One of each line always begins if no other is under way, unless what
is held beside requests uses up its share of the budget: the requests may be those that wait for their own work.
"""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path

SMALL_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024
DEFAULT_BYTES_MAX = 256 * 1024 * 1024
# The memory of the machine or of the container is for the log's pages, too.
SHARE_OF_LIMIT = 4
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Granted = Callable[[], None]


class Size(Enum):
    """How large a request is, compared with others."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


def size_of(request_bytes: int) -> Size:
    """Return the class of a request."""
    if request_bytes <= SMALL_BYTES:
        return Size.SMALL
    return Size.MEDIUM if request_bytes <= LARGE_BYTES else Size.LARGE


def default_bytes_max(limits: tuple[str, ...] = _CGROUP_LIMITS) -> int:
    """Return the budget of a broker without the setting: less where the container has little memory."""
    for path in limits:
        with suppress(OSError, ValueError):
            return min(DEFAULT_BYTES_MAX, int(Path(path).read_text()) // SHARE_OF_LIMIT)
    return min(DEFAULT_BYTES_MAX, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // SHARE_OF_LIMIT)


class MemoryBudget:
    """Counts what is held; requests that find too little left wait, each class in its own line."""

    def __init__(self, bytes_max: int) -> None:
        self._limits = {Size.SMALL: bytes_max, Size.MEDIUM: bytes_max * 7 // 8, Size.LARGE: bytes_max * 7 // 8}
        self._large_max = bytes_max // 2
        self._used = 0
        self._requests = 0  # bytes that requests have reserved
        self._large = 0  # those of large ones among them
        self._waiting: dict[Size, deque[tuple[int, Granted]]] = {size: deque() for size in Size}
        self._groups = 0  # bytes of groups, also those above their share
        self.groups_max = bytes_max // 2
        # Works up to 1 MiB, and larger ones: how many are under way, and those that wait.
        self._works = {Size.SMALL: 0, Size.LARGE: 0}
        self._waiting_works: dict[Size, deque[tuple[int, Granted]]] = {size: deque() for size in self._works}

    @property
    def used(self) -> int:
        """How many bytes are held."""
        return self._used

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits for memory."""
        return any(self._waiting.values()) or any(self._waiting_works.values())

    # Requests

    def reserve(self, request_bytes: int, granted: Granted) -> bool:
        """Reserve memory for a request now, or call back as soon as it is reserved."""
        line = self._waiting[size_of(request_bytes)]
        if not line and self._has_room(request_bytes):
            self._take(request_bytes)
            return True
        line.append((request_bytes, granted))
        return False

    def release(self, request_bytes: int) -> None:
        """Give back what a request has reserved."""
        self._used -= request_bytes
        self._requests -= request_bytes
        if size_of(request_bytes) is Size.LARGE:
            self._large -= request_bytes
        self._grant()

    def withdraw(self, granted: Granted) -> None:
        """Leave the line, when the connection of a waiting request is lost; others may have waited behind it."""
        for size, line in self._waiting.items():
            self._waiting[size] = deque(entry for entry in line if entry[1] != granted)
        self._grant()

    # Groups

    @property
    def groups(self) -> int:
        """How many bytes groups take."""
        return self._groups

    def has_room_for_groups(self, size_bytes: int) -> bool:
        """Return whether groups may take more memory."""
        return self._groups + size_bytes <= self.groups_max

    def hold_groups(self, size_bytes: int) -> None:
        """Count what groups take more than before, or less."""
        counted = min(self._groups, self.groups_max)
        self._groups += size_bytes
        self.hold(min(self._groups, self.groups_max) - counted)

    # Work

    def begin_work(self, size_bytes: int, granted: Granted) -> bool:
        """Hold memory for work that begins now, or call back as soon as it can begin."""
        line = self._waiting_works[_size_of_work(size_bytes)]
        if not line and self._has_room_for_work(size_bytes):
            self._take_work(size_bytes)
            return True
        line.append((size_bytes, granted))
        return False

    def end_work(self, size_bytes: int, left_bytes: int | None = None) -> None:
        """Give back what the work has held: all of it, or what was not given back before."""
        self._works[_size_of_work(size_bytes)] -= 1
        self.hold(-(size_bytes if left_bytes is None else left_bytes))
        # It may have been the only one, and have held nothing any more.
        self._grant()

    def withdraw_work(self, granted: Granted) -> None:
        """Leave the line before the work has begun."""
        for size, line in self._waiting_works.items():
            self._waiting_works[size] = deque(entry for entry in line if entry[1] != granted)
        self._grant()

    @property
    def excess(self) -> int:
        """How many bytes have to be given up before work can begin that waits and would be the only one."""
        limits = [
            self._limits[size] for size, line in self._waiting_works.items() if line and not self._works[size]
        ]
        return max(self._used - self._requests - min(limits) + 1, 0) if limits else 0

    def _has_room_for_work(self, size_bytes: int) -> bool:
        size = _size_of_work(size_bytes)
        is_used_up = self._used - self._requests >= self._limits[size]
        return self._used + size_bytes <= self._limits[size] or not (self._works[size] or is_used_up)

    def _take_work(self, size_bytes: int) -> None:
        self._works[_size_of_work(size_bytes)] += 1
        self._used += size_bytes

    # Everything else

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are held already; a negative number takes them back."""
        self._used += size_bytes
        if size_bytes < 0:
            self._grant()

    def has_room(self, size_bytes: int) -> bool:
        """Return whether something can be held that may as well be refused."""
        return self._used + size_bytes <= self._limits[Size.MEDIUM]

    def _has_room(self, request_bytes: int) -> bool:
        size = size_of(request_bytes)
        if size is Size.LARGE:
            if not self._large:
                return True
            if self._large + request_bytes > self._large_max:
                return False
        return not self._requests or self._used + request_bytes <= self._limits[size]

    def _take(self, request_bytes: int) -> None:
        self._used += request_bytes
        self._requests += request_bytes
        if size_of(request_bytes) is Size.LARGE:
            self._large += request_bytes

    def _grant(self) -> None:
        for size in Size:
            line = self._waiting[size]
            while line and self._has_room(line[0][0]):
                request_bytes, granted = line.popleft()
                self._take(request_bytes)
                granted()
        for size in self._works:
            works = self._waiting_works[size]
            while works and self._has_room_for_work(works[0][0]):
                size_bytes, granted = works.popleft()
                self._take_work(size_bytes)
                granted()


def _size_of_work(size_bytes: int) -> Size:
    return Size.LARGE if size_bytes > LARGE_BYTES else Size.SMALL
