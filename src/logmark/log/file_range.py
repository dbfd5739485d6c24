"""A range of a segment's file: the batches that a read has found and checked, and where they lie.

A small range keeps the bytes that were read, until they are dropped because their reader does not take them. Everything
else is read again, piece by piece, as the reader takes it. The range keeps the file open: retention and compaction may
delete the segment meanwhile.
"""

from logmark.disk.file_system import OpenFile

# A range that is larger is sent in several pieces.
KEPT_BYTES_MAX = 1024 * 1024


class FileRange:
    """Bytes of a file, of which some may be in memory."""

    __slots__ = ("_data", "_position", "_size", "file")

    def __init__(self, file: OpenFile, position: int, data: bytes | memoryview) -> None:
        self.file = file
        self._position = position
        self._size = len(data)
        self._data = data if len(data) <= KEPT_BYTES_MAX else None

    def __len__(self) -> int:
        return self._size

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes the range holds beside the file."""
        return 0 if self._data is None else self._size

    def drop_bytes(self) -> None:
        """Free the memory; what is left is read from the file."""
        self._data = None

    def take(self, size: int) -> bytes | memoryview:
        """Return the next bytes, at most so many, and advance behind them.

        Raises OSError if the file cannot be read, EOFError if it is shorter than it was.
        """
        if self._data is not None and size >= self._size:
            taken = self._data
            size = self._size
        else:
            size = min(size, self._size)
            self._data = None
            taken = self.file.pread(size, self._position)
            if len(taken) != size:
                raise EOFError(f"the segment has ended at byte {self._position + len(taken)}")
        self._position += size
        self._size -= size
        return taken
