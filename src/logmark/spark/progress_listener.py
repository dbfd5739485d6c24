"""Reports the progress of a session's streaming queries to the log, and to Prometheus if asked."""

import atexit
import contextlib
import json
import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from logmark.offsets.monitor.metrics_server import MetricsServer, parse_listen
from logmark.spark.progress import QueryBoard, describe_batch, describe_dropped, serve_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class ProgressListener(StreamingQueryListener):
    """Hears of every micro-batch of a Spark session; Spark calls it outside of the query, which never waits for it."""

    def __init__(self, board: QueryBoard) -> None:
        self.board = board

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query is known from its first batch on."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            totals = self.board.add(str(event.progress.id), json.loads(event.progress.json))
            if totals is None:
                return
            log.info("%s.", describe_batch(totals))
            dropped = totals.warnings.due(totals.dropped)
            if dropped:
                log.warning(
                    "Query %s: %s, %d in all since it started.",
                    totals.last.name, describe_dropped(dropped), totals.dropped,
                )  # fmt: skip
        except Exception:
            log.exception("The progress of a query could not be reported. The query itself runs on.")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query is where its last batch ended."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        totals = self.board.remove(str(event.id))
        if totals is not None and totals.dropped:
            log.warning("Query %s ended: %s.", totals.last.name, describe_dropped(totals.dropped))


# One for all sessions of the process: the ids of queries are unique, and an address outlives the session that named it.
_board = QueryBoard()
_listeners: "WeakKeyDictionary[SparkSession, ProgressListener]" = WeakKeyDictionary()
_servers: dict[str, MetricsServer] = {}


def _remove(spark: "SparkSession", listener: ProgressListener) -> None:
    with contextlib.suppress(Exception):  # Spark was stopped before
        spark.streams.removeListener(listener)


def report_progress(spark: "SparkSession", *, metrics: str | None = None) -> ProgressListener:
    """Report the progress of the session's streaming queries to the log, and to Prometheus at the address `metrics`.

    `metrics` is HOST:PORT, as of `logmark monitor`. A session has one listener, however often this is called.
    With Spark Connect the listener runs in this process, as long as it is connected.
    Raises UserError if nothing can listen on the address.
    """
    listener = _listeners.get(spark)
    if listener is None:
        listener = ProgressListener(_board)
        spark.streams.addListener(listener)
        _listeners[spark] = listener
        # A process that ends without stopping Spark would otherwise leave Java with a listener that does not answer,
        # and Java would print pages about it.
        atexit.register(_remove, spark, listener)
    if metrics is not None and metrics not in _servers:
        address = parse_listen(metrics)
        if address is not None:
            _servers[metrics] = server = serve_metrics(address, _board.families)
            log.info("The metrics of streaming queries are at http://%s:%d/metrics.", server.host, server.port)
    return listener
