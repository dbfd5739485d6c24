"""The record on which a pipeline's own code fails: found by running the failed batch again over ever smaller parts.

Spark reads the parts as batch queries, into nothing: no group moves, no dead letter is sent, no table is written. A
failure that depends on earlier batches, such as on state, does not come back that way; then the whole batch is named.
"""

import contextlib
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.checkpoint import is_between_batches, planned_batch, read_position
from logmark.spark.errors import find_message
from logmark.spark.pipelines.declaration import PipelineDeclaration, Version
from logmark.spark.pipelines.failures import classify_failure
from logmark.spark.pipelines.inputs import split_inputs
from logmark.spark.pipelines.query import Brokers, schema_options
from logmark.spark.pipelines.settings import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Ranges = Mapping[TopicPartition, tuple[int, int]]

SECONDS_MAX = 60.0
TRIES_MAX = 50
_SHOWN_MAX = 4
# What is the same in all messages about one mistake, whatever the record: the exception, the condition, the line.
_SAME = re.compile(r"(?<=failed: )\w+|(?<=asks for \()[A-Z_.]+|[^(]+, line \d+")
# Options about the start of a stream and the size of its batches; a part of a batch has its own start and end.
_OF_STREAMS = (
    "subscribe", "assign", "starting", "ending", "group", "auto.offset.reset", "maxoffsets", "maxbytes", "minoffsets",
    "maxtrigger", "deadletters", "failondataloss", "stateful",
)  # fmt: skip
# Each of them writes a page for every part that fails.
_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPart:
    """The smallest part that was seen to fail."""

    ranges: Ranges
    tries: int

    @property
    def record(self) -> tuple[TopicPartition, int] | None:
        """The record, if the part has only one."""
        if count_offsets(self.ranges) != 1:
            return None
        [(partition, (offset, _))] = self.ranges.items()
        return partition, offset


def count_offsets(ranges: Ranges) -> int:
    """Return how many offsets the ranges have."""
    return sum(stop - first for first, stop in ranges.values())


def split_in_half(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Return two parts of about the same size; at most one partition is split."""
    room = count_offsets(ranges) // 2
    left: dict[TopicPartition, tuple[int, int]] = {}
    right: dict[TopicPartition, tuple[int, int]] = {}
    for partition, (first, stop) in sorted(ranges.items()):
        cut = min(stop, first + room)
        room -= cut - first
        if first < cut:
            left[partition] = first, cut
        if cut < stop:
            right[partition] = cut, stop
    return left, right


def find_failed_part(
    ranges: Ranges, fails: Callable[[Ranges], bool], *, tries_max: int = TRIES_MAX, is_late: Callable[[], bool]
) -> FailedPart:
    """Bisect what is known to fail until one record is left, or no half fails alone, or the time is up (TimeoutError).

    If one half does not fail, the other is suspected, and tried only when nothing is left to be split: that takes half
    as many tries, and a part that does not fail alone is never named.
    """
    known = suspected = ranges
    tries = 0
    with contextlib.suppress(TimeoutError):
        while tries < tries_max and not is_late():
            if count_offsets(suspected) > 1:
                part, other = split_in_half(suspected)
            elif suspected != known:
                part = other = suspected
            else:
                break
            tries += 1
            if fails(part):
                known = suspected = part
            elif part == other:
                break
            else:
                suspected = other
    return FailedPart(ranges=known, tries=tries)


def describe_part(part: FailedPart, whole: Ranges) -> str:
    """Return what is known about the failed record, in one line."""
    if part.record is not None:
        partition, offset = part.record
        return f"It fails on the record {partition} offset {offset}."
    if part.ranges != whole:
        return f"It fails on a record among {_format_ranges(part.ranges)}."
    return f"The batch that failed has {_format_ranges(whole)}."


def _format_ranges(ranges: Ranges) -> str:
    shown = [f"{partition} offsets {first} to {stop - 1}" for partition, (first, stop) in sorted(ranges.items())]
    more = f" and {len(shown) - _SHOWN_MAX} more partitions" if len(shown) > _SHOWN_MAX else ""
    return ", ".join(shown[:_SHOWN_MAX]) + more


def describe_failed_record(
    pipeline: PipelineDeclaration,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    failure: str = "",
    folder: str | None = None,
    seconds_max: float = SECONDS_MAX,
) -> str:
    """Return in one line on which record the last batch of a version failed; empty if nothing is known.

    A part counts as failing only if it fails like the message in `failure`, which `classify_failure` made. `folder` is
    that of the pipeline's file.
    """
    try:
        whole = failed_ranges(version.checkpoint)
    except (OSError, ValueError, UserError):
        return ""
    if not whole:
        return ""
    deadline = time.monotonic() + seconds_max

    def fails(part: Ranges) -> bool:
        raised = _raised_by(make_part_rows(pipeline, spark, brokers, part), deadline)
        return raised is not None and is_same_failure(classify_failure(raised, folder=folder).message, failure)

    try:
        with _quiet(spark):
            found = find_failed_part(whole, fails, is_late=lambda: time.monotonic() >= deadline)
    except Exception as error:  # noqa: BLE001
        # The user's code may raise anything, and the failure itself is what has to be reported.
        log.warning("The record that pipeline %s fails on was not found: %s", pipeline.name, error)
        found = FailedPart(ranges=whole, tries=0)
    return describe_part(found, whole)


def failed_ranges(checkpoint: Path) -> Ranges:
    """Return what the last planned batch reads if it was not committed; empty if it was."""
    planned = planned_batch(checkpoint)
    if planned is None or is_between_batches(checkpoint):
        return {}
    return read_position(checkpoint, planned).ranges


def make_part_rows(pipeline: PipelineDeclaration, spark: "SparkSession", brokers: Brokers, part: Ranges) -> "DataFrame":
    """Return what `transform` makes of these records alone, in the pipeline's own session."""
    own, topics = open_session(pipeline, spark), split_inputs(pipeline.schema)
    return pipeline.transform(*(_read_part(pipeline, own, brokers, part, topic) for topic in topics))


def _read_part(
    pipeline: PipelineDeclaration, spark: "SparkSession", brokers: Brokers, part: Ranges, topic: str | None
) -> "DataFrame":
    """Return the records of the part, or those of one topic: of a topic that is not in the part, none."""
    part = {one: ends for one, ends in part.items() if topic in (None, one.topic)}
    kept = {name: value for name, value in pipeline.options.items() if not _is_of_streams(name)}
    options = brokers.options() | kept | schema_options(pipeline, topic)
    if part:
        options |= {
            "assign": json.dumps(_by_topic(part, lambda topic: [n for t, n in part if t == topic])),
            "startingOffsets": json.dumps(_by_topic(part, lambda topic: _edges(part, topic, 0))),
            "endingOffsets": json.dumps(_by_topic(part, lambda topic: _edges(part, topic, 1))),
        }
    else:
        options["subscribe"] = topic or ""
    records = spark.read.format("logmark").options(**options).load()
    if not part:
        records = spark.createDataFrame([], records.schema)
    if schema_options(pipeline, topic) and pipeline.dead_letters is not None:
        records = records.where("error IS NULL").drop("error", "raw")
    return records


def _is_of_streams(name: str) -> bool:
    return name.lower().removeprefix("kafka.").startswith(_OF_STREAMS)


def _by_topic(part: Ranges, what: Callable[[str], object]) -> dict[str, object]:
    return {topic: what(topic) for topic in {partition.topic for partition in part}}


def _edges(part: Ranges, topic: str, which: int) -> dict[str, int]:
    return {str(partition.partition): ends[which] for partition, ends in part.items() if partition.topic == topic}


def is_same_failure(message: str, failure: str) -> bool:
    """Return whether two failures are the same exception from the same line, or the same condition of an expression."""
    return not failure or _SAME.findall(message) == _SAME.findall(failure)


def _raised_by(rows: "DataFrame", deadline: float) -> str | None:
    """Return what is raised when the rows are computed, None if nothing is; raises TimeoutError after the deadline."""
    # Only here: the supervisor is imported where no query runs yet.
    from pyspark.errors import PySparkException

    context = rows.sparkSession.sparkContext
    group = f"logmark-{uuid.uuid4().hex}"
    timer = threading.Timer(max(0.1, deadline - time.monotonic()), context.cancelJobGroup, [group])
    timer.daemon = True
    context.setJobGroup(group, "looking for the record that failed", interruptOnCancel=True)
    timer.start()
    try:
        rows.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        if time.monotonic() >= deadline:
            raise TimeoutError from None
        if (message := find_message(str(error))) is not None:
            raise UserError(message) from None
        return str(error)
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return None


@contextlib.contextmanager
def _quiet(spark: "SparkSession") -> Iterator[None]:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    logging_of_java = jvm.org.apache.logging.log4j
    try:
        for name in _LOGGERS:
            logging_of_java.core.config.Configurator.setLevel(name, logging_of_java.Level.OFF)
        yield
    finally:
        for name in _LOGGERS:
            logging_of_java.core.config.Configurator.setLevel(name, logging_of_java.Level.ERROR)
