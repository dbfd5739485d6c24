"""Writes that the kernel does by itself: Linux's asynchronous I/O, which reports to the event loop.

A thread that writes and syncs needs the interpreter before and after, and takes it from the event loop each time. For
a small entry of the write-ahead log that cost more than the medium did. Here one call hands the write over, and an
eventfd wakes the loop when the bytes are on the medium. Why not io_uring: container runtimes forbid it by default.

It works for files that are opened for direct, synchronous writes (`FileSystem.open_direct`). Where the system has no
such calls, `open_async_writes` returns None, and a thread does the work. Some file systems take the call and write
before it returns; `is_blocking` says so, because that would hold up the event loop for as long as the medium takes.
"""

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from time import perf_counter

from logmark.disk.descriptors import OUT_OF_DESCRIPTORS

Done = Callable[[Exception | None], None]

# io_setup, io_destroy, io_getevents, io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_WRITE = 1
_REPORT_TO_EVENTFD = 1
# A call that took longer and returned when its write was done was not asynchronous, if it is no single one: on a busy
# machine the process may lose its processor within a call.
_BLOCKING_S = 0.001
_BLOCKING_WRITES = 8


class _Request(ctypes.LittleEndianStructure):
    """The kernel's `struct iocb`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("at", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.LittleEndianStructure):
    """The kernel's `struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class AsyncWrites:
    """Writes whole blocks, one write at a time. To be used on the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: tuple[int, int, int, int]) -> None:
        """Ask the kernel for a context; raises OSError if it gives none."""
        _, self._destroy_call, self._events_call, self._submit_call = calls
        # One that keeps the interpreter, for calls that return at once, and one that lets other threads run meanwhile.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting_syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = self._waiting_syscall.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        if self._syscall(calls[0], ctypes.c_uint(1), ctypes.byref(self._context)) < 0:
            raise _last_error()
        try:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._syscall(self._destroy_call, self._context)
            raise
        self._request = _Request(opcode=_WRITE, flags=_REPORT_TO_EVENTFD, eventfd=self._eventfd)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = _Event()
        # Two words of a timespec: no time at all.
        self._at_once = (ctypes.c_long * 2)(0, 0)
        self._under_way: tuple[memoryview, Done] | None = None
        # Whether the event of the write under way was taken from the kernel, and is still to be reported.
        self._is_event_taken = False
        self._blocking_writes = 0
        self._loop = loop
        loop.add_reader(self._eventfd, self._on_event)

    def write(self, descriptor: int, data: memoryview, at: int, done: Done) -> bool:
        """Begin a write and return whether the kernel took it; `done` gets the error that ended it, if one did.

        The memory must not change until then. No other write may be under way.
        """
        assert self._under_way is None
        request = self._request
        request.descriptor = descriptor
        request.address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        request.size = len(data)
        request.at = at
        begun = perf_counter()
        if self._syscall(self._submit_call, self._context, ctypes.c_long(1), self._requests) != 1:
            return False
        self._under_way = (data, done)
        if perf_counter() - begun > _BLOCKING_S and self._take_event():
            self._blocking_writes += 1
            self._loop.call_soon(self._report_taken)
        elif not self.is_blocking:
            self._blocking_writes = 0
        return True

    @property
    def is_blocking(self) -> bool:
        """Whether the file system writes before the call returns, and slowly: a thread should do that."""
        return self._blocking_writes >= _BLOCKING_WRITES

    def _on_event(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        # `finish` may have taken the event already: then a write that has begun since is not waited for.
        self._take_event()
        self._report_taken()

    def _take_event(self) -> bool:
        """Take the event of the write under way, if it is there."""
        if self._under_way is not None and not self._is_event_taken:
            one, none, event = ctypes.c_long(1), ctypes.c_long(0), ctypes.byref(self._event)
            taken = self._syscall(self._events_call, self._context, none, one, event, self._at_once)
            self._is_event_taken = taken == 1
        return self._is_event_taken

    def _report_taken(self) -> None:
        """Report the write whose event was taken, if there is one that `finish` has not reported."""
        if not self._is_event_taken:
            return
        assert self._under_way is not None
        (data, done), self._under_way = self._under_way, None
        self._is_event_taken = False
        result = self._event.result
        if result == len(data):
            done(None)
        elif result < 0:
            done(OSError(-result, os.strerror(-result)))
        else:
            done(OSError(errno.EIO, f"the disk took only {result} of {len(data)} bytes"))

    def finish(self) -> None:
        """Block until no write is under way; each is reported."""
        one = ctypes.c_long(1)
        while self._under_way is not None:
            if not self._is_event_taken:
                event = ctypes.byref(self._event)
                if self._waiting_syscall(self._events_call, self._context, one, one, event, None) != 1:
                    if ctypes.get_errno() != errno.EINTR:
                        raise _last_error()
                    continue
                self._is_event_taken = True
            self._report_taken()

    def close(self) -> None:
        """Finish and give the context back."""
        self.finish()
        if self._context:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._eventfd)
            os.close(self._eventfd)
            self._syscall(self._destroy_call, self._context)
            self._context = ctypes.c_ulong(0)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def open_async_writes(loop: asyncio.AbstractEventLoop) -> AsyncWrites | None:
    """Return asynchronous writes that report to a loop, or None where the system has none to give.

    Raises OSError if the process has no descriptor left: a later call may succeed.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None or not sys.platform.startswith("linux") or sys.byteorder != "little":
        return None
    try:
        return AsyncWrites(loop, calls)
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
        return None
