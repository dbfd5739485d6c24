"""The last commit of a query that was stopped: the one that it would have made at its next trigger.

A query commits a batch when Spark asks for the next one. One that is stopped between two batches is not asked any more,
and its group would seem to be a batch behind until the next run.
"""

import contextlib
import os
from pathlib import Path

from logmark.client.answers import Committed
from logmark.errors import LogmarkError
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.pipelines.pipeline import Pipeline, Version
from logmark.spark.pipelines.query import Brokers, read_options
from logmark.spark.source.cluster import Cluster
from logmark.spark.source.options import parse
from logmark.spark.source.position import Found, Position, Unmoved, judge
from logmark.spark.source.range_reader import connect
from logmark.spark.tables.table import read_position

_TIMEOUT_S = 5.0


def settle(pipeline: Pipeline, version: Version, brokers: Brokers) -> None:
    """The group stands where the stopped query does, if the cluster can be reached and nobody else has moved it."""
    with contextlib.suppress(LogmarkError, OSError):
        position = finished(version.checkpoint)
        if position is not None and position.group == version.group:
            options = parse(read_options(pipeline, version, brokers, {}), is_stream=True)
            with connect(options, timeout_s=_TIMEOUT_S) as client:
                commit_finished(client, position)


def commit_finished(cluster: Cluster, position: Position) -> bool:
    """Commits the position as its query would; False if somebody has moved the group, or there is nothing to commit."""
    committed = cluster.committed(position.group, list(position.next))
    found = {
        place: Found(offset=one.offset, mark=CommitMetadata.parse(one.metadata)) for place, one in committed.items()
    }
    verdict = judge(position, found, held=position.committed_before())
    if not isinstance(verdict, Unmoved) or not verdict.commit:
        return False
    marked = {
        place: Committed(offset=offset, metadata=position.mark(place).to_text())
        for place, offset in verdict.commit.items()
    }
    cluster.commit(position.group, marked)
    return True


def finished(checkpoint: Path) -> Position | None:
    """Where a query stands that was stopped between two batches; None if it was stopped in one, or before the first."""
    planned, done = (last_number(checkpoint / kind) for kind in ("offsets", "commits"))
    return read_position(checkpoint, planned) if planned is not None and planned == done else None


def last_number(folder: Path) -> int | None:
    """The highest number of a log of Spark's, None if it has none."""
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=None)
    except FileNotFoundError:
        return None
