"""One pipeline in a run: started, looked at, started again, and stopped between batches."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logmark.clock import Clock
from logmark.errors import LogmarkError, UserError
from logmark.spark.pipelines.background_task import Aside
from logmark.spark.pipelines.failures import Failure, Kind, Restarts, judge, judge_raised
from logmark.spark.pipelines.final_commit import last_number, settle
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.pipeline import Pipeline, Version, shown_sink, shown_topics
from logmark.spark.pipelines.pipeline_files import load_again
from logmark.spark.pipelines.query import Brokers, make_rows, needs_versions, start_query
from logmark.spark.pipelines.replay.state import check_may_run, taking_over
from logmark.spark.pipelines.stateful_operators import keeps_state
from logmark.spark.pipelines.status import Meter, State, Status, write_status
from logmark.spark.tables.table import read_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WRITE_EVERY_MS = 1000
# A run that is to end does not try for ever.
ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pipeline to run: its cluster, where it is remembered, and where it was declared."""

    pipeline: Pipeline
    brokers: Brokers
    home: Home
    file: str | None = None
    context: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str | None:
        """Where the pipeline's file lies, and what it imports from beside it."""
        return None if self.file is None else str(Path(self.file).absolute().parent)


class Worker:
    """One pipeline, from its first start to its end; `look` is called again and again by whoever runs it."""

    def __init__(
        self,
        job: Job,
        spark: "SparkSession",
        *,
        available_now: bool,
        clock: Clock,
        random: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.job = job
        self._spark = spark
        self._available_now = available_now
        self._clock = clock
        self._random = random
        self._say = say
        self._state = State.STARTING
        self._since_ms = clock.now_ms()
        self._held = contextlib.ExitStack()
        self._is_holding = False
        self._version: Version | None = None
        self._query: StreamingQuery | None = None
        self._meter = Meter()
        self._restarts = Restarts()
        self._next_try_ms: int | None = None
        self._error: str | None = None
        self._error_ms: int | None = None
        self._written: Status | None = None
        self._is_back = False
        self._aside: Aside | None = None

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.job.pipeline.name

    @property
    def status(self) -> Status:
        """How the pipeline is doing now."""
        now_ms = self._clock.now_ms()
        return Status(
            state=self._state,
            pid=os.getpid(),
            version=self._version.number if self._version is not None else self.job.home.record().live,
            since_ms=self._since_ms,
            at_ms=now_ms,
            batch=self._meter.last,
            batches=self._meter.batches,
            records=self._meter.records,
            rate=round(self._meter.rate(now_ms), 1),
            restarts=self._restarts.count,
            error=self._error,
            error_at_ms=self._error_ms,
            next_try_at_ms=self._next_try_ms,
        )

    def look(self) -> None:
        """Does what is due: starts, looks, waits."""
        if self._state is State.STARTING:
            self._start()
        elif self._state is State.RUNNING:
            self._look_at_query()
        elif self._state is State.RESTARTING:
            assert self._next_try_ms is not None
            if self._clock.now_ms() >= self._next_try_ms:
                self._start()
        elif self._state is State.MAKING_WAY:
            self._look_for_a_new_version()
        elif self._aside is not None and self._aside.is_done:
            aside, self._aside = self._aside, None
            aside.conclude()
        self.write()

    def is_between_batches(self) -> bool:
        """Whether nothing is lost by stopping now: the last batch that was planned is finished."""
        if self._query is None or self._version is None or self._state is not State.RUNNING:
            return True
        checkpoint = self._version.checkpoint
        return last_number(checkpoint / "offsets") == last_number(checkpoint / "commits")

    def stop(self) -> None:
        """The query is stopped, and the pipeline is free for somebody else to run."""
        if self._query is not None and self._state is State.RUNNING:
            self._query.stop()
            self._note_progress()
            if self._query.exception() is not None:
                self._look_at_query()
            elif self._version is not None:
                settle(self.job.pipeline, self._version, self.job.brokers)
        if not self._state.is_over:
            self._end(State.STOPPED)
            stands = self._stands()
            self._tell(f"stopped; {stands}" if stands else "stopped before its first batch was done")
        self.write()

    def lose_spark(self) -> None:
        """The pipeline ends because Spark itself has; whoever started this process has to start it again."""
        if not self._state.is_over:
            self._error_ms = self._clock.now_ms()
            self._give_up(
                "Spark itself has ended: its process died or was killed. What was written stays, and the next run goes "
                "on from there; its log says more."
            )
        self.write()

    def write(self) -> None:
        """The status file is no older than a second, a batch or a change."""
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
            if not self._is_holding:
                self._held.enter_context(held(job.home))
                self._is_holding = True
            job.home.change(lambda record: replace(record, **described(job)))
            version = job.home.live_version(job.pipeline)
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            if job.home.has_lost_checkpoint() and needs_versions(job.pipeline, version, self._spark, job.brokers):
                self._rebuild(version)
                return
            self._query = begin(job, version, self._spark, available_now=self._available_now)
        except Exception as error:
            if is_spark_gone(error, self._spark):
                raise
            self._failed(judge_raised(error, folder=self.job.folder))
            return
        if self._version is None or self._version.number != version.number:
            self._meter.begin()
            self._tell(f"version {version.number} runs as group {version.group}")
        self._version = version
        self._state = State.RUNNING

    def _rebuild(self, version: Version) -> None:
        from logmark.spark.pipelines.replay.runner import rebuild

        is_stateful = keeps_state(make_rows(self.job.pipeline, version, self._spark, self.job.brokers))
        self._state = State.REBUILDING
        self._aside = Aside(
            lambda: rebuild(self.job, self._spark, is_stateful=is_stateful, say=self._say),
            then=lambda number: self._start(),
            otherwise=lambda error: self._failed(judge_raised(error, folder=self.job.folder)),
        )

    def _examine(self, failure: Failure) -> None:
        """The record on which the pipeline's code has failed is looked for, and then the pipeline ends."""
        from logmark.spark.pipelines.failed_record import name_record

        version = self._version
        if version is None:
            self._give_up(failure.told())
            return
        self._state = State.EXAMINING
        self._aside = Aside(
            lambda: name_record(
                self.job.pipeline,
                version,
                self._spark,
                self.job.brokers,
                failure=failure.sentence,
                folder=self.job.folder,
            ),
            then=lambda record: self._give_up(failure.told(record)),
            otherwise=lambda error: self._give_up(failure.told()),
        )

    def _give_up(self, sentence: str) -> None:
        self._error = sentence
        self._end(State.FAILED)
        self._tell(sentence)

    def _look_at_query(self) -> None:
        assert self._query is not None
        is_active = self._query.isActive
        self._note_progress()
        if is_active:
            self._restarts = self._restarts.working(self._clock.now_ms())
            return
        failure = self._query.exception()
        if failure is not None:
            self._failed(judge(str(failure), folder=self.job.folder))
        elif self._available_now:
            self._end(State.DONE)
            self._tell(f"all is read: {self._meter.records:,} records in {_batches(self._meter.batches)}")
        else:
            self._end(State.STOPPED)
            self._tell(f"somebody stopped its query; {self._stands()}")

    def _note_progress(self) -> None:
        assert self._query is not None
        assert self._version is not None
        last = self._query.lastProgress
        if last is None:
            return
        known = -1 if self._meter.last is None else self._meter.last.number
        reports = self._query.recentProgress if int(last["batchId"]) > known + 1 else [last]
        if sum(self._meter.note(_fields(report)) for report in reports):
            self._is_back = False
            self._restarts = self._restarts.after_batch()

    def _failed(self, failure: Failure) -> None:
        self._query = None
        now_ms = self._clock.now_ms()
        self._error, self._error_ms = failure.told(), now_ms
        if failure.kind is Kind.SUPERSEDED:
            # Whoever takes the pipeline's place waits for it to be free.
            self._let_go()
            self._state = State.MAKING_WAY
            return
        if failure.kind is Kind.FINAL:
            if failure.is_of_code and self._state is State.RUNNING:
                self._examine(failure)
            else:
                self._give_up(failure.told())
            return
        self._restarts = self._restarts.after_failure(now_ms)
        if self._available_now and self._restarts.in_a_row > ATTEMPTS_MAX:
            self._give_up(f"It failed {ATTEMPTS_MAX + 1} times in a row: {failure.sentence}")
            return
        pause_s = self._restarts.pause_s(self._random)
        self._next_try_ms = now_ms + round(pause_s * 1000)
        self._state = State.RESTARTING
        self._tell(f"failed and starts again in {pause_s:.0f} s: {failure.sentence}")

    def _look_for_a_new_version(self) -> None:
        home, version = self.job.home, self._version
        if home.is_replaying():
            return
        record = home.record()
        if version is not None and record.live != version.number:
            self._tell(f"version {record.live} was swapped in")
            self._version, self._error, self._error_ms, self._is_back = None, None, None, False
            if self._load_again():
                self._start()
            return
        if not self._is_back:
            # A replay that was broken off gives the group back; one that was killed could not.
            self._is_back, self._version = True, None
            self._give_back()
            self._start()
            return
        unfinished = (
            f" Version {record.building} is being built and not finished: `logmark pipelines replay {self.name}` goes "
            "on with it."
            if record.building is not None and taking_over(home) is None
            else ""
        )
        self._give_up(f"{self._error}{unfinished}")

    def _load_again(self) -> bool:
        """The pipeline is what its file says now: a version is built by the code of that time."""
        try:
            self.job = reloaded(self.job)
        except UserError as error:
            self._failed(judge_raised(error, folder=self.job.folder))
            return False
        return True

    def _give_back(self) -> None:
        from logmark.spark.pipelines.replay.build import connect
        from logmark.spark.pipelines.replay.fence import give_back

        with contextlib.suppress(LogmarkError), self.job.home.replaying(), connect(self.job.brokers) as client:
            if give_back(client, self.job):
                self._tell("a replay was broken off; the version that was live runs on")

    def _end(self, state: State) -> None:
        self._state = state
        self._query = None
        self._let_go()

    def _let_go(self) -> None:
        self._held.close()
        self._is_holding = False

    def _stands(self) -> str:
        """Where the pipeline stands, by what it has finished."""
        number = last_number(self._version.checkpoint / "commits") if self._version is not None else None
        if self._version is None or number is None:
            return ""
        with contextlib.suppress(UserError, OSError):
            offsets = read_position(self._version.checkpoint, number).next
            shown = ", ".join(f"{place}: {offset}" for place, offset in sorted(offsets.items()))
            return f"batch {number} is done, and the next offsets are {shown}"
        return f"batch {number} is done"

    def _tell(self, sentence: str) -> None:
        self._say(f"{self.name}: {sentence}")


def is_spark_gone(error: Exception, spark: "SparkSession") -> bool:
    """Whether an exception came because there is no Java process behind Spark any more."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    if isinstance(error, Py4JJavaError) or not isinstance(error, (Py4JError, ConnectionError)):
        return False
    try:
        # What it raised does not tell a process that is gone from a call that Java does not know.
        spark.sparkContext._jvm.java.lang.System.nanoTime()  # type: ignore[union-attr]
    except (Py4JError, ConnectionError):
        return True
    return False


def reloaded(job: Job) -> Job:
    """The job with the pipeline as its file declares it now."""
    return job if job.file is None else replace(job, pipeline=load_again(job.file, job.pipeline.name))


def described(job: Job) -> dict[str, Any]:
    """What the record says of a pipeline."""
    pipeline = job.pipeline
    return {
        "file": job.file,
        "bootstrap_servers": job.brokers.bootstrap_servers,
        "context": job.context,
        "group": pipeline.group,
        "topics": shown_topics(pipeline),
        "sink": shown_sink(pipeline.sink),
        "dead_letters": pipeline.dead_letters,
    }


def begin(job: Job, version: Version, spark: "SparkSession", *, available_now: bool) -> "StreamingQuery":
    """A running query of the version, of which is remembered that it has begun.

    From the start on: a driver may die in its first batch, and its checkpoint be lost, when rows are written already.
    """
    # Spark repeats a batch that was planned before it asks the source, which would know whose the group is.
    check_may_run(job.home)
    query = start_query(job.pipeline, version, spark, job.brokers, available_now=available_now, options=job.options)
    try:
        job.home.change(lambda record: replace(record, begun=version.number))
    except BaseException:
        query.stop()
        raise
    return query


_started: "dict[Path, tuple[StreamingQuery, threading.Thread]]" = {}


@contextlib.contextmanager
def held(home: Home) -> Any:
    """Holds the right to run the live version; a query of this process that has just been stopped makes way."""
    query, thread = _started.get(home.folder, (None, None))
    if query is not None and thread is not None and not query.isActive:
        thread.join()
    with home.live():
        yield


def run_live(job: Job, spark: "SparkSession") -> None:
    """All there is now is read by the live version, and its place is free again; raises what ended the query."""
    query = start_live(job, spark, available_now=True)
    try:
        query.awaitTermination()
    finally:
        _started[job.home.folder][1].join()


def start_live(job: Job, spark: "SparkSession", *, available_now: bool) -> "StreamingQuery":
    """A running query of the live version, which holds the right to run it until it ends."""
    stack = contextlib.ExitStack()
    stack.enter_context(held(job.home))
    try:
        job.home.change(lambda record: replace(record, **described(job)))
        version = job.home.live_version(job.pipeline)
        if job.home.has_lost_checkpoint() and needs_versions(job.pipeline, version, spark, job.brokers):
            raise UserError(
                f"The checkpoint of {job.pipeline.name} is gone ({version.checkpoint}), and with it what was known of "
                "the records before. Nothing was read or written. `logmark pipelines run` builds it again."
            )
        query = begin(job, version, spark, available_now=available_now)
    except BaseException:
        stack.close()
        raise

    def wait() -> None:
        with stack, contextlib.suppress(Exception):
            query.awaitTermination()

    thread = threading.Thread(target=wait, name=f"pipeline {job.pipeline.name}", daemon=True)
    _started[job.home.folder] = query, thread
    thread.start()
    return query


def _fields(progress: Any) -> dict[str, Any]:
    return progress if isinstance(progress, dict) else dict(json.loads(progress.json))


def _batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{number:,} batches"
