"""`format("logmark")`: Spark's side of the source."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logmark.client.client import Client
from logmark.client.errors import BrokerUnreachable, RefusedByBroker
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.following import GroupFollower, bounds_of, partitions_of
from logmark.spark.options import EARLIEST, LATEST, Options, check_names, parse
from logmark.spark.position import Offsets, Position
from logmark.spark.ranges import Bounds, Range, out_of_range, split
from logmark.spark.reading import connect, read_range

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
FIRST_CONTACT_S = 10.0
PATIENCE_S = 120.0  # how long a running query waits for a broker to come back
IDLE_PAUSE_S = 0.1  # Spark asks an idle source 80 times a second

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", ArrayType(_HEADER))])


class DefaultSource(DataSource):
    """Reads Kafka topics, from Logmark or from Apache Kafka, as batches and as a consumer group's stream."""

    @classmethod
    def name(cls) -> str:
        return "logmark"

    def schema(self) -> StructType:
        check_names(self.options)  # at load() already, not when the query runs
        with_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return SCHEMA_WITH_HEADERS if with_headers else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema, self.schema())
        return BatchReader(parse(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _check_schema(schema, self.schema())
        return StreamReader(parse(self.options, is_stream=True))


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, range: Range) -> None:
        super().__init__(range)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets and leaves no trace in any group."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with connect(options, timeout_s=FIRST_CONTACT_S) as client:
            places = partitions_of(client.metadata(list(options.topics)), options)
            bounds = bounds_of(client, places)
            committed: dict[TopicPartition, int] = {}
            if options.starting == "committed" and options.group is not None:
                committed = {place: one.offset for place, one in client.committed(options.group, places).items()}
        starts = {place: bound.start for place, bound in bounds.items()} | committed
        starts = _resolved(options.starting, starts, bounds, "startingOffsets")
        ends = _resolved(options.ending, {place: bound.end for place, bound in bounds.items()}, bounds, "endingOffsets")
        ranges = {place: (starts[place], ends[place]) for place in places}
        pieces = split(ranges, records_max=options.records_per_task_max, pieces_min=options.tasks_min)
        return [Task(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads as a consumer group; the process that plans batches holds the connection, executors make their own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: Client | None = None
        self._follower: GroupFollower | None = None
        self._begun: Position | None = None
        self._idle_until = 0.0

    def __reduce__(self) -> tuple[type["StreamReader"], tuple[Options]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice and writes its log in between: another answer would lose the records between the two.
        if self._begun is None:
            self._begun = self._following().begin()
        return self._begun.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        here = Position.from_json(start)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        there = _patiently(lambda: self._following().advance(here, records_max=records_max))
        if there is here:
            self._idle_until = time.monotonic() + IDLE_PAUSE_S
            return start
        return there.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.records_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._following().fix_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = self._follower.ends() if self._follower is not None else {}
        nested: dict[str, dict[str, int]] = {}
        for place in sorted(ends):
            nested.setdefault(place.topic, {})[str(place.partition)] = ends[place]
        return nested or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Position.from_json(start), Position.from_json(end)
        if before.generation != after.generation:
            return []  # a seek: Spark runs one empty batch and goes on from there
        pieces = split(after.ranges, records_max=self._options.records_per_task_max, pieces_min=self._options.tasks_min)
        return [Task(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes one batch late, and not at all when the query is idle or ends; `latestOffset` commits."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _following(self) -> GroupFollower:
        if self._follower is None:
            self._client = connect(self._options, timeout_s=FIRST_CONTACT_S)
            self._follower = GroupFollower(self._options, self._client, SystemClock())
        return self._follower


def _read(options: Options, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    # Spark hands a partition without a value to a batch read that has nothing to read.
    return read_range(options, partition.value) if partition.value is not None else iter(())


def _patiently(call: Callable[[], T]) -> T:
    """What the call returns once its broker is there; raises its error after two minutes without one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (BrokerUnreachable, RefusedByBroker) as error:
            is_passing = not isinstance(error, RefusedByBroker) or error.code.is_retriable
            if not is_passing or time.monotonic() > deadline:
                raise
            time.sleep(IDLE_PAUSE_S)


def _resolved(
    given: str | Offsets, default: Offsets, bounds: dict[TopicPartition, Bounds], name: str
) -> dict[TopicPartition, int]:
    """The offsets that were asked for, each in its log; raises a sentence where one is not."""
    offsets = dict(default)
    if not isinstance(given, str):
        if set(given) != set(bounds):
            raise UserError(
                f"The option {name} must have an offset for each partition that is read and no other: "
                + ", ".join(str(place) for place in sorted(bounds))
                + ". Nothing was read."
            )
        words = {LATEST: lambda place: bounds[place].end, EARLIEST: lambda place: bounds[place].start}
        offsets = {place: words[offset](place) if offset in words else offset for place, offset in given.items()}
    for place, offset in sorted(out_of_range(offsets, bounds).items()):
        raise UserError(
            f"{name} asks for offset {offset} of {place}, but the log holds {bounds[place].start} to "
            f"{bounds[place].end} (the end is the next offset to be written). Nothing was read."
        )
    return offsets


def _check_schema(schema: StructType, wanted: StructType) -> None:
    if [(one.name, one.dataType) for one in schema.fields] != [(one.name, one.dataType) for one in wanted.fields]:
        raise UserError(
            f'format("logmark") always gives the columns {", ".join(wanted.names)}. Nothing was read. Leave out '
            ".schema(...) and turn the value into columns of your own afterwards, for example with from_json."
        )
