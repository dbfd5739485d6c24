"""The process's memory: what a large answer needed is kept for the next one, and what stays is not looked at again.

The C library gives a freed buffer of a mebibyte back to the system, and every page of the next one is faulted in again:
that was more than half of the time of a fetch. The process keeps a bounded amount of it instead.
"""

import ctypes
import functools
import gc
import mmap
import time
from collections.abc import Callable

KEPT_BYTES_MAX = 64 << 20
OWN_MAPPING_BYTES_MIN = 16 << 20

# A full collection of garbage that takes longer has looked at a hundred thousand objects that stay.
COLLECTION_SECONDS_MAX = 0.010

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def anonymous_memory(size: int) -> memoryview:
    """Return memory of this process, of which the system gives only the pages that are written to.

    A bytearray is filled with zeros first, in one call in which no other thread runs.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def keep_freed_buffers() -> bool:
    """Keep up to 64 MiB of freed memory; return whether the C library allows that (glibc does)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES_MIN) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))


@functools.cache
def freeze_gc() -> None:
    """Exclude all that is alive at the first call, the modules above all, from every later garbage collection.

    Spark's Python workers collect it whole after every task: a good part of their processor time went into walking over
    modules that live as long as the process.
    """
    gc.freeze()


class GarbageCollection:
    """Keeps the pauses of the garbage collector short in a process that keeps ever more objects: a broker.

    A full collection looks at every object that is alive, which takes a second for a few million. So what a long one
    has found alive is frozen: no later one looks at it. What is frozen and dropped afterwards is freed as ever, but for
    cycles of objects, which only a collection frees. So whatever a client can make the broker drop must be no cycle:
    deleted partitions above all.
    """

    def __init__(self, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._began = 0.0

    def manage(self) -> None:
        """Freeze what is alive, and from now on what long collections find alive; for a process of our own."""
        gc.freeze()
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Freeze what is alive at the end of a full collection that took long; it calls this before and after each."""
        if phase == "start":
            self._began = self._clock()
        elif info["generation"] == 2 and self._clock() - self._began > COLLECTION_SECONDS_MAX:
            gc.freeze()
