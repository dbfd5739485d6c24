"""What the progress of streaming queries says: records and seconds behind, rates, and rows that came too late.

Spark reports after every micro-batch (`StreamingQueryProgress`, as JSON). Everything here is computed from these
reports alone: no broker is asked, and it works the same in a classic session and with Spark Connect.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logmark.names import TopicPartition
from logmark.offsets.monitor.lookup_table import LookupTable
from logmark.offsets.monitor.metrics_server import MetricsServer
from logmark.offsets.monitor.prometheus_text import MetricFamily, format_metrics

WARN_EVERY_S = 60.0
_OURS = "~logmark"  # the key of what format("logmark") adds to its offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """One finished micro-batch, as Spark reports it.

    `next` and `ends` are the offsets after the batch and the log ends when it was planned, of the sources of
    `format("logmark")`. `dropped` counts the rows that the watermark dropped: a lower bound, because Spark counts them
    after it has combined rows of the same key and window within a task.
    """

    name: str
    number: int
    at_ms: int
    duration_ms: int
    rows: int
    dropped: int
    watermark_ms: int | None
    next: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @property
    def behind(self) -> int:
        """How many records were left to read when the batch was planned."""
        return sum(max(end - self.next[one], 0) for one, end in self.ends.items() if one in self.next)


def parse_batch(progress: Mapping[str, Any]) -> BatchProgress | None:
    """Return the batch of a report, None if the report says that there was nothing to do."""
    durations = progress.get("durationMs") or {}
    if "addBatch" not in durations:
        return None
    sources = progress.get("sources") or ()
    following, ends = (
        {one: offset for source in sources for one, offset in parse_offsets(source.get(name)).items()}
        for name in ("endOffset", "latestOffset")
    )
    duration_ms = int(durations.get("triggerExecution", 0))
    return BatchProgress(
        name=str(progress.get("name") or progress.get("id")),
        number=int(progress["batchId"]),
        at_ms=parse_time_ms(progress["timestamp"]) + duration_ms,
        duration_ms=duration_ms,
        rows=sum(max(int(source.get("numInputRows") or 0), 0) for source in sources),
        dropped=count_dropped(progress),
        watermark_ms=_watermark_ms(progress),
        next=following,
        ends=ends,
    )


def count_dropped(progress: Mapping[str, Any]) -> int:
    """Return how many rows the watermark dropped in a batch, over all stateful operators."""
    operators = progress.get("stateOperators") or ()
    return sum(max(int(one.get("numRowsDroppedByWatermark") or 0), 0) for one in operators)


def parse_offsets(offset: Any) -> dict[TopicPartition, int]:
    """Return the offsets in an offset of `format("logmark")`, as text or parsed; empty for one of another source."""
    try:
        fields = json.loads(offset) if isinstance(offset, str) else offset
        return {
            TopicPartition(topic, int(number)): int(value)
            for topic, numbers in fields.items()
            if topic != _OURS
            for number, value in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def parse_time_ms(text: str) -> int:
    """Return a time of a report in milliseconds since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _watermark_ms(progress: Mapping[str, Any]) -> int | None:
    text = (progress.get("eventTime") or {}).get("watermark")
    return (parse_time_ms(text) or None) if text else None  # until the first batch Spark says 1970


@dataclass(slots=True, kw_only=True)
class QueryTotals:
    """What is known of one running query."""

    last: BatchProgress
    batches: int = 0
    rows: int = 0
    dropped: int = 0
    busy_ms: int = 0
    seconds_behind: float = math.nan
    tables: dict[TopicPartition, LookupTable] = field(default_factory=dict)
    warnings: "DropWarnings" = field(default_factory=lambda: DropWarnings())

    def add(self, batch: BatchProgress) -> None:
        """Count a batch, and learn from its log ends when they were passed."""
        self.last = batch
        self.batches += 1
        self.rows += batch.rows
        self.dropped += batch.dropped
        self.busy_ms += batch.duration_ms
        seconds = [0.0] if batch.ends else [math.nan]
        for one, end in batch.ends.items():
            table = self.tables.setdefault(one, LookupTable())
            table.add(end, batch.at_ms - batch.duration_ms)
            if one in batch.next and batch.next[one] < end:
                seconds.append(table.lag_seconds(batch.next[one], batch.at_ms))
        known = [one for one in seconds if math.isfinite(one)]
        # Of the first batch of a query it is not known how old the records are that are left.
        self.seconds_behind = max(known) if len(known) == len(seconds) else math.nan

    @property
    def rate(self) -> float:
        """Records per second of the last batch."""
        return self.last.rows * 1000 / max(self.last.duration_ms, 1)


class QueryBoard:
    """Running queries by their names or ids; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryTotals] = {}

    def add(self, query: str, progress: Mapping[str, Any]) -> QueryTotals | None:
        """Count the batch of a report and return the totals of its query, None if it tells of no batch."""
        batch = parse_batch(progress)
        if batch is None:
            return None
        with self._lock:
            totals = self._queries.setdefault(query, QueryTotals(last=batch))
            totals.add(batch)
            return totals

    def remove(self, query: str) -> QueryTotals | None:
        """Forget a query that has ended, and return its totals."""
        with self._lock:
            return self._queries.pop(query, None)

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metrics of all running queries."""
        found = []
        with self._lock:
            for name, type, help, value in _METRICS:
                series = [((one.last.name,), value(one)) for one in self._queries.values()]
                known = [(labels, number) for labels, number in series if not math.isnan(number)]
                found.append(
                    MetricFamily(name=f"logmark_query_{name}", help=help, type=type, labels=("query",), series=known)
                )
        yield from found


def serve_metrics(address: tuple[str, int], families: Callable[[], Iterable[MetricFamily]]) -> MetricsServer:
    """Serve metrics for Prometheus at /metrics of the address; raises UserError if nothing can listen there."""
    return MetricsServer(
        *address, metrics=lambda: format_metrics(families()), health=lambda: (True, "reporting progress")
    )


_METRICS: tuple[tuple[str, str, str, Callable[[QueryTotals], float]], ...] = (
    ("batches_total", "counter", "Micro-batches that a query has finished since it started.", lambda one: one.batches),
    ("records_total", "counter", "Records that a query has read since it started.", lambda one: one.rows),
    ("busy_seconds_total", "counter", "Seconds that the micro-batches took.", lambda one: one.busy_ms / 1000),
    (
        "dropped_rows_total",
        "counter",
        "Rows that came after the watermark and were dropped; a lower bound where Spark combines rows first.",
        lambda one: one.dropped,
    ),
    ("records_per_second", "gauge", "Records per second of the last micro-batch.", lambda one: one.rate),
    (
        "lag_records",
        "gauge",
        "Records that were left to read when the last micro-batch was planned.",
        lambda one: one.last.behind if one.last.ends else math.nan,
    ),
    (
        "lag_seconds",
        "gauge",
        "Seconds since the log ends passed the next offsets, estimated from the ends of earlier micro-batches.",
        lambda one: one.seconds_behind,
    ),
    (
        "watermark_timestamp_seconds",
        "gauge",
        "The watermark of event time, in seconds since 1970.",
        lambda one: math.nan if one.last.watermark_ms is None else one.last.watermark_ms / 1000,
    ),
    (
        "last_batch_timestamp_seconds",
        "gauge",
        "When the last micro-batch ended, in seconds since 1970.",
        lambda one: one.last.at_ms / 1000,
    ),
)


def describe_batch(totals: QueryTotals) -> str:
    """Return a line for the log about the last batch of a query."""
    last = totals.last
    parts = [f"{last.rows:,} records in {last.duration_ms / 1000:.1f} s ({totals.rate:,.0f} a second)"]
    if last.ends:
        seconds = totals.seconds_behind
        ago = "" if math.isnan(seconds) or not last.behind else f", {seconds:.0f} s"
        parts.append(f"{last.behind:,} records{ago} behind")
    if last.dropped:
        parts.append(describe_dropped(last.dropped))
    return f"Query {last.name}, batch {last.number}: {'; '.join(parts)}"


def describe_dropped(count: int) -> str:
    """Return how many rows were dropped, in words."""
    rows = "row" if count == 1 else "rows"
    return f"at least {count:,} late {rows} dropped by the watermark"


class DropWarnings:
    """Decides when to warn that a query drops rows: at the first ones, and then at most once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned_at = -math.inf
        self._told = 0

    def due(self, dropped: int) -> int:
        """Return how many of the rows that were dropped in total to warn about now; 0 for none."""
        now = self._clock()
        if dropped <= self._told or now - self._warned_at < WARN_EVERY_S:
            return 0
        new, self._told, self._warned_at = dropped - self._told, dropped, now
        return new
