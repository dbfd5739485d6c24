"""Reading ahead: the small files of partitions, in threads, before they are opened one after the other.

After a restart of the machine nothing of them is in memory, and a start would wait for the disk eight times per
partition. A prefetch waits for many at once and keeps nothing: the system's own cache is what counts.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

from logmark.disk.file_system import FileSystem

THREADS = 8
TAIL_BYTES = 8 * 1024
_SMALL = (".index", ".snapshot", ".metadata", ".txnindex")


class Prefetch:
    """Reads what opening some folders will read, until all is read or it is stopped."""

    def __init__(self, folders: Iterable[str], files: FileSystem) -> None:
        self._folders: Iterator[str] = iter(folders)
        self._files = files
        self._guard = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read, name="logmark-ahead", daemon=True) for _ in range(THREADS)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and return when nothing is read any more."""
        with self._guard:
            self._folders = iter(())
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        while (folder := self._next()) is not None:
            # Only what is opened properly may fail, and says so then.
            with suppress(OSError):
                names = self._files.listdir(folder)
                for name in names:
                    if name.endswith(_SMALL):
                        self._files.read(f"{folder}/{name}")
                logs = [name for name in names if name.endswith(".log")]
                for name in logs:
                    size = self._files.size(f"{folder}/{name}")
                    if name is logs[-1] and size:
                        self._read_end(f"{folder}/{name}", size)

    def _read_end(self, path: str, size: int) -> None:
        file = self._files.open(path)
        try:
            file.pread(TAIL_BYTES, max(0, size - TAIL_BYTES))
        finally:
            file.close()

    def _next(self) -> str | None:
        with self._guard:
            return next(self._folders, None)
