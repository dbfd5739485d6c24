"""The broker: opens the data directory, listens, serves, stops; everything it owns hangs here."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logmark.broker.cleaner import Cleaner
from logmark.broker.config import BrokerConfig
from logmark.broker.connection import Connection
from logmark.broker.connection_limit import ConnectionLimit, HealthReserve, read_overrides
from logmark.broker.disk_probe import DiskProbe
from logmark.broker.dispatch import Dispatcher
from logmark.broker.event_limit import EventLimit
from logmark.broker.event_loop_turns import ReadTurns
from logmark.broker.faults import Faults
from logmark.broker.fetch_sessions import FetchSessions
from logmark.broker.groups import Groups
from logmark.broker.health import RecentFailures
from logmark.broker.liveness import Liveness
from logmark.broker.logs import Logs
from logmark.broker.loop_watchdog import SENDING, LoopWatchdog
from logmark.broker.memory_budget import MemoryBudget, default_bytes_max
from logmark.broker.outbox import CHUNK_BYTES, limit_unsent_bytes
from logmark.broker.producer_limit import PRODUCER_BYTES, ProducerLimit
from logmark.broker.recovery import recover
from logmark.broker.timers import Timers
from logmark.clock import Clock, SystemClock
from logmark.disk.descriptors import connections_max, descriptor_limit, files_max
from logmark.disk.file_system import FileSystem, RealFileSystem
from logmark.errors import ListenFailed, LogFailed
from logmark.log.directory import DataDirectory, unusable
from logmark.log.flusher import FlushedLog
from logmark.log.group_commit import Durability, GroupCommit
from logmark.log.recovery_preview import has_wal
from logmark.log.wal.log import WalLimits

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
# How long records stay in memory for a client that takes nothing.
KEPT_SECONDS_MAX = 5.0
CHUNK_BYTES_MIN = 16 * 1024
# What clients that do not take their responses may keep on the disk of segments that are deleted, and keep open.
DELETED_BYTES_MAX = 1 << 30
HELD_FILES_MAX = 128
# How soon a log comes back after there is space again on a disk that was full.
RECOVERY_INTERVAL_MS = 1000
# How soon a broker ends that can do nothing useful any more.
LIVENESS_INTERVAL_MS = 1000
# What producers may take of the memory of clients, and how often they are counted.
PRODUCERS_SHARE = 4
PRODUCERS_INTERVAL_MS = 3000
# Fetch sessions take at most this share of the memory of clients.
FETCH_SESSIONS_SHARE = 8
# How long a record may be in the write-ahead log only: what a recovery has to write again is bounded by it.
FLUSH_INTERVAL_MS = 30_000
# How exactly file.delete.delay.ms is kept.
REMOVAL_INTERVAL_MS = 1000


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, kw_only=True)
class Listener:
    """An address to listen on, and the one that its clients are told to connect to."""

    host: str
    port: int
    advertised: Address
    is_optional: bool = False

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Broker:
    """One node. Start it, use it, stop it."""

    def __init__(
        self,
        *,
        data_dir: str,
        config: BrokerConfig | None = None,
        listeners: Sequence[Listener] = (),
        durability: Durability = "sync",
        files: FileSystem | None = None,
        clock: Clock | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self.config = config or BrokerConfig()
        self.clock: Clock = clock or SystemClock()
        self.watchdog = watchdog or LoopWatchdog(clock=self.clock)
        # The log events of connections that the broker refused or closed.
        self.ended_connections = EventLimit(self.watchdog.now)
        self.request_bytes_max = self.config.int("socket.request.max.bytes")
        self.fetch_bytes_max = self.config.int("fetch.max.bytes")
        self.durability = durability
        self.listeners = list(listeners) or [
            Listener(host="127.0.0.1", port=0, advertised=Address("127.0.0.1", 0)),
        ]
        self.connections: set[Connection] = set()
        self.faults = Faults()
        self.memory_max = self.config.int("client.memory.max.bytes") or default_bytes_max()
        self.budget = MemoryBudget(self.memory_max)
        # The connections whose clients do not take their responses, the longest first.
        self.blocked: dict[Connection, None] = {}
        self._responses_bytes = 0
        self.connection_limit = ConnectionLimit(
            total_max=self.config.int("max.connections"),
            per_address_max=self.config.int("max.connections.per.ip"),
            overrides=read_overrides(self.config.text("max.connections.per.ip.overrides")),
        )
        self.health_reserve = HealthReserve()
        self.fetch_sessions = FetchSessions(
            self.config.int("max.incremental.fetch.session.cache.slots"),
            bytes_max=self.memory_max // FETCH_SESSIONS_SHARE,
            hold=self.budget.hold,
        )
        self.data_dir = os.path.abspath(data_dir)
        self.disk_probe = DiskProbe(self.data_dir)
        self.started_ms = 0
        self.recent_failures = RecentFailures()
        # Called once when the broker can do nothing useful any more; who runs it ends it.
        self.on_useless: Callable[[], None] = lambda: None
        self._files = files or RealFileSystem(sync=durability == "sync")
        # A recovery from the write-ahead log must sync, whatever the mode that follows it.
        self._syncing_files = files or RealFileSystem()
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        self._turns: Iterator[None] = iter(())
        self._recovering: asyncio.Task[None] | None = None
        self._sending: list[Connection] = []
        # The bytes of responses that wait for the end of this turn of the event loop.
        self.unsent_bytes = 0
        self.dispatcher = Dispatcher(self)
        self.watchdog.api_name = self.dispatcher.name_of

    async def start(self) -> None:
        """Open the logs and listen; when this returns, clients are served."""
        loop = asyncio.get_running_loop()
        self.loop = self.watchdog.watch_loop(loop)
        self.read_turns = ReadTurns(self.loop)
        self._call_soon = loop.call_soon
        self.recent_failures.start()
        try:
            await self._start()
        except BaseException:
            self._stop_watching()
            raise
        self.started_ms = self.clock.now_ms()

    def _stop_watching(self) -> None:
        self.watchdog.stop()
        self.recent_failures.stop()

    async def _start(self) -> None:
        raise_descriptor_limit()
        # The ports first: when one is taken, no directory has been made for nothing.
        for listener in list(self.listeners):
            await self._bind(listener)
        self._keep_descriptors_for_logs()
        self._committer = GroupCommit(self.loop, durability=self.durability)
        try:
            self._open()
            for server in self._servers:
                await server.start_serving()
        except BaseException as error:
            for server in self._servers:
                server.close()
            self._committer.close()
            if isinstance(error, OSError):
                raise unusable(self.data_dir, error) from error
            raise
        every = self.timers.every
        every(
            self.config.int("log.retention.check.interval.ms"),
            self._look_after,
            first_ms=self.config.int("log.initial.task.delay.ms"),
        )
        every(self.config.int("log.flush.offset.checkpoint.interval.ms"), self._checkpoint_now_and_then)
        every(RECOVERY_INTERVAL_MS, self._recover_logs)
        every(FLUSH_INTERVAL_MS, self._committer.flusher.flush_all)
        every(REMOVAL_INTERVAL_MS, self._remove_files)
        every(LIVENESS_INTERVAL_MS, self._check_liveness)
        limit = ProducerLimit(
            self.logs, self.budget, self.clock, count_max=self.memory_max // PRODUCERS_SHARE // PRODUCER_BYTES
        )
        every(PRODUCERS_INTERVAL_MS, limit.check)
        self.cleaner.start(self.timers)
        self._sweep_for_ever()

    def _open(self) -> None:
        if self.durability == "os" and has_wal(self.data_dir, self._files):
            done = recover(
                self.data_dir, files=self._syncing_files, clock=self.clock, config=self.config, loop=self.loop
            )
            log.info("recovered %d records from the write-ahead log and synced them", done.records)
        self._directory = DataDirectory.open(
            self.data_dir,
            files=self._files,
            committer=self._committer,
            clock=self.clock,
            wal_limits=WalLimits(bytes_max=self.config.int("wal.max.bytes")),
        )
        try:
            self.node_id = self._directory.node_id
            self.cluster_id = self._directory.cluster_id
            self.timers = Timers(self.loop, self.clock, run=self.watchdog.run)
            self.logs = Logs(self._directory, self.config, self.clock)
            self.logs.open()
            self.cleaner = Cleaner(
                logs=self.logs, directory=self._directory, config=self.config, files=self._files, clock=self.clock
            )
            self.liveness = Liveness(data_dir=self.data_dir, logs=self.logs, committer=self._committer)
            self.groups = Groups(self)
            self.groups.start()
        except BaseException:
            self._directory.close()
            raise

    def send_soon(self, connection: Connection) -> None:
        """Let a connection send when everything that has come in has been looked at."""
        if not self._sending:
            # Measured by itself: every request makes this call.
            self._call_soon(self.send_now)
        self._sending.append(connection)

    def send_now(self) -> None:
        """Let the connections send that wait for the end of the turn."""
        if self.unsent_bytes:
            # Records may have to be read from their files.
            self.unsent_bytes = 0
            self.watchdog.measure(SENDING, self.send_now)
            return
        sending, self._sending = self._sending, []
        for connection in sending:
            connection.send()

    @property
    def write_failure(self) -> LogFailed | None:
        """Why no log takes records any more until a restart; None while they do."""
        return self._committer.failure

    @property
    def has_wal(self) -> bool:
        """Whether there is a write-ahead log: it comes with the first record of a run."""
        return self._committer.has_wal

    @property
    def chunk_bytes(self) -> int:
        """How much of a response a connection hands to its socket at once: less if many clients are slow."""
        return max(CHUNK_BYTES_MIN, min(CHUNK_BYTES, self.memory_max // 8 // (len(self.blocked) + 1)))

    @property
    def room_for_responses(self) -> int:
        """How many more bytes of records may stay in memory until clients take them; others are read again then."""
        return self.memory_max // 8 - self._responses_bytes

    def hold_responses(self, size_bytes: int) -> None:
        """Count what responses that wait take more than before, or less."""
        self._responses_bytes += size_bytes
        self.budget.hold(size_bytes)

    async def checkpoint(self) -> None:
        """Write every log's start offset and recovery point; return when they are on disk."""
        await self.loop.run_in_executor(None, self.logs.checkpoint())

    def _checkpoint_now_and_then(self) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._checkpointing = None
            if not task.cancelled() and task.exception() is not None:
                _log_failure("the offset checkpoints could not be written", task.exception())

        if self.liveness.is_directory_gone():
            # Else the directory that has its path now would get our checkpoints.
            return
        self._checkpointing = self.loop.create_task(self.checkpoint())
        self._checkpointing.add_done_callback(done)

    def _remove_files(self) -> None:
        """Remove files that were deleted long enough ago, in a thread: large files take a while."""
        removal = self.logs.remove_files()
        if removal is not None:
            self.loop.run_in_executor(None, removal).add_done_callback(_tell_of_failed_removal)

    def _recover_logs(self) -> None:
        """Let the logs that the disk has stopped, or a full disk holds up, try again, and unfinished deletions."""
        is_needed = self._committer.flusher.troubled or self.logs.has_unfinished_deletions
        if is_needed and self._recovering is None:
            self._recovering = self.loop.create_task(self._recover_each(list(self._committer.flusher.troubled)))

    async def _recover_each(self, troubled: list[FlushedLog]) -> None:
        try:
            for each in troubled:
                try:
                    await each.recover()
                except Exception:
                    log.exception("a log could not be recovered")
            if self.logs.has_unfinished_deletions:
                try:
                    await self.logs.retry_deletions()
                except OSError as error:
                    log.error("deleted topics could not be struck out of the catalogue: %s", error)
        finally:
            self._recovering = None

    def _check_liveness(self) -> None:
        was_useful = not self.liveness.is_over
        if not self.liveness.check() and was_useful:
            self.on_useless()

    def _look_after(self) -> None:
        self._turns = self.logs.look_after_in_turns()
        self._take_a_turn()

    def _take_a_turn(self) -> None:
        for _ in self._turns:
            self.loop.call_soon(self._take_a_turn)
            return

    def _keep_descriptors_for_logs(self) -> None:
        """Refuse connections for which the logs and the broker itself would have to give up descriptors."""
        wanted, possible = self.config.int("max.connections"), connections_max()
        self.connection_limit.total_max = min(wanted, possible)
        if possible < wanted:
            # Who did not ask for that many need not be warned.
            level = logging.WARNING if self.config.is_given("max.connections") else logging.INFO
            log.log(
                level,
                "max.connections is %d, but the process may have %d file descriptors: it takes %d connections and "
                "keeps the rest for its logs. Raise the limit (ulimit -n) for more.",
                wanted, descriptor_limit(), possible,
            )  # fmt: skip

    async def _bind(self, listener: Listener) -> None:
        try:
            server = await self.loop.create_server(
                lambda: Connection(self, listener),
                listener.host,
                listener.port,
                backlog=1024,
                reuse_address=True,
                start_serving=False,
            )
        except OSError as error:
            if listener.is_optional:
                # A machine without IPv6 is served on IPv4 alone.
                self.listeners.remove(listener)
                return
            for server in self._servers:
                server.close()
            raise ListenFailed(
                f"Cannot listen on {Address(listener.host, listener.port)}: {error.strerror or error}. "
                "Nothing was started. Stop what holds the port, or choose another address."
            ) from None
        for each in server.sockets:
            limit_unsent_bytes(each)
        listener.port = server.sockets[0].getsockname()[1]
        if not listener.advertised.port:
            listener.advertised = Address(listener.advertised.host, listener.port)
        self._servers.append(server)

    async def stop(self) -> bool:
        """Stop listening, close the connections and every log; return whether the directory was closed cleanly."""
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.groups.close()
        self.timers.close()
        self._turns = iter(())
        await self.cleaner.stop()
        for connection in list(self.connections):
            connection.abort()
        # Lets the connections end before what they use does.
        await asyncio.sleep(0)
        self.dispatcher.close()
        # What a change of topics has written must be applied before the directory is given to others.
        await self.logs.close()
        # Lets the requests end that were abandoned.
        await asyncio.sleep(0)
        if self._recovering is not None:
            # A thread writes files of a log, which must not go on when the directory is given to others.
            await self._recovering
        # Nothing is written to a directory that took the place of ours.
        is_clean = self._directory.close(clean=not self.liveness.is_directory_gone())
        self._committer.close()
        self._stop_watching()
        return is_clean

    def advance(self, *, seconds: float) -> None:
        """Move this broker's clock; what comes due happens now."""
        advance = getattr(self.clock, "advance", None)
        assert advance is not None, "this broker's clock cannot be moved"
        advance(seconds=seconds)
        self.timers.wake()

    @property
    def bootstrap_servers(self) -> str:
        """What a client puts into bootstrap.servers."""
        return str(self.listeners[0].advertised)

    def sweep(self, now: float) -> None:
        """Close idle connections, and those that began a request and stopped sending it."""
        idle_s = self.config.int("connections.max.idle.ms") / 1000
        for connection in list(self.connections):
            if connection.frame_began_at is not None and now > connection.frame_began_at + connection.frame_seconds_max:
                connection.refuse("half a request came and not the rest")
            elif self.budget.has_waiting and connection.is_slow_sender(now):
                connection.refuse("its request came more slowly than 64 KB a second while others waited for memory")
            elif now - connection.active_at > idle_s and not connection.is_busy:
                connection.abort()
        for connection in list(self.blocked):
            if self.budget.has_waiting or now - connection.active_at > KEPT_SECONDS_MAX:
                connection.drop_bytes()
        self._close_readers_without_memory(now)
        self._close_slowest_readers()

    def _close_readers_without_memory(self, now: float) -> None:
        """Close the clients that have not taken their responses for longest, while these take all of the memory."""
        excess = self.budget.excess
        if excess <= 0:
            return
        # Also who takes nothing because it waits for an answer before: it may have asked for records that never come.
        others = self.connections - self.blocked.keys()
        for connection in [*sorted(self.blocked, key=_activity), *sorted(others, key=_activity)]:
            if excess <= 0:
                return
            taken = connection.response_bytes
            if not taken or connection.is_fast_reader(now):
                continue
            excess -= taken
            connection.refuse("it does not take its responses, which take the memory that others wait for")

    def _close_slowest_readers(self) -> None:
        """Close the clients that have not taken their responses for longest, if they keep too many files open."""
        held = {connection: set(connection.held_files()) for connection in self.blocked}
        readers = Counter(file for files in held.values() for file in files)
        sizes = {file: file.size_if_deleted() for file in readers}
        for connection, files in held.items():
            if sum(sizes.values()) <= DELETED_BYTES_MAX and len(sizes) <= min(HELD_FILES_MAX, files_max() // 2):
                return
            if not files:
                continue
            connection.refuse("it does not take its records, and too many files are kept open for such clients")
            readers.subtract(files)
            for file in files:
                if not readers[file]:
                    del sizes[file]

    def _sweep_for_ever(self) -> None:
        self.sweep(self.loop.time())
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep_for_ever)


def _tell_of_failed_removal(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and done.exception() is not None:
        _log_failure("deleted files could not be removed", done.exception())


def _activity(connection: Connection) -> float:
    return connection.active_at


def _log_failure(event: str, error: BaseException | None) -> None:
    """Log what failed in the background. What a disk refuses needs no traceback."""
    if isinstance(error, OSError):
        log.error("%s: %s", event, error)
    else:
        log.error("%s", event, exc_info=error)


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS names a hard limit that it does not grant.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
