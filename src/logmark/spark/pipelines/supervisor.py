"""Supervises one pipeline in a run: starts its query, watches it, restarts it, and stops it between batches."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logmark.clock import Clock
from logmark.errors import LogmarkError, UserError
from logmark.spark.checkpoint import committed_batch, is_between_batches, planned_batch, read_position
from logmark.spark.errors import FailureKind, PublicationStarted
from logmark.spark.pipelines.background_task import BackgroundTask
from logmark.spark.pipelines.command_execution import CommandExecution
from logmark.spark.pipelines.declaration import Version
from logmark.spark.pipelines.failed_record import describe_failed_record
from logmark.spark.pipelines.failures import Failure, classify_exception, classify_failure
from logmark.spark.pipelines.final_commit import commit_stopped_query
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.live_query import hold_live_lock, start_version
from logmark.spark.pipelines.query import make_rows, needs_versions
from logmark.spark.pipelines.replay.fence import restore_group
from logmark.spark.pipelines.replay.runner import rebuild_live_version
from logmark.spark.pipelines.replay.state import find_irrevocable_replay
from logmark.spark.pipelines.restart_policy import FailureStreak, RestartPolicy
from logmark.spark.pipelines.settings import find_ineffective_settings
from logmark.spark.pipelines.stateful_operators import keeps_state
from logmark.spark.pipelines.status import BatchMeter, RunState, RunStatus, write_status
from logmark.spark.progress import DropWarnings, QueryBoard, describe_dropped
from logmark.spark.source.offset_maps import format_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Returns what a person may do about an exception of this package in a pipeline; empty if there is nothing to add.
NextStep = Callable[[type[BaseException], Job], str]

_WRITE_EVERY_MS = 1000
# A run that is to end does not try for ever.
ATTEMPTS_MAX = 10
# A batch that takes longer than this is interrupted by a command to stop, and repeated by the next start.
STOP_PATIENCE_MS = 60_000


def no_next_step(exception: type[BaseException], job: Job) -> str:
    """Add nothing to a message."""
    return ""


class Supervisor:
    """One pipeline, from its first start to its end; a loop calls `poll` again and again."""

    def __init__(
        self,
        job: Job,
        spark: "SparkSession",
        *,
        available_now: bool,
        clock: Clock,
        random: Callable[[], float],
        say: Callable[[str], None],
        next_step: NextStep = no_next_step,
        takeover: bool = False,
        board: QueryBoard | None = None,
    ) -> None:
        self.job = job
        self._spark = spark
        self._available_now = available_now
        self._clock = clock
        self._random = random
        self._say = say
        self._next_step = next_step
        self._state = RunState.STARTING
        self._since_ms = clock.now_ms()
        self._live_lock = contextlib.ExitStack()
        self._has_live_lock = False
        self._version: Version | None = None
        self._query: StreamingQuery | None = None
        self._meter = BatchMeter()
        self._board = board or QueryBoard()
        self._drop_warnings = DropWarnings()
        self._restarts = RestartPolicy()
        self._unknown = FailureStreak()
        self._next_try_ms: int | None = None
        self._error: str | None = None
        self._error_ms: int | None = None
        self._written: RunStatus | None = None
        self._has_restored_group = False
        self._task: BackgroundTask | None = None
        self._takeover = takeover
        self._stop_by_ms = 0
        self._commands = CommandExecution(job.home, clock)
        self.last_message = ""

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.job.name

    @property
    def state(self) -> RunState:
        """What the pipeline is doing."""
        return self._state

    @property
    def has_reported(self) -> bool:
        """Whether the query that runs has asked its source at least once."""
        return self._query is not None and self._query.lastProgress is not None

    @property
    def status(self) -> RunStatus:
        """The status of the pipeline now."""
        now_ms = self._clock.now_ms()
        return RunStatus(
            state=self._state,
            pid=os.getpid(),
            version=self._version.number if self._version is not None else self.job.home.record().live,
            since_ms=self._since_ms,
            at_ms=now_ms,
            batch=self._meter.last,
            batches=self._meter.batches,
            records=self._meter.records,
            rate=round(self._meter.rate(now_ms), 1),
            dropped_rows=self._meter.dropped_rows,
            restarts=self._restarts.count,
            error=self._error,
            error_at_ms=self._error_ms,
            next_try_at_ms=self._next_try_ms,
        )

    def poll(self) -> None:
        """Do what is due: carry out a command, start the query, check it, or restart it."""
        self._commands.poll(self)
        if self._state is RunState.STARTING:
            self._start()
        elif self._state is RunState.RUNNING:
            self._check_query()
        elif self._state is RunState.STOPPING:
            self._stop_between_batches()
        elif self._state is RunState.RESTARTING:
            assert self._next_try_ms is not None
            if self._clock.now_ms() >= self._next_try_ms:
                self._start()
        elif self._state is RunState.SUPERSEDED:
            self._check_live_version()
        elif self._task is not None and self._task.is_done:
            task, self._task = self._task, None
            task.finish()
        self.write_status()

    def is_between_batches(self) -> bool:
        """Return whether stopping now loses nothing: every planned batch was committed."""
        if self._query is None or self._version is None or not self._has_query:
            return True
        return is_between_batches(self._version.checkpoint)

    def stop(self) -> None:
        """Stop the query, release the live lock and take no more commands."""
        self._stop_query()
        if self._state is RunState.HALTED:
            self._end(RunState.STOPPED)
        elif not self._state.is_over:
            self._end(RunState.STOPPED)
            self._notify(self._describe_stop())
        self._commands.close(self)
        self.write_status()

    def request_stop(self) -> None:
        """Stop the query after its batch, so that it can be started again by a command."""
        if self._state is RunState.RUNNING:
            self._enter(RunState.STOPPING)
            self._stop_by_ms = self._clock.monotonic_ms() + STOP_PATIENCE_MS
        else:
            self._halt()

    def begin(self, *, job: Job | None = None, takeover: bool = False) -> None:
        """Start the pipeline at the next poll; with `takeover` it takes its group from a query that has it."""
        self.job = job or self.job
        self._takeover = takeover
        self._restarts, self._version, self._next_try_ms = RestartPolicy(), None, None
        self._error, self._error_ms, self._has_restored_group = None, None, False
        self._since_ms = self._clock.now_ms()
        self._enter(RunState.STARTING)

    def _stop_between_batches(self) -> None:
        assert self._query is not None
        if not self._query.isActive:
            self._check_query()
        elif self.is_between_batches() or self._clock.monotonic_ms() >= self._stop_by_ms:
            self._stop_query()
            if self._state is RunState.STOPPING:
                self._halt()

    def _halt(self) -> None:
        # A run that is to end does not wait for another command.
        self._end(RunState.STOPPED if self._available_now else RunState.HALTED)
        self._notify(self._describe_stop())

    @property
    def _has_query(self) -> bool:
        return self._query is not None and self._state in (RunState.RUNNING, RunState.STOPPING)

    def _stop_query(self) -> None:
        if self._query is None or not self._has_query:
            return
        self._query.stop()
        self._read_progress()
        if self._query.exception() is not None:
            self._check_query()
        elif self._version is not None:
            commit_stopped_query(self.job.pipeline, self._version, self.job.brokers)

    def _enter(self, state: RunState) -> None:
        assert self._state.can_become(state), f"{self._state} does not become {state}"
        self._state = state

    def end_without_spark(self) -> None:
        """End the pipeline because Spark's own process has died; whoever started this process has to restart it."""
        if not self._state.is_over:
            self._error_ms = self._clock.now_ms()
            self._fail(
                "Spark itself has ended: its process died or was killed. What was written stays, and the next run "
                "resumes from there; Spark's log says more."
            )
        self._commands.close(self)
        self.write_status()

    def write_status(self) -> None:
        """Write the status file, unless it is younger than a second and nothing has changed."""
        before, now = self._written, self.status
        is_same = before is not None and before == replace(now, at_ms=before.at_ms, rate=before.rate)
        if before is not None and is_same and now.at_ms - before.at_ms < _WRITE_EVERY_MS:
            return
        write_status(self.job.home.status_file, now)
        self._written = now

    def _start(self) -> None:
        job = self.job
        self._next_try_ms = None
        try:
            if not self._has_live_lock:
                self._live_lock.enter_context(hold_live_lock(job.home))
                self._has_live_lock = True
            job.save_description()
            version = job.home.live_version(job.pipeline)
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            if job.home.has_lost_checkpoint() and needs_versions(job.pipeline, version, self._spark, job.brokers):
                self._rebuild(version)
                return
            self._query = start_version(
                job, version, self._spark, available_now=self._available_now, takeover=self._takeover
            )
        except Exception as error:
            if has_spark_died(error, self._spark):
                raise
            self._handle_failure(classify_exception(error, folder=job.folder))
            return
        if self._version is None or self._version.number != version.number:
            self._meter.reset()
            self._notify(f"version {version.number} runs as group {version.group}")
            for name, value in find_ineffective_settings(job.pipeline, version.checkpoint).items():
                self._notify(
                    f"version {version.number} keeps {name}={value}, with which it began; a replay builds a new "
                    "version with the setting of now"
                )
        self._version = version
        self._enter(RunState.RUNNING)

    def _rebuild(self, version: Version) -> None:
        is_stateful = keeps_state(make_rows(self.job.pipeline, version, self._spark, self.job.brokers))
        self._enter(RunState.REBUILDING)
        self._task = BackgroundTask(
            lambda: rebuild_live_version(self.job, self._spark, is_stateful=is_stateful, say=self._say),
            on_result=lambda number: self._start(),
            on_error=lambda error: self._handle_failure(classify_exception(error, folder=self.job.folder)),
        )

    def _find_failed_record(self, failure: Failure) -> None:
        """Search for the record on which the pipeline's code failed, and end the pipeline then."""
        version = self._version
        if version is None:
            self._fail(failure.describe())
            return
        self._enter(RunState.EXAMINING)
        self._task = BackgroundTask(
            lambda: describe_failed_record(
                self.job.pipeline,
                version,
                self._spark,
                self.job.brokers,
                failure=failure.message,
                folder=self.job.folder,
            ),
            on_result=lambda record: self._fail(failure.describe(record)),
            on_error=lambda error: self._fail(failure.describe()),
        )

    def _fail(self, message: str) -> None:
        self._error = message
        self._end(RunState.FAILED)
        self._notify(message)

    def _check_query(self) -> None:
        assert self._query is not None
        is_active = self._query.isActive
        self._read_progress()
        if is_active:
            self._restarts = self._restarts.while_active(self._clock.now_ms())
            return
        failure = self._query.exception()
        if failure is not None:
            self._handle_failure(classify_failure(str(failure), folder=self.job.folder))
        elif self._available_now:
            self._end(RunState.DONE)
            self._notify(
                f"all is read: {self._meter.records:,} records in {_format_batches(self._meter.batches)}"
                + self._describe_dropped()
            )
        else:
            self._end(RunState.STOPPED)
            self._notify(f"somebody stopped its query; {self._describe_progress()}")

    def _read_progress(self) -> None:
        assert self._query is not None
        assert self._version is not None
        last = self._query.lastProgress
        if last is None:
            return
        self._takeover = False  # it has the group now, and may lose it to another query that was told to take it
        known = -1 if self._meter.last is None else self._meter.last.number
        reports = self._query.recentProgress if int(last["batchId"]) > known + 1 else [last]
        if sum(self._add_report(_progress_fields(report)) for report in reports):
            self._has_restored_group = False
            self._restarts = self._restarts.after_batch()
        if dropped := self._drop_warnings.due(self._meter.dropped_rows):
            self._notify(describe_dropped(dropped))

    def _add_report(self, report: dict[str, Any]) -> bool:
        """Count the batch of a report; return whether it is a new one."""
        is_new = self._meter.add(report)
        if is_new:
            self._board.add(self.name, report)
        return is_new

    def _handle_failure(self, failure: Failure) -> None:
        self._query = None
        now_ms = self._clock.now_ms()
        if failure.exception is not None and not failure.remedy:
            failure = replace(failure, remedy=self._next_step(failure.exception, self.job))
        self._error, self._error_ms = failure.describe(), now_ms
        if failure.kind is FailureKind.SUPERSEDED:
            # The replay that takes over waits for the lock.
            self._release_live_lock()
            self._enter(RunState.SUPERSEDED)
            return
        if failure.kind is FailureKind.PERMANENT:
            if failure.is_of_code and self._state is RunState.RUNNING:
                self._find_failed_record(failure)
            else:
                self._fail(failure.describe())
            return
        if self._state is RunState.STOPPING:
            self._halt()
            return
        if failure.kind is FailureKind.UNKNOWN:
            self._unknown = self._unknown.after_failure(self._planned_batch(), now_ms)
            if self._unknown.is_final(now_ms):
                self._fail(self._unknown.describe(failure.message, now_ms))
                return
        self._restarts = self._restarts.after_failure(now_ms)
        if self._available_now and self._restarts.in_a_row > ATTEMPTS_MAX:
            self._fail(f"It failed {ATTEMPTS_MAX + 1} times in a row: {failure.message}")
            return
        pause_s = self._restarts.pause_s(self._random)
        self._next_try_ms = now_ms + round(pause_s * 1000)
        self._enter(RunState.RESTARTING)
        self._notify(f"failed and restarts in {pause_s:.0f} s: {failure.message}")

    def _planned_batch(self) -> int | None:
        return None if self._version is None else planned_batch(self._version.checkpoint)

    def _check_live_version(self) -> None:
        """Run the version that a replay made live; or, if the replay ended without one, run on once."""
        home, version = self.job.home, self._version
        if home.is_replaying():
            return
        record = home.record()
        if version is not None and record.live != version.number:
            self._notify(f"version {record.live} was swapped in")
            self._version, self._error, self._error_ms, self._has_restored_group = None, None, None, False
            if self._reload():
                self._start()
            return
        if not self._has_restored_group:
            # An interrupted replay gives the group back; one that was killed could not.
            self._has_restored_group, self._version = True, None
            self._restore_group()
            self._start()
            return
        message = self._error or ""
        if record.building is not None and find_irrevocable_replay(home) is None:
            unfinished = f"The replay that builds version {record.building} is not finished."
            message = " ".join([message, unfinished, self._next_step(PublicationStarted, self.job)]).rstrip()
        self._fail(message)

    def _reload(self) -> bool:
        """Load the file again, because the new version was built with the code of now; return False if that fails."""
        try:
            self.job = self.job.reload()
        except UserError as error:
            self._handle_failure(classify_exception(error, folder=self.job.folder))
            return False
        return True

    def _restore_group(self) -> None:
        with contextlib.suppress(LogmarkError), self.job.home.replaying(), self.job.connect() as client:
            if restore_group(client, self.job):
                self._notify("a replay was interrupted; the live version runs on")

    def _end(self, state: RunState) -> None:
        self._enter(state)
        self._query = None
        self._board.remove(self.name)
        self._release_live_lock()

    def _release_live_lock(self) -> None:
        self._live_lock.close()
        self._has_live_lock = False

    def _describe_progress(self) -> str:
        """Return the last committed batch and the offsets after it, empty if there is none."""
        number = committed_batch(self._version.checkpoint) if self._version is not None else None
        if self._version is None or number is None:
            return ""
        with contextlib.suppress(UserError, OSError):
            offsets = read_position(self._version.checkpoint, number).next
            return f"batch {number} is done, and the next offsets are {format_offsets(offsets)}"
        return f"batch {number} is done"

    def _describe_stop(self) -> str:
        progress = self._describe_progress()
        said = f"stopped; {progress}" if progress else "stopped before its first batch was done"
        return said + self._describe_dropped()

    def _describe_dropped(self) -> str:
        """Return how many late rows this run dropped, empty if none."""
        return f"; {describe_dropped(self._meter.dropped_rows)}" if self._meter.dropped_rows else ""

    def _notify(self, message: str) -> None:
        self.last_message = f"{self.name}: {message}"
        self._say(self.last_message)


def has_spark_died(error: Exception, spark: "SparkSession") -> bool:
    """Return whether an exception came because Spark's Java process is gone."""
    # Only here: pipelines are declared and described without Spark.
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    if isinstance(error, Py4JJavaError) or not isinstance(error, (Py4JError, ConnectionError)):
        return False
    try:
        # The exception alone does not tell a dead process from a call that Java does not know.
        spark.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    except (Py4JError, ConnectionError):
        return True
    return False


def _progress_fields(progress: Any) -> dict[str, Any]:
    return progress if isinstance(progress, dict) else dict(json.loads(progress.json))


def _format_batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{number:,} batches"
