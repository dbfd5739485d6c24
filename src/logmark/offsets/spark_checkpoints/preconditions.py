"""Why a query cannot be moved: each reason a sentence that says what to do instead."""

from collections.abc import Sequence

from logmark.client.client import Client
from logmark.errors import ErrorCode, UserError
from logmark.offsets.errors import CheckpointChangePending, OtherCluster, QueryMayRun, SinkNotKnown, StatefulQuery
from logmark.offsets.journal.changes import Change
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint
from logmark.offsets.spark_checkpoints.sinks import Sink
from logmark.offsets.times import format_duration, format_time

QUIET_MS = 60_000


def check_finished(checkpoint: Checkpoint, changes: Sequence[Change] = ()) -> None:
    """Raise UserError if a batch was planned and not committed, or the two logs contradict each other."""
    last, committed = checkpoint.last, checkpoint.committed_id
    if committed == last.id:
        return
    if committed is not None and committed > last.id:
        raise UserError(
            f"{checkpoint.url} is damaged: batch {committed} is committed, and the last one that was planned is "
            f"{last.id}. Nothing was changed."
        )
    pending = next(
        (one for one in changes if one.state == "pending" and one.details.get("batch") == str(last.id)), None
    )
    if pending is not None:
        raise CheckpointChangePending(
            pending.id,
            f"Batch {last.id} of {checkpoint.url} is of the change {pending.id}, which was interrupted. Nothing was "
            "changed",
        )
    raise UserError(
        f"Batch {last.id} of {checkpoint.url} was planned, and its commit is missing: the query was stopped, or fails, "
        "in the middle of it, and its sink may have a part of it. Nothing was changed; start the query once more, let "
        f"it finish batch {last.id} (trigger availableNow does, and stops), and try again."
    )


def check_movable(checkpoint: Checkpoint) -> None:
    """Raise UserError if an added batch would break the query."""
    if checkpoint.query_id is None:
        raise UserError(
            f"{checkpoint.url} has no file named metadata, which holds the id of the query, and Spark will not start "
            "without it. Nothing was changed; restore the file."
        )
    sources = checkpoint.last.plan.sources
    if len(sources) != 1:
        raise UserError(
            f"The query of {checkpoint.url} has {len(sources)} sources, and a batch that moves one of them says "
            "nothing of what the others should do. Nothing was changed."
        )
    if checkpoint.has_state:
        raise StatefulQuery(
            f"The query of {checkpoint.url} keeps state (an aggregation, a join, or duplicates that it drops), and the "
            "state of a batch that never ran does not exist. Nothing was changed",
            'to read again, start it with a new checkpoint, or move it to format("logmark") with plan_group_seed',
        )
    if checkpoint.last.plan.metadata.get("controlBatchInfo"):
        raise UserError(
            f"Batch {checkpoint.last.id} of {checkpoint.url} carries an order of Spark's own, which must not be "
            "repeated. Nothing was changed; start the query, let it run one more batch, stop it, and try again."
        )


def check_stopped(checkpoint: Checkpoint, *, now_ms: int) -> None:
    """Raise QueryMayRun if the checkpoint changed in the last minute, or at an unknown time."""
    if checkpoint.changed_ms is None:
        since = "and it is not known when it was last written to"
    elif now_ms - checkpoint.changed_ms >= QUIET_MS:
        return
    else:
        ago = format_duration(max(now_ms - checkpoint.changed_ms, 0))
        since = f"and its checkpoint was written to at {format_time(checkpoint.changed_ms)}, {ago} ago"
    raise QueryMayRun(
        f"The query of {checkpoint.url} may still run: a query is moved while it is stopped, {since}. Nothing was "
        "changed",
        "stop it and wait a minute, or pass is_stopped=True if you did",
    )


def check_sink(checkpoint: Checkpoint, sink: Sink | None) -> None:
    """Raise UserError for a file sink, and for an unknown sink."""
    if sink is None:
        raise SinkNotKnown(
            f"The checkpoint {checkpoint.url} does not say where its query writes to, and the query of a file sink "
            "(parquet, json, csv, orc, text) must not be moved. Nothing was changed",
            "pass sink=parse_sink(...) with a kind of sink or the folder that it writes to",
            exit_code=2,
        )
    if sink.is_files:
        raise UserError(
            f"The query of {checkpoint.url} writes files to {sink.name} ({sink.known_by}), and the manifest of a file "
            "sink needs every batch: the query would fail when it next compacts it, because the batch that moves it "
            "never went through the sink. Nothing was changed; to read again, start the query with a new checkpoint "
            "and a new folder."
        )


def check_topics_exist(client: Client, checkpoint: Checkpoint) -> None:
    """Raise UserError if the cluster lacks a topic that the query reads."""
    topics = sorted({one.topic for one in checkpoint.offsets})
    existing = client.metadata(topics)
    for topic in topics:
        if existing.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise UserError(f"You are not allowed to see topic {topic}, if there is one. Nothing was changed.")
        if not existing.partitions(topic):
            raise OtherCluster(
                f"The query of {checkpoint.url} reads topic {topic}, which this cluster does not have. Nothing was "
                "changed",
                "connect to the cluster that the query reads",
            )


def check_same_query(checkpoint: Checkpoint, change: Change) -> None:
    """Raise UserError if this is not the checkpoint that the change was made to, as on another machine."""
    if checkpoint.query_id != change.details.get("query"):
        raise UserError(
            f"{checkpoint.url} is the checkpoint of query {checkpoint.query_id}, and the change {change.id} was made "
            f"to that of query {change.details.get('query')}, on {change.host}. Nothing was changed; was it "
            "created again, or is this another machine's?"
        )
