"""Asynchronous writes of the kernel report to the event loop, once each, what became of a write."""

import asyncio
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from logmark.disk import aio
from logmark.disk.aio import AsyncWrites, open_async_writes
from logmark.disk.file_system import RealFile, RealFileSystem

BLOCK = 4096


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def writes(loop: asyncio.AbstractEventLoop) -> Iterator[AsyncWrites]:
    opened = open_async_writes(loop)
    assert opened is not None, "Linux on x86-64 and aarch64 has these calls"
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RealFile]:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * BLOCK))
    opened = RealFileSystem().open_direct(str(path))
    yield opened
    opened.close()


def block(byte: bytes) -> memoryview:
    memory = memoryview(mmap.mmap(-1, BLOCK))
    memory[:] = byte * BLOCK
    return memory


def descriptor_of(file: RealFile) -> int:
    """The descriptor of a file on a file system with direct writes, which the tests' folder must have."""
    number = file.direct_descriptor
    return os.open(file.path, os.O_RDWR) if number is None else number


def run(loop: asyncio.AbstractEventLoop, writes: AsyncWrites, descriptor: int, data: memoryview, at: int) -> object:
    """Write and return what was reported: None or the error."""

    async def write() -> object:
        done = loop.create_future()
        assert writes.write(descriptor, data, at, done.set_result)
        return await done

    return loop.run_until_complete(write())


def test_the_loop_is_told_when_the_bytes_are_written(
    loop: asyncio.AbstractEventLoop, writes: AsyncWrites, file: RealFile
) -> None:
    assert run(loop, writes, descriptor_of(file), block(b"a"), 0) is None
    assert run(loop, writes, descriptor_of(file), block(b"b"), 2 * BLOCK) is None
    assert b"a" * BLOCK + bytes(BLOCK) + b"b" * BLOCK + bytes(BLOCK) == Path(file.path).read_bytes()


def test_an_error_is_reported_or_the_write_is_not_taken(
    loop: asyncio.AbstractEventLoop, writes: AsyncWrites, tmp_path: Path
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    reported: list[Exception | None] = []
    if writes.write(full, block(b"a"), 0, reported.append):
        writes.finish()
        (error,) = reported
        assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert not writes.write(10_000, block(b"a"), 0, reported.append), "no such descriptor"
    os.close(full)


def test_finish_waits_and_reports_and_the_event_that_follows_reports_nothing(
    loop: asyncio.AbstractEventLoop, writes: AsyncWrites, file: RealFile
) -> None:
    reported: list[Exception | None] = []
    assert writes.write(descriptor_of(file), block(b"a"), 0, reported.append)
    writes.finish()
    assert [None] == reported
    # The eventfd still has the event of the first write when the second one is under way.
    assert run(loop, writes, descriptor_of(file), block(b"b"), 0) is None
    assert [None] == reported
    assert b"b" * BLOCK == Path(file.path).read_bytes()[:BLOCK]


def test_a_file_system_that_writes_before_the_call_returns_is_found_out(
    loop: asyncio.AbstractEventLoop, writes: AsyncWrites, file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Linux writes to the page cache within the call; the clock says that it took long.
    cached = os.open(file.path, os.O_RDWR)
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(aio, "perf_counter", seconds.__next__)
    for _ in range(7):
        assert run(loop, writes, cached, block(b"a"), 0) is None
    with monkeypatch.context() as quick:
        quick.setattr(aio, "perf_counter", lambda: 0)
        assert run(loop, writes, cached, block(b"b"), 0) is None
    for _ in range(8):
        assert not writes.is_blocking, "single slow calls prove nothing"
        assert run(loop, writes, cached, block(b"c"), 0) is None
    assert writes.is_blocking
    # A write that `finish` has reported is not reported again, nor is the next one before its time.
    reported: list[tuple[int, Exception | None]] = []
    for number in range(2):
        assert writes.write(cached, block(b"x"), 0, lambda error, number=number: reported.append((number, error)))
        writes.finish()
    loop.run_until_complete(asyncio.sleep(0))
    assert [(0, None), (1, None)] == reported
    os.close(cached)


def test_a_system_without_these_calls_gets_none(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.platform, "machine", lambda: "riscv64")
    assert open_async_writes(loop) is None
    monkeypatch.setattr(aio.platform, "machine", lambda: "x86_64")
    # A number that no kernel has: the call is refused as by a sandbox.
    monkeypatch.setattr(aio, "_CALLS", {"x86_64": (100_000, 207, 208, 209)})
    assert open_async_writes(loop) is None
