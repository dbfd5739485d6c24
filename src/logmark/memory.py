"""The process's memory: what a large answer needed is kept for the next one, and what stays is not looked at again.

The C library gives a freed buffer of a mebibyte back to the system, and every page of the next one is faulted in anew:
that was more than half of the time of a fetch. The process keeps a bounded amount of it instead.
"""

import ctypes
import functools
import gc

KEPT_BYTES_MAX = 64 << 20
OWN_MAPPING_BYTES_MIN = 16 << 20

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_buffers() -> bool:
    """Keeps up to 64 MiB of what is freed; says whether the C library can be told so (glibc can)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES_MIN) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))


@functools.cache
def spare_what_stays() -> None:
    """Takes all that is alive at the first call, the modules above all, out of every later collection of garbage.

    Spark's Python workers collect it whole after every task: a good part of their processor time went into walking over
    modules that live as long as the process.
    """
    gc.freeze()
