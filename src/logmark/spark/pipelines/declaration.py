"""What a file declares of a pipeline: topics, a consumer group, a function of DataFrame to DataFrame, and a sink."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.spark.pipelines.declaration_folder import find_declaration_folder
from logmark.spark.pipelines.inputs import Schemas, check_transform, read_input_topics
from logmark.spark.tables.modes import REPLACE
from logmark.spark.tables.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows go into a Delta table, each batch by one commit; the fields are those of `write_table`.

    A relative path counts from the folder of the file that declares the pipeline, and from the working directory for a
    pipeline that no file declares.
    """

    path: str | Path
    mode: str = field(default=REPLACE, kw_only=True)
    keys: str | Sequence[str] | None = field(default=None, kw_only=True)
    sequence: str | None = field(default=None, kw_only=True)
    delete_by: str | None = field(default=None, kw_only=True)
    merge_schema: bool = field(default=False, kw_only=True)
    output_mode: str | None = field(default=None, kw_only=True)
    optimize_every: int | None = field(default=100, kw_only=True)


@dataclass(frozen=True, slots=True)
class Topic:
    """Rows go to a topic, each batch once; they have the columns of `format("logmark")`.

    A column `id`, the same whenever the same records are read, is what lets a replay send only what was not sent.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True)


Sink = Table | Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a pipeline: its consumer group, its checkpoint, and its sink.

    `group_before` is the group under which the checkpoint was written, if that was another one: a version is built
    under a group of its own and takes over the pipeline's group when it is swapped in.
    """

    number: int
    group: str
    checkpoint: Path
    sink: Sink
    group_before: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeclaration:
    """Reads topics as a consumer group, and writes what `transform` makes of the records into a table or a topic.

    name            the name of the pipeline; also its group, unless `group` is given
    topics          one topic, several, or none where `options` subscribe or assign by themselves
    transform       gets the columns of Spark's Kafka source (key, value, topic, partition, offset, timestamp,
                    timestampType); rows that keep topic, partition and offset say which records they came from
    schema          the values are JSON of this schema (Spark's DDL): `value` is then a struct, see docs/spark-json.md,
                    and `transform` gets the records that fit it. With a mapping of topics to schemas, `transform` gets
                    one DataFrame for each topic, in the order of the mapping: transform(orders, payments)
    dead_letters    the topic of what does not fit the schema, and of rows whose column `error` is not null
    tombstones      what becomes of records without a value under a schema: "rows" (the default), "skip" or
                    "dead-letters"
    options         further options of `format("logmark")`
    conf            runtime settings of Spark SQL ("spark.sql.shuffle.partitions": 8) for this pipeline alone: its runs,
                    replays and rebuilds
    every           a batch once an interval ("5 seconds"), and not whenever there is something to read
    bootstrap_servers   the cluster, where neither the caller nor the environment names one

    Raises UserError if the name is not allowed, if `transform` does not take the DataFrames of the topics, or if the
    pipeline would write to a topic that it reads.
    """

    name: str
    topics: str | Sequence[str] = ()
    transform: Callable[..., "DataFrame"]
    sink: Sink
    group: str = ""
    schema: Schemas = None
    dead_letters: str | None = None
    tombstones: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    every: str | None = None
    bootstrap_servers: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"{self.name!r} cannot name a pipeline: take at most 100 letters, digits, '-' and '_', beginning with "
                "a letter or a digit. Nothing was run."
            )
        if not self.group:
            object.__setattr__(self, "group", self.name)
        object.__setattr__(self, "conf", {name: _setting(value) for name, value in self.conf.items()})
        if isinstance(self.sink, Table):
            path = local_path(self.sink.path, "table", below=find_declaration_folder())
            object.__setattr__(self, "sink", replace(self.sink, path=path))
        object.__setattr__(
            self, "topics", read_input_topics(self.name, self.topics, self.schema, self.options)
        )
        check_transform(self.name, self.transform, self.schema)
        read = {self.topics} if isinstance(self.topics, str) else set(self.topics)
        written = {"sink": self.sink.name if isinstance(self.sink, Topic) else None, "dead_letters": self.dead_letters}
        for name, topic in written.items():
            if topic in read:
                raise UserError(
                    f"The pipeline {self.name} reads the topic {topic} and writes to it too ({name}), and would never "
                    "reach the log end. Nothing was read or written. Let it write to another topic."
                )


def _setting(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_topics(pipeline: PipelineDeclaration) -> str:
    """Return the topics that a pipeline reads, for people."""
    named = [pipeline.topics] if isinstance(pipeline.topics, str) else pipeline.topics
    options = {name.lower(): value for name, value in pipeline.options.items()}
    others = (options.get(name) for name in ("subscribe", "subscribepattern", "assign"))
    return ", ".join([*named, *(one for one in others if one)])


def format_sink(sink: Sink) -> str:
    """Return where rows go, for people."""
    return f"topic {sink.name}" if isinstance(sink, Topic) else f"table {local_path(sink.path, 'table')}"


def version_group(pipeline: PipelineDeclaration, number: int) -> str:
    """Return the consumer group of a version that is not live."""
    return f"{pipeline.group}.v{number}"


def side_topic_name(topic: str, number: int) -> str:
    """Return the topic where a version sends its rows until it is published."""
    return f"{topic}.v{number}"
