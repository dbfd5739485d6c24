"""Reads a range of a partition into Arrow, where the executors are."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

from logmark.client.aborted_transactions import without_aborted
from logmark.client.client import Client
from logmark.client.errors import ClientError, OffsetOutOfRange, UnknownTopic
from logmark.client.fetcher import Fetcher, next_offset
from logmark.errors import UserError
from logmark.memory import freeze_gc, keep_freed_buffers
from logmark.names import TopicPartition
from logmark.spark.dead_letters import DeadLetterSender, DeadLetterTarget
from logmark.spark.errors import is_transient, to_spark_error
from logmark.spark.source.data_loss import Loss, describe_losses
from logmark.spark.source.options import SourceOptions
from logmark.spark.source.parallel_fetch import fetch_in_parallel
from logmark.spark.source.ranges import Bounds, Range
from logmark.wire import columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

DECOMPRESSED_BYTES_MAX = 1 << 30
COMPRESSED_BYTES_FIRST = 512 << 10  # decompressed at once: an answer of 4 MiB may stand for half a gigabyte
COMPRESSED_BYTES_MIN = 64 << 10
WINDOW_BYTES = 4 << 20  # what is wanted of one part, decompressed: every part costs about a millisecond
_HEADER_BYTES, _CODEC_AT, _CODEC_BITS = 61, 22, 7
TIMEOUT_S = 30.0
PAUSE_S = 1.0
UNKNOWN_TOPIC_PATIENCE_S = 30.0


def connect_source(options: SourceOptions, *, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client for the cluster that the options name."""
    return Client(options.bootstrap_servers, config=options.client, client_id=options.client_id, timeout_s=timeout_s)


def read_range(options: SourceOptions, wanted: Range) -> Iterator["pa.RecordBatch"]:
    """Return every record of the range, as `read_ranges` does."""
    return read_ranges(options, (wanted,))


def read_ranges(options: SourceOptions, ranges: Sequence[Range]) -> Iterator["pa.RecordBatch"]:
    """Return every record of the ranges, in order, however often a broker goes away for less than the patience.

    Records can expire after the batch was planned. Spark plans it once and for all, so what is left is read if the
    options allow to skip records; else this and every later attempt raises UserError.
    """
    keep_freed_buffers()
    with ExitStack() as held:
        laid_out = _layout(options, held)
        connection = held.enter_context(_Connection(options))
        for wanted in ranges:
            yield from _read_patiently(options, wanted, laid_out, connection)
    freeze_gc()  # at the end of a task, when all that it needs is imported


class _Connection:
    """A client for all ranges of a task; after an error the next attempt gets a new one."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._held = ExitStack()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self) -> Client:
        """Return the client, connected."""
        if self._client is None:
            self._client = self._held.enter_context(connect_source(self._options))
        return self._client

    def close(self) -> None:
        """Close the client."""
        self._client = None
        self._held.close()


def _read_patiently(
    options: SourceOptions, wanted: Range, laid_out: "Layout", connection: _Connection
) -> Iterator["pa.RecordBatch"]:
    progress = _Progress(wanted.first)
    waits = _RetryWait(options.patience_s)
    while progress.at < wanted.stop:
        before = progress.at
        try:
            with ExitStack() as opened:
                client = connection.client()
                fetchers = [
                    opened.enter_context(
                        client.fetcher(
                            wanted.partition, bytes_max=options.fetch_bytes_max, read_committed=options.read_committed
                        )
                    )
                    for _ in range(options.fetches_in_flight)
                ]
                yield from _read(fetchers, wanted, progress, options, laid_out)
            return
        except OffsetOutOfRange as error:
            connection.close()
            progress.at = _skip_lost(options, wanted, progress.at, error)
        except ClientError as error:
            connection.close()
            if progress.at > before:
                waits = _RetryWait(options.patience_s)
            waits.wait(wanted, error)


class _Progress:
    """How far a range was handed on, so that another connection continues there."""

    def __init__(self, at: int) -> None:
        self.at = at


class _RetryWait:
    """Waits for a broker that is away, as long as the patience lasts."""

    def __init__(self, patience_s: float) -> None:
        self._began = time.monotonic()
        self._patience_s = patience_s

    def wait(self, wanted: Range, error: ClientError) -> None:
        """Pause before another try; raises the error if it does not pass, or has lasted too long."""
        patience_s = min(self._patience_s, UNKNOWN_TOPIC_PATIENCE_S if isinstance(error, UnknownTopic) else 1e9)
        waited_s = time.monotonic() - self._began
        if not is_transient(error) or waited_s >= patience_s:
            raise to_spark_error(error) from None
        log.warning("%s Reading of %s is tried again for up to %.0f s.", error, wanted.partition, patience_s - waited_s)
        time.sleep(PAUSE_S)


def _skip_lost(options: SourceOptions, wanted: Range, at: int, error: OffsetOutOfRange) -> int:
    """Return where to continue after lost records; raises UserError if none may be skipped."""
    is_beyond = error.offset > error.log_end
    bounds = Bounds(min(error.log_start, wanted.stop), error.log_end)
    lost = Loss(partition=wanted.partition, offset=error.offset if is_beyond else at, bounds=bounds)
    if options.lost is None or is_beyond or error.log_start <= at:
        raise UserError(
            f"{describe_losses([lost])}. They were planned to be read and have expired since. Nothing was skipped. To "
            "skip what is gone, set failOnDataLoss to false, or auto.offset.reset to earliest or latest."
        ) from None
    log.warning("%s. What is gone is skipped, as the options say.", describe_losses([lost]))
    return min(error.log_start, wanted.stop)


def _read(
    fetchers: Sequence[Fetcher], wanted: Range, progress: _Progress, options: SourceOptions, laid_out: "Layout"
) -> Iterator["pa.RecordBatch"]:
    # Only here: the driver plans ranges without Arrow.
    from logmark.spark.source.arrow import split_batch

    expansion = Expansion()
    for answer, stop in fetch_in_parallel(fetchers, progress.at, wanted.stop, timeout_s=TIMEOUT_S):
        end = min(stop, next_offset(answer.records, progress.at))
        records = answer.records
        if options.read_committed and answer.aborted_transactions:
            records = without_aborted(records, answer.aborted_transactions)
        for window in split_windows(records, expansion):
            # One call may stop early, where the values would no longer fit into one Arrow array.
            while progress.at < end:
                part = columns.decode(
                    window,
                    start=progress.at,
                    stop=stop,
                    with_headers=options.with_headers,
                    decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                )
                expansion.saw(len(window), len(part.value_bytes) + len(part.key_bytes))
                if part.next_offset <= progress.at:
                    break  # what is left is not to be seen: aborted, or beyond the range in a compacted log
                # Laid out before they count as handed on: if dead letters cannot be sent, the part is read again.
                rows = laid_out(part, wanted.partition) if part.count else None
                progress.at = part.next_offset
                if rows is not None and rows.num_rows:
                    yield from split_batch(rows)


Layout = Callable[[columns.Columns, TopicPartition], "pa.RecordBatch"]


def _layout(options: SourceOptions, held: ExitStack) -> Layout:
    """Return what makes records the columns that were asked for; what it holds open is closed with `held`."""
    # Only here: each Python process that Spark starts imports only what its options need.
    if options.value_schema is not None:
        from logmark.spark.source.json_values import JsonValues

        values = JsonValues(options.value_schema, options.columns, tombstones=options.tombstones)
        if options.dead_letters is None:
            return values.to_arrow
        # Only here: only with a dead-letter topic.
        from logmark.spark.source.valid_rows import ValidRows

        target = DeadLetterTarget(
            bootstrap_servers=options.bootstrap_servers,
            topic=options.dead_letters,
            pipeline=options.dead_letters_pipeline,
            client_id=options.client_id,
            client=options.client,
            patience_s=options.patience_s,
        )
        sender = held.enter_context(DeadLetterSender(target))
        return ValidRows(values, sender).to_arrow
    # Only here: only without a schema for the values.
    from logmark.spark.source.arrow import Times, to_arrow

    return partial(to_arrow, times=Times(), names=options.columns)


class Expansion:
    """How many compressed bytes to take at once, by what the last ones became."""

    def __init__(self) -> None:
        self.compressed_bytes = COMPRESSED_BYTES_FIRST

    def saw(self, compressed: int, decompressed: int) -> None:
        """Take at most four times as much as before, because one part says little about the next."""
        wanted = WINDOW_BYTES * compressed // max(1, decompressed)
        self.compressed_bytes = max(COMPRESSED_BYTES_MIN, min(wanted, 4 * self.compressed_bytes, WINDOW_BYTES))


def split_windows(records: memoryview, expansion: Expansion) -> Iterator[memoryview]:
    """Split a fetch response into whole batches that stay small when decompressed; one part if none is compressed."""
    size = len(records)
    at = begin = 0
    while size - at >= _HEADER_BYTES and records[_CODEC_AT] & _CODEC_BITS:
        end = at + 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        if end > size:
            break
        if end - begin > expansion.compressed_bytes and at > begin:
            yield records[begin:at]
            begin = at
        at = end
    yield records[begin:]
