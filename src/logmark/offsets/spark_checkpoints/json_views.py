"""Checkpoints and rewinds as programs read them."""

from typing import Any

from logmark.offsets.journal.changes import Change
from logmark.offsets.lag.views import age_fields, offset_fields, partition_note
from logmark.offsets.partitions import nest_offsets
from logmark.offsets.reset.views import view_plan
from logmark.offsets.spark_checkpoints.rewind import Rewind
from logmark.offsets.spark_checkpoints.view import BatchView, CheckpointView
from logmark.offsets.times import format_time


def checkpoint_json(view: CheckpointView) -> dict[str, Any]:
    """Return everything that is known of a checkpoint."""
    checkpoint = view.checkpoint
    return {
        "checkpoint": checkpoint.url,
        "query": checkpoint.query_id,
        "changed": _time(checkpoint.changed_ms),
        "has_state": checkpoint.has_state,
        "sources": len(checkpoint.last.plan.sources),
        "lag": view.lag if view.ages else None,
        "lost": view.lost if view.ages else None,
        **age_fields(view.oldest),
        "partitions": [
            {name: value for name, value in offset_fields(one).items() if name != "group"}
            | (age_fields(view.ages[one.partition]) if one.partition in view.ages else {})
            | {"note": partition_note(one)}
            for one in view.partitions
        ],
        "new_partitions": [{"topic": one.topic, "partition": one.partition} for one in view.new_partitions],
        "batches": [_batch_json(one) for one in view.batches],
    }


def rewind_json(rewind: Rewind, change: Change | None) -> dict[str, Any]:
    """Return everything that is known of a rewind, and the change that it has become if it was applied."""
    of_groups_only = ("group", "creates_group", "repeats", "overwritten_by", "picked_up_by")
    plan = view_plan(rewind.plan).to_json()
    return {
        "checkpoint": rewind.checkpoint.url,
        "query": rewind.checkpoint.query_id,
        "batch": rewind.addition.id,
        **{name: value for name, value in plan.items() if name not in of_groups_only},
        "applied": change is not None,
        "change": change.id if change else None,
    }


def _batch_json(view: BatchView) -> dict[str, Any]:
    return {
        "batch": view.batch.id,
        "is_committed": view.batch.is_committed,
        "planned": _time(view.batch.plan.planned_ms),
        "committed": _time(view.batch.committed_ms),
        "records": view.records,
        "watermark": _time(view.batch.watermark_ms),
        "offsets": nest_offsets(view.batch.offsets),
        "change": view.change.id if view.change else None,
    }


def _time(timestamp_ms: int | None) -> str | None:
    return format_time(timestamp_ms) if timestamp_ms else None
