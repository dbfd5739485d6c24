"""Writes entries of the WAL off the event loop: the kernel does it by itself where it can, and a thread elsewhere."""

import asyncio
from contextlib import suppress

from logmark.disk.aio import AsyncWrites, open_async_writes
from logmark.log.disk_worker import Done, Job, Worker
from logmark.log.wal.files import WalFile


class EntryWriter:
    """Writes one entry at a time and reports on the event loop when the medium has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: Worker, *, is_asynchronous: bool) -> None:
        """Take the worker for files that the kernel cannot write by itself, or for all if not asynchronous."""
        self._loop = loop
        self._worker = worker
        self._is_asynchronous = is_asynchronous
        self._kernel: AsyncWrites | None = None

    def write(self, file: WalFile, entry: memoryview, done: Done) -> None:
        """Write an entry behind the last one and sync it; `done` gets the error that prevented it, if one did.

        The entry's memory must not change until then.
        """
        assert file.file is not None
        descriptor = file.file.direct_descriptor
        if self._is_asynchronous and descriptor is not None:
            if self._kernel is None:
                # Without a descriptor the thread writes this entry, and the next one tries again.
                with suppress(OSError):
                    self._kernel = open_async_writes(self._loop)
                    self._is_asynchronous = self._kernel is not None
            if self._kernel is not None and self._kernel.write(descriptor, entry, file.position, done):
                self._is_asynchronous = not self._kernel.is_blocking
                return
        self._worker.run(_write(file, entry), done)

    def finish(self) -> None:
        """Block until no entry is being written, and report it."""
        if self._kernel is not None:
            self._kernel.finish()
        self._worker.finish()

    def close(self) -> None:
        """Finish, and take no more entries."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        self._worker.close()


def _write(file: WalFile, entry: memoryview) -> Job:
    assert file.file is not None
    file.file.pwrite(entry, file.position)
    yield
    file.file.sync()
    yield
