"""The last commit of a stopped query: the one that it would have made at its next trigger.

A query commits a batch when Spark asks for the next one. Spark asks a stopped query no more, so its group would seem to
be one batch behind until the next run.
"""

import contextlib

from logmark.client.client import Client
from logmark.errors import LogmarkError
from logmark.offsets.commit_metadata import CommitMetadata
from logmark.spark.checkpoint import finished_position, has_state
from logmark.spark.pipelines.declaration import PipelineDeclaration, Version
from logmark.spark.pipelines.query import Brokers, read_options
from logmark.spark.source.options import parse_source_options
from logmark.spark.source.position import GroupCommit, GroupUnmoved, Position, compare_with_group
from logmark.spark.source.range_reader import connect_source

_TIMEOUT_S = 5.0


def commit_stopped_query(pipeline: PipelineDeclaration, version: Version, brokers: Brokers) -> None:
    """Commit the position of a stopped query, if the cluster can be reached and nobody else has moved the group."""
    with contextlib.suppress(LogmarkError, OSError):
        position = finished_position(version.checkpoint)
        if position is not None and position.group == version.group:
            options = parse_source_options(read_options(pipeline, version, brokers, {}), is_stream=True)
            with connect_source(options, timeout_s=_TIMEOUT_S) as client:
                commit_position(client, position, is_stateful=has_state(version.checkpoint))


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
    commits = position.commits(verdict.commit, is_stateful=is_stateful, restored_ms=max(restored, default=None))
    cluster.commit(position.group, commits)
    return True
