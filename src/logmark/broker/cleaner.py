"""The cleaner: picks the dirtiest compacted log, has it rewritten elsewhere and lets its partition take that over.

The rewriting runs in a process of its own. The event loop only chooses, exchanges segments that are ready and open,
and notes how far the log is clean.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import IO, NamedTuple, Protocol

from logmark.broker.config import BrokerConfig
from logmark.broker.logs import Logs
from logmark.broker.timers import Timers
from logmark.clock import Clock
from logmark.disk.file_system import FileSystem, Lock, RealFileSystem
from logmark.errors import LogFailed, Malformed
from logmark.log import segment_cleaner, segment_swap
from logmark.log.compaction_schedule import DirtyPart
from logmark.log.directory import DataDirectory
from logmark.log.partition import Partition
from logmark.log.segment_cleaner import Cleaned, Done, Limits, Plan

# Choosing looks at every log; others get their turn in between.
LOGS_BETWEEN_PAUSES = 100

log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """The log that is being compacted, and since when nothing has come of it."""

    name: str
    since_ms: int
    # The process that rewrites; None if this one does.
    pid: int | None


class Worker(Protocol):
    """Whoever does the rewriting."""

    def clean(self, plan: Plan) -> Generator[Cleaned | Done, None, None]: ...

    def stop(self) -> None: ...


class BesideWorker:
    """Rewrites in the calling thread: for file systems that only this process knows."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def clean(self, plan: Plan) -> Generator[Cleaned | Done, None, None]:
        """Yield the outputs one by one, and the figures at the end."""
        return segment_cleaner.clean(plan, self._files)

    def stop(self) -> None:
        """Do nothing: no process was started."""


class ProcessWorker:
    """Rewrites in a process that is started with the first plan, kept, and ends with this one."""

    def __init__(self, *, is_syncing: bool, lock: Lock) -> None:
        self._lock = lock
        self._command = [sys.executable, "-m", "logmark.log.segment_cleaner", *(["--sync"] if is_syncing else [])]
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def clean(self, plan: Plan) -> Generator[Cleaned | Done, None, None]:
        """Yield the outputs one by one, and the figures at the end. Raises OSError if the process is gone.

        If the caller closes it before the end, the process is ended too: it would continue the plan, write into the
        folder, and its answers would pass for those of the next plan.
        """
        plans, answers = self._pipes()
        found: Cleaned | Done | None = None
        try:
            plans.write(plan.encode() + "\n")
            plans.flush()
            while not isinstance(found, Done):
                line = answers.readline()
                if not line:
                    raise ChildProcessError("the cleaning process ended")
                found = segment_cleaner.read_answer(line)
                yield found
        except (BrokenPipeError, ChildProcessError) as error:
            self._forget()
            raise ChildProcessError("the cleaning process ended; the next cleaning starts another") from error
        except GeneratorExit:
            if not isinstance(found, Done):
                self._forget()
            raise

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._is_stopped:
            raise ChildProcessError("the cleaner was stopped")
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                # As long as this process can write, no other broker gets the directory, even if this one is killed.
                pass_fds=self._lock.inheritable,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End the process, whatever it is doing: the next start drops an unfinished output."""
        self._is_stopped = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()


class Cleaner:
    """Compacts the logs of one broker, one after the other."""

    def __init__(
        self,
        *,
        logs: Logs,
        directory: DataDirectory,
        config: BrokerConfig,
        files: FileSystem,
        clock: Clock,
        worker: Worker | None = None,
    ) -> None:
        self._logs = logs
        self._directory = directory
        self._files = files
        self._clock = clock
        self._is_enabled = config.bool("log.cleaner.enable")
        self._backoff_ms = config.int("log.cleaner.backoff.ms")
        self._limits = Limits(
            map_bytes_max=config.int("log.cleaner.dedupe.buffer.size"),
            read_bytes=config.int("log.cleaner.io.buffer.size"),
            decompressed_bytes_max=config.int("max.decompressed.message.bytes"),
        )
        if worker is None and isinstance(files, RealFileSystem):
            worker = ProcessWorker(is_syncing=files.is_syncing, lock=directory.lock)
        self._worker: Worker = worker or BesideWorker(files)
        # One thread: a cleaning is a conversation, and there is one at a time.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="logmark-cleaner")
        self._running: asyncio.Task[None] | None = None
        self._uncleanable: set[Partition] = set()
        # The last step of the cleaning that is under way: its name and the time.
        self._last_step: tuple[str, int] | None = None

    @property
    def progress(self) -> Progress | None:
        """What is being compacted now; None if nothing is."""
        if self._last_step is None:
            return None
        return Progress(*self._last_step, pid=getattr(self._worker, "pid", None))

    def start(self, timers: Timers) -> None:
        """Look for dirty logs from now on."""
        if self._is_enabled:
            timers.every(max(1, self._backoff_ms), self._wake)

    async def stop(self) -> None:
        """End the cleaning that is under way; finished outputs stay."""
        running = self._running
        if running is not None:
            running.cancel()
        self._worker.stop()
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _wake(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
            self._running.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the cleaner failed and continues at the next check", exc_info=task.exception())

    async def run(self) -> None:
        """Clean every log that is due."""
        self._wake()
        if self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        # One that the disk refuses is tried again with the next check, and does not keep the others from their turn.
        refused: set[Partition] = set()
        while (found := await self._dirtiest(refused)) is not None:
            if not await self._clean(*found):
                refused.add(found[0])

    async def _dirtiest(self, refused: set[Partition]) -> tuple[Partition, DirtyPart] | None:
        """Return the log that needs cleaning most."""
        now_ms = self._clock.now_ms()
        best: tuple[Partition, DirtyPart] | None = None
        seen = 0
        for topic in self._logs.topics():
            if not topic.settings.is_compacted:
                continue
            for partition in topic.partitions:
                seen += 1
                if not seen % LOGS_BETWEEN_PAUSES:
                    await asyncio.sleep(0)
                if partition.failure is not None or partition in self._uncleanable or partition in refused:
                    continue
                part = partition.dirty_part(now_ms)
                if part is not None and part.must_run(partition.settings.dirty_ratio_min):
                    best = (partition, part) if best is None or part.dirty_ratio > best[1].dirty_ratio else best
        self._uncleanable = {partition for partition in self._uncleanable if partition.failure is None}
        return best

    async def _clean(self, partition: Partition, part: DirtyPart) -> bool:
        """Clean one log; return False if the disk refused that."""
        name = f"{partition.topic}-{partition.index}"
        partition.is_being_cleaned = True
        self._note_step(name)
        try:
            await self._clean_log(partition, part, name)
        except Malformed as error:
            self._uncleanable.add(partition)
            log.error(
                "%s is not compacted any more until a restart, because it cannot be read as a whole: %s. Nothing of it "
                "was changed; `logmark verify` says more.", name, error,
            )  # fmt: skip
        except LogFailed:
            log.warning("%s was closed or failed while it was compacted", name)
        except OSError as error:
            log.warning("%s could not be compacted now and is tried again: %s", name, error)
            return False
        finally:
            partition.is_being_cleaned = False
            self._last_step = None
        return True

    def _note_step(self, name: str) -> None:
        self._last_step = name, self._clock.now_ms()

    async def _clean_log(self, partition: Partition, part: DirtyPart, name: str) -> None:
        loop = asyncio.get_running_loop()
        plan = partition.cleaning_plan(part, now_ms=self._clock.now_ms(), limits=self._limits)
        if partition.cleaned_to is None:
            await loop.run_in_executor(None, self._directory.note_cleaned(partition, part.first_dirty_offset))
        async with aclosing(self._outputs(plan)) as outputs:
            async for found in outputs:
                self._note_step(name)
                if isinstance(found, Done):
                    break
                incoming = await loop.run_in_executor(None, segment_swap.load, partition.folder, found, self._files)
                # Not by a name: a future that fails refers to this frame, and so to itself and the partition.
                await self._take_over(partition, incoming, found)
        assert isinstance(found, Done)
        if partition.failure is None:
            await loop.run_in_executor(None, self._directory.note_cleaned(partition, found.cleaned_to))
        log.info(
            "compacted %s up to offset %d: %d of %d records and %d of %d bytes are left, in %.1f s",
            name, found.cleaned_to, found.records_kept, found.records_read, found.bytes_kept, found.bytes_read,
            found.seconds,
        )  # fmt: skip

    def _take_over(
        self, partition: Partition, incoming: segment_swap.Incoming, cleaned: Cleaned
    ) -> asyncio.Future[None]:
        try:
            return partition.take_over(incoming, now_ms=self._clock.now_ms())
        except LogFailed:
            incoming.file.close()
            segment_swap.drop(partition.folder, cleaned, self._files)
            raise

    async def _outputs(self, plan: Plan) -> AsyncGenerator[Cleaned | Done, None]:
        """Yield the worker's outputs, waiting for them in the cleaner's thread; to be closed by the caller."""
        loop = asyncio.get_running_loop()
        outputs = self._worker.clean(plan)
        try:
            while (found := await loop.run_in_executor(self._thread, next, outputs, None)) is not None:
                yield found
        finally:
            # In the same thread, behind a step that may be under way.
            await loop.run_in_executor(self._thread, outputs.close)
