"""Topics as sinks: `write_topic`, and which ids a topic holds already."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.spark.sessions import activate_session
from logmark.spark.stream_sources import check_sources
from logmark.wire import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ID_HEADER = "logmark.id"
DECOMPRESSED_BYTES_MAX = 1 << 30


def write_topic(
    frame: "DataFrame",
    topic: str | None = None,
    *,
    bootstrap_servers: str,
    checkpoint: str | Path | None = None,
    every: str | None = None,
    available_now: bool = False,
    name: str | None = None,
    output_mode: str = "append",
    options: Mapping[str, str] | None = None,
) -> "StreamingQuery | None":
    """Write the rows of a DataFrame to a topic and returns, or starts a query that writes those of a stream.

    Rows have the columns value, and where they are wanted key, headers, topic, partition, timestamp and id; see
    docs/spark-sink.md for them and for the `options`. A stream needs a `checkpoint`.
    """
    activate_session(frame.sparkSession)
    given = {"bootstrap.servers": bootstrap_servers, **({"topic": topic} if topic else {}), **(options or {})}
    if not frame.isStreaming:
        frame.write.format("logmark").mode("append").options(**given).save()
        return None
    if checkpoint is None:
        raise UserError("A stream needs a checkpoint, from which it resumes after a restart. Nothing was written.")
    check_sources(frame)
    writer = frame.writeStream.format("logmark").outputMode(output_mode).options(**given)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return start_writer(writer, name=name, available_now=available_now, every=every)


def start_writer(
    writer: "DataStreamWriter", *, name: str | None, available_now: bool, every: str | None
) -> "StreamingQuery":
    """Start the query of a stream: until all that is there now is read, once an interval, or whenever there is more."""
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def ids_in_topic(
    client: Client,
    ids: Collection[str],
    *,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None = None,
) -> set[str]:
    """Return which of these ids the records between these offsets have, as the sink writes them from a column `id`.

    A bound below the log start means the log start, and one that is not given the present end.
    """
    firsts = client.earliest(starts) if starts else {}
    lasts = client.latest(starts) if starts else {}
    wanted = {one.encode() for one in ids}
    found: set[bytes] = set()
    for partition, start in starts.items():
        end = min(lasts[partition], (ends or {}).get(partition, lasts[partition]))
        begin = max(start, firsts[partition])
        if begin >= end or not wanted - found:
            continue
        with client.fetcher(partition) as fetcher:
            for answer in fetcher.read(begin, end):
                found |= _ids(answer.records, begin, end) & wanted
    return {one.decode() for one in found}


def _ids(records: memoryview, begin: int, end: int) -> set[bytes]:
    found: set[bytes] = set()
    at = begin
    while at < end:
        part = columns.decode(
            records, start=at, stop=end, with_headers=True, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        )
        for headers in part.headers():
            found |= {value for name, value in headers if name == ID_HEADER.encode() and value is not None}
        if part.next_offset <= at:
            break
        at = part.next_offset
    return found
