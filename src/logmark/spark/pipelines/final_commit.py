"""The last commit of a stopped query: the one that it would have made at its next trigger.

A query commits a batch when Spark asks for the next one. Spark asks a stopped query no more, so its group would seem to
be one batch behind until the next run.
"""

import contextlib
import time

from logmark.client.client import Client
from logmark.errors import LogmarkError
from logmark.offsets.commit_metadata import CommitMetadata, Heartbeat, QueryState
from logmark.spark.checkpoint import finished_position, has_state
from logmark.spark.pipelines.declaration import PipelineDeclaration, Version
from logmark.spark.pipelines.query import Brokers, read_options
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.ownership import has_ended, is_on_this_machine, name_process
from logmark.spark.source.position import GroupCommit, GroupUnmoved, Position, compare_with_group
from logmark.spark.source.range_reader import connect_source

_TIMEOUT_S = 5.0
_READER_TIMEOUT_S, _POLL_EVERY_S = 3.0, 0.01


def commit_stopped_query(pipeline: PipelineDeclaration, version: Version, brokers: Brokers) -> None:
    """Commit the position of a stopped query, if the cluster can be reached and nobody else has moved the group."""
    with contextlib.suppress(LogmarkError, OSError):
        position = finished_position(version.checkpoint)
        if position is not None and position.group == version.group:
            options = parse_source_options(read_options(pipeline, version, brokers, {}), is_stream=True)
            with connect_source(options, timeout_s=_TIMEOUT_S) as client:
                for source in position.sources:
                    _await_reader(client, source)
                    commit_position(client, source, is_stateful=has_state(version.checkpoint))


def commit_position(cluster: Client, position: Position, *, is_stateful: bool | None = None) -> bool:
    """Commit the position as its query would; return False if there is nothing to commit or the group was moved."""
    committed = cluster.committed(position.group, list(position.next))
    found = {
        one: GroupCommit(offset=at.offset, mark=CommitMetadata.parse(at.metadata)) for one, at in committed.items()
    }
    verdict = compare_with_group(position, found, held=position.possible_commits())
    if not isinstance(verdict, GroupUnmoved) or not verdict.commit:
        return False
    restored = [one.mark.restored_ms for one in found.values() if one.mark and one.mark.restored_ms is not None]
    heartbeat = Heartbeat(at_ms=time.time_ns() // 1_000_000, state=QueryState.STOPPED, process=name_process())
    commits = position.commits(
        verdict.commit, heartbeat=heartbeat, is_stateful=is_stateful, restored_ms=max(restored, default=None)
    )
    cluster.commit(position.group, commits)
    return True


def _await_reader(cluster: Client, position: Position) -> None:
    """Wait for the query's Python process to end: it says in the group that it has stopped, and may do so last."""
    marks = [CommitMetadata.parse(one.metadata) for one in cluster.committed(position.group, position.next).values()]
    processes = {mark.heartbeat.process for mark in marks if mark and mark.heartbeat and mark.query == position.query}
    deadline = time.monotonic() + _READER_TIMEOUT_S
    while any(is_on_this_machine(one) and not has_ended(one) for one in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_EVERY_S)
