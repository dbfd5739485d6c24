"""Gives a consumer group the offsets of a query, so that format("logmark") continues where format("kafka") stopped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from logmark.client.answers import Committed
from logmark.client.client import Client
from logmark.errors import UserError
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change
from logmark.offsets.partitions import LogBounds
from logmark.offsets.reset.plan import PartitionMove, ResetPlan
from logmark.offsets.reset.planner import plan_reset
from logmark.offsets.reset.targets import ToOffsets
from logmark.offsets.spark_checkpoints.checkpoint import Checkpoint, read_checkpoint
from logmark.offsets.spark_checkpoints.folder import Folder
from logmark.offsets.spark_checkpoints.preconditions import check_stopped, check_topics_exist
from logmark.offsets.spark_checkpoints.rewind import is_last_batch

NEW_TO_QUERY = "new to the query: from its start, where Spark would begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeed:
    """What a group would get from a checkpoint, and what must be known of it."""

    checkpoint: Checkpoint
    plan: ResetPlan
    notes: Sequence[str] = ()


def plan_group_seed(
    client: Client,
    folder: Folder,
    group: str,
    *,
    topics: Mapping[str, Sequence[int] | None] | None = None,
    clamp: bool = False,
    is_stopped: bool = False,
    changes: Sequence[Change] = (),
    looked: Callable[[int, int], None] = lambda *_: None,
    now_ms: int,
) -> GroupSeed:
    """Plan to give a group the offsets of a query; `apply_plan` of logmark.offsets.reset.executor does it.

    The group starts at the end of the last committed batch. A partition that the query has not seen yet gets its log
    start, because that is where Spark would begin. Refuses a query that may still run, unless `is_stopped`.
    """
    checkpoint = read_checkpoint(folder, batches=3)
    _refuse_mixed(checkpoint)
    if not is_stopped and not any(is_last_batch(one, folder, checkpoint) for one in changes):
        check_stopped(checkpoint, now_ms=now_ms)
    check_topics_exist(client, checkpoint)
    new = _new_partitions(client, checkpoint)
    offsets = {one: Committed(offset=offset) for one, offset in {**checkpoint.offsets, **new}.items()}
    plan = plan_reset(
        client,
        group,
        topics,
        ToOffsets(offsets, f"the checkpoint {folder.url}"),
        create_group=True,
        allow_new_topics=True,
        clamp=clamp,
        allow_stateful=True,  # the query that reads as this group from now on starts with a new checkpoint
        with_preview=True,
        looked=looked,
        action="seed",
    )
    plan = replace(plan, moves=[_noted(move) if move.partition in new else move for move in plan.moves])
    return GroupSeed(checkpoint=checkpoint, plan=plan, notes=_notes(checkpoint))


def _noted(move: PartitionMove) -> PartitionMove:
    return replace(move, note="; ".join(part for part in (move.note, NEW_TO_QUERY) if part))


def _new_partitions(client: Client, checkpoint: Checkpoint) -> dict[TopicPartition, int]:
    topics = sorted({one.topic for one in checkpoint.offsets})
    cluster = client.metadata(topics)
    new = [one for topic in topics for one in cluster.partitions(topic) if one not in checkpoint.offsets]
    return dict(LogBounds.fetch(client, new).check(" Nothing was changed.").starts)


def _refuse_mixed(checkpoint: Checkpoint) -> None:
    sources = checkpoint.last.plan.sources
    if not all(source.offsets is not None for source in sources):
        raise UserError(
            f"The query of {checkpoint.url} reads other sources beside Kafka, and a group commits no offsets in those. "
            "Nothing was changed."
        )
    if sum(len(source.offsets or ()) for source in sources) != len(checkpoint.last.offsets):
        raise UserError(
            f"The query of {checkpoint.url} reads the same partitions in several sources, each with its own offset, "
            "and a group has only one. Nothing was changed."
        )
    if not checkpoint.offsets:
        raise UserError(
            f"No batch of {checkpoint.url} is committed, and where the query began is not known. Nothing was changed."
        )


def _notes(checkpoint: Checkpoint) -> list[str]:
    notes = []
    if checkpoint.unfinished is not None:
        notes.append(
            f"Batch {checkpoint.unfinished.id} was planned and not committed: the group begins before it, and what the "
            "sink took of it already comes once more."
        )
    if checkpoint.has_state:
        notes.append("The query keeps state, which stays in its checkpoint: only the offsets go to the group.")
    return notes
