"""`format("logmark")` as a writer: Spark's side of the sink."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.errors import UserError
from logmark.offsets.partitioner import partition_for_key
from logmark.spark.errors import to_spark_error
from logmark.spark.sink.delivery import Content, DeliveryPlan, commit_batch, read_delivery_plan, sink_group
from logmark.spark.sink.options import SinkOptions, parse_sink_options
from logmark.spark.sink.outbox import Attempt, Headers, Outbox, connect_sink, retry_call
from logmark.spark.sink.topics import ID_HEADER

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = (StringType, BinaryType)
_COMPARED = ("key", "value")
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType, LongType),
    "id": (StringType,),
}
_TOLD = {
    "key": "a string or binary", "value": "a string or binary", "topic": "a string", "partition": "an int",
    "headers": "array<struct<key: string, value: binary>>", "timestamp": "a timestamp, or milliseconds as a long",
    "id": "a string",
}  # fmt: skip


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise UserError unless rows of these columns can be written to a topic."""
    extra = [name for name in schema.names if name not in COLUMNS]
    if extra:
        raise UserError(
            f"A topic cannot take the column {' and '.join(extra)}: the columns are {', '.join(COLUMNS)}. Nothing "
            "was written. Put others into value, for example with to_json(struct(...)), or drop them."
        )
    if "value" not in schema.names:
        raise UserError("The rows have no column value. Nothing was written. Name one so, and key if they have keys.")
    if topic is None and "topic" not in schema.names:
        raise UserError(
            'It is not said which topic the rows are for. Nothing was written. Add .option("topic", "clicks"), or a '
            "column topic."
        )
    for one in schema.fields:
        is_right = isinstance(one.dataType, COLUMNS[one.name])
        if not is_right or (isinstance(one.dataType, ArrayType) and not _is_headers(one.dataType)):
            raise UserError(
                f"The column {one.name} must be {_TOLD[one.name]}, and is {one.dataType.simpleString()}. Nothing was "
                "written. Cast it."
            )


def _is_headers(kind: ArrayType) -> bool:
    pair = kind.elementType
    if not isinstance(pair, StructType) or len(pair.fields) != 2:
        return False
    name, value = (one.dataType for one in pair.fields)
    return isinstance(name, StringType) and isinstance(value, _TEXT)


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """What a task has written, and all that it had to write."""

    query: str
    topics: frozenset[str]
    content: Content = field(default_factory=Content)


def send(options: SinkOptions, planned: DeliveryPlan, attempt: Attempt, rows: "Iterator[pa.RecordBatch]") -> Sent:
    """Write the rows of a task, without those that were written before."""
    content = Content()
    if options.is_once and planned.is_done(attempt.query, attempt.batch):
        for some in rows:
            if some.num_rows:
                planned.check_last(attempt.query, attempt.batch)
                content += _content(some)
        return Sent(attempt.query, frozenset(), content)
    with _connected(options) as client:
        outbox = Outbox(client, options, planned, attempt)
        now_ms = time.time_ns() // 1_000_000
        for some in rows:
            if some.num_rows:
                columns = _put(outbox, some, now_ms, options.topic)
                if options.is_once and options.id is not None:
                    content += Content.of(columns.get("key"), columns["value"])
        outbox.close()
        return Sent(attempt.query, outbox.topics, content)


@contextlib.contextmanager
def _connected(options: SinkOptions) -> Iterator[Client]:
    """Return a client whose errors keep through Spark whether they are transient."""
    try:
        with connect_sink(options) as client:
            yield client
    except ClientError as error:
        raise to_spark_error(error) from None


def _content(rows: "pa.RecordBatch") -> Content:
    keys, values = (_listed(name, rows.column(name)) if name in rows.schema.names else None for name in _COMPARED)
    return Content.of(keys, values or ())


def _put(outbox: Outbox, rows: "pa.RecordBatch", now_ms: int, topic: str | None) -> dict[str, list[Any]]:
    """Hand the rows to the outbox; returns their columns as lists."""
    columns = {name: _listed(name, rows.column(name)) for name in rows.schema.names}
    count = rows.num_rows
    nothing: list[Any] = [None] * count
    headers: list[Headers] = [()] * count
    if "headers" in columns or "id" in columns:
        pairs, ids = (columns.get(name, nothing) for name in ("headers", "id"))
        headers = [_headers(some, own_id) for some, own_id in zip(pairs, ids, strict=True)]
    times = [now_ms if at_ms is None else at_ms for at_ms in columns.get("timestamp", nothing)]
    if topic is not None and "partition" not in columns:
        keys = rows.column("key") if "key" in columns else None
        outbox.put_all(
            topic, columns.get("key"), columns["value"], headers, times, lambda count: _partitions(keys, count)
        )
        return columns
    topics, partitions, keys = (columns.get(name, nothing) for name in ("topic", "partition", "key"))
    for row in zip(topics, partitions, keys, columns["value"], headers, times, strict=True):
        outbox.put(*row)
    return columns


def _partitions(keys: "pa.Array", count: int) -> list[int]:
    column = keys.cast("binary")
    try:
        from logmark.spark.sink.key_hashes import partitions_of_keys
    except ImportError:  # numpy comes with pandas, which Spark recommends and does not need
        return [0 if key is None else partition_for_key(key, count) for key in column.to_pylist()]
    return partitions_of_keys(column, count)


def _headers(pairs: Any, own_id: str | None) -> Headers:
    if not pairs and own_id is None:
        return ()
    found: list[tuple[str | bytes, bytes | None]] = []
    for pair in pairs or ():
        name, value = pair.values()
        if name is None:
            raise UserError("A header has no key. Every header needs a key; its value may be null.")
        found.append((name, value.encode() if isinstance(value, str) else value))
    if own_id is not None:
        found.append((ID_HEADER, own_id.encode()))
    return found


def _listed(name: str, column: "pa.Array") -> list[Any]:
    # Only here: only tasks convert columns, and pyarrow belongs to the extra `spark`.
    import pyarrow as pa

    if name in _COMPARED:
        column = column.cast(pa.binary())
    elif name == "timestamp":
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        column = column.cast(pa.int64())
    listed: list[Any] = column.to_pylist()
    return listed


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame: once with the option `id`, however often the job is run; without it once per job."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._query = f"batch {options.id or uuid.uuid4().hex}"
        group = sink_group(options.id, is_stream=False) if options.id is not None and options.is_once else None
        self._plan = _planned(options, group)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Sent:
        """Run in a task."""
        return send(self._options, self._plan, _attempt(self._query, 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the rows are written, and the same job would find them."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: written rows stay; with the option `id` the next run resumes after them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once: tasks send the rows, and the driver's commit closes the batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._plan: DeliveryPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends a writer to the tasks of a batch right after it was made, and makes another one for the commit:
        # only the first has to look at the topic.
        if self._plan is None:
            self._plan = _planned(self._options, self._group)
        return {"_options": self._options, "_plan": self._plan}

    @property
    def _group(self) -> str | None:
        id = self._options.id
        return sink_group(id, is_stream=True) if id is not None and self._options.is_once else None

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Sent:
        """Run in a task."""
        assert self._plan is not None, "a writer in a task was sent there"
        return send(self._options, self._plan, _attempt(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit, on the driver, when all tasks have written: the next batch starts after this one."""
        sent = [message for message in messages if isinstance(message, Sent)]
        group = self._group
        if group is None or not sent:
            return
        topics = {topic for message in sent for topic in message.topics} | {self._options.topic or ""} - {""}
        with _connected(self._options) as client:
            query, content = sent[0].query, sum((message.content for message in sent), Content())
            retry_call(
                lambda: commit_batch(client, topics=topics, group=group, query=query, batch=batchId, content=content),
                self._options,
                f"Committing to group {group}",
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: written rows stay, and the repeated batch finds them."""


def _planned(options: SinkOptions, group: str | None) -> DeliveryPlan:
    if not options.is_once:
        return DeliveryPlan()
    with _connected(options) as client:
        return retry_call(
            lambda: read_delivery_plan(client, topic=options.topic, group=group), options, "Planning the batch"
        )


def _attempt(query: str | None = None, batch: int | None = None) -> Attempt:
    # Only here: only tasks have a context.
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    read_property = context.getLocalProperty
    return Attempt(
        query=query or read_property("sql.streaming.queryId") or "",
        batch=int(read_property("streaming.sql.batchId") or 0) if batch is None else batch,
        task=context.partitionId(),
        is_first=context.attemptNumber() == 0,
    )


def batch_writer(options: Any, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of a DataFrame."""
    if overwrite:
        raise UserError('A topic cannot be overwritten. Nothing was written. Append to it with .mode("append").')
    return BatchWriter(parse_sink_options(options, is_stream=False), schema)


def stream_writer(options: Any, schema: StructType) -> StreamWriter:
    """Return the writer of a stream."""
    return StreamWriter(parse_sink_options(options, is_stream=True), schema)
