"""Checkpoints and their moves as people and programs read them."""

from collections.abc import Mapping

from logmark.cli.lagtables import age_fields, age_text, note, row
from logmark.cli.offsets.showing import plan_fields, print_plan
from logmark.cli.tables import Column, count, place, print_table, say, write_line
from logmark.names import TopicPartition
from logmark.offsets.journal.changes import Change
from logmark.offsets.spark_checkpoints.rewind import Rewind
from logmark.offsets.spark_checkpoints.view import BatchView, CheckpointView
from logmark.offsets.times import format_time

_PARTITIONS_SHOWN = 8


def print_view(view: CheckpointView) -> None:
    """Writes where a query stands, how far it is behind, and its last batches."""
    checkpoint = view.checkpoint
    write_line(f"Query {checkpoint.query_id or 'without an id'}, checkpoint {checkpoint.url}")
    columns = [
        Column("TOPIC"), Column("PARTITION", True), Column("PLACE"), Column("START", True), Column("END", True),
        Column("LAG", True), Column("BEHIND"), Column("NOTE"),
    ]  # fmt: skip
    print_table(
        columns,
        [
            (
                one.partition.topic, one.partition.partition, place(one.committed.offset if one.committed else None),
                one.start, one.end, one.lag.records if one.lag else None,
                age_text(view.ages[one.partition]) if one.partition in view.ages else None, note(one),
            )
            for one in view.partitions
        ],
    )  # fmt: skip
    if view.ages:
        oldest = age_text(view.oldest)
        write_line(f"In total: {count(view.lag, 'record')} behind{f', the oldest for {oldest}' if oldest else ''}.")
    if view.new_partitions:
        names = ", ".join(map(str, view.new_partitions[:_PARTITIONS_SHOWN]))
        say(f"New to the query, which will read them from their start: {names}.")
    write_line("")
    print_table(
        [
            Column("BATCH", True), Column("STATE"), Column("PLANNED"), Column("COMMITTED"), Column("RECORDS", True),
            Column("WATERMARK"), Column("ENDS AT"), Column("NOTE"),
        ],
        [_batch_cells(one) for one in view.batches],
    )  # fmt: skip
    _say_what_stands_in_the_way(view)


def _batch_cells(view: BatchView) -> tuple[object, ...]:
    batch = view.batch
    added = f"added by change {view.change.id} of {view.change.who}" if view.change else ""
    return (
        batch.id, "committed" if batch.is_committed else "planned only", _moment(batch.plan.planned_ms),
        _moment(batch.committed_ms), view.records, _moment(batch.watermark_ms), _offsets_text(batch.offsets), added,
    )  # fmt: skip


def _offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    if len(offsets) > _PARTITIONS_SHOWN:
        return f"{len(offsets)} partitions"
    return " ".join(f"{one}:{offset}" for one, offset in sorted(offsets.items()))


def _say_what_stands_in_the_way(view: CheckpointView) -> None:
    checkpoint = view.checkpoint
    if checkpoint.unfinished is not None:
        say(
            f"Batch {checkpoint.unfinished.id} is planned and not committed: the query runs it now, or will run it "
            "again when it is started."
        )
    sources = len(checkpoint.last.plan.sources)
    if sources > 1:
        say(f"The query has {sources} sources, and cannot be moved; these are the places of those that read Kafka.")
    if checkpoint.has_state:
        say("The query keeps state, and cannot be moved.")


def view_fields(view: CheckpointView) -> dict[str, object]:
    """Everything that is known of a checkpoint."""
    checkpoint = view.checkpoint
    return {
        "checkpoint": checkpoint.url,
        "query": checkpoint.query_id,
        "changed": _moment(checkpoint.changed_ms),
        "has_state": checkpoint.has_state,
        "sources": len(checkpoint.last.plan.sources),
        "lag": view.lag if view.ages else None,
        "lost": view.lost if view.ages else None,
        **age_fields(view.oldest),
        "places": [
            {name: value for name, value in row(one).items() if name != "group"}
            | (age_fields(view.ages[one.partition]) if one.partition in view.ages else {})
            | {"note": note(one)}
            for one in view.partitions
        ],
        "new_partitions": [
            {"topic": one.topic, "partition": one.partition} for one in view.new_partitions
        ],
        "batches": [
            {
                "batch": one.batch.id,
                "is_committed": one.batch.is_committed,
                "planned": _moment(one.batch.plan.planned_ms),
                "committed": _moment(one.batch.committed_ms),
                "records": one.records,
                "watermark": _moment(one.batch.watermark_ms),
                "offsets": _nested(one.batch.offsets),
                "change": one.change.id if one.change else None,
            }
            for one in view.batches
        ],
    }  # fmt: skip


def print_rewind(rewind: Rewind) -> None:
    """Writes the plan of a move, and the batch that makes it."""
    print_plan(rewind.plan, of="the query of")
    write_line(
        f"Batch {rewind.addition.id} will be added behind batch {rewind.checkpoint.last.id}; it reads nothing, and no "
        "other file is changed."
    )


def rewind_fields(rewind: Rewind, change: Change | None) -> dict[str, object]:
    """The plan of a move with everything that is known about it, and the change that it has become."""
    fields = plan_fields(rewind.plan, None)
    group_only = ("group", "creates_group", "repeats", "overwritten_by", "picked_up_by")
    return {
        "checkpoint": rewind.checkpoint.url,
        "query": rewind.checkpoint.query_id,
        "batch": rewind.addition.id,
        **{name: value for name, value in fields.items() if name not in group_only},
        "applied": change is not None,
        "change": change.id if change else None,
    }


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one, offset in sorted(offsets.items()):
        found.setdefault(one.topic, {})[str(one.partition)] = offset
    return found


def _moment(timestamp_ms: int | None) -> str | None:

    return format_time(timestamp_ms) if timestamp_ms else None
