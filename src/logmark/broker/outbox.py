"""The responses of one connection on their way to its client.

The transport gets them in chunks, each when the socket has taken the one before. What the client does not take waits
here: records as ranges of their files, which cost no memory, and everything else as bytes.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Iterable, Iterator

from logmark.broker.answers import Buffer, Buffers, SharedBytes
from logmark.log.file_range import KEPT_BYTES_MAX, FileRange

# Not less: what a range keeps in memory is sent as it is.
CHUNK_BYTES = KEPT_BYTES_MAX


# What the kernel takes of the responses of one connection before it can send it.
UNSENT_BYTES_MAX = 256 * 1024
# The same for connections that came while there were few: a fast reader then takes more with each turn of the loop.
UNSENT_BYTES_OF_FEW = 2 * 1024 * 1024
FEW_CONNECTIONS = 16


def limit_unsent_bytes(its_socket: socket.socket, bytes_max: int = UNSENT_BYTES_MAX) -> None:
    """Limit what the kernel holds for a client that does not read; connections have the option of their listener.

    Its buffer for what is sent and not acknowledged still grows with the speed of a reader far away (SO_SNDBUF would
    limit both).
    """
    its_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, bytes_max)


class Outbox:
    """What a client has not taken yet, in order."""

    __slots__ = ("_handed_over", "_pieces", "_transport", "chunk_bytes", "is_blocked")

    def __init__(self, transport: asyncio.Transport) -> None:
        # The transport tries to send each chunk at once, and says when the socket did not take all of it.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._pieces: deque[Buffer] = deque()
        self.chunk_bytes = CHUNK_BYTES
        # The bytes of the last chunk: if the socket did not take all of them, the transport has the others.
        self._handed_over = 0
        # Whether the socket takes no more for now.
        self.is_blocked = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def send(self, buffers: Buffers, keep_bytes: int = 0) -> None:
        """Hand over what the socket takes, these buffers last; of the rest so many bytes of records stay in memory.

        Raises OSError or EOFError if records cannot be read from their file.
        """
        if len(buffers) == 1 and not self._pieces and isinstance(only := buffers[0], bytes):
            # The usual small response. If the socket does not take it, the transport keeps it.
            self._handed_over = len(only)
            self._transport.write(only)
            return
        self._pieces += buffers
        while self._pieces and not self.is_blocked:
            chunk = self._take_chunk()
            if len(chunk) == 1:
                self._transport.write(chunk[0])
            else:
                self._transport.writelines(chunk)
        if self._pieces:
            drop_bytes(self._pieces, keep_bytes)

    def _take_chunk(self) -> list[bytes | memoryview]:
        chunk: list[bytes | memoryview] = []
        size = 0
        pieces = self._pieces
        while pieces and size < self.chunk_bytes:
            piece = pieces[0]
            if isinstance(piece, FileRange | SharedBytes):
                taken = piece.take(self.chunk_bytes)
                if not len(piece):
                    pieces.popleft()
            elif len(piece) > self.chunk_bytes:
                # The transport may copy what it is given, and others may share the rest.
                piece = memoryview(piece)
                taken, pieces[0] = piece[: self.chunk_bytes], piece[self.chunk_bytes :]
            else:
                taken = piece
                pieces.popleft()
            chunk.append(taken)
            size += len(taken)
        self._handed_over = size
        return chunk

    @property
    def memory_bytes(self) -> int:
        """How much memory the responses take that wait here or in the transport, about."""
        return memory_of(self._pieces) + (self._handed_over if self.is_blocked else 0)

    @property
    def shared_bytes(self) -> int:
        """How many bytes wait here of bodies that the memory budget counts by themselves."""
        return shared_bytes_of(self._pieces)

    def ranges(self) -> Iterator[FileRange]:
        """Yield the ranges of files that wait here."""
        return (piece for piece in self._pieces if isinstance(piece, FileRange))

    def drop_bytes(self) -> None:
        """Free the memory of records that wait: their client takes nothing for now."""
        drop_bytes(self._pieces)

    def clear(self) -> None:
        """Drop everything: the connection is closed."""
        self._pieces.clear()


def memory_of(buffers: Iterable[Buffer]) -> int:
    """Return how many bytes of a response are in memory."""
    return sum(
        buffer.bytes_in_memory if isinstance(buffer, FileRange | SharedBytes) else len(buffer) for buffer in buffers
    )


def shared_bytes_of(buffers: Iterable[Buffer]) -> int:
    """Return how many bytes of a response are in bodies that the memory budget counts by themselves."""
    return sum(len(buffer) for buffer in buffers if isinstance(buffer, SharedBytes))


def drop_bytes(buffers: Iterable[Buffer], keep_bytes: int = 0) -> None:
    """Free the memory of records that can be read from their files again, but for the first that take so much."""
    for buffer in buffers:
        if isinstance(buffer, FileRange):
            keep_bytes -= buffer.bytes_in_memory
            if keep_bytes < 0:
                buffer.drop_bytes()
