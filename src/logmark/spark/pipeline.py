"""A pipeline: a consumer group, a function of DataFrame to DataFrame, and the table that it fills."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.errors import UserError
from logmark.spark.tables import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Reads topics as a consumer group and keeps a Delta table of what `transform` makes of them, each offset once.

    `transform` gets the columns of Spark's Kafka source (key, value, topic, partition, offset, timestamp,
    timestampType) and must keep topic, partition and offset: they say which records a row came from, so that records
    read again replace their rows. `options` are further options of `format("logmark")`.
    """

    bootstrap_servers: str
    topics: str | Sequence[str]
    group: str
    table: str | Path
    transform: Callable[["DataFrame"], "DataFrame"]
    checkpoint: str | Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def read(self, spark: "SparkSession") -> "DataFrame":
        """The stream of records, before `transform`."""
        topics = self.topics if isinstance(self.topics, str) else ",".join(self.topics)
        reader = spark.readStream.format("logmark").option("bootstrap.servers", self.bootstrap_servers)
        reader = reader.option("subscribe", topics).option("group.id", self.group)
        return reader.options(**self.options).load()

    def start(
        self, spark: "SparkSession", *, every: str | None = None, available_now: bool = False
    ) -> "StreamingQuery":
        """A running query: a batch whenever there is something, or one `every` interval, or all there is now."""
        return write_table(
            self.transform(self.read(spark)),
            self.table,
            checkpoint=self.checkpoint,
            every=every,
            available_now=available_now,
            name=self.group,
        )

    def run(self, spark: "SparkSession") -> None:
        """Reads all there is now, commits the group's offsets and returns; raises whatever stops the query."""
        from pyspark.errors import StreamingQueryException

        try:
            self.start(spark, available_now=True).awaitTermination()
        except StreamingQueryException as error:
            sentence = sentence_in(str(error))
            if sentence is None:
                raise
            raise UserError(sentence) from None


def sentence_in(failure: str) -> str | None:
    """The sentence for people in the text of a failed query, which Spark wraps into the traces of two languages."""
    found = re.findall(r"^logmark\.[\w.]*errors\.\w+: (.+)$", failure, re.MULTILINE)
    return found[-1] if found else None
