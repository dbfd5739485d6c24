"""`format("logmark")`: Spark's side of the source."""

import logging
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from logmark.client.client import Client
from logmark.client.errors import ClientError
from logmark.clock import SystemClock
from logmark.errors import UserError
from logmark.spark.dead_letters import check_dead_letter_topic
from logmark.spark.errors import GroupInUse, is_transient, to_spark_error
from logmark.spark.sink.writer import batch_writer, stream_writer
from logmark.spark.source.batch_ranges import plan_batch_ranges
from logmark.spark.source.group_follower import GroupFollower
from logmark.spark.source.heartbeat import HeartbeatThread
from logmark.spark.source.offset_maps import nest_by_topic
from logmark.spark.source.options import SourceOptions, parse_source_options
from logmark.spark.source.ownership import HEARTBEAT_EVERY_MS, is_on_this_machine
from logmark.spark.source.position import Position, is_of_first_form
from logmark.spark.source.query_tokens import make_load_token
from logmark.spark.source.range_reader import connect_source, read_ranges
from logmark.spark.source.ranges import Range, pack, split
from logmark.spark.source.schemas import check_options

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

FIRST_CONTACT_S = 10.0
IDLE_PAUSE_S = 0.1  # Spark asks an idle source 80 times a second
IDLE_PAUSE_FIRST_S = 0.01  # right after a batch: whatever comes next comes soon
STOP_TIMEOUT_S = 2.0
ENDING_PATIENCE_S, ENDING_POLL_S = 10.0, 0.1  # a query that was just stopped may be about to say so


class DefaultSource(DataSource):
    """Kafka topics, of Logmark or of Apache Kafka: read as batches and as a consumer group's stream, and written."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark makes one data source of each load(), and hands a copy of it to each reader.
        self._load = make_load_token()

    @classmethod
    def name(cls) -> str:
        return "logmark"

    def schema(self) -> StructType:
        return check_options(self.options)  # at load() already, not when the query runs

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema, self.schema())
        return BatchReader(parse_source_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            _check_schema(schema, self.schema())
            return StreamReader(parse_source_options(self.options, is_stream=True), self._load)
        except UserError as error:
            # Raised here, PySpark would hide it behind an error of its own: it stops a reader that it never got.
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return stream_writer(self.options, schema)


class Task(InputPartition):
    """What one task reads: one range, or several small ones after each other."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets and leaves no trace in any group."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with connect_source(options, timeout_s=FIRST_CONTACT_S) as client:
            ranges = plan_batch_ranges(client, options, now_ms=SystemClock().now_ms())
            _check_dead_letters(client, options, {partition.topic for partition in ranges})
        pieces = split(ranges, records_max=options.records_per_task_max, pieces_min=options.tasks_min)
        packed = pack(pieces, records_max=options.records_per_task_max, tasks_min=options.tasks_min)
        return [Task(ranges) for ranges in packed]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads as a consumer group; the process that plans batches holds the connection, executors make their own."""

    def __init__(self, options: SourceOptions, load: str = "") -> None:
        self._options = options
        self._load = load
        self._client: Client | None = None
        self._follower: GroupFollower | None = None
        self._begun: Position | None = None
        self._idle_until = 0.0
        self._pause_s = IDLE_PAUSE_FIRST_S
        self._away_since: float | None = None
        self._in_use_since: float | None = None
        self._is_end_to_be_fixed = False
        self._lock = threading.Lock()  # of the follower and the client: the heartbeat uses them too
        self._heartbeat: HeartbeatThread | None = None
        self._is_stopped = False
        self._is_interrupted = False

    def __reduce__(self) -> tuple[type["StreamReader"], tuple[SourceOptions, str]]:
        return StreamReader, (self._options, self._load)

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice and writes its log in between: another answer would lose the records between the two.
        if self._begun is None:
            try:
                with self._exclusively():
                    self._begun = self._following().start()
            except ClientError as error:
                raise to_spark_error(error) from None
        return self._begun.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        here = Position.from_json(start)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        there = self._advanced(here, records_max)
        if there is here:
            self._idle_until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, IDLE_PAUSE_S)
            return start
        self._pause_s = IDLE_PAUSE_FIRST_S
        return there.to_json()

    def _advanced(self, here: Position, records_max: int | None) -> Position:
        """Return the end of the next batch, None while the broker is away and the patience lasts."""
        while True:
            try:
                with self._exclusively():
                    follower = self._following()
                    if self._is_end_to_be_fixed:
                        self._fix_end()
                    there = follower.advance(here, records_max=records_max)
                    if there is here and follower.reads_to_a_fixed_end:
                        self._mark_stopped(follower)  # Spark ends the query now
            except GroupInUse as error:
                self._await_end_of_owner(error)
                continue
            except ClientError as error:
                self._endure(error)
                if not self._reads_to_a_fixed_end:
                    return here  # Spark asks again, and can stop the query in between
                time.sleep(IDLE_PAUSE_S)
                continue
            self._away_since = None
            return there

    @property
    def _reads_to_a_fixed_end(self) -> bool:
        follower = self._follower
        return self._is_end_to_be_fixed or (follower is not None and follower.reads_to_a_fixed_end)

    def _await_end_of_owner(self, error: GroupInUse) -> None:
        """Wait a moment if the owner of the group runs on this machine, and may be ending; else raise the error."""
        now = time.monotonic()
        self._in_use_since = now if self._in_use_since is None else self._in_use_since
        if not is_on_this_machine(error.process) or now - self._in_use_since >= ENDING_PATIENCE_S:
            raise error
        time.sleep(ENDING_POLL_S)

    def _endure(self, error: ClientError) -> None:
        """Raise the error if it is permanent, or has lasted for longer than the patience."""
        now = time.monotonic()
        is_first = self._away_since is None
        self._away_since = now if self._away_since is None else self._away_since
        if not is_transient(error) or now - self._away_since >= self._options.patience_s:
            raise to_spark_error(error) from None
        if is_first:
            log.warning("%s The query waits up to %.0f s for it.", error, self._options.patience_s)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.limits.records_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_end_to_be_fixed = True
        try:
            with self._exclusively():
                self._fix_end()
        except ClientError as error:
            self._endure(error)  # a query that resumes from its checkpoint waits; a new one asks where it starts

    def _fix_end(self) -> None:
        self._following().fix_end()
        self._is_end_to_be_fixed = False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = self._follower.ends() if self._follower is not None else {}
        return nest_by_topic(ends) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        # By the end alone: it says where its batch begins, which for a seek is where it ends. The start says something
        # else where the first batch is repeated after a crash.
        after = Position.from_json(end)
        options = self._options
        pieces = split(after.ranges, records_max=options.records_per_task_max, pieces_min=options.tasks_min)
        if is_of_first_form(end):
            # The version of Logmark that planned this batch made a task of each piece, and a topic knows the rows that
            # it has got already by their task.
            return [Task((piece,)) for piece in pieces]
        packed = pack(pieces, records_max=options.records_per_task_max, tasks_min=options.tasks_min)
        return [Task(ranges) for ranges in packed]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls it one batch late, and not when the query is idle or ends; `latestOffset` commits."""

    def stop(self) -> None:
        """Say in the group that the query has stopped, and close the connection; nothing depends on either."""
        self._is_stopped = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        # A heartbeat under way would otherwise say last that the query runs.
        if self._follower is not None and self._lock.acquire(timeout=STOP_TIMEOUT_S):
            try:
                self._mark_stopped(self._follower)
            finally:
                self._lock.release()
        if self._client is not None:
            self._client.close()

    def _mark_stopped(self, follower: GroupFollower) -> None:
        # At once, over the open connection: the less time it takes, the less it can write over a reset made now.
        with suppress(ClientError, OSError):
            if self._client is not None and not self._is_interrupted:
                follower.mark_stopped(self._client)
            else:
                with connect_source(self._options, timeout_s=STOP_TIMEOUT_S) as client:
                    follower.mark_stopped(client)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock of follower and client; remember if a signal interrupted a request."""
        with self._lock:
            try:
                yield
            except SystemExit:
                self._is_interrupted = True
                raise

    def _following(self) -> GroupFollower:
        if self._client is None:
            self._client = connect_source(self._options, timeout_s=FIRST_CONTACT_S)
        if self._follower is None:
            _check_dead_letters(self._client, self._options, self._options.topics)
            self._follower = GroupFollower(self._options, self._client, SystemClock(), load=self._load)
            self._heartbeat = HeartbeatThread(self._renew_heartbeat, every_s=HEARTBEAT_EVERY_MS / 1000)
            _raise_on_sigterm()
        return self._follower

    def _renew_heartbeat(self) -> None:
        with self._lock:
            if self._follower is not None and not self._is_stopped:
                self._follower.renew_heartbeat()


def _raise_on_sigterm() -> None:
    """Let SIGTERM end this process by an exception: Spark stops a query by this signal, and calls `stop` only then."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough, and what follows ends within seconds
    raise SystemExit(0)


class RefusedReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and raises the reason at Spark's first question."""

    def __init__(self, error: UserError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        raise self._error


def _read(options: SourceOptions, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    # Spark hands a partition without a value to a batch read that has nothing to read.
    return read_ranges(options, partition.value) if partition.value is not None else iter(())


def _check_dead_letters(client: Client, options: SourceOptions, reads: Collection[str]) -> None:
    if options.dead_letters is None:
        return
    also = (
        [options.dead_letters]
        if options.pattern is not None and options.pattern.fullmatch(options.dead_letters)
        else []
    )
    check_dead_letter_topic(client, options.dead_letters, reads=[*reads, *also])


def _check_schema(schema: StructType, wanted: StructType) -> None:
    if [(one.name, one.dataType) for one in schema.fields] != [(one.name, one.dataType) for one in wanted.fields]:
        raise UserError(
            f'format("logmark") always gives the columns {", ".join(wanted.names)}. Nothing was read. Leave out '
            ".schema(...); the columns of a JSON value are given by the options value.format=json and value.schema."
        )
