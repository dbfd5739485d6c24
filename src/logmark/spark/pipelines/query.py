"""A version of a pipeline as a query of Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logmark.spark.checkpoint import committed_batch, has_state
from logmark.spark.dead_letters import DeadLetterTarget, check_dead_letter_topic
from logmark.spark.pipelines.declaration import PipelineDeclaration, Table, Topic, Version
from logmark.spark.pipelines.error_column import split_marked_rows
from logmark.spark.pipelines.inputs import narrow_options, split_inputs
from logmark.spark.pipelines.settings import (
    check_state_store,
    keep_active_session,
    move_to_session,
    open_session,
    release_first_batch,
)
from logmark.spark.pipelines.state_shape import describe_state_shape, save_state_shape
from logmark.spark.pipelines.stateful_operators import keeps_state
from logmark.spark.sink.outbox import connect_sink
from logmark.spark.sink.topics import write_topic
from logmark.spark.stream_sources import check_sources, share_source
from logmark.spark.tables.table import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


FIRST_CONTACT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The cluster that a pipeline reads and writes: its address and client properties, such as those of security."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """Return the same as options of `format("logmark")`."""
        named = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {"bootstrap.servers": self.bootstrap_servers} | named


def read_records(
    pipeline: PipelineDeclaration,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    options: Mapping[str, str],
    topic: str | None = None,
) -> "DataFrame":
    """Return the stream of records that a version reads, before `transform`, or those of one topic.

    `options` win over the pipeline's.
    """
    # Only here: pipelines are declared and listed without Spark.
    from logmark.spark.source.schemas import check_options

    given = read_options(pipeline, version, brokers, options, topic=topic)
    check_options(given)  # Spark would check the same, and wrap the error into one of its own
    return spark.readStream.format("logmark").options(**given).load()


def read_options(
    pipeline: PipelineDeclaration,
    version: Version,
    brokers: Brokers,
    options: Mapping[str, str],
    *,
    topic: str | None = None,
) -> dict[str, str]:
    """Return the options of `format("logmark")` for a version, or for one of its topics."""
    given = brokers.options() | {"group.id": version.group} | dict(pipeline.options)
    topics = pipeline.topics if isinstance(pipeline.topics, str) else ",".join(pipeline.topics)
    if topics:
        given["subscribe"] = topic or topics
    if version.group_before is not None:
        given["group.id.before"] = version.group_before
    decoding = schema_options(pipeline, topic)
    given |= decoding
    if decoding and pipeline.dead_letters is not None:
        given |= {"deadLetters.topic": pipeline.dead_letters, "deadLetters.pipeline": pipeline.name}
    if pipeline.tombstones is not None and (decoding or not isinstance(pipeline.schema, Mapping)):
        given["tombstones"] = pipeline.tombstones
    given |= dict(options)
    return given if topic is None else narrow_options(given, topic)


def schema_options(pipeline: PipelineDeclaration, topic: str | None) -> dict[str, str]:
    """Return the options that decode the values of a topic, or of all topics where they have one schema."""
    schema = pipeline.schema
    if isinstance(schema, Mapping):
        schema = schema[topic] if topic is not None else None
    return {} if schema is None else {"value.format": "json", "value.schema": schema}


def make_rows(
    pipeline: PipelineDeclaration,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """Return the stream of rows that a version writes: what `transform` makes of the records, in its own session."""
    own = open_session(pipeline, spark)
    inputs = [
        share_source(read_records(pipeline, version, own, brokers, options=options or {}, topic=topic))
        for topic in split_inputs(pipeline.schema)
    ]
    rows = move_to_session(pipeline.transform(*inputs), own)
    check_sources(rows)
    return split_marked_rows(rows, dead_letter_target(pipeline, brokers), is_for_topic=isinstance(pipeline.sink, Topic))


def dead_letter_target(pipeline: PipelineDeclaration, brokers: Brokers) -> DeadLetterTarget | None:
    """Return where the dead letters of a pipeline go, None if it declares no topic for them."""
    if pipeline.dead_letters is None:
        return None
    return DeadLetterTarget(
        bootstrap_servers=brokers.bootstrap_servers,
        topic=pipeline.dead_letters,
        pipeline=pipeline.name,
        client=dict(brokers.properties),
    )


def check_dead_letters(pipeline: PipelineDeclaration, brokers: Brokers) -> None:
    """Raise UserError unless the dead-letter topic that the pipeline declares is there."""
    target = dead_letter_target(pipeline, brokers)
    if target is not None:
        with connect_sink(target.sink_options(), timeout_s=FIRST_CONTACT_S) as client:
            topics = [pipeline.topics] if isinstance(pipeline.topics, str) else pipeline.topics
            check_dead_letter_topic(client, target.topic, reads=topics)


def needs_versions(pipeline: PipelineDeclaration, version: Version, spark: "SparkSession", brokers: Brokers) -> bool:
    """Return whether records cannot be read again in place: rows of a topic cannot be replaced, nor can state.

    A pipeline without state writes a table by the offsets of its rows, however often it reads them.
    """
    return isinstance(pipeline.sink, Topic) or keeps_state(make_rows(pipeline, version, spark, brokers))


def start_query(
    pipeline: PipelineDeclaration,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery":
    """Start the query of a version and return it: a batch whenever there is something, or once an interval.

    With `available_now` it ends when all there is now is read.
    """
    check_dead_letters(pipeline, brokers)
    own = open_session(pipeline, spark)
    release_first_batch(version.checkpoint, own)
    is_stateful = has_state(version.checkpoint)
    rows = _make_source_rows(pipeline, version, spark, brokers, options, is_stateful=is_stateful)
    if keeps_state(rows) is not is_stateful:
        rows = _make_source_rows(pipeline, version, spark, brokers, options, is_stateful=not is_stateful)
    check_state_store(rows, version.checkpoint, own)
    if committed_batch(version.checkpoint) is None and (shape := describe_state_shape(rows)):
        save_state_shape(version.checkpoint, shape)
    with keep_active_session(spark):
        return _write_rows(rows, pipeline, version, brokers, available_now=available_now)


def _make_source_rows(
    pipeline: PipelineDeclaration,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    options: Mapping[str, str] | None,
    *,
    is_stateful: bool,
) -> "DataFrame":
    """Return the rows of a version whose source knows whether the query keeps state."""
    told = {"stateful": str(is_stateful).lower()}
    return make_rows(pipeline, version, spark, brokers, options={**(options or {}), **told})


def _write_rows(
    rows: "DataFrame", pipeline: PipelineDeclaration, version: Version, brokers: Brokers, *, available_now: bool
) -> "StreamingQuery":
    name = pipeline.name if version.group == pipeline.group else version.group
    sink = version.sink
    if isinstance(sink, Table):
        return write_table(
            rows,
            sink.path,
            mode=sink.mode,
            keys=sink.keys,
            sequence=sink.sequence,
            delete_by=sink.delete_by,
            merge_schema=sink.merge_schema,
            checkpoint=version.checkpoint,
            every=pipeline.every,
            available_now=available_now,
            name=name,
            output_mode=sink.output_mode,
            optimize_every=sink.optimize_every,
        )
    query = write_topic(
        rows,
        sink.name,
        bootstrap_servers=brokers.bootstrap_servers,
        checkpoint=version.checkpoint,
        every=pipeline.every,
        available_now=available_now,
        name=name,
        options={**brokers.options(), "id": f"{pipeline.name}.v{version.number}", **sink.options},
    )
    assert query is not None
    return query
