"""A version of a pipeline as a query of Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logmark.spark.pipelines.declaration import Pipeline, Table, Version
from logmark.spark.tables import write_table
from logmark.spark.topics import write_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The cluster that a pipeline reads and writes: its address, and properties such as those of its security."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """The same as options of `format("logmark")`."""
        named = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {"bootstrap.servers": self.bootstrap_servers} | named


def read_records(
    pipeline: Pipeline, version: Version, spark: "SparkSession", brokers: Brokers, *, options: Mapping[str, str]
) -> "DataFrame":
    """The stream of records that a version reads, before `transform`; `options` win over those of the pipeline."""
    given = brokers.options() | {"group.id": version.group} | dict(pipeline.options)
    topics = pipeline.topics if isinstance(pipeline.topics, str) else ",".join(pipeline.topics)
    if topics:
        given["subscribe"] = topics
    if pipeline.schema is not None:
        given |= {"value.format": "json", "value.schema": pipeline.schema}
    return spark.readStream.format("logmark").options(**given | dict(options)).load()


def start_query(
    pipeline: Pipeline,
    version: Version,
    spark: "SparkSession",
    brokers: Brokers,
    *,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery":
    """A running query: a batch whenever there is something, or once an interval, or all there is now."""
    rows = pipeline.transform(read_records(pipeline, version, spark, brokers, options=options or {}))
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
