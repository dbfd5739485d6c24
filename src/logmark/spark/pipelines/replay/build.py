"""A version on its way: where it begins, the runs that bring it to the end, and where its checkpoint stands."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.errors import Interrupted
from logmark.spark.pipelines.failures import Kind, judge
from logmark.spark.pipelines.final_commit import last_number
from logmark.spark.pipelines.pipeline import Pipeline, Table, Version
from logmark.spark.pipelines.query import Brokers, start_query
from logmark.spark.pipelines.replay.publication import side_topic
from logmark.spark.pipelines.supervisor import Job
from logmark.spark.source.cluster import bounds_of, partitions_of
from logmark.spark.source.options import Options, parse
from logmark.spark.source.position import Offsets, Position
from logmark.spark.source.ranges import Bounds
from logmark.spark.tables.table import read_position
from logmark.spark.tables.versions import version_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Report = Callable[[int, int], None]

_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.25
# Without a limit of its own a version would be built in one batch: nobody would see how far it is, and a kill would
# cost all of it.
_BATCH_RECORDS = 500_000
_LIMITS = frozenset({"maxoffsetspertrigger", "maxbytespertrigger"})
_ENDS = frozenset({"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"})
# Of what is left when this much of a second would read it, the version and the live one are as good as level.
CLOSE_S = 3.0
RUNS_MAX = 8


def connect(brokers: Brokers) -> Client:
    """A client of the pipeline's cluster."""
    return Client(brokers.bootstrap_servers, config=brokers.properties, timeout_s=_TIMEOUT_S)


def beside(job: Job, number: int) -> Version:
    """A version that is not live: a group, a checkpoint and a table or a topic of its own.

    One that was live before has its checkpoint in the pipeline's group.
    """
    pipeline = job.pipeline
    sink = pipeline.sink
    return Version(
        number=number,
        group=group_of(pipeline, number),
        checkpoint=job.home.checkpoint(number),
        sink=replace(sink, path=version_path(sink.path, number))
        if isinstance(sink, Table)
        else replace(sink, name=side_topic(sink.name, number)),
        group_before=pipeline.group,
    )


def group_of(pipeline: Pipeline, number: int) -> str:
    """The group of a version that is not live."""
    return f"{pipeline.group}.v{number}"


def source_of(job: Job) -> Options:
    """The options of the source of a pipeline, as values."""
    pipeline = job.pipeline
    topics = pipeline.topics if isinstance(pipeline.topics, str) else ",".join(pipeline.topics)
    given = {**job.brokers.options(), "group.id": pipeline.group, **pipeline.options, **job.options}
    return parse(given | ({"subscribe": topics} if topics else {}), is_stream=True)


def logs_of(client: Client, source: Options) -> dict[TopicPartition, Bounds]:
    """What there is to read in each partition of a pipeline."""
    return bounds_of(client, partitions_of(client, source).places, read_committed=source.read_committed)


def run(
    job: Job,
    version: Version,
    spark: "SparkSession",
    client: Client,
    *,
    starts: Offsets,
    stops: Offsets | None = None,
    report: Report = lambda done, of: None,
) -> None:
    """The version has read all that was there when this began, or all before `stops`; raises what ended it."""
    from pyspark.errors import StreamingQueryException

    options = _limited(job)
    if stops:
        options["endingOffsets"] = _nested(stops)
    query = start_query(job.pipeline, version, spark, job.brokers, available_now=True, options=options)
    try:
        while not query.awaitTermination(_LOOK_EVERY_S):  # type: ignore[arg-type]
            report(*how_far(client, version.group, starts, stops or client.latest(starts)))
    except StreamingQueryException as error:
        failure = judge(str(error), folder=job.folder)
        raise (Interrupted if failure.kind is Kind.PASSING else UserError)(failure.sentence) from None
    finally:
        if query.isActive:
            query.stop()
    report(*how_far(client, version.group, starts, stops or client.latest(starts)))


def run_until_close(
    job: Job, version: Version, spark: "SparkSession", client: Client, *, starts: Offsets, report: Report
) -> None:
    """The version is nearly where the logs end: what came while the last run went on is read in a few seconds."""
    for _ in range(RUNS_MAX):
        left = _left(client, version.group, starts)
        began = time.monotonic()
        run(job, version, spark, client, starts=starts, report=report)
        took_s = max(time.monotonic() - began, 0.001)
        if is_close(_left(client, version.group, starts), before=left, took_s=took_s):
            return


def is_close(left: int, *, before: int, took_s: float) -> bool:
    """Whether another run is not worth it: what is left takes seconds, or no less came while `before` was read."""
    return left * took_s <= CLOSE_S * before or left * 2 >= before


def _left(client: Client, group: str, starts: Offsets) -> int:
    done, of = how_far(client, group, starts, client.latest(starts))
    return of - done


def how_far(client: Client, group: str, starts: Offsets, stops: Offsets) -> tuple[int, int]:
    """How many offsets the group has read of those between `starts` and `stops`, and how many these are."""
    committed = client.committed(group, starts)
    done = total = 0
    for place, start in starts.items():
        stop = max(stops.get(place, start), start)
        at = committed[place].offset if place in committed else start
        done += min(max(at, start), stop) - start
        total += stop - start
    return done, total


def standing(checkpoint: Path) -> Position | None:
    """Where a checkpoint stands: at the end of its last batch, or at the beginning of one that was planned."""
    planned = last_number(checkpoint / "offsets")
    if planned is None:
        return None
    position = read_position(checkpoint, planned)
    if last_number(checkpoint / "commits") == planned:
        return position
    return replace(position, next={place: position.first.get(place, end) for place, end in position.next.items()})


def _limited(job: Job) -> dict[str, str]:
    given = {**job.pipeline.options, **job.options}
    names = {name.lower() for name in given}
    if _ENDS & names:
        raise UserError(
            f"The pipeline {job.pipeline.name} has an end of its own in its options, and cannot be built up to now. "
            "Nothing was changed. Take the option away."
        )
    return dict(job.options) | ({} if names & _LIMITS else {"maxOffsetsPerTrigger": str(_BATCH_RECORDS)})


def _nested(offsets: Mapping[TopicPartition, int]) -> str:
    nested: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        nested.setdefault(place.topic, {})[str(place.partition)] = offset
    return json.dumps(nested)
