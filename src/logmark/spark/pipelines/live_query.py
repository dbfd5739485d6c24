"""The query of the live version: one process at a time runs it, under the live lock of the pipeline's home."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.spark.errors import CheckpointLost
from logmark.spark.pipelines.declaration import Version
from logmark.spark.pipelines.home import Home
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import needs_versions, start_query
from logmark.spark.pipelines.replay.state import check_live_may_run

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


def start_version(job: Job, version: Version, spark: "SparkSession", *, available_now: bool) -> "StreamingQuery":
    """Start the query of the live version and record that it was started; the caller holds the live lock.

    It is recorded at the start: a driver may die in its first batch, and its checkpoint may be lost, when rows are
    written already.
    """
    # Spark repeats a planned batch before it asks the source, which would know who owns the group.
    check_live_may_run(job.home)
    query = start_query(job.pipeline, version, spark, job.brokers, available_now=available_now, options=job.options)
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

    def wait() -> None:
        with stack, contextlib.suppress(Exception):
            query.awaitTermination()

    thread = threading.Thread(target=wait, name=f"pipeline {job.name}", daemon=True)
    _started[job.home.folder] = query, thread
    thread.start()
    return query
