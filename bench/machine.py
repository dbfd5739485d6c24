"""What this machine can do at best, with the same bytes in the same folder: the limit that each row stands beside."""

import mmap
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from logmark.wire import columns

# What is sent at once, and the file that it is sent from.
_PIECE_BYTES = 1 << 20
_FILE_BYTES = 256 << 20
_FLUSHED_BYTES = 64 << 20


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best(work: Callable[[], object], times: int) -> float:
    """The shortest of some calls: whatever disturbs a call that only computes makes it longer."""
    return min(seconds(work) for _ in range(times))


def plain_write(folder: Path, data: bytes, count: int, *, sync: bool) -> float:
    """Seconds for `count` writes of the same bytes one behind the other, each synced if asked for."""
    path = folder / "plain"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        begin = time.perf_counter()
        for number in range(count):
            os.pwrite(descriptor, data, number * len(data))
            if sync:
                os.fdatasync(descriptor)
        return time.perf_counter() - begin
    finally:
        os.close(descriptor)
        path.unlink()


def recycled_sync(folder: Path, size: int, seconds: float) -> float:
    """Return the mean seconds of one write with its fdatasync into a file whose blocks were all written before."""
    path, length = folder / "recycled", 16 << 20
    path.write_bytes(bytes(length))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        data, count = os.urandom(size), 0
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds or not count:
            os.pwrite(descriptor, data, count * size % length)
            os.fdatasync(descriptor)
            count += 1
        return elapsed / count
    finally:
        os.close(descriptor)
        path.unlink()


def rounds(folder: Path, size: int, segments: int, total: int, *, is_confirmed: bool) -> float:
    """Return the bytes/s of rounds that write `size` bytes into so many segments, each durable before the next one.

    As the write-ahead log has it, a round is one write of all its bytes into a recycled file, and a thread syncs the
    segments each 64 MiB. `is_confirmed` is the other way: the round syncs its segments, and then one block of 4 KiB.
    """
    wal = os.open(folder / "wal", os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC)
    paths = [folder / f"segment-{number}" for number in range(segments)]
    files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in paths]
    entry = mmap.mmap(-1, size)
    entry.write(os.urandom(size))
    small, part = mmap.mmap(-1, 4096), bytes(entry[: size // segments])
    zeros = mmap.mmap(-1, _PIECE_BYTES)
    for at in range(0, _FILE_BYTES, _PIECE_BYTES):
        os.pwrite(wal, zeros, at)
    try:
        with ThreadPoolExecutor(1) as flusher:
            begin = time.perf_counter()
            for at in range(0, total, size):
                for file in files:
                    os.write(file, part)
                if is_confirmed:
                    for file in files:
                        os.fdatasync(file)
                os.pwrite(wal, small if is_confirmed else entry, at % (_FILE_BYTES - size) // 4096 * 4096)
                if not is_confirmed and at % _FLUSHED_BYTES < size:
                    flusher.submit(lambda: [os.fdatasync(file) for file in files])
            took_s = time.perf_counter() - begin
    finally:
        for descriptor in (wal, *files):
            os.close(descriptor)
        for path in (folder / "wal", *paths):
            path.unlink()
    return total / took_s


def sync_in_request(folder: Path, size: int, seconds: float) -> float:
    """Return the seconds that one sync adds to a request, on a server that does nothing else.

    It is more than `recycled_sync`: while a client waits for the disk, its processor and the server's fall asleep.
    """
    return _request(folder, size, seconds / 2, sync=True) - _request(folder, size, seconds / 2, sync=False)


def _request(folder: Path, size: int, seconds: float, *, sync: bool) -> float:
    """Return the mean seconds of one small request, over TCP, to a bare server that may write and sync for each."""
    path, length = folder / "bare", 16 << 20
    path.write_bytes(bytes(length))
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, path, size, length, sync))
    server.start()
    try:
        with socket.create_connection(listener.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            count, begin = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < seconds or not count:
                connection.send(b"request")
                connection.recv(100)
                count += 1
        return elapsed / count
    finally:
        listener.close()
        server.join()
        path.unlink()


def _serve(listener: socket.socket, path: Path, size: int, length: int, sync: bool) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # As the broker writes the write-ahead log: around the page cache, and durable when the call returns.
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_DIRECT", 0) | os.O_DSYNC)
    os.fsync(descriptor)
    data, count = mmap.mmap(-1, size), 0
    while connection.recv(100):
        if sync:
            os.pwrite(descriptor, data, count * size % length)
            count += 1
        connection.send(b"response")
    os.close(descriptor)


def send_from_memory(folder: Path, size: int) -> float:
    """Return the processor seconds for each GB that a bare server sends out of its memory over the loopback device."""
    data = memoryview(os.urandom(_PIECE_BYTES))
    return _send(size, lambda connection, _: connection.send(data))


def send_checked(folder: Path, size: int) -> float:
    """Return the processor seconds for each GB of a cached file that a bare server reads, checks and sends."""
    piece = bytearray(_PIECE_BYTES)

    def send(connection: socket.socket, descriptor: int, position: int) -> int:
        os.preadv(descriptor, [piece], position)
        columns.crc32c(piece, 0, len(piece))
        return connection.send(piece)

    return _send_cached(folder, size, send)


def send_file(folder: Path, size: int) -> float:
    """Return the processor seconds for each GB of a cached file that the kernel sends, as Apache Kafka lets it."""
    return _send_cached(folder, size, lambda to, file, at: os.sendfile(to.fileno(), file, at, _PIECE_BYTES))


def _send_cached(folder: Path, size: int, send: Callable[[socket.socket, int, int], int]) -> float:
    path = folder / "sent"
    path.write_bytes(os.urandom(_FILE_BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    last = _FILE_BYTES - _PIECE_BYTES
    try:
        return _send(size, lambda connection, sent: send(connection, descriptor, sent % last))
    finally:
        os.close(descriptor)
        path.unlink()


def _send(size: int, send: Callable[[socket.socket, int], int]) -> float:
    """Return the processor seconds of this process for each GB that a client takes."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = multiprocessing.get_context("fork").Process(target=_receive, args=(listener,))
    client.start()
    try:
        with socket.create_connection(listener.getsockname()) as connection:
            sent, begin = 0, time.process_time()
            while sent < size:
                sent += send(connection, sent)
            return (time.process_time() - begin) / (sent / 1e9)
    finally:
        listener.close()
        client.join()


def _receive(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    buffer = bytearray(_PIECE_BYTES)
    while connection.recv_into(buffer):
        pass


def plain_read(path: Path, chunk_bytes: int) -> float:
    """Seconds to read a file out of the page cache into one piece of memory, chunk by chunk."""
    buffer = bytearray(chunk_bytes)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        begin = time.perf_counter()
        at = 0
        while got := os.preadv(descriptor, [buffer], at):
            at += got
        return time.perf_counter() - begin
    finally:
        os.close(descriptor)


def memcpy(size: int, times: int) -> float:
    """Seconds to copy that many bytes from one piece of memory to another that was used before."""
    source, target = memoryview(bytes(size)), memoryview(bytearray(size))

    def copy() -> None:
        target[:] = source

    copy()
    return best(copy, times)


def arrow_copy(values: list[bytes], times: int) -> float:
    """Seconds for pyarrow to copy a column of values, offsets and all."""
    import pyarrow

    half = len(values) // 2
    column = pyarrow.chunked_array([pyarrow.array(values[:half]), pyarrow.array(values[half:])])
    return best(column.combine_chunks, times)
