"""The query of the live version: one process at a time runs it, under the live lock of the pipeline's home."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark.errors import CheckpointLost, find_message
from logmark.spark.pipelines.declaration import Version
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import needs_versions, start_query
from logmark.spark.pipelines.replay.state import check_live_may_run
from logmark.spark.pipelines.status import RunState, RunStatus, write_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# The queries of this process that hold the live lock of a home until they end.
_started: "dict[Path, tuple[StreamingQuery, threading.Thread]]" = {}


@contextlib.contextmanager
def hold_live_lock(home: Home) -> Iterator[None]:
    """Hold the live lock; wait for a query of this process that was just stopped to release it.

    Raises UserError if another process holds it.
    """
    query, thread = _started.get(home.folder, (None, None))
    if query is not None and thread is not None and not query.isActive:
        thread.join()
    with home.live():
        yield


def start_version(
    job: Job, version: Version, spark: "SparkSession", *, available_now: bool, takeover: bool = False
) -> "StreamingQuery":
    """Start the query of the live version and record that it was started; the caller holds the live lock.

    With `takeover` it takes the group from a query that has it.

    It is recorded at the start: a driver may die in its first batch, and its checkpoint may be lost, when rows are
    written already.
    """
    # Spark repeats a planned batch before it asks the source, which would know who owns the group.
    check_live_may_run(job.home)
    options = job.query_options() | ({"takeover": "true"} if takeover else {})
    query = start_query(job.pipeline, version, spark, job.brokers, available_now=available_now, options=options)
    try:
        job.home.change(lambda record: replace(record, begun=version.number))
    except BaseException:
        query.stop()
        raise
    return query


def run_live_query(job: Job, spark: "SparkSession") -> None:
    """Read all there is now with the live version, and release the live lock; raises what ended the query."""
    query = start_live_query(job, spark, available_now=True)
    try:
        query.awaitTermination()
    finally:
        _started[job.home.folder][1].join()


def start_live_query(job: Job, spark: "SparkSession", *, available_now: bool) -> "StreamingQuery":
    """Start the query of the live version, which holds the live lock until it ends."""
    stack = contextlib.ExitStack()
    stack.enter_context(hold_live_lock(job.home))
    try:
        job.save_description()
        version = job.home.live_version(job.pipeline)
        if job.home.has_lost_checkpoint() and needs_versions(job.pipeline, version, spark, job.brokers):
            raise CheckpointLost(
                f"The checkpoint of {job.name} is missing ({version.checkpoint}), and with it the state or the record "
                "of what was sent. Nothing was read or written. `logmark pipelines run` rebuilds it."
            )
        query = start_version(job, version, spark, available_now=available_now)
    except BaseException:
        stack.close()
        raise

    begun_ms = time.time_ns() // 1_000_000
    _write_status(job, version, RunState.RUNNING, begun_ms)

    def wait() -> None:
        with stack:
            error: str | None = None
            try:
                query.awaitTermination()
            except Exception as failure:  # noqa: BLE001 - Spark's, and those of its connection
                error = find_message(str(failure)) or str(failure).partition("\n")[0]
            over = RunState.FAILED if error else RunState.DONE if available_now else RunState.STOPPED
            _write_status(job, version, over, begun_ms, error)

    thread = threading.Thread(target=wait, name=f"pipeline {job.name}", daemon=True)
    _started[job.home.folder] = query, thread
    thread.start()
    return query


def _write_status(job: Job, version: Version, state: RunState, begun_ms: int, error: str | None = None) -> None:
    """Write what commands show of a query that no run supervises; its batches are not counted."""
    now_ms = time.time_ns() // 1_000_000
    status = RunStatus(
        state=state,
        pid=os.getpid(),
        version=version.number,
        since_ms=begun_ms,
        at_ms=now_ms,
        error=error,
        error_at_ms=now_ms if error else None,
    )
    with contextlib.suppress(OSError):
        write_status(job.home.status_file, status)
