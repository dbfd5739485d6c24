"""The build of a version: its own group, checkpoint and sink, and the runs that bring it to the log end."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.checkpoint import planned_batch
from logmark.spark.errors import (
    BuildFailed,
    BuildInterrupted,
    FailureKind,
    StateIncompatible,
    StateUnreadable,
    VersionOutdated,
)
from logmark.spark.pipelines.declaration import Table, Version, side_topic_name, version_group
from logmark.spark.pipelines.failed_record import describe_failed_record
from logmark.spark.pipelines.failures import Failure, classify_failure
from logmark.spark.pipelines.job import Job
from logmark.spark.pipelines.query import start_query
from logmark.spark.source.cluster import find_partitions, read_bounds
from logmark.spark.source.offset_maps import nest_by_topic
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import Offsets
from logmark.spark.source.ranges import Bounds
from logmark.spark.tables.versions import version_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Called with the number of offsets that were read, and how many there are.
Report = Callable[[int, int], None]

_POLL_EVERY_S = 0.25
# Without a limit of its own a version would be built in one batch: nobody would see its progress, and a kill would cost
# all of it.
_BATCH_RECORDS = 500_000
_LIMITS = frozenset({"maxoffsetspertrigger", "maxbytespertrigger"})
_ENDS = frozenset({"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"})
# A version is nearly caught up when it would read the rest in this time.
NEARLY_S = 3.0
RUNS_MAX = 8


def shadow_version(job: Job, number: int) -> Version:
    """Return a version that is not live: with a group, a checkpoint, and a table or a side topic of its own.

    The checkpoint of a version that was live before is one of the pipeline's group.
    """
    pipeline, sink = job.pipeline, job.pipeline.sink
    return Version(
        number=number,
        group=version_group(pipeline, number),
        checkpoint=job.home.checkpoint(number),
        sink=replace(sink, path=version_path(sink.path, number))
        if isinstance(sink, Table)
        else replace(sink, name=side_topic_name(sink.name, number)),
        group_before=pipeline.group,
    )


def read_log_bounds(job: Job, client: Client) -> dict[TopicPartition, Bounds]:
    """Return the log start and log end offset of each partition that the pipeline reads."""
    topics = job.pipeline.topics if isinstance(job.pipeline.topics, str) else ",".join(job.pipeline.topics)
    given = {**job.brokers.options(), "group.id": job.group, **job.pipeline.options, **job.options}
    options = parse_source_options(given | ({"subscribe": topics} if topics else {}), is_stream=True)
    return read_bounds(client, find_partitions(client, options).partitions, read_committed=options.read_committed)


def run_version(
    job: Job,
    version: Version,
    spark: "SparkSession",
    client: Client,
    *,
    starts: Offsets,
    stops: Offsets | None = None,
    report: Report = lambda done, of: None,
) -> None:
    """Let the version read all there is now, or all before `stops`.

    Raises BuildInterrupted after a transient failure of its query, BuildFailed after an unknown one, and UserError
    after a permanent one.
    """
    # Only here: commands plan replays, and read-only ones list versions, without Spark.
    from pyspark.errors import StreamingQueryException

    options = _limited_options(job)
    if stops:
        options["endingOffsets"] = json.dumps(nest_by_topic(stops))
    query = start_query(job.pipeline, version, spark, job.brokers, available_now=True, options=options)
    try:
        while not query.awaitTermination(_POLL_EVERY_S):  # type: ignore[arg-type]
            report(*measure_progress(client, version.group, starts, stops or client.latest(starts)))
    except StreamingQueryException as error:
        failure = classify_failure(str(error), folder=job.folder)
        raise _build_error(failure, _describe_failure(job, version, spark, failure)) from None
    finally:
        if query.isActive:
            query.stop()
    report(*measure_progress(client, version.group, starts, stops or client.latest(starts)))


def _describe_failure(job: Job, version: Version, spark: "SparkSession", failure: Failure) -> str:
    """Return why the build of a version failed: with the batch and the record, if it was the user's code."""
    batch = planned_batch(version.checkpoint)
    if not failure.is_of_code or batch is None:
        return failure.message
    record = describe_failed_record(
        job.pipeline, version, spark, job.brokers, failure=failure.message, folder=job.folder
    )
    return " ".join([failure.message, f"It failed in batch {batch} of the new version.", record]).rstrip()


def _build_error(failure: Failure, message: str) -> UserError:
    """Return the error with which the build of a version ends: its class says whether another try may resume it."""
    if failure.exception in (StateIncompatible, StateUnreadable):
        return VersionOutdated(
            f"{message} The version that is being built cannot be finished with this code. Abandon the "
            "replay, and start it again to build the version from the beginning."
        )
    error = {FailureKind.TRANSIENT: BuildInterrupted, FailureKind.UNKNOWN: BuildFailed}.get(failure.kind, UserError)
    return error(message)


def build_version(
    job: Job, version: Version, spark: "SparkSession", client: Client, *, starts: Offsets, report: Report
) -> None:
    """Run the version until it is nearly caught up: what was written during its last run is read in a few seconds."""
    for _ in range(RUNS_MAX):
        before = _unread(client, version.group, starts)
        started = time.monotonic()
        run_version(job, version, spark, client, starts=starts, report=report)
        took_s = max(time.monotonic() - started, 0.001)
        if is_nearly_caught_up(_unread(client, version.group, starts), before=before, took_s=took_s):
            return


def is_nearly_caught_up(unread: int, *, before: int, took_s: float) -> bool:
    """Return whether another run is not worth it: the rest takes seconds, or no less came while `before` was read."""
    return unread * took_s <= NEARLY_S * before or unread * 2 >= before


def measure_progress(client: Client, group: str, starts: Offsets, stops: Offsets) -> tuple[int, int]:
    """Return how many offsets between `starts` and `stops` the group has read, and how many there are."""
    committed = client.committed(group, starts)
    done = total = 0
    for partition, start in starts.items():
        stop = max(stops.get(partition, start), start)
        at = committed[partition].offset if partition in committed else start
        done += min(max(at, start), stop) - start
        total += stop - start
    return done, total


def _unread(client: Client, group: str, starts: Offsets) -> int:
    done, total = measure_progress(client, group, starts, client.latest(starts))
    return total - done


def _limited_options(job: Job) -> dict[str, str]:
    names = {name.lower() for name in {**job.pipeline.options, **job.options}}
    if _ENDS & names:
        raise UserError(
            f"The options of pipeline {job.name} set an end, so a version cannot be built up to the log end. Nothing "
            "was changed. Remove the option."
        )
    return job.query_options() | ({} if names & _LIMITS else {"maxOffsetsPerTrigger": str(_BATCH_RECORDS)})
