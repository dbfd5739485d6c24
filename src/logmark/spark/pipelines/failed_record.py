"""Which record a pipeline's own code fails on: found by running the failed batch again over ever smaller parts.

The parts are read as batches, into nothing: no group moves, no letter is sent, no table is touched. A failure that
needs what earlier batches left behind, such as state, does not come back that way; then the whole batch is named.
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
from logmark.spark.errors import named_in
from logmark.spark.pipelines.failures import judge
from logmark.spark.pipelines.pipeline import Pipeline, Version
from logmark.spark.pipelines.query import Brokers
from logmark.spark.tables.table import read_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Ranges = Mapping[TopicPartition, tuple[int, int]]

SECONDS_MAX = 60.0
TRIES_MAX = 50
_SHOWN_MAX = 4
# What stays the same in the sentences about one mistake, whatever the record: the exception, the condition, the line.
_SAME = re.compile(r"(?<=failed: )\w+|(?<=asks for \()[A-Z_.]+|[^(]+, line \d+")
# Where a stream begins and how much it takes at a time; a part of a batch has its own two ends.
_OF_STREAMS = (
    "subscribe", "assign", "starting", "ending", "group", "auto.offset.reset", "maxoffsets", "maxbytes", "minoffsets",
    "maxtrigger", "deadletters", "failondataloss",
)  # fmt: skip
# They write a page for every part that fails.
_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """The smallest part that was seen to fail."""

    ranges: Ranges
    tries: int

    @property
    def record(self) -> tuple[TopicPartition, int] | None:
        """The one record that it is, if it is one."""
        if size_of(self.ranges) != 1:
            return None
        [(place, (offset, _))] = self.ranges.items()
        return place, offset


def size_of(ranges: Ranges) -> int:
    """How many offsets there are."""
    return sum(stop - first for first, stop in ranges.values())


def halves(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Two parts of about the same size, cut inside of at most one partition."""
    room = size_of(ranges) // 2
    left: dict[TopicPartition, tuple[int, int]] = {}
    right: dict[TopicPartition, tuple[int, int]] = {}
    for place, (first, stop) in sorted(ranges.items()):
        cut = min(stop, first + room)
        room -= cut - first
        if first < cut:
            left[place] = first, cut
        if cut < stop:
            right[place] = cut, stop
    return left, right


def narrow(
    ranges: Ranges, fails: Callable[[Ranges], bool], *, tries_max: int = TRIES_MAX, is_late: Callable[[], bool]
) -> Narrowed:
    """Halves what is known to fail until one record is left, or none fails alone, or the time is up (TimeoutError).

    Where one half does not fail the other is taken for the culprit, and tried only when nothing is left to be halved:
    that takes half as many tries, and what does not fail on its own is never named.
    """
    known = suspected = ranges
    tries = 0
    with contextlib.suppress(TimeoutError):
        while tries < tries_max and not is_late():
            if size_of(suspected) > 1:
                part, other = halves(suspected)
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
    return Narrowed(ranges=known, tries=tries)


def told(narrowed: Narrowed, whole: Ranges) -> str:
    """What is known about the record, as a sentence."""
    if narrowed.record is not None:
        place, offset = narrowed.record
        return f"It fails on the record {place} offset {offset}."
    if narrowed.ranges != whole:
        return f"It fails on a record among {_listed(narrowed.ranges)}."
    return f"The batch that failed has {_listed(whole)}."


def _listed(ranges: Ranges) -> str:
    shown = [f"{place} offsets {first} to {stop - 1}" for place, (first, stop) in sorted(ranges.items())]
    more = f" and {len(shown) - _SHOWN_MAX} more partitions" if len(shown) > _SHOWN_MAX else ""
    return ", ".join(shown[:_SHOWN_MAX]) + more


def name_record(
    pipeline: Pipeline,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    failure: str = "",
    folder: str | None = None,
    seconds_max: float = SECONDS_MAX,
) -> str:
    """A sentence about the record that the last batch of a version failed on; empty if nothing can be said.

    Only what fails in the way that `failure` tells, in the words of `judge`, counts as failing; `folder` is where the
    pipeline's file lies.
    """
    try:
        whole = failed_ranges(version.checkpoint)
    except (OSError, ValueError, UserError):
        return ""
    if not whole:
        return ""
    deadline = time.monotonic() + seconds_max

    def fails(part: Ranges) -> bool:
        raised = _raised_by(rows_of(pipeline, spark, brokers, part), deadline)
        return raised is not None and is_alike(judge(raised, folder=folder).sentence, failure)

    try:
        with _quiet(spark):
            found = narrow(whole, fails, is_late=lambda: time.monotonic() >= deadline)
    except Exception as error:  # noqa: BLE001
        # The user's code raises what it likes, and the failure itself is what has to be told.
        log.warning("The record that pipeline %s fails on was not found: %s", pipeline.name, error)
        found = Narrowed(ranges=whole, tries=0)
    return told(found, whole)


def failed_ranges(checkpoint: Path) -> Ranges:
    """What the batch reads that was planned last and not finished; nothing if there is none."""
    planned, finished = (
        {int(one.name) for one in (checkpoint / kind).glob("*") if one.name.isdecimal()}
        for kind in ("offsets", "commits")
    )
    return read_position(checkpoint, max(planned)).ranges if planned - finished else {}


def rows_of(pipeline: Pipeline, spark: "SparkSession", brokers: Brokers, part: Ranges) -> "DataFrame":
    """What `transform` makes of these records alone."""
    kept = {name: value for name, value in pipeline.options.items() if not _is_of_streams(name)}
    options = brokers.options() | kept
    options |= {
        "assign": json.dumps(_by_topic(part, lambda topic: [n for t, n in part if t == topic])),
        "startingOffsets": json.dumps(_by_topic(part, lambda topic: _edges(part, topic, 0))),
        "endingOffsets": json.dumps(_by_topic(part, lambda topic: _edges(part, topic, 1))),
    }
    if pipeline.schema is None:
        return pipeline.transform(spark.read.format("logmark").options(**options).load())
    options |= {"value.format": "json", "value.schema": pipeline.schema}
    records = spark.read.format("logmark").options(**options).load()
    if pipeline.dead_letters is not None:
        records = records.where("error IS NULL").drop("error", "raw")
    return pipeline.transform(records)


def _is_of_streams(name: str) -> bool:
    return name.lower().removeprefix("kafka.").startswith(_OF_STREAMS)


def _by_topic(part: Ranges, what: Callable[[str], object]) -> dict[str, object]:
    return {topic: what(topic) for topic in {place.topic for place in part}}


def _edges(part: Ranges, topic: str, which: int) -> dict[str, int]:
    return {str(place.partition): ends[which] for place, ends in part.items() if place.topic == topic}


def is_alike(sentence: str, failure: str) -> bool:
    """Whether two failures are the same exception from the same line, or the same condition of an expression."""
    return not failure or _SAME.findall(sentence) == _SAME.findall(failure)


def _raised_by(rows: "DataFrame", deadline: float) -> str | None:
    """What is raised when the rows are computed; None if nothing is, TimeoutError if that takes too long."""
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
        if (named := named_in(str(error))) is not None:
            raise UserError(named[1]) from None
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
